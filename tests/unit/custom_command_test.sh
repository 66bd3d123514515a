#!/usr/bin/env bash
# Coordinators and plugins by `tutti`: what a plugin brings is there for every verb that reads a run, runs of a coordinator are
# reported and go on as others do, and what is no plugin, or one for another version, is refused.
#
#   tests/unit/custom_command_test.sh <tutti> <test plugin>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$(readlink -f -- "$1")
plugin=$(readlink -f -- "$2")
cd "$scratch" || exit 1

# The irises, by a coordinator of two replicas.
custom='{"type": "Custom", "coordinator": "plain", "config": {"replicas": 2}}'
short=("$root/examples/iris.json" --set train.epochs=3 --set "graph.strategy=$custom")
with=(--plugin "$plugin")

# --- it trains, is reported, and is looked at ---
expect 0 "strategy  Custom: plain" "$tutti" train "${short[@]}" "${with[@]}" --output once
expect 0 '"step":16,"epoch":2' cat once/metrics.jsonl
expect 0 '"train_steps_taken":9.5,"baton":2.0}' cat once/metrics.jsonl
expect 0 "accuracy" "$tutti" eval once "${with[@]}"
expect 0 "120 rows" "$tutti" predict once "${with[@]}" --split train --to nothing.csv
expect 0 "" "$tutti" export once "${with[@]}" weights.safetensors
expect 0 "strategy    Custom: plain" "$tutti" check once "${with[@]}"
expect 0 "that is the coordinator's to say" "$tutti" check once "${with[@]}" --quick

# What it does is what DataParallel does, on processes as well, and after an interruption.
expect 0 "" "$tutti" train "${short[@]}" --quiet --output own --set 'graph.strategy={"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}'
expect 0 "" "$tutti" launch --processes 2 -- train "${short[@]}" "${with[@]}" --quiet --output processes
# shellcheck disable=SC2317  # expect calls it
weights() { "$tutti" export "$1" --weights last "$1.npz" "${with[@]}" >/dev/null && cmp "$1.npz" "$2.npz"; }
"$tutti" export own --weights last own.npz >/dev/null
expect 0 "" weights once own
expect 0 "" weights processes own
# The config of this one ends it by itself, as Ctrl-C would.
cut=("${short[@]}" "${with[@]}" --quiet --set 'graph.strategy.config={"replicas": 2, "failure": "is_interrupted", "fails_at": 10}')
expect 130 "10 of 24 steps are done; to go on: tutti train" "$tutti" train "${cut[@]}" --output cut
expect 130 "--plugin $plugin --output cut2 --resume" "$tutti" launch --processes 2 -- train "${cut[@]}" --set graph.strategy.config.fails_on=1 --output cut2
for folder in cut cut2; do
  expect 0 "finished at step 24" "$tutti" train "${cut[@]}" --output $folder --resume
  expect 0 "" weights $folder own
done
expect 2 "the checkpoint is of the coordinator \"plain\"" "$tutti" train "${short[@]}" --set 'graph.strategy={"type": "Local"}' --output cut --resume

# --- operators, losses, metrics and data sources come from plugins, too ---
cat >ramp.json <<'END'
{"data": {"source": "ramp", "rows": 40, "batch_size": 8},
 "graph": {"inputs": {"x": [1]}, "nodes": [{"id": "wide", "op": "linear", "inputs": ["x"], "units": 1},
   {"id": "doubled", "op": "twice", "inputs": ["wide"]}], "outputs": ["doubled"]},
 "loss": "squares", "metrics": ["largest"], "optimizer": {"name": "sgd", "lr": 0.05}, "train": {"epochs": 40}, "output": "ramp"}
END
expect 0 "finished at step 200" "$tutti" train ramp.json "${with[@]}" --quiet
expect 0 "largest 1.9" "$tutti" eval ramp "${with[@]}"
expect 2 "data.source: there is no data source 'ramp'" "$tutti" eval ramp

