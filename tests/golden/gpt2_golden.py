#!/usr/bin/env python3
"""Golden numbers for heddle's GPT-2: a tiny model trained for two steps in plain PyTorch.

Needs only torch (Debian 12: python3-torch, 1.13). Writes gpt2_golden.bin beside this file; the README says what is in
it. Run without arguments to write, with --check to compare a fresh run with the committed file.
"""
import math
import os
import struct
import sys

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, BATCH = 2, 4, 24, 16, 61, 4
STEPS, LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 2, 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.5
SEED = 1234
HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, "gpt2_golden.bin")


def initial_weights():
    """Hugging Face GPT-2 names, Conv1D weights [in, out]. Larger than GPT-2's own initialisation, and no zeros or
    ones, so that every term of every gradient matters."""
    g = torch.Generator().manual_seed(SEED)

    def normal(*shape, std=0.2, mean=0.0):
        return torch.randn(*shape, generator=g, dtype=torch.float32) * std + mean

    w = {"wte.weight": normal(VOCABULARY, WIDTH), "wpe.weight": normal(CONTEXT, WIDTH)}
    for i in range(LAYERS):
        p = f"h.{i}."
        w[p + "ln_1.weight"] = normal(WIDTH, mean=1.0)
        w[p + "ln_1.bias"] = normal(WIDTH)
        w[p + "attn.c_attn.weight"] = normal(WIDTH, 3 * WIDTH)
        w[p + "attn.c_attn.bias"] = normal(3 * WIDTH)
        w[p + "attn.c_proj.weight"] = normal(WIDTH, WIDTH)
        w[p + "attn.c_proj.bias"] = normal(WIDTH)
        w[p + "ln_2.weight"] = normal(WIDTH, mean=1.0)
        w[p + "ln_2.bias"] = normal(WIDTH)
        w[p + "mlp.c_fc.weight"] = normal(WIDTH, 4 * WIDTH)
        w[p + "mlp.c_fc.bias"] = normal(4 * WIDTH)
        w[p + "mlp.c_proj.weight"] = normal(4 * WIDTH, WIDTH)
        w[p + "mlp.c_proj.bias"] = normal(WIDTH)
    w["ln_f.weight"] = normal(WIDTH, mean=1.0)
    w["ln_f.bias"] = normal(WIDTH)
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
            targets[3, -1] = -100
        result.append((tokens, targets))
    return result


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def forward(w, tokens):
    """Logits [BATCH, CONTEXT, VOCABULARY], the published model line by line."""
    b, s = tokens.shape
    d = WIDTH // HEADS
    mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
    h = w["wte.weight"][tokens] + w["wpe.weight"][:s]
    for i in range(LAYERS):
        p = f"h.{i}."
        n = F.layer_norm(h, (WIDTH,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], 1e-5)
        qkv = n @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        q, k, v = (t.view(b, s, HEADS, d).transpose(1, 2) for t in qkv.split(WIDTH, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(d)
        scores = scores.masked_fill(~mask, float("-inf"))
        o = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, s, WIDTH)
        h = h + o @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        n = F.layer_norm(h, (WIDTH,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], 1e-5)
        u = gelu_new(n @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"])
        h = h + u @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    h = F.layer_norm(h, (WIDTH,), w["ln_f.weight"], w["ln_f.bias"], 1e-5)
    return h @ w["wte.weight"].t()


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


def encode():
    records = [("config", torch.tensor([LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, BATCH], dtype=torch.int32)),
               ("optimizer", torch.tensor([LR, BETAS[0], BETAS[1], EPS, WEIGHT_DECAY, MAX_NORM], dtype=torch.float64))]
    for step, (tokens, targets) in enumerate(batches(), start=1):
        records.append((f"step{step}.tokens", tokens.to(torch.int32)))
        records.append((f"step{step}.targets", targets.to(torch.int32)))
    records += [("initial." + name, t) for name, t in initial_weights().items()]
    records += train(torch.float32) + train(torch.float64)
    kinds = {torch.int32: (0, "<i4"), torch.float32: (1, "<f4"), torch.float64: (2, "<f8")}
    out = bytearray(b"heddle-golden-1\n" + struct.pack("<i", len(records)))
    for name, t in records:
        kind, numpy_kind = kinds[t.dtype]
        encoded = name.encode()
        out += struct.pack("<ii", kind, len(encoded)) + encoded
        out += struct.pack("<i", t.dim()) + struct.pack(f"<{t.dim()}q", *t.shape)
        out += t.contiguous().numpy().astype(numpy_kind).tobytes()
    return bytes(out), records


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data, records = encode()
    numbers = {name: t for name, t in records}
    print(f"torch {torch.__version__}: {len(records)} records, {len(data)} bytes")
    for step in range(1, STEPS + 1):
        print(f"step {step}: loss {float(numbers[f'f64.step{step}.loss']):.12f}, gradient norm "
              f"{float(numbers[f'f64.step{step}.gradient_norm']):.12f}, in float32 "
              f"{float(numbers[f'f32.step{step}.loss']):.9f}")
    if "--check" in sys.argv[1:]:
        with open(FILE, "rb") as f:
            same = f.read() == data
        print("identical to the committed file" if same else "differs from the committed file")
        sys.exit(0 if same else 1)
    with open(FILE, "wb") as f:
        f.write(data)


if __name__ == "__main__":
    main()
