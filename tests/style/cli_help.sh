#!/usr/bin/env bash
# cli_help.sh ROOT BUILD: docs/cli_help.md has the help texts that the programs of BUILD print.
set -euo pipefail
if ! diff "$1/docs/cli_help.md" <("$1/scripts/cli_help.sh" "$2"); then
  echo "[cli_help] docs/cli_help.md differs (<) from what the programs print (>). Run: scripts/cli_help.sh > docs/cli_help.md" >&2
  exit 1
fi
