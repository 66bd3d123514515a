#!/usr/bin/env bash
# Every run file among the examples is trained, for a few steps; or those whose name is given as a whole, and then they must
# reach so much of the test set; or of what clients keep to evaluate with, where they do.
#
#   tests/unit/train_examples_test.sh <tutti> [<example>=<percent>]...
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$(readlink -f -- "$1")
cd "$scratch" || exit 1
shift

for whole in "$@"; do
  name=${whole%=*}
  expect 0 "finished at " "$tutti" train "$root/examples/$name.json" --output "$name"
  reached=$(sed -n 's/.*"clients_accuracy":\([0-9.]*\).*/\1/p' "$name/metrics.jsonl" | tail -n 1)
  [[ $reached ]] || reached=$("$tutti" eval "$name" --weights last --json | sed -n 's/.*"accuracy":\([0-9.]*\).*/\1/p')
  expect 0 "" awk -v reached="$reached" -v wanted="${whole#*=}" \
    'BEGIN { print "reached", reached; exit !(100 * reached >= wanted) }'
done
(($# == 0)) || finish

for file in "$root"/examples/*.json; do
  name=$(basename "$file" .json)
  # As long as it is for people, and then as short as it is for a test.
  expect 0 "train  " "$tutti" check "$file" --quick
  steps=4 unit=step short='train={"steps": 4}'
  grep -q '"Federated"' "$file" && steps=2 unit=round short='graph.strategy.rounds=2'
  grep -q '"PopulationBased"' "$file" && steps=2 unit=generation short='graph.strategy={"type": "PopulationBased", "population_size": 3,
    "generations": 2, "exploit": {"method": "Binary", "threshold": 0}, "explore": {"method": "Resample"}, "generation": {"steps": 4}}'
  expect 0 "finished at $unit $steps" "$tutti" train "$file" --set "$short" --output "$name"
  expect 0 "\"step\":$steps," tail -n 1 "$name/metrics.jsonl"
  # What it says of itself.
  expect 0 "Reaches " grep -m 1 "^// Reaches .*[1-9][0-9.]* % " "$file"
done
finish
