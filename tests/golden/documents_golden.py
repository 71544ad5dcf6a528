#!/usr/bin/env python3
"""Golden numbers for training on documents of different lengths: a tiny Llama of Hugging Face transformers, document by document.

Needs torch and transformers (from PyPI: made with 2.15 and 5.24). Writes documents_golden.bin beside this file; run with --check to compare a fresh
run with the committed file. A step's loss is the sum over its documents' tokens, each of a forward pass of its own, over their number; the last token of
a document learns nothing. Two steps of seven documents in float32, clipped, AdamW; the initial weights are those of the model's own seed.
"""
import os
import sys

import torch
import torch.nn.functional as F
import transformers

from llama_golden import decode, difference, encode

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, "documents_golden.bin")
STEPS, LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM, THETA, NORM_EPS = 2, 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.5, 1000.0, 1e-6
LAYERS, HEADS, KV_HEADS, WIDTH, FFN, CONTEXT, VOCABULARY = 2, 4, 2, 16, 11, 48, 29
LENGTHS = [48, 1, 7, 30, 2, 13, 5, 3, 41, 1, 19, 8, 2, 26]  # the first seven are those of the first step


def records():
    torch.manual_seed(77)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, hidden_size=WIDTH, intermediate_size=FFN,
        max_position_embeddings=CONTEXT, vocab_size=VOCABULARY, head_dim=WIDTH // HEADS, rms_norm_eps=NORM_EPS, initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, tie_word_embeddings=False, attn_implementation="eager"))
    w = dict(model.named_parameters())
    text = torch.randint(0, VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(78))
    documents = list(text.split(LENGTHS))
    result = [("config", torch.tensor([LAYERS, HEADS, KV_HEADS, WIDTH, FFN, CONTEXT, VOCABULARY], dtype=torch.int32)),
              ("rotary", torch.tensor([THETA, NORM_EPS], dtype=torch.float64)),
              ("optimizer", torch.tensor([LR, BETAS[0], BETAS[1], EPS, WEIGHT_DECAY, MAX_NORM], dtype=torch.float64)),
              ("lengths", torch.tensor(LENGTHS, dtype=torch.int32)), ("tokens", text.to(torch.int32))]
    result += [("initial." + name, t.detach().clone()) for name, t in w.items()]
    groups = [{"params": [t for t in w.values() if t.dim() >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [t for t in w.values() if t.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    each = len(LENGTHS) // STEPS
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, targets = 0, 0
        for d in documents[step * each:(step + 1) * each]:
            if len(d) > 1:
                logits = model(input_ids=d[None]).logits[0, :-1]
                loss = loss + F.cross_entropy(logits, d[1:], reduction="sum")
                targets += len(d) - 1
        loss = loss / targets
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM)
        assert norm > MAX_NORM, "the data must exercise clipping"
        optimizer.step()
        at = f"step{step + 1}."
        result += [(at + "loss", loss.detach().reshape(1)), (at + "gradient_norm", norm.detach().reshape(1))]
    result += [("weight." + name, t.detach().clone()) for name, t in w.items()]
    return result


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = records()
    numbers = dict(data)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}: {len(encode(data))} bytes")
    for step in range(1, STEPS + 1):
        print(f"step {step}: loss {float(numbers[f'step{step}.loss']):.9f}, norm {float(numbers[f'step{step}.gradient_norm']):.9f}")
    if "--check" not in sys.argv[1:]:
        with open(FILE, "wb") as f:
            f.write(encode(data))
        return
    with open(FILE, "rb") as f:
        committed = f.read()
    single, _ = difference(data, decode(committed))
    print(f"differs from the committed file by at most {single:.2e}")
    sys.exit(single >= 2e-6)


if __name__ == "__main__":
    main()
