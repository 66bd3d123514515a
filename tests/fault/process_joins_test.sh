#!/usr/bin/env bash
# Ranks that cannot meet say why, in time.
#
#   process_joins_test.sh <process_worker>
worker=$1 size=3
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"

# How many connections the store has: of TCPStore, two for each rank.
connections() { awk -v port="$(printf ':%04X' "$port")" '$4 == "01" && $2 ~ port "$"' /proc/net/tcp | wc -l; }
have_connected() { (($(connections) == 2 * $1)); }  # <ranks>

serve
touch "$scratch/end"

# On the interface that they were told, by its name or its address.
start_all TUTTI_INTERFACE=lo -- "$worker" work 30 "$scratch/end"
for rank in 0 1 2; do ends $rank with 0; done
connected_on() { (($(awk -v address="$1:" '$4 == "01" && index($2, address) == 1' /proc/net/tcp | wc -l) >= $2)); }
start_all TUTTI_INTERFACE=127.0.0.2 -- "$worker" work 30 "$scratch/later"
within 20 connected_on 0200007F 6  # the accepting ends of two connections between any two of three
touch "$scratch/later"
for rank in 0 1 2; do ends $rank with 0; done
start_all TUTTI_INTERFACE=nowhere7 -- "$worker" work 30 "$scratch/end"
for rank in 0 1 2; do
  ends $rank with 2
  says $rank "misused: 'nowhere7' is neither a network interface nor an address" || fail "rank $rank does not name it"
done

# One never comes. (They were not the first at this store.)
for rank in 0 1; do start $rank -- "$worker" work 2 "$scratch/end"; done
for rank in 0 1; do
  ends $rank with 1
  says $rank "^heard: rank 2 did not come to the meeting place in time (another process came as rank $rank before" ||
    fail "rank $rank does not name rank 2"
done

# They do not agree on how many they are.
for rank in 0 1; do start $rank WORLD_SIZE=$((rank + 2)) -- "$worker" work 20 "$scratch/end"; done
for rank in 0 1; do
  ends $rank with 2
  says $rank "misused: the ranks disagree on how many they are: $((rank + 2)) on rank $rank, $((3 - rank)) on rank $((1 - rank))" ||
    fail "rank $rank does not say who is how many"
done

# The store stops answering.
for rank in 0 1; do start $rank -- "$worker" work 3 "$scratch/end"; done
within 20 have_connected 2
kill -STOP "$server"
for rank in 0 1; do
  ends $rank with 1
  says $rank "^heard: the store at 127.0.0.1:$port, where the ranks meet, does not answer" ||
    fail "rank $rank does not name the store"
done
kill -CONT "$server"

# It dies.
for rank in 0 1; do start $rank -- "$worker" work 60 "$scratch/end"; done
within 20 have_connected 2
kill -9 "$server"
for rank in 0 1; do
  ends $rank with 1
  says $rank "^heard: the store at 127.0.0.1:$port, where the ranks meet, does not answer" || fail "rank $rank does not name the store"
done

# Nobody serves it, or the rank does not come that is to; libtorch's own words stay out of it.
start 1 -- "$worker" work 1 "$scratch/end"
start 2 TORCHELASTIC_USE_AGENT_STORE=False -- "$worker" work 1 "$scratch/end"
for rank in 1 2; do
  ends $rank with 1
  says $rank "^heard: the store at 127.0.0.1:$port, where the ranks meet, cannot be reached: Connection refused" ||
    fail "rank $rank does not name the store"
  says $rank "socket.cpp" && fail "rank $rank says what libtorch tried"
done
says 2 "rank 0, which serves it, may not have come, or have ended" || fail "rank 2 does not say who serves the store"
if says 1 "rank 0"; then fail "rank 1 blames rank 0 for a store that a launcher serves"; fi
