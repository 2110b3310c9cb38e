#!/usr/bin/env bash
# sync_order.sh PROGRAM: checks the order of calls that matters for a loss of power and that no kill shows. Every file of a checkpoint is
# synchronized before it gets its name, their directory before the checkpoint gets its name, and the parent after that. Only then an old
# checkpoint is removed. Exit status 77, "skipped", if strace is absent or may not trace.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
command -v strace >/dev/null || { echo "strace is not installed"; exit 77; }
strace -qq -y -o "$work/log" true 2>/dev/null || { echo "strace may not trace here"; exit 77; }
strace -f -qq -y -o "$work/log" -e trace=fsync,rename,renameat2,unlinkat "$1" fp32 "$work/run" 3 >/dev/null 2>&1

root="$work/run/checkpoints" previous=0
after_previous() {  # WHAT PATTERN: requires such a call after the previous one
  local line
  line="$(grep -nE "$2" "$work/log" | cut -d: -f1 | awk -v p="$previous" '$1 > p' | head -1)"
  [[ -n "$line" ]] || { echo "step $step: no $1 after line $previous:"; cat "$work/log"; exit 1; }
  previous="$line"
}
for step in 1 2 3; do
  temporary="$root/\\.tmp-step-00000000$step-[0-9]+-[0-9]+"
  begin=$previous
  for file in model.safetensors optimizer.safetensors; do
    after_previous "fsync of $file" "fsync\\([0-9]+<$temporary/$file[^/>]*\\.tmp>\\)"
    after_previous "rename of $file" "rename\\(\"$temporary/$file[^\"]*\\.tmp\", \"$temporary/$file\"\\)"
  done
  after_previous "fsync of the state" "fsync\\([0-9]+<$temporary/state.json>\\)"
  after_previous "fsync of the manifest" "fsync\\([0-9]+<$temporary/manifest.json>\\)"
  after_previous "fsync of the directory" "fsync\\([0-9]+<$temporary>\\)"
  after_previous "rename of the directory" "renameat2\\(.*\"$temporary\", .*\"$root/step-00000000$step\""
  after_previous "fsync of the parent" "fsync\\([0-9]+<$root>\\)"
  if sed -n "$((begin + 1)),${previous}p" "$work/log" | grep -qE 'renameat2.*removed|unlinkat'; then
    echo "step $step: removed before the new one was safe"; exit 1
  fi
done
after_previous "removal of the first" "renameat2\\(.*\"$root/step-000000001\", .*\\.tmp-removed-"
after_previous "fsync of the parent" "fsync\\([0-9]+<$root>\\)"
after_previous "its files' end" "unlinkat"
echo "in order"
