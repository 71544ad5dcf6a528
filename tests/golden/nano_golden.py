#!/usr/bin/env python3
"""Writes nano_golden.txt: the least time of work on three lanes that share a device, by linear programming.

    pip install scipy; python3 tests/golden/nano_golden.py tests/golden/nano_golden.txt

One number for each mixture of shares of compute, memory and network (multiples of 0.05 that add up to at most 1): how long it lasts. Each lane's
work is done, at the speeds of the table of arXiv:2408.12757; the sum is least. A line: work of the three lanes, the least time.
"""
import random
import sys

import numpy as np
from scipy.optimize import linprog

TABLE = {
    "compute": ([0, 1], [0, 1]),
    "memory": ([0, 0.1, 0.2, 0.4, 0.8, 0.9, 1], [0, 0.2, 0.3, 0.8, 0.85, 0.95, 1]),
    "network": ([0, 0.1, 0.2, 0.8, 0.9, 1], [0, 0.3, 0.5, 0.9, 1, 1]),
}
STEPS = 20
MIXTURES = [(c, m, STEPS - c - m) for c in range(STEPS + 1) for m in range(STEPS + 1 - c)]
SPEEDS = np.array([[np.interp(s / STEPS, *TABLE[lane]) for s, lane in zip(mixture, TABLE)] for mixture in MIXTURES]).T


def least(work):
    r = linprog(np.ones(len(MIXTURES)), A_ub=-SPEEDS, b_ub=-np.array(work), method="highs")
    assert r.success
    return r.fun


def main(path):
    draw = random.Random(20261129)
    # Llama-2 70B on eight A100: products and attention of prompts, attention of decoded tokens, network; milliseconds.
    cases = [(16.08 + 16.01 + 69.92 + 34.96 + 4.56, 35.60, 47.92)]
    cases += [tuple(round(draw.uniform(0, 100), 2) for _ in range(3)) for _ in range(30)]
    with open(path, "w") as out:
        for work in cases:
            out.write(" ".join(map(str, work)) + f" {least(work):.9f}\n")


main(sys.argv[1])
