"""Causal attention by PyTorch's flash kernel in bf16, forward and gradients: the shapes that cuda_kernels.cu has for heddle's.

Without PyTorch, or without a GPU where `--device cuda` asks for one, it says so and ends with 77.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as why:
    print(f"skipped: there is no PyTorch ({why})")
    sys.exit(77)

TOKENS, WIDTH = 16384, 2048  # of all samples; of all heads


def seconds_of(work: Callable[[], object], device: str) -> float:
    """The median of 15 batches, each of about 2 ms and more, as cuda_kernels.cu times."""

    def batch(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    batch(3)
    calls = max(1, min(200, int(2e-3 / batch(3))))
    return sorted(batch(calls) for _ in range(15))[7]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of all samples")
    parser.add_argument("--width", type=int, default=WIDTH, help="of all heads")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 77
    print(f"PyTorch {torch.__version__}, flash attention in bf16, causal, {args.tokens} tokens of width {args.width}")
    for head in (64, 128):
        for sequence in (1024, 4096):
            if sequence > args.tokens:
                continue
            shape = (args.tokens // sequence, args.width // head, sequence, head)
            q, k, v, dout = (torch.randn(shape, device=args.device, dtype=torch.bfloat16) for _ in range(4))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if args.device == "cuda" else nullcontext():
                forward = seconds_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), args.device)
                for x in (q, k, v):
                    x.requires_grad_()
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                backward = seconds_of(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), args.device)
            for what, seconds in (("forward", forward), ("backward", backward)):
                print(f"result torch.attention.{what}.d{head}.s{sequence} {seconds * 1e6:.6g} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
