#!/usr/bin/env bash
# cluster.sh [--rate 1gbit] [--delay 1ms] [--ranks-per-node R] [--mca NAME VALUE]... N -- CMD
#
# Runs CMD under mpirun on N nodes of this one machine, R ranks on each. A node is a process that holds namespaces of its own: network, host
# name and mounts; a further one holds the bridge that joins them. So a kill leaves nothing behind but a folder of small files: the holders
# go with this script, and when they are gone the kernel takes links and addresses back. Ranks on different nodes see different hosts; the
# files are the same.
# Needs root, iproute2, Open MPI.
set -euo pipefail

subnet=10.77.0
rate='' delay='' ranks_per_node=1 mca=()

fail() { echo "cluster: $*" >&2; exit 2; }

# The shell that mpirun starts a daemon on a node with: cluster.sh --agent HOST COMMAND...
if [[ ${1:-} == --agent ]]; then
  holder=$(cat "$TESSERA_CLUSTER/$2") || fail "there is no node $2"
  shift 2
  exec nsenter --target "$holder" --net --uts --mount -- /bin/sh -c "$*"
fi

usage="usage: ./run cluster [--rate 1gbit] [--delay 1ms] [--ranks-per-node R] [--mca NAME VALUE] N -- CMD"
nodes=''
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --rate) rate=${2:?"--rate: a rate of tc, such as 1gbit"}; shift 2 ;;
    --delay) delay=${2:?"--delay: a time of tc, such as 1ms"}; shift 2 ;;
    --ranks-per-node) ranks_per_node=${2:?"--ranks-per-node: how many"}; shift 2 ;;
    --mca) mca+=(--mca "${2:?"--mca: a name and a value"}" "${3:?"--mca $2: a value"}"); shift 3 ;;
    -*) fail "unknown flag $1; $usage" ;;
    *) [[ -z $nodes ]] || fail "$1 after $nodes; $usage"; nodes=$1; shift ;;
  esac
done
[[ $nodes =~ ^[0-9]+$ && $nodes -ge 1 && $nodes -le 64 ]] || fail "N is a number of nodes from 1 to 64; $usage"
[[ $ranks_per_node =~ ^[0-9]+$ && $ranks_per_node -ge 1 ]] || fail "--ranks-per-node $ranks_per_node: a number from 1 on"
[[ ${1:-} == -- && $# -ge 2 ]] || fail "the command to run is missing; $usage"
shift
[[ $(id -u) == 0 ]] || fail "network namespaces need root: run it as root or with sudo"

TESSERA_CLUSTER=$(mktemp -d -t tessera-cluster-XXXXXX)
export TESSERA_CLUSTER
holders=() launcher=''
clean_up() {
  if [[ -n $launcher ]]; then
    kill -TERM "$launcher" 2>/dev/null || true
    wait "$launcher" 2>/dev/null || true
  fi
  if [[ ${#holders[@]} -gt 0 ]]; then
    kill -KILL "${holders[@]}" 2>/dev/null || true
    wait "${holders[@]}" 2>/dev/null || true
  fi
  rm -rf "$TESSERA_CLUSTER"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Starts a holder of namespaces; sets `pid` to it.
hold() {  # hold NAME
  setpriv --pdeathsig KILL unshare --net --uts --mount \
    /bin/sh -c "hostname $1 && : >$TESSERA_CLUSTER/$1.up && exec tail -f $TESSERA_CLUSTER/$1.up" </dev/null >/dev/null 2>&1 &
  pid=$!
  holders+=("$pid")
  until [[ -e $TESSERA_CLUSTER/$1.up ]]; do
    kill -0 "$pid" 2>/dev/null || fail "cannot make namespaces here: is this a container that may not?"
    sleep 0.02
  done
  echo "$pid" >"$TESSERA_CLUSTER/$1"
}
inside() { local at=$1; shift; nsenter --target "$at" --net -- "$@"; }

hold bridge
bridge=$pid
inside "$bridge" ip link add br0 type bridge
inside "$bridge" ip link set br0 up
# A switch does not filter: each frame would cost the cores that compute.
inside "$bridge" sh -c 'for f in /proc/sys/net/bridge/bridge-nf-call-*; do if [ -w "$f" ]; then echo 0 >"$f"; fi; done'

echo "127.0.0.1 localhost" >"$TESSERA_CLUSTER/hosts"
for ((n = 0; n < nodes; ++n)); do echo "$subnet.$((n + 1)) node$n" >>"$TESSERA_CLUSTER/hosts"; done

hosts=''
for ((n = 0; n < nodes; ++n)); do
  hold "node$n"
  inside "$bridge" ip link add "to$n" type veth peer name eth0 netns "$pid"
  inside "$bridge" ip link set "to$n" master br0 up
  inside "$pid" ip link set lo up
  inside "$pid" ip address add "$subnet.$((n + 1))/24" dev eth0
  inside "$pid" ip link set eth0 up
  # What leaves a node is shaped there, what comes to it by the bridge: full duplex, like a wire. The burst holds a whole segment of 64 KiB, as a
  # network card would take it; else the kernel cuts it into packets on the cores that compute.
  if [[ -n $rate ]]; then
    inside "$pid" tc qdisc add dev eth0 root handle 1: tbf rate "$rate" burst 256kb latency 20ms
    if [[ -n $delay ]]; then inside "$pid" tc qdisc add dev eth0 parent 1: netem delay "$delay"; fi
  elif [[ -n $delay ]]; then
    inside "$pid" tc qdisc add dev eth0 root netem delay "$delay"
  fi
  nsenter --target "$pid" --mount -- mount --bind "$TESSERA_CLUSTER/hosts" /etc/hosts
  hosts+="${hosts:+,}node$n:$ranks_per_node"
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
agent="$(readlink -f "${BASH_SOURCE[0]}") --agent"
status=0
setpriv --pdeathsig TERM nsenter --target "$(cat "$TESSERA_CLUSTER/node0")" --net --uts --mount --wd="$PWD" -- \
  mpirun -wdir "$PWD" --host "$hosts" -np $((nodes * ranks_per_node)) --bind-to none \
  --mca plm_rsh_agent "$agent" --mca plm_rsh_no_tree_spawn 1 \
  --mca oob_tcp_if_include "$subnet.0/24" --mca btl_tcp_if_include "$subnet.0/24" \
  "${mca[@]}" -x TESSERA_CLUSTER "$@" <&0 &
launcher=$!  # in the background, since the shell hears no signal while it runs something else
wait "$launcher" || status=$?
launcher=''
exit "$status"
