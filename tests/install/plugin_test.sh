#!/usr/bin/env bash
# The plugin of examples/plugin with an installed tutti: its coordinator learns, its checkpoints are read, and go on to the bit.
#
#   tests/install/plugin_test.sh <tutti> <plugin>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$1
with=(--plugin "$2")
cd "$scratch" || exit 1

train=("$tutti" train "$root/examples/plugin/elastic.json" "${with[@]}")
expect 0 "engine    elastic averaging of 2 replicas on threads, every 4 steps" "${train[@]}" --output once
# What the run file says that it reaches; the last of both differ.
expect 0 "accuracy 0.9333" "$tutti" eval once "${with[@]}"
expect 0 "test loss" "$tutti" eval once "${with[@]}" --weights last --replica 1
[[ $("$tutti" eval once "${with[@]}" --weights last) != $("$tutti" eval once "${with[@]}" --weights last --replica 1) ]] ||
  { echo "The centre is where a replica is."; failures=1; }

# A run that is longer than the one it goes on from: no schedule, which would be stretched.
steady=(--set 'schedule="constant"' --quiet)
expect 0 "" "${train[@]}" "${steady[@]}" --output whole --set train.epochs=6
expect 0 "finished at step 19" "${train[@]}" "${steady[@]}" --output cut --set train.steps=19
expect 0 "finished at step 48" "${train[@]}" "${steady[@]}" --output cut --set train.epochs=6 --resume
arrays() {  # of the last checkpoint, behind what says when it was written
  python3 - "$1"/checkpoints/last.safetensors <<'END'
import json, sys
data = open(sys.argv[1], 'rb').read()
length = int.from_bytes(data[:8], 'little')
header = json.loads(data[8:8 + length])
for name in sorted(name for name in header if name != '__metadata__'):
  begin, end = header[name]['data_offsets']
  print(name, header[name]['dtype'], header[name]['shape'], data[8 + length + begin:8 + length + end].hex())
END
}
arrays whole >whole.txt
arrays cut >cut.txt
expect 0 "replica/1/hidden.weight" cat whole.txt
expect 0 "" cmp whole.txt cut.txt
expect 2 "the coordinator 'elastic_averaging' is for one process, and there are 2" \
  "$tutti" launch --processes 2 -- "${train[@]:1}" --output never
expect 2 "graph.strategy.config.pull: expected a number from 0 to 0.5, found 0.6" "${train[@]}" --output never --set graph.strategy.config.pull=0.6
expect 1 "" test -e never
# More replicas each pull less, unless they are told how much.
expect 0 "elastic averaging of 12 replicas on threads, every 4 steps, by 0.0833" "${train[@]}" --output twelve --set train.steps=2 \
  --set 'graph.strategy.config={"replicas": 12, "every": 4}'
finish
