#!/usr/bin/env python3
"""Measures what heddle costs to compile: seconds, memory, and (clang) template instantiations.

    compile_time.py [--include DIR] [--repeat N] [--gcc g++] [--clang clang++-19] [--only NAME] [--keep DIR]
    compile_time.py --write-plans FILE       only writes the translation unit of 200 redistributions

Prints a Markdown table. Seconds are those of the processor (user and system), the median of N compilations and the least
and the most; memory is the largest resident set of the compiler. Instantiations are events of clang's -ftime-trace
(InstantiateClass and InstantiateFunction), which are the same on every machine.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

AXES = ["a", "b", "c", "d"]
HEAD = """// Made by benchmarks/compile_time/compile_time.py: redistributions on a mesh of four axes.
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
struct a {};
struct b {};
struct c {};
struct d {};
using mesh = hd::mesh<hd::axis<a, 2>, hd::axis<b, 3>, hd::axis<c, 2>, hd::axis<d, 4>>;
"""


def layout(rng):
    """A random layout of a matrix: every axis copies, splits a dimension at a random place of its order, or is partial."""
    dims, partial = {0: [], 1: []}, []
    for axis in AXES:
        role = rng.randrange(4)
        if role < 2:
            dims[role].insert(rng.randrange(len(dims[role]) + 1), axis)
        elif role == 2:
            partial.append(axis)
    placements = [f"hd::shard<{dim}, {', '.join(axes)}>" for dim, axes in dims.items() if axes]
    if partial:
        placements.append(f"hd::partial<hd::plus, {', '.join(partial)}>")
    return f"hd::layout<{', '.join(['mesh'] + placements)}>"


def plans(count, seed=1):
    """`count` pairs of different layouts, no pair twice."""
    rng, pairs = random.Random(seed), []
    while len(pairs) < count:
        pair = (layout(rng), layout(rng))
        if pair[0] != pair[1] and pair not in pairs:
            pairs.append(pair)
    return pairs


def plan_unit(count, ask_bytes):
    text = HEAD + "\nstd::int64_t sum(const hd::shape<hd::dynamic, hd::dynamic>& s) {\n  std::int64_t n = s[0];\n"
    for source, target in plans(count):
        text += f"  n += static_cast<std::int64_t>(hd::redistribution<{source},\n      {target}>.steps.size());\n"
        if ask_bytes:
            text += f"  n += hd::redistribution<{source},\n      {target}>.bytes_sent_per_rank(s, 4);\n"
    return text + "  return n;\n}\n"


# What the compiler does for a schedule: generate the table of 16 ranks and 64 microbatches, validate it.
SCHEDULES = {"1F1B": "one_f_one_b<m>", "interleaved, v = 2": "interleaved<m>", "ZB-H1": "zb_h1<m>", "ZB-V": "zb_v<m>",
             "V-Half": "v_half<m>"}


def schedule_unit(schedule, check="valid"):
    return f"""#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/v_half.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

namespace hs = heddle::schedule;
using m = heddle::microbatches<64>;
using mesh = heddle::mesh<heddle::axis<heddle::pp, 16>>;
static_assert(hs::{check}<hs::{schedule}, mesh>);
"""


UNITS = {
    "nothing": "int nothing;\n",
    "heddle/core/shape.hpp": "#include <heddle/core/shape.hpp>\n",
    "heddle/layout/redistribution.hpp": "#include <heddle/layout/redistribution.hpp>\n",
    "range/v3/all.hpp": "#include <range/v3/all.hpp>\n",
    **{f"heddle/{room}.hpp": f"#include <heddle/{room}.hpp>\n" for room in ["heddle", "core", "mesh", "layout", "comm", "schedule", "tensor",
                                                                             "compute", "model", "train", "io", "plan", "sim", "observe"]},
    "200 redistributions planned": plan_unit(200, False),
    "200 planned, bytes asked": plan_unit(200, True),
    **{f"schedule {name} generated, validated": schedule_unit(text) for name, text in SCHEDULES.items()},
    **{f"schedule {name} also lowered, deadlock-free": schedule_unit(text, "deadlock_free")
       for name, text in SCHEDULES.items()},
}


def compile_once(command):
    """Seconds and MiB of one compilation."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(" ".join(command) + "\n" + errors.decode()[:2000])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def instantiations(clang, flags, source, folder):
    subprocess.run([clang, *flags, "-fconstexpr-steps=4000000", "-ftime-trace", "-ftime-trace-granularity=0", "-c", source, "-o", f"{folder}/t.o"], check=True)
    events = json.loads(Path(f"{folder}/t.json").read_text())["traceEvents"]
    return sum(event["name"] in ("InstantiateClass", "InstantiateFunction") for event in events)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", default=str(Path(__file__).resolve().parents[2] / "include"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gcc", default="g++")
    parser.add_argument("--clang", default="clang++-19")
    parser.add_argument("--only", default="")
    parser.add_argument("--write-plans")
    parser.add_argument("--limit-seconds", type=float, help="exit status 1 if the 200 plans take more")
    parser.add_argument("--limit-mib", type=float)
    options = parser.parse_args()
    if options.write_plans:
        Path(options.write_plans).write_text(plan_unit(200, False))
        return
    flags = ["-std=c++20", "-O2", f"-I{options.include}"]
    clang = shutil.which(options.clang)
    print("| translation unit | seconds | least to most | peak MiB | instantiations (clang) |\n|---|--:|--:|--:|--:|")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in UNITS.items():
            if options.only not in name:
                continue
            source = f"{folder}/unit.cpp"
            Path(source).write_text(text)
            runs = [compile_once([options.gcc, *flags, "-c", source, "-o", f"{folder}/unit.o"]) for _ in range(options.repeat)]
            seconds, memory = [r[0] for r in runs], max(r[1] for r in runs)
            count = instantiations(clang, flags, source, folder) if clang else "-"
            print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {memory:.0f} | {count} |",
                  flush=True)
            if name.startswith("200 redistributions"):
                if options.limit_seconds and min(seconds) > options.limit_seconds:
                    failed.append(f"{min(seconds):.1f} s, allowed are {options.limit_seconds}")
                if options.limit_mib and memory > options.limit_mib:
                    failed.append(f"{memory:.0f} MiB, allowed are {options.limit_mib}")
    if failed:
        sys.exit("200 redistributions cost " + "; ".join(failed))


if __name__ == "__main__":
    main()
