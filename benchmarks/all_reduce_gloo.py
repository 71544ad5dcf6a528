#!/usr/bin/env python3
"""Gloo's all_reduce of floats among processes, for all_reduce_bench to compare with: a line "<bytes> <median seconds>" per size.

    python3 all_reduce_gloo.py <ranks> <repetitions> <bytes>...

Needs PyTorch with torch.distributed (Debian: python3-torch). One thread per process: the ranks are what is parallel.
"""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def rank_main(rank, ranks, repetitions, sizes, meeting):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    for size in sizes:
        x = torch.zeros(size // 4)

        def run(times):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(times):
                dist.all_reduce(x)
            seconds = torch.tensor([(time.perf_counter() - start) / times], dtype=torch.float64)
            dist.broadcast(seconds, 0)
            return float(seconds)

        run(1)
        times = int(min(max(0.03 / run(1), 1), 2000))
        seconds = statistics.median(run(times) for _ in range(repetitions))
        if rank == 0:
            print(size, f"{seconds:.9f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, repetitions = int(sys.argv[1]), int(sys.argv[2])
    sizes = [int(s) for s in sys.argv[3:]]
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank_main, (ranks, repetitions, sizes, folder + "/meeting"), nprocs=ranks)
