#!/usr/bin/env python3
"""Prints a SHA-256 of the samples of every task in the run directories of `daps demo` and `daps demo discrete`.

    daps demo --out a && daps demo discrete --out b
    scripts/demo_digest.py a b

The digest is of the tensor bytes alone, so it stays the same when only the text in a file's header changes. Compare two versions of the
program on one machine: another processor may round differently.
"""

import hashlib
import json
import pathlib
import struct
import sys


def tensors(path):
    """Yields (name, dtype, shape, bytes) of a safetensors file, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    for name, about in sorted(header.items()):
        start, end = about["data_offsets"]
        yield name, about["dtype"], about["shape"], body[start:end]


def main(folders):
    files = sorted(f for folder in folders for f in pathlib.Path(folder).rglob("samples.safetensors"))
    if not files:
        sys.exit("no samples.safetensors below " + ", ".join(folders))
    for file in files:
        digest = hashlib.sha256()
        for name, dtype, shape, content in tensors(file):
            digest.update(f"{name} {dtype} {shape}\n".encode() + content)
        print(digest.hexdigest(), file.parent.name)


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit(__doc__))
