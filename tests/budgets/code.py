#!/usr/bin/env python3
"""Counts the bytes of machine code in the objects of example programs, and compares with what code.txt allows.

    code.py <g++>                       check; exit status 1 if a program is more than 3 % over its budget
    code.py <g++> --write <reason>      write what changed by more than 1 %, with the reason, into the file

Programs are compiled as those are that link heddle::compiled, at -O1: three quarters of the time of -O2 without the library go into
code that the library has. With other compilers than the file names the check is skipped (exit status 77).
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from instantiations import GEMM, ROOT, judge, read, written

BUDGETS = Path(__file__).resolve().parent / "code.txt"
UNITS = ["examples/perceptron.cpp", "examples/static_training.cpp"]
FLAGS = ["-std=c++20", "-O1", "-DHEDDLE_SEPARATE_COMPILATION", f"-I{ROOT / 'include'}", f'-DHEDDLE_SOURCE_DIR="{ROOT}"', *GEMM]


def version(compiler):
    text = subprocess.run([compiler, "-x", "c++", "-dM", "-E", "/dev/null"], capture_output=True, text=True, check=True).stdout
    names = dict(re.findall(r"#define (__clang__|__GNUC__|__x86_64__) (\d+)", text))
    return f"g++ {names.get('__GNUC__', '?')}, {'x86-64' if '__x86_64__' in names else 'another processor'}" + (", clang" if "__clang__" in names else "")


def bytes_of(compiler, unit):
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "unit.o"
        run = subprocess.run([compiler, *FLAGS, "-w", "-c", str(ROOT / unit), "-o", str(made)], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{unit}: does not compile\n{run.stderr}")
        sections = subprocess.run(["size", "-A", str(made)], capture_output=True, text=True, check=True).stdout
    return sum(int(n) for n in re.findall(r"^\.text\S* +(\d+)", sections, re.M))


def main(arguments):
    if not arguments or len(arguments) not in (1, 3) or (len(arguments) == 3 and (arguments[1] != "--write" or not arguments[2].strip())):
        print(__doc__)
        return 2
    compiler = arguments[0]
    wanted, budgets, wrong = read(BUDGETS.read_text() if BUDGETS.exists() else "", BUDGETS.name, "bytes")
    if len(arguments) == 1 and wanted != version(compiler):
        print(f"skipped: the budgets are those of {wanted}, this is {version(compiler)}")
        return 77
    counts = {unit: bytes_of(compiler, unit) for unit in UNITS}
    if len(arguments) == 3:
        head = [f"# {version(compiler)}", "# program, bytes of code at -O1 without the bodies of heddle::compiled, why it is so many: written by code.py --write"]
        BUDGETS.write_text(written(budgets, head, arguments[2].strip(), counts))
        return 0
    findings = wrong + list(judge(budgets, counts, "bytes of code", "code.py <g++>"))
    for unit in UNITS:
        print(f"{unit:32} {counts[unit]:8} of {budgets.get(unit, (0, ''))[0]:8}")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
