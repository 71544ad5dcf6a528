#!/usr/bin/env python3
"""Writes placement_golden.txt: the best placements of groups on pods, by an integer program.

    pip install highspy numpy; python3 tests/golden/placement_golden.py tests/golden/placement_golden.txt

The program of arXiv:2509.15940 in whole nodes: n[i][j] nodes of group i in pod j, s[i][j] and y[j] binary, T; minimise alpha sum y + (1 - alpha) T.
A line: alpha, objective, rows, columns, then the free nodes of each pod.
"""
import random
import sys

import highspy
import numpy as np


def solve(free, rows, columns, alpha):
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("mip_rel_gap", 0.0)
    h.setOptionValue("mip_abs_gap", 1e-7)
    inf, pods = highspy.kHighsInf, len(free)
    n = lambda i, j: i * pods + j
    s = lambda i, j: rows * pods + i * pods + j
    y = lambda j: 2 * rows * pods + j
    widest = 2 * rows * pods + pods
    for i in range(rows):
        for j in range(pods):
            h.addVar(0, columns)
    for _ in range(rows * pods + pods):
        h.addVar(0, 1)
    h.addVar(1, pods)
    h.changeColsIntegrality(widest + 1, np.arange(widest + 1, dtype=np.int32), np.array([highspy.HighsVarType.kInteger] * (widest + 1)))
    for j in range(pods):
        h.changeColCost(y(j), alpha)
    h.changeColCost(widest, 1 - alpha)
    add = lambda low, high, terms: h.addRow(low, high, len(terms), np.array([c for c, _ in terms], dtype=np.int32), np.array([v for _, v in terms], dtype=float))
    for i in range(rows):
        add(columns, columns, [(n(i, j), 1) for j in range(pods)])
        add(-inf, 0, [(s(i, j), 1) for j in range(pods)] + [(widest, -1)])
        for j in range(pods):
            add(-inf, 0, [(n(i, j), 1), (s(i, j), -columns)])
    for j in range(pods):
        add(-inf, 0, [(n(i, j), 1) for i in range(rows)] + [(y(j), -free[j])])
    h.run()
    if h.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        sys.exit(f"no optimum for {free}, {rows}, {columns}")
    return h.getInfo().objective_function_value


def main(path):
    draw = random.Random(20261129)
    lines = []
    for case in range(20):
        pods, rows, columns = draw.randint(3, 6), draw.randint(2, 6), draw.choice([2, 3, 4, 6, 8])
        while True:
            free = [draw.randint(1, 2 * rows * columns // pods + 2) for _ in range(pods)]
            if rows * columns <= sum(free) <= 1.6 * rows * columns:
                break
        alpha = [0.0, 0.3, 0.5, 1.0][case % 4]
        lines.append(" ".join([f"{alpha} {solve(free, rows, columns, alpha):.6f} {rows} {columns}"] + [str(f) for f in free]))
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")


main(sys.argv[1])
