#!/usr/bin/env bash
# ModelParallel with DataStore: workers that share nothing but a folder train to the bits that threads with Direct train to. Each
# process has a network of its own, with nobody else in it, where the system permits that. They are killed and stopped.
#
#   data_store_test.sh <tutti>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
program=$(readlink -f -- "$1")
scratch=$(mktemp -d)
pids=()
clean_up() {
  ((${#pids[@]} == 0)) || kill -9 "${pids[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
cd "$scratch" || exit 2
failures=0
fail() {
  failures=$((failures + 1))
  printf 'line %s: %s\n' "${BASH_LINENO[0]}" "$*"
  tail -n 5 rank*.log 2>/dev/null
}

own_network=(unshare --net)
[[ $(id -u) == 0 ]] || own_network=(unshare --user --map-root-user --net)
if ! "${own_network[@]}" true 2>/dev/null; then
  echo "This system permits no namespaces: the processes share their network, and do not use it."
  own_network=()
fi

# Three workers, the first of which is visited twice, and a skip over one of them.
cat >run.json <<END_OF_RUN
{ "seed": 7,
  "data": {"source": "csv", "file": "$root/examples/data/iris.csv", "label": "species", "batch_size": 16,
           "split": {"test": 0.2}, "standardise": true},
  "graph": {
    "inputs": {"features": [4]},
    "nodes": [
      {"id": "hidden", "op": "linear", "inputs": ["features"], "units": 16},
      {"id": "act",    "op": "tanh",   "inputs": ["hidden"]},
      {"id": "middle", "op": "linear", "inputs": ["act"], "units": 16},
      {"id": "both",   "op": "add",    "inputs": ["middle", "hidden"]},
      {"id": "logits", "op": "linear", "inputs": ["both"], "units": 3}],
    "outputs": ["logits"],
    "strategy": {"type": "ModelParallel",
                 "partitions": [{"node_ids": ["hidden", "both"], "target": {"WorkerId": "w0"}},
                                {"node_ids": ["act", "middle"], "target": {"WorkerId": "w1"}},
                                {"node_ids": ["logits"], "target": {"WorkerId": "w2"}}],
                 "communication": {"protocol": "DataStore"}} },
  "loss": "cross_entropy",
  "optimizer": {"name": "adam", "lr": 0.01},
  "train": {"epochs": 10, "deadline": 20} }
END_OF_RUN
train() { timeout 60 "$program" train run.json "$@" >threads.log 2>&1 </dev/null; }  # <option>...
start() {  # <option>...: as processes, one with each rank
  local rank
  pids=()
  for rank in 0 1 2; do
    RANK=$rank WORLD_SIZE=3 "${own_network[@]}" timeout 60 "$program" train run.json "$@" >rank$rank.log 2>&1 </dev/null &
    pids+=($!)
  done
}
# The codes with which they ended.
ended() {
  local pid
  codes=()
  for pid in "${pids[@]}"; do
    wait "$pid" 2>/dev/null
    codes+=($?)
  done
  pids=()
  code="${codes[*]}"
}
weights() { timeout 60 "$program" export "$1" "$1.safetensors" >/dev/null 2>&1 || fail "no weights of $1"; }  # <run>
same() {  # <run>: as the one with Direct
  weights "$1"
  cmp direct.safetensors "$1.safetensors" || fail "the weights of $1 are others"
}
is_clean() { [[ -z $(find . -name 'tutti.*' -o -name store) ]]; }
until_it_trains() {  # <run>
  local end=$((SECONDS + 30))
  until grep -q '"step":10' "$1/metrics.jsonl" 2>/dev/null; do
    ((SECONDS < end)) || return 1
    sleep 0.02
  done
}

train --set graph.strategy.communication.protocol=Direct --output direct || fail "Direct: $(<threads.log)"
weights direct

# Threads of one process, into a folder of its own that is there already and stays.
mkdir there
touch there/mine
train --set graph.strategy.communication.path=there --output threads || fail "threads: $(<threads.log)"
grep -q "everything through files in $PWD/there" threads.log || fail "$(<threads.log)"
same threads
[[ $(ls -A there) == mine ]] || fail "left: $(ls -A there)"

# Processes that share nothing else; twice, so that the first run is put aside while the second one's store is in use.
for run in first second; do
  start --output shared
  ended
  [[ $code == "0 0 0" ]] || fail "$run: ended with $code"
  same shared
  is_clean || fail "$run: left $(find . -name 'tutti.*' -o -name store)"
done
[[ -e shared.1/checkpoints/last.safetensors ]] || fail "the first run is gone"

# One is killed; those that are left end, and say who it was. What is left then the next run removes.
for victim in 0 1 2; do
  start --output "killed$victim" --set train.epochs=100000
  until_it_trains "killed$victim" || fail "it did not begin"
  if ((${#own_network[@]})); then
    [[ $(for pid in $$ "${pids[@]}"; do readlink "/proc/$pid/ns/net"; done | sort -u | wc -l) == 4 ]] || fail "they share a network"
  fi
  pkill -9 -P "${pids[victim]}"
  ended
  for rank in 0 1 2; do
    [[ $rank == "$victim" ]] && continue
    [[ ${codes[rank]} != 0 ]] || fail "rank $rank ended well, and w$victim was killed"
  done
  cat rank*.log | grep -q "worker 'w$victim'\|rank $victim" || fail "nobody names w$victim"
  start --output "killed$victim" --resume --set train.steps=20
  ended
  [[ $code == "0 0 0" ]] || fail "after w$victim was killed: ended with $code"
  is_clean || fail "after w$victim was killed: left $(find . -name 'tutti.*' -o -name store)"
done

# One is stopped: the others do not wait for ever.
start --output stopped --set train.epochs=100000 --set train.deadline=1
until_it_trains stopped || fail "it did not begin"
victim=$(pgrep -P "${pids[1]}")
kill -STOP "$victim"
began=$SECONDS
wait "${pids[0]}" "${pids[2]}"
((SECONDS - began < 30)) || fail "they waited for $((SECONDS - began)) s"
cat rank0.log rank2.log | grep -q "worker 'w1'" || fail "nobody names w1"
kill -KILL "$victim"
ended
rm -rf stopped

# Another run in the same folder is refused at once, and the first one goes on.
start --output twice --set train.epochs=40
until_it_trains twice || fail "it did not begin"
began=$SECONDS
! train --output twice || fail "it was not refused"
grep -q "is in use\|another run is writing" threads.log || fail "$(<threads.log)"
((SECONDS - began < 20)) || fail "it took $((SECONDS - began)) s"
ended
[[ $code == "0 0 0" ]] || fail "beside another run: ended with $code"

# Who waits for the others can be told to end.
RANK=0 WORLD_SIZE=3 "$program" train run.json --output alone >rank0.log 2>&1 </dev/null &
pids=($!)
for ((i = 0; i < 500; i++)); do [[ -e alone/store/tutti.call ]] && break; sleep 0.02; done
kill "${pids[0]}"
began=$SECONDS
ended
((SECONDS - began < 5)) || fail "it did not end"
rm -rf alone

# What is refused.
refused() {  # <sentence> <path>
  ! train --output mine --set "graph.strategy.communication.path=$2" || fail "not refused: $1"
  grep -qF "$1" threads.log || fail "expected \"$1\", found \"$(<threads.log)\""
}
refused "graph.strategy.communication.path: expected a folder of its own, found the output folder" mine
refused "graph.strategy.communication.path: expected a folder of its own, found that of the checkpoints" mine/checkpoints/store
touch file
refused "$PWD/file" file
refused "cannot make the folder $PWD/file/deep" file/deep/store
[[ ! -e mine ]] || fail "something was written"
((failures == 0))
