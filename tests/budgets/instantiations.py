#!/usr/bin/env python3
"""Counts the templates that clang instantiates for headers and programs, and compares with what instantiations.txt allows.

    instantiations.py <clang++>                       check; exit status 1 if a unit is more than 3 % over its budget
    instantiations.py <clang++> --write <reason>      write what changed by more than 1 %, with the reason, into the file
    instantiations.py <clang++> --self-test           the check must notice growth, and a budget without a reason

Time to compile follows the number of instantiations, which, other than time, is the same on every machine: as long as compiler and
standard library are. With others than the file names the check is skipped (exit status 77).
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUDGETS = HERE / "instantiations.txt"
GROWTH = 0.03
GEMM = ["-DHEDDLE_GEMM=heddle::compute::portable", "-DHEDDLE_GEMM_HEADER=<heddle/compute/host/portable.hpp>"]
UNITS = ["heddle/core.hpp", "heddle/mesh.hpp", "heddle/layout.hpp", "heddle/comm.hpp", "heddle/collective.hpp", "heddle/schedule.hpp",
         "heddle/heddle.hpp", "heddle/compute.hpp", "heddle/train.hpp",
         "examples/two_layers.cpp", "examples/perceptron.cpp", "examples/gpt2_train.cpp"]
LINE = re.compile(r"(\S+) +(\d+) +(\S.*)$")


def versions(compiler):
    """The compiler's and the standard library's major version, as the file's first line names them."""
    text = subprocess.run([compiler, "-std=c++20", "-x", "c++", "-dM", "-E", "-include", "version", "/dev/null"],
                          capture_output=True, text=True, check=True).stdout
    number = {name: value for name, value in re.findall(r"#define (__clang_major__|_GLIBCXX_RELEASE) (\d+)", text)}
    return f"clang {number.get('__clang_major__', '?')}, libstdc++ {number.get('_GLIBCXX_RELEASE', '?')}"


def instantiations(compiler, source):
    """Classes and functions that `source` makes clang instantiate, without generating code."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        run = subprocess.run([compiler, "-std=c++20", f"-I{ROOT / 'include'}", f'-DHEDDLE_SOURCE_DIR="{ROOT}"', *GEMM, "-fsyntax-only", "-w",
                              "-Xclang", f"-ftime-trace={trace}", "-Xclang", "-ftime-trace-granularity=0", str(source)],
                             capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{source}: does not compile\n{run.stderr}")
        events = trace.read_bytes()  # up to 100 MB, which json would read for longer than clang compiles
    return len(re.findall(rb'"name":"Instantiate(?:Class|Function)"', events))


def count_of(compiler, unit):
    if unit.endswith(".cpp"):
        return instantiations(compiler, ROOT / unit)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "unit.cpp"
        source.write_text(f"#include <{unit}>\n")
        return instantiations(compiler, source)


def read(text, file=BUDGETS.name, what="instantiations"):
    """The versions, and for each unit its budget and the reason for it."""
    lines = text.splitlines()
    budgets, wrong = {}, []
    for number, line in enumerate(lines[1:], 2):
        match = LINE.match(line)
        if match:
            budgets[match[1]] = (int(match[2]), match[3])
        elif line and not line.startswith("#"):
            wrong.append(f"{file}:{number}: expected '<unit> <{what}> <reason>', got '{line}'")
    return lines[0].lstrip("# ") if lines else "", budgets, wrong


def judge(budgets, counts, what="instantiations", script="instantiations.py <clang++>"):
    """A line for each unit that is over its budget, or that one of the two does not know."""
    for unit in sorted(set(budgets) | set(counts)):
        if unit not in budgets or unit not in counts:
            yield f"{unit}: {'no budget' if unit not in budgets else 'a budget, but not counted'}"
        elif counts[unit] > budgets[unit][0] * (1 + GROWTH):
            yield (f"{unit}: {counts[unit]} {what}, {counts[unit] / budgets[unit][0] - 1:+.1%} over its budget of {budgets[unit][0]}; "
                   f"if that is worth it: {script} --write '<reason>'")


def written(old, head, reason, counts):
    """The file's text with these numbers, where they changed by more than 1 %."""
    lines = list(head)
    for unit in counts:
        before, why = old.get(unit, (0, ""))
        changed = abs(counts[unit] - before) > 0.01 * before
        lines.append(f"{unit} {counts[unit] if changed else before} {reason if changed else why}")
    return "\n".join(lines) + "\n"


def self_test():
    known = {"a": (1000, "reason")}
    cases = [(judge(known, {"a": 1030}), 0), (judge(known, {"a": 1031}), 1), (judge(known, {"a": 10}), 0), (judge(known, {}), 1),
             (judge({}, {"a": 1}), 1), (read("# v\na 12\n")[2], 1), (read("# v\na 12 because\n# a remark\n")[2], 0)]
    failed = [number for number, (findings, wanted) in enumerate(cases) if len(list(findings)) != wanted]
    print(f"self-test: {len(cases) - len(failed)} of {len(cases)} cases judged rightly")
    return 1 if failed else 0


def main(arguments):
    if len(arguments) == 2 and arguments[1] == "--self-test":
        return self_test()
    if not arguments or len(arguments) not in (1, 3) or (len(arguments) == 3 and (arguments[1] != "--write" or not arguments[2].strip())):
        print(__doc__)
        return 2
    compiler = arguments[0]
    wanted, budgets, wrong = read(BUDGETS.read_text() if BUDGETS.exists() else "")
    if len(arguments) == 1 and wanted != versions(compiler):
        print(f"skipped: the budgets are those of {wanted}, this is {versions(compiler)}")
        return 77
    counts = {unit: count_of(compiler, unit) for unit in UNITS}
    if len(arguments) == 3:
        head = [f"# {versions(compiler)}",
                "# unit, instantiations of classes and functions, why it is so many: written by instantiations.py --write"]
        BUDGETS.write_text(written(budgets, head, arguments[2].strip(), counts))
        return 0
    findings = wrong + list(judge(budgets, counts))
    for unit in UNITS:
        print(f"{unit:28} {counts[unit]:8} of {budgets.get(unit, (0, ''))[0]:8}")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
