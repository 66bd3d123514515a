#!/usr/bin/env bash
# Ranks share memory that has no name: however they end, none of it is left. Ranks that do not share it talk to those that
# do.
#
#   process_memory_test.sh <process_worker> <process_victim>
worker=$1 program=$2 size=3
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"

# What a process shares, as device and inode.
shared_by() { awk '/memfd:tutti/ { print $4, $5 }' "/proc/$1/maps" 2>/dev/null | sort -u; }  # <process>
shares() { [[ $(shared_by "$1") ]]; }                                                      # <process>
# Does anybody have any of it? `known` holds what it is; what other jobs share at the same time is none of ours.
is_left() { grep -qFxf "$scratch/known" < <(cat /proc/[0-9]*/maps 2>/dev/null | awk '/memfd:tutti/ { print $4, $5 }'); }
# All at work, and what they share is known.
begin() {  # <program> [<argument>]...
  start_all TUTTI_HEARTBEAT=20 -- "$@"
  local rank
  for rank in 0 1 2; do
    within 30 says $rank '^working$'
    shares "${pids[$rank]}" || fail "rank $rank shares no memory"
    shared_by "${pids[$rank]}"
    ! grep '/dev/shm/.*tutti' "/proc/${pids[$rank]}/maps" || fail "rank $rank shares memory that has a name"
  done >"$scratch/known"
  is_left || fail "this test looks for the wrong thing"
}

serve
# One is killed.
begin "$program" cut 2 7
kill -9 "${pids[2]}"
for rank in 0 1; do ends $rank with 1; done
! is_left || fail "one was killed, and memory is left"
# All are.
begin "$worker" work 30 "$scratch/end"
kill -9 "${pids[@]}"
for rank in 0 1 2; do within 10 is_gone "${pids[$rank]}"; done
! is_left || fail "all were killed, and memory is left"

# One does not share, the others do.
start 0 TUTTI_SHARED_MEMORY=0 -- "$worker" work 30 "$scratch/end"
for rank in 1 2; do start $rank TUTTI_SHARED_MEMORY=1 -- "$worker" work 30 "$scratch/end"; done
for rank in 0 1 2; do within 30 says $rank '^working$'; done
! shares "${pids[0]}" || fail "rank 0 shares memory"
for rank in 1 2; do shares "${pids[$rank]}" || fail "rank $rank shares no memory"; done
touch "$scratch/end"
for rank in 0 1 2; do
  ends $rank with 0
  says $rank '^all was right$' || fail "rank $rank was wrong"
done
