#!/usr/bin/env python3
"""Writes matrix_optimizers_golden.txt: 20 steps in double of optimizers that act on whole matrices, by PyTorch.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python matrix_optimizers_golden.py

Matrices of 3 x 4, 6 x 2 and 4 x 4, which decay, and a vector of 5, which does not: 45 numbers in a line. First the weights before all steps;
then of each of 20 steps the learning rate and the gradients; then of each case a line `case <name>` and the weights behind each step. Muon's
iteration runs in double, where PyTorch rounds to bf16; what is no matrix goes by AdamW, and so does the last matrix in the case muon_by_adamw.
Adafactor without its relative step, or without the scale of the parameter, is by algorithm 4 of arXiv:1804.04235, since PyTorch has both always.
"""
import math
from pathlib import Path

import torch

STEPS = 20
SHAPES = [(3, 4), (6, 2), (4, 4), (5,)]
torch.set_default_dtype(torch.float64)
torch.bfloat16 = torch.float64  # of Muon's iteration


def start():
    torch.manual_seed(7)
    return [torch.randn(shape) for shape in SHAPES]


def gradients(step):
    torch.manual_seed(100 + step)
    return [torch.randn(shape) * 0.5 for shape in SHAPES]


def rate(step):
    return 0.01 * (1 + math.cos(0.3 * step))


def by_torch(make):
    parameters = [torch.nn.Parameter(x) for x in start()]
    optimizers = make(parameters)
    for step in range(STEPS):
        for p, g in zip(parameters, gradients(step)):
            p.grad = g
        for optimizer, factor in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * rate(step)
            optimizer.step()
        yield [p.detach() for p in parameters]


def muon(by_adamw=(), factor=1.0, **options):
    def make(parameters):
        others = [parameters[i] for i in by_adamw]
        matrices = [p for i, p in enumerate(parameters) if p.dim() == 2 and i not in by_adamw]
        groups = [{"params": others, "weight_decay": 0.1}, {"params": parameters[3:], "weight_decay": 0}]
        return [
            (torch.optim.Muon(matrices, lr=1, weight_decay=0.1, **options), 1.0),
            (torch.optim.AdamW([g for g in groups if g["params"]], lr=1, betas=(0.9, 0.95), eps=1e-8), factor),
        ]

    return make


def adafactor(weight_decay=0.0, **options):
    def make(parameters):
        groups = [{"params": parameters[:3], "weight_decay": weight_decay}, {"params": parameters[3:], "weight_decay": 0}]
        return [(torch.optim.Adafactor(groups, lr=1, **options), 1.0)]

    return make


def published_adafactor(relative_step, scales):
    """Algorithm 4 of arXiv:1804.04235 without momentum, with the constants of PyTorch."""
    eps1, eps2 = torch.finfo(torch.float64).eps, 1e-3
    parameters = start()
    seconds = [[torch.zeros(shape[0]), torch.zeros(shape[-1])] for shape in SHAPES]
    rms = lambda x: (x * x).mean().sqrt().item()
    for step in range(STEPS):
        beta = 1 - (step + 1) ** -0.8
        rho = min(rate(step), (step + 1) ** -0.5) if relative_step else rate(step)
        for p, g, second in zip(parameters, gradients(step), seconds):
            if p.dim() == 2:
                for k in (0, 1):
                    second[k] = beta * second[k] + (1 - beta) * (g * g).mean(dim=1 - k)
                v = torch.outer(second[0], second[1]) / max(second[0].mean().item(), eps1)
            else:
                second[0] = beta * second[0] + (1 - beta) * g * g
                v = second[0]
            u = g / v.clamp(min=eps1 * eps1).sqrt()
            alpha = rho * (max(eps2, rms(p)) if scales else 1)
            p -= alpha * u / max(1.0, rms(u))
        yield parameters


def numbers(tensors):
    return " ".join(repr(x) for t in tensors for x in t.flatten().tolist())


cases = {
    "muon": by_torch(muon()),
    "muon_plain": by_torch(muon(nesterov=False, momentum=0.8, ns_steps=3)),
    "muon_match_rms": by_torch(muon(adjust_lr_fn="match_rms_adamw")),
    "muon_by_adamw": by_torch(muon(by_adamw=[2], factor=0.5)),
    "adafactor": by_torch(adafactor()),
    "adafactor_decay": by_torch(adafactor(weight_decay=0.1, beta2_decay=-0.6, eps=(1e-10, 1e-2), d=1.5)),
    "adafactor_unscaled": published_adafactor(True, False),
    "adafactor_absolute": published_adafactor(False, True),
}
lines = [numbers(start())] + [f"{rate(step)!r} {numbers(gradients(step))}" for step in range(STEPS)]
for name, steps in cases.items():
    lines.append(f"case {name}")
    lines += [numbers(tensors) for tensors in steps]
(Path(__file__).parent / "matrix_optimizers_golden.txt").write_text("\n".join(lines) + "\n")
