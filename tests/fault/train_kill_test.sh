#!/usr/bin/env bash
# `tutti train` is killed at random moments and resumed until it is done, each time on another number of replicas: what it has
# learnt then has the same bits as if nothing had happened. Once also with what depends on the replicas: a compression, and
# gradients of several steps that are added up; and once with federated clients, on another number of threads.
#
#   train_kill_test.sh <tutti> <times> [<seed>]
set -uo pipefail
tutti=$1 times=$2 seed=${3:-$RANDOM}
RANDOM=$seed
echo "seed $seed"
scratch=$(mktemp -d)
process=
clean_up() {
  [[ ! $process ]] || kill -9 "$process" 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
cd "$scratch" || exit 2
failures=0
most_kills=5  # of a run, so that it ends on a busy machine, too

npy_header() {  # <dimensions> of bytes
  local header="{'descr': '|u1', 'fortran_order': False, 'shape': ($1,), }"
  while (((${#header} + 11) % 64)); do header+=' '; done
  printf '\x93NUMPY\x01\x00%b\x00%s\n' "$(printf '\\x%02x' $((${#header} + 1)))" "$header"
}
bytes() {  # <how many> <the largest>, from 1 on
  LC_ALL=C awk -v seed="$seed" -v count="$1" -v most="$2" \
    'BEGIN { srand(seed); for (i = 0; i < count; i++) printf "%c", 1 + int(rand() * most) }'
}
{ npy_header "600, 1, 12, 12"; bytes $((600 * 144)) 255; } >images.npy
{ npy_header 600; bytes 600 9; } >labels.npy
cat >run.json <<'END'
{ "seed": 11,
  "data": {"source": "npy", "inputs": "images.npy", "target": "labels.npy", "batch_size": 64, "split": {"test": 0.2},
           "augment": {"flip": true, "shift": 2}, "standardise": true},
  "graph": {
    "inputs": {"input": [1, 12, 12]},
    "nodes": [
      {"id": "conv",   "op": "conv2d",     "inputs": ["input"], "filters": 8, "kernel": 3},
      {"id": "norm",   "op": "batch_norm", "inputs": ["conv"]},
      {"id": "act",    "op": "relu",       "inputs": ["norm"]},
      {"id": "flat",   "op": "flatten",    "inputs": ["act"]},
      {"id": "drop",   "op": "dropout",    "inputs": ["flat"], "p": 0.3},
      {"id": "logits", "op": "linear",     "inputs": ["drop"], "units": 10}],
    "outputs": ["logits"],
    "strategy": {"type": "DataParallel", "num_replicas": 2,
                 "aggregation": {"method": "AllReduce", "logical_shards": 4}} },
  "loss": "cross_entropy",
  "metrics": ["accuracy"],
  "optimizer": {"name": "adam", "lr": 0.01},
  "schedule": {"name": "one_cycle", "warmup": 10},
  "train": {"steps": 300, "evaluate_every": 20, "clip_norm": 1.0} }
END
compressed=(--set train.accumulate=3 --set 'graph.strategy={"type": "DataParallel", "num_replicas": 2,
  "aggregation": {"method": "AllReduce", "compression": {"TopK": 0.1}}}')
federated=(--set 'train={"evaluate_every": 4}' --set 'schedule="constant"' --set data.batch_size=16 --set 'graph.strategy={"type": "Federated",
  "num_clients": 8, "rounds": 200, "aggregation": {"method": "FedAdam", "lr": 0.01}, "client_selection": {"method": "Random", "fraction": 0.5},
  "compression": {"TopK": 0.2}, "round": {"method": "Synchronous", "replies": 3, "ask_beyond": 1, "late": {"method": "Discount"}}}'
  --set 'clients=[{"speed": {"method": "LogNormal", "median": 10, "sigma": 1}, "dropout": 0.1}]')

fail() {
  failures=$((failures + 1))
  echo "$*"
  tail -n 20 output
}

trained() { timeout 120 "$tutti" train run.json "$@" >output 2>&1 </dev/null; }
weights() {  # <run> <best or last> <file>
  timeout 60 "$tutti" export "$1" "$3" --weights "$2" >output 2>&1 || fail "export of $1"
}
# Of the newest checkpoint; nothing where there is none.
last_step() { find "$1/checkpoints" -name 'step-*' 2>/dev/null | sort | sed -n '$s/.*step-0*\([0-9]*\).*/\1/p'; }  # <run>
# Unless it was killed before it said so.
goes_on_from() { ! grep -qE '^(steps|rounds) ' output || grep -qE "^(steps|rounds) .* of which $1 were taken before" output; }  # <step>

# Fails where the process had ended before.
killed_after() {  # <milliseconds>
  local code
  sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"
  kill -9 "$process" 2>/dev/null
  { wait "$process"; } 2>/dev/null
  code=$?
  process=
  [[ $code == 137 ]] && return
  [[ $code == 0 ]] || fail "it ended with $code"
  return 1
}

survive() {  # <reference> <name> <run> <key of how many> <how many, or nothing for any> <option>...
  local reference=$1 name=$2 run=$3 key=$4 only=$5 kills=0 kind many options before end story="" is_done=""
  shift 5
  while [[ ! $is_done ]]; do
    before=$(last_step "$run")
    many=${only:-$((1 << RANDOM % 3))}
    options=("$@" --set checkpoints.every=3 --set "graph.strategy.$key=$many" --output "$run")
    ((kills == 0)) || options+=(--resume)
    if ((kills == most_kills)); then
      trained "${options[@]}" || fail "$name: it did not end"
      goes_on_from "$before" || fail "$name: it began anew"
      break
    fi
    "$tutti" train run.json "${options[@]}" >output 2>&1 </dev/null &
    process=$!
    # Whatever the machine is doing: the first one is killed in training, all others anywhere.
    if ((kills == 0)); then
      end=$((SECONDS + 60))
      until [[ $(last_step "$run") ]] || ! kill -0 "$process" 2>/dev/null || ((SECONDS > end)); do sleep 0.01; done
      killed_after $((RANDOM % 300)) || is_done=yes
    else
      killed_after $((300 + RANDOM % 1200)) || is_done=yes
    fi
    [[ ! $before ]] || goes_on_from "$before" || fail "$name: it began anew"
    [[ $is_done ]] || kills=$((kills + 1))
    story+=" on $many to step $(last_step "$run"),"
  done
  for kind in last best; do
    weights "$run" $kind killed.safetensors
    cmp "$reference.$kind.safetensors" killed.safetensors || fail "$name, killed $kills times: the $kind weights are others"
  done
  grep -o '"step":[0-9]*' "$run/metrics.jsonl" | cut -d: -f2 | sort -nc || fail "$name: metrics.jsonl goes back"
  [[ -z $(find "$run" -name '.tutti-*') ]] || fail "$name: temporary files are left"
  ((kills > 0)) || fail "$name: it was never killed"
  echo "$name: killed $kills times:$story done on $many"
  rm -rf "$run"
}

reference() {  # <name> <option>...
  local name=$1
  shift
  trained "$@" --output "$name" || fail "$name: it did not end"
  for kind in last best; do weights "$name" $kind "$name.$kind.safetensors"; done
}

reference whole
for ((time = 1; time <= times; time++)); do survive whole "run $time" "killed$time" num_replicas ""; done
reference pressed "${compressed[@]}"
survive pressed "with TopK" killed num_replicas 2 "${compressed[@]}"
reference clients "${federated[@]}"
survive clients "federated" killed threads "" "${federated[@]}"
((failures == 0))
