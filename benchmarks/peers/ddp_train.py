#!/usr/bin/env python3
"""A peer: what `tutti train` does with examples/fashion_mnist.json, written with PyTorch.

    ddp_train.py fashion_mnist.json                  DistributedDataParallel over Gloo, two processes
    ddp_train.py fashion_mnist.json --processes 1    one process, and nothing distributed

The run file says what to train; what is not in it as it is in the example is refused. As tutti does, it counts what is
told right at each step, and evaluates and writes a checkpoint after each epoch. It prints a line of JSON: the seconds from
the first step to the end of the last evaluation, and the share of the test images that was told right then.
"""
import argparse
import gzip
import json
import os
import re
import sys
import tempfile
import time

DEBIANS_PYTHON = "/usr/bin/python3"

try:
    import torch
except ImportError:
    # The first python3 on the PATH need not be the one that python3-torch was installed for.
    if os.path.realpath(sys.executable) == os.path.realpath(DEBIANS_PYTHON) or not os.path.exists(DEBIANS_PYTHON):
        sys.exit("ddp_train: this Python has no torch; install python3-torch")
    os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = "/usr/share/datasets/fashion-mnist"
PIXELS = 28 * 28
EVALUATION_ROWS = 256


class Refused(Exception):
    pass


def expect(what, found, *wanted):
    if found not in wanted:
        raise Refused(f"{what}: this peer knows {' and '.join(map(str, wanted))}, and found {found}")


