#!/usr/bin/env bash
# same_bits.sh LAUNCH PROGRAM: trainings of every strategy end with the same bits and the same metrics on 1, 2, 3 and 4
# processes, and so they do on a short wire; checkpoints are the same bytes, and a training that stops and goes on, on
# other numbers of processes each time, ends as one that was left alone. Exit status 77, "skipped", without mpirun.
set -euo pipefail
launch="$1" program="$2"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }

"$launch" 0 "$program" >"$work/alone"
strategies="$(wc -l <"$work/alone")"
((strategies >= 12)) || fail "only $strategies strategies"
[[ "$(awk '{ print $4 }' "$work/alone" | sort -u | wc -l)" == "$strategies" ]] || fail "sums repeat: $(cat "$work/alone")"
for ranks in 2 3 4; do
  status=0
  "$launch" "$ranks" "$program" >"$work/$ranks" 2>"$work/err" || status=$?
  ((status != 77)) || exit 77
  ((status == 0)) || { cat "$work/err"; fail "$ranks processes: exit status $status"; }
  diff "$work/alone" "$work/$ranks" || fail "$ranks processes end with other bits"
done

# So do they where every process keeps and updates everything.
"$launch" 3 "$program" shard=0 | diff "$work/alone" - || fail "shard=0: other bits on 3 processes"

# Each wire that rounds gives bits of its own, the same ones on any number of processes.
wired=(strategy=fp32 model=mlp)
grep "^fp32 " "$work/alone" >"$work/wires"
for wire in bf16 bf16-sr f8_e4m3 f8_e4m3+feedback; do
  "$launch" 0 "$program" "${wired[@]}" wire=$wire >"$work/short"
  for ranks in 2 4; do
    "$launch" "$ranks" "$program" "${wired[@]}" wire=$wire | diff "$work/short" - || fail "wire=$wire: other bits on $ranks processes"
  done
  cat "$work/short" >>"$work/wires"
done
[[ "$(awk '{ print $4 }' "$work/wires" | sort -u | wc -l)" == 5 ]] || fail "wires with the same bits: $(cat "$work/wires")"
# Policy files: scales from history, random rounding of parameters and states, a wire of their own.
policies="$(dirname "$0")/../../policies"
sed 's/"loss_scale"/"communication": {"gradients": "f8_e5m2-sr"}, &/' "$policies/te_delayed_hybrid.json" >"$work/te_wired.json"
: >"$work/ruled"
for policy in "$policies/te_delayed_hybrid.json" "$policies/qpytorch_low8.json" "$work/te_wired.json"; do
  ruled=(strategy="$policy" model=mlp optimizer=adamw)
  "$launch" 0 "$program" "${ruled[@]}" >"$work/short"
  for ranks in 2 4; do
    "$launch" "$ranks" "$program" "${ruled[@]}" | diff "$work/short" - || fail "$policy: other bits on $ranks processes"
  done
  cat "$work/short" >>"$work/ruled"
done
[[ "$(awk '{ print $4 }' "$work/ruled" | sort -u | wc -l)" == 3 ]] || fail "policies with the same bits: $(cat "$work/ruled")"
# However parameters go together: one by one, each as soon as it is complete, or all at the end of the pass.
for bytes in 1 1000000; do
  "$launch" 2 "$program" strategy=fp32 model=resnet optimizer=sgd bucket_bytes=$bytes >"$work/buckets"
  grep -qxF -f "$work/buckets" "$work/alone" || fail "bucket_bytes=$bytes: $(cat "$work/buckets")"
done

# Some have no batch, in the last step (5 and 16 are no multiples of 3), or in any (one batch in an epoch).
for case in "strategy=o2-bf16 model=resnet batches=5 optimizer=sgd" "strategy=amp-fp16 model=gpt limit=1" \
            "strategy=split-bf16 model=resnet limit=1 wire=f8_e5m2-sr"; do
  "$launch" 3 "$program" $case | diff <("$launch" 0 "$program" $case) - || fail "$case: other bits on 3 processes"
done
# Steps of fewer batches are other steps: the comparison sees that.
"$launch" 0 "$program" strategy=fp32 batches=4 | grep -qF -f - "$work/alone" && fail "batches=4 is batches=12"

# The same bytes in checkpoints, whoever trained.
one=(strategy=o2-bf16 model=resnet optimizer=adamw average=1)
"$launch" 0 "$program" "${one[@]}" directory="$work/by1" >"$work/one"
"$launch" 4 "$program" "${one[@]}" directory="$work/by4" | diff "$work/one" - || fail "with a directory: other bits"
for file in model.safetensors optimizer.safetensors; do
  cmp "$work/by1/checkpoints/step-000000004/$file" "$work/by4/checkpoints/step-000000004/$file" || fail "$file differs"
done
# Stopped after each step and gone on with on another number of processes, once in the middle of an epoch.
steps=0
for ranks in 4 2 1 3; do
  steps=$((steps + 1))
  count=$ranks
  ((ranks != 1)) || count=0
  "$launch" "$count" "$program" "${one[@]}" directory="$work/moved" max_steps=$steps batches=$((steps == 1 ? 12 : 0)) \
    >"$work/moved_out" 2>"$work/err" || { status=$?; cat "$work/err"; fail "step $steps on $ranks processes: exit status $status"; }
done
diff "$work/one" "$work/moved_out" || fail "moved between numbers of processes it has other bits"
echo "$strategies strategies on 1, 2, 3 and 4 processes"
