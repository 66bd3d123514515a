#!/usr/bin/env python3
"""What PyTorch computes, for tests to compare with; run by hand after a change here.

    make_vectors.py [<folder>]      writes beside itself unless a folder is named

operators.json   operator_vectors_test: for every operator nodes with several options, a case a line. A case has inputs,
                 parameters and buffers, what comes out, a weight for each number of it, the gradients of the weighted
                 sum, and the buffers afterwards; all of it in float64. Shapes begin with the rows.
script_net.pt    torchscript_test: a small TorchScript,
script_net.json  and its losses when it is trained.

Options are those of the graph, whose shapes and dimensions do not count the rows: dimension 0 there is 1 here.
"""
import copy
import json
import math
import os
import sys
import zipfile
import zlib

DEBIANS_PYTHON = "/usr/bin/python3"

if os.environ.get("PYTHONHASHSEED") != "0":
    # TorchScript writes sets in their order, which is another one in every run otherwise.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})

try:
    import torch
except ImportError:
    # The first python3 on the PATH need not be the one that python3-torch was installed for.
    if os.path.realpath(sys.executable) == os.path.realpath(DEBIANS_PYTHON) or not os.path.exists(DEBIANS_PYTHON):
        sys.exit("make_vectors: this Python has no torch; install python3-torch")
    os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])

from torch import nn
from torch.nn import functional as F


class Case:
    """A node: `call` computes it with `net`, whose parameters and buffers have the names of the node's.

    An input is a tensor, or the shape of a row to draw.
    """

    def __init__(self, op, options, inputs, net=None, call=None, mode="train"):
        self.op = op
        self.options = options
        self.inputs = inputs
        self.net = nn.Module() if net is None else net
        self.call = call if call else lambda net, *inputs: net(*inputs)
        self.mode = mode


def function(op, options, inputs, compute, mode="train"):
    """A node without parameters."""
    return Case(op, options, inputs, call=lambda _, *inputs: compute(*inputs), mode=mode)


