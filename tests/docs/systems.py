#!/usr/bin/env python3
"""Checks docs/systems.csv, cell by cell, and keeps docs/systems.md, the page made of it.

    systems.py <repository>            check; exit status 1 and one line per finding, with file and row
    systems.py <repository> --write    write docs/systems.md
    systems.py --self-test             tables with a mistake each: each must be found

Of every row that is there: the header defines the name, the example, the page and the test are there, the test has the case of the
title, the page names the system, the header, the example or the name, the page or the header names the paper. A row is only "published"
if its check is against what is not heddle's: AGAINST says which. A row that is not there has no cells but its note.
"""
import contextlib
import csv
import io
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import names  # noqa: E402

TABLE, PAGE = "docs/systems.csv", "docs/systems.md"
COLUMNS = ["system", "paper", "name", "header", "example", "page", "test", "title", "against", "state", "note"]
AGAINST = {"figures of the paper": True, "code of the authors": True, "PyTorch": False, "independent program": False, "brute force": False,
           "own serial program": False}  # whether that is the authors' own
STATES = {
    "published": "it agrees with figures of its paper or with its authors' code; the note says in what",
    "ours": "its mechanism runs here, and is checked against a serial program, PyTorch or brute force, not against the authors' results",
    "reconstruction": "the paper leaves open how; what is here is our reading, checked as such",
    "only simulated": "planned or simulated; nothing runs it",
    "not there": "heddle does not have it",
}
SYSTEMS = 39


def public_names(repository):
    """header -> names, qualified, of each."""
    found = {}
    for header, name in names_listed(repository):
        found.setdefault(header, set()).add(name)
    return found


def findings(table, page, repository, known):
    reader = csv.DictReader(io.StringIO(table))
    if reader.fieldnames != COLUMNS:
        yield f"{TABLE}:1: the columns should be {', '.join(COLUMNS)}, they are {', '.join(reader.fieldnames or [])}"
        return
    rows, seen = list(reader), set()
    for line, row in enumerate(rows, 2):
        at = f"{TABLE}:{line}: {row['system']}: "
        if None in row or None in row.values():
            yield f"{at}the row has not {len(COLUMNS)} cells"
            continue
        if row["system"] in seen:
            yield f"{at}is there twice"
        seen.add(row["system"])
        if not re.fullmatch(r"\d{4}\.\d{5}", row["paper"]):
            yield f"{at}the paper should be an id of arXiv, it is \"{row['paper']}\""
        if not row["note"]:
            yield f"{at}there is no note"
        state = row["state"]
        if state not in STATES:
            yield f"{at}the state is \"{state}\"; known: {', '.join(STATES)}"
            continue
        if state == "not there":
            filled = [c for c in COLUMNS[2:9] if row[c]]
            if filled:
                yield f"{at}is not there, and has a cell {filled[0]}"
            continue
        for column in ("page", "test"):
            if not row[column]:
                yield f"{at}names no {column}"
        texts = {}
        for column, path in (("header", f"include/heddle/{row['header']}"), ("page", row["page"]), ("test", f"tests/{row['test']}")):
            if not row[column]:
                continue
            if (repository / path).is_file():
                texts[column] = (repository / path).read_text(encoding="utf-8")
            else:
                yield f"{at}there is no {path}"
        if row["name"] and row["name"] not in known.get(f"heddle/{row['header']}", ()):
            yield f"{at}heddle/{row['header']} has no {row['name']}"
        if bool(row["name"]) != bool(row["header"]):
            yield f"{at}a name and its header come together"
        if row["example"] and not any((repository / f"examples/{row['example']}{end}").is_file() for end in (".cpp", ".cu")):
            yield f"{at}there is no examples/{row['example']}.cpp"
        if "test" in texts and row["test"].endswith(".cpp") and f'TEST_CASE("{row["title"]}"' not in texts["test"]:
            yield f"{at}tests/{row['test']} has no test case \"{row['title']}\""
        if "page" in texts:
            words = [row["system"].split(" (")[0].split(",")[0], row["name"], row["name"].split("::")[-1], row["header"], row["example"]]
            if not any(w and w.lower() in texts["page"].lower() for w in words):
                yield f"{at}{row['page']} names neither the system nor what it is here"
            if not any(row["paper"] in texts.get(where, "") for where in ("page", "header")):
                yield f"{at}neither {row['page']} nor heddle/{row['header']} names arXiv:{row['paper']}"
        if row["name"] and row["against"] not in AGAINST:
            yield f"{at}is checked against \"{row['against']}\"; known: {', '.join(AGAINST)}"
        elif state == "published" and not AGAINST.get(row["against"]):
            yield f"{at}is published, but checked against {row['against'] or 'nothing'}, which is not the authors'"
    if len(rows) != SYSTEMS:
        yield f"{TABLE}: {len(rows)} systems, not {SYSTEMS}"
    if page is not None and page != page_of(rows):
        yield f"{PAGE} is not what systems.py writes: run systems.py . --write"


