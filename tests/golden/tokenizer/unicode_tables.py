#!/usr/bin/env python3
"""Writes include/heddle/io/tokenizer/unicode_tables.hpp: where the `tokenizers` package's Unicode differs from that of PCRE2 and utf8proc.

    unicode_tables.py            writes the header
    unicode_tables.py --check    compares with it

Run with the `tokenizers` package (0.23.3 wrote what is committed) on Debian 12, whose PCRE2 10.42 has Unicode 14 and whose
utf8proc 2.8 has Unicode 15. Both sides are asked about every code point.
"""
import ctypes
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

HEADER = Path(__file__).resolve().parents[3] / "include/heddle/io/tokenizer/unicode_tables.hpp"
PROPERTIES = ("L", "N", "M", "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Mn", "Mc", "Me", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
              "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Han")
ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def package_class(pattern):
    """The code points that a class of the package's regular expressions has."""
    keep = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(ALL), 2000):
        for piece, _ in keep.pre_tokenize_str("".join(map(chr, ALL[i:i + 2000]))):
            found |= set(map(ord, piece))
    return found


def package_words():
    """The code points beside which a token that is a single word is not found."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("qz", single_word=True, normalized=False)])
    word = tokenizer.token_to_id("qz")
    return {c for c in ALL if word not in tokenizer.encode(chr(c) + "qz").ids}


class Pcre2:
    """Classes of the installed PCRE2."""

    def __init__(self):
        self.lib = ctypes.CDLL("libpcre2-8.so.0")
        for name in ("pcre2_compile_8", "pcre2_match_data_create_8", "pcre2_get_ovector_pointer_8"):
            getattr(self.lib, name).restype = ctypes.c_void_p

    def matched(self, pattern):
        utf, ucp = 0x00080000, 0x00020000
        number, offset = ctypes.c_int(), ctypes.c_size_t()
        text = pattern.encode()
        code = self.lib.pcre2_compile_8(text, ctypes.c_size_t(len(text)), utf | ucp, ctypes.byref(number), ctypes.byref(offset), None)
        assert code, f"PCRE2 refuses {pattern}: {number.value}"
        data = self.lib.pcre2_match_data_create_8(1, None)
        found = set()
        for c in ALL:
            subject = chr(c).encode()
            if self.lib.pcre2_match_8(ctypes.c_void_p(code), subject, ctypes.c_size_t(len(subject)), ctypes.c_size_t(0), 0,
                                      ctypes.c_void_p(data), None) > 0:
                found.add(c)
        return found


def normalization_barriers(marks):
    """The code points that the package's NFC, of an older Unicode, neither moves nor composes, and a newer NFC may."""
    lib = ctypes.CDLL("libutf8proc.so.2")
    lib.utf8proc_NFC.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free

    def newer(text):
        made = lib.utf8proc_NFC(text.encode())
        result = ctypes.string_at(made).decode()
        free(ctypes.c_void_p(made))
        return result

    older = normalizers.NFC().normalize_str
    around = ("%s", "a%s\u0301", "a\u0345%s", "a\u0301%s", "a%s\u0334", "\u1100%s", "a\u0316%s", "q%s\u0316")
    found = {c for c in ALL[1:] if any(older(t % chr(c)) != newer(t % chr(c)) for t in around)}

    def alone(c):  # the package normalizes what is before and behind as if they were two texts
        return all(older(t % chr(c)) == chr(c).join(map(older, t.split("%s"))) for t in around)

    assert all(map(alone, found))
    # Marks and blocks that came with Unicode 15 and 16, for a newer utf8proc; 11930, which composes since Unicode 13.
    blocks = [(0x105C0, 0x105F3), (0x11380, 0x113E2), (0x16100, 0x16139), (0x16D40, 0x16D79), (0x11930, 0x11930)]
    later = {c for first, last in blocks for c in range(first, last + 1)} | marks
    assert all(map(alone, later))
    return found | later


def table(name, comment, points):
    ranges = []
    for c in sorted(points):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    lines, line = [], "   "
    for first, last in ranges:
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 118:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    return f"// {comment}\ninline constexpr code_point_range {name}[] = {{\n" + "\n".join(lines).rstrip(",") + "};\n"


def main():
    pcre2 = Pcre2()
    more = {}
    for name in PROPERTIES:
        ours, theirs = pcre2.matched(rf"\p{{{name}}}"), package_class(rf"\p{{{name}}}")
        if ours <= theirs:  # otherwise patterns with this property are refused
            more[name] = theirs - ours
        else:
            print(f"left out: {name}, of which PCRE2 has {sorted(map(hex, ours - theirs))[:9]} alone")
    assert pcre2.matched(r"\s") - package_class(r"\s") == {0x180E} and package_class(r"\s") <= pcre2.matched(r"\s")
    words, ours = package_words(), pcre2.matched(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")
    assert ours <= words, sorted(ours - words)
    text = "\n".join([
        "// heddle/io/tokenizer/unicode_tables.hpp: code points that `tokenizers` classes apart.\n"
        "// Written by tests/golden/tokenizer/unicode_tables.py.\n"
        "#pragma once\n\n#include <cstdint>\n#include <span>\n#include <string_view>\n\nnamespace heddle::inline v0::io::detail {\n\n// clang-format off",
        "struct code_point_range {\n  std::uint32_t first, last;\n};\n",
        *[table(f"later_{name.lower()}", f"`\\p{{{name}}}` since Unicode 15.", more[name]) for name in more if more[name]],
        "// What the package, of Unicode 16, has in a class, and PCRE2 10.42 has not.\n"
        "struct later_members {\n  std::string_view property;\n  std::span<const code_point_range> ranges;\n};\n"
        "inline constexpr later_members later_of_properties[] = {\n"
        + ",\n".join(f'    {{"{name}", {f"later_{name.lower()}" if more[name] else "{}"}}}' for name in more) + "};\n",
        table("later_word_characters", "What joins words since Unicode 15: `\\w` of Rust's regular expressions.", words - ours),
        table("normalization_barriers", "What NFC of the package, of Unicode 9, leaves alone, and later versions move or compose.",
              normalization_barriers(more["M"])),
        "// clang-format on\n\n}  // namespace heddle::inline v0::io::detail\n"])
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if HEADER.read_text() == text else "the header is not what this script writes")
    HEADER.write_text(text)


if __name__ == "__main__":
    main()
