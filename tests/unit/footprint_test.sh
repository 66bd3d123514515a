#!/usr/bin/env bash
# What `tutti check` says of a run's memory is within a tenth of what `tutti train` then has, evaluation and checkpoint
# included. Where there are several threads that differs from run to run, with what of malloc's arenas lies idle: the check takes
# a median, and so does this test.
#
#   tests/unit/footprint_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$1

# Runs a command, and prints how many bytes it had at most.
cat >"$scratch/peak.py" <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
END

# <file> <nodes> <batch size> <strategy>
write_run() {
  cat >"$scratch/$1.json" <<END
{"data": {"source": "fashion_mnist", "batch_size": $3},
 "graph": {"inputs": {"image": [1, 28, 28]}, "nodes": [$2], "outputs": ["logits"], "strategy": $4},
 "loss": "cross_entropy", "optimizer": {"name": "adam", "lr": 0.001}}
END
}
mlp='{"id": "flat", "op": "flatten", "inputs": ["image"]}, {"id": "a", "op": "linear", "inputs": ["flat"], "units": 3000},
  {"id": "b", "op": "relu", "inputs": ["a"]}, {"id": "c", "op": "linear", "inputs": ["b"], "units": 3000},
  {"id": "logits", "op": "linear", "inputs": ["c"], "units": 10}'
cnn='{"id": "a", "op": "conv2d", "inputs": ["image"], "filters": 16, "kernel": 3}, {"id": "n", "op": "batch_norm", "inputs": ["a"]},
  {"id": "b", "op": "relu", "inputs": ["n"]}, {"id": "p", "op": "max_pool2d", "inputs": ["b"], "kernel": 2},
  {"id": "d", "op": "dropout", "inputs": ["p"]}, {"id": "flat", "op": "flatten", "inputs": ["d"]},
  {"id": "logits", "op": "linear", "inputs": ["flat"], "units": 10}'
replicated='{"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}'
write_run mlp "$mlp" 64 '{"type": "Local"}'
write_run cnn "$cnn" 256 '{"type": "Local"}'
write_run cnn2 "$cnn" 256 "$replicated"

# <runs> <program> <argument>...: the median of an odd number of runs.
median() {
  local runs=$1
  shift
  for ((run = 0; run < runs; ++run)); do "$@" || return; done | sort -n | sed -n "$(((runs + 1) / 2))p"
}

for file in "$scratch"/*.json "$root"/examples/{fashion_mnist_cnn,fashion_mnist_script,pipeline}.json; do
  runs=1
  grep -q 'Parallel"' "$file" && runs=3
  said=$(median "$runs" "$tutti" check "$file" --trial) || { expect 0 "" "$tutti" check "$file" --trial; continue; }
  short_run=("$tutti" train "$file" --quiet --output "$scratch/run" --set train.steps=16)
  had=$(median "$runs" /usr/bin/python3 "$scratch/peak.py" "${short_run[@]}") || { expect 0 "" "${short_run[@]}"; continue; }
  echo "${file##*/}: $((said >> 20)) MiB said, $((had >> 20)) MiB taken"
  expect 0 "within" awk -v said="$said" -v had="$had" \
    'BEGIN { print (said > 0.9 * had && said < 1.1 * had) ? "within" : "too far: " said " and " had }'
done
expect 0 "memory      " "$tutti" check "$scratch/mlp.json"
expect 0 "memory      at least" "$tutti" check "$scratch/mlp.json" --quick
finish
