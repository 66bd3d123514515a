#!/usr/bin/env bash
# Every run file among the examples is trained, for a few steps, and what it learns is evaluated.
#
#   tests/unit/train_examples_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$(readlink -f -- "$1")
cd "$scratch" || exit 1

for file in "$root"/examples/*.json; do
  name=$(basename "$file" .json)
  # As long as it is for people, and then as short as it is for a test.
  expect 0 "train  " "$tutti" check "$file" --quick
  expect 0 "finished at step 4" "$tutti" train "$file" --set 'train={"steps": 4}' --output "$name"
  expect 0 '"step":4,' tail -n 1 "$name/metrics.jsonl"
  # What it says of itself.
  expect 0 "% " grep -m 1 "^// Reaches" "$file"
done
finish
