#!/usr/bin/env bash
# launch.sh N PROGRAM ARGUMENTS...: runs a program as N processes, for the tests of this folder: more processes than cores, not bound to
# cores, as root, without ssh, over shared memory, and for at most HALFTONE_LAUNCH_LIMIT seconds (60). N = 0: the program alone, without a
# launcher. Exit status 77, "skipped", without mpirun.
set -euo pipefail
count="$1"
shift
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"  # what is reported is the library's
limit="${HALFTONE_LAUNCH_LIMIT:-60}"
if ((count == 0)); then exec timeout "$limit" "$@"; fi
mpirun="${HALFTONE_MPIRUN:-mpirun}"
command -v "$mpirun" >/dev/null || { echo "there is no $mpirun"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm_rsh_agent=/bin/false
flags=()
if "$mpirun" --version | grep -q "Open MPI"; then flags=(--oversubscribe --bind-to none); fi
exec timeout -k 5 "$limit" "$mpirun" -n "$count" ${flags[@]+"${flags[@]}"} "$@"
