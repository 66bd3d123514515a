#!/usr/bin/env bash
# Kills or stops one process of a job at a random moment, again and again: every survivor must name it, and go on.
#
#   process_faults_test.sh <tutti> <process_victim> <runs> [<seed>]
set -uo pipefail
tutti=$1 program=$2 runs=$3 seed=${4:-$RANDOM}
RANDOM=$seed
echo "seed $seed"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

for ((run = 1; run <= runs; run++)); do
  processes=$((2 + RANDOM % 4)) victim=$((RANDOM % processes)) draw=$RANDOM
  options=()
  ((RANDOM % 2)) && options+=(--no-shared-memory)
  # Who is killed is noticed at once: no heartbeat comes into it within the grace that the others have.
  how=kill expected=137 heartbeat=100 grace=10 why="has died"
  # Noticing one that is stopped takes as long as its heartbeat, so there are fewer of them. It is long enough that a busy
  # machine is not taken for a stopped process.
  ((run % 4 == 0)) && how=stop expected=1 heartbeat=3 grace=3 why="was not heard of"
  timeout 120 "$tutti" launch --processes "$processes" --heartbeat "$heartbeat" --grace "$grace" "${options[@]}" -- \
    "$program" "$how" "$victim" "$draw" >"$scratch/output" 2>&1 </dev/null
  code=$?
  heard=$(grep -c "\\] heard: .*rank $victim $why" "$scratch/output")
  went_on=$(grep -c '\] went on with '$((processes - 1))'$' "$scratch/output")
  if ((code != expected || heard != processes - 1 || went_on != processes - 1)) || grep -q WRONG "$scratch/output"; then
    failures=$((failures + 1))
    echo "run $run failed: $how rank $victim of $processes ${options[*]} (draw $draw): exit code $code, $heard heard, $went_on went on"
    cat "$scratch/output"
  fi
done
echo "$((runs - failures)) of $runs runs went well"
((failures == 0))
