#!/usr/bin/env python3
"""Golden numbers for heddle's Llama: a tiny model trained for two steps in plain PyTorch.

Needs only torch (Debian 12: python3-torch, 1.13). Writes llama_golden.bin beside this file; the README says what is in
it. Run without arguments to write, with --check to compare a fresh run with the committed file.
"""
import math
import os
import struct
import sys

import torch
import torch.nn.functional as F

LAYERS, HEADS, KV_HEADS, WIDTH, FFN, CONTEXT, VOCABULARY, BATCH = 2, 6, 2, 24, 29, 13, 61, 4
THETA, NORM_EPS = 10000.0, 1e-5
STEPS, LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 2, 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.5
HEAD_DIM = WIDTH // HEADS
SEED = 4321
HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, "llama_golden.bin")


def initial_weights():
    """Hugging Face Llama names, every matrix [out, in]. Larger than Llama's own initialisation, and norms away from
    one, so that every term of every gradient matters."""
    g = torch.Generator().manual_seed(SEED)

    def normal(*shape, std=0.3, mean=0.0):
        return torch.randn(*shape, generator=g, dtype=torch.float32) * std + mean

    w = {"model.embed_tokens.weight": normal(VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = normal(WIDTH, mean=1.0)
        w[p + "self_attn.q_proj.weight"] = normal(HEADS * HEAD_DIM, WIDTH)
        w[p + "self_attn.k_proj.weight"] = normal(KV_HEADS * HEAD_DIM, WIDTH)
        w[p + "self_attn.v_proj.weight"] = normal(KV_HEADS * HEAD_DIM, WIDTH)
        w[p + "self_attn.o_proj.weight"] = normal(WIDTH, HEADS * HEAD_DIM)
        w[p + "post_attention_layernorm.weight"] = normal(WIDTH, mean=1.0)
        w[p + "mlp.gate_proj.weight"] = normal(FFN, WIDTH)
        w[p + "mlp.up_proj.weight"] = normal(FFN, WIDTH)
        w[p + "mlp.down_proj.weight"] = normal(WIDTH, FFN)
    w["model.norm.weight"] = normal(WIDTH, mean=1.0)
    w["lm_head.weight"] = normal(VOCABULARY, WIDTH)
    return w


def batches():
    """Tokens and already shifted targets of each step, [BATCH, CONTEXT]; a few targets of step 2 are ignored (-100)."""
    g = torch.Generator().manual_seed(SEED + 1)
    result = []
    for step in range(STEPS):
        text = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1), generator=g)
        tokens, targets = text[:, :-1].clone(), text[:, 1:].clone()
        if step == 1:
            targets[0, :5] = -100
            targets[2, 6] = -100
            targets[3, -1] = -100
        result.append((tokens, targets))
    return result


def rms_norm(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS))


def rotary_tables(dtype):
    """cos and sin, [CONTEXT, HEAD_DIM]: both halves of a head turn by the same angles. Computed in float64."""
    inverse = THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angle = torch.outer(torch.arange(CONTEXT, dtype=torch.float64), inverse)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate_half(x):
    return torch.cat((-x[..., HEAD_DIM // 2:], x[..., :HEAD_DIM // 2]), dim=-1)


def forward(w, tokens):
    """Logits [BATCH, CONTEXT, VOCABULARY], the published model line by line."""
    b, s = tokens.shape
    mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
    h = w["model.embed_tokens.weight"][tokens]
    cos, sin = rotary_tables(h.dtype)

    def split_heads(x, heads):
        return x.view(b, s, heads, HEAD_DIM).transpose(1, 2)

    for i in range(LAYERS):
        p = f"model.layers.{i}."
        n = rms_norm(h, w[p + "input_layernorm.weight"])
        q = split_heads(n @ w[p + "self_attn.q_proj.weight"].t(), HEADS)
        k = split_heads(n @ w[p + "self_attn.k_proj.weight"].t(), KV_HEADS)
        v = split_heads(n @ w[p + "self_attn.v_proj.weight"].t(), KV_HEADS)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))  # query head h reads h * K / H
        scores = (q @ k.transpose(2, 3)) / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(~mask, float("-inf"))
        o = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, s, HEADS * HEAD_DIM)
        h = h + o @ w[p + "self_attn.o_proj.weight"].t()
        n = rms_norm(h, w[p + "post_attention_layernorm.weight"])
        u = F.silu(n @ w[p + "mlp.gate_proj.weight"].t()) * (n @ w[p + "mlp.up_proj.weight"].t())
        h = h + u @ w[p + "mlp.down_proj.weight"].t()
    return rms_norm(h, w["model.norm.weight"]) @ w["lm_head.weight"].t()


