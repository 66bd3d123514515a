#!/usr/bin/env bash
# `tutti check`: what it tells of a run file, and what it says of one that is wrong.
#
#   tests/unit/check_command_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$1
file=$scratch/mlp.json
cat >"$file" <<'END'
// An MLP on Fashion-MNIST, on two replicas.
{ "seed": 7,
  "data": {"source": "fashion_mnist", "batch_size": 128},
  "graph": {
    "inputs": {"image": [1, 28, 28]},
    "nodes": [
      {"id": "flat",   "op": "flatten", "inputs": ["image"]},
      {"id": "hidden", "op": "linear",  "inputs": ["flat"], "units": 256},
      {"id": "act",    "op": "relu",    "inputs": ["hidden"]},
      {"id": "logits", "op": "linear",  "inputs": ["act"], "units": 10}],
    "outputs": ["logits"],
    "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}} },
  "loss": "cross_entropy",
  "metrics": ["accuracy"],
  "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
  "train": {"epochs": 3},
  "output": "runs/first" }
END

expect 0 "hidden  linear   [256]           200,960  DataParallel" "$tutti" check "$file" --quick
expect 0 "parameters  203,530" "$tutti" check "$file" --quick
expect 0 "strategy    DataParallel: 2 replicas, AllReduce" "$tutti" check "$file" --quick
expect 0 "moved       795 KiB between replicas in a step" "$tutti" check "$file" --quick
expect 0 "MiB, of it parameters 795 KiB, optimizer 795 KiB, gradients 1.55 MiB" "$tutti" check "$file"
expect 0 "stage1.conv1  conv2d" "$tutti" check "$root/examples/fashion_mnist_residual.json" --quick

# Whether the same run learns the same each time.
says_bits() {  # <how often> <run file> <option>...
  expect "$((1 - $1))" "$([[ $1 == 0 ]] || echo 'bits        depend on who is faster')" \
    bash -o pipefail -c '"$@" | grep "^bits "' - "$tutti" check "${@:2}" --quick
}
says_bits 0 "$file"
for aggregation in '{"method": "ParameterServer", "consistency": "asynchronous"}' '{"method": "ParameterServer", "consistency": "bounded_staleness"}' \
  '{"method": "ParameterServer", "consistency": "lock_free"}' '{"method": "Decentralized", "topology": "ring", "gossip": true}'; do
  says_bits 1 "$file" --set "graph.strategy.aggregation=$aggregation"
  says_bits 0 "$file" --set "graph.strategy.aggregation=$aggregation" --set graph.strategy.num_replicas=1
done
says_bits 0 "$file" --set 'graph.strategy.aggregation={"method": "ParameterServer", "consistency": "synchronous"}'
neighbours=("$tutti" check "$file" --quick --set graph.strategy.num_replicas=4)
expect 0 "mixing      spectral gap 0.667" "${neighbours[@]}" --set 'graph.strategy.aggregation={"method": "Decentralized", "topology": "ring"}'
expect 0 "for a gradient of each" "${neighbours[@]}" --set 'graph.strategy.aggregation={"method": "Decentralized", "topology": "ring", "gossip": true}'
says_bits 0 "$root/examples/population.json"
says_bits 1 "$root/examples/population.json" --set graph.strategy.pace=asynchronous

expect 0 "" "$tutti" check "$root/examples/fashion_mnist_residual.json" --quick --dot "$scratch/graph.dot"
expect 0 '"stem" -> "stage1.norm1";' cat "$scratch/graph.dot"
expect 0 'digraph {' cat "$scratch/graph.dot"
expect 0 'subgraph "cluster stage1" {' cat "$scratch/graph.dot"
expect 1 "cannot write $scratch/no/graph.dot" "$tutti" check "$file" --quick --dot "$scratch/no/graph.dot"

sed 's/"units": 10/"units": 11/' "$file" >"$scratch/classes.json"
expect 2 "classes.json:13:" "$tutti" check "$scratch/classes.json"
expect 2 "loss: expected an output of the shape [10], for 10 classes, found [11]" "$tutti" check "$scratch/classes.json"
sed 's/"num_replicas": 2/"num_replicas": 0/' "$file" >"$scratch/replicas.json"
expect 2 "graph.strategy.num_replicas: expected a whole number from 1 to 65536, found 0" "$tutti" check "$scratch/replicas.json"
sed 's/"op": "relu", /"op": "relv", /' "$file" >"$scratch/op.json"
expect 2 "graph.act.op: there is no operator 'relv'; did you mean 'relu'?" "$tutti" check "$scratch/op.json"
sed 's/"units": 256}/"units": 256}, {"id": "lost", "op": "relu", "inputs": ["flat"]}/' "$file" >"$scratch/unused.json"
expect 0 "warning: the node 'lost' is not computed: no output needs it" "$tutti" check "$scratch/unused.json" --quick
# Too large for any machine, and too large for this one: told, and not tried.
sed 's/"units": 256/"units": 1000000000/' "$file" >"$scratch/large.json"
expect 0 "so it was not tried" "$tutti" check "$scratch/large.json"
sed 's/"batch_size": 128/"batch_size": 100000000/' "$file" >"$scratch/rows.json"
expect 0 "so it was not tried" "$tutti" check "$scratch/rows.json"
# What a step keeps inside of a node is more than can be counted before: it is tried, and ends before the machine is full.
sed 's/"batch_size": 128/"batch_size": 20000/
  s/"op": "linear",  "inputs": \["flat"\], "units": 256/"op": "graph", "inputs": ["flat"], "nodes": [\
    {"id": "seq", "op": "reshape", "inputs": ["flat"], "shape": [784, 1]},\
    {"id": "memory", "op": "lstm", "inputs": ["seq"], "units": 512, "output": "last"}], "outputs": ["memory"]/' \
  "$file" >"$scratch/inside.json"
expect 0 "hidden.memory" "$tutti" check "$scratch/inside.json" --quick
expect 1 "a few steps were tried, and failed: they take more than the" "$tutti" check "$scratch/inside.json"
# What reading cannot know: it is an error all the same.
sed 's/"method": "AllReduce"/"method": "AllReduce", "algorithm": "Gloo"/' "$file" >"$scratch/gloo.json"
expect 1 "a few steps were tried, and failed: algorithm: Gloo is for processes" "$tutti" check "$scratch/gloo.json"
sed 's/"outputs": \["logits"\]/"outputs": ["logits", "aux"]/
  s/{"id": "logits",/{"id": "aux", "op": "linear", "inputs": ["act"], "units": 3}, {"id": "logits",/' "$file" >"$scratch/heads.json"
expect 0 "warning: the node 'aux' is computed and not trained: the loss is of the first output, 'logits'" \
  "$tutti" check "$scratch/heads.json" --quick
expect 0 "train       3 epochs, into runs/first" "$tutti" check "$file" --quick
expect 0 "train       5 epochs, into runs/first" "$tutti" check "$file" --quick --set train.epochs=5
expect 0 "parameters 398 KiB" "$tutti" check "$file" --set graph.hidden.units=128
expect 0 "optimizer   sgd, lr 0.1" "$tutti" check "$file" --quick
expect 0 '"input image" -> "flat";' "$tutti" check "$file" --dot -
cp "$file" "$scratch/mine.json"
expect 2 "is the run file itself" "$tutti" check "$scratch/mine.json" --quick --dot "$scratch/mine.json"
sed 's/"strategy": .*/"strategy": {"type": "ModelParallel", "partitions": [{"node_ids": ["flat", "hidden"],\
  "target": {"WorkerId": "w0"}}, {"node_ids": ["act", "logits"], "target": {"Tag": "big"}}],\
  "communication": {"protocol": "Direct"}} },/' "$file" >"$scratch/cut.json"
expect 0 "moved       256 KiB between workers in a step" "$tutti" check "$scratch/cut.json"
sed 's/"Direct"/"DataStore"/' "$scratch/cut.json" >"$scratch/store.json"
expect 0 "traffic     w0 -> big: values 128 KiB a step, of hidden" "$tutti" check "$scratch/store.json"
[[ ! -e runs ]] || { echo "a trial of DataStore left $(find runs)"; failures=$((failures + 1)); }
# The cut, its traffic, what is live, and what a step takes.
expect 0 "stage 1     big: act, logits; " "$tutti" check "$scratch/cut.json"
expect 0 "            big -> w0: gradients 128 KiB a step, of hidden" "$tutti" check "$scratch/cut.json"
expect 0 "live        at most w0 1 micro-batch, " "$tutti" check "$scratch/cut.json"
expect 0 " a step of 1 micro-batch, bubble 5" "$tutti" check "$scratch/cut.json"
expect 0 "predicted   1 micro-batch a step; how long was not measured" "$tutti" check "$scratch/cut.json" --quick
sed 's/{"protocol": "Direct"}/{"protocol": "Pipeline", "micro_batch_size": 16}/' "$scratch/cut.json" >"$scratch/pipeline.json"
expect 0 "live        at most w0 2 micro-batches, " "$tutti" check "$scratch/pipeline.json" --quick
expect 0 " a step of 8 micro-batches, bubble " "$tutti" check "$scratch/pipeline.json"
# Partitions that are found, and written back.
sed 's/"strategy": .*/"strategy": {"type": "ModelParallel", "auto_partition": {"workers": 2},\
  "communication": {"protocol": "Direct"}} },/' "$file" >"$scratch/auto.json"
expect 0 'partitions  [{"node_ids":["' "$tutti" check "$scratch/auto.json" --partitions "$scratch/found.json"
expect 0 "strategy    ModelParallel: 2 partitions, Direct" "$tutti" check "$scratch/found.json" --quick
expect 0 "moved       not known: partitions are found by measuring" "$tutti" check "$scratch/auto.json" --quick
expect 2 "--partitions: with --quick nothing is measured" "$tutti" check "$scratch/auto.json" --quick --partitions "$scratch/none.json"
[[ ! -e $scratch/none.json ]] || { echo "none.json was written"; failures=$((failures + 1)); }
expect 2 "--partitions: none are looked for" "$tutti" check "$scratch/cut.json" --partitions "$scratch/none.json"
sed 's/{"id": "act",[^}]*}/{"id": "norm", "op": "batch_norm", "inputs": ["hidden"]}, {"id": "act", "op": "relu", "inputs": ["norm"]}/' \
  "$scratch/pipeline.json" >"$scratch/norm.json"
expect 0 "warning: the node 'norm' (batch_norm) takes its statistics over the 16 rows of a micro-batch" \
  "$tutti" check "$scratch/norm.json" --quick
expect 2 "is the run file itself" "$tutti" check "$scratch/auto.json" --partitions "$scratch/auto.json"
expect 1 "cannot write" "$tutti" check "$scratch/auto.json" --partitions "$scratch/nowhere/found.json"
# Workers that the file lists: what no partition has is the first one's.
sed 's/{"node_ids": \["flat", "hidden"\],/{"node_ids": ["hidden"],/; s/^{ "seed"/{ "workers": [{"id": "w9"}, {"id": "w0"}, {"id": "w1", "tags": ["big"]}], "seed"/' \
  "$scratch/cut.json" >"$scratch/listed.json"
expect 0 "moved       648 KiB between workers in a step" "$tutti" check "$scratch/listed.json" --quick
sed 's/"units": 256/"units": 1000000000000/' "$file" >"$scratch/larger.json"
expect 2 "graph.hidden.units: expected a whole number from 1 to 1000000000" "$tutti" check "$scratch/larger.json"
expect 2 "there is no such file" "$tutti" check "$scratch/nothing.json"
expect 2 "tutti check run.json" "$tutti" check
expect 2 "unexpected argument" "$tutti" check "$file" "$file"
finish
