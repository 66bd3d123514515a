#!/usr/bin/env bash
# What examples/population.json reaches beside a random search with the same budget: the median of the best validation
# accuracies over five seeds.
#
#   tests/unit/population_figures_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$(readlink -f -- "$1")

# <name> <option>...: the best of each seed, in hundredths of a percent, and their median.
median_best() {
  local seed
  for seed in 1 2 3 4 5; do
    "$tutti" train "$root/examples/population.json" --quiet --set "seed=$seed" --output "$scratch/$1$seed" "${@:2}" >/dev/null || exit
    "$tutti" eval "$scratch/$1$seed" --split validation --json | sed -n 's/.*"accuracy":\([0-9.]*\).*/\1/p' | awk '{ printf "%d\n", 10000 * $1 + 0.5 }'
    rm -r "${scratch:?}/$1$seed"
  done >"$scratch/$1"
  echo "$1: $(paste -sd ' ' "$scratch/$1")" >&2
  sort -n "$scratch/$1" | sed -n 3p
}
random=$(median_best random --set 'graph.strategy.exploit={"method": "None"}')
population=$(median_best population)
echo "best of eight members, the median of five seeds: population $population, random search $random"
expect 0 "" test "${population:-0}" -ge "${random:-10000}"
finish