def page_of(rows):
    counts = {s: sum(r["state"] == s for r in rows) for s in STATES}
    text = ["# Published systems, and what heddle has of them", "",
            "The state of each system, and the test that shows it. Of "
            f"{len(rows)} systems " + ", ".join(f"{n} are {s}" for s, n in counts.items()) + ".", "", "| state | means |", "|---|---|"]
    text += [f"| {s} | {means} |" for s, means in STATES.items()]
    text += ["", "More about planners is on [a page of theirs](tutorial/plan_systems.md), more about pipelines of reinforcement learning on "
             "[another](tutorial/rl_systems.md).", "",
             "| system | state | what it is here | page, example | checked against | note |", "|---|---|---|---|---|---|"]
    for r in rows:
        where = [f"[{Path(r['page']).stem.replace('_', ' ')}]({r['page'].removeprefix('docs/')})"] if r["page"] else []
        if r["example"]:
            where.append(f"`{r['example']}`")
        what = f"`{r['name']}`, `heddle/{r['header']}`" if r["name"] else ""
        by = f"{r['against']}: `{r['test']}`".removeprefix(": ") if r["test"] else ""
        text.append(f"| {r['system']}, arXiv:{r['paper']} | {r['state']} | {what} | {', '.join(where)} | {by} | {r['note']} |")
    text += ["", "The table is `docs/systems.csv`; `tests/docs/systems.py` checks every cell."]
    return "\n".join(text) + "\n"


def names_listed(repository):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        names.main([str(repository), "--list"])
    for line in out.getvalue().splitlines():
        cells = line.split("\t")
        if len(cells) > 2:
            yield cells[0], cells[2]


def self_test(table, repository, known):
    def with_cell(system, column, value):
        rows = list(csv.reader(io.StringIO(table)))
        for row in rows:
            if row[0] == system:
                row[COLUMNS.index(column)] = value
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue()

    page = page_of(list(csv.DictReader(io.StringIO(table))))
    line = next(i for i, t in enumerate(table.split("\n"), 1) if t.startswith("Redco,"))
    mistakes = {
        "a renamed header": (with_cell("Redco", "header", "layout/names_rules.hpp"), "there is no include/heddle/layout/names_rules.hpp"),
        "a wrong name": (with_cell("Redco", "name", "rules_of_names"), "has no rules_of_names"),
        "a missing test": (with_cell("Redco", "test", "layout/redco_test.cpp"), "there is no tests/layout/redco_test.cpp"),
        "a missing case": (with_cell("Redco", "title", "known models are cut"), "has no test case"),
        "a dead page": (with_cell("Redco", "page", "docs/tutorial/reddo.md"), "there is no docs/tutorial/reddo.md"),
        "a page of another": (with_cell("Redco", "page", "docs/tutorial/photonic.md"), "names neither"),
        "a missing example": (with_cell("Redco", "example", "four_functions"), "there is no examples/four_functions.cpp"),
        "another paper": (with_cell("Redco", "paper", "2310.16356"), "names arXiv:2310.16356"),
        "no paper": (with_cell("Redco", "paper", "2310"), "should be an id"),
        "an unknown state": (with_cell("Redco", "state", "almost"), "the state is"),
        "an own oracle": (with_cell("Redco", "against", "own serial program"), "is published, but checked against own"),
        "no note": (with_cell("Redco", "note", ""), "there is no note"),
        "absent, with a page": (with_cell("Redco", "state", "not there"), "is not there, and has a cell"),
    }
    for what, (bad, expected) in mistakes.items():
        found = list(findings(bad, None, repository, known))
        if not any(f.startswith(f"{TABLE}:{line}: ") and expected in f for f in found):
            print(f"systems.py: {what} was not found: {found}")
            return 1
    fewer = "\n".join(t for t in table.split("\n") if not t.startswith("Redco,"))
    if not any("38 systems" in f for f in findings(fewer, page, repository, known)) or \
            not any(PAGE in f for f in findings(fewer, page, repository, known)):
        print("systems.py: a row that is gone was not found")
        return 1
    print(f"systems.py: finds each of {len(mistakes) + 1} mistakes")
    return 0


def main():
    own = sys.argv[1] == "--self-test"
    repository = Path(__file__).resolve().parent.parent.parent if own else Path(sys.argv[1])
    table = (repository / TABLE).read_text(encoding="utf-8")
    if "--write" in sys.argv:
        (repository / PAGE).write_text(page_of(list(csv.DictReader(io.StringIO(table)))), encoding="utf-8")
    known = public_names(repository)
    if own:
        return self_test(table, repository, known)
    path = repository / PAGE
    found = list(findings(table, path.read_text(encoding="utf-8") if path.is_file() else "", repository, known))
    for finding in found:
        print(finding)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
