#!/usr/bin/env bash
# The driver of `./bench federated`, with engines that only say what they were asked; and its peer in Python, on a few
# images of noise.
#
#   tests/unit/bench_federated_test.sh <the driver>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
# It starts what lies beside it, and gives it a temporary folder, which it removes.
mkdir "$scratch/bin" "$scratch/temporary"
cp -- "$1" "$scratch/bin/driver"
driver=(env "TMPDIR=$scratch/temporary" "TUTTI_DATA=$scratch/data" "$scratch/bin/driver")

printf '#!/usr/bin/env bash\necho Haswell\n' >"$scratch/bin/data_parallel_engines"
# `train` writes metrics.jsonl: a second for the first round, half a second for each other one.
cat >"$scratch/bin/tutti" <<'END_OF_TUTTI'
#!/usr/bin/env bash
printf 'tutti %s OMP=%s CORETYPE=%s\n' "$*" "${OMP_NUM_THREADS:-}" "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
[[ $1 == fetch ]] && { [[ $2 == mnist ]] && mkdir -p "$TUTTI_DATA/mnist"; exit; }
[[ $1 == train && -e $2 && $3 == --json && $4 == --output ]] || exit 3
[[ -e $5 ]] && { echo "$5 is there already" >&2; exit 4; }
mkdir "$5"
updates=10 rounds=0 accuracy=0.9
for word in "$@"; do
  [[ $word == graph.strategy.rounds=* ]] && rounds=${word#*=}
  [[ $word == graph.strategy.num_clients=* ]] && updates=${word#*=}
done
for ((round = 1; round <= rounds; ++round)); do
  echo "{\"step\":$round,\"seconds\":$((round * 5 + 5))e-1,\"updates\":$updates.0}"
done >"$5/metrics.jsonl"
echo "{\"step\":$rounds,\"seconds\":1000,\"test_accuracy\":$accuracy}" >>"$5/metrics.jsonl"
END_OF_TUTTI
cat >"$scratch/bin/fedavg.py" <<'END_OF_PEER'
#!/usr/bin/env bash
printf '%s %s OMP=%s CORETYPE=%s\n' "${0##*/}" "$*" "$OMP_NUM_THREADS" "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
engine=python hundredths=100  # of a second, for a round
[[ $0 == *cblas ]] && { engine=cblas; hundredths=25; }
timed=$((${16} - 1))
echo "{\"engine\":\"$engine\",\"rounds\":$timed,\"steps\":$((timed * 600)),\"seconds\":$((timed * hundredths))e-2,\"accuracy\":0.85}"
END_OF_PEER
cp "$scratch/bin/fedavg.py" "$scratch/bin/fedavg_cblas"
chmod +x "$scratch"/bin/{tutti,fedavg.py,fedavg_cblas,data_parallel_engines}
cp -- "$root/examples/federated.json" "$scratch/bin"

# All of it: MNIST, then 3 engines and the thousand clients, who compress or do not, twice.
"${driver[@]}" --json --passes 2 --rounds 12 >"$scratch/lines" 2>"$scratch/errors" || expect 0 "" cat "$scratch/errors"
expect 0 "fetching MNIST" cat "$scratch/errors"
expect 0 "5 $scratch/lines" wc -l "$scratch/lines"
expect 0 '{"engine":"tutti","rounds":12,"steps_per_second":1200.0,"rounds_per_second":2.0,"accuracy":0.9,"passes":2}' cat "$scratch/lines"
expect 0 '{"engine":"python","rounds":12,"steps_per_second":600.0,"rounds_per_second":1.0,"accuracy":0.85,"passes":2}' cat "$scratch/lines"
expect 0 '{"engine":"cblas","rounds":12,"steps_per_second":2400.0,"rounds_per_second":4.0,' cat "$scratch/lines"
expect 0 "1" grep -c '{"engine":"tutti","clients":1000,"compression":"NoCompression","rounds":2,"peak_bytes":[1-9][0-9]*,"passes":2}' "$scratch/lines"
expect 0 "1" grep -c '{"engine":"tutti","clients":1000,"compression":{"TopK":0.1},"rounds":2,"peak_bytes":[1-9][0-9]*,"passes":2}' "$scratch/lines"
expect 0 "11 $scratch/bin/asked" wc -l "$scratch/bin/asked"
expect 0 "tutti fetch mnist" head -n 1 "$scratch/bin/asked"
expect 0 "10" grep -c "OMP=1 CORETYPE=Haswell" "$scratch/bin/asked"
for_all='--set data.source=mnist --set graph.strategy.rounds=12 --set graph.strategy.threads=2 --set train.evaluate_every=12'
expect 0 "2" grep -c "/tutti $for_all OMP" "$scratch/bin/asked"
expect 0 "2" grep -c '/many-clients .* --set graph.strategy.num_clients=1000 --set graph.strategy.client_selection={"method": "All"} --set graph.strategy.compression="NoCompression" OMP' "$scratch/bin/asked"
expect 0 "2" grep -c '/many-clients .* --set graph.strategy.compression={"TopK": 0.1} OMP' "$scratch/bin/asked"
words="--data $scratch/data/mnist --layers 784,200,200,10 --clients 100 --asked 10 --batch 10 --rate 0.1 --seed 7 --rounds 12"
expect 0 "2" grep -c "fedavg.py $words OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "fedavg_cblas $words --threads 2 OMP" "$scratch/bin/asked"
expect 0 "" rmdir "$scratch/temporary"
mkdir "$scratch/temporary"

# A choice of them, as a table and targets.
expect 0 "tutti            1200       2.00         90.00 %                   1.00x" "${driver[@]}" --engine tutti,python --passes 1
expect 0 "python             600       1.00         85.00 %                   2.00x" "${driver[@]}" --engine tutti,python --passes 1
expect 0 "reached  at least 1.7 times Python's local steps a second" "${driver[@]}" --engine tutti,python --passes 1
expect 0 'reached  1000 clients, all asked in each of 2 rounds, compression {"TopK": 0.1}, within 1 GB of memory' "${driver[@]}" --engine tutti --passes 1
expect 0 "not measured" "${driver[@]}" --engine cblas --passes 1
sed -i 's/hundredths=100/hundredths=75/' "$scratch/bin/fedavg.py"
expect 0 "MISSED   at least 1.7 times Python's local steps a second" "${driver[@]}" --engine tutti,python --passes 1

# An engine that fails, learns nothing or tells something else is told, and the others are still measured.
sed -i 's/accuracy=0.9/accuracy=0.7/' "$scratch/bin/tutti"
expect 1 "after 20 rounds it tells 70.0 % of the test images right, expected 80 %" "${driver[@]}" --engine tutti,python --passes 1
expect 1 "python             800       1.33         85.00 %" "${driver[@]}" --engine tutti,python --passes 1
expect 0 "70.00 %" "${driver[@]}" --engine tutti --passes 1 --rounds 9
sed -i 's/updates=10/updates=9/' "$scratch/bin/tutti"
expect 1 "round 1 should have 10 updates" "${driver[@]}" --engine tutti --passes 1
sed -i 's/round = 1/round = 2/' "$scratch/bin/tutti"
expect 1 "round 1 should have 10 updates" "${driver[@]}" --engine tutti --passes 1
sed -i 's/timed \* 600/timed * 599/' "$scratch/bin/fedavg.py"
expect 1 "it measured something else" "${driver[@]}" --engine python --passes 1
printf '#!/usr/bin/env bash\necho nonsense\n' >"$scratch/bin/fedavg.py"
expect 1 "expected JSON objects, found 'nonsense" "${driver[@]}" --engine python --passes 1
rm "$scratch/bin/fedavg_cblas"
expect 1 "fedavg_cblas was not built; are all packages installed" "${driver[@]}" --engine cblas --passes 1
sed -i 's/"FedAvg"/"Median"/' "$scratch/bin/federated.json"
expect 1 'the peers know the strategy {"aggregation":{"method":"FedAvg"}' "${driver[@]}" --engine tutti --passes 1
cp -- "$root/examples/federated.json" "$scratch/bin"
printf '#!/usr/bin/env bash\necho no network >&2\nexit 1\n' >"$scratch/bin/tutti"
expect 1 "no network" "${driver[@]}" --passes 1

expect 0 "--rounds INT" "${driver[@]}" --help
expect 2 "there is no option --seconds" "${driver[@]}" --seconds 1
expect 2 "--rounds: Value 1 not in range 2 to 100000" "${driver[@]}" --rounds 1
expect 2 "--engine: expected tutti, python, cblas, found 'nonsense'" "${driver[@]}" --engine tutti,nonsense

# The peer in Python: 40 rows, 4 clients with 10 each, of which 2 take 4 local steps in a round.
cat >"$scratch/images.py" <<'END_OF_PYTHON'
import random, sys

random.seed(1)
for part, rows in ("train", 40), ("t10k", 20):
    labels = bytes(random.randrange(10) for _ in range(rows))
    pixels = bytes(random.randrange(256) for _ in range(rows * 784))
    open(f"{sys.argv[1]}/{part}-labels-idx1-ubyte", "wb").write(bytes(8) + labels)
    open(f"{sys.argv[1]}/{part}-images-idx3-ubyte", "wb").write(bytes(16) + pixels)
END_OF_PYTHON
python3 "$scratch/images.py" "$scratch/data/mnist"
peer=("$root/benchmarks/peers/fedavg.py" --layers "784,20,10" --clients 4 --asked 2 --batch 3 --rate 0.1 --seed 7 --rounds 3)
expect 0 '{"engine":"python","rounds":2,"steps":16,"seconds":0.' "${peer[@]}" --data "$scratch/data/mnist"
expect 1 "fedavg: cannot read MNIST" "${peer[@]}" --data "$scratch/data"
finish
