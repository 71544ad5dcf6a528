#!/usr/bin/env python3
"""The gallery of errors: docs/errors/, from the files of tests/refuse and the literals of the headers. Compiles nothing.

    errors.py <repository>            check; exit status 1 and one line per finding
    errors.py <repository> --write    write docs/errors
    errors.py <repository> --printed <folder> [--write]     compare what refusal tests kept there, <compiler>/<name>.txt, with tests/refuse/printed
    errors.py --self-test             made-up repositories with a mistake each: each must be found

Of each file: the program that is refused, the whole sentence (a promise is often its beginning), and the repair. A sentence says the
repair itself, after a semicolon or with a verb; NO_REPAIR counts those that do not, and may only fall. Of some there is what compilers
print: tests/refuse/printed/<name>.<compiler>.txt, for PRINTED. It is the whole output, but for what `trimmed` takes away.
"""
import contextlib
import io
import re
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

PAGES = "docs/errors"
STORED = "tests/refuse/printed"
NO_REPAIR = 80  # sentences without a repair
NO_SENTENCE = 7  # promises that are words of the compiler, or names of types
PRINTED = {"g++": ("g++ 12", "12"), "clang++": ("clang 19", "19")}  # a compiler's name: what pages call it, and the version of what is stored
LITERALS = re.compile(r'(?:"(?:\\.|[^"\\\n])*"\s*)+')
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
VERB = re.compile(r"\b(use|give|link|write|include|#include|name|call|make|compile|declare|pass|add|take|choose|redistribute|set|keep|leave"
                  r"|define|send|put|return|start|move|drop|remove|cast|train|needs?|takes?|must|settle|reduce|wait|list|split|repeat"
                  r"|bring|say|change|lay it|sum the|combine|convert|join|gather|compare)\b")


def sentences(include):
    """Every literal of the headers, adjacent ones joined, and every #error, with the header that has it."""
    found = defaultdict(set)
    for path in sorted(include.rglob("*.hpp")):
        text = re.sub(r"(?m)^\s*//.*$", "", path.read_text(encoding="utf-8"))
        name = path.relative_to(include).as_posix()
        for run in LITERALS.finditer(text):
            whole = "".join(LITERAL.findall(run[0])).replace('\\"', '"').replace("\\\\", "\\")
            if len(whole) > 8:
                found[whole].add(name)
        for error in re.finditer(r"#\s*error\s+(.*)", text):
            found[error[1].strip().strip('"')].add(name)
    return found


def whole_sentence(promise, found):
    """(sentence, header), (None, None) where no literal has the promise; the literals where several do."""
    if promise in found:
        return promise, min(found[promise]), []
    hits = sorted((s for s in found if promise in s), key=len)
    if not hits:
        return None, None, []
    return hits[0], min(found[hits[0]]), hits


def repair_of(sentence):
    """The part of a sentence that says what to do; empty if there is none."""
    for mark in (";", ": "):
        at = sentence.rfind(mark)
        while at > 0:
            tail = sentence[at + len(mark):].strip()
            if VERB.search(tail) and not tail.startswith(("rl::", "heddle")):
                return tail
            at = sentence.rfind(mark, 0, at)
    said = re.search(r"\b(needs?|takes?|must)\b.*", sentence)
    return said[0] if said else ""


