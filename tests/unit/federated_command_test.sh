#!/usr/bin/env bash
# Federated runs of `tutti train`: the same weights on any number of threads and after a resume, whose rows are whose, clients that
# differ, and what is refused.
#
#   tests/unit/federated_command_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$(readlink -f -- "$1")
cd "$scratch" || exit 1

# A short run of the irises, with 12 clients.
federated='{"type": "Federated", "num_clients": 12, "rounds": 6, "aggregation": {"method": "FedAvg"},
  "client_selection": {"method": "Random", "fraction": 0.5}}'
short=("$tutti" train "$root/examples/iris.json" --set train={} --set data.batch_size=4 --set data.split.test=0.2
       --set 'schedule="constant"' --set "graph.strategy=$federated")
# The arrays of a run's last checkpoint, without what else is in the file.
weights() { "$tutti" export "$1" "$1.safetensors" --weights last >/dev/null && sha256sum <"$1.safetensors"; }

expect 0 "client 11: 10 rows: " "${short[@]}" --output plain
expect 0 "finished at round 6" "${short[@]}" --output plain --quiet
expect 0 '"bytes_up":' cat plain/metrics.jsonl
expect 0 '"clock":' cat plain/metrics.jsonl

expect 0 "all 6 rounds were taken before; graph.strategy.rounds may ask for more" "${short[@]}" --output plain --resume
expect 0 "6 rounds were taken before, and the run has 4: nothing was left to do" "${short[@]}" --output plain --resume \
  --set graph.strategy.rounds=4
expect 0 "changed since the checkpoint was written: graph.strategy.aggregation" "${short[@]}" --output plain --resume \
  --set graph.strategy.rounds=7 --set 'graph.strategy.aggregation={"method": "Median"}'
expect 0 "client 14: 8 rows: " "$tutti" train plain --output more --set graph.strategy.num_clients=15

restless=(--set 'clients=[{"speed": {"method": "LogNormal", "median": 100, "sigma": 0.7}, "dropout": 0.1, "failure": 0.1}]')
synchronous=(--set 'graph.strategy.round={"method": "Synchronous", "replies": 4, "deadline": 0.2, "late": {"method": "Discount"},
  "max_repeats": 100}')
buffered=(--set 'graph.strategy.round={"method": "Buffered", "replies": 3}' --set 'graph.strategy.compression={"TopK": 0.2}'
          --set graph.strategy.aggregation='{"method": "FedYogi", "beta1": 0.9, "beta2": 0.99, "tau": 0.001}')
for how in synchronous buffered; do
  options=("${synchronous[@]}")
  [[ $how == synchronous ]] || options=("${buffered[@]}")
  expect 0 "" "${short[@]}" --output "$how-1" --quiet "${restless[@]}" "${options[@]}" --set graph.strategy.threads=1
  expect 0 "" "${short[@]}" --output "$how-3" --quiet "${restless[@]}" "${options[@]}" --set graph.strategy.threads=3
  expect 0 "" "${short[@]}" --output "$how-r" --quiet "${restless[@]}" "${options[@]}" --set graph.strategy.rounds=2
  expect 0 "finished at round 6" "${short[@]}" --output "$how-r" --quiet "${restless[@]}" "${options[@]}" --resume
  once=$(weights "$how-1")
  expect 0 "$once" echo "$(weights "$how-3")"
  expect 0 "$once" echo "$(weights "$how-r")"
done

for split in '{"method": "Iid"}' '{"method": "Shards", "per_client": 2}' '{"method": "Dirichlet", "alpha": 0.3}' \
  '{"method": "QuantitySkew"}'; do
  expect 0 "clients loss" "${short[@]}" --output split --set "data.client_split=$split" --set data.client_test=0.2
done

# One file for each client, whatever the order of rows in the whole.
mkdir sites
for site in 1 2 3; do
  { head -n 1 "$root/examples/data/iris.csv"; tail -n +2 "$root/examples/data/iris.csv" | awk -v site="$site" 'NR % 6 < site'; } >"sites/$site.csv"
done
files=(--set 'data.client_split={"method": "Files"}' --set graph.strategy.num_clients=3
       --set 'graph.strategy.client_selection={"method": "All"}' --set data.split.test=0)
expect 0 "client 2 (3.csv): 75 rows: " "${short[@]}" --output sited "${files[@]}" --set 'data.file="sites/*.csv"'
expect 0 "client 0 (1.csv): 25 rows: " "${short[@]}" --output sited "${files[@]}" --set 'data.file=["sites/1.csv", "sites/3.csv", "sites/2.csv"]'
expect 0 "finished" "$tutti" train sited --output sited-again
mkdir sites/north sites/south sites/west
cp sites/1.csv sites/north/all.csv; cp sites/2.csv sites/south/all.csv; cp sites/3.csv sites/west/all.csv
expect 0 "/north/all.csv): " "${short[@]}" --output sited "${files[@]}" \
  --set 'data.file=["sites/north/all.csv", "sites/south/all.csv", "sites/west/all.csv"]'
expect 2 "expected a file for each of 3 clients, found 2" "${short[@]}" --output never "${files[@]}" \
  --set 'data.file=["sites/1.csv", "sites/2.csv"]'

