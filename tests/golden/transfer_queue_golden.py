#!/usr/bin/env python3
"""Writes transfer_queue_golden.txt: bits and samplers of AsyncFlow's TransferQueue.

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/pip install --no-deps transferqueue==0.1.11 && venv/bin/python transfer_queue_golden.py

Lines, numbers between spaces, lists behind "|":
    table <rows> <columns>             a new table; its tasks and what happens to it follow
    need <column>...                   a task, numbered from 0, which needs these columns
    put <row> <column>                 the cell is there now
    ready <task> | <row>...            `DataPartitionStatus.scan_data_status`
    take <task> <n> | <row>...         `SequentialSampler` of what is ready, of which there is enough
    taken <task> | <row>...            the rows whose bit of consumption is set
    group <N> <n> | <ready>... | <row>... | <row>...
    balanced <N> <replicas> <n> | <tokens of each row>... | <row of replica 0>... | <row of replica 1>... and so on

`group` has two results of `GRPOGroupNSampler`. The second is of all rows that are ready; it takes any N rows beside each other for a group: of {1, 2, 3, 4} it
takes {1, 2, 3} for a group of 3, though these are of the groups {0, 1, 2} and {3, 4, 5}, and then the advantages of two prompts are mixed. The first is of
the rows of those groups alone that are ready as a whole and begin at a multiple of N, which is what heddle takes; the test counts where they differ.

Modules that are not called here are stand-ins.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing.connection  # before there are stand-ins
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy  # noqa: F401
import torch

HERE = Path(__file__).parent


class Stand_in(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """For modules that are not installed, last of all."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def queue():
    root = Path(importlib.util.find_spec("transfer_queue").submodule_search_locations[0])
    package = types.ModuleType("transfer_queue")  # without its __init__
    package.__path__ = [str(root)]
    sys.modules["transfer_queue"] = package
    sys.modules["ray"] = MagicMock(name="ray")
    sys.modules["ray"].remote = lambda *a, **k: a[0] if a else (lambda f: f)
    sys.meta_path.append(Stand_in())
    import transfer_queue.controller as controller
    import transfer_queue.sampler as sampler

    return controller, sampler


class Generator:
    """x := 6364136223846793005 x + 1442695040888963407 modulo 2^64; numbers are of the upper bits."""

    def __init__(self, seed):
        self.x = seed

    def integer(self, below):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.x >> 33) % below


def words(*of):
    return " ".join(str(x) for x in of)


def tables(controller, sampler):
    g = Generator(7)
    for _ in range(40):
        rows, columns, tasks = 2 + g.integer(12), 1 + g.integer(5), 1 + g.integer(3)
        yield words("table", rows, columns)
        names = [f"c{c}" for c in range(columns)]
        # All columns are known beforehand, as in a table that has them in its type.
        table = controller.DataPartitionStatus(partition_id="p")
        table.ensure_samples_capacity(rows)
        table.ensure_fields_capacity(columns)
        table.field_name_mapping.update({n: i for i, n in enumerate(names)})
        table.global_indexes.update(range(rows))
        needs = []
        for _ in range(tasks):
            some = [c for c in range(columns) if g.integer(2)] or [g.integer(columns)]
            needs.append(some)
            yield words("need", *some)
        cells = [(r, c) for r in range(rows) for c in range(columns)]
        while cells:
            for _ in range(1 + g.integer(6)):
                if cells:
                    row, column = cells.pop(g.integer(len(cells)))
                    assert table.update_production_status([row], [names[column]], {names[column]: {"dtype": torch.int32, "shape": (1,)}})
                    yield words("put", row, column)
            task = g.integer(tasks)
            ready = table.scan_data_status([names[c] for c in needs[task]], f"t{task}")
            yield words("ready", task, "|", *ready)
            n = 1 + g.integer(4)
            if len(ready) >= n:
                taken, used = sampler.SequentialSampler().sample(ready, n)
                table.mark_consumed(f"t{task}", used)
                yield words("take", task, n, "|", *taken)
            bits = table.get_consumption_status(f"t{task}")[1].tolist()
            yield words("taken", task, "|", *[r for r, bit in enumerate(bits) if bit])


def groups(sampler):
    g = Generator(8)
    for _ in range(400):
        size, count = 1 + g.integer(4), 1 + g.integer(5)
        ready = [r for r in range(size * count) if g.integer(5)]
        n = size * (1 + g.integer(3))
        whole = [r for r in ready if all(size * (r // size) + i in ready for i in range(size))]
        aligned, any_rows = (sampler.GRPOGroupNSampler(size).sample(some, n)[0] for some in (whole, ready))
        yield words("group", size, n, "|", *ready, "|", *aligned, "|", *any_rows)


class Tokens:
    def __init__(self, tokens):
        self.tokens = tokens

    def get_custom_meta(self, rows):
        return {r: {"total_lengths": self.tokens[r]} for r in rows}


def balanced(sampler):
    g = Generator(9)
    for case in range(200):
        size, replicas, groups_each = 1 + g.integer(4), 1 + g.integer(5), 1 + g.integer(6)
        rows = size * replicas * groups_each
        most = 4 if case % 3 == 0 else 1000  # some have many equal sums
        tokens = [1 + g.integer(most) for _ in range(rows)]
        of = sampler.SeqlenBalancedSampler(size, replicas)
        parts = [of.sample(list(range(rows)), size * groups_each, "t", "p", dp_rank=r, batch_index=0, partition=Tokens(tokens))[0] for r in range(replicas)]
        line = words("balanced", size, replicas, size * groups_each, "|", *tokens)
        for part in parts:
            line += " | " + words(*part)
        yield line


if __name__ == "__main__":
    modules = queue()
    lines = [*tables(*modules), *groups(modules[1]), *balanced(modules[1])]
    (HERE / "transfer_queue_golden.txt").write_text("\n".join(lines) + "\n")
