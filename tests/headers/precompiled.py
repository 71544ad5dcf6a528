#!/usr/bin/env python3
"""Which headers to precompile for many small files, so that each file still sees no header that it does not include itself.

    precompiled.py INCLUDE GROUPS FILE...     prints "<file> <number>" for each file that has a precompiled header, behind
                                              lines "<number>: <header>..." that say what each of at most GROUPS contains
    precompiled.py --self-test

A header may be precompiled for a file if it is among those that the file includes, directly or not, and under no condition.
So whatever the file needs and does not name is missing as ever. Sets of headers are chosen one after another, each the
one that saves most beyond those before it, until none is worth its own compilation, and without those that are not in the
end. What headers cost is estimated by their size and by the headers of the standard library that they add; those are saved
without a set, too.
"""
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from chains import closures, included_at_the_top  # noqa: E402

STANDARD = 12000  # bytes of a header of heddle that cost as much as one of the standard library
SAVED, COST = 0.75, 2.2  # of the time that headers take: what a file saves, and what precompiling them takes


def local_includes(path):
    """Files beside this one that it includes, under no condition."""
    depth = 0
    for line in path.read_text().splitlines():
        if directive := re.match(r'\s*#\s*(if|endif|include "([^"]+)")', line):
            depth += {"if": 1, "endif": -1}.get(directive[1], 0)
            if directive[2] and depth == 0 and (path.parent / directive[2]).exists():
                yield path.parent / directive[2]


class Headers:
    def __init__(self, include):
        self.include = include
        self.closure = closures(include)
        self.weights = {}

    def direct(self, path):
        found = {h for h in included_at_the_top(path.read_text()) if h in self.closure}
        for local in local_includes(path):
            found |= {str(local)} | self.direct(local)
        return found

    def all_of(self, headers):
        return frozenset(headers).union(*(self.closure.get(h, ()) for h in headers))

    def weights_of(self, closure):
        """Of headers with all that they include, and of what is the standard library's among it."""
        size, standard = 0, set()
        for header in closure:
            if header not in self.weights:
                path = self.include / header  # an absolute path stays what it is
                text = path.read_text() if path.exists() else ""
                self.weights[header] = len(text), set(re.findall(r"^#include <([a-z_0-9]+)>", text, re.M))
            size += self.weights[header][0]
            standard |= self.weights[header][1]
        return size + STANDARD * len(standard), STANDARD * len(standard)


def chosen(headers, files, groups):
    """Up to so many sets of headers, and for each file the number of its own, or None."""
    includes = {f: headers.direct(Path(f)) for f in files}
    seen = {f: headers.all_of(of) for f, of in includes.items()}
    different = {frozenset(of) for of in includes.values()}
    candidates = {frozenset(a & b) for a in different for b in different} | {frozenset([h]) for of in seen.values() for h in of}
    candidates.discard(frozenset())
    options = []  # a set, what it costs, and what each file that may have it saves by it
    for candidate in sorted(candidates, key=sorted):
        closure = headers.all_of(candidate)
        weight = headers.weights_of(closure)[0]
        options.append((candidate, COST * weight, {f: SAVED * weight for f in files if closure <= seen[f]}))
    none = (frozenset(), 0.0, {f: SAVED * headers.weights_of(seen[f])[1] for f in files})

    def savings(sets):
        return {f: max(saved.get(f, 0.0) for _, _, saved in sets) for f in files}

    def gain(option, others):
        return sum(max(0.0, saved - others[f]) for f, saved in option[2].items()) - option[1]

    sets = [none]
    while len(sets) <= groups:
        others = savings(sets)
        best = max(options, key=lambda option: gain(option, others), default=none)
        if gain(best, others) <= 0:
            break
        sets.append(best)
    for option in sets[1:]:
        others = [other for other in sets if other is not option]
        if gain(option, savings(others)) <= 0:
            sets = others
    used = {f: max(range(len(sets)), key=lambda i: sets[i][2].get(f, 0.0)) for f in files}
    return [sorted(candidate) for candidate, _, _ in sets[1:]], {f: number - 1 if number else None for f, number in used.items()}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "heddle").mkdir()
        (root / "heddle/a.hpp").write_text("/" * 100000)
        (root / "heddle/b.hpp").write_text("#include <heddle/a.hpp>\n" + "/" * 100000)
        (root / "heddle/c.hpp").write_text("/" * 100000)
        texts = {"b1": "#include <heddle/b.hpp>\n", "b2": "#include <heddle/b.hpp>\n#include <heddle/c.hpp>\n", "p": '#include "parts.hpp"\n',
                 "unless": "#if X\n#include <heddle/b.hpp>\n#endif\n"}
        (root / "parts.hpp").write_text("#include <heddle/b.hpp>\n")
        files = []
        for name in ("b1", "b2", "p", "unless"):
            files += [str(root / f"{name}{i}.cpp") for i in range(12)]
            for file in files[-12:]:
                Path(file).write_text(texts[name])
        headers = Headers(root)
        sets, group = chosen(headers, files, 9)
        assert ["heddle/b.hpp"] in sets and ["heddle/b.hpp", "heddle/c.hpp"] in sets, sets
        for file in files:  # no header but what the file includes
            if group[file] is not None:
                assert headers.all_of(sets[group[file]]) <= headers.all_of(headers.direct(Path(file))), file
        assert all(group[f] is None for f in files if "unless" in f)
        assert [sets[group[f]] for f in files if "/b2" in f] == [["heddle/b.hpp", "heddle/c.hpp"]] * 12
        assert all(group[f] is not None for f in files if "unless" not in f)
        assert len(chosen(headers, files, 1)[0]) == 1
        assert chosen(headers, files[:1], 9)[0] == []  # one file alone is not worth it


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    sets, group = chosen(Headers(Path(sys.argv[1])), sys.argv[3:], int(sys.argv[2]))
    for number, headers in enumerate(sets):
        print(f"{number}: {' '.join(headers)}")
    for file, number in group.items():
        if number is not None:
            print(file, number)


if __name__ == "__main__":
    main()
