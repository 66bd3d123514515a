#!/usr/bin/env bash
# Of three processes that are the workers of a pipeline, each is killed at every boundary of a step, an evaluation and a
# checkpoint: the others end by themselves, long before anybody makes them, and name the worker and a node; no process and no
# file is left; and the run goes on to the same bits, on processes or on threads. One that is stopped is named once the
# deadline has passed.
#
#   model_parallel_kill_test.sh <tutti> <model_parallel_worker> <TUTTI_SHARED_MEMORY> <each or turns>
#
# Each worker at every boundary, or another one in turn.
set -uo pipefail
tutti=$(readlink -f -- "$1") worker=$(readlink -f -- "$2")
export TUTTI_SHARED_MEMORY=$3 TUTTI_QUIET=1
which=$4
scratch=$(mktemp -d)
trap 'wait; rm -rf "$scratch"' EXIT
deadline=5 micro_batch=4  # so that there are three of them

fail() {
  touch "$scratch/failed"
  echo "$case: $*"
  cat output
}

# Its exit code is in $code, and how long it took, in seconds, in $took.
launched() {  # <seconds of grace> <argument of the worker>...
  local began=$SECONDS
  timeout -k 5 100 "$tutti" launch --processes 3 --grace "$1" -- "$worker" "${@:2}" >output 2>&1 </dev/null
  code=$?
  took=$((SECONDS - began))
}
digest() { grep -o 'digest [0-9a-f]*' output; }

# What all survivors say names the worker, and what one of them says, the node too.
tell_of() {  # <worker>
  local rank
  for rank in 0 1 2; do
    ((rank == $1)) || grep -q "^\[$rank\] \(tutti\|heard\): .*worker 'w$1'" output || fail "worker $rank did not name it"
  done
  grep -q "^\[.\] tutti: .*worker 'w$1' and the node '[a-z]*[0-2]'" output || fail "nobody named a node"
}
# Of the case's own: memory that it shares has no name, and what it writes is in its folder.
nothing_is_left() {
  ! pgrep -f -- "$worker $PWD/run" >/dev/null || fail "processes are left"
  [[ -z $(find "$TMPDIR" -mindepth 1) ]] || fail "temporary files are left: $(find "$TMPDIR" -mindepth 1)"
  [[ -z $(find run -name '.tutti-*') ]] || fail "temporary files are left: $(find run -name '.tutti-*')"
  [[ -z $(find /dev/shm -newer begun -user "$(id -u)" -name '*tutti*') ]] || fail "shared memory is left"
}
goes_on() {  # <worker>
  if (($1 == 1)); then
    launched 60 "$PWD/run" resume $micro_batch
    ((code == 0)) || fail "it did not go on"
  else
    timeout 60 "$worker" "$PWD/run" resume $micro_batch >output 2>&1 </dev/null || fail "it did not go on"
  fi
  [[ $(digest) == "$expected" ]] || fail "went on to $(digest) rather than $expected"
}

killed() {  # <worker> <moment>
  case="worker $1, killed at $2"
  launched 60 "$PWD/run" begin $micro_batch "$1" 9 "$2"
  ((code == 137)) || fail "ended with $code"
  ((took < 30)) || fail "took $took s"
  tell_of "$1"
  nothing_is_left
  goes_on "$1"
}
# `tutti launch` ends it, once the others have.
stopped() {  # <worker> <moment>
  case="worker $1, stopped at $2"
  launched 3 "$PWD/run" begin $micro_batch "$1" 19 "$2"
  ((code == 1)) || fail "ended with $code"
  ((took >= deadline && took < 30)) || fail "took $took s"
  tell_of "$1"
  nothing_is_left
}
in_folder() {  # <name> <function> <argument>...
  export TMPDIR=$scratch/$1/temporary
  mkdir -p "$TMPDIR" && cd "$scratch/$1" && touch begun || exit 2
  "${@:2}"
  rm -rf "${scratch:?}/$1"
}

case=undisturbed
cd "$scratch" || exit 2
launched 60 "$scratch/run" begin $micro_batch
expected=$(digest)
[[ $code == 0 && $expected == digest\ ???????????????? ]] || { fail "ended with $code"; exit 1; }
turn=0
victims() {  # of the next moment
  turn=$((turn + 1))
  if [[ $which == each ]]; then victims=(0 1 2); else victims=($((turn % 3))); fi
}
for moment in "forward in 0" "forward out 0" "forward in 1" "backward out 0" "backward in 0" "backward in 2" agree \
  "evaluate in" "evaluate out" sum checkpoint; do
  victims
  for victim in "${victims[@]}"; do (in_folder killed killed "$victim" "$moment"); done
done
# At once, since they do little but wait.
for moment in "forward in 1" "backward out 0" agree "evaluate in" checkpoint; do
  victims
  for victim in "${victims[@]}"; do (in_folder "stopped-$victim-${moment// /-}" stopped "$victim" "$moment") & done
  [[ $which != each ]] || wait
done
wait
[[ ! -e $scratch/failed ]] && echo "all went well"
