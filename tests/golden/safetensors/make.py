#!/usr/bin/env python3
"""Writes the safetensors files of this folder with the packages `safetensors` (0.8) and `torch` (2.15): python3 make.py"""
import json
import struct
from pathlib import Path

import torch
from safetensors import TensorSpec, serialize
from safetensors.torch import save

HERE = Path(__file__).parent


def write(name, data):
    (HERE / name).write_bytes(data)


def all_types():
    """Every element type that the package writes, two elements each, and what its own sort makes of them."""
    names = ("bool uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz int16 uint16 float16 "
             "bfloat16 int32 uint32 float32 complex64 float64 int64 uint64").split()
    size = {"bool": 1, "complex64": 8, "bfloat16": 2}
    keep, specs = [], {}
    for k, n in enumerate(names):
        bits = 8 if n.startswith("float8") else size[n] * 8 if n in size else int("".join(c for c in n if c.isdigit()))
        data = torch.tensor([(k + i) % 2 if n == "bool" else (7 * k + i) % 120 for i in range(2 * bits // 8)], dtype=torch.uint8)
        keep.append(data)
        specs["t." + n] = TensorSpec(dtype=n, shape=[2, 1], data_ptr=data.data_ptr(), data_len=data.numel())
    specs["scalar"] = TensorSpec(dtype="int16", shape=[], data_ptr=keep[0].data_ptr(), data_len=2)
    specs["none"] = TensorSpec(dtype="float32", shape=[0, 3], data_ptr=0, data_len=0)
    specs['quoted "\\\n\u00e9\u0001'] = TensorSpec(dtype="uint8", shape=[1], data_ptr=keep[0].data_ptr(), data_len=1)
    return serialize(specs, {"format": "pt"})


def conversions():
    """Numbers of 8, 16 and 64 bits, and the floats that torch makes of them."""
    codes = torch.arange(256, dtype=torch.uint8)
    out = {}
    for name, kind in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        out[name] = codes.clone().view(kind)
        out[name + ".f32"] = out[name].float()
    torch.manual_seed(3)
    x = torch.cat([torch.randn(60, dtype=torch.float64) * 10.0 ** torch.randint(-9, 6, (60,)).double(),
                   torch.tensor([0.0, -0.0, 1e300, -1e-300, 65519.999999, 65520.0, 1 + 2.0 ** -8 + 2.0 ** -40, 1 + 2.0 ** -11 + 2.0 ** -60])])
    out["x"] = x
    out["x.f32"] = x.float()
    out["f16"] = x.float().half()
    out["f16.f32"] = out["f16"].float()
    out["bf16"] = x.float().bfloat16()
    out["bf16.f32"] = out["bf16"].float()
    return save(out)


def sharded():
    """Two tensors of 5 x 3 and 4 in two files, with the index that transformers writes."""
    files = {"model-00001-of-00002.safetensors": {"a": torch.arange(15, dtype=torch.float32).reshape(5, 3)},
             "model-00002-of-00002.safetensors": {"b": torch.arange(4, dtype=torch.float32)}}
    folder = HERE / "sharded"
    folder.mkdir(exist_ok=True)
    for name, tensors in files.items():
        (folder / name).write_bytes(save(tensors, {"format": "pt"}))
    index = {"metadata": {"total_size": 76}, "weight_map": {t: name for name, tensors in files.items() for t in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


write("types.safetensors", all_types())
write("conversions.safetensors", conversions())
sharded()
for path in sorted(HERE.glob("**/*.safetensors")):
    data = path.read_bytes()
    print(path.relative_to(HERE), len(data), struct.unpack("<Q", data[:8])[0])
