"""Training steps of GPT-2 by PyTorch: the model, shapes and optimizer of gpt2_cuda.cu, on random tokens that are made beforehand.

torch.compile, scaled_dot_product_attention by its flash kernel, AdamW in one kernel, bf16 by autocast over weights of float, the norm of the
gradients clipped. Without PyTorch, or without a GPU where `--device cuda` asks for one, it says so and ends with 77.
"""

import argparse
import math
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ImportError as why:
    print(f"skipped: there is no PyTorch ({why})")
    sys.exit(77)

VOCABULARY = 50304  # 50257, made a multiple of 64
SIZES = {"tiny": (2, 2, 64, 64, 512), "124m": (12, 12, 768, 1024, VOCABULARY), "1558m": (48, 25, 1600, 1024, VOCABULARY)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        q, k, v = (
            t.view(samples, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("order", torch.arange(context), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(words) + self.places(self.order)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)  # the head is the embedding
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flops_per_token(layers: int, width: int, context: int, vocabulary: int) -> float:
    """gpt2_config::flops_per_token."""
    return 6.0 * (layers * 12 * width * width + vocabulary * width) + 6.0 * layers * width * (context + 1)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_of_bf16(device: str, extent: int) -> float:
    """Floating-point operations per second of a square product of random numbers."""
    a, b = (torch.rand(extent, extent, device=device).mul_(2).sub_(1).to(torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(13):
        wait(device)
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        wait(device)
        seconds.append((time.perf_counter() - start) / 10)
    return 2.0 * extent**3 / sorted(seconds[3:])[5]


def train(args: argparse.Namespace, batch: int) -> tuple[float, int]:
    """Seconds of a step, from all that were timed, and how many they were."""
    device: str = args.device
    torch.manual_seed(1)
    model = Gpt2(*SIZES[args.model]).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    step_of = torch.compile(model) if args.compile else model
    context, vocabulary = SIZES[args.model][3:]
    words = torch.randint(vocabulary, (4, batch, context + 1))
    if device == "cuda":
        words = words.pin_memory()

    def step(i: int) -> None:
        here = words[i % 4].to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = step_of(here[:, :-1], here[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for i in range(4):
        step(i)
    wait(device)
    done, start = 0, time.perf_counter()
    while done < 4 or (time.perf_counter() - start < args.seconds and done < 60):
        for i in range(4):
            step(i)
        wait(device)  # the host is never more than four steps ahead
        done += 4
    return (time.perf_counter() - start) / done, done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(SIZES), default="124m")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 77
    torch.set_float32_matmul_precision("high")
    peak = peak_of_bf16(args.device, 8192 if args.device == "cuda" else 256)
    batch, seconds, steps = args.batch, 0.0, 0
    while seconds == 0.0:
        try:
            seconds, steps = train(args, batch)
        except torch.cuda.OutOfMemoryError:
            if batch == 1:
                raise
            print(f"PyTorch has no memory for {batch} samples")
            batch //= 2
        if seconds == 0.0:
            torch.cuda.empty_cache()
    layers, _, width, context, vocabulary = SIZES[args.model]
    speed = batch * context / seconds
    mfu = speed * flops_per_token(layers, width, context, vocabulary) / peak
    print(f"PyTorch {torch.__version__}, GPT-2 {args.model}, batch {batch}: {speed:.0f} tokens/s, {100 * mfu:.1f} % of its own peak of "
          f"bf16 products, {seconds * 1e3:.2f} ms a step over {steps} steps")
    name = f"torch.gpt2-{args.model}"
    print(f"result {name}.tokens_per_second {speed:.6g} tokens/s")
    print(f"result {name}.mfu {mfu:.6g} of_peak")
    print(f"result {name}.batch {batch} samples")
    print(f"result torch.peak.bf16 {peak * 1e-12:.6g} TFLOP/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
