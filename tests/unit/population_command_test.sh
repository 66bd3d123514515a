#!/usr/bin/env bash
# Populations by `tutti train`: the same on any number of threads and processes and after a kill, what is left of them, and what is refused.
#
#   tests/unit/population_command_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export TUTTI_QUIET=1
tutti=$(readlink -f -- "$1")
cd "$scratch" || exit 1

# The irises, with six members.
population='{"type": "PopulationBased", "population_size": 6, "generations": 4, "exploit": {"method": "Truncation", "fraction": 0.3},
  "explore": {"method": "Perturbation", "factor": 0.3}, "generation": {"epochs": 2}}'
search='{"optimizer.lr": {"float": [0.001, 0.3], "scale": "log"}, "data.batch_size": {"int": [4, 32]}}'
short=("$tutti" train "$root/examples/iris.json" --set train={} --set 'data.split={"test": 0.2, "validation": 0.2}'
       --set 'schedule="constant"' --set "graph.strategy=$population" --set "search=$search")

expect 0 "generation 4  validation accuracy best" "${short[@]}" --output once
expect 0 "member  score" "${short[@]}" --output once
expect 0 "finished at generation 4" "${short[@]}" --output once --quiet
expect 0 "24" grep -c '"hyper_parameters"' once/population.jsonl
expect 0 "<svg" head -c 400 once/population.svg
expect 0 '"best_score":' cat once/metrics.jsonl
expect 0 "test loss" "$tutti" eval once
expect 0 "validation loss" "$tutti" eval once --split validation
# What --set says holds for the best member, too.
expect 0 "perplexity" "$tutti" eval once --set 'metrics=["accuracy", "perplexity"]'
expect 0 "test loss" "$tutti" eval once --set graph.strategy.generations=9 --set 'search={"optimizer.lr": {"float": [1, 2]}}'
expect 2 "data.split.test" "$tutti" eval once --set data.split.test=2
expect 2 "has not the weights of this graph" "$tutti" eval once --set graph.hidden.units=5
expect 0 "" "$tutti" export once weights.safetensors
expect 0 "search      optimizer.lr" "$tutti" check once --quick

