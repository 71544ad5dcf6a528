#!/usr/bin/env python3
"""Checks the machine code of the kernels that are bound by the bandwidth of memory (bandwidth_kernels.cu), and of those that multiply by the matrix
instructions of warps (matrix_kernels.cu).

sass_test.py NVCC HOST_COMPILER INCLUDE SOURCES FOLDER [NVDISASM]

SOURCES is the folder of both. Each kernel of the first has at least as many loads and stores of 128 bits as arrays that it goes through, and no register is spilled. ptxas assembles the
same PTX for sm_90 and sm_100 and counts spills. With nvdisasm (PyPI: nvidia-cuda-nvdisasm) the loads and stores are those of the
machine code, and no kernel uses local memory; without it they are those of the PTX. Kernels of the second have as many products, loads of matrices and asynchronous copies as their tiles
take, in the PTX and as HMMA, LDSM and LDGSTS in the machine code; of attention's, the shortest way through the loop over tiles has no more instructions than LOOPS
says: where no mask cuts through a tile, no sum is scaled again, and another tile is copied.
"""
import heapq
import os
import re
import subprocess
import sys

# Kernel: loads and stores of 128 bits at least. Arrays that a kernel goes through twice count twice. Of rows a thread has four loads under way where one array is
# read, and two of each of several; none of these kernels divides numbers of 64 bits.
EXPECTED = {
    "layer_norm_row": (18, 2),
    "layer_norm_backward_row": (18, 2),
    "rms_norm_row": (8, 2),
    "rms_norm_backward_row": (14, 2),
    "row_max_row": (4, 0),
    "row_sum_exp_row": (4, 0),
    "add_to_softmax_row": (4, 0),
    "cross_entropy_backward_row": (4, 2),
    "gated_backward_body": (3, 2),
    "adamw_at_body": (4, 3),  # before what it has inside
    "adamw_body": (4, 3),
    "master_adamw_body": (3, 3),
    "part_of_sum": (4, 0),
    "permute_row": (4, 4),
    "gathered_row": (4, 1),
    "of_one_body": (1, 1),
    "of_two_body": (2, 1),
}
# Kernel, of 128 elements: products, loads of matrices and copies at least. With 64 keys a tile of 2 x 16 queries takes 128 products of queries and keys and
# 128 of shares and values; gradients have three such products with 32 keys, and four of 16 keys and 64 queries. A part has 16 rows and 16 keys of each warp.
MATRIX_KERNELS = {
    "matrix_attention_tile": (256, 80, 32),
    "matrix_attention_query_gradients": (192, 80, 48),
    "matrix_attention_key_gradients": (256, 144, 48),
    "matrix_attention_part": (32, 24, 18),
}
# Of grouped products: 32 rows and 64 columns of a warp take 16 products for each 16 of 64 terms.
PRODUCT_KERNELS = {
    "warp_grouped_product": (64, 24, 24),
    "warp_grouped_weight": (64, 24, 24),
}
# (kernel, elements): in the loop, for a warp and a tile, exactly so many products, loads of matrices, copies of 16 bytes and powers of two, and on sm_90 at most so
# many instructions; docs/benchmarks/gpu.md says what follows.
LOOPS = {
    ("matrix_attention_tile", 64): (128, 40, 8, 64, 650),
    ("matrix_attention_tile", 128): (256, 80, 16, 64, 905),
    ("matrix_attention_query_gradients", 64): (192, 64, 8, 64, 725),
    ("matrix_attention_query_gradients", 128): (192, 80, 8, 32, 620),
    ("matrix_attention_key_gradients", 64): (128, 48, 4, 32, 495),
    ("matrix_attention_key_gradients", 128): (256, 144, 16, 32, 830),
}
MATRIX_INSTANCES = 4 * len(MATRIX_KERNELS) + 4 + 4  # wider heads, and these products
# Of float: all of them. Of double and bf16 these suffice: the packs are the same.
INSTANCES = len(EXPECTED) + 2 + 7


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def body_of(symbol, expected):
    """The body in a kernel's mangled name, where names stand behind their lengths."""
    for name in expected:
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
        if divisions := re.findall(r"\bCALL\b[^;]*_(?:div|rem)_[su]64[^;]*", code):
            sys.exit(f"{symbol} on {arch}: divides numbers of 64 bits: {divisions[0]}")
        counts[symbol] = (len(re.findall(r"\bLDG\.E(?:\.\w+)*\.128\b", code)),
                          len(re.findall(r"\bSTG\.E(?:\.\w+)*\.128\b", code)))
    return counts


