"""Writes float8_golden.txt: numbers of 8 bits, their conversions and products, as PyTorch computes them on the CPU.

python3 float8_golden.py > float8_golden.txt   (torch 2.15, CPU)

Sections, one line each of `name count`, then `count` lines:
e4m3_codes, e5m2_codes  the float (bits, hex) of each of the 256 codes
e4m3_runs, e5m2_runs    all 65536 bf16, clamped to the largest number as torchao's `to_fp8_saturated` does and cast: where the code changes, as
                        `first-bf16-bits code`, hex
a, b                    floats (bits, hex) of [5, 16] and [3, 16], rows of different sizes
tensor, row             a b' (bits of floats) by torch._scaled_mm of operands of e4m3 that are scaled by the greatest magnitude of the tensor; of each
                        row, rounded down to a power of two as torchao's recipe `rowwise` does
"""

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def bits(x):
    return [f"{v & 0xFFFFFFFF:08x}" for v in x.contiguous().view(torch.int32).flatten().tolist()]


def section(name, lines):
    print(name, len(lines))
    print("\n".join(lines))


def saturated(x, dtype):
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def scale(x, dim, power_of_two=False):
    """torchao, float8/float8_utils.py, amax_to_scale."""
    amax = x.abs().amax() if dim is None else x.abs().amax(dim=dim, keepdim=True)
    s = (torch.finfo(torch.float8_e4m3fn).max / amax.to(torch.float64).clamp(min=1e-12)).to(torch.float32)
    return torch.exp2(torch.floor(torch.log2(s))) if power_of_two else s


def product(a, b, dim, power_of_two=False):
    sa, sb = scale(a, dim, power_of_two), scale(b, dim, power_of_two)
    qa, qb = saturated(a * sa, torch.float8_e4m3fn), saturated(b * sb, torch.float8_e4m3fn)
    return torch._scaled_mm(qa, qb.t(), scale_a=sa.reciprocal(), scale_b=sb.reciprocal().t() if dim is not None else sb.reciprocal(),
                            out_dtype=torch.float32)


def main():
    every_code = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    every_bf16 = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(torch.float32)
    for name, dtype in FORMATS.items():
        section(name + "_codes", bits(every_code.view(dtype).to(torch.float32)))
        codes = saturated(every_bf16, dtype).view(torch.uint8).tolist()
        section(name + "_runs",
                [f"{i:04x} {c:02x}" for i, c in enumerate(codes) if i == 0 or c != codes[i - 1]])
    torch.manual_seed(1)
    a = torch.randn(5, 16) * torch.tensor([1.0, 1e-3, 30.0, 1e4, 0.2])[:, None]
    b = torch.randn(3, 16) * torch.tensor([0.02, 5.0, 1e-4])[:, None]
    section("a", bits(a))
    section("b", bits(b))
    section("tensor", bits(product(a, b, None)))
    section("row", bits(product(a, b, 1, True)))


main()
