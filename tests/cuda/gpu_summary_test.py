"""benchmarks/gpu_summary.py: bounds are held or missed by the numbers, and what was not measured is said to be so.

usage: gpu_summary_test.py FOLDER_OF_BENCHMARKS
"""

import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import gpu_summary  # noqa: E402

LINES = """
something else
result heddle.losses.float 1e-5 of_loss
result heddle.losses.bf16_products 0.03 of_loss
result heddle.gpt2-124m.bf16_products.captured.mfu 0.2 of_peak
result heddle.gpt2-124m.bf16_products.captured.tokens_per_second 100 tokens/s
result heddle.gpt2-124m.bf16_products.eager.tokens_per_second 90 tokens/s
result heddle.gpt2-124m.tf32.captured.tokens_per_second 1000 tokens/s
result torch.gpt2-124m.tokens_per_second 80 tokens/s
result heddle.norm.layer 0.9 of_copy
result heddle.decoding.bf16.8.in_parts 0.7 of_copy
result heddle.decoding.bf16.8.by_tiles 0.1 of_copy
result heddle.norm.rms 0.8 of_copy
result torch.attention.forward.d64.s1024 50 us
result heddle.attention.forward.d64.s1024.float 500 us
result heddle.attention.forward.d64.s1024.bf16 80 us
result heddle.gpt2-tiny.bf16_products.captured.host_share 0.5 of_step
result heddle.gpt2-124m.bf16_products.captured.host_share 0.001 of_step
"""
EXPECTED = {
    "| losses of 50 steps in float": ("1e-05", "holds"),
    "| losses with products of bf16": ("0.03", "MISSED"),
    "| GPT-2 124M, MFU": ("0.2", "MISSED"),
    "| GPT-2 124M, tokens/s over PyTorch's": ("1.25", "holds"),
    "| GPT-2 1558M, MFU": ("not measured", ""),
    "| attention forward d64.s1024 in bf16": ("0.625", "holds"),
    "| attention forward d64.s1024 in float": ("0.1", ""),
    "| attention forward d128.s4096 in bf16": ("not measured", ""),
    "| captured step": ("0.001", "holds"),
    "| decoding of 8 sequences in bf16": ("0.7", ""),
}


def main() -> int:
    rows = gpu_summary.table(gpu_summary.read(LINES.splitlines()))
    wrong = []
    for begin, (number, verdict) in EXPECTED.items():
        found = [row for row in rows if row.startswith(begin)]
        cells = [cell.strip() for cell in found[0].split("|")[1:-1]] if len(found) == 1 else []
        if len(cells) != 4 or not cells[2].startswith(number) or cells[3] != verdict:
            wrong.append(f"{begin}: expected {number}, '{verdict}', got {found}")
    norms = sorted(row.split("|")[-2].strip() for row in rows if row.startswith("| norms"))
    if norms != ["MISSED", "holds"]:
        wrong.append(f"two norms, one beyond its bound: got {norms}")
    empty = gpu_summary.table({})[2:]
    if not empty or any("not measured" not in row for row in empty):
        wrong.append(f"without numbers nothing is measured: got {empty}")
    print("\n".join(wrong) or "as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
