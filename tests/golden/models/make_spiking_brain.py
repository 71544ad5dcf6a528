#!/usr/bin/env python3
"""Writes a tiny hybrid of SpikingBrain-7B's shape and what PyTorch computes with it: python3 make_spiking_brain.py

The formulas of arXiv:2509.05276, section 3, and of the published 7B, written out: even layers have gated linear attention row by row (fla-core's
`naive_recurrent_gla`: q scaled by head_dim^-1/2), odd ones attention to the last tokens; all else is Qwen-2's. Made with torch 2.15, in float64.
spiking_brain/model.safetensors has the weights, expected.json samples, the logits of their last position, 64 greedy tokens of each, and the least
distance of the two greatest logits on the way."""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).parent
LAYERS, HEADS, KV_HEADS, WIDTH, FFN, VOCABULARY, RANK, WINDOW, NORMALIZER, THETA, EPS = 4, 6, 2, 24, 17, 43, 3, 6, 16, 1000.0, 1e-6
SIZE, GROUP = WIDTH // HEADS, HEADS // KV_HEADS


def weights():
    """Larger than initial ones, norms away from one and biases from zero, so that every term counts."""
    g = torch.Generator().manual_seed(5577)
    new = lambda *shape, mean=0.0: torch.randn(shape, generator=g, dtype=torch.float64) * 0.3 + mean
    w = {"model.embed_tokens.weight": new(VOCABULARY, WIDTH), "model.norm.weight": new(WIDTH, mean=1.0), "lm_head.weight": new(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w[at + norm + ".weight"] = new(WIDTH, mean=1.0)
        for name, rows in (("gate_proj", FFN), ("up_proj", FFN)):
            w[at + f"mlp.{name}.weight"] = new(rows, WIDTH)
        w[at + "mlp.down_proj.weight"] = new(WIDTH, FFN)
        for name, rows in (("q_proj", HEADS * SIZE), ("k_proj", KV_HEADS * SIZE), ("v_proj", KV_HEADS * SIZE)):
            w[at + f"self_attn.{name}.weight"], w[at + f"self_attn.{name}.bias"] = new(rows, WIDTH), new(rows)
        w[at + "self_attn.o_proj.weight"] = new(WIDTH, HEADS * SIZE)
        if layer % 2 == 0:
            w[at + "self_attn.gk_proj.0.weight"] = new(RANK, WIDTH)
            w[at + "self_attn.gk_proj.1.weight"], w[at + "self_attn.gk_proj.1.bias"] = 9 * new(KV_HEADS * SIZE, RANK), new(KV_HEADS * SIZE)
            w[at + "self_attn.g_norm.weight"] = new(SIZE, mean=1.0)
    return w


def rms_norm(x, weight, eps=EPS):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x):
    """x [rows, heads, size], elements i and i + size / 2 of a head turn together."""
    half = SIZE // 2
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(w, at, x, layer):
    rows = x.shape[0]
    product = lambda name, y: F.linear(y, w[at + name + ".weight"], w.get(at + name + ".bias"))
    q = product("q_proj", x).view(rows, HEADS, SIZE)
    k, v = (product(n, x).view(rows, KV_HEADS, SIZE).repeat_interleave(GROUP, 1) for n in ("k_proj", "v_proj"))
    if layer % 2 == 0:
        g = F.logsigmoid(product("gk_proj.1", product("gk_proj.0", x))) / NORMALIZER
        g = g.view(rows, KV_HEADS, SIZE).repeat_interleave(GROUP, 1)
        q, k = F.relu(q) * SIZE ** -0.5, F.relu(k)
        state, out = torch.zeros(HEADS, SIZE, SIZE, dtype=torch.float64), []
        for t in range(rows):
            state = state * g[t].exp()[..., None] + k[t][..., None] * v[t][:, None, :]
            out.append((q[t][..., None] * state).sum(1))
        o = rms_norm(torch.stack(out), w[at + "g_norm.weight"], 1e-5)
    else:
        q, k = rotate(q), rotate(k)
        scores = torch.einsum("qhe,khe->hqk", q, k) * SIZE ** -0.5
        distance = torch.arange(rows)[:, None] - torch.arange(rows)[None, :]
        scores = scores.masked_fill((distance < 0) | (distance >= WINDOW), -torch.inf)
        o = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v)
    return product("o_proj", o.reshape(rows, HEADS * SIZE))


def logits(w, tokens):
    x = w["model.embed_tokens.weight"][torch.tensor(tokens)]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        x = x + attention(w, at + "self_attn.", rms_norm(x, w[at + "input_layernorm.weight"]), layer)
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"])
        y = F.silu(F.linear(y, w[at + "mlp.gate_proj.weight"])) * F.linear(y, w[at + "mlp.up_proj.weight"])
        x = x + F.linear(y, w[at + "mlp.down_proj.weight"])
    return F.linear(rms_norm(x, w["model.norm.weight"]), w["lm_head.weight"])


def main():
    folder = HERE / "spiking_brain"
    folder.mkdir(exist_ok=True)
    w = weights()
    save_file(w, folder / "model.safetensors")
    g = torch.Generator().manual_seed(5578)
    samples = [torch.randint(VOCABULARY, (n,), generator=g).tolist() for n in (19, 4)]
    out = {"samples": samples, "last_logits": [], "generated": [], "margin": 1e9}
    for sample in samples:
        out["last_logits"].append(logits(w, sample)[-1].tolist())
        text = list(sample)
        for _ in range(64):
            best = logits(w, text)[-1].topk(2)
            out["margin"] = min(out["margin"], (best.values[0] - best.values[1]).item())
            text.append(best.indices[0].item())
        out["generated"].append(text[len(sample):])
    (folder / "expected.json").write_text(json.dumps(out) + "\n")
    print(out["margin"], sum(f.stat().st_size for f in folder.iterdir()))


if __name__ == "__main__":
    main()
