#!/usr/bin/env python3
"""Writes rl_golden.txt: losses and gradients of verl's `core_algos`, of 1000 random batches in double.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/pip install --no-deps verl==0.9.1 && venv/bin/python rl_golden.py

Numbers of batches are dyadic and come from a generator that tests/rl/objective_test.cpp has alike; the file holds results only. Of each batch a line: loss,
sum of the gradients by log-probabilities times c, sum of their magnitudes; c comes from the generator. Then of each of 200 groups of rewards the
advantages by GRPO (epsilon 1e-4) and RLOO; then of each of 50 answers the advantages by GAE before whitening, as returns - values.

Only `verl.trainer.ppo.core_algos` and what it calls are imported; what they import beside, and do not call here, is a stand-in.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

torch.set_default_dtype(torch.float64)
HERE = Path(__file__).parent


class Stand_in(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """For modules that are not installed, last of all."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def core_algos():
    root = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    for name in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo"):  # without their __init__
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    utils = sys.modules["verl.utils"]
    utils.as_torch_index = utils.group_mean_std = None
    for name in ("verl.trainer.config", "verl.workers", "verl.workers.config"):
        sys.modules[name] = MagicMock(name=name)
    sys.modules["verl.trainer.config"].AlgoConfig = type("AlgoConfig", (), {})
    sys.meta_path.append(Stand_in())
    import verl.trainer.ppo.core_algos as module

    return module


class Generator:
    """x := 6364136223846793005 x + 1442695040888963407 modulo 2^64; numbers are of the upper bits."""

    def __init__(self, seed):
        self.x = seed

    def integer(self, below):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.x >> 33) % below

    def number(self, least, most):  # a multiple of 1 / 1024
        return least + self.integer((most - least) * 1024 + 1) / 1024

    def matrix(self, rows, columns, least, most):
        return torch.tensor([[self.number(least, most) for _ in range(columns)] for _ in range(rows)])


class Config(dict):
    def __getattr__(self, name):
        return self.get(name)


MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KL = ["k1", "k2", "k3", "k3+"]


def batches(algos):
    g = Generator(42)
    for case in range(1000):
        rows, columns = 1 + g.integer(4), 1 + g.integer(6)
        lp = g.matrix(rows, columns, -4, 0).requires_grad_()
        spread = 25 if case % 10 == 0 else 1  # some ratios are cut at exp(20)
        behaviour = lp.detach() + g.matrix(rows, columns, -spread, spread)
        proximal = lp.detach() + g.matrix(rows, columns, -spread, spread)
        reference = lp.detach() + g.matrix(rows, columns, -spread, spread)
        advantages = g.matrix(rows, columns, -2, 2)
        mask = torch.tensor([[float(g.integer(4) > 0) for _ in range(columns)] for _ in range(rows)])
        if case % 7 == 0:
            mask[0] = 0  # an answer of which nothing counts
        if mask.sum() == 0:
            mask[-1, -1] = 1
        mode, kind, kl = MODES[g.integer(3)], g.integer(4), g.integer(5)
        config = Config(clip_ratio=0.2, clip_ratio_low=0.25, clip_ratio_high=0.375, clip_ratio_c=3.0, global_batch_info=Config(loss_scale_factor=16))
        if kind == 0:  # reinforce without weights
            loss, _ = algos.compute_policy_loss_reinforce(behaviour, lp, advantages, mask, mode, config)
        elif kind == 1:  # truncated weights, not differentiated
            w = torch.exp(torch.clamp(lp - behaviour, -20, 20)).clamp(max=5.0).detach()
            loss, _ = algos.compute_policy_loss_reinforce(behaviour, lp, advantages, mask, mode, config, w)
        elif kind == 2:
            loss, _ = algos.compute_policy_loss_vanilla(proximal, lp, advantages, mask, mode, config)
        else:  # decoupled: the weight of what the batch began with
            w = torch.exp(torch.clamp(proximal - behaviour, -20, 20)).clamp(max=2.0)
            loss, _ = algos.compute_policy_loss_vanilla(proximal, lp, advantages, mask, mode, config, w)
        if kl < 4:
            loss = loss + 0.125 * algos.agg_loss(algos.kl_penalty(lp, reference, KL[kl]), mask, mode, **config.global_batch_info)
        loss.backward()
        c = g.matrix(rows, columns, -1, 1)
        yield f"{loss.item()!r} {(lp.grad * c).sum().item()!r} {lp.grad.abs().sum().item()!r}"


def groups(algos):
    g = Generator(43)
    for case in range(200):
        size, count = 2 + g.integer(7), 1 + g.integer(3)
        rewards = g.matrix(size * count, 1, -2, 2)
        if case % 5 == 0:
            rewards[:size] = 0.5  # equal ones
        index, mask = np.repeat(np.arange(count), size), torch.ones(size * count, 1)
        for of in (algos.compute_grpo_outcome_advantage(rewards.clone(), mask, index, epsilon=1e-4)[0], algos.compute_rloo_outcome_advantage(rewards.clone(), mask, index)[0]):
            yield " ".join(repr(x) for x in of.flatten().tolist())


def answers(algos):
    g = Generator(44)
    for _ in range(50):
        n = 2 + g.integer(8)
        rewards, values = g.matrix(1, n, -2, 2), g.matrix(1, n, -2, 2)
        mask = torch.tensor([[float(g.integer(4) > 0) for _ in range(n)]])
        mask[0, 0] = mask[0, -1] = 1  # verl whitens, which needs two
        _, returns = algos.compute_gae_advantage_return(rewards, values, mask, 0.875, 0.9375)
        yield " ".join(repr(x) for x in (returns - values).flatten().tolist())


algos = core_algos()
lines = [*batches(algos), *groups(algos), *answers(algos)]
(HERE / "rl_golden.txt").write_text("\n".join(lines) + "\n")
