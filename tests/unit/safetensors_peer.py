#!/usr/bin/env python3
"""Reads and writes safetensors on its own, with nothing but Python's library, for safetensors_test.sh to compare with.

    safetensors_peer.py show <file>      what is in it, as safetensors_worker says it; the checksum is required
    safetensors_peer.py write <file>     a file laid out otherwise than tutti does it: with blanks, data in another order
"""
import json
import math
import struct
import sys

FORMATS = {"F32": "f", "F64": "d", "F16": "e", "BF16": "H", "I32": "i", "I64": "q"}
KEY = "tutti.checksum"
MASK = (1 << 64) - 1
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def rotated(value, bits):
    value &= MASK
    return (value << bits | value >> (64 - bits)) & MASK


def mixed(lane, word):
    return rotated(lane + word * PRIMES[1], 31) * PRIMES[0] & MASK


def xxh64(data):
    """As https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md has it, with seed 0."""
    one, two, three, four, five = PRIMES
    place = 0
    if len(data) < 32:
        total = five
    else:
        lanes = [(one + two) & MASK, two, 0, -one & MASK]
        while place + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, place)
            lanes = [mixed(lane, word) for lane, word in zip(lanes, words)]
            place += 32
        total = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            total = ((total ^ mixed(0, lane)) * one + four) & MASK
    total = (total + len(data)) & MASK
    while place + 8 <= len(data):
        total = (rotated(total ^ mixed(0, struct.unpack_from("<Q", data, place)[0]), 27) * one + four) & MASK
        place += 8
    if place + 4 <= len(data):
        total = (rotated(total ^ struct.unpack_from("<I", data, place)[0] * one & MASK, 23) * two + three) & MASK
        place += 4
    for byte in data[place:]:
        total = rotated(total ^ byte * five & MASK, 11) * one & MASK
    total = (total ^ total >> 33) * two & MASK
    total = (total ^ total >> 29) * three & MASK
    return total ^ total >> 32


def as_number(dtype, value):
    return struct.unpack("<f", struct.pack("<I", value << 16))[0] if dtype == "BF16" else value


def show(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    metadata = header.pop("__metadata__", {})

    digits = metadata.pop(KEY).encode()
    assert content.count(digits) == 1
    assert xxh64(content.replace(digits, b"0" * 16)) == int(digits, 16), "the checksum is another one"

    covered = 0
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        assert entry["data_offsets"][0] == covered, "a hole or an overlap"
        covered = entry["data_offsets"][1]
    assert covered == len(data)

    for key in sorted(metadata):
        print(f"{key} = {metadata[key]}")
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = struct.unpack(f"<{math.prod(entry['shape'])}{FORMATS[entry['dtype']]}", data[begin:end])
        values = [as_number(entry["dtype"], value) for value in values]
        print(f"{name} {entry['dtype']} {entry['shape']}:", *("%.17g" % value for value in values))


def write(path):
    arrays = {
        "last": ("BF16", [2, 2], [0x3F80, 0x4000, 0xBF80, 0x3E80]),
        "weights": ("F32", [3], [0.1, -2.5, math.inf]),
        "halves": ("F16", [1, 3], [0.5, -0.0, 65504.0]),
        "nothing": ("I32", [0, 7], []),
        "steps": ("I64", [], [-(2**53)]),
        "größe": ("F64", [2], [1 / 3, 1e-300]),
        "counts": ("I32", [2], [-1, 2**31 - 1]),
    }
    header = {}
    data = b""
    for name in sorted(arrays):
        dtype, shape, values = arrays[name]
        begin = len(data)
        data += struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        header[name] = {"shape": shape, "data_offsets": [begin, len(data)], "dtype": dtype}
    header = {name: header[name] for name in arrays}
    header["__metadata__"] = {"format": "pt", KEY: "0" * 16, "by": "Python, \"with\" quotes"}
    text = json.dumps(header, indent=1).encode()
    content = struct.pack("<Q", len(text)) + text + data
    with open(path, "wb") as file:
        file.write(content.replace(b"0" * 16, b"%016x" % xxh64(content), 1))


{"show": show, "write": write}[sys.argv[1]](sys.argv[2])
