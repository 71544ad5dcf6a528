#!/usr/bin/env python3
"""Writes cart_pole_golden.txt: 10,000 random steps of gymnasium's CartPole-v1.

    python3 -m venv venv && venv/bin/pip install numpy gymnasium==1.4.0 && venv/bin/python cart_pole_golden.py

Actions and the states that episodes begin with come from a generator that tests/train/cart_pole_test.cpp has alike. First line: episodes that
ended, and the sum over all states of (1 + i % 7) times element i. Then every 100th state.
"""
from pathlib import Path

import gymnasium
import numpy

state = 12345


def draw():
    """A number from 0 to 1; Knuth's generator of MMIX."""
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 11) / 2**53


env = gymnasium.make("CartPole-v1").unwrapped
env.reset(seed=0)


def begin():
    env.state = numpy.array([0.1 * draw() - 0.05 for _ in range(4)])
    env.steps_beyond_terminated = None


begin()
ended, total, kept, place = 0, 0.0, [], 0
for step in range(10_000):
    _, reward, terminated, _, _ = env.step(int(draw() < 0.5))
    assert reward == 1.0
    values = [float(v) for v in env.state]
    for v in values:
        total += (1 + place % 7) * v
        place += 1
    if step % 100 == 99:
        kept.append(" ".join(repr(v) for v in values))
    if terminated:
        ended += 1
        begin()
(Path(__file__).parent / "cart_pole_golden.txt").write_text(f"{ended} {total!r}\n" + "\n".join(kept) + "\n")
