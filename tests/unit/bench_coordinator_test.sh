#!/usr/bin/env bash
# `./bench coordinator`, as short as can be: what it prints, not how fast anything is.
#
#   tests/unit/bench_coordinator_test.sh <the program>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
program=$1

measured=applied,hogwild
"$program" --json --part "$measured" --passes 2 --seconds 0.01 --bytes 4,1KiB,1MiB --producers 1,3 >"$scratch/lines" 2>"$scratch/errors" ||
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

# What trains networks is told by programs beside it.
mkdir "$scratch/bin"
cp -- "$program" "$scratch/bin/driver"
cp -- "$root/examples/fashion_mnist.json" "$scratch/bin"
printf '#!/usr/bin/env bash\necho Haswell\n' >"$scratch/bin/data_parallel_engines"
cat >"$scratch/bin/coordinator_runs" <<'END_OF_RUNS'
#!/usr/bin/env bash
[[ -e $2 ]] || exit 3
case "$1 $3" in
  "slow synchronous") echo '{"steps": 100, "seconds": 10, "evaluations": [[500, 0.9], [1000, 0.5]], "accuracy": 0.8, "pause": 0.012}' ;;
  "slow asynchronous") echo '{"steps": 100, "seconds": 4, "evaluations": [[500, 0.8], [1050, 0.5], [1100, 0.4]], "accuracy": 0.8, "pause": 0.008}' ;;
  "sent 1") echo '{"steps": 100, "seconds": 4, "evaluations": [], "accuracy": 0.885, "bytes": 5000000, "step_bytes": 4800000}' ;;
  "sent 50") echo '{"steps": 100, "seconds": 4, "evaluations": [], "accuracy": 0.876, "bytes": 125000, "step_bytes": 96000}' ;;
  *) exit 4 ;;
esac
END_OF_RUNS
chmod +x "$scratch/bin/data_parallel_engines" "$scratch/bin/coordinator_runs"
trained=$("$scratch/bin/driver" --passes 1 --part slow,alone 2>/dev/null)
expect 0 "1" grep -c "asynchronous  *50  *2.50x  *1050  *8.0 ms" <(echo "$trained")
expect 0 "asynchronous: at least 2 times synchronous" echo "$trained"
expect 0 "1" grep -c "every 50 steps  *87.60 %  *0.1 MB, 1/40.0  *0.1 MB, 1/50.0" <(echo "$trained")
expect 0 "4" grep -c "^  reached " <(echo "$trained")
"$scratch/bin/driver" --json --passes 2 --part slow,alone >"$scratch/trained" 2>/dev/null
expect 0 '{"part":"slow","engine":"asynchronous","gradients_per_second":50.0,"loss":0.4,"rows_to_loss":1050.0,"pause_seconds":0.008,"passes":2}' \
  cat "$scratch/trained"
expect 0 '{"part":"alone","engine":"every 50 steps","accuracy":0.876' cat "$scratch/trained"

expect 0 "--producers" "$program" --help
expect 2 "--bytes: expected a multiple of 4, found 6" "${quick[@]}" --part applied --bytes 6
expect 2 "--part: expected applied, hogwild, slow, alone, found 'gossip'" "${quick[@]}" --part gossip
expect 2 "--producers" "${quick[@]}" --producers 0
finish
