#!/usr/bin/env python3
"""Prints the numbers of the adaptive exchange in tests/train/branches_test.cpp, by NumPy in float64.

    python3 -m venv venv && venv/bin/pip install numpy && venv/bin/python branches_golden.py

The rule of PBaSR (arXiv:2407.14880): d = keep + (1 - keep) * the mean over tensors of the cosine between the branches, then
g' = d g + (1 - d) b and b' = d b + (1 - d) g, both of the weights before. Three exchanges with keep = 0.6 of weights in closed form.
"""
import numpy as np

WIDTH, HIDDEN, INPUTS, OUTPUTS, LAYERS = 6, 10, 2, 1, 2
KEEP = 0.6
COUNTS = {"in.weight": INPUTS * WIDTH, "in.bias": WIDTH, "out.weight": WIDTH * OUTPUTS, "out.bias": OUTPUTS}
for layer in range(LAYERS):
    at = f"block.{layer}."
    COUNTS |= {at + "norm.weight": WIDTH, at + "norm.bias": WIDTH}
    COUNTS |= {at + "mlp.up.weight": WIDTH * HIDDEN, at + "mlp.up.bias": HIDDEN}
    COUNTS |= {at + "mlp.down.weight": HIDDEN * WIDTH, at + "mlp.down.bias": WIDTH}


def weights(branch):
    of = {}
    for name in sorted(COUNTS):
        i, start = np.arange(COUNTS[name]), sum(name.encode())
        w = np.sin(start + 0.7 * i) + 0.8 * branch * np.cos(start + 0.3 * i)
        of[name] = w.astype(np.float32).astype(np.float64)
    return of


def cosine(a, b):
    return np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))


g, b = weights(0), weights(1)
for exchange in range(3):
    d = KEEP + (1 - KEEP) * np.mean([cosine(g[name], b[name]) for name in g])
    print(f"d of exchange {exchange}: {d:.9f}")
    g, b = {name: d * g[name] + (1 - d) * b[name] for name in g}, {name: d * b[name] + (1 - d) * g[name] for name in g}
for of in g, b:
    flat = np.concatenate([of[name] for name in sorted(of)])
    print(f"sum of {flat.size} weights by cos(i): {np.dot(flat, np.cos(np.arange(flat.size))):.9f}")
