#!/usr/bin/env bash
# The driver of `./bench data-parallel`, with engines that only say what they were asked: who has a turn, with which
# settings, and what becomes of their answers.
#
#   tests/unit/bench_data_parallel_test.sh <the driver>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
# It starts what lies beside it.
cp -- "$1" "$scratch/driver"
driver=("$scratch/driver")

# <engine> <model> <batch> <seconds>
cat >"$scratch/answer.sh" <<'END'
printf '%s %s OMP=%s OPENBLAS=%s CORETYPE=%s\n' "${0##*/}" "$*" "$OMP_NUM_THREADS" "$OPENBLAS_NUM_THREADS" \
  "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
answer() {
  printf '{"engine":"%s","model":"%s","batch":%s,"seconds":%s,"seconds_p10":1,"seconds_p90":1,"threads":%s,' \
    "$1" "$2" "$3" "$4" "$OMP_NUM_THREADS"
  echo '"repetitions":5,"steps_per_repetition":1}'
}
END
cat >"$scratch/data_parallel_engines" <<'END'
#!/usr/bin/env bash
[[ $1 == --kernels ]] && { echo Haswell; exit; }
source "${0%/*}/answer.sh"
[[ $3 == --memory ]] && {
  echo "{\"engine\":\"tutti\",\"model\":\"mlp-50m\",\"replicas\":$9,\"batch\":8,\"resident_bytes\":1${9}00,\"parameter_bytes\":1000}"
  exit
}
# --engine tutti --accuracy <compression> --model cnn --batch 64 --epochs <n>
[[ $3 == --accuracy ]] && {
  echo "{\"engine\":\"tutti\",\"model\":\"cnn\",\"batch\":64,\"compression\":\"$4\",\"epochs\":${10},\"accuracy\":0.8${#4},\"gradient_bytes\":1000,\"sent_bytes\":25}"
  exit
}
# --engine <list> --model <name> --batch <list> --seconds <number>
for batch in ${6//,/ }; do
  for engine in ${2//,/ }; do
    seconds=1
    [[ $engine == single ]] && seconds=$((5 - OMP_NUM_THREADS))
    answer "$engine" "$4" "$batch" "$seconds"
  done
done
END
cat >"$scratch/ddp_peer.py" <<'END'
#!/usr/bin/env bash
source "${0%/*}/answer.sh"
for batch in ${4//,/ }; do answer ddp "$2" "$batch" 4; done
END
cat >"$scratch/ddp_agrees.py" <<'END'
#!/usr/bin/env bash
echo '{"engine":"tutti","peer":"ddp","model":"mlp-256","batch":64,"steps":50,"largest_loss_difference":2e-7}'
END
# Starts what follows the --, once.
cat >"$scratch/tutti" <<'END'
#!/usr/bin/env bash
while [[ $1 != -- ]]; do shift; done
shift
exec "$@"
END
chmod +x "$scratch/tutti" "$scratch/data_parallel_engines" "$scratch/ddp_peer.py" "$scratch/ddp_agrees.py"

# All of it: 4 models x 2 batches x 5 engines, memory twice, losses once, accuracy with five compressions.
"${driver[@]}" --json --passes 2 --seconds 0.5 >"$scratch/lines" 2>"$scratch/errors" || expect 0 "" cat "$scratch/errors"
expect 0 "48 $scratch/lines" wc -l "$scratch/lines"
expect 0 "40" grep -c '^{"engine":"[a-z-]*","model":"[a-z0-9-]*","batch":[0-9]*,"seconds":[0-9.]*,' "$scratch/lines"
expect 0 '"batch":512,"seconds":3.0,"seconds_p10":1.0,"seconds_p90":1.0,"threads":2,' grep '"single","model":"cnn"' "$scratch/lines"
# Every turn with the same kernels, and the threads it should have.
expect 0 "39" grep -c "CORETYPE=Haswell" "$scratch/asked"
expect 0 "39 $scratch/asked" wc -l "$scratch/asked"
expect 0 "8" grep -c "OMP=2 OPENBLAS=2" "$scratch/asked"
expect 0 "data_parallel_engines --engine tutti,single,never-talk --model mlp-256 --batch 64,512 --seconds 0.5 OMP=1 OPENBLAS=1" cat "$scratch/asked"
expect 0 "data_parallel_engines --engine single --model cnn --batch 64,512 --seconds 0.5 OMP=2 OPENBLAS=2" cat "$scratch/asked"
expect 0 "data_parallel_engines --engine tutti-processes --model cnn --batch 64,512 --seconds 0.5 OMP=1" cat "$scratch/asked"
expect 0 "ddp_peer.py --model cnn --batch 64,512 --seconds 0.5 OMP=1 OPENBLAS=1" cat "$scratch/asked"

# A choice of them, as tables and targets.
expect 0 "cnn      64   1.00 s   4.00 s" "${driver[@]}" --measure time --model cnn --batch 64 --engine tutti,ddp --passes 1
expect 0 "8 replicas take at most 1.15 times the memory of one                   1.64x" "${driver[@]}" --measure memory
expect 0 "the loss differs from DDP's by at most 1e-4                                     2.0e-07" "${driver[@]}" --measure losses
expect 0 "not measured" "${driver[@]}" --measure losses
expect 0 "TopK:0.01        2      89.00 %       2.50 %" "${driver[@]}" --measure accuracy --epochs 2
expect 0 "0.30 points less with PowerSgd:2" "${driver[@]}" --measure accuracy

# An engine that fails, or measures something else, is told, and the others are still measured.
printf '#!/usr/bin/env bash\necho no torch >&2\nexit 1\n' >"$scratch/ddp_peer.py"
expect 1 "cnn, ddp failed" "${driver[@]}" --measure time --model cnn --passes 2
expect 1 "no torch" "${driver[@]}" --measure time --model cnn --passes 2
expect 1 '"engine":"never-talk","model":"cnn","batch":64' "${driver[@]}" --measure time --model cnn --passes 1 --json
# shellcheck disable=SC2016
printf '#!/usr/bin/env bash\nsource "${0%%/*}/answer.sh"\nanswer gloo cnn 64 1\n' >"$scratch/ddp_peer.py"
expect 1 "it measured something else" "${driver[@]}" --measure time --model cnn --batch 64 --engine ddp
# shellcheck disable=SC2016
printf '#!/usr/bin/env bash\nsource "${0%%/*}/answer.sh"\nanswer ddp cnn 64 1\n' >"$scratch/ddp_peer.py"
expect 1 "it did not measure all engines and batches" "${driver[@]}" --measure time --model cnn --batch 64,512 --engine ddp

expect 0 "--engine TEXT" "${driver[@]}" --help
expect 2 "--model: expected mlp-256, mlp-1024, mlp-2048, cnn, found 'mlp-255'; did you mean 'mlp-256'?" "${driver[@]}" --model mlp-255
expect 2 "--engine: expected tutti, tutti-processes, ddp, single, never-talk, found 'dpd'" "${driver[@]}" --engine tutti,dpd
expect 2 "--measure: expected time, memory, losses, accuracy" "${driver[@]}" --measure speed
expect 2 "--batch: expected rows for two replicas alike, found 63" "${driver[@]}" --batch 64,63
expect 2 "--batch: expected whole numbers" "${driver[@]}" --batch 0
expect 2 "there is no option --models; did you mean --model?" "${driver[@]}" --models cnn
finish
