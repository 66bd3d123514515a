#!/usr/bin/env bash
# Two ranks on each of two hosts. Those of one share memory, those of the other do not, and all talk to all.
#
#   two_hosts_test.sh <process_worker>
worker=$1 size=4
# shellcheck source=tests/fault/hosts.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/hosts.sh"

touch "$scratch/end"
for rank in 0 1; do start_on "$here" $rank TUTTI_SHARED_MEMORY=1 -- "$worker" work 30 "$scratch/end"; done
for rank in 2 3; do start_on "$there" $rank TUTTI_SHARED_MEMORY=0 -- "$worker" work 30 "$scratch/end"; done
for rank in 0 1 2 3; do
  ends $rank with 0
  says $rank '^all was right$' || fail "rank $rank was wrong"
done
