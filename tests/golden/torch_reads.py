"""Reads a folder that heddle wrote (train::write_torch, convert --format torch or torch-sharded) with torch.distributed.checkpoint, as
DTensors of several layouts over 1 to 4 gloo ranks, and compares every element with what the package safetensors reads: there, or in a
second folder with the same tensors.

    python3 torch_reads.py FOLDER [FOLDER]     (PyTorch 2.15, safetensors)
"""
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors import safe_open
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor


def nested(flat):
    state = {"model": {}, "optim": {"state": {}}}
    for name, tensor in flat.items():
        if name.startswith("model."):
            state["model"][name[len("model."):]] = tensor
        else:
            parameter, _, kind = name[len("optim.state."):].rpartition(".")
            state["optim"]["state"].setdefault(parameter, {})[kind] = tensor
    return state


def flat(state):
    out = {"model." + name: tensor for name, tensor in state["model"].items()}
    for parameter, kinds in state["optim"]["state"].items():
        out.update({f"optim.state.{parameter}.{kind}": tensor for kind, tensor in kinds.items()})
    return out


def whole_tensors(folder):
    """Every tensor, put together from its boxes where files say their offsets (DCP_SHARDING_INFO)."""
    boxes = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as f:
            offsets = json.loads((f.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in f.keys():
                box = f.get_tensor(name)
                boxes.setdefault(name, []).append((offsets[name]["saved_offsets"] if offsets else [0] * box.dim(), box))
    whole = {}
    for name, parts in boxes.items():
        shape = [max(at[d] + box.shape[d] for at, box in parts) for d in range(parts[0][1].dim())]
        whole[name] = torch.zeros(shape, dtype=parts[0][1].dtype)
        seen = torch.zeros(shape, dtype=torch.int8)
        for at, box in parts:
            region = tuple(slice(a, a + n) for a, n in zip(at, box.shape))
            whole[name][region] = box
            seen[region] += 1
        assert torch.all(seen == 1), f"{name}: elements are missing or written twice"
    return whole


def rank_main(rank, ranks, folder, other):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519", RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = DeviceMesh("cpu", torch.arange(ranks))
    whole = whole_tensors(other)
    compared = 0
    for layout in ("shard 0", "shard 1", "replicated", "flattened"):
        state = {}
        for name, tensor in whole.items():
            empty = torch.full_like(tensor, -7)
            placement = {"shard 0": Shard(0), "shard 1": Shard(1)}.get(layout, Replicate())
            if layout == "flattened" or tensor.dim() == 0 or (layout == "shard 1" and tensor.dim() < 2):
                state[name] = empty  # a plain tensor, of which the part of a flat range is taken below
            else:
                state[name] = distribute_tensor(empty, mesh, [placement])
        state = nested(state)
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
        for name, tensor in flat(state).items():
            if hasattr(tensor, "full_tensor"):
                tensor = tensor.full_tensor()
            if layout == "flattened":
                n = tensor.numel()
                begin, end = n * rank // ranks, n * (rank + 1) // ranks
                assert torch.equal(tensor.flatten()[begin:end], whole[name].flatten()[begin:end]), name
            else:
                assert torch.equal(tensor, whole[name]), name
            compared += 1
    if rank == 0:
        print(f"{ranks} ranks: {compared} tensors of {len(whole)} in 4 layouts are equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (1, 2, 3, 4):
        mp.spawn(rank_main, args=(ranks, sys.argv[1], sys.argv[-1]), nprocs=ranks)
