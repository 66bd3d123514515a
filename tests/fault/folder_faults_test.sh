#!/usr/bin/env bash
# Processes that share nothing but a folder: each has a network of its own, with nobody else in it, where the system permits that.
# They are killed and stopped in the middle of all-reduces, and the disk is full.
#
#   folder_faults_test.sh <folder_worker> <runs> [<seed>]
if [[ ! ${TUTTI_IN_NAMESPACE:-} ]]; then
  user=()
  [[ $(id -u) == 0 ]] || user=(--user --map-root-user)
  if unshare "${user[@]}" --net --mount true 2>/dev/null; then
    TUTTI_IN_NAMESPACE=yes exec unshare "${user[@]}" --mount "$0" "$@"
  fi
  echo "This system permits no namespaces: the ranks share their network, and no disk is full."
  TUTTI_IN_NAMESPACE=no
fi
worker=$1 runs=$2 seed=${3:-$RANDOM} size=3 port=0
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"
RANDOM=$seed
echo "seed $seed"
[[ $TUTTI_IN_NAMESPACE == yes ]] && on=(unshare --net)
folder=$scratch/job
small=$scratch/small
trap 'umount "$small" 2>/dev/null; clean_up' EXIT

# All at work.
begin() {  # <heartbeat>
  rm -f "$scratch/end"
  start_all -- "$worker" "$folder" "$1" "$scratch/end"
  local rank
  for rank in 0 1 2; do within 30 says $rank '^working$'; done
}
go_on_without() {  # <victim> <why>
  local rank
  for rank in 0 1 2; do
    [[ $rank == "$1" ]] && continue
    within 30 says $rank "^heard: .*rank $1 $2"
    ends $rank with 1
    says $rank '^went on with 2$' || fail "rank $rank did not go on"
  done
}
network_of() { readlink "/proc/$1/ns/net"; }  # <process>

# Nobody fails, and nothing is left.
begin 30
if [[ $TUTTI_IN_NAMESPACE == yes ]]; then
  networks=$(for process in $$ "${pids[@]}"; do network_of "$process"; done | sort -u | wc -l)
  [[ $networks == 4 ]] || fail "the ranks share a network"
fi
touch "$scratch/end"
for rank in 0 1 2; do
  ends $rank with 0
  says $rank '^all was right$' || fail "rank $rank was wrong"
done
[[ ! -e $folder ]] || fail "something is left: $(find "$folder")"

# One is killed, at a random moment. The others hear it long before the heartbeat, and leave nothing either; but for the lock, which
# is rank 0's to remove, or the next job's.
for ((run = 1; run <= runs; run++)); do
  victim=$((RANDOM % 3))
  begin 100
  sleep "0.0$((RANDOM % 100))"
  kill -9 "${pids[victim]}"
  go_on_without $victim "has died: its process has ended"
  ends $victim with 137
  [[ $victim == 0 ]] && rm "$folder/tutti.lock" && rmdir "$folder"
  [[ ! -e $folder ]] || fail "something is left: $(find "$folder")"
done

# All are. The next job finds what they left, and removes it.
begin 30
kill -9 "${pids[@]}"
for rank in 0 1 2; do ends $rank with 137; done
[[ $(find "$folder" -name 'here-*' | wc -l) == 3 ]] || fail "this test looks for the wrong thing: $(find "$folder")"
begin 30
touch "$scratch/end"
for rank in 0 1 2; do ends $rank with 0; done
rmdir "$folder" || fail "something is left: $(find "$folder")"

# One is stopped for longer than the heartbeat, which is long enough that a busy machine is not taken for a stopped process.
# When it goes on, it finds out that it was given up.
begin 3
kill -STOP "${pids[1]}"
go_on_without 1 "was not heard of for 3 s"
is_stopped "${pids[1]}" || fail "rank 1 was not stopped"
kill -CONT "${pids[1]}"
ends 1 with 1
says 1 '^heard: ' || fail "rank 1 did not say what it heard"
[[ ! -e $folder ]] || fail "something is left: $(find "$folder")"

# Each is on a host of its own, as far as it can tell. Nobody else knows of its locks, so the heartbeat tells who was killed; what
# that one had there stays, for the next job to remove.
if [[ $TUTTI_IN_NAMESPACE == yes ]]; then
  rm -f "$scratch/end"
  for rank in 0 1 2; do
    cat /proc/sys/kernel/random/uuid >"$scratch/boot$rank"
    # shellcheck disable=SC2016  # it is for the shell that is started
    on=(unshare --net --mount bash -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' "$scratch/boot$rank")
    start $rank -- "$worker" "$folder" 3 "$scratch/end"
  done
  on=(unshare --net)
  for rank in 0 1 2; do within 30 says $rank '^working$'; done
  kill -9 "${pids[2]}"
  go_on_without 2 "was not heard of for 3 s"
  ends 2 with 137
  [[ $(find "$folder" -name 'here-*' | wc -l) == 1 ]] || fail "this test looks for the wrong thing: $(find "$folder")"
  begin 30
  touch "$scratch/end"
  for rank in 0 1 2; do ends $rank with 0; done
  rmdir "$folder" || fail "something is left: $(find "$folder")"
fi

# The disk is full, so that the long all-reduce does not go through.
if [[ $TUTTI_IN_NAMESPACE == yes ]]; then
  mkdir "$small"
  mount -t tmpfs -o size=300k none "$small" || fail "the small disk could not be mounted"
  start_all -- "$worker" "$small/job" 30 "$scratch/end2"
  for rank in 0 1 2; do
    ends $rank with 1
    says $rank '^heard: ' || fail "rank $rank did not say what it heard"
  done
  grep -q "cannot write $small/job/.*: No space left on device" "$scratch"/rank* || fail "nobody says that the disk is full"
  [[ ! -e $small/job ]] || fail "something is left: $(find "$small")"
fi
echo "all went well"
