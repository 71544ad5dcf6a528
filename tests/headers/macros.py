#!/usr/bin/env python3
"""Checks that the umbrella survives other people's macros and defines none but its own.

    macros.py <include directory> <compiler> [flags...]

First everything outside heddle that its headers include; then, for the poison test, garbage under names that other
headers are known to define as macros; then the umbrella. For the leak test the macros before and after are compared.
"""
import re
import subprocess
import sys
from pathlib import Path

POISON = """min max I major minor makedev near far small interface ERROR OK IN OUT OPTIONAL DELETE CONST VOID
None Bool Status Success Always True False Complex Unsorted CurrentTime DomainMax""".split()


def compile_text(compiler, flags, text):
    return subprocess.run([compiler, *flags, "-x", "c++", "-"], input=text, capture_output=True, text=True)


def macros(compiler, flags, text):
    result = compile_text(compiler, [*flags, "-dM", "-E"], text)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return {line.split()[1].split("(")[0] for line in result.stdout.splitlines() if line.startswith("#define ")}


def main(arguments):
    root, compiler, flags = Path(arguments[0]), arguments[1], ["-std=c++20", f"-I{arguments[0]}", *arguments[2:]]
    umbrella = "#include <heddle/heddle.hpp>\n"
    ours = re.findall(r"^#include <(heddle/[^>]+)>", (root / "heddle/heddle.hpp").read_text(), flags=re.M)
    outside = set()
    for name in ours:
        outside |= set(re.findall(r"^\s*#\s*include\s*<((?!heddle/)[^>]+)>", (root / name).read_text(), flags=re.M))
    before = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in sorted(outside))

    poison = "".join(f"#undef {name}\n#define {name} ] a macro of somebody else [\n" for name in POISON)
    result = compile_text(compiler, [*flags, "-fsyntax-only"], before + poison + umbrella)
    if result.returncode != 0:
        print(f"the umbrella uses a name that other headers define as a macro ({' '.join(POISON)}):\n{result.stderr[:4000]}")
        return 1

    leaked = {name for name in macros(compiler, flags, before + umbrella) - macros(compiler, flags, before)
              if not name.startswith("HEDDLE_")}
    if leaked:
        print("the umbrella defines macros that are not called HEDDLE_...: " + " ".join(sorted(leaked)))
        return 1
    print(f"{len(ours)} headers, {len(outside)} headers of others, {len(POISON)} poisoned names")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
