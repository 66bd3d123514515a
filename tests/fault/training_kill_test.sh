#!/usr/bin/env bash
# One of three processes that train is killed in a step: the others name it, and go on training with equal parameters.
#
#   training_kill_test.sh <process_worker> <training_worker> <TUTTI_SHARED_MEMORY>
worker=$1 program=$2 size=3
export TUTTI_SHARED_MEMORY=$3
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"

serve
for victim in 1 0 2; do
  start_all TUTTI_QUIET=1 -- "$program" recover $victim
  for rank in 0 1 2; do within 60 says $rank '^training$'; done
  kill -9 "${pids[$victim]}"
  for rank in 0 1 2; do
    ((rank == victim)) && continue
    ends $rank with 0
    says $rank "^heard: .*rank $victim" || fail "rank $rank did not name rank $victim"
    says $rank '^went on with 2$' || fail "rank $rank did not go on"
  done
  wait "${pids[$victim]}" 2>/dev/null
done
exit 0