# Changes that are too long are refused, told and counted; the round goes on with the others.
expect 0 "client 1 was refused: its change has a length of" "${short[@]}" --output long --set graph.strategy.max_update_norm=3 \
  --set 'graph.strategy.round={"method": "Synchronous", "replies": 4}' --set 'clients=[{"count": 2, "update_factor": -100}, {}]'
expect 0 '"refused":1.0' cat long/metrics.jsonl

# Layers that stay on clients: what each has learnt can be had.
personal=("$tutti" train "$root/examples/federated_personal.json" --set graph.strategy.rounds=4 --set graph.strategy.num_clients=5
          --set graph.strategy.client_selection.fraction=0.6 --set graph.strategy.local.steps=20 --set train.evaluate_every=2)
expect 0 "best: clients accuracy" "${personal[@]}" --output personal
expect 0 "8.0 kB stay on each" "${personal[@]}" --output personal
mapfile -t heads < <(for client in 0 1 2 3 4; do
  "$tutti" export personal "head$client.safetensors" --weights last --replica "$client" >/dev/null 2>&1 && sha256sum <"head$client.safetensors"
done | sort -u)
expect 0 "" test "${#heads[@]}" -ge 3
expect 2 "--replica 5: there is no client 5, expected 0 to 4" "$tutti" eval personal --replica 5
expect 2 "--replica 3: the run has no layers that stay on clients" "$tutti" eval plain --replica 3
expect 2 "--weights latest: there is no such file; expected best, last or a file" "$tutti" eval plain --weights latest

# What is said beforehand.
expect 0 "between server and clients in a round" "$tutti" check "$root/examples/federated.json" --quick
expect 0 "such rounds are repeated" "${short[@]}" --output restless --set 'clients=[{"dropout": 0.05}]'

# What is tried beforehand is as long as the run's own rounds, and misses no deadline that these make.
expect 0 "train  " "$tutti" check "${short[@]:2}" --set graph.strategy.local='{"steps": 1}' --set 'clients=[{"speed": 1}]' \
  --set 'graph.strategy.round={"method": "Synchronous", "deadline": 5, "too_few": "end"}'

# Memory does not grow with the number of clients: a thousand of them with a model of 800 kB, each asked twice, whatever a
# compression leaves out of what they send.
cat >peak.py <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
END
many=("$tutti" train "$root/examples/federated.json" --quiet --output many --set graph.strategy.num_clients=1000
      --set 'graph.strategy.client_selection={"method": "All"}' --set 'graph.strategy.local={"steps": 1}')
for compression in '"NoCompression"' '{"TopK": 0.1}'; do
  for rounds in 2 3; do  # the third goes on from a checkpoint
    had=$(/usr/bin/python3 peak.py "${many[@]}" --resume --set "graph.strategy.rounds=$rounds" --set "graph.strategy.compression=$compression")
    expect 0 "" test "${had:-0}" -gt 100000000
    expect 0 "" test "${had:-0}" -lt 600000000
  done
  rm -rf many
done

# <error> <option>...: refused, and nothing is left behind.
refused() {
  expect 2 "$1" "${short[@]}" --output never "${@:2}"
  expect 1 "" test -e never
}
refused "Local has no clients; Federated has" --set 'graph.strategy={"type": "Local"}' --set data.client_test=0.1
refused "Local has no clients; Federated has" --set 'graph.strategy={"type": "Local"}' --set 'clients=[{"count": 12}]'
refused "the run is as long as the strategy has rounds" --set train.epochs=3
refused "the groups have 7 clients, and num_clients is 12" --set 'clients=[{"count": 3}, {"count": 4}]'
refused "the groups have 12 clients without the last, which has the rest" --set 'clients=[{"count": 12}, {"speed": 3}]'
refused "clients[0].speed" --set 'clients=[{"speed": 0}]'
refused "clients[0].dropout" --set 'clients=[{"dropout": 2}]'
refused "none of 12 clients has all of the required tags: gpu" \
  --set 'graph.strategy.client_selection={"method": "ByCapability", "required_tags": ["gpu"]}'
refused "expected at least 11 updates" --set 'graph.strategy.aggregation={"method": "Krum", "byzantine": 4}'
refused "a round needs 9 updates, and asks 6 clients" --set 'graph.strategy.round={"method": "Synchronous", "replies": 9}'
refused "graph.strategy.num_clients: 120 rows to train with cannot be dealt out to 121 clients" --set graph.strategy.num_clients=121
refused "data.client_split.method" --set 'data.client_split={"method": "Dirchlet"}'
refused "data.client_split: expected a file for each of 12 clients, found 1" --set 'data.client_split={"method": "Files"}'
refused "inner: replicas of a client average gradients in each step by AllReduce, found DataParallel" \
  --set 'graph.strategy.inner={"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "ParameterServer"}}'
expect 0 "clients on 1 thread, with replicas on more" "${short[@]}" --output inner --set graph.strategy.threads=1 \
  --set 'graph.strategy.inner={"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}'
expect 1 "round 1: it had 0 of the 6 good updates that it needs" "${short[@]}" --output failing --set 'clients=[{"failure": 1}]' \
  --set 'graph.strategy.round={"method": "Synchronous", "too_few": "end"}'
finish