def matrix_in_ptx(text):
    """{symbol: (products, loads of matrices, copies of 16 bytes)}."""
    parts = re.split(r"\.entry\s+(\w+)", text)
    return {
        symbol: (code.count("mma.sync.aligned.m16n8k16"), code.count("ldmatrix.sync.aligned.m8n8.x4"), code.count("cp.async.cg.shared.global"))
        for symbol, code in zip(parts[1::2], parts[2::2])
    }


def matrix_in_sass(text, arch):
    parts = re.split(r"^\.text\.(\w+):", text, flags=re.MULTILINE)
    counts = {}
    for symbol, code in zip(parts[1::2], parts[2::2]):
        if local := re.findall(r"\b(?:LDL|STL)\b[^;]*", code):
            sys.exit(f"{symbol} on {arch}: uses local memory: {local[0]}")
        counts[symbol] = tuple(len(re.findall(rf"\b{name}\b", code)) for name in (r"HMMA\.16816\.F32(?:\.BF16)?", "LDSM", r"LDGSTS\.E"))
    return counts


def blocks_of(code):
    """Basic blocks of a kernel, as lists of instructions, and {block: those that may follow it}."""
    blocks, labels = [[]], {}
    for line in code.splitlines():
        if label := re.match(r"(\.L\w+):", line):
            if blocks[-1]:
                blocks.append([])
            labels[label[1]] = len(blocks) - 1
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            blocks[-1].append(instruction[1])
            if re.search(r"\b(?:BRA|EXIT|RET)\b", instruction[1]):
                blocks.append([])
    follow = {}
    for i, block in enumerate(blocks):
        last = block[-1] if block else ""
        ends = re.match(r"(?:BRA|EXIT|RET)\b", last) and ".DIV" not in last  # without a predicate
        to = re.search(r"\bBRA\b.*`\((\.L\w+)\)", last)
        follow[i] = ([] if ends or i + 1 == len(blocks) else [i + 1]) + ([labels[to[1]]] if to and to[1] in labels else [])
    return blocks, follow


def shortest(blocks, follow, start, goal):
    """The blocks behind `start` up to `goal`, with the fewest instructions together; None if there is no way."""
    heap, done = [(0, start, ())], set()
    while heap:
        length, at, way = heapq.heappop(heap)
        if way and at == goal:
            return way
        if way and at in done:
            continue
        if way:
            done.add(at)
        for to in follow[at]:
            heapq.heappush(heap, (length + len(blocks[to]), to, way + (to,)))
    return None


def loop_over_tiles(code):
    """Instructions of the shortest way from the last block with products, by way of a block that copies, over all blocks with products."""
    blocks, follow = blocks_of(code)
    products = [i for i, block in enumerate(blocks) if any("HMMA" in x for x in block)]
    between = [shortest(blocks, follow, a, b) for a, b in zip(products, products[1:])]
    if None in between:
        return None
    least = None
    for copies in (i for i, block in enumerate(blocks) if sum("LDGSTS" in x for x in block) > 1):
        there, back = shortest(blocks, follow, products[-1], copies), shortest(blocks, follow, copies, products[0])
        if there is None or back is None or set(there + back[:-1]) & set(products):
            continue
        way = [x for i in sum(between, ()) + there + back for x in blocks[i]]
        least = way if least is None or len(way) < len(least) else least
    return least


