#!/usr/bin/env python3
"""Checks the table of bug classes against the tests that it names.

    bug_classes.py <source directory>     exit status 1 and one line per finding
    bug_classes.py --self-test            tables with a mistake each: each must be found

Of every row: a number in order, when it is caught, and evidence; each file below tests/ exists, and has the test case of the title behind it.
The counts below the table are those of its rows.
"""
import os
import re
import sys

WHEN = {"compile": "when compiled", "run": "at run time", "by design": "by design", "CI": "by continuous integration"}
CLASSES = 23
EVIDENCE = re.compile(r'`([\w/.]+)`(?: "([^"]+)")?')


def titles(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r'TEST_CASE\("((?:[^"\\]|\\.)*)"', file.read())


def findings(page, tests):
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in page.split("\n") if re.match(r"\| *\d+ *\|", line)]
    counts = dict.fromkeys(WHEN, 0)
    for i, row in enumerate(rows, 1):
        if len(row) != 5:
            yield f"row {i}: has {len(row)} cells, not 5"
            continue
        number, _, _, when, evidence = row
        if number != str(i):
            yield f"row {i}: has the number {number}"
        if when not in WHEN:
            yield f"row {i}: is caught '{when}'; known: {', '.join(WHEN)}"
        else:
            counts[when] += 1
        named = EVIDENCE.findall(evidence)
        if not named:
            yield f"row {i}: names no test"
        for path, title in named:
            full = os.path.join(tests, path)
            if not os.path.isfile(full):
                yield f"row {i}: there is no tests/{path}"
            elif title and title not in titles(full):
                yield f'row {i}: tests/{path} has no test case "{title}"'
        if when == "compile" and not any(path.startswith("refuse/") for path, _ in named):
            yield f"row {i}: is caught when compiled, and names no file of tests/refuse"
    if len(rows) != CLASSES:
        yield f"the table has {len(rows)} classes, not {CLASSES}"
    for when, words in WHEN.items():
        said = re.search(words + r"[^:.]*: (\d+)", page, re.IGNORECASE)
        if said is None or int(said.group(1)) != counts[when]:
            yield f"'{words}' should be said to be {counts[when]}"


def self_test(page, tests):
    good = "| 7 | a wrong process group"
    for what, bad in {
        "a file that is not there": page.replace("refuse/comm_axis_unknown.cpp", "refuse/comm_axis_known.cpp"),
        "a test case that is not there": page.replace("ragged trees fold", "ragged trees unfold"),
        "a row that is gone": "\n".join(line for line in page.split("\n") if not line.startswith(good)),
        "a wrong count": re.sub(r"compiled: (\d+)", lambda m: f"compiled: {int(m.group(1)) + 1}", page),
        "an unknown time": page.replace("| by design |", "| by luck |", 1),
        "no evidence": re.sub(r"(\| 20 \|.*\| CI \|).*", r"\1 none |", page),
    }.items():
        if not list(findings(bad, tests)):
            print(f"bug_classes.py: {what} was not found")
            return 1
    print("bug_classes.py: finds each of 6 mistakes")
    return 0


def main():
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..") if sys.argv[1] == "--self-test" else sys.argv[1]
    with open(os.path.join(source, "docs", "bug_classes.md"), encoding="utf-8") as file:
        page = file.read()
    tests = os.path.join(source, "tests")
    if sys.argv[1] == "--self-test":
        return self_test(page, tests)
    found = list(findings(page, tests))
    for finding in found:
        print("docs/bug_classes.md: " + finding)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
