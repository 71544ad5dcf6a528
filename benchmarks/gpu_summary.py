"""What must hold on a GPU, and what was measured: reads lines `result NAME NUMBER UNIT` and prints a table in Markdown.

A requirement whose numbers are not there is printed as not measured; the status is 0 in any case. `scripts/gpu_check` puts this above its report.
"""

from __future__ import annotations

import re
import sys


def read(lines: list[str]) -> dict[str, float]:
    """The last number of each name."""
    results: dict[str, float] = {}
    for line in lines:
        words = line.split()
        if len(words) == 4 and words[0] == "result":
            results[words[1]] = float(words[2])
    return results


def best(results: dict[str, float], pattern: str) -> tuple[str, float] | None:
    """The greatest of the numbers whose whole name matches."""
    found = [(value, name) for name, value in results.items() if re.fullmatch(pattern, name)]
    return (max(found)[1], max(found)[0]) if found else None


def row(what: str, bound: str, found: tuple[str, float] | None, holds: bool) -> str:
    if found is None:
        return f"| {what} | {bound} | not measured | |"
    return f"| {what} | {bound} | {found[1]:.3g} ({found[0]}) | {'holds' if holds else 'MISSED'} |"


def at_least(results: dict[str, float], what: str, bound: float, pattern: str) -> str:
    found = best(results, pattern)
    return row(what, f"at least {bound:g}", found, found is not None and found[1] >= bound)


def at_most(results: dict[str, float], what: str, bound: float, name: str) -> str:
    found = (name, results[name]) if name in results else None
    return row(what, f"at most {bound:g}", found, found is not None and found[1] <= bound)


def least(results: dict[str, float], pattern: str) -> list[str]:
    return sorted(name for name in results if re.fullmatch(pattern, name))


def table(results: dict[str, float]) -> list[str]:
    rows = ["| must hold | bound | measured | |", "|---|---|---|---|"]
    rows.append(at_most(results, "losses of 50 steps in float, furthest from the host's", 1e-4, "heddle.losses.float"))
    rows.append(at_most(results, "losses with products of bf16, furthest from the host's", 2e-2, "heddle.losses.bf16_products"))
    rows.append(at_most(results, "losses of a model of bf16, furthest from the host's in float", 2e-2, "heddle.losses.bf16"))
    rows.append(at_least(results, "GPT-2 124M, MFU", 0.45, r"heddle\.gpt2-124m\.bf16\w*\.\w+\.mfu"))
    speed = best(results, r"heddle\.gpt2-124m\.bf16\w*\.\w+\.tokens_per_second")
    torch = results.get("torch.gpt2-124m.tokens_per_second")
    ratio = (speed[0], speed[1] / torch) if speed and torch else None
    rows.append(row("GPT-2 124M, tokens/s over PyTorch's", "at least 1", ratio, ratio is not None and ratio[1] >= 1))
    rows.append(at_least(results, "GPT-2 1558M, MFU", 0.5, r"heddle\.gpt2-1558m\.bf16\w*\.\w+\.mfu"))
    for what, pattern in (
        ("norms, of a copy", r"heddle\.norm\.\w+"),
        ("cross-entropy, of a copy", r"heddle\.cross_entropy\.(forward|backward)"),
        ("AdamW, of a copy", r"heddle\.adamw"),
        ("permutations, of a copy", r"heddle\.permutation\.\w+"),
    ):
        names = least(results, pattern)
        rows += [at_least(results, what, 0.85, re.escape(name)) for name in names] or [row(what, "at least 0.85", None, False)]
    for what, bound in (("forward", 0.6), ("backward", 0.0)):
        for shape in ("d64.s1024", "d64.s4096", "d128.s1024", "d128.s4096"):
            theirs = results.get(f"torch.attention.{what}.{shape}")
            for kind in ("bf16", "float"):
                name = f"heddle.attention.{what}.{shape}.{kind}"
                if name not in results and not (kind == "bf16" and bound > 0):
                    continue
                found = (name, theirs / results[name]) if theirs and name in results else None
                demanded = bound > 0 and kind == "bf16"
                text = f"at least {bound:g}" if demanded else "not demanded"
                title = f"attention {what} {shape} in {kind}, speed over PyTorch's flash kernel"
                line = row(title, text, found, found is not None and found[1] >= bound)
                rows.append(line if demanded else re.sub(r"\| (holds|MISSED) \|$", "| |", line))
    for name in least(results, r"heddle\.decoding\.\w+\.\d+\.in_parts"):
        kind, sequences = name.split(".")[2:4]
        rows.append(f"| decoding of {sequences} sequences in {kind}, in parts of the keys, of a copy | not demanded | {results[name]:.3g} ({name}) | |")
    for ranks in (4, 8):
        rows.append(at_least(results, f"all_reduce of {ranks} ranks on one GPU, of its bound", 0.6, rf"heddle\.all_reduce\.r{ranks}"))
    captured = [n for n in least(results, r"heddle\.gpt2-\w+\.\w+\.captured\.host_share") if "tiny" not in n]
    rows += [at_most(results, "captured step, share of its time beside the graph and in its launch", 0.01, name) for name in captured] or [
        row("captured step, share of its time beside the graph and in its launch", "at most 0.01", None, False)
    ]
    return rows


if __name__ == "__main__":
    print("\n".join(table(read(sys.stdin.read().splitlines()))))
