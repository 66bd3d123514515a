#!/usr/bin/env bash
# The set-up that ./tutti, ./check and ./bench share, on machines that are played: stand-ins for dpkg-query, apt-get, sudo, id,
# cmake and ninja stand first on the PATH and write down what they were asked.
# shellcheck disable=SC2317  # functions that `expect` calls
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"

# A stand-in. What it does may use $machine/installed, the list of installed packages.
stand_in() {  # <command> <what it does>
  printf '#!/usr/bin/env bash\necho "%s $*" >>"%s/calls"\n%s\n' "$1" "$machine" "$2" >"$machine/bin/$1"
  chmod +x "$machine/bin/$1"
}

# A machine where the user is `who`, with the given packages installed, and a copy of the repository's set-up on it.
machine() {  # <root|user> <package>...
  local who=$1
  shift
  machine=$scratch/$RANDOM$RANDOM
  repository="$machine/a place/tutti"
  mkdir -p "$machine/bin" "$repository/setup"
  cp "$root"/{tutti,check,bench,CMakePresets.json} "$repository/"
  cp "$root/setup/setup.sh" "$repository/setup/"
  printf '# a comment\nbuild one compiles\nbuild two links well\ncheck three tests\nfetch five fetches\n' >"$repository/setup/packages.txt"
  printf '%s\n' "$@" >"$machine/installed"
  : >"$machine/calls"
  # shellcheck disable=SC2016
  stand_in dpkg-query 'while read -r package provided; do
    case $package in
      *-removed) echo "${package%-removed} config-files " ;;
      *) echo "$package installed $provided" ;;
    esac
  done <"'"$machine"'/installed"'
  stand_in id "echo $([[ $who == root ]] && echo 0 || echo 1000)"
  # shellcheck disable=SC2016
  stand_in apt-get 'while (($#)); do
    if [[ $1 == install ]]; then for package in "${@:2}"; do echo "$package" >>"'"$machine"'/installed"; done; fi; shift
  done; echo chatter'
  stand_in sudo "[[ \$1 == -n ]] && exit 0; exec \"\$@\""
  stand_in cmake "mkdir -p \"$repository/build/release\""
  # shellcheck disable=SC2016
  stand_in ninja 'echo "[1/2] compiling"; mkdir -p "$2/bin"; printf "#!/bin/sh\necho \"ran \$*\"\n" >"$2/bin/tutti"
    chmod +x "$2/bin/tutti"; echo "[2/2] linking"'
}

tutti() { PATH="$machine/bin:$PATH" "$repository/tutti" "$@"; }
tutti_standard_output() { tutti "$@" 2>/dev/null; }
calls_of() { grep "^$1 " "$machine/calls"; }
number_of_calls() { grep -c "^$1 " "$machine/calls"; }

machine root one two
expect 0 "ran train a b" tutti train "a b"
expect 1 "" calls_of apt-get

machine root one
expect 0 "  two                    links well" tutti --version
expect 0 "install --no-install-recommends -y two" calls_of apt-get
expect 1 "" calls_of sudo

# Standard output belongs to the verb; the second call neither asks for packages nor configures.
machine root one
[[ $(tutti_standard_output x) == "ran x" ]] || expect 0 "" false
expect 0 "ran y" tutti y
expect 0 "1" number_of_calls cmake
expect 0 "2" number_of_calls dpkg-query
echo 'build four new' >>"$repository/setup/packages.txt"
expect 0 "  four                   new" tutti z

# A package that comes as a part of another.
machine root one "three four (= 2), two (= 1), five"
expect 0 "ran" tutti
expect 1 "" calls_of apt-get

# A verb that needs more, and a suite, on a machine without npm.
machine_without_npm() {
  machine root one two
  mkdir "$machine/some"
  for program in bash env readlink mkdir flock cat rm stat grep mktemp chmod ninja cmake; do
    [[ -e $machine/bin/$program ]] || ln -s "$(command -v "$program")" "$machine/some/$program"
  done
}
without_npm() { PATH="$machine/bin:$machine/some" "$repository/$1" "${@:2}"; }  # <tutti|bench> <argument>...
machine_without_npm
expect 0 "ran train" without_npm tutti train
expect 1 "" calls_of apt-get
expect 0 "  five                   fetches" without_npm tutti fetch
expect 0 "ran fetch" without_npm tutti fetch mnist
machine_without_npm
stand_in cmake "mkdir -p \"$repository/build/bench\""
# shellcheck disable=SC2016
stand_in ninja 'mkdir -p "$2/bin"; for suite in train federated; do
  printf "#!/bin/sh\necho \"ran $suite \$*\"\n" >"$2/bin/bench_$suite"; chmod +x "$2/bin/bench_$suite"
done'
expect 0 "ran train --json" without_npm bench train --json
expect 1 "" calls_of apt-get
expect 0 "  five                   fetches" without_npm bench federated
expect 0 "ran federated --json" without_npm bench federated --json
machine root one two
stand_in npm ""
expect 0 "ran fetch" tutti fetch
expect 1 "" calls_of apt-get

# A package whose settings alone are left is not installed.
machine root one two-removed
expect 0 "links well" tutti

machine user one
expect 0 "ran" tutti
expect 0 "sudo env DEBIAN_FRONTEND=noninteractive apt-get" calls_of sudo

# Where nothing can be installed the packages are listed, and the command for it.
machine user one
stand_in sudo 'exit 1'
expect 2 "sudo sh -c 'apt-get update && apt-get install --no-install-recommends -y two'" tutti
machine root one
stand_in apt-get 'echo no network; exit 100'
expect 2 "no network" tutti
expect 2 "  two                    links well" tutti
machine root one
stand_in apt-get 'exit 0'
expect 2 "apt-get left these out" tutti

# A failed build shows what the compiler said, and ends with 1.
machine root one two
stand_in ninja 'echo "[1/2] compiling"; echo "FAILED: main.o"; echo "main.cpp:1: error: what"; exit 1'
expect 1 "main.cpp:1: error: what" tutti
machine root one two
stand_in cmake 'echo "CMake Error: what"; exit 1'
expect 1 "CMake Error: what" tutti
expect 1 "CMake Error: what" tutti

# Called through a link, from elsewhere.
machine root one two
ln -s "$repository/tutti" "$machine/link"
through_a_link() { cd / && PATH="$machine/bin:$PATH" "$machine/link" "$@"; }
expect 0 "ran there" through_a_link there

# Misuse of the other two.
expect 2 "There is no suite nothing" "$repository/bench" nothing
expect 0 "all-reduce" "$repository/bench"
expect 2 "does not know --nothing" "$repository/check" --nothing
expect 2 "Stages:" "$repository/check" --only nothing
expect 0 "layering" "$repository/check" --help

finish
