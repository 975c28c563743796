#!/usr/bin/env bash
# `./run cluster`: nodes with names and addresses of their own, the command's exit code, and no namespace left behind, a kill included.
# Usage: cluster_test.sh CLUSTER.SH. 77: this machine has no iproute2, or this process lacks CAP_SYS_ADMIN or CAP_NET_ADMIN.
set -uo pipefail
cluster=$1
command -v ip >/dev/null || { echo "skipped: there is no iproute2"; exit 77; }
capabilities=$((16#$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)))
needed=$((1 << 21 | 1 << 12))  # CAP_SYS_ADMIN, CAP_NET_ADMIN
(((capabilities & needed) == needed)) || { echo "skipped: this process may not make network namespaces"; exit 77; }
TMPDIR=$(mktemp -d)  # the killed run leaves its folder there
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failures=0
expect() {  # expect WHAT WANTED FOUND
  [[ $2 == "$3" ]] && return
  echo "$1: wanted '$2', found '$3'"
  failures=$((failures + 1))
}
holders() { pgrep -fc '^tail -f .*tessera-cluster'; }

out=$("$cluster" --ranks-per-node 2 2 -- sh -c 'echo "$(hostname) $(ip -4 -o address show eth0 | tr -s " " | cut -d" " -f4)"' | sort | uniq -c | tr -s ' ')
expect "two ranks on each of two nodes" " 2 node0 10.77.0.1/24
 2 node1 10.77.0.2/24" "$out"
"$cluster" 1 -- sh -c 'exit 7' >/dev/null 2>&1
expect "the command's exit code" 7 $?
"$cluster" 2 >/dev/null 2>&1
expect "exit code of a usage error" 2 $?
expect "namespaces left after the end" 0 "$(holders)"

start() {  # sets `killed`
  "$cluster" 2 -- sleep 60 >/dev/null 2>&1 &
  killed=$!
  for _ in $(seq 100); do
    [[ $(holders) == 3 ]] && break
    sleep 0.05
  done
  expect "namespaces while it runs" 3 "$(holders)"
}

start
before=$SECONDS
kill -TERM "$killed"
wait "$killed"
expect "exit code after SIGTERM" 143 $?
expect "it does not wait for the command" 1 $((SECONDS - before < 30))
expect "namespaces left after SIGTERM" 0 "$(holders)"
expect "folders left after SIGTERM" 0 "$(find "$TMPDIR" -name 'tessera-cluster-*' | wc -l)"

start
kill -KILL "$killed"
for _ in $(seq 100); do
  [[ $(holders) == 0 ]] && break
  sleep 0.05
done
expect "namespaces left after a kill" 0 "$(holders)"
exit $((failures > 0))
