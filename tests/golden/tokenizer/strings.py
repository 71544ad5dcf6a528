"""Random and adversarial strings, made alike here and in tests/io/tokenizer_strings.hpp: change both or neither."""

MASK = (1 << 64) - 1
WHITE = [0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x2009, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0xFEFF, 0x1C, 0x00]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'Re", "'VE", "'ve", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'x", "''s", "\u2019s", "'\u017f", "don't", "I'LL've"]
DIGITS = [0x30, 0x660, 0x6F0, 0x966, 0xE50, 0xFF10, 0x1D7CE, 0x2460, 0xB9, 0x2160, 0x10D40]
LETTERS = [(0xC0, 0x180), (0x370, 0x80), (0x400, 0x100), (0x5D0, 0x1B), (0x620, 0x2B), (0x905, 0x35), (0xE01, 0x2E), (0x3041, 0x56), (0x30A1, 0x5A), (0x4E00, 0x400), (0xAC00, 0x400), (0x10400, 0x50), (0x1D400, 0x100), (0x20000, 0x100), (0x1E030, 0x40), (0x31350, 0x40), (0x2B0, 0x40)]
EMOJI = ["\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F44D\U0001F3FD", "\U0001F1E9\U0001F1EA", "\u2764\uFE0F", "\U0001F600", "1\uFE0F\u20E3", "\U0001F3F4\u200D\u2620\uFE0F"]
COMPOSED = ["e\u0301", "\u00e9", "\u1100\u1161\u11a8", "\uac00\u11a8", "A\u030a", "\u212b", "\u2126", "q\u0323\u0307", "q\u0307\u0323", "\u0958", "\u1e9b\u0323", "\u0f73", "\u0345\u0301", "\u03b1\u0345\u0301", "\ufb01", "\U0001d15e", "\u2f71", "\U0002f800", "a\u0897\u0301", "\U00011935\U00011930", "a\u07fd\u0301", "\u0b47\u0b56"]
PIECES = ["<|", "|>", "</s>", "<s>", "\\n", "://", "...", "==", "\u2026", "\u20ac", "\u00bd", "_", "__init__", "\u0130", "\u00df", "\ufffd", "\U0010ffff", "\ue000", "\ud7ff", "\ufdd0"]


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n


def string(seed, marks):
    """One string; `marks` are the added tokens of a family."""
    r = Random(seed * 0x2545F4914F6CDD1D)
    out = []
    for _ in range(r.below(24)):
        kind = r.below(18)
        if kind <= 1:
            out.append("".join(chr(97 + r.below(26)) for _ in range(1 + r.below(8))))
        elif kind == 2:
            out.append("".join(chr(65 + r.below(26)) for _ in range(1 + r.below(4))))
        elif kind == 3:
            base = DIGITS[r.below(len(DIGITS))] if r.below(2) else 0x30
            out.append("".join(chr(base + r.below(9)) for _ in range(1 + r.below(6))))
        elif kind == 4:
            out.append(" " * (1 + r.below(4)))
        elif kind == 5:
            out.append("".join(chr(WHITE[r.below(len(WHITE))]) for _ in range(1 + r.below(4))))
        elif kind == 6:
            out.append("".join("\r\n \n\t\r"[r.below(6)] for _ in range(1 + r.below(6))))
        elif kind == 7:
            out.append(CONTRACTIONS[r.below(len(CONTRACTIONS))])
        elif kind == 8:
            c = r.below(0x110000 - 0x800)
            out.append(chr(c if c < 0xD800 else c + 0x800))
        elif kind == 9:
            c = r.below(0x10000 - 0x800)
            out.append(chr(c if c < 0xD800 else c + 0x800))
        elif kind == 10:
            out.append("".join(chr(0x300 + r.below(0x70)) for _ in range(1 + r.below(3))))
        elif kind == 11:
            out.append(EMOJI[r.below(len(EMOJI))])
        elif kind == 12:
            out.append(marks[r.below(len(marks))])
        elif kind == 13:
            out.append(COMPOSED[r.below(len(COMPOSED))])
        elif kind == 14:
            out.append("".join(chr(0x21 + r.below(15)) for _ in range(1 + r.below(4))))
        elif kind == 15:
            base, count = LETTERS[r.below(len(LETTERS))]
            out.append("".join(chr(base + r.below(count)) for _ in range(1 + r.below(6))))
        elif kind == 16:
            out.append(PIECES[r.below(len(PIECES))])
        else:
            c, n = r.below(0x2FFF), 1 + r.below(40)  # one character many times
            out.append(chr(c) * n)
    return "".join(out)


def token_ids(seed, vocabulary):
    """Ids to decode."""
    r = Random(seed * 0x2545F4914F6CDD1D + 1)
    return [r.below(vocabulary) for _ in range(r.below(20))]


class Hash:
    """FNV-1a of bytes, 64 bits."""

    def __init__(self):
        self.value = 0xCBF29CE484222325

    def bytes(self, data):
        for b in data:
            self.value = ((self.value ^ b) * 0x100000001B3) & MASK

    def number(self, n):
        self.bytes(n.to_bytes(4, "little"))
