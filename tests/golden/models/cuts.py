#!/usr/bin/env python3
"""Writes cuts.json by Hugging Face's transformers (5.24): which tensors save_pretrained puts into which file, for several limits of a file's
bytes, of the models beside it, made from their config.json: python3 cuts.py"""
import json
import tempfile
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
LIMITS = {"llama3": [30000, 9000], "gpt2": [20000, 7000], "mixtral": [20000, 9000, 4000, 700], "deepseek": [20000, 9000, 4000, 700],
          "deepseek_v2": [9000, 1500]}


def cut(model, limit):
    """The tensors of each file, in the order of files; names sorted."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=limit)
        where = json.loads((Path(folder) / "model.safetensors.index.json").read_text())["weight_map"]
    return [sorted(n for n in where if where[n] == f) for f in sorted(set(where.values()))]


def main():
    """All models and limits."""
    out = []
    for name, limits in LIMITS.items():
        for limit in limits:
            model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(HERE / name), dtype=torch.float32)
            out.append({"model": name, "bytes": limit, "files": cut(model, limit)})
    (HERE / "cuts.json").write_text(json.dumps(out, indent=0).replace("\n", "") + "\n")


if __name__ == "__main__":
    main()
