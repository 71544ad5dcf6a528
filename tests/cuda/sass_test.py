#!/usr/bin/env python3
"""Checks the machine code of the kernels that are bound by the bandwidth of memory (bandwidth_kernels.cu).

sass_test.py NVCC HOST_COMPILER INCLUDE SOURCE FOLDER [NVDISASM]

Each kernel has at least as many loads and stores of 128 bits as arrays that it goes through, and no register is spilled. ptxas assembles the
same PTX for sm_90 and sm_100 and counts spills. With nvdisasm (PyPI: nvidia-cuda-nvdisasm) the loads and stores are those of the
machine code, and no kernel uses local memory; without it they are those of the PTX.
"""
import os
import re
import subprocess
import sys

# Kernel: loads and stores of 128 bits at least. Arrays that a kernel goes through twice count twice.
EXPECTED = {
    "layer_norm_row": (6, 1),
    "layer_norm_backward_row": (9, 1),
    "rms_norm_row": (3, 1),
    "rms_norm_backward_row": (7, 1),
    "row_max_row": (1, 0),
    "row_sum_exp_row": (1, 0),
    "add_to_softmax_row": (1, 0),
    "cross_entropy_backward_row": (1, 1),
    "gated_backward_body": (3, 2),
    "adamw_body": (4, 3),
    "master_adamw_body": (3, 3),
    "part_of_sum": (1, 0),
    "of_one_body": (1, 1),
    "of_two_body": (2, 1),
}
# Of float: all of them. Of double and bf16 these suffice: the packs are the same.
INSTANCES = len(EXPECTED) + 2 + 6


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def body_of(symbol):
    """The body in a kernel's mangled name, where names stand behind their lengths."""
    for name in EXPECTED:
        if f"{len(name)}{name}" in symbol:
            return name
    sys.exit(f"{symbol}: sass_test.py does not know how many loads and stores this kernel should have")


def wide_in_ptx(text):
    """{symbol: (loads, stores)} of 128 bits."""
    wide = r"\.global(?:\.[a-z]+)*\.(?:v4\.[a-z]32|v2\.[a-z]64)\b"
    parts = re.split(r"\.entry\s+(\w+)", text)
    return {
        symbol: (len(re.findall(r"\bld" + wide, code)), len(re.findall(r"\bst" + wide, code)))
        for symbol, code in zip(parts[1::2], parts[2::2])
    }


def wide_in_sass(text, arch):
    parts = re.split(r"^\.text\.(\w+):", text, flags=re.MULTILINE)
    counts = {}
    for symbol, code in zip(parts[1::2], parts[2::2]):
        if local := re.findall(r"\b(?:LDL|STL)\b[^;]*", code):
            sys.exit(f"{symbol} on {arch}: uses local memory: {local[0]}")
        counts[symbol] = (len(re.findall(r"\bLDG\.E(?:\.\w+)*\.128\b", code)),
                          len(re.findall(r"\bSTG\.E(?:\.\w+)*\.128\b", code)))
    return counts


def check(counts, where):
    if len(counts) != INSTANCES:
        sys.exit(f"{where}: {len(counts)} kernels, expected {INSTANCES}: {sorted(counts)}")
    wrong = []
    for symbol, (loads, stores) in counts.items():
        least = EXPECTED[body_of(symbol)]
        if loads < least[0] or stores < least[1]:
            wrong.append(f"{symbol}: {loads} loads and {stores} stores of 128 bits, expected {least[0]} and {least[1]} at least")
    if wrong:
        sys.exit(f"{where}:\n" + "\n".join(wrong))
    print(f"{where}: {len(counts)} kernels, {sum(l for l, _ in counts.values())} loads and "
          f"{sum(s for _, s in counts.values())} stores of 128 bits")


def main():
    nvcc, host, include, source, folder = sys.argv[1:6]
    nvdisasm = sys.argv[6] if len(sys.argv) > 6 and sys.argv[6] else None
    ptx = os.path.join(folder, "bandwidth_kernels.ptx")
    run(nvcc, "-std=c++20", "-arch=sm_90", f"-ccbin={host}", f"-I{include}", "-Werror=all-warnings", "--ptx", source, "-o", ptx)
    with open(ptx, encoding="utf-8") as file:
        check(wide_in_ptx(file.read()), "PTX")
    ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas")
    for arch in ("sm_90", "sm_100"):
        cubin = os.path.join(folder, f"bandwidth_kernels.{arch}.cubin")
        said = run(ptxas if os.path.exists(ptxas) else "ptxas", f"-arch={arch}", "-v", ptx, "-o", cubin)
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
        if len(spills) != INSTANCES:
            sys.exit(f"{arch}: ptxas reported {len(spills)} kernels, expected {INSTANCES}\n{said}")
        if any(number != "0" for numbers in spills for number in numbers):
            sys.exit(f"{arch}: a kernel has a stack frame or spills registers\n{said}")
        print(f"{arch}: {len(spills)} kernels without a stack frame or spills, "
              f"{max(map(int, re.findall(r'Used ([0-9]+) registers', said)))} registers at most")
        if nvdisasm:
            check(wide_in_sass(run(nvdisasm, "-c", cubin), arch), f"machine code of {arch}")
    if not nvdisasm:
        print("nvdisasm was not found: loads and stores were looked for in the PTX alone")


main()
