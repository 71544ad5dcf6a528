#!/usr/bin/env python3
"""Writes redco_golden.txt: PyTorch's float64 loss and gradients of a perceptron, and meta-gradients of MAML.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python redco_golden.py

Each line is a name and numbers. Weights and inputs are sines of their places, which the tests compute alike: see `numbers`.
The meta-gradients go through 1, 2 and 5 inner steps by `torch.autograd.grad(..., create_graph=True)`; of each every 43rd element is here, and the
product of the whole with `numbers(12, ...)`.
"""
import math
from pathlib import Path

import torch

torch.set_default_dtype(torch.float64)
lines = []


def numbers(which, *shape):
    count = math.prod(shape)
    return torch.tensor([math.sin(1 + 3 * which + 0.7 * i) for i in range(count)]).reshape(shape)


def tell(name, x):
    lines.append(name + " " + " ".join(repr(v) for v in x.detach().reshape(-1).tolist()))


def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


# A perceptron with a bias: 6 examples of 3 numbers, 8 hidden, 4 outputs; the sum of squared errors.
weights = [numbers(0, 3, 8), numbers(1, 8, 4), numbers(2, 4)]
for w in weights:
    w.requires_grad_()
x, target = numbers(3, 6, 3), numbers(4, 6, 4)
loss = ((gelu(x @ weights[0]) @ weights[1] + weights[2] - target) ** 2).sum()
loss.backward()
tell("loss", loss)
for name, w in zip(("in", "out", "bias"), weights):
    tell("loss." + name, w.grad)

# MAML on 4 sine waves, width 40, 10 points each, inner rate 0.01; weights are sines over the square root of the inputs.
tasks, width, points, rate = 4, 40, 10, 0.01
amplitude, phase = 2 + numbers(5, tasks), 1 + numbers(6, tasks)
samples = [5 * numbers(7, tasks, points), 5 * numbers(8, tasks, points)]


def error(w, t, part):
    x = samples[part][t]
    h = gelu(torch.stack((x, torch.ones_like(x)), 1) @ w[0])
    y = (gelu(h @ w[1]) @ w[2])[:, 0]
    return ((y - amplitude[t] * torch.sin(x - phase[t])) ** 2).mean()


for order in (1, 2):
    for steps in (1, 2, 5):
        start = [numbers(9, 2, width) / 2**0.5, numbers(10, width, width) / width**0.5, numbers(11, width, 1) / width**0.5]
        for w in start:
            w.requires_grad_()
        total = 0
        for t in range(tasks):
            w = start
            for _ in range(steps):
                g = torch.autograd.grad(error(w, t, 0), w, create_graph=order == 2)
                w = [a - rate * b for a, b in zip(w, g)]
            total = total + error(w, t, 1)
        total.backward()
        tell(f"maml.{order}.{steps}", total)
        whole = torch.cat([w.grad.reshape(-1) for w in start])
        tell(f"maml.{order}.{steps}.gradient", torch.cat((whole[::43], (whole @ numbers(12, len(whole)))[None])))

(Path(__file__).parent / "redco_golden.txt").write_text("\n".join(lines) + "\n")
