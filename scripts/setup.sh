#!/usr/bin/env bash
# Installs the packages of packages.txt that this machine lacks; does nothing if all are installed. HALFTONE_SKIP_SETUP=1 turns it off, for
# systems that get the libraries from elsewhere.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() {
  echo "setup: $*" >&2
  exit 1
}

[[ "${HALFTONE_SKIP_SETUP:-}" == 1 ]] && exit 0
mapfile -t wanted < <(grep -Ev '^(#|$)' "$here/packages.txt")

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is not a Debian-like system. Install what corresponds to: ${wanted[*]}." \
       "Then run again with HALFTONE_SKIP_SETUP=1."
fi

missing=()
for package in "${wanted[@]}"; do
  status="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)"
  [[ "$status" == installed ]] || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "missing packages: ${missing[*]}. Neither root nor sudo here; ask an administrator to run" \
         "apt-get install ${missing[*]}"
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
# An index that cannot be refreshed may still be usable.
"${as_root[@]}" apt-get update -q || echo "setup: apt-get update failed; going on" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}" ||
  fail "apt-get could not install: ${missing[*]}. Its messages are above."
