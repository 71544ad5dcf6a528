#!/usr/bin/env python3
"""Writes tiny models as GPTQ, AWQ, compressed-tensors and fp8 with one scale have them, and what transformers (5.24, torch 2.15) computes with
the same numbers: python3 make_quantized.py [name ...]

Codes, scales and zero points are made here from random weights, and packed bit by bit; expected.json, as that of make.py, is of a model whose
weights are (code - zero point) x scale in float32, and has of each such matrix the sum of w[k] (k mod 97 + 1) over its elements. Where the package compressed-tensors is there, it unpacks its folders, and transformers loads
them and those of fp8; both must have the same numbers."""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

HERE = Path(__file__).parent
ROPE = {"rope_type": "default", "rope_theta": 1000.0}
COMMON = {"num_hidden_layers": 3, "max_position_embeddings": 32, "rope_parameters": ROPE}
MODELS = {
    # Groups by the order of activations; queries, keys and values in one tensor.
    "phi3_gptq": (Phi3ForCausalLM, Phi3Config(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=43,
                                              original_max_position_embeddings=32, pad_token_id=None, bos_token_id=1, eos_token_id=2, **COMMON)),
    # 3 bits, zero points as they are, a bias of zeros.
    "llama_gptq3": (LlamaForCausalLM, LlamaConfig(hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
                                                  vocab_size=41, **COMMON)),
    "qwen2_awq": (Qwen2ForCausalLM, Qwen2Config(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=43,
                                                tie_word_embeddings=True, **COMMON)),
    # Rows that end inside a word.
    "llama_int4": (LlamaForCausalLM, LlamaConfig(hidden_size=36, intermediate_size=24, num_attention_heads=6, num_key_value_heads=3, vocab_size=41,
                                                 **COMMON)),
    "qwen3_int8": (Qwen3ForCausalLM, Qwen3Config(hidden_size=20, intermediate_size=17, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                                                 vocab_size=41, tie_word_embeddings=False, **COMMON)),
    "llama_fp8_tensor": (LlamaForCausalLM, LlamaConfig(hidden_size=24, intermediate_size=17, num_attention_heads=4, num_key_value_heads=2,
                                                       vocab_size=41, **COMMON)),
    "qwen2_fp8_channel": (Qwen2ForCausalLM, Qwen2Config(hidden_size=24, intermediate_size=17, num_attention_heads=4, num_key_value_heads=2,
                                                        vocab_size=41, tie_word_embeddings=False, **COMMON)),
    # Each 32 numbers of E2M1 have an exponent.
    "qwen3_mxfp4": (Qwen3ForCausalLM, Qwen3Config(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                                  vocab_size=41, tie_word_embeddings=True, **COMMON)),
    # The same of all experts of a block in one tensor.
    "gpt_oss_mxfp4": (GptOssForCausalLM, GptOssConfig(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                                      vocab_size=41, num_local_experts=5, num_experts_per_tok=2, sliding_window=4,
                                                      num_hidden_layers=2, max_position_embeddings=64,
                                                      rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 32.0,
                                                                       "beta_slow": 1.0, "truncate": False,
                                                                       "original_max_position_embeddings": 16})),
}
SEEDS = {name: 300 + i for i, name in enumerate(MODELS)}
LENGTHS = [9, 4]


def integers(w, bits, group, symmetric, dtype, groups=None, least_zero=0):
    """Codes [out, in] of 0 and more, zero points and scales [out, group], and the numbers that they stand for."""
    out, columns = w.shape
    group = group or columns
    groups = torch.arange(columns) // group if groups is None else groups
    count, most = int(groups.max()) + 1, 2 ** bits - 1
    zeros, scales = torch.full((out, count), 2 ** (bits - 1)), torch.ones(out, count, dtype=dtype)
    for g in range(count):
        part = w[:, groups == g]
        low, high = part.min(1).values.clamp(max=0), part.max(1).values.clamp(min=0)
        if symmetric:
            scales[:, g] = (torch.maximum(-low, high) / (most / 2)).to(dtype)
        else:
            scales[:, g] = ((high - low) / most).to(dtype)
            zeros[:, g] = (-low / scales[:, g].float()).round().clamp(least_zero, most).long()
    s, z = scales.float()[:, groups], zeros[:, groups]
    codes = (w / s + z).round().clamp(0, most).long()
    return codes, zeros, scales, (codes - z).float() * s


def words(values, bits, dim, order=None):
    """Numbers one behind the other along a dimension, lowest bits first, in words of 32; the last is filled with zeros."""
    v = values.movedim(dim, 0)
    if order is not None:
        v = v.reshape(-1, len(order), *v.shape[1:])[:, order].reshape(v.shape)
    each = 32 if bits == 3 else 32 // bits
    v = torch.nn.functional.pad(v, (0, 0, 0, -len(v) % each))
    stream = (v[:, None] >> torch.arange(bits)[None, :, None] & 1).reshape(-1, 32, v.shape[1])
    packed = (stream << torch.arange(32)[None, :, None]).sum(1)
    packed = torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32)
    return packed.movedim(0, dim).contiguous()


