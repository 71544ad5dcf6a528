#!/usr/bin/env python3
"""Writes context_golden.txt and context_golden.bin: attention masks by predicates of numpy, and attention under them by PyTorch.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python context_golden.py

Lines of the text: `mask <name> <length> <parameter> <lengths of inner documents, or -> <area> <hash>` with FNV-1a of 64 bits over the bytes 0 and 1 of
the matrix, row by row; and `attention <name> <length> <parameter> <lengths> <query heads> <key heads> <head_dim> <at>`, whose numbers begin at double
`at` of the other file: out, dq, dk, dv of scaled_dot_product_attention in float64 with the boolean mask. Element i of q, k, v and the gradient of
the output is 1.5 sin(0.37 (i + 1) + phase) with phases 0.1, 1.3, 2.7 and 4.1; tensors are [positions, heads, head_dim].
"""
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def starts(lengths, total):
    """The number of the document of each position, and where it begins and ends."""
    number, begin, end = np.zeros(total, int), np.zeros(total, int), np.zeros(total, int)
    at = 0
    for n, length in enumerate(lengths):
        number[at:at + length], begin[at:at + length], end[at:at + length] = n, at, at + length
        at += length
    return number, begin, end


def matrix(name, total, w, lengths):
    i, j = np.arange(total)[:, None], np.arange(total)[None, :]
    doc, begin, end = starts(lengths, total) if lengths else starts([total], total)
    same, before = doc[:, None] == doc[None, :], j <= i
    first = begin[:, None]
    rules = {
        "full": lambda: np.ones((total, total), bool),
        "causal": lambda: before,
        "window": lambda: before & (i - j < w),
        "window-both-sides": lambda: abs(i - j) < w,
        "global-window": lambda: (abs(i - j) < w) | (i < w) | (j < w),
        "prefix": lambda: before | ((i < w) & (j < w)),
        "full-documents": lambda: same,
        "causal-documents": lambda: same & before,
        "prefix-documents": lambda: same & (before | ((i - first < w) & (j - first < w))),
        "share-question": lambda: before & (same | (doc[None, :] == 0)),
        "causal-blockwise": lambda: before & (same | (doc[:, None] == doc.max())),
        "block-causal": lambda: same & (j < first + ((i - first) // w + 1) * w),
    }
    return rules[name]() & np.ones((total, total), bool)


def fnv(mask):
    value = 0xcbf29ce484222325
    for byte in mask.astype(np.uint8).tobytes():
        value = ((value ^ byte) * 0x100000001b3) & (2**64 - 1)
    return value


def numbers(count, phase):
    return 1.5 * np.sin(0.37 * (np.arange(count, dtype=np.float64) + 1) + phase)


def attention(mask, total, query_heads, key_heads, d):
    def tensor(heads, phase):
        return torch.tensor(numbers(total * heads * d, phase).reshape(total, heads, d))
    q, k, v, dout = tensor(query_heads, .1), tensor(key_heads, 1.3), tensor(key_heads, 2.7), tensor(query_heads, 4.1)
    for t in (q, k, v):
        t.requires_grad_()
    group = query_heads // key_heads
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1).repeat_interleave(group, 0), v.transpose(0, 1).repeat_interleave(group, 0),
        attn_mask=torch.tensor(mask)).transpose(0, 1)
    out.backward(dout)
    return np.concatenate([t.detach().numpy().ravel() for t in (out, q.grad, k.grad, v.grad)])


def lengths_of(rng, total, most):
    lengths = []
    while sum(lengths) < total:
        lengths.append(min(int(rng.integers(1, most + 1)), total - sum(lengths)))
    return lengths


def main():
    rng = np.random.default_rng(7)
    names = ["full", "causal", "window", "window-both-sides", "global-window", "prefix", "full-documents", "causal-documents",
             "prefix-documents", "share-question", "causal-blockwise", "block-causal"]
    inner = set(names[6:])
    lines, data, at = [], [], 0
    shown = lambda lengths: ",".join(map(str, lengths)) if lengths else "-"
    for name in names:
        for total in [1, 2, 7, 16, 31, 48, 77, 96]:
            # The benchmark's long documents are the same masks with other lengths: every other case.
            w = int(rng.integers(1, max(2, total // 2)))
            lengths = lengths_of(rng, total, max(1, total // (6 if len(lines) % 2 else 2))) if name in inner else []
            mask = matrix(name, total, w, lengths)
            lines.append(f"mask {name} {total} {w} {shown(lengths)} {mask.sum()} {fnv(mask):016x}")
    heads = [(4, 4), (8, 2), (8, 1)]
    for n, name in enumerate(["full", "causal", "window", "prefix", "causal-documents", "share-question", "block-causal"]):
        for q, k in heads if name == "causal" else heads[n % 3:n % 3 + 1]:
            total, d = 13, 4
            lengths = [4, 6, 3] if name in inner else []
            w = 3 if name == "block-causal" else 5
            numbers_here = attention(matrix(name, total, w, lengths), total, q, k, d)
            lines.append(f"attention {name} {total} {w} {shown(lengths)} {q} {k} {d} {at}")
            data.append(numbers_here)
            at += len(numbers_here)
    (HERE / "context_golden.txt").write_text("\n".join(lines) + "\n")
    np.concatenate(data).astype("<f8").tofile(HERE / "context_golden.bin")


main()
