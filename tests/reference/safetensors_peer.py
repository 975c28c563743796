"""The reference implementation's side of safetensors_peer_test.cpp.

safetensors_peer.py read FILE    prints one line per tensor, by name: name dtype shape bytes-in-hex
safetensors_peer.py write FILE   writes tensors that the test knows
"""
import sys

import numpy
import safetensors
import safetensors.numpy

verb, path = sys.argv[1:]
if verb == "read":
    with safetensors.safe_open(path, framework="numpy") as opened:  # maps the file: alignment counts here
        opened.get_tensor("f")
    with open(path, "rb") as file:
        tensors = safetensors.deserialize(file.read())
    for name, t in sorted(tensors):
        print(name, t["dtype"], list(t["shape"]), bytes(t["data"]).hex())
else:
    tensors = {
        "f": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4,
        "h": numpy.array([0.5, -2.0], dtype=numpy.float16),
        "d": numpy.array([1e-3], dtype=numpy.float64),
        "u": numpy.array([1, 2, 3], dtype=numpy.uint8),
        "none": numpy.zeros((0, 5), dtype=numpy.float32),
        "scalar": numpy.array(7.0, dtype=numpy.float32),
    }
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np"})
