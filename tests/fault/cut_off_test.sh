#!/usr/bin/env bash
# Two ranks on one host, one on the other. The cable between them is pulled in the middle of their work, which no connection
# notices; the heartbeat does, and each side names who is on the other.
#
#   cut_off_test.sh <process_victim>
program=$1 size=3
# shellcheck source=tests/fault/hosts.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/hosts.sh"

for rank in 0 1 2; do
  host=$here
  [[ $rank == 2 ]] && host=$there
  start_on "$host" $rank TUTTI_SHARED_MEMORY=0 TUTTI_HEARTBEAT=3 -- "$program" cut 2 7
done
for rank in 0 1 2; do within 30 says $rank '^working$'; done
ip -n "$there" link set cable down || fail "the cable could not be pulled"
for rank in 0 1 2; do ends $rank with 1; done

for rank in 0 1; do
  says $rank '^heard: .*rank 2 was not heard of for 3 s' || fail "rank $rank did not name rank 2"
  says $rank '^went on with 2$' || fail "rank $rank did not go on"
done
# The one that is alone may find out sooner, where it is about to connect for a call of Gloo's.
says 2 '^heard: .*\(rank [01] was not heard of for 3 s\|Network is unreachable\)' || fail "rank 2 did not name the others"
echo "each side named the other"
