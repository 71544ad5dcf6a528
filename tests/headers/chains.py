#!/usr/bin/env python3
"""As few compilations as show that every header compiles alone.

    chains.py INCLUDE HEADER...     prints chains of these headers, one in a line, from the innermost to the outermost
    chains.py --self-test

Each header of a chain is among those that the next one includes, directly or not. So in a file that includes a chain in
this order each header sees nothing before it that it does not include itself, and compiles there if, and only if, it
does alone. (Of the headers between two of a chain each is in a chain as well.) The sum of what the outermost headers
include is the least: the headers that are another's predecessor are matched in the order of their size, which is best
for a matroid of transversals.
"""
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path


def included_at_the_top(text):
    """Without bodies, which come at the end, and what is included under a condition."""
    depth = 0
    for line in text.splitlines():
        if directive := re.match(r"\s*#\s*(if|endif|include <(heddle/[^>]+)>)", line):
            depth += {"if": 1, "endif": -1}.get(directive[1], 0)
            if directive[2] and depth == 0 and "/impl/" not in directive[2]:
                yield directive[2]


def closures(include):
    """What each header includes, directly or not."""
    direct = {p.relative_to(include).as_posix(): list(included_at_the_top(p.read_text())) for p in include.glob("heddle/**/*.hpp")}
    all_of = {}

    def closure(header):
        if header not in all_of:
            all_of[header] = set()
            for inner in direct.get(header, []):
                all_of[header] |= {inner} | closure(inner)
        return all_of[header]

    for header in direct:
        closure(header)
    return all_of


def chains(headers, closure):
    outer = {a: [b for b in headers if a in closure[b]] for a in headers}
    inner_of = {}

    def match(a, seen):
        for b in outer[a]:
            if b in seen:
                continue
            seen.add(b)
            if b not in inner_of or match(inner_of[b], seen):
                inner_of[b] = a
                return True
        return False

    inner = {a for a in sorted(headers, key=lambda h: (-len(closure[h]), h)) if match(a, set())}
    for last in headers:
        if last in inner:
            continue
        chain = [last]
        while chain[0] in inner_of:
            chain.insert(0, inner_of[chain[0]])
        yield chain


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        def found(**headers):
            shutil.rmtree(f"{folder}/heddle", ignore_errors=True)
            os.makedirs(f"{folder}/heddle")
            for name, text in headers.items():
                Path(f"{folder}/heddle/{name}.hpp").write_text(text)
            closure = closures(Path(folder))
            return [" ".join(h[7] for h in chain) for chain in chains(sorted(closure), closure)]

        a, b, c = (f"#include <heddle/{x}.hpp>\n" for x in "abc")
        assert found(a="", b=a, c=b) == ["a b c"]
        assert found(a="", b=a, c=a) in (["a b", "c"], ["b", "a c"])  # not a b c: c does not include b
        assert found(a="", b=a, c=a, d=b + c) in (["c", "a b d"], ["b", "a c d"])
        assert found(a="", b=f"#if defined(X)\n{a}#endif\n") == ["a", "b"]  # not always before what b says
        assert found(a="", b="#include <heddle/impl/a.hpp>\n" + a) == ["a b"]
        os.makedirs(f"{folder}/heddle/impl")
        Path(f"{folder}/heddle/impl/d.hpp").write_text(a)
        Path(f"{folder}/heddle/b.hpp").write_text("#include <heddle/impl/d.hpp>\n")  # at the end, behind what b says
        assert closures(Path(folder))["heddle/b.hpp"] == set()


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    closure = closures(Path(sys.argv[1]))
    headers = sys.argv[2:]
    if unknown := [h for h in headers if h not in closure]:
        sys.exit(f"chains.py: no such header: {unknown[0]}")
    found = list(chains(headers, closure))
    assert sorted(h for chain in found for h in chain) == sorted(headers)
    assert all(a in closure[b] for chain in found for a, b in zip(chain, chain[1:]))
    for chain in found:
        print(" ".join(chain))


if __name__ == "__main__":
    main()
