#!/usr/bin/env python3
"""torch.distributed.checkpoint beside save_bench: how long async_save holds a step, in one sitting on one machine.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python benchmarks/save_torch.py [folder] [rounds] [layers]

The bytes are those of save_bench: weights and both moments of a GPT-2 of width 512, on two ranks (gloo, a process
each). "copies": both ranks have all of it, as zero<0>; "shards": each has half, as DTensor. Times are those of the
slower rank, medians over rounds. Each round also copies the bytes that a rank writes, and writes and flushes them.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS, WIDTH, VOCABULARY, CONTEXT = 2, 512, 8192, 16


def shapes(layers):
    w = WIDTH
    yield from (("wte", (VOCABULARY, w)), ("wpe", (CONTEXT, w)), ("ln_f.weight", (w,)), ("ln_f.bias", (w,)))
    for k in range(layers):
        for name, shape in (
            ("ln_1.weight", (w,)), ("ln_1.bias", (w,)), ("attn.c_attn.weight", (w, 3 * w)), ("attn.c_attn.bias", (3 * w,)),
            ("attn.c_proj.weight", (w, w)), ("attn.c_proj.bias", (w,)), ("ln_2.weight", (w,)), ("ln_2.bias", (w,)),
            ("mlp.c_fc.weight", (w, 4 * w)), ("mlp.c_fc.bias", (4 * w,)), ("mlp.c_proj.weight", (4 * w, w)),
            ("mlp.c_proj.bias", (w,)),
        ):  # fmt: skip
            yield f"h.{k}.{name}", shape


def timed(work):
    dist.barrier()
    begin = time.perf_counter()
    result = work()
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item(), result


def write_and_flush(path, data):
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data.numpy()).cast("B")
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def run(rank, folder, rounds, layers, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    saving = dist.new_group(backend="gloo")  # async_save's thread communicates: on one group its calls would cross ours
    full = {f"{kind}.{name}": torch.randn(shape) for kind in ("weight", "exp_avg", "exp_avg_sq") for name, shape in shapes(layers)}
    shards = {name: distribute_tensor(x, mesh, [Shard(0)]) for name, x in full.items()}
    mine = sum(x.numel() for x in full.values()) * 4 // RANKS
    source, copy = torch.ones(mine // 4), torch.zeros(mine // 4)
    rows = {}

    def note(name, seconds):
        rows.setdefault(name, []).append(seconds)

    blocking = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    for kind, state in (("copies", full), ("shards", shards)):
        for stager_name, keep in (("", False), (", memory kept", True)):
            stager = DefaultStager(blocking) if keep else None
            for round_number in range(rounds + 1):
                at = os.path.join(folder, "async")
                held, future = timed(lambda: dcp.async_save(state, checkpoint_id=at, async_stager=stager, process_group=saving))
                there, _ = timed(lambda: getattr(future, "upload_completion", future).result())
                if round_number > 0 or not keep:  # what is kept is allocated at the first one
                    note(f"{kind}: held by async_save{stager_name}", held)
                    note(f"{kind}: there after{stager_name}", there)
                dist.barrier()
                if rank == 0:
                    shutil.rmtree(at)
            if stager is not None:
                stager.close()
        for _ in range(rounds):
            at = os.path.join(folder, "waited")
            note(f"{kind}: save that is waited for", timed(lambda: dcp.save(state, checkpoint_id=at, process_group=saving))[0])
            note("one copy of a rank's bytes", timed(lambda: copy.copy_(source))[0])
            plain = os.path.join(folder, f"plain-{rank}")
            note("write and fsync of the same bytes", timed(lambda: write_and_flush(plain, source))[0])
            os.remove(plain)
            dist.barrier()
            if rank == 0:
                shutil.rmtree(at)
    if rank == 0:
        print(f"torch {torch.__version__}, {RANKS} ranks, {mine} bytes of one")
        one_copy = statistics.median(rows["one copy of a rank's bytes"])
        for name, seconds in rows.items():
            print(f"{name:48} {1e3 * statistics.median(seconds):9.1f} ms   {statistics.median(seconds) / one_copy:7.2f} x the copy")
    dist.destroy_process_group()


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "."
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    layers = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    with tempfile.TemporaryDirectory(dir=base) as folder:
        processes.spawn(run, (folder, rounds, layers, 29000 + os.getpid() % 1000), RANKS)
