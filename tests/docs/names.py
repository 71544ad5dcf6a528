#!/usr/bin/env python3
"""Lists every public name of the headers, and keeps docs/reference: the index of them, and of each its declaration and docstring.

    names.py <repository>            check; exit status 1 and one line per finding
    names.py <repository> --write    write docs/reference from the headers and the tutorials that are there
    names.py <repository> --list     print header, kind, name and first sentence of each name
    names.py --self-test             check made-up repositories: each mistake must be found

Public is what stands in a namespace of heddle that is not `detail`: classes, concepts, aliases, functions, objects, enumerations with
their enumerators; and macros that their header does not undefine. Not looked at: bodies (impl/), operators, members, specializations,
deduction guides, and declarations of what another header defines. Each name needs a `///` whose first sentence says what it is. The
headers are read as tokens, not compiled: all branches of an #if, and no macro but those that a header defines for itself.
"""
import re
import sys
import tempfile
import textwrap
from collections import defaultdict
from pathlib import Path

sys.dont_write_bytecode = True  # the next line must leave no trace beside floors.py
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "headers"))
from floors import ABOUT, STANDS_ON  # noqa: E402  (what is in each room, and the rooms, from the lowest up)

ROOMS = list(STANDS_ON)
PAGES = "docs/reference"
INDEX = f"{PAGES}/index.md"
FACTS = re.compile(r"(Shapes?|Units?|Errors?|Source|Bytes|Returns|Note)\b[^.]{0,20}:")  # what a docstring says after its first sentence
TOKEN = re.compile(r"""
    (?P<space>[ \t\r\f]+|\\\n)
  | (?P<line>\n)
  | (?P<after>///<[^\n]*)
  | (?P<doc>///(?!/)[^\n]*)
  | (?P<note>//[^\n]*|/\*.*?\*/)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)")
  | (?P<text>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'[\w]|[\w.])*)
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>::|->|<=>|<<|<=|>=|&&|\|\||==|!=|\+\+|--|\.\.\.|\[\[|.)
""", re.X | re.S)
CLOSE = {"(": ")", "{": "}", "[": "]", "[[": "]"}
SPECIFIERS = {"inline", "constexpr", "consteval", "constinit", "static", "extern", "thread_local", "HEDDLE_HD", "HEDDLE_INLINE", "explicit", "mutable"}
NO_NAME = {"decltype", "noexcept", "alignas", "requires", "sizeof", "explicit", "const", "volatile", "auto", "void", "operator", "return"}


class token:
    __slots__ = ("kind", "text", "line", "docs", "gap", "spaced")

    def __init__(self, kind, text, line, docs, gap, spaced=True):
        self.kind, self.text, self.line, self.docs, self.gap, self.spaced = kind, text, line, docs, gap, spaced


class declaration:
    """One name: path such as ("schedule", "named"), kind, docstring as lines, whether it is defined here, enumerators; its words as lines."""

    words = ()

    def __init__(self, path, kind, docs, line, defined=True, values=()):
        self.path, self.kind, self.docs, self.line, self.defined, self.values = path, kind, docs, line, defined, list(values)
        self.name = "::".join(path)


def tokens(text, line=1):
    """Tokens with the `///` lines before each, and with directives as tokens of their own."""
    result, docs, fresh, last_line, at, spaced = [], [], True, 0, 0, True
    while at < len(text):
        if fresh and (directive := re.compile(r"[ \t]*#((?:\\\n|[^\n])*)").match(text, at)):
            result.append(token("directive", re.sub(r"\s*\\\n\s*", " ", directive[1]).strip(), line, docs, False))
            if re.match(r"\s*define\b", directive[1]):
                docs = []
            line += directive.group().count("\n")
            at = directive.end()
            continue
        match = TOKEN.match(text, at)
        kind, piece = match.lastgroup if match.lastgroup != "mark" else "raw", match.group()
        at = match.end()
        if kind == "line":
            fresh = True
        elif kind == "doc":
            docs = docs + [(line, piece[3:].removeprefix(" "))]
        elif kind == "after":
            result.append(token("after", piece[4:].strip(), line, [], False))
        elif kind not in ("space", "note"):
            result.append(token(kind, piece, line, docs, line > last_line + 1, spaced))
            docs, fresh = [], False
        spaced = kind in ("space", "line", "note", "doc")
        if kind not in ("space", "line"):
            last_line = line + piece.count("\n")
            fresh = kind == "note" and "\n" in piece and fresh if kind == "note" else fresh
        line += piece.count("\n")
    return result


def branches(stream):
    """The stream without directives. All branches of an #if stay where each closes what it opens; else the first alone.

    Returns it and the macros: name, parameters or None, body, documentation, line.
    """
    macros, undefined = {}, set()
    open_ifs = []  # of each #if: where its branch begins in `out`, whether its branches are dropped, what the first left open
    out, dropped = [], 0

    def depth(part):
        return sum((t.text == "{") - (t.text == "}") for t in part if t.kind == "sign")

    for t in stream:
        if t.kind != "directive":
            out.append(t)
            continue
        match = re.match(r"(\w+)\s*(.*)", t.text, re.S)
        what, rest = (match[1], match[2]) if match else ("", "")
        if what in ("if", "ifdef", "ifndef"):
            open_ifs.append([len(out), []])
        elif what in ("else", "elif") and open_ifs:
            begin, parts = open_ifs[-1]
            parts.append(out[begin:])
            del out[begin:]
        elif what == "endif" and open_ifs:
            begin, parts = open_ifs.pop()
            parts.append(out[begin:])
            del out[begin:]
            out += [t for part in parts for t in part] if all(depth(part) == 0 for part in parts) else parts[0]
        elif what == "define" and (match := re.match(r"(\w+)(?:\(([^)]*)\))?\s*(.*)", rest, re.S)):
            parameters = [p.strip() for p in match[2].split(",")] if match[2] is not None else None
            if match[1] not in macros or t.docs:
                macros[match[1]] = (parameters, match[3], t.docs, t.line)
        elif what == "undef":
            undefined.add(rest.split()[0])
    return out, macros, undefined


