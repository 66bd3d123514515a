#!/usr/bin/env bash
# What federated training reaches: rounds to 97 % of MNIST (McMahan et al., 2017, with 2NN, 100 clients, a tenth of them in a round, one
# epoch of batches of 10: 87 rounds, and 664 where each client has two shards of sorted labels), and what four of twenty
# clients that send ten times the negated change do to it.
#
#   tests/unit/federated_figures_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$(readlink -f -- "$1")

expect 0 "" "$tutti" fetch mnist --folder "$scratch/mnist"
mnist=(--set "data={\"source\": \"mnist\", \"folder\": \"$scratch/mnist\", \"batch_size\": 10}")

# <split> <most rounds>: the median of three seeds.
expect_rounds() {
  local split=$1 most=$2 seed
  for seed in 1 2 3; do
    "$root/tests/unit/rounds_to_accuracy.py" 0.97 "$tutti" train "$root/examples/federated.json" "${mnist[@]}" \
      --set "data.client_split={\"method\": \"$split\"}" --set "graph.strategy.rounds=$most" --set "seed=$seed" --output "$scratch/$split$seed"
  done >"$scratch/rounds"
  echo "$split: 97 % in $(paste -sd ' ' "$scratch/rounds") rounds"
  local median
  median=$(grep -v never "$scratch/rounds" | sort -n | sed -n 2p)
  expect 0 "" test "${median:-never}" -le "$most"
}
expect_rounds Iid 87
expect_rounds Shards 664

# <name> <rule> <clients>: what is told right of the test set in the end, in hundredths of a percent.
accuracy_with() {
  "$tutti" train "$root/examples/federated_hostile.json" --set "graph.strategy.aggregation=$2" --set "clients=$3" \
    --set train.evaluate_every=100 --quiet --output "$scratch/$1" >/dev/null 2>&1
  "$tutti" eval "$scratch/$1" --weights last --json | sed -n 's/.*"accuracy":\([0-9.]*\).*/\1/p' | awk '{ printf "%d\n", 10000 * $1 }'
}
hostile='[{"count": 16}, {"count": 4, "update_factor": -10}]'
clean=$(accuracy_with clean '{"method": "FedAvg"}' '[{}]')
mean=$(accuracy_with mean '{"method": "FedAvg"}' "$hostile")
echo "clean $clean, with 4 hostile clients: mean ${mean:-ended}"
expect 0 "" test "$clean" -gt 8000
# It learns nothing, or ends with numbers that are none.
expect 0 "" test "${mean:-0}" -lt 3000
for rule in '"TrimmedMean", "fraction": 0.2' '"Krum", "byzantine": 4' '"MultiKrum", "byzantine": 4' '"Median"' '"Bulyan", "byzantine": 4'; do
  reached=$(accuracy_with "${rule:1:4}" "{\"method\": $rule}" "$hostile")
  echo "$rule: $reached"
  expect 0 "" test "$((clean - ${reached:-0}))" -le 200
done
finish