def gptq(layer, w, stored, bits, group, old):
    """`old`: groups in the order of activations, and each zero point less one."""
    groups = torch.empty(w.shape[1], dtype=torch.long)
    groups[torch.randperm(w.shape[1]) if old else torch.arange(w.shape[1])] = torch.arange(w.shape[1]) // group
    codes, zeros, scales, numbers = integers(w, bits, group, False, torch.float16, groups, 1 if old else 0)
    stored[layer + ".qweight"] = words(codes.T, bits, 0)
    stored[layer + ".qzeros"] = words(zeros.T - (1 if old else 0), bits, 1)
    stored[layer + ".scales"] = scales.T.contiguous()
    stored[layer + ".g_idx"] = groups.to(torch.int32)
    if not old:
        stored[layer + ".bias"] = torch.zeros(w.shape[0], dtype=torch.float16)
    return numbers


def awq(layer, w, stored):
    codes, zeros, scales, numbers = integers(w, 4, 8, False, torch.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    stored[layer + ".qweight"] = words(codes.T, 4, 1, order)
    stored[layer + ".qzeros"] = words(zeros.T, 4, 1, order)
    stored[layer + ".scales"] = scales.T.contiguous()
    return numbers


def int4(layer, w, stored):
    codes, zeros, scales, numbers = integers(w, 4, 12, False, torch.float32)
    stored[layer + ".weight_packed"] = words(codes, 4, 1)
    stored[layer + ".weight_zero_point"] = words(zeros, 4, 0)
    stored[layer + ".weight_scale"] = scales
    stored[layer + ".weight_shape"] = torch.tensor(w.shape)
    return numbers


def int8(layer, w, stored):
    scales = (w.abs().max(1, keepdim=True).values / 127).to(torch.bfloat16)
    codes = (w / scales.float()).round().clamp(-128, 127).to(torch.int8)
    stored[layer + ".weight"], stored[layer + ".weight_scale"] = codes, scales
    return codes.float() * scales.float()


def fp8(layer, w, stored, each_row):
    scales = (w.abs().amax(1, keepdim=True) if each_row else w.abs().max()) / 448
    codes = (w / scales).to(torch.float8_e4m3fn)
    stored[layer + ".weight"], stored[layer + ".weight_scale"] = codes, scales
    if not each_row:
        stored[layer + ".input_scale"] = torch.tensor(0.01)
    return codes.float() * scales


def mxfp4(layer, w, stored):
    """OCP Microscaling Formats 1.0: exponents of 32 elements by their greatest, and the nearest E2M1 of each, low bits of a byte first."""
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    blocks = w.reshape(w.shape[0], -1, 32)
    exponents = blocks.abs().amax(2).log2().floor() - 2
    scaled = blocks / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - sizes).abs().argmin(-1)
    numbers = (sizes[codes] * scaled.sign() * exponents.exp2()[..., None]).reshape(w.shape)
    codes = (codes + 8 * (scaled < 0)).reshape(w.shape).to(torch.uint8)
    stored[layer + ".weight_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
    stored[layer + ".weight_scale"] = (exponents + 127).to(torch.uint8)
    return numbers


def stacked_mxfp4(tensor, w, stored):
    """Of w [experts, in, out] as [experts, out, in]; what the matrices stand for is given so, too."""
    parts = [{} for _ in w]
    numbers = torch.stack([mxfp4("", m.T.contiguous(), part) for m, part in zip(w, parts)])
    scales = torch.stack([part[".weight_scale"] for part in parts])
    stored[tensor + "_blocks"] = torch.stack([part[".weight_packed"] for part in parts]).reshape(*scales.shape, 16)
    stored[tensor + "_scales"] = scales
    return numbers


def compressed(form, **weights):
    defaults = {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None, "symmetric": True, "dynamic": False, "actorder": None,
                "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "global_compression_ratio": None, "kv_cache_scheme": None, "sparsity_config": {}, "version": "0.13.0",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": defaults | weights, "input_activations": None,
                                          "output_activations": None, "format": form}}}


