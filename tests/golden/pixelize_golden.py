#!/usr/bin/env python3
"""Writes pixelize_golden.txt: sums of the blocks of pictures, by NumPy.

    pip install numpy; python3 tests/golden/pixelize_golden.py tests/golden/pixelize_golden.txt

A line: rows, columns, channels, side, then for each block, row by row, its number of pixels and its sum per channel. The value of channel k of
pixel (r, c) is (r r + 3 r c + 7 c + 50 k) mod 251.
"""
import sys

import numpy as np


def main(path):
    with open(path, "w") as out:
        for rows, columns, channels in [(1, 1, 1), (5, 70, 1), (67, 130, 1), (131, 79, 1), (66, 66, 1), (70, 67, 3)]:
            r, c, k = np.meshgrid(np.arange(rows), np.arange(columns), np.arange(channels), indexing="ij")
            pixels = ((r * r + 3 * r * c + 7 * c + 50 * k) % 251).astype(np.uint8)
            for side in (8, 16, 32, 64):
                def by_blocks(x):
                    down = np.add.reduceat(x.astype(np.int64), np.arange(0, rows, side), axis=0)
                    return np.add.reduceat(down, np.arange(0, columns, side), axis=1)
                sums = by_blocks(pixels).reshape(-1, channels)
                counts = by_blocks(np.ones((rows, columns, 1))).reshape(-1)
                text = [f"{n} " + " ".join(map(str, s)) for n, s in zip(counts, sums)]
                out.write(f"{rows} {columns} {channels} {side} " + " ".join(text) + "\n")


main(sys.argv[1])