def closing(ts, at):
    """The index of the token that closes the bracket at `at`."""
    opening, depth = CLOSE[ts[at].text], 0
    while at < len(ts):
        if ts[at].kind == "sign":
            if ts[at].text in CLOSE:
                depth += 2 if ts[at].text == "[[" else 1
            elif ts[at].text in CLOSE.values():
                depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ValueError(f"a bracket that {opening} should close is open at the end")


def after_angles(ts, at):
    """The index behind the angle brackets that open at `at`."""
    depth = 0
    while at < len(ts):
        if ts[at].kind == "sign":
            if ts[at].text in CLOSE:
                at = closing(ts, at)
            elif ts[at].text == "<":
                depth += 1
            elif ts[at].text == ">":
                depth -= 1
                if depth == 0:
                    return at + 1
        at += 1
    raise ValueError("an angle bracket is open at the end")


def is_(ts, at, *texts):
    return 0 <= at < len(ts) and ts[at].text in texts and ts[at].kind in ("sign", "word")


def after_constraint(ts, at):
    """The index behind the requires clause whose `requires` is before `at`."""
    while True:
        if is_(ts, at, "requires"):
            at += 1
            if is_(ts, at, "("):
                at = closing(ts, at) + 1
            at = closing(ts, at) + 1
        elif is_(ts, at, "("):
            at = closing(ts, at) + 1
        else:
            while at < len(ts) and (is_(ts, at, "::", "template") or ts[at].kind in ("word", "number")):
                name = ts[at].kind == "word" and ts[at].text != "template"
                at += 1
                if name and is_(ts, at, "<"):
                    at = after_angles(ts, at)
                if not is_(ts, at, "::") and not is_(ts, at - 1, "::", "template"):
                    break
        if not is_(ts, at, "&&", "||"):
            return at
        at += 1


def expanded(macro, arguments, line):
    parameters, body, _, _ = macro
    pieces, current, depth = [], [], 0
    for t in arguments:
        depth += (t.text in ("(", "{", "[", "<")) - (t.text in (")", "}", "]", ">"))
        if t.text == "," and depth == 0 and len(pieces) < len(parameters) - 1:
            pieces.append(current)
            current = []
        else:
            current.append(t)
    pieces.append(current)
    given = dict(zip([p if p != "..." else "__VA_ARGS__" for p in parameters], pieces))
    for t in tokens(body, line):
        yield from given.get(t.text, [t]) if t.kind == "word" else [t]


def read(text):
    """The public declarations of one header."""
    ts, macros, undefined = branches(tokens(text))
    found = []
    for name, (_, _, docs, line) in macros.items():
        if name not in undefined and name.startswith("HEDDLE_"):
            found.append(declaration((name,), "macro", docs, line))
            parameters, body = macros[name][:2]
            found[-1].words = [f"#define {name}" + (f"({', '.join(parameters)})" if parameters is not None else "") +
                               (" " + body if len(body) <= 60 else " ...")]
    walk(ts, (), macros, found)
    return found


def walk(ts, path, macros, found):
    at = 0
    while at < len(ts):
        t = ts[at]
        if t.kind == "after":
            # A remark behind a declaration says more of it than the lines above, which may be about its neighbours, too.
            if found and found[-1].last_line == t.line - found[-1].remarks:
                found[-1].docs = (found[-1].docs if found[-1].remarks else []) + [(t.line, t.text)]
                found[-1].remarks += 1
            at += 1
        elif is_(ts, at, ";", "}"):
            at += 1
        elif t.kind == "word" and t.text in macros and macros[t.text][0] is not None and is_(ts, at + 1, "("):
            end = closing(ts, at + 1)
            made = list(expanded(macros[t.text], ts[at + 2:end], t.line))
            before = len(found)
            walk(made + [token("sign", ";", ts[end].line, [], False)], path, {}, found)
            for d in found[before:]:
                d.docs, d.last_line = d.docs or t.docs, ts[end].line
            at = end + 1
        else:
            at = one(ts, at, path, macros, found)


