#!/usr/bin/env python3
"""Writes diffusion_rules_golden.txt: what the published rules of diffusion decoding commit, by numpy.

    pip install numpy; python3 tests/golden/diffusion_rules_golden.py tests/golden/diffusion_rules_golden.txt

The logits of a masked position are numbers of a hash (`logits`), which the test computes alike. A block has `masks` positions and `words` tokens, of which the
last is the mask. A line: case, rule, its settings, masks, step, then place:token of what is committed. The rules are those of dInfer
(arXiv:2510.08666, section 4) and LLaDA (arXiv:2502.09992, algorithm 5) as the papers have them, with dense arrays.
For `credit`, lines `credits` have the sums of the matrix after each step in 17 digits.
"""
import sys

import numpy as np

MASK64 = (1 << 64) - 1
WORDS = 11


def mixed(x):
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK64
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK64
    return x ^ (x >> 33)


def logits(case, step, place):
    base = mixed(mixed(mixed(case + 1) + step + 1) + place + 1)
    width = 1 + case % 5  # some cases are sure of their tokens
    return np.array([(mixed((base + v) & MASK64) % 4096) / 512.0 * width for v in range(WORDS)])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def likeliest(x):  # the mask is never committed
    y = x.copy()
    y[WORDS - 1] = -np.inf
    return int(np.argmax(y))


def transfer(kind, settings, masks, step, confidence):
    """The places that are committed; confidence is -inf where there is no mask."""
    n = len(confidence)
    masked = np.isfinite(confidence)
    if kind == "fixed_steps":
        steps = settings[0]
        quota = [masks // steps + (1 if s < masks % steps else 0) for s in range(steps)]
        order = sorted(range(n), key=lambda i: (-confidence[i], i))
        return sorted(order[: max(1, quota[step])])
    if kind in ("threshold", "credit"):
        least = min(settings[0], confidence.max() - 1e-5)
        return [i for i in range(n) if masked[i] and confidence[i] >= least]
    tau, low = settings
    taken = {int(np.argmax(confidence))}
    i = 0
    while i < n:
        if not masked[i]:
            i += 1
            continue
        j = i
        while j < n and masked[j]:
            j += 1
        best = i + int(np.argmax(confidence[i:j]))
        if confidence[best] > low:
            taken.add(best)
        i = j
    taken |= {i for i in range(n) if masked[i] and confidence[i] > tau}
    return sorted(taken)


def main(path):
    lines = []
    rules = [("threshold", (0.9,)), ("threshold", (0.5,)), ("one_per_run", (0.9, 0.4)), ("one_per_run", (0.6, 0.1)),
             ("credit", (0.9, 0.7, 0.2, 0.8)), ("credit", (0.6, 1.5, 1.0, 0.5)), ("credit", (0.7, 0.0, 0.2, 0.8)),
             ("fixed_steps", (4,)), ("fixed_steps", (7,))]
    case = 0
    for kind, settings in rules:
        for masks in (1, 5, 8, 32):
            case += 1
            open_places = np.ones(masks, bool)
            credits = np.zeros((masks, WORDS))
            step = 0
            while open_places.any():
                confidence = np.full(masks, -np.inf)
                tokens = np.zeros(masks, int)
                credits *= settings[3] if kind == "credit" else 1
                for i in range(masks):
                    if not open_places[i]:
                        credits[i] = 0
                        continue
                    f = logits(case, step, i)
                    if kind == "credit":
                        _, alpha, gamma, _ = settings
                        top = likeliest(f)
                        credits[i, top] += softmax(f)[top] ** gamma
                        f = f + alpha * np.log(1 + credits[i])
                    tokens[i] = likeliest(f)
                    confidence[i] = softmax(f)[tokens[i]]
                places = transfer(kind, settings, masks, step, confidence)
                words = " ".join(f"{i}:{tokens[i]}" for i in places)
                shown = " ".join(repr(float(x)) for x in settings)
                lines.append(f"{case} {kind} {len(settings)} {shown} {masks} {step} {words}")
                if kind == "credit":
                    lines.append(f"{case} credits {credits.sum():.17g}")
                open_places[places] = False
                step += 1
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


main(sys.argv[1])
