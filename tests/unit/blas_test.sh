#!/usr/bin/env bash
# What a program that trains says about the BLAS library under libtorch: one line, once, with what was set right.
#
#   tests/unit/blas_test.sh <a program that trains, in several threads>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
unset OPENBLAS_CORETYPE TUTTI_QUIET OPENBLAS_NUM_THREADS
program=$1

lines_of() { "$@" 2>&1 >/dev/null | grep "BLAS"; }

expect 0 "1" grep -c . <(lines_of "$program")
expect 0 "tutti: BLAS: OpenBLAS 0." lines_of "$program"
expect 0 ", 1 thread" lines_of env OPENBLAS_NUM_THREADS=2 "$program"
# Where the CPU has the instructions, it does not stay with kernels for old CPUs; what somebody set stays, and is told.
if grep -qw avx2 /proc/cpuinfo; then
  expect 1 "" grep -E "kernels (Prescott|Core2|Generic|Unknown)" <(lines_of "$program")
  expect 0 "kernels Prescott (OPENBLAS_CORETYPE=" lines_of env OPENBLAS_CORETYPE=Prescott "$program"
fi
expect 1 "" lines_of env TUTTI_QUIET=1 "$program"
finish