def renamed(options, names):
    """PyTorch's arguments for the options of a node: most have the same name."""
    return {names.get(key, key): tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def behind_rows(dim):
    """A dimension of a row as one of a batch; those that are counted from the end stay."""
    return dim + 1 if dim >= 0 else dim


# --- layers with weights ---


def linear(row, units, **options):
    return Case("linear", {"units": units, **options}, [row], nn.Linear(row[-1], units, **options))


CONVOLUTIONS = {
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv_transpose1d": nn.ConvTranspose1d,
    "conv_transpose2d": nn.ConvTranspose2d,
}


def convolution(op, row, **options):
    arguments = renamed(options, {"filters": "out_channels", "kernel": "kernel_size"})
    return Case(op, options, [row], CONVOLUTIONS[op](row[0], **arguments))


def embedding(tokens, entries, units, **options):
    net = nn.Embedding(entries, units, **renamed(options, {"padding": "padding_idx"}))
    return Case("embedding", {"entries": entries, "units": units, **options}, [torch.tensor(tokens)], net)


def weighted_layers():
    yield linear((5,), 4)
    yield linear((3, 4), 2, bias=False)
    yield linear((2, 3, 4), 3, bias=True)

    yield convolution("conv1d", (2, 6), filters=3, kernel=3)
    yield convolution("conv1d", (4, 6), filters=2, kernel=[2], stride=2, padding=1, groups=2, bias=False)
    yield convolution("conv1d", (2, 6), filters=2, kernel=2, padding="same", dilation=3)
    yield convolution("conv1d", (1, 6), filters=2, kernel=2, stride=[3], padding=[2], dilation=[2])
    yield convolution("conv2d", (2, 4, 5), filters=3, kernel=3)
    yield convolution("conv2d", (4, 5, 4), filters=2, kernel=[2, 3], stride=[2, 1], padding=[0, 2], groups=2)
    yield convolution("conv2d", (2, 4, 3), filters=2, kernel=[3, 2], padding="same", bias=False)
    yield convolution("conv2d", (2, 4, 3), filters=2, kernel=2, stride=2, padding="valid")
    yield convolution("conv2d", (2, 4, 4), filters=4, kernel=2, padding="same", dilation=[1, 2], groups=2)
    yield convolution("conv2d", (1, 5, 5), filters=2, kernel=2, stride=2, padding=1, dilation=2)

    yield convolution("conv_transpose1d", (2, 4), filters=3, kernel=3)
    yield convolution("conv_transpose1d", (4, 3), filters=2, kernel=2, stride=2, padding=1, output_padding=1, groups=2)
    yield convolution("conv_transpose1d", (2, 3), filters=2, kernel=[3], stride=[3], dilation=[2], bias=False)
    yield convolution("conv_transpose2d", (2, 3, 2), filters=3, kernel=2)
    yield convolution("conv_transpose2d", (2, 3, 2), filters=4, kernel=[2, 3], stride=[2, 1], padding=[0, 1], groups=2)
    yield convolution("conv_transpose2d", (1, 2, 3), filters=2, kernel=2, stride=3, output_padding=[2, 1], bias=False)
    yield convolution("conv_transpose2d", (2, 2, 3), filters=1, kernel=2, padding=1, output_padding=1, dilation=2)

    yield embedding([3, 0], 4, 2)
    yield embedding([[0, 4, 4], [1, 0, 4]], 5, 3)
    yield embedding([[0, 4, 4], [1, 0, 4]], 5, 3, padding=4)
    yield embedding([[[0, 1], [2, 2]], [[1, 1], [0, 2]], [[2, 2], [2, 2]]], 3, 2)


# --- pooling and norms ---

POOLS = {
    "max_pool1d": nn.MaxPool1d,
    "max_pool2d": nn.MaxPool2d,
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
    "adaptive_max_pool1d": nn.AdaptiveMaxPool1d,
    "adaptive_max_pool2d": nn.AdaptiveMaxPool2d,
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
}


def pool(op, row, **options):
    names = {"kernel": "kernel_size", "size": "output_size", "ceil": "ceil_mode", "count_padding": "count_include_pad"}
    return Case(op, options, [row], POOLS[op](**renamed(options, names)))


def pools():
    for kind in ("max", "avg"):
        yield pool(f"{kind}_pool1d", (2, 6), kernel=2)
        yield pool(f"{kind}_pool1d", (2, 6), kernel=3, stride=2, padding=1)
        yield pool(f"{kind}_pool1d", (1, 5), kernel=[4], stride=[1], padding=[2])
        yield pool(f"{kind}_pool2d", (2, 4, 5), kernel=2)
        yield pool(f"{kind}_pool2d", (1, 5, 4), kernel=[3, 2], stride=[1, 2], padding=[1, 0])
        yield pool(f"{kind}_pool2d", (2, 4, 4), kernel=2, stride=1, padding=1)
        yield pool(f"{kind}_pool1d", (2, 6), kernel=3, stride=2, ceil=True)
        yield pool(f"{kind}_pool1d", (1, 2), kernel=2, stride=3, padding=1, ceil=True)
        yield pool(f"{kind}_pool2d", (1, 5, 4), kernel=[2, 3], stride=[3, 2], padding=[1, 1], ceil=True)
        yield pool(f"adaptive_{kind}_pool1d", (2, 6), size=4)
        yield pool(f"adaptive_{kind}_pool1d", (2, 3), size=[5])
        yield pool(f"adaptive_{kind}_pool2d", (2, 5, 4), size=2)
        yield pool(f"adaptive_{kind}_pool2d", (1, 4, 3), size=[3, 1])


    yield pool("max_pool1d", (2, 7), kernel=3, stride=1, dilation=2)
    yield pool("max_pool2d", (1, 6, 5), kernel=[2, 3], stride=2, padding=1, dilation=[3, 1], ceil=True)
    yield pool("avg_pool1d", (2, 5), kernel=3, padding=1, count_padding=False)
    yield pool("avg_pool2d", (1, 4, 5), kernel=3, stride=2, padding=1, ceil=True, count_padding=False)


def batch_norm(row, mode, **options):
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}[len(row)]
    return Case("batch_norm", options, [row], kind(row[0], **options), mode=mode)


