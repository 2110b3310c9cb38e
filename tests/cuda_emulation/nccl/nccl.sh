#!/usr/bin/env bash
# nccl.sh LAUNCH TRAINING INFO DIRECTORY: processes with one emulated GPU each, over the emulated NCCL in that directory, end with the bits
# of one process. Also if work waits in its stream, and if the host sends the data (no NCCL, one that is too old, one GPU for two). If NCCL
# fails, or a process ends, all end with a message. Exit status 77 without mpirun.
set -euo pipefail
launch="$1" training="$2" info="$3" directory="$4"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export HALFTONE_DISTRIBUTED_TIMEOUT=20
fail() { echo "$*"; cat "$work/err"; exit 1; }
with() { LD_LIBRARY_PATH="$directory" "$launch" "$@"; }
mkdir "$work/broken" && echo nothing >"$work/broken/libnccl.so.2"

[[ "$(LD_LIBRARY_PATH="$directory" "$info" | grep '^nccl')" =~ ^nccl\ +2\.28\.9$ ]] || fail "halftone-info: $("$info")"
[[ "$(LD_LIBRARY_PATH="$work/broken" "$info" | grep '^nccl')" =~ "absent: $work/broken/libnccl.so.2: file too short. Install NCCL" ]] ||
  fail "halftone-info: $(LD_LIBRARY_PATH="$work/broken" "$info")"

# Every path of gradients and weights: shards and whole ones, wires on the GPU and on the host, short and long weights.
check() {  # RANKS WHO-SENDS ARGUMENTS...: LINE is the last line of one process
  local ranks="$1" who="$2"
  shift 2
  with "$ranks" "$training" device=cuda epochs=1 "$@" >"$work/out" 2>"$work/err" || { (($? != 77)) || exit 77; fail "$ranks: $*"; }
  diff <(echo "$line") "$work/out" || fail "$ranks processes, $*: other bits"
  if [[ "$who" == nccl ]] && grep -q "through the host" "$work/err"; then fail "$*: through the host"; fi
  if [[ "$who" != nccl ]] && ! grep -q "through the host: .*$who" "$work/err"; then fail "no \"$who\""; fi
}
sums=()
for case in "strategy=fp32 model=mlp optimizer=sgd" "strategy=o2-bf16 model=resnet optimizer=adamw clip=0" \
            "strategy=amp-fp16 model=gpt optimizer=rmsprop" "strategy=fp32 model=mlp optimizer=sgd wire=bf16" \
            "strategy=fp32 model=mlp optimizer=sgd wire=f8_e4m3-sr"; do
  line="$("$launch" 0 "$training" device=cuda epochs=1 $case)"
  sums+=("$(awk '{ print $4 }' <<<"$line")")
  check 2 nccl $case
  check 3 nccl $case shard=0
  HALFTONE_EMULATED_DEFERRED=7 HALFTONE_EMULATED_POISON=1 check 3 nccl $case bucket_bytes=400
done
[[ "$(printf '%s\n' "${sums[@]}" | sort -u | wc -l)" == "${#sums[@]}" ]] || fail "sums repeat: ${sums[*]}"
HALFTONE_EMULATED_NCCL=version=22000 check 2 "rank 0: NCCL 2.20.0 is left out: this build has the headers of 2.28.9" $case
HALFTONE_EMULATED_BUS=one check 2 "ranks 0 and 1 have one GPU, .* one, and NCCL wants one for each" $case
directory="$work/broken" check 2 "rank 0: .*file too short" $case
export HALFTONE_CUDA_LIBRARIES=off  # halftone's own products have other bits
line="$("$launch" 0 "$training" device=cuda epochs=1 $case)"
check 3 "rank 0: HALFTONE_CUDA_LIBRARIES=off" $case
unset HALFTONE_CUDA_LIBRARIES

expect_end() {  # MESSAGE RANKS ARGUMENTS...
  local message="$1" status=0 begin="$SECONDS"
  shift
  with "$1" "$training" strategy=fp32 model=mlp device=cuda "${@:2}" >"$work/out" 2>"$work/err" || status=$?
  ((status != 0 && status != 124 && SECONDS - begin < 20)) && grep -qE -- "$message" "$work/err" || fail "$*: status $status after $((SECONDS - begin)) s, no \"$message\""
}
HALFTONE_EMULATED_NCCL=fail=5 expect_end '^\[rank 1\] \[distributed\] NCCL failed in ".*": unhandled system error' 3
expect_end 'signal 9|KILLED' 3 fault=kill
export HALFTONE_DISTRIBUTED_TIMEOUT=3
expect_end 'rank [02]. .*"gradients.*has waited 3[^ ]* s on the GPU for another rank, which hangs' 3 fault=hang
HALFTONE_DISTRIBUTED_TIMEOUT=30 expect_end 'rank [02]. .*rank 1 has left|for rank 1, which has left' 3 fault=exit0
echo "the same bits over the emulated NCCL"
