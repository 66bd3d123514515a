#!/usr/bin/env bash
# `tutti train` and what goes with it, eval, predict and export: every option, runs that are interrupted, resumed, put aside and
# refused, on threads and on processes. A failure is one sentence.
#
#   tests/unit/train_command_test.sh <tutti>
# shellcheck disable=SC2016,SC2317  # what other shells expand; functions that others are told to call
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
program=$(readlink -f -- "$1")
PATH=${program%/*}:$PATH
tutti() { timeout 60 "$program" "$@" </dev/null; }
iris=$root/examples/iris.json
images=$root/examples/fashion_mnist.json
job=
trap '[[ ! $job ]] || kill -9 "$job" 2>/dev/null; wait; rm -rf "$scratch"' EXIT
cd "$scratch" || exit 2
mkdir cases

# --- How things are expected.
wrong() {  # <line> <sentence>
  printf 'line %s: %s\n' "$1" "$2"
  failures=$((failures + 1))
}

# To load libtorch takes most of the time here, so that two go on at once.
pending=()
beside() {  # <function of this file> <argument>...
  ((${#pending[@]} < 2)) || { wait "${pending[0]}"; pending=("${pending[@]:1}"); }
  tell_and_count "${BASH_LINENO[0]}" "$@" &
  pending+=($!)
}
all_beside() {
  ((${#pending[@]} == 0)) || wait "${pending[@]}"
  pending=()
}
tell_and_count() {  # <line> <command>...
  local failures=0 line=$1 told
  shift
  told=$(mktemp -p cases)
  "$@" >"$told" 2>&1
  (($? != 127)) || wrong "$line" "there is no $1"
  ((failures == 0)) || { sed "s/^line [0-9]*:/line $line:/" "$told"; touch cases/failed; }
}

# What a user is told of a failure, which BLAS it is aside.
sentences() { grep -v 'tutti: BLAS: ' "$1"; }  # <file>

# Fails with this exit code, one sentence, and nothing else on either stream.
refused() {  # <exit code> <part of the sentence> <argument of tutti>...
  local code=$1 part=$2 status=0 out err
  shift 2
  out=$(mktemp -p cases) err=$(mktemp -p cases)
  tutti "$@" >"$out" 2>"$err" || status=$?
  [[ $status == "$code" && $(sentences "$err") == "tutti: "*"$part"* && $(sentences "$err" | wc -l) == 1 && ! -s $out ]] ||
    wrong "${BASH_LINENO[0]}" "tutti $*
  expected $code and one sentence with \"$part\"
  got $status, \"$(<"$out")\" and \"$(<"$err")\""
}

# The same of processes: one of them says it, and `tutti launch` adds who failed.
refused_once() {  # <exit code> <part of the sentence> <argument of tutti>...
  local code=$1 part=$2 status=0 err
  shift 2
  err=$(mktemp -p cases)
  tutti launch --processes 2 -- "$@" >"$err" 2>&1 || status=$?
  [[ $status == "$code" && $(grep -c "^\[0\] tutti: .*$part" "$err") == 1 && $(sentences "$err" | grep -c '^\[.\] tutti: ') == 1 ]] ||
    wrong "${BASH_LINENO[0]}" "tutti launch --processes 2 -- $*
  expected $code and \"$part\" once
  got $status and \"$(<"$err")\""
}

# What a run has learnt, beside it.
export_last() { expect 0 "" tutti export "$1" "$1.safetensors" --weights last; }  # <run>
same() { expect 0 "" cmp "$1.safetensors" "$2.safetensors"; }                      # <run> <run>
checkpoints() { find "$1/checkpoints" -name 'step-*' | sed 's/.*step-0*//; s/[.].*//' | sort -n | xargs; }  # <run>
holds() { [[ $(checkpoints "$1") == "$2" ]] || wrong "${BASH_LINENO[0]}" "$1 holds $(checkpoints "$1")"; }  # <run> <steps>
has_checkpoints() { [[ -d $1/checkpoints && $(checkpoints "$1") ]]; }                # <run>
are_json() { python3 -c 'import json, sys; [json.loads(line)["event"] for line in open(sys.argv[1])]' "$1"; }  # <file>

within() {  # <seconds> <command>...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { wrong "${BASH_LINENO[0]}" "not in time: $*"; return 1; }
    sleep 0.02
  done
}
is_gone() { [[ ! -e /proc/$1 || $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) == Z* ]]; }  # <process>

