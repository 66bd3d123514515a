#!/usr/bin/env bash
# Python reads the safetensors that tutti writes, and tutti those of Python; both see the same numbers, in the same order, and
# compute the same checksum.
#
#   tests/unit/safetensors_test.sh <safetensors_worker>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
export PYTHONUTF8=1
worker=$1
peer=$root/tests/unit/safetensors_peer.py

"$worker" write "$scratch/ours"
"$peer" write "$scratch/theirs"
for file in ours theirs; do
  expect 0 "I64 []: -" "$worker" show "$scratch/$file"
  "$worker" show "$scratch/$file" >"$scratch/to_us"
  "$peer" show "$scratch/$file" >"$scratch/to_them"
  expect 0 "" diff "$scratch/to_us" "$scratch/to_them"
done

# The last byte, of the data, is another one.
head -c -1 "$scratch/theirs" >"$scratch/damaged"
printf '\x77' >>"$scratch/damaged"
expect 1 "cannot read $scratch/damaged: it is damaged" "$worker" show "$scratch/damaged"
finish
