#!/usr/bin/env python3
"""Checks that all rooms together survive other people's macros and define none but their own.

    macros.py <include directory> <compiler> [flags...]
    macros.py --self-test <compiler>         check made-up headers: those with a mistake must be found

First everything outside heddle that its headers include; then, for the poison test, garbage under names that other
headers are known to define as macros; then the rooms' headers. For the leak test the macros before and after are compared.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FUNCTIONS = "min max major minor makedev".split()  # macros with arguments, which (std::min)(a, b) escapes
OBJECTS = """I near far small interface ERROR OK IN OUT OPTIONAL DELETE CONST VOID
None Bool Status Success Always True False Complex Unsorted CurrentTime DomainMax""".split()
POISON = FUNCTIONS + OBJECTS


def compile_text(compiler, flags, text):
    return subprocess.run([compiler, *flags, "-x", "c++", "-"], input=text, capture_output=True, text=True)


def macros(compiler, flags, text):
    result = compile_text(compiler, [*flags, "-dM", "-E"], text)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return {line.split()[1].split("(")[0] for line in result.stdout.splitlines() if line.startswith("#define ")}


def check(root, compiler, extra=()):
    """The first finding, or None; and how much was looked at."""
    flags = ["-std=c++20", f"-I{root}", *extra]
    rooms = sorted(path.relative_to(root).as_posix() for path in root.glob("heddle/*.hpp") if path.name != "impl.hpp")
    everything = "".join(f"#include <{name}>\n" for name in rooms)
    ours = set()  # all that the rooms include, bodies in impl/ too
    next_ones = set(rooms)
    while next_ones:
        ours |= next_ones
        next_ones = {name for header in next_ones
                     for name in re.findall(r"^#include <(heddle/[^>]+)>", (root / header).read_text(), flags=re.M)} - ours
    outside = set()
    for name in sorted(ours):
        outside |= set(re.findall(r"^\s*#\s*include\s*<((?!heddle/)[^>]+)>", (root / name).read_text(), flags=re.M))
    before = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in sorted(outside))
    looked_at = f"{len(ours)} headers, {len(outside)} headers of others, {len(POISON)} poisoned names"

    poison = "".join(f"#undef {name}\n#define {name}{'(...)' if name in FUNCTIONS else ''} ] a macro of somebody else [\n"
                     for name in POISON)
    result = compile_text(compiler, [*flags, "-fsyntax-only"], before + poison + everything)
    if result.returncode != 0:
        return f"a header uses a name that others define as a macro ({' '.join(POISON)}):\n{result.stderr[:4000]}", looked_at

    leaked = {name for name in macros(compiler, flags, before + everything) - macros(compiler, flags, before)
              if not name.startswith("HEDDLE_")}
    if leaked:
        return "the headers define macros that are not called HEDDLE_...: " + " ".join(sorted(leaked)), looked_at
    return None, looked_at


def self_test(compiler):
    cases = [
        ("#include <algorithm>\ninline int f(int a, int b) { return (std::min)(a, b); }\n#define HEDDLE_A 1\n", None),
        ("#include <algorithm>\ninline int f(int a, int b) { return std::min(a, b); }\n", "others define as a macro"),
        ("template <int I> struct s {};\n", "others define as a macro"),
        ("#define NOT_OURS 1\n", "NOT_OURS"),
    ]
    failed = 0
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "heddle/core").mkdir(parents=True)
            (root / "heddle/core.hpp").write_text("#include <heddle/core/a.hpp>\n")
            (root / "heddle/core/a.hpp").write_text(text)
            finding, _ = check(root, compiler)
        if finding is not None if expected is None else expected not in (finding or ""):
            failed += 1
            print(f"self-test: expected {expected!r}, found {finding!r} for:\n{text}")
    print(f"self-test: {len(cases) - failed} of {len(cases)} headers judged rightly")
    return 1 if failed else 0


def main(arguments):
    if arguments[:1] == ["--self-test"]:
        return self_test(arguments[1])
    finding, looked_at = check(Path(arguments[0]), arguments[1], arguments[2:])
    print(finding or looked_at)
    return 1 if finding else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
