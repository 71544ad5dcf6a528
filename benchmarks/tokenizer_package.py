#!/usr/bin/env python3
"""Hugging Face's `tokenizers` on one thread, for tokenizer_bench to compare with.

    tokenizer_package.py <tokenizer.json> <text> <characters> <repetitions>

Cuts the text into documents of so many characters, encodes them one after the other, and prints one line: the number of tokens,
FNV-1a over all ids, and the seconds of each repetition. Each repetition begins with a new tokenizer, whose cache of words is
empty, and encodes twice: the second time is printed behind the first, after a slash.
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

file, text, size, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(text, encoding="utf-8", newline="") as f:
    text = f.read()
documents = [text[i:i + size] for i in range(0, len(text), size)]
times = []
for _ in range(repetitions):
    tokenizer = Tokenizer.from_file(file)
    both = []
    for _ in range(2):
        start = time.perf_counter()
        encoded = [tokenizer.encode(d, add_special_tokens=False) for d in documents]
        both.append(time.perf_counter() - start)
    times.append("/".join(f"{t:.6f}" for t in both))
count, hash_ = 0, 0xCBF29CE484222325
for e in encoded:
    for id_ in e.ids:
        count += 1
        hash_ = ((hash_ ^ id_) * 0x100000001B3) & ((1 << 64) - 1)
print(count, f"{hash_:016x}", *times)
