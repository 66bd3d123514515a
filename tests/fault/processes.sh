# shellcheck shell=bash
# Sourced by tests of jobs whose processes they start, stop and kill one by one.
#
#   serve                                      a store, at $port
#   start 0 TUTTI_SHARED_MEMORY=0 -- program   a rank of $size, in the background; its output is in $scratch/rank0
#   within 20 says 0 "working"
#   ends 0 with 1
#
# Whoever sources it says what $size is, and where it serves, what $worker (process_worker) is.
set -uo pipefail
: "${size:?}"
scratch=$(mktemp -d)
pids=()
server=
on=()  # what the ranks are started by
clean_up() {
  local pid
  for pid in "${pids[@]}" $server; do kill -9 "$pid" 2>/dev/null; done
  rm -rf "$scratch"
}
trap clean_up EXIT

fail() {
  echo "$*"
  tail -n 20 "$scratch"/rank* 2>/dev/null
  exit 1
}

# Looks until a command succeeds, for at most so many seconds.
within() {  # <seconds> <command>...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || fail "not in time: $*"
    sleep 0.02
  done
}

state_of() { sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null; }  # <process>
is_stopped() { [[ $(state_of "$1") == T ]]; }                      # <process>
is_gone() { [[ $(state_of "$1") == @(|Z) ]]; }                     # <process>
says() { grep -q -- "$2" "$scratch/rank$1"; }                      # <rank> <pattern>

serve() {
  "${worker:?}" serve >"$scratch/port" &
  server=$!
  within 20 test -s "$scratch/port"
  port=$(<"$scratch/port")
}

start() {  # <rank> [<variable>=<value>]... -- <program> [<argument>]...
  local rank=$1 variables=()
  shift
  while [[ $1 != -- ]]; do
    variables+=("$1")
    shift
  done
  shift
  "${on[@]}" env RANK="$rank" WORLD_SIZE="$size" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" TORCHELASTIC_USE_AGENT_STORE=True \
    "${variables[@]}" "$@" >"$scratch/rank$rank" 2>&1 </dev/null &
  pids[rank]=$!
}

# All at once; `start` is given what follows.
start_all() {
  local rank
  for ((rank = 0; rank < size; rank++)); do start "$rank" "$@"; done
}

ends() {  # <rank> with <exit code>
  local code
  within 30 is_gone "${pids[$1]}"
  wait "${pids[$1]}"
  code=$?
  [[ $code == "$3" ]] || fail "rank $1 ended with $code rather than $3"
}
