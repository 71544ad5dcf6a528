#!/usr/bin/env python3
"""Counts long sentences of the pages that people read, and lets their number only fall.

    sentences.py <repository>      exit status 1 if there are more than LONG above 30 words, or more than VERY_LONG above 40
    sentences.py --self-test

Code, tables, headings and links' targets are left out. A sentence ends at a full stop, question or exclamation mark, or with its paragraph
or list entry.
"""
import re
import sys
from pathlib import Path

LONG, VERY_LONG = 1, 0  # above 30 words, above 40: they may only fall


def sentences(text):
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = "\n".join(line for line in text.split("\n") if not line.startswith(("#", "<", "![")) and not line.lstrip().startswith("|"))
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for part in re.split(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )", text):
        part = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", part)
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[(\"']|code)", " ".join(part.split())):
            if sentence:
                yield sentence


def pages(root):
    return sorted([*root.glob("docs/tutorial/*.md"), *root.glob("docs/from/*.md")]) + [root / f"docs/{name}.md" for name in ("start", "ideas", "cookbook", "launch")] + [root / "README.md", root / "CONTRIBUTING.md", root / "docs/schedules.md"]


def main(arguments):
    if arguments == ["--self-test"]:
        words = " ".join(["word"] * 31)
        assert [len(s.split()) for s in sentences(f"One. Two three.\n\n- {words}\n- x `a b` y\n\n| {words} |\n\n  | {words} |\n\n```\n{words}\n```\n")] == [1, 2, 31, 3]
        print("sentences.py: counts what it should")
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    root = Path(arguments[0])
    all_of_them = [(len(s.split()), page.relative_to(root), s) for page in pages(root) for s in sentences(page.read_text(encoding="utf-8"))]
    long, very_long = (sum(n > limit for n, _, _ in all_of_them) for limit in (30, 40))
    median = sorted(n for n, _, _ in all_of_them)[len(all_of_them) // 2]
    print(f"{len(all_of_them)} sentences, median {median} words; {long} above 30 words, {very_long} above 40")
    if long <= LONG and very_long <= VERY_LONG:
        return 0
    for n, page, s in sorted(all_of_them, key=lambda x: -x[0])[:10]:
        print(f"{page}: {n} words: {s[:160]}")
    print(f"sentences.py: {LONG} above 30 words and {VERY_LONG} above 40 are allowed; cut sentences")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
