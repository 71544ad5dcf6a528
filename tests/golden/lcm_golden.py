#!/usr/bin/env python3
"""Writes lcm_golden.txt: LCMAggregation of PyTorch Geometric with given weights, on sets of one size.

    pip install torch torch-geometric; python3 tests/golden/lcm_golden.py tests/golden/lcm_golden.txt

Lines of a name and numbers, in float64: sizes (sets, elements of a set, inputs, width, elements of the larger set), the projection's weight
[width, inputs] and bias, the cell's weight_ih and weight_hh [3 width, width], bias_ih and bias_hh, x [sets, elements, inputs], the sets' values
[sets, width], the elements of a larger set, and the values of the same sets where it lies in the batch beside them.
"""
import sys

import torch
from torch_geometric.nn.aggr import LCMAggregation


def main(path):
    torch.manual_seed(48)
    torch.set_default_dtype(torch.float64)
    with open(path, "w") as out:
        def line(name, numbers):
            out.write(name + " " + " ".join(f"{n:.12g}" for n in torch.as_tensor(numbers).flatten().tolist()) + "\n")
        for sets, size, more in ((4, 7, 12), (3, 8, 9)):
            inputs, width = 3, 5
            lcm = LCMAggregation(inputs, width)
            with torch.no_grad():
                for p in lcm.parameters():
                    p.copy_(torch.randn_like(p))
                x, larger = torch.randn(sets * size, inputs), torch.randn(more, inputs)
                index = torch.arange(sets).repeat_interleave(size)
                line("sizes", [sets, size, inputs, width, more])
                line("projection", lcm.lin.weight)
                line("projection_bias", lcm.lin.bias)
                cell = lcm.gru_cell
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    line(name, getattr(cell, name))
                line("x", x)
                line("values", lcm(x, index))
                line("larger", larger)
                beside = lcm(torch.cat([x, larger]), torch.cat([index, torch.full((more,), sets)]))
                line("beside_larger", beside[:sets])


main(sys.argv[1])
