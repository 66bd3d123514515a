#!/usr/bin/env bash
# The driver of `./bench train`, with engines that only say what they were asked; and what its peer in Python reads out of
# a run file, and refuses.
#
#   tests/unit/bench_train_test.sh <the driver>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
# It starts what lies beside it, and gives it a temporary folder, which it removes.
mkdir "$scratch/bin" "$scratch/temporary"
cp -- "$1" "$scratch/bin/driver"
# Whoever runs this may have chosen kernels.
driver=(env -u OPENBLAS_CORETYPE "TMPDIR=$scratch/temporary" "$scratch/bin/driver")

printf '#!/usr/bin/env bash\necho Haswell\n' >"$scratch/bin/data_parallel_engines"
cat >"$scratch/bin/tutti" <<'END_OF_TUTTI'
#!/usr/bin/env bash
printf 'tutti %s OMP=%s CORETYPE=%s\n' "$*" "$OMP_NUM_THREADS" "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
[[ $1 == launch ]] && { while [[ $1 != -- ]]; do shift; done; shift 2; }
[[ $1 == train && -e $2 && $3 == --json && $4 == --output && $6 == --set ]] || exit 3
[[ -e $5 ]] && { echo "$5 is there already" >&2; exit 4; }
mkdir "$5"
epochs=1
[[ $7 == train.epochs=* ]] && epochs=${7#*=}
echo '{"event":"run_started"}'
for ((epoch = 1; epoch <= epochs; ++epoch)); do
  echo "{\"event\":\"evaluation_ended\",\"epoch\":$epoch,\"seconds\":$epoch.25,\"split\":\"test\",\"metrics\":{\"accuracy\":0.8$epoch}}"
done
echo '{"event":"run_ended","reason":"finished","seconds":100.0}'
END_OF_TUTTI
# <run> --epochs <n> --processes <n>
cat >"$scratch/bin/ddp_train.py" <<'END_OF_PEER'
#!/usr/bin/env bash
printf 'ddp_train.py %s OMP=%s CORETYPE=%s\n' "${*:2}" "$OMP_NUM_THREADS" "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
engine=ddp
[[ $5 == 1 ]] && engine=pytorch
echo "{\"engine\":\"$engine\",\"epochs\":$3,\"seconds\":9,\"accuracy\":0.5}"
END_OF_PEER
chmod +x "$scratch/bin/tutti" "$scratch/bin/ddp_train.py" "$scratch/bin/data_parallel_engines"
cp -- "$root/examples/fashion_mnist.json" "$scratch/bin"

# All of it: 5 engines and the one step, twice.
"${driver[@]}" --json --passes 2 --epochs 3 >"$scratch/lines" 2>"$scratch/errors" || expect 0 "" cat "$scratch/errors"
expect 0 "6 $scratch/lines" wc -l "$scratch/lines"
expect 0 '"epochs":3,"program_seconds":0.' grep '"engine":"tutti-processes"' "$scratch/lines"
expect 0 ',"training_seconds":3.25,"accuracy":0.83,"passes":2}' grep '"engine":"tutti-1"' "$scratch/lines"
expect 0 ',"training_seconds":9.0,"accuracy":0.5,"passes":2}' grep '"engine":"pytorch"' "$scratch/lines"
expect 0 '"program_seconds":0.' grep '{"engine":"tutti","steps":1,' "$scratch/lines"
expect 0 "12 $scratch/bin/asked" wc -l "$scratch/bin/asked"
expect 0 "12" grep -c "OMP=1 CORETYPE" "$scratch/bin/asked"
# As anybody starts it, who does not know which kernels are best.
expect 0 "2" grep -c '/one-step --set train={"steps": 1} OMP=1 CORETYPE=$' "$scratch/bin/asked"
expect 0 "10" grep -c "CORETYPE=Haswell" "$scratch/bin/asked"
expect 0 "2" grep -c "/tutti-1 --set train.epochs=3 --set graph.strategy.num_replicas=1 OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "tutti launch --processes 2 --no-prefix -- $scratch/bin/tutti train .*/tutti-processes --set train.epochs=3 OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "ddp_train.py --epochs 3 --processes 2 OMP" "$scratch/bin/asked"
expect 0 "" rmdir "$scratch/temporary"
mkdir "$scratch/temporary"

# As long as the example says, unless told otherwise.
sed -i 's/"epochs": [0-9]*/"epochs": 7/' "$scratch/bin/fashion_mnist.json"
expect 0 'one BLAS thread' "${driver[@]}" --engine pytorch --passes 1
expect 0 "ddp_train.py --epochs 7 --processes 1" tail -n 1 "$scratch/bin/asked"

# A choice of them, as a table and targets.
expect 0 "1.25 s         81.00 %" "${driver[@]}" --engine tutti --epochs 1 --passes 1
expect 0 "reached  training: 2 replicas have at least 2 times DDP's speed" "${driver[@]}" --engine tutti,ddp --epochs 2 --passes 1
expect 0 "MISSED   training: 2 replicas have at least 1.4 times the speed of 1" "${driver[@]}" --engine tutti,tutti-1 --epochs 2 --passes 1
expect 0 "not measured" "${driver[@]}" --engine pytorch --passes 1

# An engine that fails, or tells something else, is told, and the others are still measured.
sed -i 's/evaluation_ended/evaluation_begun/' "$scratch/bin/tutti"
expect 1 "it did not tell that it finished, with an evaluation after epoch 2" "${driver[@]}" --engine tutti,ddp --epochs 2 --passes 1
expect 1 " ms     9.00 s         50.00 %" "${driver[@]}" --engine tutti,ddp --epochs 2 --passes 1
printf '#!/usr/bin/env bash\necho nonsense\n' >"$scratch/bin/ddp_train.py"
expect 1 "expected JSON objects, found 'nonsense" "${driver[@]}" --engine ddp --passes 1
printf '#!/usr/bin/env bash\necho no torch >&2\nexit 1\n' >"$scratch/bin/ddp_train.py"
expect 1 "no torch" "${driver[@]}" --engine ddp --passes 1

expect 0 "--epochs INT" "${driver[@]}" --help
expect 2 "there is no option --seconds" "${driver[@]}" --seconds 1
expect 2 "--engine: expected tutti, tutti-processes, tutti-1, ddp, pytorch, found 'dpd'" "${driver[@]}" --engine tutti,dpd

# The peer trains what the example says, and nothing that it would train otherwise than tutti does.
cat >"$scratch/read_run.py" <<'END_OF_PYTHON'
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1] + "/benchmarks/peers")
import ddp_train