def layer_norm(row, dimensions=None, affine=True, **options):
    net = nn.LayerNorm(row[-(dimensions or 1) :], elementwise_affine=affine, **options)
    if dimensions:
        options["dimensions"] = dimensions
    if not affine:
        options["affine"] = affine
    return Case("layer_norm", options, [row], net)


def group_norm(row, groups, **options):
    return Case("group_norm", {"groups": groups, **options}, [row], nn.GroupNorm(groups, row[0], **options))


def norms():
    yield batch_norm((4,), "train")
    yield batch_norm((4,), "eval")
    yield batch_norm((2, 5), "train", momentum=0.3, eps=0.001)
    yield batch_norm((2, 5), "eval", eps=0.01, affine=False)
    yield batch_norm((2, 3, 2), "train", affine=False)
    yield batch_norm((2, 2, 3, 2), "train", momentum=1.0)
    yield layer_norm((6,))
    yield layer_norm((3, 4), eps=0.001)
    yield layer_norm((2, 3, 2), dimensions=2)
    yield layer_norm((2, 3), dimensions=2, affine=False)
    yield group_norm((4,), 2)
    yield group_norm((6, 2), 3, eps=0.001)
    yield group_norm((4, 2, 3), 1, affine=False)


# --- activations, dropout and positions ---

# Where functions have corners, or are computed differently beyond.
CORNERS = torch.tensor([[-25.0, -6.0, -3.0, -1.0, -0.5, 0.0], [0.5, 1.0, 3.0, 6.0, 7.5, 25.0]], dtype=torch.float64)

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "selu": F.selu,
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "log_sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "hardtanh": F.hardtanh,
}


def activation(op, values, **options):
    arguments = renamed(options, {"slope": "negative_slope", "min": "min_val", "max": "max_val"})
    return function(op, options, [values], lambda x: ACTIVATIONS[op](x, **arguments))


def softmax(op, row, **options):
    compute = {"softmax": F.softmax, "log_softmax": F.log_softmax}[op]
    return function(op, options, [row], lambda x: compute(x, behind_rows(options.get("dim", -1))))


def dropout(mode, **options):
    return Case("dropout", options, [(2, 3)], nn.Dropout(**options), mode=mode)


class LearnedPositions(nn.Module):
    def __init__(self, positions, units):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, units))

    def forward(self, x):
        return x + self.weight


