#!/usr/bin/env python3
"""Looks at what `tutti train` and the verbs beside it have written, with numpy and torch, for train_files_test.sh.

    train_files_peer.py images <run> <weights.safetensors> <weights.npz> <outputs.npy> <eval.json>
    train_files_peer.py table <run> <iris.csv> <weights.npz> <outputs.npy>...
    train_files_peer.py metrics <metrics.jsonl> <steps> <every so many> <evaluated every so many>
    train_files_peer.py events <run>
    train_files_peer.py trace <trace.json> <ranks>
    train_files_peer.py replicas <weights of one.npz> <of another.npz> <prefix of what each has for itself>
"""
import csv
import glob
import gzip
import json
import struct
import sys

import numpy as np

TYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}
IMAGES = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
LABELS = "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz"


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(content[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def read_npz(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def expect_close(found, expected):
    assert found.dtype == np.float32 and found.shape == expected.shape, (found.dtype, found.shape, expected.shape)
    difference = np.abs(found - expected).max()
    assert difference <= 1e-5, f"outputs differ by {difference}"


def computed(run, weights, value):
    """Of a run whose graph is a chain of layers, by torch, which takes a second to import."""
    import torch

    value = torch.from_numpy(value)
    with open(f"{run}/run.json", encoding="utf-8") as file:
        graph = json.load(file)["graph"]
    (last,) = graph["inputs"]
    for node in graph["nodes"]:
        assert node["inputs"] == [last], f"{node['id']} does not follow {last}"
        last = node["id"]
        if node["op"] == "linear":
            weight, bias = (torch.from_numpy(weights.pop(f"{last}.{part}")) for part in ("weight", "bias"))
            value = torch.nn.functional.linear(value, weight, bias)
        else:
            value = {"flatten": torch.nn.Flatten(), "relu": torch.relu, "tanh": torch.tanh}[node["op"]](value)
    assert graph["outputs"] == [last] and not weights, weights.keys()
    return value.numpy()


def images(run, safetensors, npz, outputs, evaluation):
    weights = read_npz(npz)
    same = read_safetensors(safetensors)
    assert list(weights) == list(same), (list(weights), list(same))
    for name, array in weights.items():
        assert array.dtype == same[name].dtype == np.float32 and (array == same[name]).all(), name

    rows = np.frombuffer(gzip.open(IMAGES).read()[16:], np.uint8).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(gzip.open(LABELS).read()[8:], np.uint8).astype(np.int64)
    found = computed(run, weights, rows / np.float32(255))
    expect_close(np.load(outputs), found)
    with open(evaluation, encoding="utf-8") as file:
        told = json.load(file)
    right = np.take_along_axis(found, labels[:, None], 1).astype(np.float64)
    loss = np.log(np.exp(found - right).sum(1)).mean()
    assert told["split"] == "test" and told["rows"] == len(labels)
    assert abs(told["loss"] - loss) < 1e-5, (told, loss)
    assert told["accuracy"] == (found.argmax(1) == labels).mean(), told


def table(run, path, npz, *outputs):
    """All rows of it are trained with, so that their mean and deviation are known."""
    with open(path, encoding="utf-8") as file:
        rows = [row[:4] for row in csv.reader(file)][1:]
    features = np.array(rows, np.float64)
    features = ((features - features.mean(0)) / features.std(0)).astype(np.float32)
    found = computed(run, read_npz(npz), features)
    for file in outputs:
        expect_close(np.load(file), found)


def metrics(path, steps, every, evaluated_every):
    steps, every, evaluated_every = int(steps), int(every), int(evaluated_every)
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        assert {"step", "epoch", "seconds", "loss"} <= set(line), line
        assert ("test_accuracy" in line) == ("test_loss" in line), line
        assert ("train_accuracy" in line) == ("lr" in line) == ("rows_per_second" in line), line
        assert "train_accuracy" in line or "test_accuracy" in line, line
    for kind, distance in (("train_accuracy", every), ("test_accuracy", evaluated_every)):
        told = [line["step"] for line in lines if kind in line]
        assert told == list(range(distance, steps + 1, distance)), (kind, told)
    for key in ("step", "seconds"):
        assert [line[key] for line in lines] == sorted(line[key] for line in lines), key


def fields(message):
    """Of a protobuf message: numbers, and what is in them."""
    place = 0

    def number():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        key = number()
        size = {0: None, 1: 8, 5: 4}.get(key & 7, -1)
        if size is None:
            yield key >> 3, number()
            continue
        if size < 0:
            size = number()
        yield key >> 3, message[place : place + size]
        place += size


def scalars(path):
    with open(path, "rb") as file:
        content = file.read()
    place = 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        event = dict(fields(content[place + 12 : place + 12 + length]))
        place += 16 + length
        for _, value in fields(event.get(5, b"")):
            value = dict(fields(value))
            yield value[1].decode(), event[2], struct.unpack("<f", value[2])[0]
    assert place == len(content), "the last record is not whole"


def events(run):
    (path,) = glob.glob(f"{run}/events.out.tfevents.*")
    found = {}
    for tag, step, value in scalars(path):
        found.setdefault(tag, {})[step] = value
    assert set(found) == {"train/loss", "train/lr", "train/accuracy", "test/loss", "test/accuracy"}, set(found)
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as file:
        for line in map(json.loads, file):
            for tag, key in (("train/loss", "loss"), ("test/loss", "test_loss"), ("test/accuracy", "test_accuracy")):
                if key in line:
                    assert found[tag][line["step"]] == np.float32(line[key]), (tag, line)


def trace(path, ranks):
    with open(path, encoding="utf-8") as file:
        spans = json.load(file)
    kinds = {"compute", "communication", "waiting", "data"}
    missing = [
        f"{kind} of rank {rank}"
        for rank in range(int(ranks))
        for kind in sorted(kinds)
        if not any(span["ph"] == "X" and span["pid"] == rank and span["cat"] == kind for span in spans)
    ]
    threads = {}
    for span in spans:
        if span["ph"] == "M":
            assert span["name"] in ("process_name", "thread_name") and span["args"]["name"], span
            continue
        assert span["cat"] in kinds and span["dur"] >= 0 and span["name"], span
        threads.setdefault((span["pid"], span["tid"]), []).append((span["ts"], -span["dur"]))
    assert {rank for rank, _ in threads} == set(range(int(ranks))), set(threads)
    # Viewers take spans of a thread that are one after the other, or one inside the other.
    for thread, its in threads.items():
        assert its == sorted(its), f"{thread} goes back in time"
        open_until = []
        for begin, dur in its:
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or begin - dur <= open_until[-1] + 1e-3, f"spans of {thread} cross at {begin}"
            open_until.append(begin - dur)
    # Clocks of all of them are the same: they train together.
    begins = [min(ts for (rank, _), its in threads.items() if rank == one for ts, _ in its) for one in range(int(ranks))]
    assert max(begins) - min(begins) < 1e6, begins
    assert not missing, f"there is no {', no '.join(missing)}"


def replicas(one, other, prefix):
    one, other = read_npz(one), read_npz(other)
    assert list(one) == list(other)
    own = [name for name in one if name.startswith(prefix)]
    assert own and len(own) < len(one), own
    for name, array in one.items():
        same = np.array_equal(array, other[name])
        counts = name.endswith("num_batches_tracked")
        assert same == (name not in own or counts), f"{name} is {'the same' if same else 'another'}"


verb, *arguments = sys.argv[1:]
try:
    {"images": images, "table": table, "metrics": metrics, "events": events, "trace": trace, "replicas": replicas}[verb](*arguments)
except AssertionError as error:
    sys.exit(f"{verb}: {error}")
