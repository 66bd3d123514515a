#!/usr/bin/env python3
"""A peer: FedAvg (McMahan et al., 2017) on MNIST, written plainly with PyTorch.

    fedavg.py --data ~/.cache/tutti/mnist --layers 784,200,200,10 --clients 100 --asked 10 --batch 10 --rate 0.1 --seed 7 \\
              --rounds 12

Rows are dealt out at random, equally many to each client. In a round the clients that are asked train the server's model on
their rows once, and the mean of what they have then is the server's next model. One process, one model that all clients use
after each other, images as floats in memory, and no DataLoader. Losses and right answers are counted at each step, and told
for each round.

It prints a line of JSON: the local steps and the seconds of all rounds but the first, and the share of the test images that
is told right after the last.
"""
import argparse
import json
import os
import sys
import time

DEBIANS_PYTHON = "/usr/bin/python3"

try:
    import torch
except ImportError:
    # The first python3 on the PATH need not be the one that python3-torch was installed for.
    if os.path.realpath(sys.executable) == os.path.realpath(DEBIANS_PYTHON) or not os.path.exists(DEBIANS_PYTHON):
        sys.exit("fedavg: this Python has no torch; install python3-torch")
    os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])

from torch import nn

EVALUATION_ROWS = 256


def read_data(folder, part):
    """Rows of floats from 0 to 1, and their labels."""

    def read(name, header):
        with open(os.path.join(folder, f"{part}-{name}-ubyte"), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header)

    labels = read("labels-idx1", 8).long()
    return read("images-idx3", 16).view(labels.numel(), -1) / 255, labels


def make_net(sizes):
    layers = []
    for inputs, units in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train_client(net, images, labels, request):
    """One epoch. Gives back the sum of the losses and the number of right answers."""
    optimizer = torch.optim.SGD(net.parameters(), lr=request.rate)
    losses, right = torch.zeros(()), torch.zeros((), dtype=torch.long)
    for numbers in torch.randperm(labels.numel()).split(request.batch):
        target = labels[numbers]
        output = net(images[numbers])
        loss = nn.functional.cross_entropy(output, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses += loss.detach() * target.numel()
        right += (output.detach().argmax(1) == target).sum()
    return losses.item(), right.item()


def train_round(net, clients, data, request):
    """The server's model is in `net`, before and after. Gives back steps, the mean loss and the share of right answers."""
    images, labels = data
    server = {name: values.clone() for name, values in net.state_dict().items()}
    mean = {name: torch.zeros_like(values) for name, values in server.items()}
    chosen = [clients[i] for i in torch.randperm(len(clients))[: request.asked]]
    rows = sum(mine.numel() for mine in chosen)
    steps = losses = right = 0
    for mine in chosen:
        net.load_state_dict(server)
        its_losses, its_right = train_client(net, images[mine], labels[mine], request)
        for name, values in net.state_dict().items():
            mean[name].add_(values, alpha=mine.numel() / rows)
        steps += -(-mine.numel() // request.batch)
        losses += its_losses
        right += its_right
    net.load_state_dict(mean)
    return steps, losses / rows, right / rows


def share_of_right(net, images, labels):
    with torch.inference_mode():
        batches = zip(images.split(EVALUATION_ROWS), labels.split(EVALUATION_ROWS))
        return sum((net(rows).argmax(1) == target).sum().item() for rows, target in batches) / labels.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder with MNIST's four files")
    parser.add_argument("--layers", required=True, help="how wide each is, with commas between, inputs first")
    parser.add_argument("--clients", type=int, required=True, help="how many there are")
    parser.add_argument("--asked", type=int, required=True, help="how many are asked in a round")
    parser.add_argument("--batch", type=int, required=True, help="rows of a local step")
    parser.add_argument("--rate", type=float, required=True, help="of SGD")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="at least 2: the first is not timed")
    parser.add_argument("--verbose", action="store_true", help="tell each round")
    request = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(request.seed)
    try:
        data = read_data(request.data, "train")
        test = read_data(request.data, "t10k")
    except (OSError, ValueError, RuntimeError) as problem:
        sys.exit(f"fedavg: cannot read MNIST: {problem}")
    net = make_net([int(units) for units in request.layers.split(",")])
    clients = torch.randperm(data[1].numel()).tensor_split(request.clients)

    steps = 0
    for number in range(1, request.rounds + 1):
        its_steps, loss, accuracy = train_round(net, clients, data, request)
        if number == 1:
            begin = time.perf_counter()
        else:
            steps += its_steps
        if request.verbose:
            print(f"round {number}  loss {loss:.4f}  accuracy {accuracy:.4f}", file=sys.stderr)
    seconds = time.perf_counter() - begin
    accuracy = share_of_right(net, *test)
    result = {"engine": "python", "rounds": request.rounds - 1, "steps": steps, "seconds": seconds, "accuracy": accuracy}
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
