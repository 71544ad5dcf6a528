#!/usr/bin/env python3
"""Learns counting with PyTorch as examples/rl_counting.cpp does, but for what both share: the task, the model's sizes and the settings.

    rl_counting_torch.py [--ahead N ...] [--cap C ...] [--seeds N] [--steps N]

Batch b is drawn by the weights after max(0, b - ahead) steps. Nothing of heddle is used. One line for each delay, cap and seed.
Needs torch (PyPI).
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F

SEPARATOR, END, A, VOCABULARY, CONTEXT, WIDTH, HEADS, MOST = 10, 11, 12, 13, 16, 32, 2, 14


class Model(torch.nn.Module):
    """GPT-2 with one layer and output weights tied to the embedding. Normal weights of one deviation, biases 0."""

    def __init__(self, deviation):
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.place = torch.nn.Embedding(CONTEXT, WIDTH)
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(p)
            elif "norm" not in name:
                torch.nn.init.normal_(p, 0, deviation / math.sqrt(2) if name in ("out.weight", "down.weight") else deviation)

    def forward(self, ids):
        n, t = ids.shape
        x = self.token(ids) + self.place.weight[:t]
        q, k, v = (y.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, WIDTH))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return self.norm3(x) @ self.token.weight.T


def reward(digit, answer):
    right = [A] * digit + [END]
    return sum(x == y for x, y in zip(answer, right)) / max(len(answer), len(right))


@torch.no_grad()
def answers_of(model, digits, greedy=False):
    """Ids, the mask of drawn tokens and their log-probabilities, [n, context - 1] but for the ids."""
    n = len(digits)
    ids = torch.stack([digits, torch.full_like(digits, SEPARATOR)], 1)
    mask, drawn, alive = [torch.zeros(n)], [torch.zeros(n)], torch.ones(n, dtype=torch.bool)
    for _ in range(MOST):
        lp = F.log_softmax(model(ids)[:, -1], -1)
        token = lp.argmax(-1) if greedy else torch.multinomial(lp.exp(), 1)[:, 0]
        mask.append(alive.float())
        drawn.append(lp.gather(1, token[:, None])[:, 0])
        ids = torch.cat([ids, token[:, None]], 1)
        alive = alive & (token != END)
        if not alive.any():
            break
    mask, drawn = torch.stack(mask, 1), torch.stack(drawn, 1)
    lengths = mask.sum(1).int().tolist()
    rewards = [reward(int(d), row[2:2 + k]) for d, row, k in zip(digits, ids.tolist(), lengths)]
    return ids, mask, drawn, torch.tensor(rewards)


def learn(seed, ahead, cap, steps, peak, prompts=32, answers=8):
    torch.manual_seed(seed)
    model, past = Model(0.05), Model(0.05)
    adam = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
    versions, done, shares = [], 0, []
    for step in range(steps):
        versions.append({k: v.clone() for k, v in model.state_dict().items()})
        past.load_state_dict(versions[-1 - min(ahead, len(versions) - 1)])
        versions = versions[-ahead - 1:]
        digits = torch.randint(1, 9, (prompts,)).repeat_interleave(answers)
        ids, mask, drawn, rewards = answers_of(past, digits)
        groups = rewards.view(prompts, answers)
        advantage = ((groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        if not advantage.any():
            continue
        lp = F.log_softmax(model(ids[:, :-1]), -1).gather(2, ids[:, 1:, None])[..., 0]
        ratio = ((lp - drawn).clamp(-20, 20).exp() * mask).detach()
        weight = ratio.clamp(max=cap) if cap > 0 else mask
        shares.append(float(ratio.sum() ** 2 / (mask.sum() * (ratio ** 2).sum())))
        adam.zero_grad()
        (-(weight * advantage * lp * mask).sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = peak * 0.5 * (1 + math.cos(math.pi * done / steps))
        adam.step()
        done += 1
    greedy = answers_of(model, torch.arange(1, 9), greedy=True)[3]
    return float(greedy.mean()), sum(shares) / max(len(shares), 1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ahead", type=int, nargs="+", default=[0, 4, 8])
    p.add_argument("--cap", type=float, nargs="+", default=[5, 0])
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--lr", type=float, default=1e-3)
    o = p.parse_args()
    torch.set_num_threads(1)
    for seed in range(1, o.seeds + 1):
        for ahead in o.ahead:
            for cap in o.cap if ahead else o.cap[:1]:  # on time, all weights are 1
                began = time.monotonic()
                greedy, share = learn(seed, ahead, cap, o.steps, o.lr)
                print(f"ahead {ahead} cap {cap:g} seed {seed} greedy {greedy:.3f} weights {share:.3f} seconds {time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    main()