def waves(x):
    """As PyTorch's tutorial on transformers has them."""
    positions, units = x.shape[1:]
    angles = torch.arange(positions).double()[:, None] * torch.exp(
        torch.arange(0, units, 2).double() * (-math.log(10000.0) / units)
    )
    table = torch.zeros(positions, units, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)[:, : units // 2]
    return x + table


def element_by_element():
    for op in ACTIVATIONS:
        yield activation(op, CORNERS)
        yield activation(op, (2, 3))
    yield activation("leaky_relu", CORNERS, slope=0.2)
    yield activation("elu", CORNERS, alpha=0.7)
    yield activation("elu", (2, 3), alpha=-0.5)
    yield activation("leaky_relu", CORNERS, slope=-0.1)
    yield activation("hardtanh", CORNERS, min=-0.5, max=2.0)
    yield Case("prelu", {}, [(2, 3)], nn.PReLU())
    yield Case("prelu", {"per_channel": True}, [(2, 3)], nn.PReLU(2))
    yield activation("softplus", CORNERS, beta=2.0)
    yield activation("softplus", (2, 3), beta=0.5)
    yield activation("gelu", CORNERS, approximate="none")
    yield activation("gelu", CORNERS, approximate="tanh")
    for op in ("softmax", "log_softmax"):
        yield softmax(op, (5,))
        yield softmax(op, (3, 4), dim=0)
        yield softmax(op, (2, 3, 2), dim=-2)
    yield dropout("eval")
    yield dropout("eval", p=0.3)
    yield dropout("train", p=0.0)
    yield dropout("train", p=1.0)
    yield Case("positional_embedding", {}, [(3, 4)], LearnedPositions(3, 4))
    yield Case("positional_embedding", {"kind": "learned"}, [(2, 5)], LearnedPositions(2, 5))
    yield function("positional_embedding", {"kind": "sinusoidal"}, [(6, 4)], waves)
    yield function("positional_embedding", {"kind": "sinusoidal"}, [(5, 3)], waves)


# --- attention and recurrent layers ---


def causal_mask(positions):
    """True where a position may not look."""
    return torch.ones(positions, positions, dtype=torch.bool).triu(1)


def attention(rows, mode="train", causal=False, **options):
    net = nn.MultiheadAttention(rows[0][1], batch_first=True, **renamed(options, {"heads": "num_heads"}))

    def attend(net, query, key=None, value=None):
        key = query if key is None else key
        value = key if value is None else value
        return net(query, key, value, attn_mask=causal_mask(query.shape[1]) if causal else None)[0]

    return Case("attention", {**options, **({"causal": True} if causal else {})}, rows, net, attend, mode)


def transformer_block(row, mode="train", **options):
    net = nn.TransformerEncoderLayer(
        row[1],
        options["heads"],
        dim_feedforward=options.get("hidden", 4 * row[1]),
        dropout=options.get("dropout", 0.0),
        activation=options.get("activation", "gelu"),
        layer_norm_eps=options.get("eps", 1e-5),
        norm_first=options.get("norm", "first") == "first",
        batch_first=True,
    )

    def encode(net, x):
        return net(x, src_mask=causal_mask(x.shape[1]) if options.get("causal") else None)

    return Case("transformer_block", options, [row], net, encode, mode)


def recurrent(op, row, mode="train", output=None, **options):
    arguments = renamed(options, {"units": "hidden_size", "layers": "num_layers"})
    net = {"lstm": nn.LSTM, "gru": nn.GRU}[op](row[1], batch_first=True, **arguments)

    def run(net, x):
        outputs, state = net(x)
        if output != "last":
            return outputs
        hidden = state[0] if op == "lstm" else state
        return torch.cat([hidden[-2], hidden[-1]], 1) if options.get("bidirectional") else hidden[-1]

    return Case(op, {**options, **({"output": output} if output else {})}, [row], net, run, mode)


def sequences():
    yield attention([(3, 4)], heads=2)
    yield attention([(4, 4)], heads=1, causal=True, bias=False)
    yield attention([(2, 4), (3, 4)], heads=4, mode="eval", dropout=0.3)
    yield attention([(3, 4), (3, 4)], heads=2, causal=True)
    yield attention([(2, 6), (3, 6), (3, 6)], heads=3)
    yield attention([(3, 4), (3, 4), (3, 4)], heads=2, causal=True, bias=False)

    yield transformer_block((3, 4), heads=2)
    yield transformer_block((3, 4), heads=1, hidden=3, causal=True, activation="relu", norm="last")
    yield transformer_block((2, 4), heads=2, hidden=5, norm="last", eps=0.001, mode="eval", dropout=0.3)
    yield transformer_block((3, 2), heads=1, activation="relu", norm="first", causal=True)
    yield transformer_block((2, 2), heads=2, activation="gelu", norm="last", bias=True, hidden=3)

    for op in ("lstm", "gru"):
        yield recurrent(op, (4, 3), units=2)
        yield recurrent(op, (3, 2), units=3, bias=False, output="last")
        yield recurrent(op, (3, 2), units=2, layers=2, dropout=0.3, mode="eval", output="sequence")
        yield recurrent(op, (3, 2), units=2, layers=2, bidirectional=True)
        yield recurrent(op, (4, 2), units=2, layers=2, bidirectional=True, output="last")


# --- shapes and arithmetic ---


def tokens(row, rows=2):
    return torch.arange(rows * math.prod(row)).reshape(rows, *row) * 7 % 11


def flatten(values, **options):
    return function("flatten", options, [values], lambda x: torch.flatten(x, 1 + options.get("from", 0)))


def reshape(values, shape):
    return function("reshape", {"shape": shape}, [values], lambda x: x.reshape(len(x), *shape))


def permute(values, dims):
    return function("permute", {"dims": dims}, [values], lambda x: x.permute(0, *(behind_rows(dim) for dim in dims)))


def concat(inputs, **options):
    return function("concat", options, inputs, lambda *inputs: torch.cat(inputs, behind_rows(options.get("dim", 0))))


def row_by_row(op, *rows):
    """A row of one input with those of the others."""

    def compute(*inputs):
        results = []
        for row in zip(*inputs):
            result = row[0]
            for other in row[1:]:
                result = result + other if op == "add" else result * other
            results.append(result)
        return torch.stack(results)

    return function(op, {}, list(rows), compute)


def mean(row, **options):
    dims = options.get("dim", list(range(len(row))))
    dims = [behind_rows(dim) for dim in (dims if isinstance(dims, list) else [dims])]
    return function("mean", options, [row], lambda x: x.mean(dims, keepdim=options.get("keep", False)))


def shapes():
    yield flatten((2, 3))
    yield flatten((2, 3, 2), **{"from": 1})
    yield flatten(tokens((2, 2)), **{"from": 0})
    yield reshape((2, 6), [3, 2, 2])
    yield reshape((2, 3, 2), [4, -1])
    yield reshape(tokens((6,)), [-1, 2])
    yield permute((2, 3), [1, 0])
    yield permute((2, 3, 4), [2, 0, 1])
    yield permute((2, 1, 3), [-1, 0, -2])
    yield permute(tokens((2, 3)), [1, 0])
    yield concat([(2,), (3,)])
    yield concat([(2, 3), (2, 1), (2, 2)], dim=1)
    yield concat([(1, 2, 2), (1, 3, 2)], dim=-2)
    yield concat([tokens((2,)), tokens((1,))], dim=0)
    for op in ("add", "multiply"):
        yield row_by_row(op, (3,), (3,))
        yield row_by_row(op, (2, 3), (3,), (2, 1))
        yield row_by_row(op, (1,), (2, 1, 3), (), (4, 1))
    yield mean((2, 3))
    yield mean((2, 3, 2), dim=0)
    yield mean((2, 3, 2), dim=-1, keep=True)
    yield mean((2, 3, 2), dim=[0, -1], keep=False)
    yield mean((2, 3), keep=True)


# --- what a case comes to ---


def draw(shape, generator):
    """Numbers of three digits behind the point: short in a file."""
    return torch.round(torch.randn(shape, generator=generator, dtype=torch.float64) * 1000) / 1000


def written(tensor):
    result = {"shape": list(tensor.shape), "values": tensor.detach().flatten().tolist()}
    if tensor.dtype == torch.int64:
        result["type"] = "int64"
    return result


def all_written(tensors):
    return {name: written(tensor) for name, tensor in tensors}


def draw_input(its, generator, rows):
    return its.clone() if isinstance(its, torch.Tensor) else draw((rows, *its), generator)


def fill(net, generator):
    """Parameters and buffers such as training may leave."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(draw(parameter.shape, generator))
        for name, buffer in net.named_buffers():
            if buffer.dtype == torch.int64:
                buffer.fill_(3)
            else:
                values = draw(buffer.shape, generator)
                buffer.copy_(values.abs() + 0.5 if name == "running_var" else values)


def vectors_of(case):
    # What is drawn for a case does not depend on the others.
    number = zlib.crc32(json.dumps([case.op, case.options, case.mode]).encode())
    generator = torch.Generator().manual_seed(number)
    net = case.net.double().train(case.mode == "train")
    fill(net, generator)
    inputs = [draw_input(its, generator, 2 + number % 2) for its in case.inputs]
    vectors = {
        "op": case.op,
        "options": case.options,
        "mode": case.mode,
        "inputs": [written(tensor) for tensor in inputs],
        "parameters": all_written(net.named_parameters()),
        "buffers": all_written(net.named_buffers()),
    }
    floats = [tensor.requires_grad_() for tensor in inputs if tensor.is_floating_point()]
    output = case.call(net, *inputs)
    vectors["output"] = written(output)
    if output.requires_grad:
        weights = draw(output.shape, generator)
        (output * weights).sum().backward()
        vectors["weights"] = written(weights)
        vectors["input_gradients"] = [written(tensor.grad) for tensor in floats]
        vectors["parameter_gradients"] = all_written((name, its.grad) for name, its in net.named_parameters())
    vectors["buffers_after"] = all_written(net.named_buffers())
    return vectors


def write_operators(path):
    families = (weighted_layers, pools, norms, element_by_element, sequences, shapes)
    lines = [compact(vectors_of(case)) for family in families for case in family()]
    with open(path, "w") as file:
        file.write('{"cases":[\n' + ",\n".join(lines) + "\n]}\n")


def compact(value):
    return json.dumps(value, separators=(",", ":"))


# --- TorchScript ---

STEPS = 20
ROWS = 8


class ScriptNet(nn.Module):
    """What TorchScript may have: two layers that share a weight, a buffer that is written to and one that is replaced.

    The loss of a row does not depend on the other rows.
    """

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.hidden.weight
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
            self.steps = self.steps + 1
        x = self.norm(self.again(torch.tanh(self.hidden(x))))
        return self.out(torch.tanh(x)) * self.scale


def draw_batches():
    generator = torch.Generator().manual_seed(1)
    teacher = draw((4, 3), generator)
    batches = []
    for _ in range(STEPS):
        rows = draw((ROWS, 4), generator)
        batches.append((rows, torch.round(torch.tanh(rows @ teacher) * 1000) / 1000))
    return batches


def train(net, batches):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for rows, targets in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows.float()), targets.float())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def save_script(net, path):
    """As most are saved, for evaluation; without notes on where its source was, which are longer than all the rest."""
    torch.jit.script(copy.deepcopy(net).eval()).save(path)
    with zipfile.ZipFile(path) as file:
        records = [(its.filename, file.read(its)) for its in file.infolist() if not its.filename.endswith(".debug_pkl")]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in records:
            file.writestr(zipfile.ZipInfo(name), content)


def shortly(tensor):
    """In decimal digits that give the same float32 again."""
    result = written(tensor)
    result["values"] = [float(f"{value:.9g}") for value in result["values"]]
    return result


def write_script(folder):
    torch.manual_seed(1)
    net = ScriptNet()
    before = nn.Linear(4, 4)
    save_script(net, os.path.join(folder, "script_net.pt"))
    batches = draw_batches()
    vectors = {
        "batches": [{"rows": written(rows), "targets": written(targets)} for rows, targets in batches],
        "before": {name: shortly(its) for name, its in before.named_parameters()},
    }
    alone = copy.deepcopy(net)
    vectors["losses"] = train(alone, batches)
    vectors["seen"] = shortly(alone.seen)
    vectors["steps"] = alone.steps.item()
    vectors["losses_between"] = train(nn.Sequential(before, copy.deepcopy(net), nn.SiLU()), batches)
    with open(os.path.join(folder, "script_net.json"), "w") as file:
        file.write("{\n" + ",\n".join(f'"{key}":{compact(value)}' for key, value in vectors.items()) + "\n}\n")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    write_operators(os.path.join(folder, "operators.json"))
    write_script(folder)


if __name__ == "__main__":
    main()
