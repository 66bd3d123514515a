#!/usr/bin/env bash
# `tutti launch` gives each rank its environment, passes output, input and signals on, ends with the right exit code and
# sentence, and leaves no process behind.
#
#   tests/unit/launch_test.sh <the program>
# shellcheck disable=SC2317  # functions that others are told to call
set -uo pipefail
# Jobs of their own: otherwise what is started in the background ignores SIGINT.
set -m
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$(readlink -f -- "$1")
launch=("$tutti" launch)
cd "$scratch" || exit 2
unset OMP_NUM_THREADS OPENBLAS_NUM_THREADS PYTHONUNBUFFERED

# Looks until a command succeeds, for at most so many seconds.
within() {  # <seconds> <command>...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    if ((SECONDS >= end)); then
      printf 'line %s: not in time: %s\n' "${BASH_LINENO[0]}" "$*"
      failures=$((failures + 1))
      return 1
    fi
    sleep 0.02
  done
}

is_gone() {  # <process>...; one that nobody has waited for yet is gone too
  local pid state
  for pid in "$@"; do
    state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null)
    [[ -z $state || $state == Z* ]] || return 1
  done
}
is_stopped() {  # <process>...
  local pid
  for pid in "$@"; do [[ $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) == T* ]] || return 1; done
}
goes_on() {  # <process>...
  local pid
  for pid in "$@"; do ! is_gone "$pid" && ! is_stopped "$pid" || return 1; done
}
holds() { [[ -e $2 && $(wc -l <"$2") -ge $1 ]]; }  # <lines> <file>

# Ends a background launch and gives its exit code.
code_of() {  # <process>
  within 60 is_gone "$1" || kill -9 "$1"
  wait "$1"
  code=$?
}

script() {  # <name>, and the script on standard input
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}

# --- Misuse: one sentence, exit code 2, nothing started.
script touches <<<'touch started'
expect_misuse() {  # <part of the sentence> <argument>...
  local part=$1
  shift
  expect 2 "tutti: " "${launch[@]}" "$@"
  expect 2 "$part" "${launch[@]}" "$@"
  expect 1 "" test -e started
}
expect 0 "PYTHONUNBUFFERED" "${launch[@]}" --help
expect 0 "starts the ranks" "$tutti" --help
expect 1 "standard output could not be written" bash -c '"$@" >/dev/full' - "${launch[@]}" --processes 2 -- echo hi
expect_misuse "write '--' before" --processes 2 ./touches
expect_misuse "write '--' before"
expect_misuse "nothing to run after '--'" --processes 2 --
expect_misuse "say how many" -- ./touches
expect_misuse "there is no option -np; did you mean --processes?" -np 2 -- ./touches
expect_misuse "--processes: expected a whole number from 1 to 1024, found '0'" --processes 0 -- ./touches
expect_misuse "found 'abc'" --processes abc -- ./touches
expect_misuse "found '-1'" --processes=-1 -- ./touches
expect_misuse "found '2x'" --processes 2x -- ./touches
expect_misuse "--port: expected a whole number from 0 to 65535, found '65536'" --processes 2 --port 65536 -- ./touches
expect_misuse "--grace: expected a number of seconds" --processes 2 --grace=-1 -- ./touches
expect_misuse "--grace: expected a number of seconds" --processes 2 --grace nan -- ./touches
expect_misuse "--heartbeat: expected a number of seconds" --processes 2 --heartbeat 0 -- ./touches
expect_misuse "did you mean --processes?" --proceses 2 -- ./touches
expect_misuse "there is no program './missing'" --processes 2 -- ./missing
expect_misuse "'missing-program' is no verb of tutti, and no program on the PATH" --processes 2 -- missing-program
expect_misuse "did you mean 'bench'?" --processes 2 -- bensh
expect_misuse "is a folder" --processes 2 -- ./
echo text >file
expect_misuse "'./file' is not executable" --processes 2 -- ./file
printf '#!/no/such/interpreter\n' >broken
chmod +x broken
expect_misuse "cannot start ./broken" --processes 2 -- ./broken
expect_misuse "192.0.2.1" --processes 2 --address 192.0.2.1 -- ./touches

# --- The environment.
script tells <<'END'
printf '%s\n' "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $TORCHELASTIC_USE_AGENT_STORE" \
  "address $MASTER_ADDR" "restarts $TORCHELASTIC_RESTART_COUNT" "launcher $TUTTI_LAUNCHER" \
  "threads $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $PYTHONUNBUFFERED" \
  "others ${OMPI_COMM_WORLD_RANK-none} ${PMI_RANK-none} ${SLURM_PROCID-none} ${TUTTI_STORE-none}" \
  "told ${TUTTI_INTERFACE-nothing} ${TUTTI_SHARED_MEMORY-nothing} ${TUTTI_HEARTBEAT-nothing}" \
  "port $MASTER_PORT" "job $TORCHELASTIC_RUN_ID" "words $*" >"environment.$RANK"
