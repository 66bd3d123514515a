# shellcheck shell=bash
# Sourced by tests of scripts: a scratch folder that goes away, and expectations that count what failed.
#
#   expect 1 "no arrow base -> transport" checks/layering "$scratch/tree"     exit code, a part of the output, the command
#   finish
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

expect() {  # <exit code> <part of the output, or nothing> <command>...
  local code=$1 part=$2 output status=0
  shift 2
  output=$("$@" 2>&1 </dev/null) || status=$?
  if [[ $status != "$code" || $output != *"$part"* ]]; then
    printf 'line %s: %s\n  expected %s and "%s"\n  got %s and "%s"\n' "${BASH_LINENO[0]}" "$*" "$code" "$part" "$status" "$output"
    failures=$((failures + 1))
  fi
}

finish() { exit $((failures > 0)); }
