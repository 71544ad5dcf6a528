#!/usr/bin/env python3
"""Writes blocks.json by Hugging Face's transformers (5.24): losses and last logits (float32) of the models beside it with some of their blocks
alone, a slice of the ModuleList: python3 blocks.py. With a folder, and the blocks that it was converted with, loads that folder by
transformers and compares it with the slice: python3 blocks.py FOLDER MODEL BLOCKS"""
import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
CASES = {"gpt2": ["0,2", "1-2", "2"], "llama3": ["0,2", "0-1", "1"], "llama_tied": ["1"], "qwen2": ["0,2", "1-2"], "qwen3": ["0,2", "1"],
         "gemma3": ["0-2", "0,2", "0-1,3"], "smollm3": ["0-1"], "deepseek_dense": ["1-3", "0,3"], "phi3": ["1"], "mixtral": ["1"]}


def numbers(text):
    """The blocks of "0-3,8-11"."""
    ranges = [part.split("-") for part in text.split(",")]
    return [b for r in ranges for b in range(int(r[0]), int(r[-1]) + 1)]


def sliced(name, blocks):
    """A model with these blocks; caches are off, as layers keep their own numbers."""
    config = transformers.AutoConfig.from_pretrained(HERE / name)
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, config=config, dtype=torch.float32).eval()
    inner = model.transformer if name == "gpt2" else model.model
    key = "h" if name == "gpt2" else "layers"
    setattr(inner, key, torch.nn.ModuleList([getattr(inner, key)[b] for b in numbers(blocks)]))
    # Models that choose a mask or a table by the layer's place read the kinds of the configuration.
    for kinds in ("layer_types", "no_rope_layers"):
        if getattr(model.config, kinds, None):
            setattr(model.config, kinds, [getattr(model.config, kinds)[b] for b in numbers(blocks)])
    model.config.num_hidden_layers = len(numbers(blocks))
    return model


def answers(model, samples):
    """Mean loss and the logits of each last position."""
    total, count, logits = 0.0, 0, []
    with torch.no_grad():
        for s in samples:
            s = torch.tensor(s)
            found = model(input_ids=s[None], labels=s[None], use_cache=False)
            total += found.loss.item() * (len(s) - 1)
            count += len(s) - 1
            logits.append([round(x, 9) for x in found.logits[0, -1].double().tolist()])
    return {"loss": total / count, "last_logits": logits}


def samples_of(name):
    return json.loads((HERE / name / "expected.json").read_text())["samples"]


def main():
    """All models and blocks, or the folder that is named."""
    if sys.argv[1:]:
        folder, name, blocks = sys.argv[1:]
        config = transformers.AutoConfig.from_pretrained(folder)
        config._experts_implementation = "eager"
        got, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
        wrong = {what: names for what, names in loading.items() if names}
        got, expected = answers(got.eval(), samples_of(name)), answers(sliced(name, blocks), samples_of(name))
        far = max(abs(a - b) for x, y in zip(got["last_logits"], expected["last_logits"]) for a, b in zip(x, y))
        print(name, blocks, "layers", config.num_hidden_layers, "loss", got["loss"], "logits differ by", far, wrong or "all weights loaded")
        return int(bool(wrong) or far > 1e-6 or config.num_hidden_layers != len(numbers(blocks)))
    out = [{"model": name, "blocks": blocks, **answers(sliced(name, blocks), samples_of(name))}
           for name, cases in CASES.items() for blocks in cases]
    (HERE / "blocks.json").write_text("[" + ",\n".join(json.dumps(case) for case in out) + "]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