END
RANK=7 OMPI_COMM_WORLD_RANK=5 PMI_RANK=5 SLURM_PROCID=5 TUTTI_STORE=x:1 OMP_NUM_THREADS=3 \
  expect 0 "" "${launch[@]}" --processes 3 -- ./tells "two words" ''
for rank in 0 1 2; do
  expect 0 "$rank 3 $rank 3 0 True
address 127.0.0.1
restarts 0
launcher launch
threads 3 1 1
others none none none none
told nothing nothing nothing
port " cat "environment.$rank"
  expect 0 "" cmp <(tail -3 environment.0) <(tail -3 "environment.$rank")
  expect 0 "words two words " cat "environment.$rank"
done
expect 0 "" "${launch[@]}" --processes 1 --address 127.0.0.3 --interface lo --no-shared-memory --heartbeat 0.5 -- ./tells
expect 0 "address 127.0.0.3" cat environment.0
expect 0 "told lo 0 0.5" cat environment.0
# A verb is run by the program itself.
expect 0 "[1] usage: tutti launch" bash -c '"$@" | sort' - "${launch[@]}" --processes 2 -- launch --help
expect 0 "[0] suites:" "${launch[@]}" --processes 1 -- bench

# --- Output: whole lines, none lost, each with its rank, on the stream it was printed to.
script prints <<'END'
i=0
while [ $i -lt 2000 ]; do
  echo "out $RANK $i"
  echo "err $RANK $i" >&2
  i=$((i + 1))
done
printf 'no end'
END
"${launch[@]}" --processes 4 -- ./prints >out 2>err
expect 0 "8004 out" wc -l out
expect 0 "8000 err" wc -l err
for rank in 0 1 2 3; do
  expect 0 "" cmp <(grep -F "[$rank] out" out) <(seq 0 1999 | sed "s/^/[$rank] out $rank /")
  expect 0 "" cmp <(grep -F "[$rank] err" err) <(seq 0 1999 | sed "s/^/[$rank] err $rank /")
  expect 0 "1" grep -cFx "[$rank] no end" out
done
# Both streams to one place, through a pipe that is read slowly: still whole lines.
"${launch[@]}" --processes 4 -- ./prints 2>&1 | while IFS= read -r line; do printf '%s\n' "$line"; done >both
expect 0 "16004 both" wc -l both
expect 1 "" grep -vE '^\[([0-3])\] ((out|err) \1 [0-9]+|no end)$' both
expect 0 "16000" bash -c '"$@" 2>&1 | grep -cE "^(out|err) [0-3] [0-9]+$"' - "${launch[@]}" --processes 4 --no-prefix -- ./prints
# Also where a line is more than a pipe takes at once.
script prints_much <<'END'
line=$(head -c 9000 /dev/zero | tr '\0' "$RANK")
for i in 1 2 3 4 5 6 7 8 9 10; do
  echo "$line"
  echo "$line" >&2
done
END
"${launch[@]}" --processes 4 -- ./prints_much 2>&1 | while IFS= read -r line; do printf '%s\n' "$line"; done >both
expect 0 "80 both" wc -l both
expect 1 "" grep -vE '^\[(0\] 0+|1\] 1+|2\] 2+|3\] 3+)$' both
expect 0 "$((80 * (4 + 9000 + 1))) both" wc -c both
# A line without end comes in pieces.
expect 0 "200000" bash -c '"$@" | tr -cd x | wc -c' - "${launch[@]}" --processes 1 -- sh -c 'head -c 200000 /dev/zero | tr "\0" x'
expect 0 "4" bash -c '"$@" | grep -c "^\[0\] x"' - "${launch[@]}" --processes 1 -- sh -c 'head -c 200000 /dev/zero | tr "\0" x'
# Nobody reads any more.
"${launch[@]}" --processes 2 --grace 60 -- sh -c 'while :; do echo line; done' 2>err | head -1 >out
status=("${PIPESTATUS[@]}")
expect 0 "line" cat out
expect 0 "standard output could not be written (Broken pipe)" cat err
expect 0 "" test "${status[0]}" = 1

# --- Input: rank 0's.
# shellcheck disable=SC2016
printf 'first\nsecond\n' | "${launch[@]}" --processes 2 -- sh -c 'while read -r line; do echo "got $line"; done; echo done' | sort >out
expect 0 "[0] done
[0] got first
[0] got second
[1] done" cat out

