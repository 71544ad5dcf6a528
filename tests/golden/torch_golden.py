"""Writes folders of torch.distributed.checkpoint into torch/, as tests/io/torch_folder_test.cpp reads them.

    python3 torch_golden.py [folder]      (PyTorch 2.15, numpy, safetensors)

Element i of each tensor is ((i * 37 + 11 * its number) % 251 - 125) / 8, which every type here holds exactly. stored/ is what
dcp.save writes from four ranks, shards/ what HuggingFaceStorageWriter writes from them, a file for each.
"""
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

RANKS = 4


def element(number, shape, dtype):
    count = 1
    for extent in shape:
        count *= extent
    i = torch.arange(count, dtype=torch.int64)
    return (((i * 37 + 11 * number) % 251 - 125).to(torch.float64) / 8).to(dtype).reshape(shape)


def state(mesh):
    flat = mesh["row"]
    tensors = {
        "layer.weight": (distribute_tensor(element(0, (9, 6), torch.float32), mesh, [Shard(0), Shard(1)])),
        "layer.bias": (distribute_tensor(element(1, (7,), torch.bfloat16), flat, [Shard(0)])),
        "optim.state.layer.weight.exp_avg": distribute_tensor(element(2, (9, 6), torch.float64), mesh, [Replicate(), Shard(0)]),
        "cube": distribute_tensor(element(3, (3, 4, 5), torch.float16), flat, [Shard(2)]),
        "plain": element(4, (2, 3), torch.float32),
    }
    return tensors


def rank_main(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = DeviceMesh("cpu", torch.arange(RANKS).reshape(2, 2), mesh_dim_names=("row", "column"))
    tensors = state(mesh)
    full = dict(tensors)
    full["step"] = torch.tensor(3.0)
    full["param_groups"] = [{"lr": 0.5}]
    dcp.save(full, checkpoint_id=str(out / "stored"))
    dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(str(out / "shards"), save_distributed=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "torch")
    for name in ("stored", "shards"):
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    mp.spawn(rank_main, args=(out,), nprocs=RANKS)
