#!/usr/bin/env python3
"""Trains small tokenizers in the manner of GPT-2, Llama-3 and Qwen-2 with the `tokenizers` package, and writes what it encodes and decodes.

    tokenizer_golden.py            trains, writes <family>.json, gpt2_vocab.json, gpt2_merges.txt, expected.json
    tokenizer_golden.py --expect   keeps the trained files, writes expected.json
    tokenizer_golden.py --check    compares expected.json with what the installed package does with the trained files

`tokenizers` 0.23.3 wrote what is committed.
"""
import json
import sys
from pathlib import Path

from strings import Hash, string, token_ids
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
STRINGS, BLOCK, SHOWN = 10000, 100, 75

# The patterns as the published tokenizer.json files of the families have them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TEXT = """A heddle lifts the warp threads of a loom so that the weft can pass between them. The weaver's foot presses a treadle, the shaft rises,
and the shuttle flies; it's quick, and they've done it 1000 times. Don't pull too hard: you'll break the yarn, I'm sure of it, we're told.
def weave(threads: int, picks: int = 128) -> list[str]:\n    return [f"{i}/{threads}" for i in range(picks)]\n\n
Der Webstuhl hebt die Kettf\u00e4den, damit der Schuss hindurchgehen kann. Gr\u00f6\u00dfe und H\u00f6he \u00fcber Stra\u00dfen, f\u00fcr M\u00fcller 25 \u20ac.
Le m\u00e9tier \u00e0 tisser l\u00e8ve les fils de cha\u00eene; \u00e7a va tr\u00e8s bien, l'\u00e9t\u00e9 est fini. \u00bfQu\u00e9 tal? Ma\u00f1ana ser\u00e1 otro d\u00eda.
\u0422\u043a\u0430\u0446\u043a\u0438\u0439 \u0441\u0442\u0430\u043d\u043e\u043a \u043f\u043e\u0434\u043d\u0438\u043c\u0430\u0435\u0442 \u043d\u0438\u0442\u0438 \u043e\u0441\u043d\u043e\u0432\u044b, \u0447\u0442\u043e\u0431\u044b \u0443\u0442\u043e\u043a \u043f\u0440\u043e\u0448\u0435\u043b \u043c\u0435\u0436\u0434\u0443 \u043d\u0438\u043c\u0438.
\u7ec7\u673a\u63d0\u8d77\u7ecf\u7ebf\uff0c\u4f7f\u7eac\u7ebf\u53ef\u4ee5\u901a\u8fc7\u3002\u6a5f\u7e54\u308a\u306f\u7d4c\u7cf8\u3092\u6301\u3061\u4e0a\u3052\u308b\u3002\ubca0\ud2c0\uc740 \ub0a0\uc2e4\uc744 \ub4e4\uc5b4 \uc62c\ub9b0\ub2e4.
\u0627\u0644\u0646\u0648\u0644 \u064a\u0631\u0641\u0639 \u062e\u064a\u0648\u0637 \u0627\u0644\u0633\u062f\u0627\u0629. \u05d4\u05e0\u05d5\u05dc \u05de\u05e8\u05d9\u05dd \u05d0\u05ea \u05d7\u05d5\u05d8\u05d9 \u05d4\u05e9\u05ea\u05d9. \u0915\u0930\u0918\u093e \u0924\u093e\u0928\u0947 \u0915\u0947 \u0927\u093e\u0917\u0947 \u0909\u0920\u093e\u0924\u093e \u0939\u0948\u0964
\U0001f9f5 \U0001f469\u200d\U0001f467 12345 3.14159 2024-01-01 {"key": [1, 2, 3]} <b>bold</b>\r\n\r\n\tTabs\t\tand    spaces      here        \n"""


def special(content, **how):
    return AddedToken(content, special=True, **{"normalized": False, **how})


FAMILIES = {
    "gpt2": [special("<|endoftext|>", normalized=True)],
    "llama3": [special(f"<|{name}|>") for name in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id")],
    "qwen2": [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), AddedToken("<tool_call>", normalized=False)],
    # No model's: every field of an added token, a space before each piece, splits that merge or leave out.
    "mixed": [special("<mask>", lstrip=True), special("<sep>", rstrip=True, normalized=True), AddedToken("loom", single_word=True),
              AddedToken("caf\u00e9", normalized=True), AddedToken("e\u0301t\u00e9", normalized=False), AddedToken("<sep><mask>", lstrip=True, rstrip=True, normalized=False),
              special("<m", single_word=True), AddedToken("\u043d\u0438\u0442\u044c", single_word=True, lstrip=True)],
}


def train(family):
    tokenizer = Tokenizer(models.BPE(ignore_merges=family == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=family == "mixed", use_regex=family in ("gpt2", "mixed"))
    if family == "llama3":
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level])
    elif family == "qwen2":
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level])
    elif family == "mixed":
        byte_level = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"[.!?]+"), "merged_with_previous"), pre_tokenizers.Split(Regex(r"\p{Lu}\p{Ll}*"), "merged_with_next"),
            pre_tokenizers.Split("\t", "removed"), pre_tokenizers.Split(Regex(r"[^\d\S]|\p{M}"), "contiguous", invert=True), byte_level])
    tokenizer.pre_tokenizer = byte_level
    if family in ("qwen2", "mixed"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    corpus = TEXT.splitlines(keepends=True) * 4 + [string(10**6 + i, ["loom"]) for i in range(400)]
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(FAMILIES[family])
    if family == "llama3":
        bos = "<|begin_of_text|>"
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    elif family == "mixed":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<sep> $A <mask> <sep>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<sep>", "<mask>")])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    (HERE / f"{family}.json").write_text(tokenizer.to_str(), encoding="utf-8")
    if family == "gpt2":
        model = json.loads(tokenizer.to_str())["model"]
        (HERE / "gpt2_vocab.json").write_text(json.dumps(model["vocab"], separators=(",", ":")))
        (HERE / "gpt2_merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]), encoding="utf-8")


def hexadecimal(value):
    return f"{value:016x}"


def expected(family):
    tokenizer = Tokenizer.from_file(str(HERE / f"{family}.json"))
    marks = [t.content for t in FAMILIES[family]]
    texts = [string(i, marks) for i in range(STRINGS)]
    plain = [e.ids for e in tokenizer.encode_batch(texts)]
    tokenizer.encode_special_tokens = True
    as_text = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    vocabulary = tokenizer.get_vocab_size()
    many = [token_ids(i, vocabulary) for i in range(STRINGS)]
    encoded, text_only, decoded = [], [], []
    for begin in range(0, STRINGS, BLOCK):
        e, t, d = Hash(), Hash(), Hash()
        for i in range(begin, begin + BLOCK):
            for to, ids in ((e, plain[i]), (t, as_text[i])):
                to.number(len(ids))
                for n in ids:
                    to.number(n)
            for skip in (False, True):
                text = tokenizer.decode(many[i], skip_special_tokens=skip).encode()
                d.number(len(text))
                d.bytes(text)
        encoded.append(hexadecimal(e.value))
        text_only.append(hexadecimal(t.value))
        decoded.append(hexadecimal(d.value))
    # Every assigned code point, alone and beside others, in one string for each 256 of them; some of the others.
    planes = Hash()
    for begin in range(0, 0x110000, 256):
        if 0xD800 <= begin <= 0xDFFF or not (begin < 0x32400 or 0xE0000 <= begin < 0xE1000 or begin & 0xFFFF == 0):
            continue
        for pattern in ("%c", "a%c1 %c", "a%c\u0301\u0316 %c\u0327", "\u0915%c\u093c"):
            text = "".join(pattern.replace("%c", chr(c)) for c in range(begin, begin + 256))
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            planes.number(len(ids))
            for n in ids:
                planes.number(n)
    return {"marks": marks, "vocabulary": vocabulary, "encoded": encoded, "as_text": text_only, "decoded": decoded, "planes": hexadecimal(planes.value),
            "strings": [{"text": texts[i], "ids": plain[i]} for i in range(SHOWN)]}


def main():
    if sys.argv[1:] == []:
        for family in FAMILIES:
            train(family)
    made = json.dumps({family: expected(family) for family in FAMILIES}, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n"
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if (HERE / "expected.json").read_text() == made else "expected.json is not what the package makes")
    (HERE / "expected.json").write_text(made)


if __name__ == "__main__":
    main()
