#!/usr/bin/env bash
# A rank is stopped and goes on again. For less than the heartbeat: nobody notices. For longer: the others name it and go on
# without it, and when it goes on, it finds out.
#
#   process_stops_test.sh <process_worker> <process_victim> <TUTTI_SHARED_MEMORY>
worker=$1 program=$2 size=3
export TUTTI_SHARED_MEMORY=$3
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"

serve
start_all TUTTI_HEARTBEAT=20 -- "$worker" work 30 "$scratch/end"
for rank in 0 1 2; do within 30 says $rank '^working$'; done
kill -STOP "${pids[1]}"
within 10 is_stopped "${pids[1]}"
sleep 1
for rank in 0 2; do ! is_gone "${pids[$rank]}" || fail "rank $rank ended while rank 1 was stopped"; done
kill -CONT "${pids[1]}"
touch "$scratch/end"
for rank in 0 1 2; do
  ends $rank with 0
  says $rank '^all was right$' || fail "rank $rank did not go on"
done

# Long enough that a busy machine is not taken for a stopped process.
start_all TUTTI_HEARTBEAT=3 -- "$program" cut 1 7
for rank in 0 1 2; do within 30 says $rank '^working$'; done
kill -STOP "${pids[1]}"
for rank in 0 2; do
  within 30 says $rank '^heard: .*rank 1 was not heard of for 3 s'
  within 30 says $rank '^went on with 2$'
done
is_stopped "${pids[1]}" || fail "rank 1 was not stopped"
for rank in 0 2; do ends $rank with 1; done
kill -CONT "${pids[1]}"
ends 1 with 1
says 1 '^heard: ' || fail "rank 1 did not say what it heard"
