#!/usr/bin/env python3
"""Golden numbers for heddle's Qwen-2, Qwen-3, Mistral, Mixtral and DeepSeek-V3: tiny models of Hugging Face transformers, trained for two steps.

Needs torch and transformers (from PyPI: made with 2.15 and 5.23). Writes qwen2_golden.bin, qwen3_golden.bin, mistral_golden.bin, mixtral_golden.bin, qwen3_moe_golden.bin, smollm3_golden.bin, granite_golden.bin, phi3_golden.bin,
llama_yarn_golden.bin, olmo2_golden.bin, gemma3_golden.bin, gemma2_golden.bin, gpt_oss_golden.bin, gpt2_untied_golden.bin, deepseek_golden.bin, deepseek_dense_golden.bin, deepseek_plain_golden.bin and deepseek_v2_golden.bin beside this file; the README says what is in them. Run without arguments to write, with --check to compare a fresh run with the
committed files; names of families after that take these only.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
import transformers

from llama_golden import decode, difference, encode

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, BATCH, LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 2, 4, 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.5
THETA, NORM_EPS = 1000.0, {"deepseek": 1e-5, "deepseek_dense": 1e-5, "deepseek_plain": 1e-5, "deepseek_v2": 1e-5}
YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "beta_fast": 2, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.2,
        "original_max_position_embeddings": 8}

# Odd sizes. Qwen-2 is tied; the heads of Qwen-3 have more elements than width / heads; Mixtral takes two of five experts; DeepSeek-V3
# three of six in two of three groups, with two shared ones. The norms of its latent vectors keep their own epsilon.
SIZES = {
    "qwen2": dict(layers=2, heads=6, kv_heads=2, width=24, ffn=19, context=9, vocabulary=37, head_dim=4, tied=True),
    "qwen3": dict(layers=2, heads=4, kv_heads=2, width=20, ffn=19, context=9, vocabulary=37, head_dim=6, tied=False),
    "mistral": dict(layers=2, heads=6, kv_heads=2, width=24, ffn=19, context=9, vocabulary=37, head_dim=4, tied=False, window=4),
    "mixtral": dict(layers=2, heads=6, kv_heads=2, width=24, ffn=11, context=9, vocabulary=37, head_dim=4, tied=False, experts=5, chosen=2),
    "qwen3_moe": dict(layers=2, heads=4, kv_heads=2, width=20, ffn=11, context=9, vocabulary=37, head_dim=6, tied=False, experts=5, chosen=2),
    "smollm3": dict(layers=3, heads=6, kv_heads=2, width=24, ffn=28, context=9, vocabulary=37, head_dim=4, tied=True),
    "granite": dict(layers=2, heads=6, kv_heads=2, width=24, ffn=19, context=9, vocabulary=37, head_dim=4, tied=False),
    # A window, half of a head that rotates, with the factors of long sequences.
    "phi3": dict(layers=2, heads=6, kv_heads=2, width=36, ffn=19, context=9, vocabulary=37, head_dim=6, tied=False, window=5, deviation=0.1,
                 rotary={"rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": 0.67, "short_factor": [1.0, 1.1],
                         "long_factor": [1.5, 4.0], "original_max_position_embeddings": 4}),
    "olmo2": dict(layers=2, heads=6, kv_heads=2, width=24, ffn=19, context=9, vocabulary=37, head_dim=4, tied=False),
    # Layer 1 sees all tokens.
    "gemma3": dict(layers=3, heads=4, kv_heads=2, width=20, ffn=19, context=9, vocabulary=37, head_dim=6, tied=True, window=4,
                   rotary={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5},
                           "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
    "gemma2": dict(layers=3, heads=4, kv_heads=2, width=20, ffn=19, context=9, vocabulary=37, head_dim=6, tied=True, window=4),
    # Layer 1 sees all tokens; two of five experts.
    "gpt_oss": dict(layers=3, heads=6, kv_heads=2, width=20, ffn=11, context=9, vocabulary=37, head_dim=6, tied=False, window=4, experts=5, chosen=2, deviation=0.2,
                    rotary={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False,
                            "original_max_position_embeddings": 8}),
    "gpt2_untied": dict(layers=2, heads=3, kv_heads=3, width=18, ffn=72, context=9, vocabulary=37, head_dim=6, tied=False),
    "llama_yarn": dict(layers=2, heads=4, kv_heads=2, width=32, ffn=19, context=9, vocabulary=37, head_dim=8, tied=False, deviation=0.15,
                       rotary={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8}),
    "deepseek": dict(layers=2, heads=3, kv_heads=3, width=22, ffn=9, context=9, vocabulary=37, head_dim=4, tied=False, experts=6, chosen=3,
                     latent=dict(q_lora_rank=10, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5),
                     router=dict(n_shared_experts=2, n_group=3, topk_group=2)),
    # One leading block without experts and YaRN; two of them, and queries that are a product of the stream.
    "deepseek_dense": dict(layers=3, heads=3, kv_heads=3, width=22, ffn=9, context=9, vocabulary=37, head_dim=8, tied=False, experts=6, chosen=3,
                           latent=dict(q_lora_rank=10, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=8, v_head_dim=5),
                           router=dict(n_shared_experts=2, n_group=3, topk_group=2), dense=dict(first_k_dense_replace=1, intermediate_size=17),
                           rotary=YARN),
    "deepseek_plain": dict(layers=3, heads=3, kv_heads=3, width=22, ffn=9, context=9, vocabulary=37, head_dim=4, tied=False, experts=6, chosen=3,
                           latent=dict(q_lora_rank=0, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5),
                           router=dict(n_shared_experts=1, n_group=1, topk_group=1), dense=dict(first_k_dense_replace=2, intermediate_size=17)),
    # Softmax over all experts, groups by their best.
    "deepseek_v2": dict(layers=3, heads=3, kv_heads=3, width=21, ffn=9, context=9, vocabulary=37, head_dim=8, tied=False, experts=6, chosen=3,
                        latent=dict(q_lora_rank=10, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5),
                        router=dict(n_shared_experts=2, n_group=3, topk_group=2), dense=dict(first_k_dense_replace=1, intermediate_size=17),
                        rotary=YARN),
}
CLASSES = {"qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
           "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
           "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
           "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
           "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
           "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
           "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM),
           "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
           "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
           "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
           "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
           "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
           "gpt2_untied": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
           "llama_yarn": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
           "deepseek": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM)}
CLASSES["deepseek_v2"] = (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM)
CLASSES["deepseek_dense"] = CLASSES["deepseek_plain"] = CLASSES["deepseek"]
# Files with a record of config.json, for tests that know no family by its type.
WITH_CONFIG = ("qwen3_moe", "smollm3", "granite", "phi3", "llama_yarn", "olmo2", "gemma3", "gemma2", "gpt_oss", "gpt2_untied")


def make_model(family):
    s = SIZES[family]
    config_class, model_class = CLASSES[family]
    more = dict(num_local_experts=s["experts"], num_experts_per_tok=s["chosen"]) if "experts" in s else {}
    if family == "qwen3_moe":
        more = dict(num_experts=s["experts"], num_experts_per_tok=s["chosen"], moe_intermediate_size=s["ffn"], norm_topk_prob=True)
    if family == "smollm3":
        more = dict(no_rope_layer_interval=2, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    if family == "granite":
        more = dict(embedding_multiplier=3.5, attention_multiplier=0.3, residual_multiplier=0.6, logits_scaling=1.7)
    if family == "gemma3":
        more = dict(sliding_window_pattern=2, query_pre_attn_scalar=5, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    if family == "gemma2":
        more = dict(query_pre_attn_scalar=5, attn_logit_softcapping=2.5, final_logit_softcapping=7.0, pad_token_id=None, bos_token_id=2, eos_token_id=1)
    if family == "gpt_oss":
        more.update(pad_token_id=None, eos_token_id=2)
    if family == "olmo2":
        more = dict(pad_token_id=None, eos_token_id=2)
    if family == "phi3":
        more = dict(pad_token_id=None, bos_token_id=1, eos_token_id=2, original_max_position_embeddings=4)
    if "window" in s:
        more["sliding_window"] = s["window"]
    deepseek = family.startswith("deepseek")
    dense = s.get("dense", dict(first_k_dense_replace=0, intermediate_size=s["ffn"]))
    if deepseek:
        latent = dict(s["latent"], q_lora_rank=s["latent"]["q_lora_rank"] or None)
        more = dict(num_experts_per_tok=s["chosen"], n_routed_experts=s["experts"], moe_intermediate_size=s["ffn"],
                    first_k_dense_replace=dense["first_k_dense_replace"], routed_scaling_factor=1.7, **latent, **s["router"],
                    **(dict(topk_method="group_limited_greedy") if family == "deepseek_v2" else dict(norm_topk_prob=True)))
    config = transformers.GPT2Config(
        n_layer=s["layers"], n_head=s["heads"], n_embd=s["width"], n_positions=s["context"], vocab_size=s["vocabulary"], use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=s["tied"]) if family == "gpt2_untied" else config_class(
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"],
        hidden_size=s["width"], intermediate_size=dense["intermediate_size"], max_position_embeddings=s["context"],
        vocab_size=s["vocabulary"], tie_word_embeddings=s["tied"], rms_norm_eps=NORM_EPS.get(family, 1e-6),
        rope_parameters=s.get("rotary", {"rope_type": "default", "rope_theta": THETA}), use_cache=False, attention_dropout=0.0,
        **({} if deepseek else {"head_dim": s["head_dim"]}), **more)
    config._attn_implementation = config._experts_implementation = "eager"
    model = model_class(config)
    model.train()
    # Larger than Qwen's own initialisation (less so for DeepSeek-V3, whose second step would else multiply the noise of the first), norms away from one, biases away from zero: every term of a gradient matters.
    g = torch.Generator().manual_seed(987)
    with torch.no_grad():
        for name, p in model.named_parameters():
            mean = 1.0 if "norm" in name and not family.startswith("gemma") or ".ln_" in name and name.endswith(".weight") else 0.0
            p.copy_(torch.randn(p.shape, generator=g) * s.get("deviation", 0.2 if deepseek else 0.3) + mean)
        for name, bias in selection_biases(model).items():
            bias.copy_(torch.randn(bias.shape, generator=g) * 0.2)
    return model


def selection_biases(model):
    """What is added to scores where experts are chosen: saved with the weights, and not trained."""
    return {name: t for name, t in model.named_buffers() if name.endswith("e_score_correction_bias")}


def batches(family):
    """Tokens and already shifted targets of each step, [BATCH, context]; a few targets of step 2 are ignored (-100)."""
    s = SIZES[family]
    g = torch.Generator().manual_seed(988)
    result = []
    for step in range(STEPS):
        text = torch.randint(0, s["vocabulary"], (BATCH, s["context"] + 1), generator=g)
        tokens, targets = text[:, :-1].clone(), text[:, 1:].clone()
        if step == 1:
            targets[0, :5] = -100
            targets[3, -1] = -100
        result.append((tokens, targets))
    return result


def by_name(named, plain_names):
    """Tensors by heddle's names: transformers keeps the experts of a block in two tensors, heddle in three of [experts * rows, columns]. Of a Mixtral's
    (not `plain_names`) files have other names."""
    result = {}
    turned = any(name.endswith("experts.gate_up_proj_bias") for name in named)
    for name, t in named.items():
        t = t.detach()
        name = name.removeprefix("transformer.")
        at = name if plain_names else name.replace(".mlp.gate.", ".block_sparse_moe.gate.")
        if ".experts." in name and name.endswith(("gate_up_proj_bias", "down_proj_bias")):  # GPT-OSS: gates and factors take turns
            at = name.split(".experts.")[0] + ".experts.*."
            for part, columns in (("down_proj", t),) if "down" in name else (("gate_proj", t[:, ::2]), ("up_proj", t[:, 1::2])):
                result[at + part + ".bias"] = columns.flatten().clone()
        elif turned and ".experts." in name:  # matrices are [in, out] there
            at = name.split(".experts.")[0] + ".experts.*."
            for part, columns in (("down_proj", t),) if "down" in name else (("gate_proj", t[..., ::2]), ("up_proj", t[..., 1::2])):
                result[at + part + ".weight"] = columns.transpose(1, 2).flatten(0, 1).clone()
        elif plain_names and name.endswith(".experts.gate_up_proj"):
            at = name.replace("experts.gate_up_proj", "experts.*.")
            for part, rows in zip(("gate_proj", "up_proj"), t.chunk(2, dim=1)):
                result[at + part + ".weight"] = rows.flatten(0, 1).clone()
        elif plain_names and name.endswith(".experts.down_proj"):
            result[name.replace("experts.down_proj", "experts.*.down_proj.weight")] = t.flatten(0, 1).clone()
        elif name.endswith(".experts.gate_up_proj"):
            at = name.replace(".mlp.experts.gate_up_proj", ".block_sparse_moe.experts.*")
            gate, up = t.chunk(2, dim=1)
            result[at + ".w1.weight"] = gate.flatten(0, 1).clone()
            result[at + ".w3.weight"] = up.flatten(0, 1).clone()
        elif name.endswith(".experts.down_proj"):
            at = name.replace(".mlp.experts.down_proj", ".block_sparse_moe.experts.*")
            result[at + ".w2.weight"] = t.flatten(0, 1).clone()
        elif name.endswith(".qkv_proj.weight"):
            kv = (t.shape[0] - t.shape[1]) // 2  # as many rows of queries as columns
            for part, rows in zip("qkv", t.split([t.shape[1], kv, kv])):
                result[name.replace("qkv_proj", part + "_proj")] = rows.clone()
        elif name.endswith(".mlp.gate_up_proj.weight"):
            for part, rows in zip(("gate_proj", "up_proj"), t.chunk(2)):
                result[name.replace("gate_up_proj", part)] = rows.clone()
        else:
            result[at] = t.clone()
    return result


def make_records(family):
    s = SIZES[family]
    model = make_model(family)
    plain_names = family != "mixtral"
    w = dict(model.named_parameters())
    assert ("lm_head.weight" in w) != s["tied"]
    records = [("config", torch.tensor([s["layers"], s["heads"], s["kv_heads"], s["width"], s["ffn"], s["context"],
                                        s["vocabulary"], BATCH, s["head_dim"]] +
                                       ([s["experts"], s["chosen"]] if "experts" in s else []) +
                                       [*s.get("latent", {}).values(), *s.get("router", {}).values(), *s.get("dense", {}).values()], dtype=torch.int32)),
               ("rotary", torch.tensor([THETA, NORM_EPS.get(family, 1e-6)], dtype=torch.float64)),
               ("optimizer", torch.tensor([LR, BETAS[0], BETAS[1], EPS, WEIGHT_DECAY, MAX_NORM], dtype=torch.float64))]
    if family in WITH_CONFIG:
        text = json.dumps(dict(json.loads(model.config.to_json_string(use_diff=False)), architectures=[type(model).__name__]))
        records.append(("config.json", torch.tensor(list(text.encode()), dtype=torch.int32)))
    for step, (tokens, targets) in enumerate(batches(family), start=1):
        records.append((f"step{step}.tokens", tokens.to(torch.int32)))
        records.append((f"step{step}.targets", targets.to(torch.int32)))
    records += [("initial." + name, t) for name, t in by_name(w, plain_names).items()]
    records += [("initial." + name, t.clone()) for name, t in selection_biases(model).items()]
    decays = {name: t.dim() >= 2 and not name.endswith("bias") for name, t in w.items()}
    groups = [{"params": [t for name, t in w.items() if decays[name]], "weight_decay": WEIGHT_DECAY},
              {"params": [t for name, t in w.items() if not decays[name]], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    for step, (tokens, targets) in enumerate(batches(family), start=1):
        at = f"f32.step{step}."
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits
        loss = F.cross_entropy(logits.view(-1, s["vocabulary"]), targets.reshape(-1), ignore_index=-100)
        loss.backward()
        gradients = by_name({name: t.grad for name, t in w.items()}, plain_names)
        norm = torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM)
        assert norm > MAX_NORM, "the data must exercise clipping"
        optimizer.step()
        records.append((at + "loss", loss.detach().reshape(1)))
        records.append((at + "gradient_norm", norm.detach().reshape(1)))
        if step == 1:
            records.append((at + "last_logits", logits.detach()[:, -1].contiguous()))
        records += [(at + "gradient." + name, t) for name, t in gradients.items()]
        records += [(at + "weight." + name, t) for name, t in by_name(w, plain_names).items()]
    return records


def balance_records():
    """The load-balancing loss of one layer's logits, seven rows of which each takes two of five experts, and its gradient."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
    logits = torch.randn((7, 5), generator=torch.Generator().manual_seed(989), requires_grad=True)
    loss = load_balancing_loss_func((logits,), num_experts=5, top_k=2)
    loss.backward()
    return [("balance.logits", logits.detach()), ("balance.loss", loss.detach().reshape(1)), ("balance.gradient", logits.grad)]


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    only = [a for a in sys.argv[1:] if not a.startswith("--")]
    for family in only or SIZES:
        records = make_records(family) + (balance_records() if family == "mixtral" else [])
        data = encode(records)
        numbers = dict(records)
        print(f"{family}: torch {torch.__version__}, transformers {transformers.__version__}: {len(records)} records, "
              f"{len(data)} bytes")
        for step in range(1, STEPS + 1):
            print(f"step {step}: loss {float(numbers[f'f32.step{step}.loss']):.9f}, gradient norm "
                  f"{float(numbers[f'f32.step{step}.gradient_norm']):.9f}")
        file = os.path.join(HERE, f"{family}_golden.bin")
        if "--check" in sys.argv[1:]:
            with open(file, "rb") as f:
                committed = f.read()
            if committed == data:
                print("identical to the committed file")
                continue
            single, _ = difference(records, decode(committed))
            print(f"differs from the committed file by at most {single:.2e}")
            if single >= 2e-6:
                sys.exit(1)
        else:
            with open(file, "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