def train(dtype):
    """All records of a run in `dtype`: per step loss, gradient norm, gradients before clipping, weights after."""
    prefix = {torch.float32: "f32.", torch.float64: "f64."}[dtype]
    w = {name: t.to(dtype).requires_grad_() for name, t in initial_weights().items()}
    groups = [{"params": [t for t in w.values() if t.dim() >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [t for t in w.values() if t.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    records = []
    for step, (tokens, targets) in enumerate(batches(), start=1):
        at = f"{prefix}step{step}."
        optimizer.zero_grad()
        logits = forward(w, tokens)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1), ignore_index=-100)
        loss.backward()
        gradients = {name: t.grad.detach().clone() for name, t in w.items()}
        norm = torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM)
        assert norm > MAX_NORM, "the data must exercise clipping"
        optimizer.step()
        records.append((at + "loss", loss.detach().reshape(1)))
        records.append((at + "gradient_norm", norm.detach().reshape(1)))
        if step == 1:
            records.append((at + "last_logits", logits.detach()[:, -1]))
        records += [(at + "gradient." + name, t) for name, t in gradients.items()]
        records += [(at + "weight." + name, t.detach().clone()) for name, t in w.items()]
    return records


def make_records():
    records = [("config", torch.tensor([LAYERS, HEADS, KV_HEADS, WIDTH, FFN, CONTEXT, VOCABULARY, BATCH],
                                       dtype=torch.int32)),
               ("rotary", torch.tensor([THETA, NORM_EPS], dtype=torch.float64)),
               ("optimizer", torch.tensor([LR, BETAS[0], BETAS[1], EPS, WEIGHT_DECAY, MAX_NORM], dtype=torch.float64))]
    for step, (tokens, targets) in enumerate(batches(), start=1):
        records.append((f"step{step}.tokens", tokens.to(torch.int32)))
        records.append((f"step{step}.targets", targets.to(torch.int32)))
    records += [("initial." + name, t) for name, t in initial_weights().items()]
    return records + train(torch.float32) + train(torch.float64)


KINDS = [(torch.int32, 4), (torch.float32, 4), (torch.float64, 8)]


def encode(records):
    out = bytearray(b"heddle-golden-1\n" + struct.pack("<i", len(records)))
    for name, t in records:
        kind = [k for k, _ in KINDS].index(t.dtype)
        encoded = name.encode()
        out += struct.pack("<ii", kind, len(encoded)) + encoded
        out += struct.pack("<i", t.dim()) + struct.pack(f"<{t.dim()}q", *t.shape)
        out += t.contiguous().numpy().astype(("<i4", "<f4", "<f8")[kind]).tobytes()
    return bytes(out)


def decode(data):
    assert data[:16] == b"heddle-golden-1\n"
    count, at = struct.unpack_from("<i", data, 16)[0], 20
    records = []
    for _ in range(count):
        kind, length = struct.unpack_from("<ii", data, at)
        name = data[at + 8:at + 8 + length].decode()
        at += 8 + length
        rank = struct.unpack_from("<i", data, at)[0]
        shape = struct.unpack_from(f"<{rank}q", data, at + 4)
        at += 4 + 8 * rank
        dtype, width = KINDS[kind]
        n = math.prod(shape)
        records.append((name, torch.frombuffer(bytearray(data[at:at + n * width]), dtype=dtype).view(shape)))
        at += n * width
    assert at == len(data)
    return records


def difference(a, b):
    """The greatest difference of two runs' records, relative to each tensor's greatest element: float32, float64.
    Anything else must be equal."""
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    assert [(name, t.shape, t.dtype) for name, t in a] == [(name, t.shape, t.dtype) for name, t in b]
    for (name, x), (_, y) in zip(a, b):
        if x.dtype == torch.int32 or name in ("rotary", "optimizer") or name.startswith("initial."):
            assert torch.equal(x, y), name
        else:
            relative = float((x.double() - y.double()).abs().max() / y.double().abs().max())
            worst[x.dtype] = max(worst[x.dtype], relative)
    return worst[torch.float32], worst[torch.float64]


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    records = make_records()
    data = encode(records)
    numbers = dict(records)
    print(f"torch {torch.__version__}: {len(records)} records, {len(data)} bytes")
    for step in range(1, STEPS + 1):
        print(f"step {step}: loss {float(numbers[f'f64.step{step}.loss']):.12f}, gradient norm "
              f"{float(numbers[f'f64.step{step}.gradient_norm']):.12f}, in float32 "
              f"{float(numbers[f'f32.step{step}.loss']):.9f}")
    # AdamW turns a gradient of rounding noise into a step of up to lr. There must be none, so that float weights compare.
    apart = max(float((t.double() - numbers["f64" + name[3:]]).abs().max())
                for name, t in records if name.startswith("f32.") and ".weight." in name)
    print(f"weights in float32 and float64 differ by at most {apart:.2e}")
    assert apart < 2e-6, "choose another seed"
    if "--check" in sys.argv[1:]:
        with open(FILE, "rb") as f:
            committed = f.read()
        if committed == data:
            print("identical to the committed file")
            return
        single, double = difference(records, decode(committed))
        print(f"differs from the committed file by at most {single:.2e} in float32, {double:.2e} in float64")
        sys.exit(0 if single < 2e-6 and double < 1e-12 else 1)
    with open(FILE, "wb") as f:
        f.write(data)


if __name__ == "__main__":
    main()
