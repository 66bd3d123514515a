#!/usr/bin/env bash
# A worker process of an asynchronous parameter server, or one that gossips, is killed, or stopped for longer than the heartbeat:
# the others go on without it, and take over what it was at. Where the first process is killed, the others end and say so.
#
#   asynchronous_kill_test.sh <process_worker> <tutti> <TUTTI_SHARED_MEMORY>
worker=$1 tutti=$2 size=3
export TUTTI_SHARED_MEMORY=$3 TUTTI_HEARTBEAT=3
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"
serve
cd "$scratch" || exit 2

awk 'BEGIN { srand(3); for (i = 0; i < 3000; i++) { k = int(rand() * 3); printf "%f,%f,%f,%d\n", rand() + (k == 0), rand() + (k == 1), rand() + (k == 2), k } }' \
  >"$scratch/points.csv"
run_file() {  # <name> <aggregation>
  cat >"$scratch/$1.json" <<END
{ "seed": 3,
  "data": {"source": "csv", "file": "points.csv", "label": 3, "header": false, "batch_size": 30},
  "graph": {
    "inputs": {"features": [3]},
    "nodes": [{"id": "hidden", "op": "linear", "inputs": ["features"], "units": 256},
              {"id": "act", "op": "tanh", "inputs": ["hidden"]},
              {"id": "logits", "op": "linear", "inputs": ["act"], "units": 3}],
    "outputs": ["logits"],
    "strategy": {"type": "DataParallel", "num_replicas": 4,
                 "aggregation": $2} },
  "loss": "cross_entropy", "metrics": ["accuracy"], "optimizer": {"name": "sgd", "lr": 0.05},
  "train": {"steps": 3000, "evaluate_every": 200}, "output": "$1" }
END
}
for consistency in asynchronous bounded_staleness lock_free; do
  run_file $consistency '{"method": "ParameterServer", "consistency": "'$consistency'"}'
done
for topology in ring complete exponential; do
  run_file gossip_$topology '{"method": "Decentralized", "topology": "'$topology'", "gossip": true}'
done

has_begun() { says 0 '^step 200 '; }

goes_on_without() {  # <consistency> <signal>
  rm -f "$scratch"/rank*
  start_all -- "$tutti" train "$scratch/$1.json"
  within 60 has_begun
  kill "-$2" "${pids[2]}"
  for rank in 0 1; do ends $rank with 0; done
  says 0 'replica 3, of process 2, is gone; the others go on' || fail "rank 0 did not say that replica 3 is gone"
  says 0 '^finished at step 3000' || fail "the run did not come to its end"
  if [[ $2 == STOP ]]; then
    kill -CONT "${pids[2]}"
    ends 2 with 1
  fi
}
goes_on_without asynchronous KILL
goes_on_without bounded_staleness KILL
goes_on_without lock_free KILL
goes_on_without bounded_staleness STOP
goes_on_without gossip_ring KILL
goes_on_without gossip_complete KILL
goes_on_without gossip_exponential STOP

# The run that has lost one goes on as any other.
timeout 60 "$tutti" train "$scratch/bounded_staleness.json" --resume --set train.steps=3600 >"$scratch/rank0" 2>&1
says 0 '^finished at step 3600' || fail "the run did not go on after its loss"

# A launcher that is told so goes on, too.
# shellcheck disable=SC2016
"$tutti" launch --processes $size --keep-going -- sh -c 'echo $$ >"$0.$RANK"; exec "$@"' "$scratch/process" \
  "$tutti" train "$scratch/bounded_staleness.json" >"$scratch/rank0" 2>&1 </dev/null &
launch=$!
within 60 says 0 'step 200 '
kill -KILL "$(<"$scratch/process.2")"
within 60 is_gone $launch
wait $launch || fail "launch did not end well"
says 0 'finished at step 3000' || fail "the run did not come to its end under launch"
says 0 'tutti launch: the others ended well, without rank 2' || fail "launch did not say who was lost"

# One that its heart still beats for, as far as anybody knows, and that answers nobody.
rm -f "$scratch"/rank*
start_all TUTTI_HEARTBEAT=600 -- "$tutti" train "$scratch/gossip_ring.json" --set train.deadline=4
within 60 has_begun
kill -STOP "${pids[1]}"
for rank in 0 2; do ends $rank with 0; done
says 0 'replica 2, of process 1, ' || fail "rank 0 did not say that replica 2 is lost"
says 0 '^finished at step 3000' || fail "the run did not come to its end"
# It was given up, which rank 0 tells, or finds nobody there, whichever it notices first.
kill -CONT "${pids[1]}"
within 30 is_gone "${pids[1]}"

ends_without_first() {  # <run>
  rm -f "$scratch"/rank*
  start_all -- "$tutti" train "$scratch/$1.json" --set train.steps=1000000
  within 60 has_begun
  kill -KILL "${pids[0]}"
  for rank in 1 2; do
    ends $rank with 1
    says $rank 'rank 0' || fail "rank $rank did not say who is lost"
  done
}
ends_without_first asynchronous
ends_without_first gossip_complete

# A signal to end at any process ends the run for all, with a checkpoint, from which others go on; after a loss, too.
rm -f "$scratch"/rank*
long=(train "$scratch/gossip_ring.json" --set train.steps=1000000)
start_all -- "$tutti" "${long[@]}"
within 60 has_begun
kill -KILL "${pids[2]}"
within 30 says 0 'of process 2, is gone'
kill -TERM "${pids[1]}"  # what runs in the background of a script has no Ctrl-C
ends 0 with 130
ends 1 with 143
says 0 '^interrupted' || fail "rank 0 did not say that it was interrupted"
rm -f "$scratch"/rank*
size=2
start_all -- "$tutti" "${long[@]}" --resume
within 60 says 0 '^step '
kill -TERM "${pids[1]}"  # what runs in the background of a script has no Ctrl-C
ends 0 with 130
ends 1 with 143
says 0 '^interrupted' || fail "rank 0 did not say that it was interrupted"
