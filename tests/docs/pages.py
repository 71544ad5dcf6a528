#!/usr/bin/env python3
"""Checks of the pages that need neither Sphinx nor a compiler.

    pages.py <repository>                   exit status 1 and a line for each finding, with page and line
    pages.py <repository> --theirs          runs the programs of others in docs/from/ where what they need is installed
    pages.py --self-test                    pages with a mistake each: each must be found

- Every page is in one section of docs/conf.py; a name there is a page.
- Every block of code is closed, and its language is one of LANGUAGES.
- Every block of Python parses.
- What docs/from/ and the first pages name as `hd::...` between backticks is a word of some header.
- docs/from/ has two blocks beside each other on every page: theirs, and ours with a main that is a program of examples/, word for word.
"""
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LANGUAGES = {"", "c", "c++", "cmake", "console", "cpp", "json", "python", "sh", "text", "yaml"}
OTHERS = ("python", "c", "c++")


def configuration(root):
    spec = importlib.util.spec_from_file_location("conf", root / "docs/conf.py")
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def blocks(text):
    """(line, language, code, whether it is closed, line behind it) of each block."""
    found, opened = [], None
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"^ *(`{3,})(.*)$", line)
        if opened is None:
            if mark:
                opened = (number, mark[1], mark[2].strip(), [])
        elif mark and mark[1] == opened[1] and not mark[2].strip():
            found.append((opened[0], opened[2], "\n".join(opened[3]) + "\n", True, number + 1))
            opened = None
        else:
            opened[3].append(line)
    if opened:
        found.append((opened[0], opened[2], "\n".join(opened[3]), False, 0))
    return found


def pairs(text):
    """(theirs, ours): blocks of another language and of C++ with nothing but empty lines between."""
    lines, found = text.split("\n"), blocks(text)
    for theirs, ours in zip(found, found[1:]):
        if theirs[1] in OTHERS and ours[1] == "cpp" and not "".join(lines[theirs[4] - 1:ours[0] - 1]).strip():
            yield theirs, ours


def of_text(page, text, programs=None):
    """Findings of one page; `programs`: the examples, for pages of docs/from."""
    for line, language, code, closed, _ in blocks(text):
        if not closed:
            yield f"{page}:{line}: the block is not closed"
        elif language not in LANGUAGES:
            yield f"{page}:{line}: unknown language '{language}'; known are {' '.join(sorted(LANGUAGES - {''}))}"
        elif language == "python":
            try:
                ast.parse(code)
            except SyntaxError as error:
                yield f"{page}:{line + (error.lineno or 0)}: Python does not parse: {error.msg}"
    if programs is not None:
        ours = [block[2] for _, block in pairs(text) if "int main(" in block[2]]
        if not ours:
            yield f"{page}: no program of theirs directly before one of ours"
        for program in ours:
            if program not in programs:
                yield f"{page}: its program is none of examples/, from the first #include on"


def unknown_names(page, text, words):
    """Names of heddle between backticks whose last word no header has."""
    for number, line in enumerate(re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S).split("\n"), 1):
        for span in re.findall(r"`([^`]+)`", line):
            for name in re.findall(r"\bhd::([\w:]*\w)", span):
                if name.split("::")[-1] not in words:
                    yield f"{page}:{number}: no header has hd::{name}"


def findings(root):
    conf = configuration(root)
    pages = conf.all_pages(root)
    yield from conf.contents(pages)[1]
    programs = [text[text.index("#include"):] for text in (path.read_text(encoding="utf-8") for path in sorted(root.glob("examples/*.cpp"))) if "#include" in text]
    words = {word for path in root.glob("include/heddle/**/*.hpp") for word in re.findall(r"[a-z_]\w*", path.read_text(encoding="utf-8"))}
    for page in ["README", *pages]:
        text = (root / (page + ".md")).read_text(encoding="utf-8")
        yield from of_text(page + ".md", text, programs if page.startswith("docs/from/") else None)
        if page.startswith("docs/from/") or page in ("docs/start", "docs/ideas", "docs/cookbook"):
            yield from unknown_names(page + ".md", text, words)


# ---- programs of others ---------------------------------------------------------------------------------------------
def kokkos_flags():
    for folder in ("/usr/include/trilinos", "/usr/include/kokkos", "/usr/include"):
        if (Path(folder) / "Kokkos_Core.hpp").exists():
            return ["-I" + folder, "-ltrilinos_kokkoscore" if "trilinos" in folder else "-lkokkoscore", "-ldl"]
    return None


