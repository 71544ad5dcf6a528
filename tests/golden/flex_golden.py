#!/usr/bin/env python3
"""Writes flex_golden.txt: the best groups for microbatches of documents, by an integer program.

    pip install highspy numpy; python3 tests/golden/flex_golden.py tests/golden/flex_golden.txt

16 ranks in groups of 2, 4, 8 or 16, up to 40 documents, the costs of GPT-7B of arXiv:2412.01523. For each way to write 16 as groups a program with
one binary number for each document and group minimises the slowest group's seconds. A line: capacity, seconds found, the bound below, then lengths.
"""
import math
import random
import sys

import highspy
import numpy as np

SQUARE, LINEAR, FIXED, LAYERS, WIDTH = 5.128e-9, 0.1839576e-3, 0.6293563, 32, 4096
RATE = {2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33}
RANKS, CAPACITY = 16, 6449


def seconds(s, d):
    return (SQUARE * s * s + LINEAR * s) / d + 8 * LAYERS * WIDTH * s * 2 / 2**20 / d / RATE[d] / 1000


def ways(n, largest):
    if n == 0:
        yield []
    for d in (16, 8, 4, 2):
        if d <= min(n, largest):
            for rest in ways(n - d, d):
                yield [d] + rest


def solve(lengths, groups, below):
    """Seconds of the best placement and a bound, or None if it is not below `below`."""
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("time_limit", 20.0)
    h.setOptionValue("mip_rel_gap", 2e-3)
    h.setOptionValue("objective_bound", below)
    inf = highspy.kHighsInf
    n, g = len(lengths), len(groups)
    for _ in range(n * g):
        h.addVar(0, 1)
    h.addVar(0, inf)  # the slowest group
    h.changeColsIntegrality(n * g, np.arange(n * g, dtype=np.int32), np.array([highspy.HighsVarType.kInteger] * (n * g)))
    h.changeColCost(n * g, 1.0)
    for i in range(n):
        h.addRow(1, 1, g, np.arange(i * g, (i + 1) * g, dtype=np.int32), np.ones(g))
    for p, d in enumerate(groups):
        at = np.arange(p, n * g, g, dtype=np.int32)
        h.addRow(-inf, CAPACITY, n, at, np.array([-(-s // d) for s in lengths], dtype=float))
        h.addRow(-inf, 0, n + 1, np.append(at, n * g).astype(np.int32), np.append([seconds(s, d) for s in lengths], -1.0))
    h.run()
    info = h.getInfo()
    if h.getModelStatus() not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
        return None
    if info.primal_solution_status != 2:
        return None
    return info.objective_function_value, info.mip_dual_bound


def main():
    random.seed(11)
    out = open(sys.argv[1], "w")  # the solver prints its name
    for case in range(20):
        count = random.randint(12, 40)
        lengths = []
        while len(lengths) < count:
            s = int(random.lognormvariate(math.log(900), 1.3))
            if 16 <= s <= RANKS * CAPACITY // 2 and sum(lengths) + s < 0.9 * RANKS * CAPACITY:
                lengths.append(s)
            elif sum(lengths) > 0.8 * RANKS * CAPACITY:
                break
        lengths.sort(reverse=True)
        best, bound = math.inf, math.inf
        for groups in ways(RANKS, RANKS):
            # No placement is faster than all work on all ranks, or than the longest document on the largest group.
            least = max(sum(min(seconds(s, d) * d for d in set(groups)) for s in lengths) / RANKS,
                        min(seconds(lengths[0], d) for d in set(groups) if -(-lengths[0] // d) <= CAPACITY) if -(-lengths[0] // groups[0]) <= CAPACITY else math.inf)
            if least >= best * 0.998:
                bound = min(bound, least)
                continue
            found = solve(lengths, groups, best)
            if found is None:
                bound = min(bound, best)
                continue
            best, bound = min(best, found[0]), min(bound, found[1])
        print(CAPACITY, f"{best + FIXED:.9f}", f"{min(bound, best) + FIXED:.9f}", *lengths, file=out, flush=True)


main()
