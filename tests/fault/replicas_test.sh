#!/usr/bin/env bash
# Replicas that take their steps together, but do not average gradients by AllReduce in each: neighbours, steps alone between
# meetings, and a synchronous parameter server. On processes they learn what docs/replicas.md promises, to the bit; and where one is
# killed the others end and say who.
#
#   replicas_test.sh <process_worker> <tutti> <TUTTI_SHARED_MEMORY>
worker=$1 tutti=$2 size=3
export TUTTI_SHARED_MEMORY=$3 TUTTI_QUIET=1
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"
cd "$scratch" || exit 2

awk 'BEGIN { srand(3); for (i = 0; i < 600; i++) { k = int(rand() * 3); printf "%f,%f,%f,%d\n", rand() + (k == 0), rand() + (k == 1), rand() + (k == 2), k } }' \
  >points.csv
run_file() {  # <name> <the rest of DataParallel>
  cat >"$1.json" <<END
{ "seed": 3,
  "data": {"source": "csv", "file": "points.csv", "label": 3, "header": false, "batch_size": 30},
  "graph": {
    "inputs": {"features": [3]},
    "nodes": [{"id": "hidden", "op": "linear", "inputs": ["features"], "units": 32},
              {"id": "norm", "op": "batch_norm", "inputs": ["hidden"]},
              {"id": "act", "op": "tanh", "inputs": ["norm"]},
              {"id": "logits", "op": "linear", "inputs": ["act"], "units": 3}],
    "outputs": ["logits"],
    "strategy": {"type": "DataParallel", "num_replicas": 4, $2} },
  "loss": "cross_entropy", "metrics": ["accuracy"],
  "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
  "train": {"steps": 12, "evaluate_every": 5}, "output": "$1" }
END
}
run_file neighbours '"aggregation": {"method": "Decentralized", "topology": "ring"}'
run_file alone '"aggregation": {"method": "AllReduce"}, "sync_every": 4, "outer": {"method": "FedAvgM", "lr": 0.7, "momentum": 0.8, "nesterov": true}'
run_file server '"aggregation": {"method": "ParameterServer"}'

# All arrays of the last checkpoint, and nothing else of it.
cat >digest.py <<'END'
import hashlib, json, sys
data = open(sys.argv[1] + "/checkpoints/last.safetensors", "rb").read()
first = 8 + int.from_bytes(data[:8], "little")
header = json.loads(data[8:first])
digest = hashlib.sha256()
for name in sorted(header):
    if name == "__metadata__": continue
    begin, end = header[name]["data_offsets"]
    digest.update(f"{name} {header[name]['dtype']} {header[name]['shape']}".encode() + data[first + begin:first + end])
print(len(header), digest.hexdigest())
END
digest() { /usr/bin/python3 digest.py "$1" || fail "$1 has no checkpoint"; }
train() {  # <run> <folder> <command>...
  "${@:3}" "$tutti" train "$1.json" --quiet --output "$2" >rank0 2>&1 </dev/null || fail "$1, into $2, ended with $?"
}
on_three() { "$tutti" launch --processes 3 -- "$@"; }

for run in alone server; do
  train $run $run.one on_three
  train $run $run.two on_three
  [[ $(digest $run.one) == "$(digest $run.two)" ]] || fail "$run: twice the same on three processes is not the same"
done
# Those that mix with their neighbours learn the same on any number of processes.
train neighbours neighbours.threads env
train neighbours neighbours.processes on_three
[[ $(digest neighbours.processes) == "$(digest neighbours.threads)" ]] || fail "neighbours: processes learn something else than threads"

# Where one is killed the others end, in the next step or where they would have met, and say who it was.
serve
has_begun() { says 0 "^step 200 "; }
for run in neighbours alone server; do
  rm -f "$scratch"/rank*
  start_all -- "$tutti" train "$scratch/$run.json" --set train.steps=1000000 --set train.evaluate_every=200
  within 20 has_begun
  kill -KILL "${pids[2]}"
  for rank in 0 1; do
    ends $rank with 1
    says $rank 'rank 2' || fail "$run: rank $rank did not say who is lost"
  done
done
