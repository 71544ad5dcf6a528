#!/usr/bin/env python3
"""Lists the headers of heddle that the trainer, the engine and the header of each room reach, and compares with headers.txt.

    headers.py <c++>                      check; exit status 1 if a unit reaches a header that headers.txt does not name for it
    headers.py <c++> --write <reason>     write the headers that are new, with the reason, and drop those that are not reached any more
    headers.py <c++> --self-test          the check must notice a new header, a unit without a list and a list without a reason

Whoever includes a unit compiles all that it reaches, whether he names it or not. Left out: files in impl/, which come with the header
of their name, and, of a room's header, the room's own headers.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"
LISTS = HERE / "headers.txt"
HEADS = ["heddle/train/trainer.hpp", "heddle/infer/engine.hpp"]
UNIT, ROW = re.compile(r"(heddle/\S+): +(\S.*)$"), re.compile(r"  (\w+): (.+)$")


def units():
    return HEADS + sorted(f"heddle/{p.name}" for p in (INCLUDE / "heddle").glob("*.hpp") if p.stem not in ("impl", "version"))


def reached(compiler, unit):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "unit.cpp"
        source.write_text(f"#include <{unit}>\n")
        text = subprocess.run([compiler, "-std=c++20", f"-I{INCLUDE}", "-M", str(source)], capture_output=True, text=True, check=True).stdout
    own = Path(unit).stem + "/"
    return {name for name in re.findall(r"include/heddle/(\S+)\.hpp", text)
            if "/" in name and "impl/" not in name and not (unit.count("/") == 1 and name.startswith(own)) and f"heddle/{name}.hpp" != unit}


def read(text):
    """For each unit its lists, (reason, names), and what is no line of such a file."""
    lists, wrong, names = {}, [], None
    for number, line in enumerate(text.splitlines(), 1):
        unit, row = UNIT.match(line), ROW.match(line)
        if unit:
            names = set()
            lists.setdefault(unit[1], []).append((unit[2], names))
        elif row and names is not None:
            names.update(f"{row[1]}/{name}" for name in row[2].split())
        elif line and not line.startswith("#"):
            wrong.append(f"{LISTS.name}:{number}: expected '<unit>: <reason>' or '  <room>: <headers>', got '{line}'")
    return lists, wrong


def judge(lists, now):
    for unit in sorted(set(lists) | set(now)):
        if unit not in lists or unit not in now:
            yield f"{unit}: {'no list' if unit not in lists else 'a list, but no such unit'}; headers.py <c++> --write '<reason>'"
            continue
        for name in sorted(now[unit] - set().union(*(names for _, names in lists[unit]))):
            yield (f"{unit}: reaches heddle/{name}.hpp, which costs all who include it; leave it out, or, if that is worth it: "
                   f"headers.py <c++> --write '<reason>'")


def written(lists, now, reason):
    lines = ["# what each unit reaches of heddle, and why: written by headers.py --write"]
    for unit in units():
        kept = [(why, names & now[unit]) for why, names in lists.get(unit, [])]
        new = now[unit] - set().union(*(names for _, names in kept))
        for why, names in kept + [(reason, new)]:
            if not names:
                continue
            lines.append(f"{unit}: {why}")
            for room in sorted({name.split("/")[0] for name in names}):
                lines.append(f"  {room}: " + " ".join(sorted(name.split("/", 1)[1] for name in names if name.startswith(room + "/"))))
        if not now[unit]:
            lines.append(f"{unit}: {lists[unit][0][0] if unit in lists else reason}")
    return "\n".join(lines) + "\n"


def self_test():
    known = {"heddle/a.hpp": [("as first listed", {"core/x", "mesh/y"}), ("faster", {"core/z"})]}
    one = {"heddle/a.hpp": {"core/x", "core/z"}}
    cases = [(judge(known, one), 0), (judge(known, {"heddle/a.hpp": {"core/x", "core/new"}}), 1), (judge(known, {}), 1), (judge({}, one), 1),
             (read("heddle/a.hpp: why\n  core: x z\n  mesh: y\n# a remark\n")[1], 0), (read("heddle/a.hpp:\n")[1], 1), (read("  core: x\n")[1], 1)]
    failed = [number for number, (findings, wanted) in enumerate(cases) if len(list(findings)) != wanted]
    print(f"self-test: {len(cases) - len(failed)} of {len(cases)} cases judged rightly")
    return 1 if failed else 0


def main(arguments):
    if len(arguments) == 2 and arguments[1] == "--self-test":
        return self_test()
    if not arguments or len(arguments) not in (1, 3) or (len(arguments) == 3 and (arguments[1] != "--write" or not arguments[2].strip())):
        print(__doc__)
        return 2
    now = {unit: reached(arguments[0], unit) for unit in units()}
    lists, wrong = read(LISTS.read_text() if LISTS.exists() else "")
    if len(arguments) == 3:
        LISTS.write_text(written(lists, now, arguments[2].strip()))
        return 0
    findings = wrong + list(judge(lists, now))
    for unit in units():
        print(f"{unit:28} {len(now[unit]):4} headers")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
