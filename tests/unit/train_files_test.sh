#!/usr/bin/env bash
# What `tutti train` and the verbs beside it write is read by others: numpy and torch compute the same from the weights, and the
# metrics, the events of TensorBoard and the trace are as they should be.
#
#   tests/unit/train_files_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
program=$(readlink -f -- "$1")
tutti() { timeout 60 "$program" "$@" </dev/null; }
examples=$root/examples
cd "$scratch" || exit 2

# The first python3 on the PATH may not be the one that has torch.
for python in python3 /usr/bin/python3; do
  "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null && break
done
peer=("$python" "$root/tests/unit/train_files_peer.py")

# --- An MLP, on two threads.
expect 0 "finished at step 40" tutti train "$examples/fashion_mnist.json" --output images --trace images.trace \
  --set 'train={"steps": 40, "evaluate_every": 20, "log_every": 5}'
expect 0 " arrays, " tutti export images images.safetensors --weights last
expect 0 " arrays, " tutti export images images.npz --weights last
expect 0 "10000 rows" tutti predict images --weights last --to images.npy
tutti eval images --weights last --json >images.eval 2>messages
expect 0 "" "${peer[@]}" images images images.safetensors images.npz images.npy images.eval
expect 0 "" "${peer[@]}" metrics images/metrics.jsonl 40 5 20
expect 0 "" "${peer[@]}" events images
expect 0 "" "${peer[@]}" trace images.trace 2

# --- A table whose columns are standardised: as in the run, so for other files. Its file is found from any folder.
expect 0 "finished" tutti train "$examples/iris.json" --output table --set train.epochs=5 --set data.split.test=0
expect 0 "4 arrays" tutti export table table.npz
expect 0 "150 rows" tutti predict table --split train --to own.npy
expect 0 "150 rows" tutti predict table --input "$examples/data/iris.csv" --to csv.npy
expect 0 "" "${peer[@]}" table table "$examples/data/iris.csv" table.npz own.npy csv.npy

# --- Two processes, and parameters that each has for itself.
cat >own.json <<END
{ "data": {"source": "csv", "file": "$examples/data/iris.csv", "label": "species", "batch_size": 16, "standardise": true},
  "graph": {
    "inputs": {"features": [4]},
    "nodes": [
      {"id": "hidden", "op": "linear", "inputs": ["features"], "units": 8},
      {"id": "own", "op": "graph", "inputs": ["hidden"], "strategy": {"type": "Local"},
       "nodes": [{"id": "mine", "op": "linear", "inputs": ["hidden"], "units": 8},
                 {"id": "norm", "op": "batch_norm", "inputs": ["mine"]}],
       "outputs": ["norm"]},
      {"id": "logits", "op": "linear", "inputs": ["own"], "units": 3}],
    "outputs": ["logits"],
    "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}} },
  "loss": "cross_entropy",
  "optimizer": {"name": "adam", "lr": 0.01},
  "train": {"epochs": 5} }
END
expect 0 "4 parameters are each replica's own" tutti launch --processes 2 -- train own.json --output own --trace own.trace
for replica in 0 1; do
  expect 0 "11 arrays" tutti export own "replica$replica.npz" --weights last --replica "$replica"
done
expect 0 "" "${peer[@]}" replicas replica0.npz replica1.npz own.
expect 0 "" "${peer[@]}" trace own.trace 2
expect 2 "there is no replica 2" tutti export own replica2.npz --replica 2
finish