# --- Exit codes and sentences.
expect 0 "" "${launch[@]}" --processes 3 -- true
# shellcheck disable=SC2016
expect 3 "tutti launch: rank 1 ended with exit code 3 after 0." "${launch[@]}" --processes 3 --grace 60 -- sh -c '[ $RANK != 1 ] || exit 3'
# shellcheck disable=SC2016
expect 3 " s; the others ended well" "${launch[@]}" --processes 3 --grace 60 -- sh -c '[ $RANK != 1 ] || exit 3'
expect 4 "rank 0 ended with exit code 4" "${launch[@]}" --processes 1 -- sh -c 'exit 4'
# shellcheck disable=SC2016
expect 137 "rank 2 was ended by signal 9 (Killed) after 0." "${launch[@]}" --processes 3 --grace 0.2 -- sh -c '[ $RANK != 2 ] || kill -9 $$; exec sleep 100'
# shellcheck disable=SC2016
expect 137 "; the others were ended" "${launch[@]}" --processes 3 --grace 0.2 -- sh -c '[ $RANK != 2 ] || kill -9 $$; exec sleep 100'
script stops_itself <<'END'
if [ "$RANK" = 1 ]; then
  echo $$ >stops
  kill -STOP $$
fi
until [ -s stops ] && grep -q ') T' "/proc/$(cat stops)/stat"; do :; done
exit 3
END
expect 3 "ended with exit code 3 after" "${launch[@]}" -n 2 --grace 0.2 -- ./stops_itself
rm -f stops
expect 3 ", while rank 1 was stopped; rank 1 was ended" "${launch[@]}" --processes 2 --grace 0.2 -- ./stops_itself
# shellcheck disable=SC2016
expect 2 "rank 0 ended with exit code 2 after" "${launch[@]}" --processes 2 --grace 0 -- sh -c '[ $RANK = 1 ] || exit 2; exec sleep 100'
# One is killed, and another fails because of it, in time to say so; the third ended well.
script consequence <<'END'
case $RANK in
  0)
    until [ -e failed ] && grep -q '^State:.Z' "/proc/$(cat failed)/status"; do sleep 0.02; done
    echo "rank 1 was lost" >&2
    exit 9
    ;;
  1) echo $$ >failing && mv failing failed && kill -9 $$ ;;
esac
END
for part in "[0] rank 1 was lost" "rank 1 was ended by signal 9 (Killed) after" "; rank 0 failed after it"; do
  expect 137 "$part" "${launch[@]}" --processes 3 --grace 60 -- ./consequence
  rm failed
done
# Others go on without a rank that a signal ends, if they are told to; not without rank 0, nor where one fails by itself.
script loses_one <<'END'
case $RANK in
  0)
    until [ -e lost ]; do sleep 0.02; done
    sleep 0.5
    echo "here to the end"
    ;;
  2) echo $$ >losing && mv losing lost && kill -9 $$ ;;
esac
END
for part in "tutti launch: rank 2 was ended by signal 9 (Killed) after 0." "s; the others go on" "[0] here to the end" \
  "tutti launch: the others ended well, without rank 2"; do
  expect 0 "$part" "${launch[@]}" --processes 3 --keep-going --grace 0.1 -- ./loses_one
  rm lost
done
# shellcheck disable=SC2016
expect 137 "rank 0 was ended by signal 9 (Killed) after 0." "${launch[@]}" --processes 3 --keep-going --grace 0.2 -- sh -c '[ $RANK != 0 ] || kill -9 $$; exec sleep 100'
# shellcheck disable=SC2016
expect 3 "rank 1 ended with exit code 3 after 0." "${launch[@]}" --processes 2 --keep-going --grace 0.2 -- sh -c '[ $RANK != 1 ] || exit 3; exec sleep 100'
# shellcheck disable=SC2016
expect 4 "; rank 1 failed before" "${launch[@]}" --processes 2 --keep-going -- sh -c '[ $RANK = 0 ] || kill -9 $$; sleep 0.5; exit 4'
# Who was stopped, and fails when it goes on, was perhaps given up by the others.
# shellcheck disable=SC2016
expect 0 "rank 1 ended with exit code 3 after" "${launch[@]}" --processes 3 --keep-going -- sh -c 'case $RANK in
  0) until [ -e woke ]; do sleep 0.02; done; sleep 0.3 ;;
  1) echo $$ >sleeper.new && mv sleeper.new sleeper; kill -STOP $$; touch woke; exit 3 ;;
  2) until [ -s sleeper ] && grep -q "(.*) T" "/proc/$(cat sleeper)/stat"; do sleep 0.02; done; sleep 0.3; kill -CONT "$(cat sleeper)" ;;
