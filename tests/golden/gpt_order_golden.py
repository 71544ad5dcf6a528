#!/usr/bin/env python3
"""Writes gpt_order_golden.txt: orders of samples by Megatron-LM's own code, and what numpy makes of token files.

    pip install --no-deps megatron-core==0.16.1 numpy; python3 tests/golden/gpt_order_golden.py tests/golden/gpt_order_golden.txt

The functions that build the document and shuffle indexes are taken out of megatron/core/datasets/gpt_dataset.py, whose
other parts need PyTorch, and run as they are; the sample index is that of the compiled helpers. The branch between them
(number of epochs, last epoch apart) is the method's. For each of 200 random corpora a line: seed, context, samples,
number and lengths of documents; epochs; a checksum each of the document, sample and shuffle index (see `fold`), the
length of the last and its first four entries.
"""
import ast
import glob
import importlib.util
import sys

import numpy

folder = importlib.util.find_spec("megatron").submodule_search_locations[0] + "/core/datasets/"
tree = ast.parse(open(folder + "gpt_dataset.py").read())
wanted = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("_build_document_index", "_build_shuffle_index")]
megatron = {"numpy": numpy}
exec(compile(ast.Module(body=wanted, type_ignores=[]), "gpt_dataset.py", "exec"), megatron)

spec = importlib.util.spec_from_file_location("helpers_cpp", glob.glob(folder + "helpers_cpp*.so")[0])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)


def fold(numbers):
    value = 0
    for n in numbers:
        value = (value * 1000003 + int(n) + 1) % 2**64
    return value


def order(lengths, context, samples, seed):
    lengths = numpy.array(lengths, dtype=numpy.int32)
    in_epoch, epochs = int(lengths.sum()), 1
    while epochs * in_epoch < samples * context + 1:
        epochs += 1
    apart, before_last = False, 0
    if epochs > 1:
        before_last = ((epochs - 1) * in_epoch - 1) // context
        apart = samples - before_last < int(0.80 * ((in_epoch - 1) // context))
    state = numpy.random.RandomState(seed)
    documents = megatron["_build_document_index"](numpy.arange(len(lengths), dtype=numpy.int32), epochs, state, apart)
    cuts = helpers.build_sample_idx_int32(lengths, documents, context, epochs, in_epoch, True, 1)
    n = len(cuts) - 1
    shuffled = megatron["_build_shuffle_index"](before_last if apart else n, n, state)
    return epochs, apart, documents, cuts, shuffled


def main(path):
    draw = numpy.random.default_rng(45)
    with open(path, "w") as out:
        aparts = 0
        while (line := main.lines) < 200:
            lengths = draw.integers(1, 40, size=draw.integers(1, 30)).tolist()
            context, samples, seed = int(draw.integers(1, 33)), int(draw.integers(1, 120)), int(draw.integers(0, 2**32))
            epochs, apart, documents, cuts, shuffled = order(lengths, context, samples, seed)
            aparts += apart
            first = [int(n) for n in shuffled[:4]]
            out.write(" ".join(map(str, [seed, context, samples, len(lengths), *lengths, epochs, fold(documents), fold(cuts.reshape(-1)),
                                         fold(shuffled), len(shuffled), *first, *([0] * (4 - len(first)))])) + "\n")
            main.lines += 1
        print(aparts, "of 200 with the last epoch apart")


main.lines = 0
if __name__ == "__main__":
    main(sys.argv[1])