def check_loops(text, arch):
    """The loops of LOOPS in the machine code of bf16."""
    parts = re.split(r"^\.text\.(\w+):", text, flags=re.MULTILINE)
    found = set()
    for symbol, code in zip(parts[1::2], parts[2::2]):
        kernel = re.search(r"\d(matrix_attention_[a-z_]+?)I\w*?Li(\d+)E", symbol.split("warp_kernel")[1])
        if "4bf16" not in symbol or not kernel or (kernel[1], int(kernel[2])) not in LOOPS:
            continue
        key = (kernel[1], int(kernel[2]))
        found.add(key)
        way = loop_over_tiles(code)
        if way is None:
            sys.exit(f"{key} on {arch}: no loop over tiles was found")
        counts = tuple(sum(name in x for x in way) for name in ("HMMA", "LDSM", "LDGSTS", "MUFU.EX2"))
        *expected, most = LOOPS[key]
        if counts != tuple(expected) or sum("BAR.SYNC" in x for x in way) != 1 or (arch == "sm_90" and len(way) > most):
            sys.exit(f"{key} on {arch}: the loop over tiles has {len(way)} instructions with {counts} HMMA, LDSM, LDGSTS and MUFU.EX2 and "
                     f"{sum('BAR.SYNC' in x for x in way)} barriers, expected {most} at most with {tuple(expected)} and 1")
        print(f"{kernel[1]} of {kernel[2]}, {arch}: {len(way)} instructions in the loop, {100 * counts[0] // len(way)} % of them products")
    if found != set(LOOPS):
        sys.exit(f"{arch}: loops of {sorted(set(LOOPS) - found)} were not found")


def check(counts, where, expected, instances, words):
    if len(counts) != instances:
        sys.exit(f"{where}: {len(counts)} kernels, expected {instances}: {sorted(counts)}")
    wrong = []
    for symbol, found in counts.items():
        least = expected[body_of(symbol, expected)]
        if words == MATRIX_WORDS and "Li128E" not in symbol and "warp_grouped" not in symbol:
            least = (1, 1, 1)
        wrong += [f"{symbol}: {n} {word}, expected {m} at least" for n, m, word in zip(found, least, words) if n < m]
    if wrong:
        sys.exit(f"{where}:\n" + "\n".join(wrong))
    sums = (f"{sum(found[i] for found in counts.values())} {word}" for i, word in enumerate(words))
    print(f"{where}: {len(counts)} kernels, {', '.join(sums)}")


WIDE_WORDS = ("loads of 128 bits", "stores of 128 bits")
MATRIX_WORDS = ("products", "loads of matrices", "asynchronous copies")


def check_file(nvcc, host, include, source, folder, nvdisasm, expected, instances, words, in_ptx, in_sass):
    name = os.path.splitext(os.path.basename(source))[0]
    ptx = os.path.join(folder, f"{name}.ptx")
    run(nvcc, "-std=c++20", "-arch=sm_90", f"-ccbin={host}", f"-I{include}", "-Werror=all-warnings", "--ptx", source, "-o", ptx)
    with open(ptx, encoding="utf-8") as file:
        check(in_ptx(file.read()), f"PTX of {name}", expected, instances, words)
    ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas")
    for arch in ("sm_90", "sm_100"):
        cubin = os.path.join(folder, f"{name}.{arch}.cubin")
        said = run(ptxas if os.path.exists(ptxas) else "ptxas", f"-arch={arch}", "-v", ptx, "-o", cubin)
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
        if len(spills) != instances:
            sys.exit(f"{arch}: ptxas reported {len(spills)} kernels, expected {instances}\n{said}")
        if any(number != "0" for numbers in spills for number in numbers):
            sys.exit(f"{arch}: a kernel has a stack frame or spills registers\n{said}")
        print(f"{name}, {arch}: {len(spills)} kernels without a stack frame or spills, "
              f"{max(map(int, re.findall(r'Used ([0-9]+) registers', said)))} registers at most")
        if nvdisasm:
            text = run(nvdisasm, "-c", cubin)
            check(in_sass(text, arch), f"machine code of {name}, {arch}", expected, instances, words)
            if words == MATRIX_WORDS:
                check_loops(text, arch)
    if not nvdisasm:
        print(f"nvdisasm was not found: instructions of {name} were looked for in the PTX alone")


def main():
    nvcc, host, include, sources, folder = sys.argv[1:6]
    nvdisasm = sys.argv[6] if len(sys.argv) > 6 and sys.argv[6] else None
    check_file(nvcc, host, include, os.path.join(sources, "bandwidth_kernels.cu"), folder, nvdisasm, EXPECTED, INSTANCES, WIDE_WORDS,
               wide_in_ptx, wide_in_sass)
    check_file(nvcc, host, include, os.path.join(sources, "matrix_kernels.cu"), folder, nvdisasm, MATRIX_KERNELS | PRODUCT_KERNELS, MATRIX_INSTANCES,
               MATRIX_WORDS, matrix_in_ptx, matrix_in_sass)


main()
