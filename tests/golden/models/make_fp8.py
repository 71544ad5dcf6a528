#!/usr/bin/env python3
"""Writes models of this folder with their matrices in 8 bits, and what transformers (5.23, torch 2.15) computes with the same numbers: python3 make_fp8.py

NAME_fp8/model.safetensors has each matrix of a linear layer but the head's as F8_E4M3, and in MATRIX_scale_inv one float32 for each block of 7 x 5
elements: the greatest of the block over 448. One block is of zeros, and one matrix stays as it was. expected.json, as that of make.py, is of the
model whose weights are the 8-bit numbers times the scales of their blocks."""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from make import generate

HERE = Path(__file__).parent
ROWS, COLUMNS = 7, 5
MODELS = {"deepseek_dense": ("deepseek_fp8", "model.layers.1.self_attn.o_proj.weight"),
          "qwen3": ("qwen3_fp8", "model.layers.1.self_attn.k_proj.weight")}


def quantize(w):
    """Codes, one scale for each block, and the numbers that they stand for."""
    rows, columns = w.shape
    scales = torch.ones(-(-rows // ROWS), -(-columns // COLUMNS))
    codes, numbers = torch.empty(w.shape, dtype=torch.float8_e4m3fn), torch.empty_like(w)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * ROWS, (i + 1) * ROWS), slice(j * COLUMNS, (j + 1) * COLUMNS))
            if w[at].abs().max() > 0:
                scales[i, j] = w[at].abs().max() / 448
            codes[at] = (w[at] / scales[i, j]).to(torch.float8_e4m3fn)
            numbers[at] = codes[at].to(torch.float32) * scales[i, j]
    return codes, scales, numbers


def main():
    for source, (name, kept) in MODELS.items():
        folder, plain = HERE / name, HERE / (name + ".plain")
        for path in (folder, plain):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        weights = load_file(HERE / source / "model.safetensors")
        stored, numbers = {}, {}
        for at, w in weights.items():
            stored[at] = numbers[at] = w
            if not at.endswith("_proj.weight") and not at.endswith("_proj_with_mqa.weight") or at == kept:
                continue
            if at == "model.layers.0.mlp.down_proj.weight":
                w[:ROWS, :COLUMNS] = 0
            stored[at], stored[at + "_scale_inv"], numbers[at] = quantize(w)
        config = json.loads((HERE / source / "config.json").read_text())
        (plain / "config.json").write_text(json.dumps(config))
        save_file(numbers, plain / "model.safetensors", metadata={"format": "pt"})
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [ROWS, COLUMNS]}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, experts_implementation="eager").eval()
        assert all(torch.equal(t, numbers[at]) for at, t in model.state_dict().items() if at in numbers)
        samples = [torch.tensor(s) for s in json.loads((HERE / source / "expected.json").read_text())["samples"]]
        out = {"samples": [s.tolist() for s in samples], "last_logits": []}
        found = [generate(model, s) for s in samples]
        out["generated"] = [tokens for tokens, _ in found]
        out["margin"] = min(margin for _, margin in found)
        for precision in ("f32", "f64"):
            m = model if precision == "f32" else model.double()
            total, count = 0.0, 0
            with torch.no_grad():
                for s in samples:
                    answer = m(input_ids=s[None], labels=s[None])
                    total += answer.loss.item() * (len(s) - 1)
                    count += len(s) - 1
                    if precision == "f32":
                        out["last_logits"].append([round(x, 9) for x in answer.logits[0, -1].double().tolist()])
            out["loss_" + precision] = total / count
        (folder / "expected.json").write_text(json.dumps(out) + "\n")
        shutil.rmtree(plain)
        for file in folder.iterdir():
            file.chmod(0o644)
        print(name, out["loss_f32"], out["loss_f64"], out["margin"], sum(f.stat().st_size for f in folder.iterdir()))


sys.exit(main())
