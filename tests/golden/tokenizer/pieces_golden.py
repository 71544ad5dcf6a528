#!/usr/bin/env python3
"""Trains small tokenizers in the manner of Llama-2, Mixtral, Gemma, SmolLM and T5 with the `tokenizers` and `sentencepiece` packages, and
writes what they encode and decode, as tokenizer_golden.py does.

    pieces_golden.py            trains, writes <family>.json, <family>.model and pieces_expected.json
    pieces_golden.py --expect   keeps the trained files, writes pieces_expected.json
    pieces_golden.py --all      the same of 10,000 strings instead of 1,000: tests compare all that the file has
    pieces_golden.py --check    compares pieces_expected.json with what the installed packages do with the trained files

`tokenizers` 0.23.3 and `sentencepiece` 0.2.3 wrote what is committed.
"""
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import sentencepiece
from strings import Hash, string, token_ids
from tokenizer_golden import TEXT, hexadecimal
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
BLOCK, SHOWN = 100, 20
MARK = "\u2581"
CORPUS = TEXT.splitlines() * 4 + [string(10**6 + i, ["loom"]).replace("\0", "") for i in range(300)]


def special(content, **how):
    return AddedToken(content, special=True, **{"normalized": False, **how})


# What the published tokenizer.json files of the families have.
def llama_decoder(strips):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strips else []))


FAMILIES = {
    "llama2": {"added": [], "normalizer": normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), "decoder": llama_decoder(True)},
    "mixtral": {"added": [special("[INST]"), AddedToken("<fim>", normalized=True), special("<mask>", lstrip=True), special("<sep>", rstrip=True)],
                "pre_tokenizer": pre_tokenizers.Metaspace(MARK, "first", split=False), "decoder": llama_decoder(True)},
    "gemma": {"added": [special("<start_of_turn>"), AddedToken("\n\n", normalized=False), AddedToken("loom", normalized=False)],
              "normalizer": normalizers.Replace(" ", MARK), "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous"), "decoder": llama_decoder(False)},
    # No model's: unknown tokens instead of bytes, and the other components.
    "marks": {"added": [special("<mask>", normalized=True), AddedToken("caf\u00e9", normalized=True)], "unknown": True,
              "normalizer": normalizers.Sequence([normalizers.Strip(True, False), normalizers.NFC(), normalizers.Replace(Regex(r"\s*[.!?]+"), "."), normalizers.Strip(False, True)]),
              "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.Metaspace(MARK, "always", split=True)]),
              "decoder": decoders.Sequence([decoders.Strip("b", 0, 1), decoders.Strip("a", 1, 0), decoders.Metaspace(MARK, "always"), decoders.Replace("ee", "\u00e9")])},
}


def with_bytes(model, unknown):
    """The vocabulary with the marks and the bytes before it, and the merges."""
    first = ["<unk>", "<s>", "</s>"] + ([] if unknown else [f"<0x{b:02X}>" for b in range(256)])
    words = [w for w, _ in sorted(model["vocab"].items(), key=lambda item: item[1]) if w not in first]
    return {w: i for i, w in enumerate(first + words)}, [tuple(m) for m in model["merges"] if not {m[0], m[1], m[0] + m[1]} & set(first)]


def train_pairs(family):
    how = FAMILIES[family]
    unknown = how.get("unknown", False)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, limit_alphabet=110, show_progress=False))
    vocab, merges = with_bytes(json.loads(trained.to_str())["model"], unknown)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=not unknown, byte_fallback=not unknown))
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if part in how:
            setattr(tokenizer, part, how[part])
    tokenizer.add_tokens([special("<unk>"), special("<s>"), special("</s>")] + how["added"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    (HERE / f"{family}.json").write_text(tokenizer.to_str(), encoding="utf-8")


def train_digits():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tokenizer.add_tokens([special("<|endoftext|>")])
    (HERE / "digits.json").write_text(tokenizer.to_str(), encoding="utf-8")


def train_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always")
    tokenizer.decoder = decoders.Metaspace(MARK, "always")
    tokenizer.train_from_iterator(TEXT.splitlines() * 4, trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    (HERE / "unigram.json").write_text(tokenizer.to_str(), encoding="utf-8")


RULES = {"\u00c4": "A\u0308", "\u00e4": "a\u0308", "\ufb01": "fi", "\u3000": " ", "\u00a0": " ", "\t": " ", "\r": " ", "\n": " ", "\u00bd": "1 / 2", "\u200b": "", "\u0301": "",
         "e\u0301": "\u00e9", "\u2126": "\u03a9", "\U0001d15e": "\U0001d157", "\u2026": "...", "a\u030a": "\u00e5", "\uff10": "0", "\uff11": "1"}
PIECES = {
    # As Llama-2's: bytes for unknown characters, spaces as they are, digits alone.
    "sp_bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, vocab_size=700,
                   user_defined_symbols=["\u2581\u2581", "\u2581\u2581\u2581", "loom", "\n\n"], allow_whitespace_only_pieces=True),
    # As T5's: unigrams, one unknown piece, a table of characters, single spaces.
    "sp_unigram": dict(model_type="unigram", vocab_size=700, user_defined_symbols=["<mask>", "warp"], control_symbols=["<ctl>"], unk_surface=" ? "),
    "sp_bytes": dict(model_type="unigram", vocab_size=800, byte_fallback=True, normalization_rule_name="identity", treat_whitespace_as_suffix=True),
}


def train_pieces(family):
    how = dict(PIECES[family])
    made = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if "normalization_rule_name" not in how:
            rules = Path(folder) / "rules.tsv"
            rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in RULES.items()))
            how["normalization_rule_tsv"] = str(rules)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.splitlines() * 4), model_writer=made, character_coverage=0.98, num_threads=1,
                                                 minloglevel=2, hard_vocab_limit=False, **how)
    (HERE / f"{family}.model").write_bytes(made.getvalue())


