#!/usr/bin/env python3
"""Writes llama3/beams.json by Hugging Face's transformers (5.23): what generate finds with three beams behind each sample of expected.json, in
float32, for several length penalties and end tokens: python3 beams.py"""
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent / "llama3"
CASES = [(20, 1.0, False, False), (20, 0.0, False, True), (20, 2.0, True, True), (12, 1.0, False, True)]


def search(model, prompt, tokens, **more):
    """The answers of three beams, and their scores."""
    ids = torch.tensor([prompt])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, num_beams=3, num_return_sequences=3,
                           do_sample=False, pad_token_id=0, return_dict_in_generate=True, output_scores=True, **more)
    return [s[len(prompt):] for s in found.sequences.tolist()], found.sequences_scores.tolist()


def main():
    """All samples and cases."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    out = []
    for prompt in json.loads((FOLDER / "expected.json").read_text())["samples"]:
        often = search(model, prompt, 20, eos_token_id=None)[0][0][8]  # a token that beams come to
        for tokens, penalty, early, ends in CASES:
            end = often if ends else None
            texts, scores = search(model, prompt, tokens, length_penalty=penalty, early_stopping=early, eos_token_id=end)
            texts = [t[:t.index(end) + 1] if end in t else t for t in texts]
            out.append({"prompt": prompt, "max_tokens": tokens, "length_penalty": penalty, "early_stopping": early,
                        "end_tokens": [end] if ends else [], "texts": texts, "scores": [round(s, 6) for s in scores]})
    (FOLDER / "beams.json").write_text(json.dumps(out) + "\n")


main()
