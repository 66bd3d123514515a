#!/usr/bin/env bash
# `tutti bench` as the processes of a job: they are the ranks, the first alone prints, and the engine is told.
#
#   tests/unit/bench_processes_test.sh <the program>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$1
launch=("$tutti" launch --no-prefix)
all_reduce=(bench all-reduce --bytes "1KiB,64KiB" --repetitions 5)
ping_pong=(bench ping-pong --bytes "0,1001,64KiB" --repetitions 5)

# How many lines there are in all, and how many of them are as they should.
expect_lines() {  # <count> <beginning of each> <command>...
  local count=$1 beginning=$2
  shift 2
  "$@" >"$scratch/lines" 2>"$scratch/errors" || expect 0 "" cat "$scratch/errors"
  expect 0 "$count $scratch/lines" wc -l "$scratch/lines"
  expect 0 "$count" grep -c "^$beginning.*\"seconds\":.*\"bus_bandwidth\":.*\"calls_per_repetition\":.*}\$" "$scratch/lines"
}

# All algorithms, with Gloo's own; SharedSlices where there is memory to share.
keys='"algorithm":"[A-Za-z0-9:]*",.*"ranks":2,"bytes":\(1024\|65536\),'
expect_lines 16 "{\"engine\":\"tutti-shm\",$keys" "${launch[@]}" --processes 2 -- "${all_reduce[@]}" --algorithm all --json
expect 0 '"algorithm":"SharedSlices"' cat "$scratch/lines"
expect 0 '"algorithm":"Gloo"' cat "$scratch/lines"
expect_lines 14 "{\"engine\":\"tutti-c10d\",$keys" "${launch[@]}" --processes 2 --no-shared-memory -- "${all_reduce[@]}" \
  --algorithm all --json
expect 1 "" grep SharedSlices "$scratch/lines"
expect_lines 2 "{\"engine\":\"tutti-c10d\",$keys" "${launch[@]}" --processes 2 -- "${all_reduce[@]}" --messages-only \
  --algorithm Ring --json
# Gloo knows no bfloat16, and nothing reproducible.
expect_lines 14 "{\"engine\":\"tutti-shm\"," "${launch[@]}" --processes 2 -- "${all_reduce[@]}" --algorithm all --type bfloat16 --json
expect_lines 14 "{\"engine\":\"tutti-shm\"," "${launch[@]}" --processes 2 -- "${all_reduce[@]}" --algorithm all --reproducible --json
expect_lines 2 "{\"engine\":\"tutti-shm\"," "${launch[@]}" --processes 3 -- "${all_reduce[@]}" --ranks 3 --json

keys='"algorithm":"ping-pong","ranks":2,"bytes":\(0\|1001\|65536\),'
expect_lines 3 "{\"engine\":\"tutti-shm\",$keys" "${launch[@]}" --processes 2 -- "${ping_pong[@]}" --json
expect_lines 3 "{\"engine\":\"tutti-c10d\",$keys" "${launch[@]}" --processes 2 --no-shared-memory -- "${ping_pong[@]}" --json
expect_lines 3 "{\"engine\":\"tutti-shm\",\"algorithm\":\"ping-pong\",\"ranks\":4," "${launch[@]}" --processes 4 -- \
  "${ping_pong[@]}" --json

expect 0 "ranks are processes that share memory" "${launch[@]}" --processes 2 -- "${all_reduce[@]}"
expect 0 "ranks are processes over sockets" "${launch[@]}" --processes 2 -- "${ping_pong[@]}" --messages-only
"${launch[@]}" --processes 2 -- bench all-reduce --bytes 1KiB --explain >"$scratch/lines"
expect 0 "2 $scratch/lines" wc -l "$scratch/lines"
expect 0 "SharedSlices: the ranks share memory" cat "$scratch/lines"

# Two jobs at once do not meet: each is of its own size, and ends well.
"${launch[@]}" --processes 3 -- "${all_reduce[@]}" --json >"$scratch/other" 2>&1 &
other=$!
expect_lines 2 '{"engine":"tutti-shm",.*"ranks":2,' "${launch[@]}" --processes 2 -- "${all_reduce[@]}" --json
wait "$other"
expect 0 "0" echo $?
expect 0 "2" grep -c '"ranks":3,' "$scratch/other"

# Misuse: the sentence of rank 0, that of launch, and nothing else.
expect_misuse() {  # <part of the sentence> <argument>...
  local part=$1
  shift
  expect 2 "$part" "${launch[@]}" --processes 3 -- "$@"
  "${launch[@]}" --processes 3 -- "$@" >"$scratch/output" 2>"$scratch/errors"
  expect 0 "2 $scratch/errors" wc -l "$scratch/errors"
  expect 1 "" test -s "$scratch/output"
}
expect_misuse "--ranks: found '2', but tutti launch started 3 processes" bench all-reduce --ranks 2
expect_misuse "--ranks: found '2,3', but tutti launch started 3 processes" bench all-reduce --ranks 2,3
expect_misuse "expected an even number of ranks, found 3" bench ping-pong
expect_misuse "100 TiB on 3 ranks would need 6 times as much memory" bench all-reduce --bytes 100TiB
expect_misuse "SharedSlices needs shared memory" bench all-reduce --messages-only --algorithm SharedSlices
expect_misuse "did you mean Ring?" bench all-reduce --algorithm Rnig
finish