def one(ts, begin, path, macros, found):
    """Reads the declaration at `begin`; the index behind it."""
    at = begin
    docs = ts[begin].docs
    if is_(ts, at, "inline") and is_(ts, at + 1, "namespace"):
        at += 1
    if is_(ts, at, "namespace"):
        names, at, inline = [], at + 1, is_(ts, begin, "inline")
        while not is_(ts, at, "{", "="):
            if is_(ts, at, "[["):
                at = closing(ts, at)
            elif is_(ts, at, "inline"):
                inline = True
            elif ts[at].kind == "word":
                names += [] if inline else [ts[at].text]
                inline = False
            at += 1
        if is_(ts, at, "="):
            return skip_to_end(ts, at)
        end = closing(ts, at)
        inside = path + tuple(names)
        if names or inside:  # an anonymous namespace has neither name nor `inline`
            anonymous = not names and not inline and begin + 1 == at
            if not anonymous and "detail" not in inside and inside[:1] == ("heddle",):
                walk(ts[at + 1:end], inside, macros, found)
        return end + 1
    if is_(ts, at, "extern") and ts[at + 1].kind == "text" and is_(ts, at + 2, "{"):
        end = closing(ts, at + 2)
        walk(ts[at + 3:end], path, macros, found)
        return end + 1

    # The end: a ; at depth 0, or the } of a body.
    initialized = False
    class_like = None
    while is_(ts, at, "[[", "template", "requires", "alignas", *SPECIFIERS):
        if is_(ts, at, "[["):
            at = closing(ts, at) + 1
        elif is_(ts, at, "alignas"):
            at = closing(ts, at + 1) + 1
        elif is_(ts, at, "template"):
            if not is_(ts, at + 1, "<"):
                return skip_to_end(ts, at)  # explicit instantiation
            at = after_angles(ts, at + 1)
        elif is_(ts, at, "requires"):
            at = after_constraint(ts, at + 1)
        else:
            at += 1
    head = at
    if is_(ts, at, "class", "struct", "union", "enum"):
        class_like = ts[at].text
    body, angles = None, 0
    while at < len(ts) and not is_(ts, at, ";"):
        if is_(ts, at, "requires"):
            clause = not is_(ts, at - 1, "=", "&&", "||", "(", "!", ",", "?", ":")
            at += 1
            if clause and not initialized:
                at = after_constraint(ts, at)
            else:
                if is_(ts, at, "("):
                    at = closing(ts, at) + 1
                at = closing(ts, at) + 1
            continue
        if is_(ts, at, "=") and not is_(ts, at - 1, "operator"):
            initialized = True
        if is_(ts, at, "{"):
            if body is None:
                body = at
            at = closing(ts, at)
            if not initialized and class_like is None and not is_(ts, at + 1, ";", ",", "=", "[") and is_function(ts[head:body]):
                at += 1
                break
        elif is_(ts, at, "(", "[", "[["):
            at = closing(ts, at)
        elif is_(ts, at, "<") and not initialized and not is_(ts, at - 1, "operator", "<"):
            at = after_angles(ts, at) - 1
        at += 1
    end = at
    last = ts[min(end, len(ts) - 1)].line if is_(ts, end, ";") else ts[end - 1].line
    made = named(ts[head:end], body - head if body is not None else None)
    remarks = [t for t in ts[begin:end] if t.kind == "after" and body is not None and t is ts[min(body + 1, end - 1)]]
    if made and path and path[0] == "heddle":
        name, kind, defined, values = made
        d = declaration(path[1:] + (name,), kind, [(t.line, t.text) for t in remarks] or docs, ts[begin].line, defined, values)
        d.last_line, d.remarks = last, 0
        d.words = declared(ts[begin:end], head - begin, body - begin if body is not None else None, kind)
        found.append(d)
    return end


WIDTH, LINES = 110, 4  # of a declaration on a page