def has_module(name):
    return importlib.util.find_spec(name) is not None


MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]


def commands(page):
    """(file name, commands) that build and run a program of others, or what is missing."""
    torchrun = Path(sys.executable).with_name("torchrun")
    if page == "dtensor":
        return ("program.py", [[str(torchrun), "--nproc-per-node", "4", "program.py"]]) if has_module("torch") and torchrun.exists() else "torch"
    if page == "jax":
        return ("program.py", [[sys.executable, "program.py"]]) if has_module("jax") else "jax"
    if page in ("mpi", "kokkos") and not (shutil.which("mpicxx") and shutil.which("mpirun")):
        return "MPI"
    if page == "mpi":
        return "program.c", [["mpicc", "-Wall", "-Werror", "program.c", "-o", "program"], [*MPIRUN, "4", "./program"]]
    if page == "kokkos":
        flags = kokkos_flags()
        return ("program.cpp", [["mpicxx", "-std=c++20", "program.cpp", *flags, "-o", "program"], [*MPIRUN, "2", "./program"]]) if flags else "Kokkos"
    return "nothing that runs it"


def numbers(text):
    return [float(n) for n in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def run_theirs(root):
    wrong = 0
    for path in sorted(root.glob("docs/from/*.md")):
        text = path.read_text(encoding="utf-8")
        theirs = next(pairs(text))[0]
        printed = next(block[2] for block in blocks(text) if block[1] == "text")
        with tempfile.TemporaryDirectory() as folder:
            how = commands(path.stem)
            if isinstance(how, str):
                print(f"docs/from/{path.name}: not run, needs {how}")
                continue
            (Path(folder) / how[0]).write_text(theirs[2], encoding="utf-8")
            environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=4", JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1")
            for command in how[1]:
                result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
                if result.returncode != 0:
                    break
            said, expected = numbers(result.stdout), numbers(printed)
            good = result.returncode == 0 and len(said) == len(expected) and all(abs(a - b) <= 1e-6 for a, b in zip(said, expected))
            print(f"docs/from/{path.name}: {'the numbers of the page' if good else 'WRONG'}: {result.stdout.strip()}")
            if not good:
                print(result.stderr[-2000:])
                wrong += 1
    return wrong


def self_test(root):
    conf = configuration(root)
    assert not list(of_text("p.md", "```python\nx = 1\n```\n\n```text\ny\n```\n"))
    for text, said in [("a\n```cpp\nint x;\n", "p.md:2: the block is not closed"), ("```klingon\n```\n", "p.md:1: unknown language 'klingon'"),
                       ("\n```python\nx = 1\nx = = 2\n```\n", "p.md:4: Python does not parse")]:
        assert any(f.startswith(said) for f in of_text("p.md", text)), text
    ours = "#include <x>\nint main() {}\n"
    pair = "```c\nint main(void) {}\n```\n\n```cpp\n" + ours + "```\n"
    assert not list(of_text("p.md", pair, [ours]))
    assert "none of examples/" in next(of_text("p.md", pair, ["other"]))
    assert "no program of theirs" in next(of_text("p.md", pair.replace("```\n\n", "```\n\nbetween\n\n"), [ours]))
    assert list(unknown_names("p.md", "`hd::mesh<>` `hd::mash<>`\n\n```cpp\nhd::mosh\n```\n\n`hd::a::b`", {"mesh"})) == [
        "p.md:1: no header has hd::mash", "p.md:7: no header has hd::a::b"]
    sections = {"A": ["a", "b/*"], "B": ["c"]}
    assert conf.contents(["a", "b/x", "c"], sections) == ({"A": ["a", "b/x"], "B": ["c"]}, [])
    for pages, said in [(["a", "b/x", "c", "d"], "d.md: no section"), (["a", "b/x"], 'section "B" names c.md, which is not there')]:
        assert any(said in m for m in conf.contents(pages, sections)[1])
    assert any('sections "A" and "B"' in m for m in conf.contents(["a", "b/x", "c"], {"A": ["a", "b/*"], "B": ["c", "a"]})[1])
    assert numbers("loss 0.25, dw -1e-3 of rank 3") == [0.25, -0.001, 3.0]
    print("pages.py: finds what it should")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test(Path(__file__).resolve().parents[2])
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--theirs"]):
        print(__doc__)
        return 2
    root = Path(arguments[0]).resolve()
    if arguments[1:]:
        return 1 if run_theirs(root) else 0
    found = list(findings(root))
    print("\n".join(found) if found else "pages.py: no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
