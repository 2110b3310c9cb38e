#!/usr/bin/env bash
# cli_help.sh [BUILD]: prints docs/cli_help.md, the help texts of all programs of a build (default: build/release). After an option has
# changed: scripts/cli_help.sh > docs/cli_help.md. The test style.cli_help compares.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
build=$(realpath "${1:-build/release}")

fail() { echo "[cli_help] $*" >&2; exit 1; }

# Prints the help of `folder/program arguments...` as it looks in a build's folder.
help_of() {
  local folder=$1 program=$2; shift 2
  [[ -x $build/$folder/$program ]] || fail "$folder/$program is not built. Build everything: ninja -C $build."
  printf '\n## %s\n\n```\n' "$program${*:+ $*}"
  (cd "$build/$folder" && "./$program" "$@" --help) | sed -e "s|\./$program|$program|" -e 's/[[:space:]]*$//' -e '${/^$/d}'
  printf '```\n'
}
# Prints the names of the programs of a folder that read options.
with_options() { grep -lE 'Program program\(|CLI/CLI\.hpp' "$1"/*.cpp | xargs -n1 basename -s .cpp | grep -vx program; }

cat <<'E2'
# Help texts

`scripts/cli_help.sh` writes this page from the programs' `--help`, and a test compares them. [cli.md](cli.md) explains the commands,
their output and their exit codes. A default follows `=`.
E2
{
help_of tools halftone-lab
"$build/tools/halftone-lab" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z]*\) .*/\1/p' | while read -r command; do
  help_of tools halftone-lab "$command"
done
for source in $(with_options examples); do help_of examples "$source"; done
for source in $(with_options bench); do help_of bench "$source"; done
} | awk '/student_teacher, residual_mlp/ && seen++ { sub(/student_teacher, .*/, "a workload, as above") } { print }'  # the list, once