def read_run(path):
    """What the run file asks for: only what is carried out below."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    strings_or_comments = r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/'
    run = json.loads(re.sub(strings_or_comments, lambda match: match[1] or " ", text, flags=re.DOTALL))
    for key in run:
        expect("a key of the run file", key, "seed", "data", "graph", "loss", "metrics", "optimizer", "schedule", "train", "output")
    for key in run["data"]:
        expect("a key of data", key, "source", "batch_size")
    expect("data.source", run["data"]["source"], "fashion_mnist")
    expect("loss", run["loss"], "cross_entropy")
    expect("metrics", run["metrics"], ["accuracy"])
    for key in run["optimizer"]:
        expect("a key of optimizer", key, "name", "lr", "momentum")
    expect("optimizer.name", run["optimizer"]["name"], "sgd")
    expect("schedule", run["schedule"], "one_cycle")
    for key in run["train"]:
        expect("a key of train", key, "epochs")
    layer_sizes(run["graph"])
    return run


def layer_sizes(graph):
    """[784, 256, 128, 10]: linear layers with a relu between any two."""
    sizes = [PIXELS]
    expect("graph.inputs", list(graph["inputs"].values()), [[1, 28, 28]])
    before = next(iter(graph["inputs"]))
    wanted = "flatten"
    for node in graph["nodes"]:
        where = f"graph node '{node['id']}'"
        expect(f"{where}, op", node["op"], wanted)
        for key in node:
            expect(f"a key of {where}", key, "id", "op", "inputs", *(["units"] if wanted == "linear" else []))
        expect(f"{where}, inputs", node["inputs"], [before])
        if wanted == "linear":
            sizes.append(node["units"])
        wanted = "relu" if wanted == "linear" else "linear"
        before = node["id"]
    expect("graph.outputs", graph["outputs"], [before])
    expect("op of the last node", graph["nodes"][-1]["op"], "linear")
    return sizes


def make_net(graph):
    sizes = layer_sizes(graph)
    layers = []
    for inputs, units in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def read_data(part):
    """Rows of bytes and their labels."""

    def read(name, header):
        with gzip.open(os.path.join(DATA, f"{part}-{name}-ubyte.gz")) as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header)

    return read("images-idx3", 16).view(-1, PIXELS), read("labels-idx1", 8)


def images_of(rows):
    return torch.div(rows, 255)


def sum_over_ranks(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def share_of_right(net, images, labels, rank, ranks):
    """Loss and accuracy, each rank of a part of the rows."""
    rows = labels.numel()
    sums = torch.zeros(2, dtype=torch.float64)
    net.eval()
    with torch.inference_mode():
        for first in range(rank * EVALUATION_ROWS, rows, ranks * EVALUATION_ROWS):
            output = net(images_of(images[first : first + EVALUATION_ROWS]))
            target = labels[first : first + EVALUATION_ROWS]
            sums[0] += nn.functional.cross_entropy(output, target, reduction="sum")
            sums[1] += (output.argmax(1) == target).sum()
    net.train()
    return (sum_over_ranks(sums) / rows).tolist()


def train(rank, request, run, data, folder):
    ranks = request.processes
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting_place", rank=rank, world_size=ranks)
    images, labels = data["train"][0], data["train"][1].long()
    test_images, test_labels = data["t10k"][0], data["t10k"][1].long()

    torch.manual_seed(run["seed"])
    net = make_net(run["graph"])
    model = DistributedDataParallel(net, gradient_as_bucket_view=True) if ranks > 1 else net
    rate = run["optimizer"]["lr"]
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=run["optimizer"]["momentum"])
    batch = run["data"]["batch_size"]
    steps_per_epoch = -(-labels.numel() // batch)
    # These are the defaults of tutti's one_cycle.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=request.epochs * steps_per_epoch, pct_start=0.3, div_factor=25,
        final_div_factor=1e4, cycle_momentum=False,
    )  # fmt: skip

    if ranks > 1:
        dist.barrier()
    begin = time.perf_counter()
    for epoch in range(request.epochs):
        order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(run["seed"] + epoch))
        told = torch.zeros(2, dtype=torch.float64)  # losses and right ones of the epoch
        for numbers in order.split(batch):
            mine = numbers[rank::ranks]
            target = labels.index_select(0, mine)
            optimizer.zero_grad(set_to_none=True)
            output = model(images_of(images.index_select(0, mine)))
            loss = nn.functional.cross_entropy(output, target)
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                told[0] += loss
                told[1] += (output.argmax(1) == target).sum()
        sum_over_ranks(told)
        test_loss, accuracy = share_of_right(net, test_images, test_labels, rank, ranks)
        seconds = time.perf_counter() - begin
        if rank == 0:
            if request.verbose:
                print(
                    f"epoch {epoch + 1}  loss {told[0] / steps_per_epoch / ranks:.4f}  accuracy {told[1] / labels.numel():.4f}  "
                    f"test loss {test_loss:.4f}  accuracy {accuracy:.4f}  {seconds:.2f} s", file=sys.stderr
                )  # fmt: skip
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/checkpoint.pt")
    if rank == 0:
        engine = "ddp" if ranks > 1 else "pytorch"
        result = {"engine": engine, "epochs": request.epochs, "seconds": seconds, "accuracy": accuracy}
        print(json.dumps(result, separators=(",", ":")), flush=True)
    if ranks > 1:
        dist.barrier()
        # Not by way of its destructors: that of Gloo's process group waits, holding Python's lock, for threads that may be
        # waiting for this lock to let go of a tensor (https://github.com/pytorch/pytorch/issues/56297).
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run file")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--epochs", type=int, help="instead of the run file's")
    parser.add_argument("--verbose", action="store_true", help="tell each epoch")
    request = parser.parse_args()
    try:
        run = read_run(request.run)
    except Refused as problem:
        sys.exit(f"ddp_train: {request.run}: {problem}")
    request.epochs = request.epochs or run["train"]["epochs"]
    data = {part: read_data(part) for part in ("train", "t10k")}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        work = (request, run, data, folder)
        if request.processes == 1:
            train(0, *work)
        else:
            # Nothing was computed yet, so there are no threads that a fork would lose; torch and the data are loaded once.
            mp.start_processes(train, args=work, nprocs=request.processes, start_method="fork")


if __name__ == "__main__":
    main()