def declared(ts, head, body, kind):
    """A declaration as lines: without its body, and without an initializer that is long; template head and the rest each begin a line."""
    end = len(ts)
    if kind in ("function", "class", "enumeration") and body is not None:
        end = body
    if kind == "object":
        stop = next((at for at in range(head, len(ts)) if is_(ts, at, "=") or at == body), len(ts))
        if sum(len(t.text) + 1 for t in ts[stop:]) > 60:
            end = stop
    if kind == "function":  # the initializers of a constructor are none of a function; `= default` is said
        end = min(end, len(ts))

    def text(part):
        return " ".join("".join((" " if t.spaced and n else "") + t.text for n, t in enumerate(part) if t.kind != "after").split())

    templates, at = [], 0
    while at < head:  # what stands before: template heads and constraints
        if is_(ts, at, "template"):
            stop = after_angles(ts, at + 1)
            while is_(ts, stop, "requires"):
                stop = after_constraint(ts, stop + 1)
            templates.append(text(ts[at:stop]))
            at = stop
        else:
            break
    lines = []
    for piece in [*templates, text(ts[at:end]) + ("" if kind == "macro" else ";")]:
        lines += textwrap.wrap(re.sub(r"\bHEDDLE_(?:HD|INLINE) ", "", piece), WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return lines if len(lines) <= LINES else [*lines[:LINES - 1], "    ..."]


def skip_to_end(ts, at):
    while at < len(ts) and not is_(ts, at, ";"):
        at = closing(ts, at) if is_(ts, at, *CLOSE) else at
        at += 1
    return at


def parts(ts):
    """The tokens outside brackets and template arguments; in their place "()", "{}", "<>"."""
    result, at = [], 0
    while at < len(ts):
        if is_(ts, at, "=") and not is_(ts, at - 1, "operator"):
            result.append("=")
            break
        if is_(ts, at, "operator"):
            return None
        if is_(ts, at, "<"):
            result.append("<>")
            at = after_angles(ts, at)
            continue
        if is_(ts, at, *CLOSE):
            text = ts[at].text
            at = closing(ts, at) + 1
            if text != "[[":
                result.append(text + CLOSE[text])
            continue
        if ts[at].kind in ("word", "sign", "number") and ts[at].text not in SPECIFIERS:
            result.append(ts[at].text)
        at += 1
    return result


def is_function(ts):
    flat = parts(ts)
    return flat is None or "()" in flat


def named(ts, body):
    """(name, kind, whether this defines it, enumerators) of a declaration, or None if it makes no new name."""
    if not ts or is_(ts, 0, "static_assert", "friend", "asm", "__asm__"):
        return None
    if is_(ts, 0, "using"):
        if len(ts) > 2 and is_(ts, 2, "="):
            return ts[1].text, "alias", True, ()
        words = [t.text for t in ts[1:] if t.kind == "word"]
        return (words[-1], "using " + "::".join(words), True, ()) if not is_(ts, 1, "enum", "namespace") else None
    if is_(ts, 0, "concept"):
        return ts[1].text, "concept", True, ()
    if is_(ts, 0, "class", "struct", "union", "enum"):
        at = 1
        def marked():  # a macro that stands for attributes
            return at + 1 < len(ts) and ts[at].text.startswith("HEDDLE_") and (ts[at + 1].kind == "word" or is_(ts, at + 1, "[[")) \
                and not is_(ts, at + 1, "final")

        while is_(ts, at, "class", "struct", "[[", "alignas") or marked():
            if is_(ts, at, "[["):
                at = closing(ts, at)
            elif is_(ts, at, "alignas"):
                at = closing(ts, at + 1)
            at += 1
        if at >= len(ts) or ts[at].kind != "word":
            return None
        name = ts[at].text
        if is_(ts, at + 1, "::", "<"):  # a member of another class, a specialization
            return (name, "specialization", False, ()) if is_(ts, at + 1, "<") else None
        if body is None and at + 1 < len(ts) and not is_(ts, at + 1, ":", "final"):
            return None
        if not is_(ts, 0, "enum"):
            return name, "class", body is not None, ()
        values, fresh, inside = [], True, ts[body + 1:-1] if body is not None else []
        at = 0
        while at < len(inside):
            if fresh and inside[at].kind == "word":
                values.append(inside[at].text)
                fresh = False
            elif is_(inside, at, *CLOSE):
                at = closing(inside, at)
            elif is_(inside, at, ","):
                fresh = True
            at += 1
        return name, "enumeration", body is not None, values
    flat = parts(ts)
    if flat is None:
        return None
    if "()" in flat and ("=" not in flat or flat.index("()") < flat.index("=")):
        for at, piece in enumerate(flat):
            if piece == "()" and at > 0 and re.match(r"[A-Za-z_]\w*$", flat[at - 1]) and flat[at - 1] not in NO_NAME:
                if at == 1 or flat[at - 2] == "::":  # a deduction guide, a macro's use, a member of a class
                    return None
                return flat[at - 1], "function", True, ()
            if piece == "()" and at > 1 and flat[at - 1] == "<>" and flat[at - 2] not in NO_NAME and at > 2:
                return flat[at - 2], "specialization", False, ()
        return None
    stop = next((at for at, piece in enumerate(flat) if piece in ("=", "{}", "[]", ":")), len(flat))
    if stop > 1 and flat[stop - 1] == "<>":
        return flat[stop - 2], "specialization", False, ()
    if stop < 2 or not re.match(r"[A-Za-z_]\w*$", flat[stop - 1]) or flat[stop - 2] == "::":
        return None
    return flat[stop - 1], "object", True, ()


def sentence(docs):
    """The first sentence of a docstring, on one line, or "" if it does not begin with one."""
    lines = []
    for _, line in docs:
        if lines and (not line.strip() or re.match(r"    |- |\d\. |\|", line) or FACTS.match(line)):
            break
        lines.append(line.strip())
    text = " ".join(lines)
    if FACTS.match(text):
        return ""
    code = False
    for at, letter in enumerate(text):
        code ^= letter == "`"
        if code or letter not in ".!?":
            continue
        rest = text[at + 1:]
        short = re.search(r"(?:\b(?:e\.g|i\.e|al|cf|vs|Fig|eq|Eq|sec|Sec|pp|No|resp|St|Dr|\d)|\.)\.$", text[:at + 1])
        if not rest or (rest[0] in " )" and re.match(r"\)? +[A-Z`\"'(\d<0-9]", rest) and not (short and re.match(r" +[a-z\d]", rest))):
            end = at + 1 + (rest[:1] == ")" and text[:at].count("(") > text[:at].count(")"))
            if not (short and short.group() not in (".",) and not re.match(r"\d\.$", short.group()) and rest):
                text = text[:end]
                break
    text = text.strip()
    text = text[:1].upper() + text[1:] if re.match(r"(?:a|[a-z]{2,})(?:[,;:.-]| (?!=)|$)", text) else text
    text = re.sub(r"[:;,]$", ".", text)
    return text if not text or text[-1] in ".!?)" else text + "."


def rest(docs):
    """What a docstring says after its first sentence, as Markdown: paragraphs, each fact in one of its own, lists, and code."""
    lines = [line for _, line in docs]
    if not sentence(docs):
        return []
    text, wanted = "", re.sub(r"\W", "", sentence(docs)).lower()
    for number, line in enumerate(lines):  # where the first sentence ends: behind its letters, and what closes it
        for at, letter in enumerate(line):
            text += letter.lower() if re.match(r"\w", letter) else ""
            if text == wanted:
                left = re.sub(r"^[.!?:;,)`'\"*]*\s*", "", line[at + 1:])
                lines = ([left] if left else []) + lines[number + 1:]
                break
        else:
            continue
        break
    else:
        return []
    result, listed = [], False
    for line in lines:
        code = line.startswith("    ") and not listed
        item = re.match(r"\s*(?:- |\d+\. )", line)
        before = result[-1] if result else ""
        if before and (FACTS.match(line) or (code != before.startswith("    ") and not listed) or (item and not listed)):
            result.append("")
        listed = bool(item) or (listed and bool(line.strip()))
        if code or not line.strip():
            result.append(line.rstrip())
        else:
            result.append(re.sub(r"^(\s*)([#>+=~])", r"\1\\\2", escaped(line)))
    return textwrap.dedent("\n".join(result)).strip("\n").splitlines() if not any(line.startswith("    ") for line in result) else result


def escaped(text):
    """Markdown that shows the text: what is not between backticks stands for itself."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return re.sub(r"([\\`*<\[\]|])", r"\\\1", text)
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([\\*<\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", pieces[at])
    for at in range(1, len(pieces), 2):
        pieces[at] = pieces[at].replace("|", "\\|")  # also between backticks it would end a cell
    return "`".join(pieces)


class name:
    """A public name of one header: all its declarations there as one."""

    def __init__(self, header, path):
        self.header, self.path, self.text = header, path, "::".join(path)
        self.kind, self.about, self.values, self.line, self.docs, self.words = None, "", [], 0, [], []


def names(root):
    """The public names of all headers, by room, header and place; and the first comment of each header."""
    include = root / "include"
    seen, about = {}, {}
    for path in sorted([*include.glob("heddle/*/**/*.hpp"), *include.glob("heddle/version.hpp")]):
        header = path.relative_to(include).as_posix()
        if "/impl/" in header:
            continue
        text = path.read_text(encoding="utf-8")
        about[header] = (re.match(r"// [^:]+: ([^\n]*)", text) or [0, ""])[1]
        seen[header] = read_named(header, text)
    defined = defaultdict(set)
    for header, found in seen.items():
        for d in found:
            if d.defined and not d.kind.startswith("using "):
                defined[d.name].add(header)
    result = []
    for header, found in seen.items():
        mine = {}
        for d in found:
            if d.kind == "specialization":
                if d.name in mine and not mine[d.name].docs:
                    mine[d.name].docs = d.docs
                continue
            if defined[d.name] and header not in defined[d.name]:
                continue  # declared here, defined there
            n = mine.setdefault(d.name, name(header, d.path))
            if n.kind is None or (not n.values and d.values):
                n.kind, n.values = d.kind, d.values
            n.line = n.line or d.line
            if list(d.words) not in n.words:
                n.words.append(list(d.words))
            if not sentence(n.docs) and d.docs:
                n.docs, n.line = d.docs, d.line
        for n in mine.values():
            if n.kind == "class":  # a class that is declared, too, before it is defined: the longer of the two
                n.words = [max(n.words, key=lambda lines: len("".join(lines)))]
            if n.kind.startswith("using ") and not n.docs:
                n.docs = [(n.line, f"The same as `{n.kind[6:].removeprefix('heddle::')}`.")]
            n.kind = n.kind.split()[0]
            n.about = sentence(n.docs)
        result += mine.values()
    rooms = {room: number for number, room in enumerate(ROOMS)}
    return sorted(result, key=lambda n: (rooms.get(room_of(n.header), len(rooms)), room_of(n.header), n.header)), about


def read_named(header, text):
    try:
        return read(text)
    except (ValueError, IndexError, KeyError) as problem:
        sys.exit(f"{header}: cannot be read: {problem}")


def room_of(header):
    return header.split("/")[1] if header.count("/") > 1 else "core"


def anchor(header):
    return re.sub(r"[^a-z0-9_-]", "", header)


def path_of(page):
    """A page of the tutorial, by its name, as seen from docs/; that on launchers is one of the first pages."""
    return f"{page}.md" if page == "launch" else f"tutorial/{page}.md"


def tutorials(root):
    """The tutorial's pages in the order in which the README lists them, and the names that each mentions between backticks."""
    readme = (root / "README.md").read_text(encoding="utf-8") if (root / "README.md").is_file() else ""
    listed = re.findall(r"docs/(?:tutorial/)?(\w+)\.md", readme[max(readme.find("## Read on"), 0):])
    there = sorted(path.stem for pattern in ("docs/tutorial/*.md", "docs/launch.md") for path in root.glob(pattern))
    pages = {}
    for page in dict.fromkeys([page for page in listed if page in there] + there):
        text = (root / "docs" / path_of(page)).read_text(encoding="utf-8")
        blocks = re.findall(r"^```.*?^```", text, flags=re.M | re.S)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        mentioned = {m for block in blocks for m in re.findall(r"\b(?:hd|heddle)::([\w:]*\w)", block)}
        prose = {m for span in re.findall(r"`([^`\n]+)`", prose) for m in re.findall(r"(?<![\w/.])[A-Za-z_]\w*(?:::\w+)*(?![\w/]|\.\w)", span)}
        pages[page] = mentioned | {re.sub(r"^(?:hd|heddle)::", "", m) for m in prose}
    return pages


def tutorial_of(n, pages, elsewhere):
    """The first page that mentions the name, that of its room before the others: that alone if headers elsewhere have the name, too.

    The last word alone is a mention only where it is clear."""
    room = room_of(n.header)
    for page in sorted(pages, key=lambda page: page != room):
        if elsewhere and page != room:
            continue
        least = 1 if len(n.path) == 1 or (len(n.path) == 2 and page == room) else 2
        if any("::".join(n.path[at:]) in pages[page] for at in range(len(n.path) - least + 1)):
            return page
    return None


OVERLOADS = 4  # shown of a function


def overloads(n):
    lines = [line for words in n.words[:OVERLOADS] for line in words] or [n.text]
    return lines + ([f"// and {len(n.words) - OVERLOADS} more"] if len(n.words) > OVERLOADS else [])


def heading(n, by_name):
    """A name, and its header where another of the room, or one that differs only by signs and capitals, has the same anchor."""
    mine = [m for m in by_name[n.text] if room_of(m.header) == room_of(n.header)]
    twins = [text for text in ANCHORS[anchor(n.text.lower())] if text != n.text and any(room_of(m.header) == room_of(n.header) for m in by_name[text])]
    shown = n.text.replace("_", "\\_") if n.text.startswith("_") or n.text.endswith("_") else n.text
    return f"{shown} ({n.kind} of {n.header.removeprefix('heddle/')})" if len(mine) > 1 or twins else shown


def anchor_of(n, by_name):
    return anchor(heading(n, by_name).lower().replace(" ", "-"))


ANCHORS = defaultdict(set)


def made_pages(root, found, about):
    """The pages of the reference: path and text."""
    pages, mentioned = {}, tutorials(root)
    by_room, by_header, by_name = defaultdict(list), defaultdict(list), defaultdict(list)
    for n in found:
        if n.header not in by_header:
            by_room[room_of(n.header)].append(n.header)
        by_header[n.header].append(n)
        by_name[n.text].append(n)
    ANCHORS.clear()
    for text in by_name:
        ANCHORS[anchor(text.lower())].add(text)
    for room, headers in by_room.items():
        lines = [f"# {room}: {ABOUT.get(room, room)}", "",
                 "Each public name of the room's headers, in their order, with its sentence; then its declaration and the rest of its docstring: shapes,",
                 "units, errors, sources. A name that is a link leads to the page that introduces it. [All names](index.md).", ""]
        for header in headers:
            summary = escaped(about[header])
            lines += [f"## {header}", summary[:1].upper() + summary[1:] + ("" if summary.endswith(".") else "."), "", "| | | |", "|---|---|---|"]
            for n in by_header[header]:
                page = tutorial_of(n, mentioned, len(by_name[n.text]) > 1)
                shown = f"[`{n.text}`](../{path_of(page)})" if page else f"`{n.text}`"
                values = " Values: " + ", ".join(f"`{value}`" for value in n.values) + "." if n.values else ""
                lines.append(f"| {shown} | [{n.kind}](#{anchor_of(n, by_name)}) | {escaped(n.about)}{values} |")
            lines.append("")
            for n in by_header[header]:
                lines += [f"### {heading(n, by_name)}", "", "```cpp", *overloads(n), "```", ""]
                said = rest(n.docs)
                lines += [*said, ""] if said else []
        pages[f"{PAGES}/{room}.md"] = "\n".join(lines)
    lines = ["# Reference: every public name", "",
             "Written by `tests/docs/names.py` from the docstrings of the headers. Names are those of namespace `heddle`.", "",
             "| room | what is in it | names |", "|---|---|---|"]
    for room, headers in by_room.items():
        lines.append(f"| [{room}]({room}.md) | {ABOUT.get(room, room)} | {sum(len(by_header[header]) for header in headers)} |")
    letter = None
    for text in sorted(by_name, key=lambda text: (text.split("::")[-1].lower(), text)):
        if text.split("::")[-1][0].lower() != letter:
            letter = text.split("::")[-1][0].lower()
            lines += ["", f"## {letter.upper()}"]
        links = [f"[{{}}]({room_of(n.header)}.md#{anchor_of(n, by_name)})" for n in by_name[text]]
        if len(links) == 1:
            lines.append(links[0].format(f"`{text}`") + ",")
        else:
            headers = [n.header.removeprefix("heddle/").removesuffix(".hpp") for n in by_name[text]]
            lines.append(f"`{text}` (" + ", ".join(link.format(header) for link, header in zip(links, headers)) + "),")
    lines = [line.rstrip(",") if at + 1 == len(lines) or not lines[at + 1] else line for at, line in enumerate(lines)]
    pages[INDEX] = "\n".join(lines) + "\n"
    return pages


def check(root):
    root = Path(root)
    found, about = names(root)
    for n in found:
        if not n.about:
            yield f"include/{n.header}:{n.line}: {n.kind} {n.text}: no /// that begins with a sentence about what it is"
    pages = made_pages(root, found, about)
    for page, text in pages.items():
        old = (root / page).read_text(encoding="utf-8") if (root / page).is_file() else ""
        if old == text:
            continue
        have, want = set(old.splitlines()), set(text.splitlines())
        first = next((f"lacks {line!r}" for line in text.splitlines() if line not in have),
                     next((f"has too much {line!r}" for line in old.splitlines() if line not in want), "has another order"))
        yield f"{page}: is not what names.py --write makes of the headers and tutorials: {first}"
    for page in sorted(root.glob(f"{PAGES}/*.md")):
        if page.relative_to(root).as_posix() not in pages:
            yield f"{page.relative_to(root).as_posix()}: belongs to no room"


def write(root):
    root = Path(root)
    (root / PAGES).mkdir(parents=True, exist_ok=True)
    for page, text in made_pages(root, *names(root)).items():
        if not (root / page).is_file() or (root / page).read_text(encoding="utf-8") != text:
            (root / page).write_text(text, encoding="utf-8")


def self_test():
    """Each header, read alone, must give these names with these sentences; each repository must have a finding with the text, or none."""
    def header(*body):
        return "\n".join(["// heddle/core/a.hpp: a test.", "#pragma once", "namespace heddle::inline v0 {", *body, "}", ""])

    reads = [
        (["/// An axis. More.", "struct axis {};"], ["axis class An axis."]),
        (["/// An axis", "/// of a mesh: it", "/// has a size."], []),
        (["/// An axis of e.g. two ranks. Its tag is a type.", "struct axis { int f() { return 1; } };"], ["axis class An axis of e.g. two ranks."]),
        (["/// Shoeybi et al. 2019 split it. Then more.", "struct a;"], ["a class Shoeybi et al. 2019 split it."]),
        (["/// For `a.b. C` in 1.5 ways (see there). Then more.", "struct a;"], ["a class For `a.b. C` in 1.5 ways (see there)."]),
        (["/// Errors: `error` always.", "void f();"], ["f function "]),
        (["/// Adds. Errors: `error`.", "/// Units: bytes.", "void f();"], ["f function Adds."]),
        (["/// It does two things:", "/// - one", "/// - two", "void f();"], ["f function It does two things."]),
        (["struct dp {};  ///< data parallel", "struct tp {};"], ["dp class Data parallel.", "tp class "]),
        (["/// Both.", "struct dp {};  ///< data parallel: ranks see", "               ///< different samples"], ["dp class Data parallel: ranks see different samples."]),
        (["template <int N>", "struct a {  ///< how it is", "  int n = N;  ///< not this", "};"], ["a class How it is."]),
        (["// Not a docstring.", "struct a {};", "//// Nor this.", "struct b {};"], ["a class ", "b class "]),
        (["/// Adds.", "template <class T>", "  requires std::integral<T> && (sizeof(T) > 2) && requires(T t) { t + t; { t } -> std::same_as<T>; }",
          "constexpr T f(T a, T b = T{1}) { return a < b ? a : b; }", "/// Twice.", "struct g {};"], ["f function Adds.", "g class Twice."]),
        (["/// Adds.", "template <class T>", "void f(const T& t)", "  requires requires { t.x; }", "{ if (t.x < 1) { return; } }", "struct g {};"],
         ["f function Adds.", "g class "]),
        (["/// Adds.", "HEDDLE_HD constexpr auto f(std::vector<std::pair<int, int>> v) noexcept -> std::array<int, (1 < 2 ? 3 : 4)> { return {}; }",
          "/// The end.", "int g();"], ["f function Adds.", "g function The end."]),
        (["/// A map.", "[[nodiscard]] inline const std::map<int, int>& table();"], ["table function A map."]),
        (["/// A value.", "template <class T>", "inline constexpr auto f = [](auto x) -> int { return x < 2 ? 1 : 0; };", "template <>", "inline constexpr int f<int> = 1;"],
         ["f object A value."]),
        (["/// How.", "inline constexpr struct f_fn { int operator()() const; } f{};"], ["f_fn class How."]),
        (["/// Names.", "inline constexpr std::array<const char*, 2> names{\"a;{\", \"b\"};", "/// Digits.", "constexpr int digits = 1'000'000;"],
         ["names object Names.", "digits object Digits."]),
        (["/// A is what", "/// B is.", "template <class A>", "concept like = requires(A a) { a.x; } || (sizeof(A) < 2);", "/// Same.", "using other = std::vector<int>;"],
         ["like concept A is what B is.", "other alias Same."]),
        (["/// Which.", "enum class kind : unsigned char { one = f(1, 2), two, three [[maybe_unused]] };"], ["kind enumeration Which. one two three"]),
        (["/// A mesh.", "template <class... A>", "class mesh;", "template <class A>", "class mesh<A> {};", "mesh() -> mesh<int>;"], ["mesh class A mesh."]),
        (["/// Of one.", "constexpr int f(int) { return 1; }", "constexpr int f(long) { return 1; }"], ["f function Of one."]),
        (["class a {", " public:", "  friend void f(a) {}", "  struct inner {};", "};", "bool operator<(a, a);", "static_assert(sizeof(a) < 2);"], ["a class "]),
        (["namespace detail {", "struct hidden {};", "}", "namespace io::detail { struct hidden {}; }", "namespace io { /// A file.", "struct file {}; }"],
         ["io::file class A file."]),
        (["#if defined(X)", "inline int f() {", "#else", "inline long f() {", "#endif", "  return 1; }", "struct a {};"], ["f function ", "a class "]),
        (["#if defined(X)", "/// One.", "struct f {};", "#else", "struct g {};", "#endif"], ["f class One.", "g class "]),
        (["#define HEDDLE_TAG(NAME) struct NAME { int f() { return 1; } }", "HEDDLE_TAG(one);  ///< the first", "HEDDLE_TAG(two);", "#undef HEDDLE_TAG"],
         ["one class The first.", "two class "]),
        (["/// Marks it.", "#define HEDDLE_HERE \\", "  1", "struct a {};"], ["HEDDLE_HERE macro Marks it.", "a class "]),
        (["extern template struct a<int>;", "template void f<int>(int);", "using std::swap;", "extern \"C\" { int c(); }"], ["swap using ", "c function "]),
        (["/// Of int.", "template <class T>", "  requires std::same_as<T, int>", "struct a {};", "/// Odd.", "wrapped<[] { return 1; }> f();"],
         ["a class Of int.", "f function Odd."]),
        (["/// A guide.", "mesh(int) -> mesh<int>;"], []),
        (["/// Marked.", "class HEDDLE_MARK [[nodiscard]] a final {};", "/// Too.", "struct HEDDLE_MARK b {};"], ["a class Marked.", "b class Too."]),
        (["/// Of a member.", "template <class T>", "int a<T>::f() { return 1; }", "int b::g = 2;"], []),
    ]
    failed = 0
    for number, (body, wanted) in enumerate(reads):
        mine = {}
        for d in read(header(*body)):
            if d.kind != "specialization":
                mine.setdefault(d.name, " ".join([d.name, d.kind.split()[0], sentence(d.docs), *d.values]))
        if sorted(mine.values()) != sorted(wanted):
            failed += 1
            print(f"self-test {number}: expected {wanted}, read {list(mine.values())}")

    a = header("/// An axis.", "struct axis {};")
    good = {"include/heddle/core/a.hpp": a}
    stale = "is not what names.py --write makes"
    cases = [  # the files when the pages are written, those that change afterwards, the finding
        (good, {}, None),
        ({"include/heddle/core/a.hpp": header("struct axis {};")}, {}, "core/a.hpp:4: class axis: no ///"),
        (good, {"include/heddle/core/a.hpp": header("/// An axis of a mesh.", "struct axis {};")}, "docs/reference/core.md: " + stale),
        (good, {"include/heddle/core/a.hpp": header("/// An axis.", "struct axis {};", "/// More.", "struct more {};")}, "docs/reference/index.md: " + stale),
        (good, {"include/heddle/mesh/b.hpp": header("/// More.", "struct more {};")}, "docs/reference/mesh.md: " + stale),
        (good, {"docs/reference/core.md": ""}, "docs/reference/core.md: " + stale),
        (good, {"docs/reference/attic.md": ""}, "belongs to no room"),
        (good, {"include/heddle/core/a.hpp": header("namespace detail {", "struct hidden {};", "}", "/// An axis.", "struct axis {};")}, None),
        (good, {"include/heddle/core/impl/a.hpp": header("struct hidden {};")}, None),
        (good, {"docs/tutorial/mesh.md": "`hd::axis<dp>` is an axis.\n"}, "docs/reference/core.md: " + stale),
        # A name that two headers define has a line, and needs a sentence, in each; one that the other only declares does not.
        ({**good, "include/heddle/mesh/b.hpp": header("struct axis {};")}, {}, "mesh/b.hpp:4: class axis: no ///"),
        ({**good, "include/heddle/mesh/b.hpp": header("struct axis;")}, {}, None),
        ({"include/heddle/core/a.hpp": header("/// Prints a.", "void print(int);"), "include/heddle/mesh/b.hpp": header("void print(long);")}, {},
         "mesh/b.hpp:4: function print: no ///"),
    ]
    shown = [  # files, page, a line that it must have, or lines with | between them
        (good, "core", "| `axis` | [class](#axis) | An axis. |"),
        ({**good, "docs/tutorial/mesh.md": "An `axis<dp>`.\n", "docs/tutorial/io.md": "`axis`\n", "README.md": "## Read on\n[io](docs/tutorial/io.md)\n"}, "core",
         "| [`axis`](../tutorial/io.md) | [class](#axis) | An axis. |"),
        ({**good, "docs/tutorial/mesh.md": "```cpp\nhd::axis<dp> a;\n```\n"}, "core", "| [`axis`](../tutorial/mesh.md) | [class](#axis) | An axis. |"),
        ({**good, "docs/tutorial/mesh.md": "```cpp\nint axis;\n```\n`mesh.axis` `io::axis` `heddle/axis.hpp`\n"}, "core", "| `axis` | [class](#axis) | An axis. |"),
        ({**good, "include/heddle/mesh/b.hpp": header("/// Another.", "struct axis {};"), "docs/tutorial/mesh.md": "`axis`\n"}, "core",
         "| `axis` | [class](#axis) | An axis. |"),
        ({**good, "include/heddle/mesh/b.hpp": header("/// Another.", "struct axis {};"), "docs/tutorial/mesh.md": "`axis`\n"}, "mesh",
         "| [`axis`](../tutorial/mesh.md) | [class](#axis) | Another. |"),
        ({"include/heddle/core/a.hpp": header("/// A *view*<T> | [0, n) of a_b, `x|y`.", "struct a {};")}, "core",
         "| `a` | [class](#a) | A \\*view\\*\\<T> \\| \\[0, n) of a_b, `x\\|y`. |"),
        ({**good, "include/heddle/mesh/b.hpp": header("/// Another.", "struct axis {};")}, "index",
         "`axis` ([core/a](core.md#axis), [mesh/b](mesh.md#axis))"),
        ({"include/heddle/core/a.hpp": header("/// Adds. Of two,", "/// the sum.", "/// Errors: `error`, or a<b>.", "template <class T>", "  requires (sizeof(T) > 2)",
          "HEDDLE_HD constexpr T add(T a, T b = T{1}) { return a + b; }")}, "core",
         "### add||```cpp|template <class T> requires (sizeof(T) > 2)|constexpr T add(T a, T b = T{1});|```||Of two,|the sum.||Errors: `error`, or a\\<b>."),
        ({"include/heddle/core/a.hpp": header("/// Adds.", "int add(int);", "long add(long);", "/// A size.", "inline constexpr int size = 4;", "/// Long.",
          "inline constexpr int long_one[] = {" + "1000000000, " * 9 + "};")}, "core",
         "### add||```cpp|int add(int);|long add(long);|```||### size||```cpp|inline constexpr int size = 4;|```||### long_one||```cpp|inline constexpr int long_one[];|```"),
        ({**good, "include/heddle/core/b.hpp": header("/// Another.", "class axis : base {", "  int f();", "};")}, "core",
         "### axis (class of core/b.hpp)||```cpp|class axis : base;|```"),
        ({"include/heddle/core/a.hpp": header("/// Which.", "enum class kind { one, two };")}, "core", "| `kind` | [enumeration](#kind) | Which. Values: `one`, `two`. |"),
    ]

    def put(root, files):
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content, encoding="utf-8")

    for number, (before, after, text) in enumerate(cases):
        with tempfile.TemporaryDirectory() as folder:
            put(Path(folder), before)
            write(folder)
            put(Path(folder), after)
            findings = list(check(folder))
        if findings != [] if text is None else not any(text in finding for finding in findings):
            failed += 1
            print(f"self-test of repository {number}: expected {text!r}, found {findings}")
    for number, (files, page, line) in enumerate(shown):
        with tempfile.TemporaryDirectory() as folder:
            put(Path(folder), files)
            write(folder)
            lines = (Path(folder) / PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines()
        if ("|" + line + "|" not in "|" + "|".join(lines) + "|") if line.startswith("###") else line not in lines:
            failed += 1
            print(f"self-test of page {number}: expected {line!r} in {lines}")
    count = len(reads) + len(cases) + len(shown)
    print(f"self-test: {count - failed} of {count} judged rightly")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) == 2 and arguments[1] == "--write":
        write(arguments[0])
        return 0
    if len(arguments) == 2 and arguments[1] == "--list":
        for n in names(Path(arguments[0]))[0]:
            print(n.header, n.kind, n.text, n.about, *n.values, sep="\t")
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    findings = list(check(arguments[0]))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