# <folder>: by itself the schedule of the best reaches the same.
expect_replay() {
  local reached
  expect 0 "finished at step" "$tutti" train "$1/best_run.json"
  reached=$("$tutti" eval "$1" --split validation --json)
  reached=${reached%,\"weights*}
  expect 0 "${reached#*\"rows\"}" "$tutti" eval "$1/best_run" --weights last --split validation --json
}
expect_replay once

# Threads, and being killed again and again, change nothing.
for threads in 1 3; do
  expect 0 "" "${short[@]}" --quiet --output "threads$threads" --set "graph.strategy.threads=$threads"
  expect 0 "" cmp once/population.jsonl "threads$threads/population.jsonl"
done
# <lines> <folder> <option>...: as soon as its log has so many, or with 0 its members have a folder. It is counted where it was training.
landed=0
lines_of() { if [[ -f $1/population.jsonl ]]; then wc -l <"$1/population.jsonl"; else echo 0; fi; }
kill_at() {
  local lines=$1 folder=$2 status=0
  "${short[@]}" --quiet --output "$folder" --resume "${@:3}" >/dev/null 2>&1 &
  job=$!
  until [[ -d $folder/members ]] && (($(lines_of "$folder") >= lines)) || ! kill -0 $job 2>/dev/null; do sleep 0.01; done
  kill -9 $job 2>/dev/null
  wait $job 2>/dev/null || status=$?
  ((status == 137 && $(lines_of "$folder") < 24)) && landed=$((landed + 1))
}
for lines in 0 1 7 13; do kill_at $lines killed; done
expect 0 "" test $landed -ge 2
expect 0 "finished at generation 4" "${short[@]}" --quiet --output killed --resume
expect 0 "" cmp once/population.jsonl killed/population.jsonl
expect 0 "" cmp once/best_run.json <(sed 's|killed/best_run|once/best_run|' killed/best_run.json)

# What was killed in its first generation leaves nothing aside, and what is done has nothing to add.
expect 1 "" test -e killed.1
cp killed/metrics.jsonl before.jsonl
expect 0 "" "${short[@]}" --quiet --output killed --resume
expect 0 "" cmp before.jsonl killed/metrics.jsonl
expect 0 "" sort -nc <(grep -o '"step":[0-9]*' killed/metrics.jsonl | cut -d: -f2)

# Nor do processes, one of which is killed while it trains; the others end, and say who.
launch=("$tutti" launch --processes)
quiet=(-- "${short[@]:1}" --quiet)
for processes in 2 3; do
  expect 0 "finished at generation 4" "${launch[@]}" $processes "${quiet[@]}" --output "processes$processes"
  expect 0 "" cmp once/population.jsonl "processes$processes/population.jsonl"
done
long=(--set graph.strategy.generations=4 --set 'graph.strategy.generation={"epochs": 150}')
"${launch[@]}" 2 "${quiet[@]}" --output lost "${long[@]}" >lost.txt 2>&1 &
job=$!
until [[ -d lost/members ]] || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
kill -9 "$(pgrep -P $job | tail -n 1)"
wait $job && expect 0 "a failure" cat lost.txt
expect 0 "rank 1 was ended by signal 9 (Killed)" cat lost.txt
"${launch[@]}" 2 "${quiet[@]}" --output lost --resume "${long[@]}" >lost.txt 2>&1 &
job=$!
until [[ -s lost/population.jsonl ]] || ! kill -0 $job 2>/dev/null; do sleep 0.02; done
kill -9 "$(pgrep -P $job | tail -n 2 | head -n 1)"
wait $job && expect 0 "a failure" cat lost.txt
expect 0 "rank 0 was ended by signal 9 (Killed)" cat lost.txt
expect 0 "finished at generation 4" "${launch[@]}" 3 "${quiet[@]}" --output lost --resume "${long[@]}"
expect 0 "" "${short[@]}" --quiet --output whole "${long[@]}"
expect 0 "" cmp whole/population.jsonl lost/population.jsonl
expect 2 "threads: expected at least one for each of 2 processes, found 1" "${launch[@]}" 2 "${quiet[@]}" --output never --set graph.strategy.threads=1
expect 2 "population_size: expected at least one for each of 7 processes, found 6" "${launch[@]}" 7 "${quiet[@]}" --output never
expect 1 "" test -e never

# Each at its own pace: all generations of all members.
expect 0 "finished at generation 4" "${short[@]}" --quiet --output free --set 'graph.strategy.pace="asynchronous"'
expect 0 "24" grep -c '"hyper_parameters"' free/population.jsonl
expect_replay free
landed=0
for lines in 1 4 9 15; do kill_at $lines freed --set 'graph.strategy.pace="asynchronous"'; done
expect 0 "" test $landed -ge 2
expect 0 "finished at generation 4" "${short[@]}" --quiet --output freed --resume --set 'graph.strategy.pace="asynchronous"'
expect 0 "24" grep -c '"hyper_parameters"' freed/population.jsonl
expect_replay freed
expect 0 "finished at generation 4" "${launch[@]}" 2 "${quiet[@]}" --output free2 --set 'graph.strategy.pace="asynchronous"'
expect 0 "24" grep -c '"hyper_parameters"' free2/population.jsonl

# Memory is for those that train and a few that are idle, however many there are. Each has 4 MB, and twice as much for its optimizer.
cat >peak.py <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
END
# <members>: how many MiB they take at most.
peak_of() {
  /usr/bin/python3 peak.py "${short[@]}" --quiet --output "peak$1" --set graph.hidden.units=1000 \
    --set 'graph.nodes[1]={"id": "act", "op": "linear", "inputs": ["hidden"], "units": 1000}' --set graph.strategy.generations=2 \
    --set 'graph.strategy.generation={"steps": 2}' --set graph.strategy.threads=2 --set graph.strategy.idle=1 \
    --set "graph.strategy.population_size=$1"
}
few=$(peak_of 4)
many=$(peak_of 24)
echo "4 members: $few MiB, 24: $many MiB"
expect 0 "as much" awk -v few="$few" -v many="$many" 'BEGIN { if (few > 0 && many < few + 80) print "as much" }'

# <error> <option>...: refused, and nothing is left behind.
refused() {
  expect 2 "$1" "${short[@]}" --output never "${@:2}"
  expect 1 "" test -e never
}
refused "search.optimizer.lrr: 0 cannot be: optimizer: unknown key" --set 'search={"optimizer.lrr": {"float": [0, 1]}}'
refused "search.optimizer.lr: the range from 1 to 1 is empty" --set 'search={"optimizer.lr": {"float": [1, 1]}}'
refused "search.optimizer.lr: a log scale begins above 0" --set 'search={"optimizer.lr": {"float": [0, 1], "scale": "log"}}'
refused "it changes the shape of weights" --set 'search={"graph.hidden.units": {"int": [2, 9]}}'
refused "rows for validation" --set 'data.split={"test": 0.2}'
refused "as long as the strategy has generations" --set train.epochs=3
expect 0 "all 4 generations were taken before; graph.strategy.generations may ask for more" "${short[@]}" --output once --resume
expect 2 "train.best_by: the population was trained with" "${short[@]}" --output once --resume --set 'train={"best_by": "loss"}'
expect 2 "is of another search space" "${short[@]}" --output once --resume --set 'search={"optimizer.lr": {"float": [2, 3]}}'
finish
