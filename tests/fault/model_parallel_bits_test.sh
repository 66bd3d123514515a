#!/usr/bin/env bash
# A graph that is cut learns the same bits on one worker, on workers that are threads, and on workers that are processes, through
# shared memory and over sockets. The commands of docs/model_parallel.md do what they say.
#
#   model_parallel_bits_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$(readlink -f -- "$1")
cd "$scratch" || exit 2

# Branches, a worker that is visited twice, weights that two workers share, and what is drawn at random.
cat >run.json <<END
{ "seed": 3,
  "data": {"source": "csv", "file": "$root/examples/data/iris.csv", "label": "species", "batch_size": 16,
           "split": {"test": 0.2}, "standardise": true},
  "workers": [{"id": "a"}, {"id": "b"}, {"id": "c"}],
  "graph": {
    "inputs": {"features": [4]},
    "nodes": [
      {"id": "hidden", "op": "linear",     "inputs": ["features"], "units": 8},
      {"id": "left",   "op": "linear",     "inputs": ["hidden"], "units": 8},
      {"id": "norm",   "op": "batch_norm", "inputs": ["left"]},
      {"id": "right",  "op": "linear",     "inputs": ["hidden"], "units": 8, "tied": {"weight": "left.weight"}},
      {"id": "drop",   "op": "dropout",    "inputs": ["right"], "p": 0.2},
      {"id": "both",   "op": "add",        "inputs": ["norm", "drop", "hidden"]},
      {"id": "act",    "op": "tanh",       "inputs": ["both"]},
      {"id": "logits", "op": "linear",     "inputs": ["act"], "units": 3}],
    "outputs": ["logits"],
    "strategy": {"type": "ModelParallel",
                 "partitions": [{"node_ids": ["hidden", "both"], "target": {"WorkerId": "a"}},
                                {"node_ids": ["left", "norm", "act", "logits"], "target": {"WorkerId": "b"}},
                                {"node_ids": ["right", "drop"], "target": {"WorkerId": "c"}}],
                 "communication": {"protocol": "Direct"}} },
  "loss": "cross_entropy",
  "metrics": ["accuracy"],
  "optimizer": {"name": "adam", "lr": 0.01},
  "train": {"epochs": 3, "clip_norm": 1.0, "log_every": 1} }
END
pipeline=(--set 'graph.strategy.communication={"protocol": "Pipeline", "micro_batch_size": 4}' --set data.drop_last=true)

# What each step and each evaluation has come to, and the weights.
learnt() {  # <run>
  expect 0 "" timeout 60 "$tutti" export "$1" "$1.safetensors" --weights last
  grep -o '"\(step\|[a-z_]*loss\|[a-z_]*accuracy\)":[^,}]*' "$1/metrics.jsonl" >"$1.losses"
}
train() {  # <run> <command>...
  expect 0 "" timeout 120 "${@:2}" --output "$1"
  learnt "$1"
}
same() {  # <run> <run>
  expect 0 "" cmp "$1.losses" "$2.losses"
  expect 0 "" cmp "$1.safetensors" "$2.safetensors"
}
processes=("$tutti" launch --processes 3 -- train run.json)

train alone "$tutti" train run.json --set 'graph.strategy={"type": "Local"}'
train threads "$tutti" train run.json
TUTTI_SHARED_MEMORY=1 train memory "${processes[@]}"
TUTTI_SHARED_MEMORY=0 train sockets "${processes[@]}"
expect 0 "" test "$(grep -c '"loss"' alone.losses)" -ge 24  # or there is nothing to compare
for run in threads memory sockets; do same alone $run; done

# Micro-batches add up in another order than the batch does, and that is the same everywhere, too.
train threads_pipeline "$tutti" train run.json "${pipeline[@]}"
TUTTI_SHARED_MEMORY=1 train memory_pipeline "${processes[@]}" "${pipeline[@]}"
TUTTI_SHARED_MEMORY=0 train sockets_pipeline "${processes[@]}" "${pipeline[@]}"
for run in memory sockets; do same threads_pipeline ${run}_pipeline; done

# As written, but for where it goes, and not as long. Of one file all learn the same.
mapfile -t commands < <(grep '^\./tutti ' "$root/docs/model_parallel.md")
mkdir here
ln -s "$root/examples" here/examples
declare -A first=()  # that trained a file
for i in "${!commands[@]}"; do
  read -ra words <<<"${commands[i]}"
  if [[ ${words[1]} == check ]]; then
    expect 0 "partitions  [" timeout 120 env -C here "$tutti" "${words[@]:1}"
    continue
  fi
  file=${words[-1]}
  expect 0 "finished at step 4" timeout 120 env -C here "$tutti" "${words[@]:1}" --set 'train={"steps": 4}' \
    --output "$scratch/command$i"
  learnt "command$i"
  same "${first[$file]:=command$i}" "command$i"
done
expect 0 "" test ${#first[@]} -lt ${#commands[@]}
finish
