#!/usr/bin/env python3
"""Compares draws of `discrete_laplace` with those of OpenDP's sampler, which is exact, too.

    pip install opendp; python3 tests/core/opendp_laplace.py [draws = 1000000] [seed = 48] [compiler = c++]

For each scale a chi^2 test of two samples over cells of about 4 %, and one of other scales (5 % larger), which must fail. Exit status: 0;
1 where a sample differs at the 1 % level of all four scales together; 77 without OpenDP.
"""
import importlib.metadata
import math
import os
import subprocess
import sys
import tempfile

SCALES = [(3, 2), (15, 1), (4080, 1), (40800, 1)]
PROGRAM = """
#include <heddle/core/discrete_laplace.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
int main(int, char** words) {
  const std::uint32_t numerator = std::strtoul(words[1], nullptr, 10), denominator = std::strtoul(words[2], nullptr, 10);
  const std::uint32_t draws = std::strtoul(words[3], nullptr, 10);
  for (std::uint32_t i = 0; i < draws; ++i) {
    heddle::counter_words of(std::strtoull(words[4], nullptr, 10), i, numerator, denominator);
    std::printf("%lld\\n", static_cast<long long>(heddle::discrete_laplace(of, {numerator, denominator})));
  }
}
"""


def cells(both):
    """The upper ends of cells that have about 4 % of both samples, and no less than 2 %."""
    both, ends, least = sorted(both), [], max(len(both) // 25, 1)
    at = least
    while at < len(both) - least // 2:
        if not ends or both[at] > ends[-1]:
            ends.append(both[at])
        at = max(at + least, next((i for i in range(at, len(both)) if both[i] > ends[-1]), len(both)))
    return ends


def chi2(one, two):
    """Pearson's statistic of two samples of one size, its degrees of freedom, and how likely a larger one is."""
    ends = cells(one + two)

    def hits(sample):
        counts = [0] * (len(ends) + 1)
        for x in sample:
            low, high = 0, len(ends)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if x > ends[middle] else (low, middle)
            counts[low] += 1
        return counts
    pairs = [(a, b) for a, b in zip(hits(one), hits(two)) if a + b > 0]
    statistic, freedom = sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1
    # Wilson and Hilferty: the cube root is nearly normal.
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return statistic, freedom, 0.5 * math.erfc(z / math.sqrt(2))


def main():
    try:
        import opendp.prelude as dp
    except ImportError:
        print("SKIPPED: Python has no opendp")
        return 77
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    compiler = sys.argv[3] if len(sys.argv) > 3 else "c++"
    dp.enable_features("contrib")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "draws.cpp"), os.path.join(folder, "draws")
        with open(source, "w") as to:
            to.write(PROGRAM)
        subprocess.run([compiler, "-std=c++20", "-O2", "-I" + os.path.join(root, "include"), source, "-o", program], check=True)

        def ours(numerator, denominator):
            words = subprocess.run([program, str(numerator), str(denominator), str(draws), str(seed)], check=True, text=True,
                                   capture_output=True).stdout
            return [int(word) for word in words.split()]
        print(f"opendp {importlib.metadata.version('opendp')}, {draws} draws of each, seed {seed}; OpenDP takes its own from the system")
        for numerator, denominator in SCALES:
            space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
            sampler = dp.m.make_laplace(*space, scale=numerator / denominator)
            theirs = sampler([0] * draws)
            statistic, freedom, above = chi2(ours(numerator, denominator), theirs)
            same = above >= 0.01 / len(SCALES)
            _, _, other = chi2(ours(21 * numerator, 20 * denominator), theirs)
            told = other < 0.01 / len(SCALES)
            wrong += (not same) + (not told)
            print(f"scale {numerator}/{denominator}: chi^2 {statistic:.1f} of {freedom} degrees of freedom, p = {above:.3f}; "
                  f"{'the same distribution' if same else 'ANOTHER DISTRIBUTION'}; a scale 5 % larger: p = {other:.1g}, "
                  f"{'told from it' if told else 'NOT TOLD FROM IT'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