esac'
# When rank 0 has ended well, nobody is waited for who may be stopped for ever.
# shellcheck disable=SC2016
expect 0 "the others ended well, without rank 1" "${launch[@]}" --processes 2 --keep-going --grace 0.2 -- sh -c '[ $RANK = 0 ] || kill -STOP $$'
# One that does not listen is killed, and what it printed before is not lost.
script deaf <<'END'
trap '' TERM
echo "$RANK: cannot hear"
echo ready >>ready
[ "$RANK" != 0 ] || { until [ "$(wc -l <ready)" = 2 ]; do sleep 0.02; done; exit 6; }
while :; do sleep 0.1; done
END
expect 6 "[1] 1: cannot hear" "${launch[@]}" --processes 2 --grace 0.2 -- ./deaf
rm ready

# --- Signals.
script waits <<'END'
trap 'echo "$RANK got USR1"; echo x >>usr1' USR1
trap 'echo "$RANK got TERM"; exit 0' TERM
sleep 1000 &
echo $! >>helpers
echo $$ >>ranks
while :; do wait $!; done
END
begin() {  # <option>...: the job above, in the background, once all of it runs
  rm -f ranks helpers usr1
  "${launch[@]}" --processes 3 "$@" -- ./waits >out 2>err &
  job=$!
  within 20 holds 3 ranks
  mapfile -t pids < <(cat ranks helpers)
}
begin --grace 60
kill -USR1 $job
within 20 holds 3 usr1
kill -TSTP $job
within 20 is_stopped $job "${pids[@]}"
kill -CONT $job
within 20 goes_on $job "${pids[@]}"
kill -TERM $job
code_of $job
expect 0 "" test $code = 0  # all of them ended well
for rank in 0 1 2; do
  expect 0 "[$rank] $rank got TERM" cat out
  expect 0 "[$rank] $rank got USR1" cat out
done
within 20 is_gone "${pids[@]}"

begin --grace 60
kill -INT $job
code_of $job
expect 0 "" test $code = 130
expect 0 "tutti launch: interrupted by signal 2 (Interrupt) after" cat err
within 20 is_gone "${pids[@]}"

# What is ignored at the start, as under nohup, stays ignored.
trap '' HUP
begin --grace 60
trap - HUP
kill -HUP $job
kill -USR1 $job
within 20 holds 3 usr1
expect 0 "" goes_on "${pids[@]}"
kill -TERM $job
code_of $job
expect 0 "" test $code = 0

# Those that do not listen: a second one kills.
rm -f ranks
# shellcheck disable=SC2016
"${launch[@]}" --processes 2 --grace 60 -- sh -c 'trap "echo heard >>heard" INT TERM; echo $$ >>ranks; while :; do sleep 0.05; done' >out 2>err &
job=$!
within 20 holds 2 ranks
mapfile -t pids <ranks
kill -INT $job
within 20 holds 2 heard
expect 1 "" is_gone "${pids[@]}"
kill -TERM $job
code_of $job
expect 0 "" test $code = 130
within 20 is_gone "${pids[@]}"

# --- Nothing is left behind.
# A rank is killed from outside.
begin --grace 0.1
kill -9 "${pids[1]}"
code_of $job
expect 0 "" test $code = 137
expect 0 "was ended by signal 9 (Killed)" cat err
within 20 is_gone "${pids[@]}"
# launch is killed: the ranks with it, and what they started in their groups.
begin
kill -9 $job
within 20 is_gone $job "${pids[@]}"
{ wait $job; } 2>/dev/null
# All ended well, and left somebody: in their group, and in a session of its own.
rm -f left
script leaves <<'END'
sleep 1000 &
echo $! >>left
setsid sleep 1000 &
echo $! >>left
until grep -q sleep "/proc/$!/comm"; do sleep 0.02; done
echo bye
END
expect 0 "[1] bye" "${launch[@]}" --processes 2 -- ./leaves
mapfile -t pids <left
expect 0 "" test ${#pids[@]} = 4
within 20 is_gone "${pids[@]}"

# --- A rank that ends well does not disturb the others; two jobs do not disturb each other.
script apart <<'END'
echo "$MASTER_PORT" >"port.$1.$RANK"
[ "$RANK" != 0 ] || exit 0
until [ -e "go.$1" ]; do sleep 0.02; done
echo "end of $1"
END
"${launch[@]}" --processes 2 -- ./apart one >out.one 2>&1 &
one=$!
"${launch[@]}" --processes 2 -- ./apart two >out.two 2>&1 &
two=$!
within 20 holds 1 port.one.1
within 20 holds 1 port.two.1
expect 1 "differ" cmp port.one.1 port.two.1
touch go.one
code_of $one
expect 0 "" test $code = 0
expect 0 "[1] end of one" cat out.one
expect 1 "" is_gone $two
touch go.two
code_of $two
expect 0 "" test $code = 0
expect 0 "[1] end of two" cat out.two
finish
