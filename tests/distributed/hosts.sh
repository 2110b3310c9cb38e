#!/usr/bin/env bash
# hosts.sh LAUNCH PROGRAM: three hosts on one machine, which are network namespaces on a bridge, each with its own name. A
# training over TCP between them ends with the bits of one process. If a link goes down during a training, the deadline names
# the rank on its other side. Open MPI only. Exit status 77, "skipped", without mpirun, or without the permission to make
# namespaces.
set -euo pipefail
launch="$1" program="$2" prefix="ht$$"
command -v mpirun >/dev/null && mpirun --version | grep -q "Open MPI" || { echo "there is no Open MPI"; exit 77; }
work="$(mktemp -d)"
down() {
  for host in 0 1 2; do
    ip netns pids "$prefix-$host" 2>/dev/null | xargs -r kill -9 || true
    ip netns del "$prefix-$host" 2>/dev/null || true
  done
  ip link del "$prefix" 2>/dev/null || true
  rm -rf "$work"
}
trap down EXIT
ip link add "$prefix" type bridge 2>/dev/null && ip link set "$prefix" up || { echo "no bridge may be made here"; exit 77; }
for host in 0 1 2; do
  ip netns add "$prefix-$host"
  ip link add "$prefix-$host" type veth peer name eth0 netns "$prefix-$host"
  ip link set "$prefix-$host" master "$prefix" up
  ip -n "$prefix-$host" addr add "10.99.0.$((host + 1))/24" dev eth0
  ip -n "$prefix-$host" link set eth0 up
  ip -n "$prefix-$host" link set lo up
  echo "$prefix-$host slots=1" >>"$work/hosts"
done
# A substitute for ssh: agent HOST COMMAND...
cat >"$work/agent" <<'AGENT'
#!/usr/bin/env bash
host="$1"
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; exec $*"
AGENT
chmod +x "$work/agent"
on_hosts() {  # ARGUMENTS...: runs the program on all three
  OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 ip netns exec "$prefix-0" unshare --uts sh -c \
    "hostname $prefix-0; exec mpirun --hostfile $work/hosts -n 3 --map-by node --bind-to none --mca plm_rsh_agent $work/agent --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 $program $*"
}

"$launch" 0 "$program" strategy=o2-bf16 model=resnet >"$work/alone"
on_hosts strategy=o2-bf16 model=resnet >"$work/three" 2>"$work/err" || { cat "$work/err"; exit 1; }
diff "$work/alone" "$work/three" || { echo "other bits on three hosts"; exit 1; }

export HALFTONE_DISTRIBUTED_TIMEOUT=3
begin="$(date +%s)" status=0
# Processes end by the deadline; mpirun itself waits for its daemon on that host, until the link is up again.
(sleep 3; ip link set "$prefix-2" down; sleep 7; ip link set "$prefix-2" up) &
on_hosts strategy=o2-bf16 model=mlp epochs=1000000 >"$work/out" 2>"$work/err" || status=$?
took=$(($(date +%s) - begin))
((status != 0 && status != 124)) && grep -qE '^\[distributed\] rank [01]: .* has waited 3.* for rank 2\. It hangs' "$work/err" ||
  { echo "link down: exit status $status after $took s"; cat "$work/out" "$work/err"; exit 1; }
echo "the same bits on three hosts; link down: ended after $took s"
