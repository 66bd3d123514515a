#!/usr/bin/env bash
# `./bench coordinator`, as short as can be: what it prints, not how fast anything is.
#
#   tests/unit/bench_coordinator_test.sh <the program>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
program=$1

"$program" --json --passes 2 --seconds 0.01 --bytes 4,1KiB,1MiB --producers 1,3 >"$scratch/lines" 2>"$scratch/errors" ||
  expect 0 "" cat "$scratch/errors"
expect 0 "15 $scratch/lines" wc -l "$scratch/lines"
for engine in tutti loop; do
  expect 0 "6" grep -c "^{\"part\":\"applied\",\"engine\":\"$engine\",\"producers\":[13],\"bytes\":[0-9]*,\"seconds\":.*,\"bytes_per_second\":" "$scratch/lines"
done
for engine in one-thread lock-free locks; do
  expect 0 "1" grep -c "^{\"part\":\"hogwild\",\"engine\":\"$engine\",\"rows_per_second\":.*,\"loss\":0\.[0-9]*,\"repetitions\":10," "$scratch/lines"
done
expect 0 "pass 2 of 2: 1 MiB from 3 producers" cat "$scratch/errors"
expect 0 "pass 2 of 2: hogwild" cat "$scratch/errors"

quick=("$program" --passes 1 --seconds 0.01)
table=$("${quick[@]}" --part applied --bytes 1KiB,1MiB --producers 2 2>/dev/null)
expect 0 "producers   bytes" echo "$table"
expect 0 "tutti over loop" echo "$table"
expect 0 "1 MiB and more, from any number of producers: at least 0.8" echo "$table"
expect 0 "not measured" "${quick[@]}" --part applied --bytes 1KiB --producers 1
table=$("${quick[@]}" --part hogwild 2>/dev/null)
expect 0 "sparse logistic regression: 1000000 features, 100 in a row" echo "$table"
expect 0 "two threads without locks: at least 1.7 times one thread" echo "$table"
[[ $table != *producers* ]] || expect 0 "the part hogwild alone" echo "$table"

expect 0 "--producers" "$program" --help
expect 2 "--bytes: expected a multiple of 4, found 6" "${quick[@]}" --part applied --bytes 6
expect 2 "--part: expected applied, hogwild, found 'gossip'" "${quick[@]}" --part gossip
expect 2 "--producers" "${quick[@]}" --producers 0
finish
