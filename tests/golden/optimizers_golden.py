#!/usr/bin/env python3
"""Writes optimizers_golden.txt: 20 steps of optimizers in double, by PyTorch, and of Lion by its published rule.

    python3 -m venv venv && venv/bin/pip install torch && venv/bin/python optimizers_golden.py

A matrix of 3 x 4, which decays, and a vector of 5, which does not: 17 numbers in a line. First the weights before all steps; then of each of
20 steps the learning rate and the gradients; then of each case a line `case <name>` and the weights behind each step.
"""
import math
from pathlib import Path

import torch

STEPS = 20
torch.set_default_dtype(torch.float64)


def start():
    torch.manual_seed(7)
    return torch.randn(3, 4), torch.randn(5)


def gradients(step):
    torch.manual_seed(100 + step)
    return torch.randn(3, 4) * 0.5, torch.randn(5) * 0.5


def rate(step):
    return 0.01 * (1 + math.cos(0.3 * step))


def by_torch(make):
    w, b = (torch.nn.Parameter(x) for x in start())
    optimizer = make(w, b)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        w.grad, b.grad = gradients(step)
        optimizer.step()
        yield w.detach(), b.detach()


def sgd(**options):
    return lambda w, b: torch.optim.SGD([{"params": [w], "weight_decay": 0.1}, {"params": [b], "weight_decay": 0}], lr=1, **options)


def adamw(w, b):
    return torch.optim.AdamW([{"params": [w], "weight_decay": 0.1}, {"params": [b], "weight_decay": 0}], lr=1, betas=(0.9, 0.95), eps=1e-8)


def lion():
    """Algorithm 2 of arXiv:2302.06675, beta1 0.9, beta2 0.99, weight decay 0.1."""
    state = [(x, torch.zeros_like(x), decay) for x, decay in zip(start(), (0.1, 0.0))]
    for step in range(STEPS):
        for (x, m, decay), g in zip(state, gradients(step)):
            c = 0.9 * m + (1 - 0.9) * g
            x -= rate(step) * (torch.sign(c) + decay * x)
            m.copy_(0.99 * m + (1 - 0.99) * g)
        yield state[0][0], state[1][0]


def numbers(w, b):
    return " ".join(repr(x) for x in [*w.flatten().tolist(), *b.tolist()])


cases = {
    "sgd": by_torch(sgd(momentum=0.9)),
    "sgd_plain": by_torch(sgd(momentum=0)),
    "sgd_dampening": by_torch(sgd(momentum=0.8, dampening=0.3)),
    "sgd_nesterov": by_torch(sgd(momentum=0.9, nesterov=True)),
    "adamw": by_torch(adamw),
    "lion": lion(),
}
lines = [numbers(*start())] + [f"{rate(step)!r} {numbers(*gradients(step))}" for step in range(STEPS)]
for name, steps in cases.items():
    lines.append(f"case {name}")
    lines += [numbers(w, b) for w, b in steps]
(Path(__file__).parent / "optimizers_golden.txt").write_text("\n".join(lines) + "\n")
