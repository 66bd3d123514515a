#!/usr/bin/env bash
# What tutti writes for TensorBoard, read by packages of others. They are fetched once for a lock file, and kept in the build.
#
#   tests/tensorboard/independent_reader_test.sh <write_events> <build folder>
# shellcheck disable=SC2317  # functions that `expect` calls
set -uo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=tests/unit/expect.sh
source "$here/../unit/expect.sh"
write_events=$1
key=$(cat "$here/package.json" "$here/package-lock.json" | sha256sum)
packages=$2/npm/tensorboard-${key:0:16}

# None of their programs runs at installation, and nothing is compiled.
fetch() {
  rm -rf "$packages" && mkdir -p "$packages" && cp "$here"/package{,-lock}.json "$packages" && cd "$packages" &&
    npm ci --ignore-scripts --omit=optional --no-audit --no-fund && touch complete
}

if [[ ! -e $packages/complete ]]; then
  expect 0 "" fetch
  ((failures == 0)) || finish
fi
read_events() { node "$here/read_events.cjs" "$packages" "$@"; }

expect 0 "" "$write_events" "$scratch"
events=("$scratch"/run/events.out.tfevents.*)
expect 0 "306 events as expected" read_events "${events[0]}" "$scratch/expected.json"

# The reader is one that notices.
sed 's/"test\/loss"/"test\/lose"/' "$scratch/expected.json" >"$scratch/other.json"
expect 1 "test/lose" read_events "${events[0]}" "$scratch/other.json"
cp "${events[0]}" "$scratch/damaged"
printf 'x' | dd of="$scratch/damaged" bs=1 seek=200 conv=notrunc status=none
expect 1 "Incorrect record" read_events "$scratch/damaged" "$scratch/expected.json"
finish
