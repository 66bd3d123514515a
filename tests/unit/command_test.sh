#!/usr/bin/env bash
# The command `tutti` explains itself, ends with 2 and one sentence on misuse, and prints what it says it prints.
#
#   tests/unit/command_test.sh <the program> <its version>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$1
version=$2

# Exit code 2 and one sentence on standard error, nothing on standard output.
expect_misuse() {  # <part of the sentence> <argument>...
  local part=$1
  shift
  expect 2 "$part" "$tutti" "$@"
  "$tutti" "$@" >"$scratch/output" 2>"$scratch/errors"
  expect 0 "1 $scratch/errors" wc -l "$scratch/errors"
  expect 0 "tutti: " cat "$scratch/errors"
  expect 1 "" test -s "$scratch/output"
}

expect 0 "verbs:" "$tutti"
expect 0 "tutti bench all-reduce" "$tutti" --help
expect 0 "tutti $version" "$tutti" --version
expect 0 "all-reduce" "$tutti" bench
expect 0 "--ranks" "$tutti" bench all-reduce --help
expect 0 "half a round trip" "$tutti" bench ping-pong --help
expect 0 "tutti check" "$tutti" --help

expect_misuse "there is no verb 'bensh'; did you mean 'bench'?" bensh
expect_misuse "there is no verb 'xyzzy'; there is: bench" xyzzy
expect_misuse "did you mean 'all-reduce'?" bench allreduce

suite=(bench all-reduce)
expect_misuse "--ranks: expected whole numbers from 1 to 1024, found '0'" "${suite[@]}" --ranks 0
expect_misuse "found '-1'" "${suite[@]}" --ranks 2,-1
expect_misuse "found '2x'" "${suite[@]}" --ranks 2x
expect_misuse "empty entry" "${suite[@]}" --ranks 2,,4
expect_misuse "10 bytes is no whole number of float32 elements, which take 4 bytes each" "${suite[@]}" --bytes 10
expect_misuse "'ten' is no number of bytes" "${suite[@]}" --bytes ten
expect_misuse "100 TiB on 4 ranks would need" "${suite[@]}" --bytes 100TiB
expect_misuse "did you mean Ring?" "${suite[@]}" --algorithm Rnig
expect_misuse "arity" "${suite[@]}" --algorithm Tree:0
expect_misuse "SharedSlices needs shared memory" "${suite[@]}" --algorithm SharedSlices --messages-only
expect_misuse "did you mean 'Sum'?" "${suite[@]}" --op Sun
expect_misuse "the mean of int32 is not a whole number" "${suite[@]}" --op Mean --type int32
expect_misuse "--type: expected float32" "${suite[@]}" --type complex64
expect_misuse "--seconds" "${suite[@]}" --seconds nan
expect_misuse "--repetitions" "${suite[@]}" --repetitions 0
expect_misuse "there is no option --byts; did you mean --bytes?" "${suite[@]}" --byts 4
expect_misuse "unexpected argument 'more'" "${suite[@]}" more

# It checks each first result itself, and fails where that is wrong.
small=("${suite[@]}" --ranks "1,2,3" --bytes "0,8,1000" --repetitions 2)
for type in float32 float64 float16 bfloat16 int32 int64; do
  expect 0 "all-reduce of $type, Max" "$tutti" "${small[@]}" --type "$type" --op Max
done
expect 0 "messages only" "$tutti" "${small[@]}" --algorithm all --messages-only
expect 0 "reproducible" "$tutti" "${small[@]}" --algorithm Auto,Tree:3,Ring --reproducible

# One object a line and nothing else: for each of 3 numbers of ranks, 3 sizes and 7 algorithms.
"$tutti" "${small[@]}" --algorithm all --json >"$scratch/lines"
expect 0 "63 $scratch/lines" wc -l "$scratch/lines"
expect 0 "63" grep -c '^{"engine":"tutti","algorithm":"[A-Za-z0-9:]*",.*"seconds":.*}$' "$scratch/lines"
expect 0 "9" grep -c '"algorithm":"Auto","picked":"' "$scratch/lines"

expect 0 "3 ranks:" "$tutti" "${suite[@]}" --ranks 3 --bytes 1KiB --explain
expect 0 '"picked":' "$tutti" "${suite[@]}" --ranks 3 --bytes 1KiB --explain --json
expect_misuse "--explain" "${suite[@]}" --explain --algorithm Ring
expect_misuse "Gloo needs several processes" "${suite[@]}" --algorithm Gloo

# It compares the bytes of the first round trip, and fails where they are others.
ping_pong=(bench ping-pong)
expect_misuse "expected an even number of ranks, found 3" "${ping_pong[@]}" --ranks 2,3
expect_misuse "100 TiB on 4 ranks would need" "${ping_pong[@]}" --bytes 100TiB
expect_misuse "there is no option --algorithm" "${ping_pong[@]}" --algorithm Ring
small=("${ping_pong[@]}" --ranks "2,4" --bytes "0,1,1001,100000" --repetitions 2)
expect 0 "ranks are threads" "$tutti" "${small[@]}"
expect 0 "ranks are threads, messages only" "$tutti" "${small[@]}" --messages-only
"$tutti" "${small[@]}" --json >"$scratch/lines"
expect 0 "8 $scratch/lines" wc -l "$scratch/lines"
expect 0 "8" grep -c '^{"engine":"tutti","algorithm":"ping-pong","ranks":[24],"bytes":[0-9]*,"seconds":.*}$' "$scratch/lines"

# shellcheck disable=SC2016
expect 1 "could not be written" bash -c '"$1" --help >/dev/full' - "$tutti"
# shellcheck disable=SC2016
expect 1 "could not be written" bash -c '"$1" bench all-reduce --ranks 2 --bytes 1KiB --seconds 0.01 >/dev/full' - "$tutti"
finish
