#!/usr/bin/env python3
"""Does tutti train as PyTorch's DistributedDataParallel does?

From the same parameters, over the same rows, tutti (two threads) and PyTorch (two processes) take 50 steps of SGD; their losses
must agree at every step. ./bench builds the programs; then

    build/bench/bin/ddp_agrees.py [--at-most 1e-4]

prints the largest difference, and exits 0 where it is small enough, otherwise 1.
"""
import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile

MODEL, BATCH, STEPS = "mlp-256", 64, 50
LAYERS = [(784, 256), (256, 256), (256, 10)]


def write_values(path, code, values):
    with open(path, "wb") as file:
        array.array(code, values).tofile(file)


def write_problem(folder):
    """Parameters as torch's Linear draws them, weights before biases; rows and labels of all steps."""
    draw = random.Random(7)
    parameters = []
    for inputs, outputs in LAYERS:
        bound = inputs**-0.5
        parameters += [draw.uniform(-bound, bound) for _ in range(inputs * outputs + outputs)]
    write_values(os.path.join(folder, "parameters.f32"), "f", parameters)
    rows = BATCH * STEPS
    write_values(os.path.join(folder, "rows.f32"), "f", (draw.uniform(-1, 1) for _ in range(rows * LAYERS[0][0])))
    write_values(os.path.join(folder, "labels.u8"), "B", (draw.randrange(10) for _ in range(rows)))


def losses_of(*program, folder):
    command = [
        os.path.join(os.path.dirname(os.path.realpath(__file__)), program[0]), *program[1:],
        "--model", MODEL, "--batch", str(BATCH), "--replicas", "2", "--learning-rate", "0.1", "--losses", folder,
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TUTTI_QUIET": "1", **os.environ}
    try:
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment, timeout=120).stdout
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"ddp_agrees: {error}")
    lines = [json.loads(line) for line in output.splitlines()]
    if [line["step"] for line in lines] != list(range(1, STEPS + 1)):
        sys.exit(f"ddp_agrees: {program[0]} did not tell the losses of {STEPS} steps")
    return [line["loss"] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-most", type=float, default=1e-4, help="how far losses may be apart")
    at_most = parser.parse_args().at_most
    with tempfile.TemporaryDirectory() as folder:
        write_problem(folder)
        ours = losses_of("data_parallel_engines", "--engine", "tutti", folder=folder)
        theirs = losses_of("ddp_peer.py", folder=folder)
    differences = [abs(our - their) for our, their in zip(ours, theirs)]
    worst = max(range(STEPS), key=lambda step: differences[step])
    print(json.dumps({
        "engine": "tutti", "peer": "ddp", "model": MODEL, "batch": BATCH, "steps": STEPS,
        "largest_loss_difference": differences[worst],
    }, separators=(",", ":")))  # fmt: skip
    if not differences[worst] <= at_most:
        sys.exit(f"ddp_agrees: at step {worst + 1} the loss is {ours[worst]} with tutti and {theirs[worst]} with PyTorch")


if __name__ == "__main__":
    main()
