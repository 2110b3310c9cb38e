#!/usr/bin/env bash
# same_bits.sh LAUNCH PROGRAM PART: trainings end with the same bits and the same metrics on any number of processes. Parts:
#   strategies_on_2   every strategy on 1 and 2 processes
#   strategies        every strategy on 3 and 4 processes, without shards, with small and large buckets
#   wires               gradients that are rounded for the transfer
#   policies          policy files: scales from history, random rounding, a wire of their own
#   shares            processes without a batch; checkpoints are the same bytes, and a training that stops and goes on, on
#                     another number of processes each time, ends as one that was left alone
# Exit status 77, "skipped", without mpirun. A run that fails or takes too long is reported with its status and its messages.
set -euo pipefail
launch="$1" program="$2" part="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }

# run RANKS FILE [FLAG...]: a training on RANKS processes (0: without mpirun); its output goes to FILE.
run() {
  local ranks="$1" file="$2" status=0
  shift 2
  "$launch" "$ranks" "$program" "$@" >"$file" 2>"$work/err" || status=$?
  ((status != 77)) || exit 77
  ((status == 0)) || { cat "$work/err"; fail "$ranks processes, $*: exit status $status"; }
}
# same FILE RANKS [FLAG...]: the training prints what FILE has.
same() {
  local file="$1" ranks="$2"
  shift 2
  run "$ranks" "$work/again" "$@"
  diff "$file" "$work/again" || fail "$ranks processes, $*: other bits"
}
# different FILE COUNT: the sums in the file are COUNT different ones.
different() { [[ "$(awk '{ print $4 }' "$1" | sort -u | wc -l)" == "$2" ]] || fail "sums repeat: $(cat "$1")"; }

every_strategy() {
  run 0 "$work/alone"
  strategies="$(wc -l <"$work/alone")"
  ((strategies >= 12)) || fail "only $strategies strategies"
  different "$work/alone" "$strategies"
}

case "$part" in
  strategies_on_2)
    every_strategy
    same "$work/alone" 2
    # Steps of fewer batches are different steps: the comparison must notice.
    run 0 "$work/fewer" strategy=fp32 batches=4
    ! grep -qF -f "$work/fewer" "$work/alone" || fail "batches=4 is batches=12"
    echo "$strategies strategies on 1 and 2 processes"
    ;;
  strategies)
    every_strategy
    for ranks in 3 4; do same "$work/alone" "$ranks"; done
    # The same if every process stores and updates all parameters.
    same "$work/alone" 3 shard=0
    # Any size of bucket: one parameter per bucket, or everything at the end of the pass.
    for bytes in 1 1000000; do
      run 2 "$work/buckets" strategy=fp32 model=resnet optimizer=sgd bucket_bytes=$bytes
      grep -qxF -f "$work/buckets" "$work/alone" || fail "bucket_bytes=$bytes: $(cat "$work/buckets")"
    done
    echo "$strategies strategies on 1, 3 and 4 processes"
    ;;
  wires)
    wired=(strategy=fp32 model=mlp)
    run 0 "$work/wires" "${wired[@]}"
    for wire in bf16 bf16-sr f8_e4m3 f8_e4m3+feedback; do
      run 0 "$work/short" "${wired[@]}" wire=$wire
      for ranks in 2 4; do same "$work/short" "$ranks" "${wired[@]}" wire=$wire; done
      cat "$work/short" >>"$work/wires"
    done
    different "$work/wires" 5
    ;;
  policies)
    policies="$(dirname "$0")/../../amp/policies"
    sed 's/"loss_scale"/"communication": {"gradients": "f8_e5m2-sr"}, &/' "$policies/te_delayed_hybrid.json" >"$work/te_wired.json"
    for policy in "$policies/te_delayed_hybrid.json" "$policies/qpytorch_low8.json" "$work/te_wired.json"; do
      ruled=(strategy="$policy" model=mlp optimizer=adamw)
      run 0 "$work/short" "${ruled[@]}"
      for ranks in 2 4; do same "$work/short" "$ranks" "${ruled[@]}"; done
      cat "$work/short" >>"$work/ruled"
    done
    different "$work/ruled" 3
    ;;
  shares)
    # Some processes have no batch in the last step (5 is not a multiple of 3), or in any step (one batch in an epoch).
    for case in "strategy=o2-bf16 model=resnet batches=5 optimizer=sgd" "strategy=amp-fp16 model=gpt limit=1" \
                "strategy=split-bf16 model=resnet limit=1 wire=f8_e5m2-sr"; do
      read -ra flags <<<"$case"
      run 0 "$work/one" "${flags[@]}"
      same "$work/one" 3 "${flags[@]}"
    done
    # The same bytes in checkpoints.
    one=(strategy=o2-bf16 model=resnet optimizer=adamw average=1)
    run 0 "$work/one" "${one[@]}" directory="$work/by1"
    same "$work/one" 4 "${one[@]}" directory="$work/by4"
    for file in model.safetensors optimizer.safetensors; do
      cmp "$work/by1/checkpoints/step-000000004/$file" "$work/by4/checkpoints/step-000000004/$file" || fail "$file differs"
    done
    # Stopped after each step and continued on another number of processes, once in the middle of an epoch.
    steps=0
    for ranks in 4 2 0 3; do
      steps=$((steps + 1))
      run "$ranks" "$work/moved" "${one[@]}" directory="$work/moved_run" max_steps=$steps batches=$((steps == 1 ? 12 : 0))
    done
    diff "$work/one" "$work/moved" || fail "moved between numbers of processes it has other bits"
    ;;
  *) fail "there is no part named $part" ;;
esac
