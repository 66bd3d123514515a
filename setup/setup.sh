# shellcheck shell=bash
# What ./tutti, ./check and ./bench do before their own work: install packages, configure, build. Sourced by them, with
# `root` set to the top of the repository.
#
#   need_packages build check
#   configure release -DTUTTI_BUILD_TESTS=ON
#   build release tutti
#
# Whatever is said here goes to standard error: standard output belongs to the command that was asked for. When nothing
# has to be done, nothing is said, and few processes are started, so that a call costs no noticeable time.
# Exits 1 where a build fails and 2 where packages are missing and cannot be installed.

: "${root:?}"

say() { printf '%s\n' "$*" >&2; }

die() {  # <exit code> <sentence>
  say "$2"
  exit "$1"
}

# One at a time for each thing that is set up; a second call waits for the first, and says so where it takes a while.
lock() {  # <what>
  if ! { mkdir -p "$root/build" && exec {lock_fd}>"$root/build/$1.lock"; } 2>/dev/null; then
    die 2 "tutti cannot write to $root/build, where it builds itself."
  fi
  flock --timeout 1 "$lock_fd" && return
  say "waiting for another call that is setting up $1 ..."
  flock "$lock_fd"
}

unlock() { exec {lock_fd}>&-; }

# Runs a command that talks a lot; shows what it said only when it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# --- packages ---------------------------------------------------------------------------------------------------------

