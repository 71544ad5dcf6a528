#!/usr/bin/env python3
"""Writes rl_critic_golden.txt: value losses and gradients of verl's `compute_value_loss`, of 300 random batches in double.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/pip install --no-deps verl==0.9.1 && venv/bin/python rl_critic_golden.py

As rl_golden.py: numbers come from a generator that tests/rl/critic_test.cpp has alike. Of each batch a line: loss, sum of the gradients by values
times c, sum of their magnitudes.
"""
import ast
from pathlib import Path

import torch

HERE = Path(__file__).parent
# What rl_golden.py defines, without what it does.
source = ast.parse((HERE / "rl_golden.py").read_text())
kept = [n for n in source.body if isinstance(n, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))]
exec(compile(ast.Module(kept, []), "rl_golden.py", "exec"))
torch.set_default_dtype(torch.float64)

algos = core_algos()  # noqa: F821
g = Generator(45)  # noqa: F821
lines = []
for _ in range(300):
    n = 1 + g.integer(12)
    values, before, returns = g.matrix(1, n, -2, 2).requires_grad_(), g.matrix(1, n, -2, 2), g.matrix(1, n, -2, 2)
    mask = torch.tensor([[float(g.integer(4) > 0) for _ in range(n)]])
    mask[0, 0] = 1
    clip = (1 + g.integer(8)) / 8
    c = g.matrix(1, n, -1, 1)
    loss, _ = algos.compute_value_loss(values, returns, before, mask, clip, "token-mean")
    loss.backward()
    lines.append(f"{loss.item()!r} {(values.grad * c).sum().item()!r} {values.grad.abs().sum().item()!r}")
(HERE / "rl_critic_golden.txt").write_text("\n".join(lines) + "\n")
