#!/usr/bin/env python3
"""Writes blend_golden.txt: orders of blended corpora by Megatron-LM's compiled helpers.

    pip install --no-deps megatron-core==0.16.1 numpy; python3 tests/golden/blend_golden.py tests/golden/blend_golden.txt

The weights are divided by their numpy sum, as megatron/core/datasets/utils.py does. For each of 200 random blends a
line: number of weights, weights (hexadecimal), samples, a checksum (see `fold`) of corpus and sample of each sample.
Corpora of weight 0 are left out, as Megatron's BlendedDataset takes none of them.
"""
import glob
import importlib.util
import sys

import numpy

folder = importlib.util.find_spec("megatron").submodule_search_locations[0] + "/core/datasets/"
spec = importlib.util.spec_from_file_location("helpers_cpp", glob.glob(folder + "helpers_cpp*.so")[0])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)


def fold(numbers):
    value = 0
    for n in numbers:
        value = (value * 1000003 + int(n) + 1) % 2**64
    return value


def main(path):
    draw = numpy.random.default_rng(46)
    with open(path, "w") as out:
        for i in range(200):
            n = int(draw.integers(1, 9)) if i < 180 else int(draw.integers(9, 300))
            # Whole numbers have many ties, others none.
            weights = draw.integers(0, 6, size=n).astype(numpy.float64) if i % 2 else draw.random(n)
            weights[int(draw.integers(n))] += 1
            samples = int(draw.integers(1, 500)) if i % 10 else 9000
            w = weights / numpy.sum(weights)
            corpus, sample = numpy.zeros(samples, dtype=numpy.int16), numpy.zeros(samples, dtype=numpy.int64)
            there = numpy.flatnonzero(w)
            helpers.build_blending_indices(corpus, sample, w[there], len(there), samples, False)
            both = numpy.stack([there[corpus].astype(numpy.int64), sample], axis=1).reshape(-1)
            out.write(" ".join([str(n), *(float(x).hex() for x in weights), str(samples), str(fold(both))]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