# A run in the background, from its first checkpoint on. Its job is one of its own, or it would ignore SIGINT.
begin() {  # <run> <command>...
  local run=$1
  shift
  set -m
  "$@" >"$run.out" 2>"$run.err" </dev/null &
  job=$!
  set +m
  within 60 has_checkpoints "$run"
}
end_with() {  # <signal> <exit code>
  local code
  kill -"$1" "$job"
  within 60 is_gone "$job" || kill -9 "$job"
  { wait "$job"; } 2>/dev/null
  code=$?
  job=
  [[ $code == "$2" ]] || wrong "${BASH_LINENO[0]}" "expected exit code $2, got $code"
}

npy() {  # <type> <dimensions> <bytes>: all of them zero
  local header="{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
  while (((${#header} + 11) % 64)); do header+=' '; done
  printf '\x93NUMPY\x01\x00%b\x00%s\n' "$(printf '\\x%02x' $((${#header} + 1)))" "$header"
  head -c "$3" /dev/zero
}

# --- What is told of misuse; nothing is written then.
never=(--output never)
two=(--set 'graph.strategy={"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}')
beside expect 0 "--resume" tutti train --help
beside refused 2 "expected a run file: tutti train run.json" train "${never[@]}"
beside refused 2 "there is no such file" train nothing.json "${never[@]}"
mkdir empty
beside refused 2 "empty is a folder without a run in it: there is no run.json" train empty "${never[@]}"
beside refused 2 "did you mean --resume?" train "$iris" "${never[@]}" --resum
beside refused 2 "--quiet excludes --json" train "$iris" "${never[@]}" --quiet --json
beside refused 2 'train: unknown key "epoch"; did you mean "epochs"?' train "$iris" "${never[@]}" --set seed=3 --set train.epoch=2
beside refused 2 'unknown key "trane"' train "$iris" "${never[@]}" --set trane.epochs=2
beside refused 2 'train.epochs: expected a whole number from 1 to 1000000000, found "many"' \
  train "$iris" "${never[@]}" --set train.epochs=many
beside refused 2 "expected a path and a value, as in train.epochs=5" train "$iris" "${never[@]}" --set train.epochs
beside refused 2 "output: $iris is a file, expected a folder" train "$iris" --output "$iris"
beside refused 2 "--trace nowhere/trace.json: there is no folder" train "$iris" "${never[@]}" --trace nowhere/trace.json
beside refused 2 "--from nothing.safetensors: there is no such file" train "$iris" "${never[@]}" --from nothing.safetensors

# Data that is missing or not as it should be.
beside refused 2 "--set data.file=nothing.csv: data.file: there is no file 'nothing.csv'" train "$iris" "${never[@]}" --set data.file=nothing.csv
printf 'a,b,kind\n1,2,x\n3,4,y\n5,x\n' >short.csv
beside refused 2 "short.csv:4: expected 3 columns, found 2" train "$iris" "${never[@]}" --set data.file=short.csv --set data.label=kind
printf 'a,b,kind\n1,2,x\n3,4,y\n5,6,x\n' >narrow.csv
beside refused 2 "graph.inputs.features: the data has rows of [2], found [4]" \
  train "$iris" "${never[@]}" --set data.file=narrow.csv --set data.label=kind
npy '<f4' '6, 4' 96 >inputs.npy
npy '|u1' '5,' 5 >targets.npy
beside refused 2 "targets.npy: expected 6 rows, as many as inputs.npy has, found 5" train "$iris" "${never[@]}" \
  --set 'data={"source": "npy", "inputs": "inputs.npy", "target": "targets.npy", "batch_size": 2}'

# Strategies that cannot be carried out so.
beside refused 2 "graph.strategy.coordinator: there is no coordinator 'gossip', nor any other" train "$iris" "${never[@]}" \
  --set 'graph.strategy={"type": "Custom", "coordinator": "gossip"}'
beside refused_once 2 "the strategy Local is for one process, and there are 2" train "$iris" "${never[@]}"
beside refused_once 2 "num_replicas: expected at least one for each of 2 processes, found 1" \
  train "$iris" "${never[@]}" "${two[@]}" --set graph.strategy.num_replicas=1
beside refused_once 2 "--from nothing.safetensors: there is no such file" train "$iris" "${never[@]}" "${two[@]}" --from nothing.safetensors

# One process that cannot read what the others can says so itself.
alone() {
  local status=0
  tutti launch --processes 2 -- sh -c 'run=$1; [ "$RANK" = 0 ] || run=nothing.json; shift; exec tutti train "$run" "$@"' - \
    "$iris" "${never[@]}" "${two[@]}" >alone.out 2>&1 || status=$?
  [[ $status == 2 && $(grep -c '^\[1\] tutti: cannot read nothing.json: there is no such file' alone.out) == 1 &&
    $(sentences alone.out | grep -c '^\[.\] tutti: ') == 1 ]] || wrong "$LINENO" "got $status and \"$(<alone.out)\""
}
beside alone

# --- A run, and again from what it has written down, wherever that is read.
tutti train "$iris" --output first --set train.epochs=3 --set 'optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9}' \
  --set data.batch_size=12 >first.out 2>first.err
for part in "strategy  Local" "steps     30 of 12 rows" "step 10  epoch 1  test loss " "step 30  checkpoint first/checkpoints/step-" \
  "finished at step 30, in " "best: test accuracy "; do
  expect 0 "$part" cat first.out
done
expect 1 "" grep -v '^tutti: BLAS: ' first.err
for part in '"lr": 0.05' '"dampening": 0.0' '"batch_size": 12' '"epochs": 3' "\"file\": \"$root/examples/data/iris.csv\""; do
  expect 0 "$part" cat first/run.json
done
all_beside
expect 1 "" test -e never
export_last first
mkdir elsewhere
again() {
  expect 0 "finished at step 30" env -C elsewhere timeout 60 "$program" train ../first/run.json --output ../again
  export_last again
  same first again
}
beside again
# Words in any order.
beside expect 0 "finished at step 8, in" tutti train --quiet --output order --set train.epochs=1 "$iris"

# --- What it tells: lines, one, or JSON.
quiet() {
  tutti train "$iris" --output quiet --set train.epochs=1 --quiet >quiet.out 2>quiet.err
  expect 0 "finished at step 8, in 0:00, loss " cat quiet.out
  expect 0 "1 quiet.out" wc -l quiet.out
}
beside quiet
json() {
  expect 0 "" bash -c '"$@" >json.out 2>json.err' - timeout 60 "$program" train "$iris" --output json --set train.epochs=2 --json
  expect 0 "" are_json json.out
  for part in '"event":"run_started"' '"event":"evaluation_ended","step":16' '"event":"checkpoint_written"' '"reason":"finished"'; do
    expect 0 "$part" cat json.out
  done
}
beside json

# --- Resumed: what is done already, what was never begun, and what goes on.
resumed() {
  expect 0 "warning: there is nothing to resume in resumed: beginning" tutti train "$iris" --output resumed --set train.epochs=1 --resume
  expect 0 "all 8 steps were taken before" tutti train "$iris" --output resumed --set train.epochs=1 --resume
  expect 0 "steps     16 of 16 rows, of which 8 were taken before" tutti train "$iris" --output resumed --set train.epochs=2 --resume
  expect 0 "16 steps were taken before, and the run has 8: nothing was left to do" \
    tutti train "$iris" --output resumed --set train.epochs=1 --resume
  refused 2 "the checkpoint is not of this run: 'hidden.weight' is [16, 4] there, expected [5, 4]" \
    train "$iris" --output resumed --set train.epochs=3 --resume --set graph.hidden.units=5
}
beside resumed

# A run that stopped early has ended; what is best by another measure begins anew.
ended() {
  expect 0 "stopped early at step 24" tutti train "$iris" --output ended --set optimizer.lr=0 --set 'train.early_stopping={"patience": 2}'
  expect 0 "stopped early at step 24" tutti train ended --resume
}
beside ended
other_measure() {
  expect 0 "best: test loss " tutti train "$iris" --output measure --set optimizer.lr=0 --set train.epochs=1 --set train.best_by=loss
  expect 0 "after step 16" tutti train measure --set train.epochs=2 --set train.best_by=accuracy --resume
}
beside other_measure

# --- Put aside: the run before is not lost, and is still a run.
put_aside() {
  local run
  for run in 1 2; do expect 0 "" tutti train "$iris" --output aside --set "train.epochs=$run"; done
  expect 0 "had an earlier run in it, which is now aside.2" tutti train "$iris" --output aside/ --set train.epochs=3
  holds aside.1 "8"
  holds aside.2 "8 16"
  expect 0 "aside.1/checkpoints/step-000000008" tutti eval aside.1 --weights last
  mv aside moved
  expect 0 "moved/checkpoints/step-000000024" tutti eval moved --weights last
}
beside put_aside

# --- Which checkpoints stay. Nothing is learnt here, so that the first evaluation is the best.
still=(--set optimizer.lr=0 --set train.epochs=4)
kept() {
  expect 0 "best: test accuracy" tutti train "$iris" --output kept "${still[@]}" --set checkpoints.keep_last=1
  holds kept "8 32"
  expect 0 "step-000000008" readlink kept/checkpoints/best.safetensors
  expect 0 "step-000000032" readlink kept/checkpoints/last.safetensors
  expect 0 "" tutti train "$iris" --output kept_last "${still[@]}" --set checkpoints.keep_last=3 --set checkpoints.keep_best=false \
    --set checkpoints.every=5
  holds kept_last "25 30 32"
}
beside kept
all_beside

# --- What was learnt: evaluated, computed, written.
beside expect 0 "(30 rows, kept/checkpoints/step-000000008.safetensors)" tutti eval kept
beside expect 0 "(30 rows, kept/checkpoints/step-000000032.safetensors)" tutti eval kept --weights last
beside expect 0 "train loss " tutti eval "$iris" --weights first.safetensors --split train
beside expect 0 '"split":"test","rows":30,"loss":' tutti eval kept --json
beside refused 2 "--split: the data has no rows for validation" eval kept --split validation
beside refused 2 "--split: expected train, validation or test, found 'tests'" predict kept --split tests
beside refused 2 "there is no checkpoint in never" eval "$iris" --set output=never
beside refused 2 "--weights nothing.safetensors: there is no such file" eval kept --weights nothing.safetensors
beside refused 2 "hidden.weight" eval kept --set graph.hidden.units=5
beside refused 2 "there is no replica 1 with parameters of its own" export kept kept.npz --replica 1
beside refused 2 "expected a file that ends in .safetensors or .npz, found weights.pt" export kept weights.pt
beside refused 2 "expected a file to write" export kept
beside refused 1 "cannot write nowhere/weights.npz" export kept nowhere/weights.npz
printf 'sepal_length,sepal_width,petal_length,petal_width\n5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n' >rows.csv
predicted() {
  expect 0 "row,class,probability
0,setosa,0." tutti predict first --input rows.csv
  expect 0 "first.csv: 30 rows, with first/checkpoints/step-" tutti predict first --to first.csv
  expect 0 "row,class,probability,target" head -1 first.csv
  expect 0 "31 first.csv" wc -l first.csv
}
beside predicted
npy '<f4' '3, 4' 48 >rows.npy
beside expect 0 "
2," tutti predict kept --input rows.npy
npy '<f4' '3, 5' 60 >wide.npy
beside refused 2 "wide.npy, features: expected rows of [4], found [5]" predict kept --input wide.npy
beside refused 2 "narrow.csv: there is no column 'sepal_length'" predict kept --input narrow.csv
beside refused 2 "--to: expected a file that ends in .csv or .npy, found rows.txt" predict kept --to rows.txt

# --- Begun with weights of others, which stay as they are where nothing is learnt.
begun() {
  local run
  expect 0 "finished at step 8" tutti train "$iris" --output from_file "${still[@]}" --set train.epochs=1 --from first.safetensors
  expect 0 "finished at step 8" tutti train "$iris" --output from_run "${still[@]}" --set train.epochs=1 \
    --from first/checkpoints/last.safetensors
  for run in from_file from_run; do
    export_last "$run"
    same "$run" first
  done
}
beside begun
unfit() {
  expect 2 "'hidden.weight' is [16, 4]" tutti train "$iris" "${never[@]}" --from first.safetensors --set graph.hidden.units=5
  refused 2 "first.safetensors" train "$iris" "${never[@]}" --from first.safetensors --set graph.hidden.units=5
}
beside unfit

# --- Checkpoints that are damaged are told, and those before them used.
damaged() {
  local file=damaged/checkpoints/step-000000032.safetensors
  expect 0 "" tutti train "$iris" --output damaged --set train.epochs=4 --set checkpoints.keep_last=4
  export_last damaged
  cp damaged.safetensors whole.safetensors
  printf x | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 9)) conv=notrunc status=none
  tutti eval damaged --weights last >damaged.out 2>&1
  expect 0 "cannot read $file: it is damaged" cat damaged.out
  expect 0 ", damaged/checkpoints/step-000000024.safetensors)" cat damaged.out
  expect 0 "warning: cannot read $file: it is damaged" tutti train damaged --resume
  export_last damaged
  same damaged whole
  truncate -s 100 "$file" damaged/checkpoints/step-000000024.safetensors
  expect 0 "of which 16 were taken before" tutti train damaged --resume
  export_last damaged
  same damaged whole
  for file in damaged/checkpoints/step-*; do : >"$file"; done
  expect 1 "no checkpoint in damaged can be read" tutti eval damaged
}
beside damaged

# --- Disks that are full.
in_a_small_place() {  # <command>...
  mkdir -p small
  unshare --user --map-root-user --mount bash -c 'mount -t tmpfs -o size=300k none small && exec "$@"' - "$@"
}
full() {
  local status=0
  in_a_small_place timeout 60 "$program" train "$images" --output small/run --set 'train={"steps": 2}' \
    >full.out 2>full.err || status=$?
  expect 0 "" test "$status" = 1
  expect 0 "tutti: cannot write small/run/checkpoints/step-000000002.safetensors: No space left on device" sentences full.err
  expect 0 "" test "$(sentences full.err | wc -l)" = 1
  expect 1 "the output could not be written" bash -c '"$@" >/dev/full' - timeout 60 "$program" train "$iris" --output full --set train.epochs=1
}
beside full
full_once() {
  local status=0
  in_a_small_place timeout 60 "$program" launch --processes 2 -- train "$images" --output small/run \
    --set 'train={"steps": 9, "evaluate_every": 3}' >full_once.out 2>&1 || status=$?
  expect 0 "" test "$status" = 1
  expect 0 "" test "$(grep -c 'No space left on device' full_once.out)" = 1
}
beside full_once

# --- The same bits on threads and on processes, whoever started them.
train_shards() {  # <name> <replicas> <command before tutti's verb>...
  local name=$1 replicas=$2
  shift 2
  expect 0 "finished at step 24" timeout 60 "$@" train "$iris" --output "$name" --set train.epochs=3 \
    "${two[@]}" --set "graph.strategy.num_replicas=$replicas" --set graph.strategy.aggregation.logical_shards=4
  export_last "$name"
}
beside train_shards threads1 1 "$program"
beside train_shards threads2 2 "$program"
beside train_shards processes2 2 "$program" launch --processes 2 --
beside train_shards processes4 4 "$program" launch --processes 2 --
beside train_shards torchrun2 2 "$root/tests/support/start_ranks.sh" torchrun 2 "$program" "$program"
all_beside
for name in threads2 processes2 processes4 torchrun2; do same threads1 $name; done
expect 1 "" test -e never

# --- One run at a time has a folder; interrupted, it says how to go on.
begin busy "$program" train "$iris" --output busy --set train.epochs=1000000 --json
beside refused 2 "another run is writing to busy" train "$iris" --output busy
beside refused 2 "another run is writing to busy" train busy --resume
beside expect 0 "busy/checkpoints/step-" tutti eval busy
beside refused_once 2 "another run is writing to busy" train "$iris" "${two[@]}" --output busy
all_beside
end_with TERM 143
expect 0 "" are_json busy.out
expect 0 '"reason":"interrupted"' tail -1 busy.out
expect 0 "to go on: tutti train $iris --set train.epochs=1000000 --output busy --resume" sentences busy.err

steps=(--set 'train={"steps": 3000, "evaluate_every": 100}')
begin "a run" "$program" train "$iris" "${steps[@]}" --output "a run"
end_with INT 130
expect 1 "" sentences "a run.err"
expect 0 " of 3000 steps are done; to go on: tutti train " tail -1 "a run.out"
expect 0 "interrupted at step $(checkpoints "a run" | sed 's/.* //')," cat "a run.out"
uninterrupted() {
  expect 0 "finished at step 3000" tutti train "$iris" "${steps[@]}" --output uninterrupted
  export_last uninterrupted
}
beside uninterrupted
goes_on() {
  expect 0 "finished at step 3000" timeout 60 bash -c "$(sed -n '$s/.*to go on: //p' "a run.out")"
  export_last "a run"
}
beside goes_on
all_beside
same "a run" uninterrupted

begin launched "$program" launch --processes 2 -- train "$iris" "${two[@]}" --output launched --set train.epochs=1000000
end_with INT 130
expect 0 " steps are done; to go on: tutti " cat launched.out
expect 1 "" grep '\] tutti: [^B]' launched.err

# One of several processes is killed: the job says which, and goes on later as if nothing had happened.
begin killed "$program" launch --processes 2 -- train "$iris" "${two[@]}" "${steps[@]}" --output killed
victim=$(pgrep -P "$job" -f -- train | sed -n 2p)
kill -9 "$victim"
within 60 is_gone "$job" || kill -9 "$job"
{ wait "$job"; } 2>/dev/null
status=$?
job=
[[ $status != 0 ]] || wrong "$LINENO" "expected a failure"
expect 0 "was ended by signal 9" cat killed.err
for name in killed unharmed; do
  expect 0 "finished at step 3000" tutti launch --processes 2 -- train "$iris" "${two[@]}" "${steps[@]}" --output $name --resume
  export_last $name
done
same killed unharmed
[[ ! -e cases/failed ]] || failures=$((failures + 1))
finish
