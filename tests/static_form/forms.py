#!/usr/bin/env python3
"""Checks that static layout arithmetic and static schedules leave nothing to compute.

    forms.py <source> <compiler> [flags...]

Compiles the source to assembly with -O2. A function `constant_x` whose line ends in a comment `// 4` must be one move of that
number into the result register and a return; `read_only_x` must be the address of an object in read-only data and a
return; `undivided_x` must not divide; all functions `same_x_*` of one x must be the same instructions.
"""
import re
import subprocess
import sys
from pathlib import Path


def functions(assembly):
    """The instructions of each function, without directives, labels and comments."""
    found, name = {}, None
    for line in assembly.splitlines():
        label = re.match(r"^(\w+):", line)
        if label:
            name = label.group(1)
            found[name] = []
        elif line.startswith("\t.section") or line.startswith("\t.size"):
            name = None
        elif name and re.match(r"^\t[a-z]", line):
            found[name].append(line.split("#")[0].strip())
    return found


def constant(instructions):
    """The number that these instructions return, or None if they do more than that."""
    rest = [i for i in instructions if i not in ("endbr64",)]
    if len(rest) != 2 or not re.match(r"^retq?$", rest[1]):
        return None
    if re.match(r"^xorl?\s+%eax,\s*%eax$", rest[0]):
        return 0
    move = re.match(r"^mov(?:l|q|b|absq)?\s+\$(-?\d+),\s*%(?:eax|rax|al)$", rest[0])
    return int(move.group(1)) if move else None


def sections(assembly):
    """The section in which each label lies."""
    found, section = {}, ".text"
    for line in assembly.splitlines():
        directive = re.match(r'^\t\.section\s+"?([^",\s]+)', line) or re.match(r"^\t(\.text|\.data|\.bss)\b", line)
        label = re.match(r"^([\w.$]+):", line)
        if directive:
            section = directive.group(1)
        elif label:
            found[label.group(1)] = section
    return found


def address(instructions):
    """The object whose address these instructions return, or None if they do more than that."""
    rest = [i for i in instructions if i not in ("endbr64",)]
    if len(rest) != 2 or not re.match(r"^retq?$", rest[1]):
        return None
    load = re.match(r"^(?:leaq|movl|movq)\s+\$?(?:-?\d+\+)?([A-Za-z_.][\w.$]*)(?:[+-]\d+)?(?:\(%rip\))?,\s*%[re]ax$", rest[0])
    return load.group(1) if load else None


def main(source, compiler, *flags):
    text = Path(source).read_text()
    result = subprocess.run([compiler, "-std=c++20", "-O2", *flags, "-S", "-o", "-", source], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    code = functions(result.stdout)
    expected = re.findall(r"(constant_\w+)\(\)[^/]*// (-?\d+)", text)
    undivided = re.findall(r"(undivided_\w+)\(", text)
    read_only = re.findall(r"(read_only_\w+)\(", text)
    places = sections(result.stdout)
    same = {}
    for name, group in re.findall(r"(same_([a-z]+)_\w+)\(", text):
        same.setdefault(group, []).append(name)
    if not expected and not read_only and not undivided and not same:
        sys.exit(f"{source} promises nothing")
    problems = []
    for name, value in expected:
        if constant(code[name]) != int(value):
            problems.append(f"{name} is not the constant {value}:\n  " + "\n  ".join(code[name]))
    for name in read_only:
        place = places.get(address(code[name]), "nowhere")
        if not place.startswith(".rodata"):
            problems.append(f"{name} is not read-only data, but in {place}:\n  " + "\n  ".join(code[name]))
    for name in undivided:
        if any(re.match(r"^i?div", i) for i in code[name]):
            problems.append(f"{name} divides:\n  " + "\n  ".join(code[name]))
    for names in same.values():
        if len(names) < 2:
            problems.append(f"{names[0]} has nothing to be the same as")
        for name in names[1:]:
            if code[name] != code[names[0]]:
                problems.append(f"{name} is not {names[0]}:\n  " + "\n  ".join(code[name]))
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(expected)} functions are constants, {len(read_only)} objects are read-only data, {len(undivided)} functions "
          f"do not divide, {len(same)} groups are the same code")


if __name__ == "__main__":
    main(*sys.argv[1:])
