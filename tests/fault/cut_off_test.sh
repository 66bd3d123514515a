#!/usr/bin/env bash
# Two hosts, as network namespaces with a cable between them: two ranks on one, one on the other. The cable is pulled in the
# middle of their work, which no connection notices; the heartbeat does, and each side names who is on the other.
#
#   cut_off_test.sh <process_victim>
set -uo pipefail
program=$1
if [[ $(id -u) != 0 && ! ${TUTTI_IN_NAMESPACE:-} ]]; then
  TUTTI_IN_NAMESPACE=yes exec unshare --user --map-root-user --net --mount bash -c 'mount -t tmpfs none /run && exec "$@"' - "$0" "$@"
fi
scratch=$(mktemp -d)
here=tutti-here-$$ there=tutti-there-$$
pids=()
clean_up() {
  local pid
  for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
  ip netns delete "$here" 2>/dev/null
  ip netns delete "$there" 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
fail() {
  echo "$*"
  tail -n 20 "$scratch"/rank*
  exit 1
}

if ! { ip netns add "$here" && ip netns add "$there" &&
  ip -n "$here" link add cable type veth peer name cable netns "$there" &&
  ip -n "$here" address add 10.77.0.1/24 dev cable && ip -n "$there" address add 10.77.0.2/24 dev cable &&
  ip -n "$here" link set cable up && ip -n "$there" link set cable up &&
  ip -n "$here" link set lo up && ip -n "$there" link set lo up; }; then
  fail "the network namespaces could not be made"
fi

for rank in 0 1 2; do
  host=$here
  [[ $rank == 2 ]] && host=$there
  ip netns exec "$host" env RANK=$rank WORLD_SIZE=3 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 TUTTI_SHARED_MEMORY=0 \
    TUTTI_HEARTBEAT=3 timeout 60 "$program" cut 2 7 >"$scratch/rank$rank" 2>&1 &
  pids+=($!)
done

# All are at work.
for ((i = 0; i < 300; i++)); do
  [[ $(cat "$scratch"/rank* | grep -c '^working$') == 3 ]] && break
  sleep 0.1
done
((i < 300)) || fail "the ranks did not meet"
ip -n "$there" link set cable down || fail "the cable could not be pulled"
wait "${pids[@]}"

for rank in 0 1; do
  grep -q '^heard: .*rank 2 was not heard of for 3 s' "$scratch/rank$rank" || fail "rank $rank did not name rank 2"
  grep -q '^went on with 2$' "$scratch/rank$rank" || fail "rank $rank did not go on"
done
grep -qE '^heard: .*rank [01] was not heard of for 3 s' "$scratch/rank2" || fail "rank 2 did not name the others"
echo "each side named the other"
