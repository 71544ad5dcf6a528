#!/bin/bash
# two_hosts.sh <Open MPI's mpirun> <program> [argument...]: 2 + 2 ranks (or HEDDLE_RANKS_PER_HOST + as many) in two network
# namespaces with host names of their own, which mpirun takes for two hosts: messages between them go through TCP, and nobody shares memory.
# Where that cannot be made, or with another MPI than Open MPI 4: exit status 77, skipped.
set -e
if [ "$HEDDLE_TWO_HOSTS" != inside ]; then
  if ! command -v ip > /dev/null || ! unshare --net --mount --uts true 2> /dev/null; then
    echo "SKIPPED: network namespaces cannot be made here (they need root and iproute2)"
    exit 77
  fi
  if ! "$1" --version 2> /dev/null | grep -qE "[(](Open MPI|OpenRTE)[)] 4"; then
    echo "SKIPPED: only the mpirun of Open MPI 4 is known to take another program for ssh in this way"
    exit 77
  fi
  HEDDLE_TWO_HOSTS=inside exec unshare --net --mount --uts --fork bash "$0" "$@"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p /run/netns; mount -t tmpfs none /run/netns
ip link set lo up; ip link add bridge type bridge; ip addr add 10.99.0.1/24 dev bridge; ip link set bridge up
for n in 2 3; do
  ip netns add host$n; ip link add to$n type veth peer name eth0 netns host$n
  ip link set to$n master bridge up
  ip -n host$n link set lo up; ip -n host$n addr add 10.99.0.$n/24 dev eth0; ip -n host$n link set eth0 up
done
# What mpirun starts its daemons with, instead of ssh.
cat > "$folder/rsh" <<'S'
#!/bin/sh
n=${1##*.}; shift
exec ip netns exec host$n unshare --uts sh -c "hostname host$n; $*"
S
chmod +x "$folder/rsh"
mpirun=$1; shift; each=${HEDDLE_RANKS_PER_HOST:-2}
"$mpirun" --mca plm_rsh_agent "$folder/rsh" --mca btl_tcp_if_include 10.99.0.0/24 --mca oob_tcp_if_include 10.99.0.0/24 --host 10.99.0.2:$each,10.99.0.3:$each -n $((2 * each)) "$@"
