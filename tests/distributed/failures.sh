#!/usr/bin/env bash
# failures.sh LAUNCH PROGRAM: after any failure of one process of three, all end soon, with a status other than 0 and a message that names
# it. Exit status 77, "skipped", without mpirun.
set -euo pipefail
launch="$1" program="$2"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export HALFTONE_DISTRIBUTED_TIMEOUT=3 HALFTONE_LAUNCH_LIMIT=40
training=(strategy=o2-bf16 model=mlp)

expect_end() {  # FAULT MESSAGE ARGUMENTS...: the end of a training in which rank 1 has this fault
  local fault="$1" message="$2" status=0 begin end
  shift 2
  begin="$(date +%s)"
  "$launch" 3 "$program" "${training[@]}" fault="$fault" "$@" >"$work/out" 2>"$work/err" || status=$?
  end="$(date +%s)"
  ((status != 77)) || exit 77
  if ((status == 0 || status == 124)) || ((end - begin > 20)) || ! grep -qE -- "$message" "$work/out" "$work/err"; then
    echo "$fault: exit status $status after $((end - begin)) s, and no \"$message\" in:"
    cat "$work/out" "$work/err"
    exit 1
  fi
}

expect_end throw '^\[rank 1\] \[image\] the third batch is broken'
expect_end exit0 'rank [02] waits in ".*" for rank 1, which has left'
expect_end hang 'rank [02]: ".*" has waited 3[^ ]* s for rank 1\. It hangs, died, or does something else'
expect_end other 'has waited|truncat|failed:'
expect_end kill 'signal 9|KILLED'
expect_end segv 'signal 11|SEGV|[Ss]egmentation'
expect_end alike 'rank 1 has batch_size 2, rank 0 has batch_size 3\. Start all ranks alike'
expect_end data 'rank 1 has checksum of three samples [0-9]+, rank 0 has checksum of three samples [0-9]+\. Start all ranks alike'
expect_end callbacks 'rank 1 has callbacks Fault EarlyStopping, rank 0 has callbacks Fault WeightAverage\. Start all ranks alike'
expect_end late 'MPI has waited 3 s for the other processes to start it'
expect_end none 'accumulate_batches is 2 for 3 processes' batches=2
HALFTONE_DISTRIBUTED_TIMEOUT=soon expect_end none 'HALFTONE_DISTRIBUTED_TIMEOUT. it is "soon"\. Give seconds'
# Slurm's srun without an MPI.
SLURM_STEP_NUM_TASKS=3 "$launch" 0 "$program" "${training[@]}" >"$work/out" 2>"$work/err" && { echo "trained alone under srun"; exit 1; }
grep -q 'srun started 3 processes that cannot find each other.*--mpi=pmix' "$work/err" || { cat "$work/err"; exit 1; }
# An error of all ranks is printed once, by rank 0.
mkdir "$work/taken" && "$launch" 0 "$program" "${training[@]}" directory="$work/taken" max_steps=1 >"$work/out"
expect_end none '^\[rank 0\] .*saved under o2-bf16' directory="$work/taken" strategy=fp32
[[ "$(grep -c '^\[rank' "$work/err")" == 1 ]] || { echo "said more than once:"; cat "$work/err"; exit 1; }
mkdir "$work/few" && "$launch" 2 "$program" "${training[@]}" batches=2 directory="$work/few" max_steps=1 >"$work/out"
expect_end none 'the steps of this training have 2 batches, and there are 3 processes' batches=0 directory="$work/few"

# SIGTERM to one process: the step is finished and saved, and all end.
expect_end term '' directory="$work/stopped"
[[ -f "$work/stopped/checkpoints/step-000000003/manifest.json" ]] || { echo "nothing was saved:"; ls -R "$work/stopped"; exit 1; }
grep -q 'SIGTERM.*saved' "$work/err" || { cat "$work/err"; exit 1; }

# An overflow on rank 1 skips the step of all.
"$launch" 3 "$program" strategy=amp-fp16 model=mlp >"$work/out"
"$launch" 3 "$program" strategy=amp-fp16 model=mlp fault=overflow >>"$work/out"
[[ "$(grep -o 'skipped [0-9]*' "$work/out" | xargs)" == "skipped 0 skipped 1" ]] || { cat "$work/out"; exit 1; }
echo "all ended"