with open(sys.argv[1] + "/examples/fashion_mnist.json") as file:
    example = file.read()


def read(old, new):
    assert old in example, old
    with open(sys.argv[2], "w") as file:
        file.write(example.replace(old, new, 1))
    try:
        return ddp_train.layer_sizes(ddp_train.read_run(sys.argv[2])["graph"])
    except ddp_train.Refused as problem:
        return problem


print(read("{", "{"))
print(read('{ "seed"', '/* "x": // */ { // "y"\n "seed"'), "with comments")
print(read('"units": 128', '"units": 64'))
print(read('"op": "relu"', '"op": "tanh"'))
print(read('"units": 256', '"units": 256, "bias": false'))
print(read('"inputs": ["act1"]', '"inputs": ["flat"]'))
print(read('"one_cycle"', '"cosine"'))
print(read('"momentum": 0.9', '"weight_decay": 0.9'))
print(read('"train": {', '"train": {"clip_norm": 1, '))
END_OF_PYTHON
expect 0 "[784, 256, 128, 10]
[784, 256, 128, 10] with comments
[784, 256, 64, 10]
graph node 'act1', op: this peer knows relu, and found tanh
a key of graph node 'hidden1': this peer knows id and op and inputs and units, and found bias
graph node 'hidden2', inputs: this peer knows ['act1'], and found ['flat']
schedule: this peer knows one_cycle, and found cosine
a key of optimizer: this peer knows name and lr and momentum, and found weight_decay
a key of train: this peer knows epochs, and found clip_norm" /usr/bin/python3 "$scratch/read_run.py" "$root" "$scratch/run.json"
finish