class Pieces:
    """SentencePiece's processor, with its control pieces as marks."""

    def __init__(self, path):
        self.of = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.size = self.of.get_piece_size()
        self.marks = {self.of.id_to_piece(i): i for i in range(self.size) if self.of.is_control(i) or self.of.is_unknown(i)}

    def encode(self, text):
        parts = re.split("(" + "|".join(map(re.escape, self.marks)) + ")", text)
        return [i for k, part in enumerate(parts) for i in ([self.marks[part]] if k % 2 else self.of.encode(part))]

    def encode_as_text(self, text):
        return self.of.encode(text)

    def decode(self, ids, skip):
        return self.of.decode([i for i in ids if not (skip and i in self.marks.values())])


class Whole:
    def __init__(self, path):
        self.of = Tokenizer.from_file(str(path))
        self.size = self.of.get_vocab_size()
        self.marks = [t.content for t in self.of.get_added_tokens_decoder().values()]
        file = json.loads(path.read_text())
        self.of_text = None
        if file["model"]["type"] == "Unigram":  # finds special tokens among the others: here they are spelled as no text is
            specials = [t["content"] for t in file["added_tokens"] if t["special"]]
            file["model"]["vocab"] = [["\U000f0000" + w if w in specials else w, score] for w, score in file["model"]["vocab"]]
            self.of_text = Tokenizer.from_str(json.dumps({**file, "added_tokens": []}))

    def encode(self, text):
        return self.of.encode(text).ids

    def encode_as_text(self, text):
        if self.of_text:
            return self.of_text.encode(text, add_special_tokens=False).ids
        self.of.encode_special_tokens = True
        ids = self.of.encode(text, add_special_tokens=False).ids
        self.of.encode_special_tokens = False
        return ids

    def decode(self, ids, skip):
        return self.of.decode(ids, skip_special_tokens=skip)


def files():
    return [HERE / f"{f}.json" for f in (*FAMILIES, "digits", "unigram")] + [HERE / f"{f}.model" for f in PIECES]


def load(path):
    return Pieces(path) if path.suffix == ".model" else Whole(path)


def blocks(strings, each):
    out = []
    for begin in range(0, strings, BLOCK):
        to = Hash()
        for i in range(begin, begin + BLOCK):
            each(i, to)
        out.append(hexadecimal(to.value)[:8])
    return out


def expected(path, strings):
    tokenizer = load(path)
    marks = list(tokenizer.marks) + ["loom", "<0x41>", MARK, "<mask>"]

    def ids(to, all_ids):
        to.number(len(all_ids))
        for n in all_ids:
            to.number(n)

    def decoded(i, to):
        for skip in (False, True):
            text = tokenizer.decode(token_ids(i, tokenizer.size), skip).encode()
            to.number(len(text))
            to.bytes(text)

    return {"marks": marks, "vocabulary": tokenizer.size,
            "encoded": blocks(strings, lambda i, to: ids(to, tokenizer.encode(string(i, marks)))),
            "as_text": blocks(strings, lambda i, to: ids(to, tokenizer.encode_as_text(string(i, marks)))),
            "decoded": blocks(strings, decoded),
            "strings": [{"text": string(i, marks), "ids": tokenizer.encode(string(i, marks))} for i in range(SHOWN)]}


def main():
    if sys.argv[1:] == []:
        for family in FAMILIES:
            train_pairs(family)
        train_digits()
        train_unigram()
        for family in PIECES:
            train_pieces(family)
    made = json.dumps({path.name: expected(path, 10000 if sys.argv[1:] == ["--all"] else 1000) for path in files()}, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n"
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if (HERE / "pieces_expected.json").read_text() == made else "pieces_expected.json is not what the packages make")
    (HERE / "pieces_expected.json").write_text(made)


if __name__ == "__main__":
    main()