def rows_of(repository):
    """The rows, and what is wrong with the files: name, room, promise, sentence, header, details, notes, program."""
    found = sentences(repository / "include")
    rows, wrong = [], []
    for path in sorted((repository / "tests/refuse").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(repository).as_posix()
        promise = re.match(r"// refuse: (.+)\n", text)
        if promise is None:
            wrong.append(f"{where}: no promise: the first line should be \"// refuse: <sentence>\"")
            continue
        head = re.match(r"(?://.*\n)+", text)[0].splitlines()
        details = [line[8:] for line in head if line.startswith("// and: ")]
        notes = [re.sub(r"^why: ", "", line[3:]) for line in head if not re.match(r"// (refuse|and|needs|compiler|flags)\b", line)]
        program = re.sub(r"\n*int main\(\) \{\}\s*$", "", text[sum(len(line) + 1 for line in head):].strip())
        sentence, header, several = whole_sentence(promise[1], found)
        if len(several) > 1:
            wrong.append(f"{where}: the promise \"{promise[1]}\" is the beginning of {len(several)} sentences; lengthen it: \"{several[0]}\" ("
                         f"{min(found[several[0]])}), \"{several[1]}\" ({min(found[several[1]])})")
        headers = sorted(found[sentence]) if sentence else []
        if len(headers) > 1 and "[[nodiscard(" + '"' + sentence not in (repository / "include" / headers[0]).read_text(encoding="utf-8"):
            wrong.append(f"{where}: {len(headers)} headers have its sentence, {', '.join(headers)}: say it in one place, or in other words")
        rooms = re.findall(r"#include <heddle/([a-z0-9]+)", program)
        rows.append((path.stem, rooms[0] if rooms else "core", promise[1], sentence, header, details, notes, program))
    return rows, wrong


def trimmed(output):
    """What a compiler printed, without what differs between machines, or changes with each line of a header: lists of what included what,
    paths before include/heddle and tests/refuse, line numbers of headers, v0::, numbers of types without a name, and what is behind 160
    columns of a line that is not the error."""
    lines, in_header = [], False
    for line in output.splitlines():
        if re.match(r"(In file included from |\s+from )[^ ]*[:,]\S*$", line):
            continue
        line = re.sub(r"[^\s'\"`]*/((?:include/heddle|tests/refuse)/)", r"\1", line).replace("v0::", "")
        line = re.sub(r"\b_anon_\d+", "_anon", line)
        place = re.match(r"((?:include/heddle|/usr)/[^:]*)(?::\d+)+|tests/refuse/[^:]*:", line)
        if place:
            in_header = place[1] is not None
        line = re.sub(r"((?:include/heddle|/usr)/[^:\s]*\.\w+|/usr/include/c[^:\s]*)(:\d+)+", r"\1", line)
        if in_header:
            line = re.sub(r"^ *\d+ \|", "      |", line)
        lines.append(line if len(line) <= 160 or "error:" in line else line[:157] + "...")
    return "\n".join(lines).strip("\n") + "\n"


def printed_by(repository, name):
    """(what the page calls the compiler, its output) of each compiler of which there is one."""
    for compiler, (title, _) in PRINTED.items():
        path = repository / STORED / f"{name}.{compiler}.txt"
        if path.is_file():
            yield title, path.read_text(encoding="utf-8").rstrip("\n")


def compare_printed(repository, kept, store):
    """What refusal tests kept, against what is stored; compilers of other versions word it otherwise. The status of the program."""
    compared, wrong = 0, []
    for compiler, (title, version) in PRINTED.items():
        folder = kept / compiler
        found = (folder / "version").read_text(encoding="utf-8").strip().split(".")[0] if (folder / "version").is_file() else "none"
        if found != version:
            print(f"not compared: {title}'s, for the tests were run by version {found}")
            continue
        names = {path.name.removesuffix(f".{compiler}.txt") for path in (repository / STORED).glob(f"*.{compiler}.txt")}
        if store:
            names = {path.stem for path in folder.glob("*.txt")}
        for name in sorted(names):
            path, output = repository / STORED / f"{name}.{compiler}.txt", folder / f"{name}.txt"
            now = trimmed(output.read_text(encoding="utf-8")) if output.is_file() else ""
            compared += 1
            if store:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(now, encoding="utf-8")
            elif not now:
                wrong.append(f"{output} is not there: the refusal test of {name} keeps it")
            elif now != path.read_text(encoding="utf-8"):
                old = path.read_text(encoding="utf-8").splitlines()
                at = next((i for i, pair in enumerate(zip(old, now.splitlines())) if pair[0] != pair[1]), min(len(old), len(now.splitlines())))
                wrong.append(f"{path.relative_to(repository)}:{at + 1}: {title} prints something else now: {now.splitlines()[at:at + 1]}; "
                             f"run errors.py . --printed {kept} --write, then errors.py . --write")
    for line in wrong:
        print(line)
    print(f"{compared} outputs {'stored' if store else 'compared'}, {len(wrong)} findings")
    return 1 if wrong else 0 if compared else 77


def cell(text):
    return "`` " + text.replace("|", "\\|") + " ``" if "`" in text else "`" + text.replace("|", "\\|") + "`"


def pages_of(rows, printed=lambda name: ()):
    """docs/errors: one page a room, and the table of all sentences."""
    pages = {}
    rooms = defaultdict(list)
    for row in rows:
        rooms[row[1]].append(row)
    table = []
    for room, mine in sorted(rooms.items()):
        quoted = " Headers between quotes are in `tests/refuse`." if any('#include "' in row[-1] for row in mine) else ""
        text = [f"# Errors of `{room}`", "", f"What the compiler refuses in programs that include headers of `{room}`: the mistake, "
                "the whole sentence, the repair. [All sentences](index.md)." + quoted, "", "| the compiler says | mistake |", "|---|---|"]
        text += [f"| {cell(sentence or promise)} | [{name.replace('_', ' ')}](#{name.replace('_', '-')}) |"
                 for name, _, promise, sentence, *_ in mine]
        for name, _, promise, sentence, header, details, notes, program in mine:
            text += ["", f"## {name.replace('_', ' ')}", "", *(notes + [""] if notes else []), "```cpp", program, "```", "", "```text",
                     sentence or promise, *("  with " + d for d in details), "```", ""]
            repair = repair_of(sentence or promise)
            text += [f"Repair: {cell(repair)}." if repair else "Repair: the sentence names what does not fit; change one of the two.",
                     f"Said by `{header}`, tested by `tests/refuse/{name}.cpp`." if header else
                     f"The compiler's own words, tested by `tests/refuse/{name}.cpp`."]
            for title, output in printed(name):
                text += ["", f"What {title} prints:", "", "```text", output, "```"]
            table.append((sentence or promise, len(program), room, name))
        pages[f"{room}.md"] = "\n".join(text) + "\n"
    text = ["# Errors: every sentence of the compiler, with its repair", "", "Search this page for a few words of the message: the link leads to a "
            "program with the mistake, the whole sentence and the repair.", "", "| the compiler says | mistake |", "|---|---|"]
    text += [f"| {cell(s)} | [{n.replace('_', ' ')}]({r}.md#{n.replace('_', '-')}) |" for s, _, r, n in sorted(table)]  # of one sentence the shortest program first
    pages["index.md"] = "\n".join(text) + "\n"
    return pages


def findings(repository, limits=None):
    no_repair, no_sentence = limits or (NO_REPAIR, NO_SENTENCE)
    rows, wrong = rows_of(repository)
    yield from wrong
    silent = [row[0] for row in rows if not repair_of(row[3] or row[2])]
    foreign = [row[0] for row in rows if row[3] is None]
    for what, names, limit in (("whose sentence says no repair", silent, no_repair),
                               ("whose promise is in no literal of a header", foreign, no_sentence)):
        if len(names) > limit:
            yield f"tests/refuse: {len(names)} files {what}, not {limit}: {', '.join(names)}"
        elif len(names) < limit:
            yield f"tests/docs/errors.py: {len(names)} files {what}, fewer than {limit}: lower the number there"
    folder = repository / PAGES
    pages = pages_of(rows, lambda name: printed_by(repository, name))
    strangers = {path.name.split(".")[0] for path in (repository / STORED).glob("*.txt")} - {row[0] for row in rows}
    yield from (f"{STORED}: there is no tests/refuse/{name}.cpp" for name in sorted(strangers))
    for name, text in pages.items():
        path = folder / name
        if not path.is_file():
            yield f"{PAGES}/{name} is missing: run errors.py . --write"
        elif path.read_text(encoding="utf-8") != text:
            yield f"{PAGES}/{name} is not what errors.py writes: run errors.py . --write"
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if path.name not in pages:
            yield f"{PAGES}/{path.name} is no page of the gallery"


def write(repository):
    folder = repository / PAGES
    folder.mkdir(parents=True, exist_ok=True)
    pages = pages_of(rows_of(repository)[0], lambda name: printed_by(repository, name))
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def self_test():
    header = '#pragma once\nstatic_assert(false, "heddle: a loom has "\n  "no warp; use two warps");\n'
    refused = "// refuse: heddle: a loom has\n#include <heddle/mesh/loom.hpp>\n\nint main() {}\n"

    def made(folder):
        for path, text in {"include/heddle/mesh/loom.hpp": header, "tests/refuse/loom_bare.cpp": refused}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        write(folder)

    second = header.replace("no warp; use two warps", "no weft; use one")
    for what, path, text, expected in (
            ("nothing", None, None, None),
            ("no promise", "tests/refuse/loom_bare.cpp", "#include <heddle/mesh/loom.hpp>\n", "no promise"),
            ("two sentences", "include/heddle/mesh/warp.hpp", second, "the beginning of 2 sentences"),
            ("a changed sentence", "include/heddle/mesh/loom.hpp", header.replace("two warps", "three"), "mesh.md is not what"),
            ("one sentence twice", "include/heddle/mesh/warp.hpp", header, "heddle/mesh/loom.hpp, heddle/mesh/warp.hpp"),
            ("no repair", "include/heddle/mesh/loom.hpp", header.replace("; use two warps", ""), "says no repair"),
            ("a promise of nobody", "tests/refuse/loom_bare.cpp", refused.replace("a loom", "no loom; use it"), "in no literal"),
            ("a new refusal", "tests/refuse/loom_torn.cpp", refused, "is not what"),
            ("an output of no refusal", f"{STORED}/loom_torn.g++.txt", "error\n", "there is no tests/refuse/loom_torn.cpp"),
            ("an output that no page shows", f"{STORED}/loom_bare.g++.txt", "error\n", "is not what"),
            ("a page too many", f"{PAGES}/loom.md", "# Loom\n", "is no page")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            made(folder)
            if path is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
            found = list(findings(folder, (0, 0)))
            if (expected is None and found) or (expected is not None and not any(expected in f for f in found)):
                print(f"errors.py: {what}: found {found}, expected {expected}")
                return 1
    page = pages_of([("loom_bare", "mesh", "p", "a | b; use `c`", "heddle/x.hpp", ["[T = int]"], [], "int x;")])["mesh.md"]
    if "a \\| b" not in page or "  with [T = int]" not in page or "Repair: `` use `c` ``." not in page:
        print("errors.py: a page is written otherwise:\n" + page)
        return 1
    output = ("In file included from /a/b/include/heddle/mesh.hpp:12,\n                 from /a/b/tests/refuse/loom.cpp:2:\n"
              "/a/b/include/heddle/mesh/loom.hpp: In instantiation of 'struct heddle::v0::loom<2>':\n/a/b/tests/refuse/loom.cpp:5:7:   required from here\n"
              "/a/b/include/heddle/mesh/loom.hpp:32:5: error: static assertion failed: a loom\n   32 |   static_assert(false)\n      |     ^\n"
              "/a/b/tests/refuse/loom.cpp:5:7: note: here\n    5 | " + "x" * 200 + "\n")
    wanted = ("include/heddle/mesh/loom.hpp: In instantiation of 'struct heddle::loom<2>':\ntests/refuse/loom.cpp:5:7:   required from here\n"
              "include/heddle/mesh/loom.hpp: error: static assertion failed: a loom\n      |   static_assert(false)\n      |     ^\n"
              "tests/refuse/loom.cpp:5:7: note: here\n    5 | " + "x" * 149 + "...\n")
    if trimmed(output) != wanted:
        print("errors.py: an output is trimmed otherwise:\n" + trimmed(output))
        return 1
    for version, text, stored, status in (("12.2", output, wanted, 0), ("12.2", output.replace("a loom", "an eel"), wanted, 1), ("13.1", output, wanted, 77)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path, what in {"kept/g++/version": version, "kept/g++/loom.txt": text, f"{STORED}/loom.g++.txt": stored}.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(what, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()):
                found = compare_printed(folder, folder / "kept", False)
        if found != status:
            print(f"errors.py: comparing an output of g++ {version} ended with {found}, expected {status}")
            return 1
    print("errors.py: finds each of 10 mistakes, and an output that changed")
    return 0


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    begun = time.process_time()
    repository = Path(sys.argv[1])
    if "--printed" in sys.argv:
        return compare_printed(repository, Path(sys.argv[sys.argv.index("--printed") + 1]), "--write" in sys.argv)
    if "--write" in sys.argv:
        write(repository)
    found = list(findings(repository))
    took = time.process_time() - begun
    for finding in found:
        print(finding)
    print(f"{len(found)} findings, {took:.2f} s of this process")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