# Fills `missing` with the packages of the given sets that are not installed, in the list's order, and `why` for each.
find_missing_packages() {  # <set>...
  local set package reason name status provided
  local -a wanted=()
  local -A installed=()
  missing=()
  declare -gA why=()
  while read -r set package reason; do
    [[ " $* " == *" $set "* ]] || continue
    wanted+=("$package")
    why[$package]=$reason
  done < <(grep -v '^#' "$root/setup/packages.txt")
  # A package may come as a part of another, which says so: npm in builds of nodejs that are not Debian's.
  if command -v dpkg-query >/dev/null; then
    while read -r name status provided; do
      [[ $status == installed ]] || continue
      for name in "$name" ${provided//,/ }; do installed[$name]=yes; done
    done < <(dpkg-query --show --showformat='${Package} ${db:Status-Status} ${Provides}\n' 2>/dev/null)
  fi
  for package in "${wanted[@]}"; do
    [[ ${installed[$package]:-} ]] || missing+=("$package")
  done
}

list_missing_packages() {
  local package
  for package in "${missing[@]}"; do
    printf '  %-22s %s\n' "$package" "${why[$package]}" >&2
  done
}

cannot_install() {  # <reason>
  say "tutti cannot install the packages it needs: $1"
  say "These are missing:"
  list_missing_packages
  say "On Debian 12 this installs them:"
  local command="apt-get update && apt-get install --no-install-recommends -y ${missing[*]}"
  if [[ $(id -u) != 0 ]]; then
    if command -v sudo >/dev/null; then command="sudo sh -c '$command'"; else command="su -c '$command'"; fi
  fi
  die 2 "  $command"
}

install_missing_packages() {
  command -v apt-get >/dev/null || cannot_install "this machine has no apt-get."
  local -a as_root=(env)
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || cannot_install "this user is not root, and there is no sudo."
    if ! sudo -n true 2>/dev/null; then
      [[ -t 0 && -t 2 ]] || cannot_install "this user is not root, and sudo wants a password."
      sudo -v || cannot_install "sudo refused."
    fi
    as_root=(sudo env)
  fi
  say "installing packages that tutti needs:"
  list_missing_packages
  as_root+=(DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  # One source of many that cannot be reached need not matter; the installation will tell.
  quietly "${as_root[@]}" update || say "apt-get update failed; trying with the package lists as they are"
  quietly "${as_root[@]}" install --no-install-recommends -y "${missing[@]}" || cannot_install "apt-get failed."
}

# Asking dpkg costs more than a whole call should, so the answer is kept until dpkg's database or the list changes.
need_packages() {  # <set>...
  local sets=$* list database key kept="" stamp
  stamp=$root/build/packages-${sets// /-}.stamp
  IFS= read -rd '' list <"$root/setup/packages.txt" || true
  database=$(stat --format='%i %Y %s' /var/lib/dpkg/status 2>/dev/null || true)
  [[ -r $stamp ]] && { IFS= read -rd '' kept <"$stamp" || true; }
  key="$database"$'\n'"$list"
  [[ $database && $kept == "$key" ]] && return

  lock packages
  find_missing_packages "$@"
  if ((${#missing[@]})); then
    install_missing_packages
    find_missing_packages "$@"
    ((${#missing[@]} == 0)) || cannot_install "apt-get left these out."
    rm -f "$root"/build/*/configured.stamp  # what CMake did not find before it may find now
  fi
  database=$(stat --format='%i %Y %s' /var/lib/dpkg/status 2>/dev/null || true)
  printf '%s\n%s' "$database" "$list" >"$stamp"
  unlock
}

# --- configuring and building -----------------------------------------------------------------------------------------

# Runs CMake for a preset, unless the tree is configured already: later Ninja runs CMake itself when a CMakeLists.txt
# changed. It does not watch the presets, nor notice that the repository was moved, so a stamp remembers both.
configure() {  # <preset> [-D<variable>=<value>]...
  local preset=$1 tree=$root/build/$1 presets key
  local -a fresh=()
  shift
  IFS= read -rd '' presets <"$root/CMakePresets.json" || true
  key="$root"$'\n'"$presets"
  is_configured "$tree" "$key" "$@" && return

  lock "$preset"
  if ! is_configured "$tree" "$key" "$@"; then  # still not: the call waited for may have done it
    say "configuring $preset ..."
    [[ -r $tree/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$tree/CMakeCache.txt" &&
      fresh=(--fresh)
    (cd "$root" && quietly cmake --preset "$preset" "${fresh[@]}" "$@") || die 1 "Configuring $preset failed."
    printf '%s' "$key" >"$tree/configured.stamp"
  fi
  unlock
}

is_configured() {  # <tree> <key> [-D<variable>=<value>]...
  local tree=$1 key=$2 kept="" definition
  shift 2
  [[ -r $tree/configured.stamp ]] && { IFS= read -rd '' kept <"$tree/configured.stamp" || true; }
  [[ $kept == "$key" ]] || return
  for definition in "${@#-D}"; do
    grep -q "^${definition%%=*}:[A-Z]*=${definition#*=}\$" "$tree/CMakeCache.txt" 2>/dev/null || return
  done
}

# Turns Ninja's talk into one line that changes (on a terminal) or one for each tenth (elsewhere), and passes on all else:
# what compilers say.
show_progress() {  # <what is built>
  local line count total started="" shown=0
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (.*) ]]; then
      count=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
      # Ninja asks CMake at every call whether a header came or went ("Re-checking globbed directories..."), and runs it
      # again where a CMakeLists.txt changed ("Re-running CMake..."): not counted.
      [[ ${BASH_REMATCH[3]} == Re-* ]] && continue
      [[ $started ]] || say "building $1 ..."
      started=yes
      if [[ -t 2 ]]; then
        printf '\r\e[K%s' "${line:0:${COLUMNS:-80}-1}" >&2
      elif ((count * 10 / total > shown)); then
        shown=$((count * 10 / total))
        say "  $count of $total"
      fi
    elif [[ $line != "ninja: no work to do." && $line != "ninja: Entering directory "* && $line != "-- "* ]]; then
      [[ $started && -t 2 ]] && printf '\r\e[K' >&2
      say "$line"
    fi
  done
  [[ $started && -t 2 ]] && printf '\r\e[K' >&2
  return 0
}

build() {  # <preset> <target>...
  local preset=$1 status
  shift
  lock "$preset"
  ninja -C "$root/build/$preset" "$@" </dev/null 2>&1 | show_progress "$* ($preset)"
  status=${PIPESTATUS[0]}
  unlock
  ((status == 0)) || die 1 "Building $preset failed."
}
