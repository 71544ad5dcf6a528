#!/usr/bin/env python3
"""Golden numbers of gated linear attention: the recurrence row by row, and its gradients by autograd, in float64.

Needs torch (made with 2.15). Writes gla_golden.bin beside this file: state by state S = diag(exp(g)) S + k v', o = scale S' q with q and k
behind ReLU, g = logsigmoid(x) / 16, query heads in groups, for two sequences that begin from states, and gradients of o and of the last
states. This is the formula of Yang et al. 2024, arXiv:2312.06635, equation 3, and that of fla-core's `naive_recurrent_gla`. --check compares.
"""
import os
import sys

import torch
import torch.nn.functional as F

from llama_golden import decode, difference, encode

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, ROWS, HEADS, GROUP, SIZE, NORMALIZER = 2, 23, 2, 3, 11, 16


def recurrence(q, k, v, gates, state, scale):
    """q [rows, heads, group, size], k, v, gates [rows, heads, size], state [heads, size, size]."""
    out = []
    for t in range(q.shape[0]):
        decay = torch.exp(F.logsigmoid(gates[t]) / NORMALIZER)
        state = decay[:, :, None] * state + F.relu(k[t])[:, :, None] * v[t][:, None, :]
        out.append(scale * torch.einsum("hgk,hkv->hgv", F.relu(q[t]), state))
    return torch.stack(out), state


def make_records():
    """Inputs, results and gradients."""
    g = torch.Generator().manual_seed(4402)
    new = lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)
    q, k, v = new(SEQUENCES, ROWS, HEADS, GROUP, SIZE), new(SEQUENCES, ROWS, HEADS, SIZE), new(SEQUENCES, ROWS, HEADS, SIZE)
    gates, states = 4 * new(SEQUENCES, ROWS, HEADS, SIZE), new(SEQUENCES, HEADS, SIZE, SIZE)
    inputs = {"q": q, "k": k, "v": v, "gates": gates, "states": states}
    d_out, d_last = new(*q.shape), new(*states.shape)
    for t in inputs.values():
        t.requires_grad_()
    found = [recurrence(*(t[s] for t in inputs.values()), SIZE ** -0.5) for s in range(SEQUENCES)]
    out, last = (torch.stack(x) for x in zip(*found))
    torch.autograd.backward([out, last], [d_out, d_last])
    records = [("sizes", torch.tensor([SEQUENCES, ROWS, HEADS, GROUP, SIZE, NORMALIZER], dtype=torch.int32))]
    records += [(name, t.detach()) for name, t in inputs.items()] + [("out", out.detach()), ("last", last.detach())]
    records += [("d_out", d_out), ("d_last", d_last)] + [("d_" + name, t.grad) for name, t in inputs.items()]
    return records


def main():
    records = make_records()
    data = encode(records)
    file = os.path.join(HERE, "gla_golden.bin")
    if "--check" in sys.argv[1:]:
        with open(file, "rb") as f:
            committed = f.read()
        _, double = difference(records, decode(committed))
        print("identical" if committed == data else f"differs by at most {double:.2e}")
        if double >= 1e-12:
            sys.exit(1)
    else:
        with open(file, "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
