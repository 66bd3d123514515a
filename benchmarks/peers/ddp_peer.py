#!/usr/bin/env python3
"""A peer: PyTorch's DistributedDataParallel over Gloo, a process for each replica.

    ddp_peer.py --model mlp-256,cnn --batch 64,512 --seconds 0.5           the time of a step
    ddp_peer.py --model mlp-256 --batch 64 --losses <folder>               the loss of each step

The networks, the rows and the way to time are those of data_parallel_models.cpp and step_timer.hpp; what is printed, too.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

DEBIANS_PYTHON = "/usr/bin/python3"

try:
    import torch
except ImportError:
    # The first python3 on the PATH need not be the one that python3-torch was installed for.
    if os.path.realpath(sys.executable) == os.path.realpath(DEBIANS_PYTHON) or not os.path.exists(DEBIANS_PYTHON):
        sys.exit("ddp_peer: this Python has no torch; install python3-torch")
    os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10
FIRST_STEPS = 3
WARM_UP_SECONDS = 0.1
REPETITIONS = 5


def mlp(hidden):
    return nn.Sequential(
        nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


MODELS = {
    "mlp-256": lambda: mlp(256),
    "mlp-1024": lambda: mlp(1024),
    "mlp-2048": lambda: mlp(2048),
    "cnn": cnn,
}


def row_shape(model):
    return (1, 28, 28) if model == "cnn" else (784,)


def make_rows(model, count):
    torch.manual_seed(1)
    return torch.randn(count, *row_shape(model)), torch.randint(CLASSES, (count,))


class Loop:
    """One rank's steps; row i of a batch is that of rank i mod ranks, as tutti deals them out."""

    def __init__(self, net, learning_rate):
        self.net = DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)

    def step(self, data, target):
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.net(data), target)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def own_rows(tensor):
    return tensor[dist.get_rank() :: dist.get_world_size()].contiguous()


def agree(number):
    """What rank 0 passed; no rank returns before all have come."""
    box = torch.tensor([number], dtype=torch.int64)
    dist.broadcast(box, 0)
    dist.barrier()
    return int(box.item())


def time_steps(seconds, step):
    def seconds_per_step(steps):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return max(time.perf_counter() - begin, 1e-9) / steps

    def steps_in(seconds, per_step):
        return agree(int(min(max(seconds / per_step, 1), 1e6)))

    seconds_per_step(FIRST_STEPS)
    at_first = seconds_per_step(FIRST_STEPS)
    warm = seconds_per_step(steps_in(WARM_UP_SECONDS, at_first))
    steps = steps_in(seconds / REPETITIONS, warm)
    return [seconds_per_step(steps) for _ in range(REPETITIONS)], steps


def tell(result):
    if dist.get_rank() == 0:
        print(json.dumps(result, separators=(",", ":")), flush=True)


def measure_steps(request):
    for model in request.model:
        for batch in request.batch:
            torch.manual_seed(0)
            loop = Loop(MODELS[model](), request.learning_rate)
            data, target = (own_rows(tensor) for tensor in make_rows(model, batch))
            means, steps = time_steps(request.seconds, lambda: loop.step(data, target))
            tenths = statistics.quantiles(means, n=10, method="inclusive")
            tell({
                "engine": "ddp", "model": model, "batch": batch,
                "seconds": statistics.median(means), "seconds_p10": tenths[0], "seconds_p90": tenths[-1],
                "threads": torch.get_num_threads(), "repetitions": len(means), "steps_per_repetition": steps,
            })  # fmt: skip


def tell_losses(request):
    model, batch = request.model[0], request.batch[0]

    def read(name, dtype):
        with open(os.path.join(request.losses, name), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=dtype)

    net = MODELS[model]()
    values = read("parameters.f32", torch.float32)
    with torch.no_grad():
        nn.utils.vector_to_parameters(values, net.parameters())
    data = read("rows.f32", torch.float32).reshape(-1, batch, *row_shape(model))
    targets = read("labels.u8", torch.uint8).long().reshape(-1, batch)
    loop = Loop(net, request.learning_rate)
    for i in range(data.shape[0]):
        loss = torch.tensor([loop.step(own_rows(data[i]), own_rows(targets[i]))], dtype=torch.float64)
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        tell({"engine": "ddp", "model": model, "batch": batch, "step": i + 1, "loss": loss.item()})


def run_rank(rank, request, meeting_place):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=request.replicas)
    if request.losses:
        tell_losses(request)
    else:
        measure_steps(request)
    dist.barrier()
    dist.destroy_process_group()


def parse_request():
    def model(text):
        if text not in MODELS:
            raise argparse.ArgumentTypeError(f"expected {', '.join(MODELS)}, found '{text}'")
        return text

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=lambda text: [model(part) for part in text.split(",")], default=list(MODELS))
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[64, 512])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--losses", metavar="FOLDER", help="with parameters.f32, rows.f32 and labels.u8")
    request = parser.parse_args()
    for batch in request.batch:
        if batch < 1 or batch % request.replicas:
            parser.error(f"--batch: expected as many rows for each of {request.replicas} replicas, found {batch} in all")
    return request


def main():
    request = parse_request()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        meeting_place = os.path.join(folder, "meeting_place")
        # Nothing was computed yet, so there are no threads that a fork would lose, and torch is loaded once.
        mp.start_processes(run_rank, args=(request, meeting_place), nprocs=request.replicas, start_method="fork")


if __name__ == "__main__":
    main()
