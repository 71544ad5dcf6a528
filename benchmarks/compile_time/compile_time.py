#!/usr/bin/env python3
"""Measures what heddle costs to compile: seconds, memory, and (clang) template instantiations.

    compile_time.py [--include DIR] [--repeat N] [--gcc g++] [--clang clang++-19] [--only NAME] [--keep DIR]
    compile_time.py --targets [--repeat N] [--separate | --header-only]    what issues of compile time ask, against range-v3
    compile_time.py --write-plans FILE       only writes the translation unit of 200 redistributions

Prints a Markdown table. --targets prints another: the least of N compilations (of one where code is made), and its
relation to range/v3/all.hpp of the same run, header-only and with HEDDLE_SEPARATE_COMPILATION. On a machine that does other
work seconds are more: targets in seconds count in relation to range-v3, too.

Seconds of the first table are those of the processor (user and system), the median of N compilations and the
least and the most; memory is the largest resident set of the compiler. Instantiations are events of clang's -ftime-trace
(InstantiateClass and InstantiateFunction), which are the same on every machine.
"""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


# One stage of transformer blocks and each of its verbs.
STAGE = """#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>

namespace hd = heddle;
namespace md = hd::model;

int main(int argc, char** argv) {
  using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    hd::compute::host<> backend{1};
    using world_type = std::remove_reference_t<decltype(world)>;
    md::gpt2_stage<float, world_type, hd::compute::host<>> stage(md::gpt2_124m(), world, backend, md::split_layers(12, 0, 1), 1, 4);
    stage.initialize(1);
    const md::batch<float> batch{{}, {}, 4, 1.0f};
    stage.forward(0, batch, {}, {});
    stage.backward_input(0, batch, {}, {});
    stage.backward_weight(0, batch);
    stage.forward_only(batch, {}, {});
  });
}
"""

# name: (text or path in the repository, flags where code is made, target and target with separate compilation: seconds, or "0.6x" of range-v3)
TARGETS = {
    "range/v3/all.hpp": ("#include <range/v3/all.hpp>\n", "", None, None),
    "core/shape, mesh/mesh, layout/layout": ("".join(f"#include <heddle/{h}.hpp>\n" for h in ["core/shape", "mesh/mesh", "layout/layout"]),
                                             "", 0.25, None),
    "rooms core, mesh, layout": ("".join(f"#include <heddle/{h}.hpp>\n" for h in ["core", "mesh", "layout"]), "", None, None),
    "heddle/heddle.hpp": ("#include <heddle/heddle.hpp>\n", "", "0.9x", None),
    "heddle/train.hpp": ("#include <heddle/train.hpp>\n", "", "1.8x", None),
    "heddle/train/trainer.hpp": ("#include <heddle/train/trainer.hpp>\n", "", "1.5x", None),
    "standard headers of heddle/heddle.hpp": ("", "", None, None),
    "standard headers of heddle/train.hpp": ("", "", None, None),
    "standard headers of one stage": ("", "", None, None),
    "headers of one stage": ("".join(line + "\n" for line in STAGE.splitlines() if line.startswith("#include")), "", None, None),
    "one stage, all verbs": (STAGE, "", "0.8x", None),
    "examples/static_training.cpp, syntax": (ROOT / "examples/static_training.cpp", "", "4x", None),
    "examples/two_layers.cpp, -O2 (README)": (ROOT / "examples/two_layers.cpp", "-O2", "3.3x", None),
    "examples/perceptron.cpp, -O2": (ROOT / "examples/perceptron.cpp", "-O2", "16x", "5x"),
    "examples/perceptron.cpp, -O1": (ROOT / "examples/perceptron.cpp", "-O1", None, "5x"),
    "examples/gpt2_train.cpp in float, -O1": (ROOT / "examples/gpt2_train.cpp", "-O1 -DHEDDLE_EXAMPLE_F32_ONLY", None, "20x"),
}


def standard_headers(command, source):
    """A unit of the standard's and the system's headers that heddle's include when `source` is compiled."""
    tree = subprocess.run([*command, "-H", str(source)], capture_output=True, text=True, check=True).stderr
    parents, found = [], []
    for line in tree.splitlines():
        if match := re.match(r"(\.+) (.*)$", line):
            parents = parents[:len(match[1]) - 1] + [match[2]]
            if "/heddle/" not in match[2] and len(parents) > 1 and "/heddle/" in parents[-2]:
                name = re.sub(r".*/(c\+\+/\d+|include|x86_64-linux-gnu)/", "", match[2])
                if name not in found:
                    found.append(name)
    return "".join(f"#include <{name}>\n" for name in found)


QUIET = 1.06  # seconds that range/v3/all.hpp took where the targets in seconds were set


def print_targets(options):
    portable = ["-DHEDDLE_GEMM=heddle::compute::portable", "-DHEDDLE_GEMM_HEADER=<heddle/compute/host/portable.hpp>",
                f'-DHEDDLE_SOURCE_DIR="{ROOT}"']
    modes = [("header-only", [])] * (not options.separate) + [("separate", ["-DHEDDLE_SEPARATE_COMPILATION"])] * (not options.header_only)
    print(f"| translation unit | bodies | seconds | of range-v3 | seconds if that takes {QUIET} | target | holds | peak MiB |\n"
          "|---|---|--:|--:|--:|--:|---|--:|")
    reference = None
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, made, *targets) in TARGETS.items():
            if reference is not None and options.only not in name:
                continue
            if isinstance(source, str):
                Path(f"{folder}/unit.cpp").write_text(source)
                source = f"{folder}/unit.cpp"
            for mode, flags in modes if reference is not None else [("-", [])]:
                command = [options.gcc, "-std=c++20", f"-I{options.include}", *portable, *flags,
                           *([*made.split(), "-c", "-o", f"{folder}/unit.o"] if made else ["-fsyntax-only"])]
                if name.startswith("standard headers"):
                    of = name.removeprefix("standard headers of ")
                    Path(f"{folder}/all.cpp").write_text(STAGE if of == "one stage" else f"#include <{of}>\n")
                    Path(source).write_text(standard_headers(command, f"{folder}/all.cpp"))
                runs = [compile_once([*command, str(source)]) for _ in range(1 if made else options.repeat)]
                seconds, memory = min(r[0] for r in runs), max(r[1] for r in runs)
                reference = reference or seconds
                target = targets[mode == "separate"]
                relative = isinstance(target, str)
                holds = "" if target is None else "yes" if seconds / reference <= (float(target[:-1]) if relative else target / QUIET) else "no"
                print(f"| {name} | {mode} | {seconds:.2f} | {seconds / reference:.2f}x | {seconds / reference * QUIET:.2f} "
                      f"| {'' if target is None else target if relative else f'{target} s'} "
                      f"| {holds} | {memory:.0f} |", flush=True)


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
    parser.add_argument("--include", default=str(ROOT / "include"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gcc", default="g++")
    parser.add_argument("--clang", default="clang++-19")
    parser.add_argument("--only", default="")
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--separate", action="store_true", help="of --targets: only with HEDDLE_SEPARATE_COMPILATION")
    parser.add_argument("--header-only", action="store_true", help="of --targets: only without")
    parser.add_argument("--write-plans")
    parser.add_argument("--limit-seconds", type=float, help="exit status 1 if the 200 plans take more")
    parser.add_argument("--limit-mib", type=float)
    options = parser.parse_args()
    if options.write_plans:
        Path(options.write_plans).write_text(plan_unit(200, False))
        return
    if options.targets:
        return print_targets(options)
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