FORMS = {
    "phi3_gptq": (lambda *a: gptq(*a, 4, 8, True), {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True, "sym": False,
                                                    "damp_percent": 0.1, "true_sequential": True, "checkpoint_format": "gptq"}),
    "llama_gptq3": (lambda *a: gptq(*a, 3, 32, False), {"quant_method": "gptq", "bits": 3, "group_size": 32, "desc_act": False, "sym": False,
                                                        "checkpoint_format": "gptq_v2", "pack_dtype": "int32",
                                                        "meta": {"quantizer": ["gptqmodel:2.2.0"]}}),
    "qwen2_awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}),
    "llama_int4": (int4, compressed("pack-quantized", num_bits=4, strategy="group", group_size=12, symmetric=False)),
    "qwen3_int8": (int8, compressed("int-quantized")),
    "llama_fp8_tensor": (lambda *a: fp8(*a, False), {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}),
    "qwen2_fp8_channel": (lambda *a: fp8(*a, True), compressed("float-quantized", type="float")),
    "qwen3_mxfp4": (mxfp4, compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32)),
    "gpt_oss_mxfp4": (stacked_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                        "model.embed_tokens", "lm_head"]}),
}


def compare(name, folder, stored, numbers):
    """With what compressed-tensors and transformers make of the folder."""
    if name == "gpt_oss_mxfp4":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors
        for at in [k[:-len("_blocks")] for k in stored if k.endswith("_blocks")]:
            w = convert_moe_packed_tensors(stored[at + "_blocks"], stored[at + "_scales"], dtype=torch.float32)
            if w.shape != numbers[at].shape:
                w = w.transpose(1, 2)
            assert torch.equal(w, numbers[at]), at
        return "convert_moe_packed_tensors: equal"
    try:
        from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    except ImportError:
        try:
            from compressed_tensors.compressors.quantized_compressors.pack_quantized import unpack_from_int32
        except ImportError:
            return "compressed-tensors is not there"
    said = []
    if name == "llama_int4":
        for at in [k[:-len(".weight_packed")] for k in stored if k.endswith(".weight_packed")]:
            shape = torch.Size(stored[at + ".weight_shape"].tolist())
            scales = stored[at + ".weight_scale"]
            q = unpack_from_int32(stored[at + ".weight_packed"], 4, shape)
            z = unpack_from_int32(stored[at + ".weight_zero_point"], 4, scales.shape, packed_dim=0)
            assert torch.equal((q.float() - z.float().repeat_interleave(12, 1)) * scales.repeat_interleave(12, 1), numbers[at + ".weight"]), at
        said.append("unpack_from_int32: equal")
    if name == "qwen3_mxfp4":
        from compressed_tensors.compressors.mx_utils import decompress_mx_scale
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        for at in [k[:-len(".weight_packed")] for k in stored if k.endswith(".weight_packed")]:
            w = numbers[at + ".weight"]
            scales = decompress_mx_scale(stored[at + ".weight_scale"]).float().repeat_interleave(32, 1)
            assert torch.equal(unpack_fp4_from_uint8(stored[at + ".weight_packed"], *w.shape, dtype=torch.float32) * scales, w), at
        said.append("unpack_fp4_from_uint8: equal")
    if "int" in name or name.endswith("channel"):
        from transformers import CompressedTensorsConfig
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False))
            worst = 0
            for at, w in model.state_dict().items():
                if at in numbers and at.endswith("_proj.weight"):
                    worst = max(worst, (w.float() - numbers[at]).abs().max().item() / numbers[at].abs().max().item())
            said.append(f"transformers' weights: {worst:.2g} of the greatest away")
        except Exception as e:  # what it cannot load is said
            said.append(f"transformers: {type(e).__name__}: {str(e)[:200]}")
    return "; ".join(said)


def is_quantized(name, at):
    return at.endswith("_proj") if name == "gpt_oss_mxfp4" else at.endswith("_proj.weight")


def main():
    for name, (kind, config) in MODELS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(SEEDS[name])
        model = kind(config).eval()
        if name == "gpt_oss_mxfp4":
            model.set_experts_implementation("eager")  # others have no products in double
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (1.0 if p.dim() == 1 and (p == 1).all() else 0.0))
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        quantize, says = FORMS[name]
        stored, numbers = {}, {}
        for at, w in load_file(folder / "model.safetensors").items():
            if is_quantized(name, at):
                numbers[at] = quantize(at if at.endswith("_proj") else at[:-len(".weight")], w, stored)
            else:
                stored[at] = numbers[at] = w
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        about = json.loads((folder / "config.json").read_text())
        about["quantization_config"] = says
        (folder / "config.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
        with torch.no_grad():
            for at, p in model.named_parameters():
                p.copy_(numbers[at].transpose(1, 2) if p.dim() == 3 else numbers[at])
        samples = [torch.randint(config.vocab_size, (n,)) for n in LENGTHS]
        out = {"samples": [s.tolist() for s in samples], "last_logits": [],
               "sums": {at: (w.double().flatten() * (torch.arange(w.numel()) % 97 + 1)).sum().item() for at, w in numbers.items()
                        if is_quantized(name, at)}}
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
        for file in folder.iterdir():
            file.chmod(0o644)
        print(name, out["loss_f32"], out["loss_f64"], sum(f.stat().st_size for f in folder.iterdir()), compare(name, folder, stored, numbers))


if __name__ == "__main__":
    sys.exit(main())
