#!/usr/bin/env bash
# A training run of 8 logical shards makes the same bits on any number of replicas, and on any number of processes, through
# shared memory and over sockets.
#
#   training_bits_test.sh <tutti> <training_worker>
set -uo pipefail
tutti=$1 worker=$2
export TUTTI_QUIET=1

digest() { grep -o 'digest [0-9a-f]*' | sort -u; }

expected=$("$worker" bits 1 | digest)
[[ $expected == digest\ ???????????????? ]] || { echo "one replica told no digest"; exit 1; }
compare() {  # <what> <digest>
  [[ $2 == "$expected" ]] || { echo "$1: $2 rather than $expected"; exit 1; }
}
for replicas in 2 4 8; do compare "$replicas replicas" "$("$worker" bits "$replicas" | digest)"; done
for processes in 2 3; do
  for shared_memory in 1 0; do
    compare "$processes processes, shared memory $shared_memory" \
      "$(TUTTI_SHARED_MEMORY=$shared_memory "$tutti" launch --processes "$processes" -- "$worker" bits 0 | digest)"
  done
done