# --- what is refused, and leaves nothing behind ---
refused() {  # <part of the sentence> <option>...
  expect 2 "$1" "$tutti" train "${short[@]}" --output never "${@:2}"
  expect 1 "" test -e never
}
expect 2 "once/run.json" "$tutti" eval once
expect 2 "there is no coordinator 'plain', nor any other: tutti has none of its own; --plugin names a library" "$tutti" eval once
refused "there is no coordinator 'plian'; did you mean 'plain'? expected one of plain, solo" "${with[@]}" --set graph.strategy.coordinator=plian
refused "graph.strategy.config.replicas: expected a whole number from 1 to 16, found 0" "${with[@]}" --set graph.strategy.config.replicas=0
refused "--plugin nothing.so: there is no such file" --plugin nothing.so
refused "--plugin $root/README.md is no shared library" --plugin "$root/README.md"
refused "--plugin . is no shared library" --plugin .
# Root may read everything.
cp "$plugin" secret.so && chmod a-r secret.so
[[ $(id -u) == 0 ]] || refused "--plugin secret.so cannot be read: Permission denied" --plugin secret.so
refused "is no plugin: TUTTI_PLUGIN in tutti/train/plugin.hpp makes one" --plugin "$tutti"
head -c 20000 "$plugin" >half.so
refused "--plugin half.so is cut short" --plugin half.so
sed 's/tutti_plugin/tutti_plugim/g' "$plugin" >nameless.so
refused "--plugin nameless.so exports no function tutti_plugin" --plugin nameless.so
version=$("$tutti" --version)
LC_ALL=C sed "s/tutti plugin for $version,/tutti plugin for tutti 0.0.9,/" "$plugin" >old.so
refused "old.so was built for tutti 0.0.9, libtorch " --plugin old.so
refused ", and this is $version, libtorch " --plugin old.so
LC_ALL=C sed 's/\(tutti plugin for .* layout \)......../\100000000/' "$plugin" >layout.so
refused "layout 00000000, and this is $version" --plugin layout.so
refused "the coordinator 'plain' is there already" "${with[@]}" "${with[@]}"
TUTTI_TEST_PLUGIN_THROWS=sentence refused "$plugin: the plugin has stage fright" "${with[@]}"
TUTTI_TEST_PLUGIN_THROWS=number refused "$plugin: what it threw is no std::exception" "${with[@]}"
TUTTI_TEST_PLUGIN_THROWS=static refused "$plugin: the plugin has stage fright before its function" "${with[@]}"
expect 2 "the coordinator 'solo' is for one process, and there are 2" "$tutti" launch --processes 2 -- train "${short[@]}" "${with[@]}" --output never \
  --set graph.strategy.coordinator=solo
expect 1 "" test -e never

# --- what goes wrong later ---
fails=("$tutti" train "${short[@]}" "${with[@]}" --quiet --output fails --set graph.strategy.config.fails_at=12 --set)
expect 1 "tutti: step 12: the baton fell" "${fails[@]}" 'graph.strategy.config.failure="stumbles"'
expect 1 "tutti: step 12: mat1 and mat2 shapes cannot be multiplied" "${fails[@]}" 'graph.strategy.config.failure="breaks_torch"'
expect 0 "accuracy" "$tutti" eval fails "${with[@]}"
expect 1 "tutti: step 12: what was thrown is no std::exception" "${fails[@]}" 'graph.strategy.config.failure="throws_number"'
expect 1 "[1] tutti: step 12: what was thrown is no std::exception" "$tutti" launch --processes 2 -- "${fails[@]:1}" \
  'graph.strategy.config.failure="throws_number"' --set graph.strategy.config.fails_on=1
expect 1 "tutti: what was thrown is no std::exception" "$tutti" train "${short[@]}" "${with[@]}" --output never --set 'graph.strategy.config.failure="make_throws_number"'
refused "graph.strategy.config: what was thrown is no std::exception" "${with[@]}" --set 'graph.strategy.config.failure="resolve_throws_number"'
expect 1 "[1] tutti: step 12: what a user throws" "$tutti" launch --processes 2 -- "${fails[@]:1}" \
  'graph.strategy.config.failure="is_no_tutti"' --set graph.strategy.config.fails_on=1
finish
