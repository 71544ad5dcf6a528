#!/usr/bin/env python3
"""Writes tiny, randomly initialised models by Hugging Face's transformers (5.23, torch 2.15), and what they compute: python3 make.py [name ...]

Each folder has config.json and the weights as save_pretrained writes them; expected.json has samples of tokens, the mean loss over all
targets of all samples in float32 and float64, and in float32 the logits of the last position of each sample. Where 64 more tokens fit,
"generated" has those that generate appends to each sample greedily, in float32, and "margin" the least distance of the two
greatest logits on the way."""
import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, GraniteConfig, GraniteForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Olmo2Config, Olmo2ForCausalLM, Gemma3TextConfig, Gemma3ForCausalLM, Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM)

HERE = Path(__file__).parent
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 8, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.2,
        "original_max_position_embeddings": 16}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=20, n_layer=3, n_head=4, n_positions=17, vocab_size=53, resid_pdrop=0.1)),
    "llama3": (LlamaForCausalLM,
               LlamaConfig(hidden_size=36, intermediate_size=29, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                           vocab_size=51, max_position_embeddings=128, rms_norm_eps=1e-5, rope_parameters=LLAMA3)),
    "llama_tied": (LlamaForCausalLM,
                   LlamaConfig(hidden_size=24, intermediate_size=23, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                               vocab_size=47, max_position_embeddings=32, tie_word_embeddings=True,
                               rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5})),
    "qwen2": (Qwen2ForCausalLM,
              Qwen2Config(hidden_size=24, intermediate_size=17, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                          vocab_size=41, max_position_embeddings=32, tie_word_embeddings=True,
                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "qwen3": (Qwen3ForCausalLM,
              Qwen3Config(hidden_size=20, intermediate_size=17, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=6, vocab_size=41, max_position_embeddings=32, tie_word_embeddings=False,
                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "mixtral": (MixtralForCausalLM,
                MixtralConfig(hidden_size=24, intermediate_size=11, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                              vocab_size=43, max_position_embeddings=32, num_local_experts=5, num_experts_per_tok=2,
                              rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Experts that two and four ranks share evenly; tokens may be bytes.
    "mixtral_four": (MixtralForCausalLM,
                     MixtralConfig(hidden_size=24, intermediate_size=9, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                   vocab_size=256, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
                                   rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "qwen3_moe": (Qwen3MoeForCausalLM,
                  Qwen3MoeConfig(hidden_size=20, intermediate_size=17, moe_intermediate_size=11, num_hidden_layers=3, num_attention_heads=4,
                                 num_key_value_heads=2, head_dim=6, vocab_size=43, max_position_embeddings=32, num_experts=5,
                                 num_experts_per_tok=2, norm_topk_prob=True, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Weights of choices as they are, not divided by their sum.
    "qwen3_moe_plain": (Qwen3MoeForCausalLM,
                        Qwen3MoeConfig(hidden_size=18, intermediate_size=17, moe_intermediate_size=7, num_hidden_layers=3, num_attention_heads=6,
                                       num_key_value_heads=3, head_dim=4, vocab_size=41, max_position_embeddings=32, num_experts=6,
                                       num_experts_per_tok=3, norm_topk_prob=False, tie_word_embeddings=True,
                                       rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Layer 2 without rotary positions.
    "smollm3": (SmolLM3ForCausalLM,
                SmolLM3Config(hidden_size=24, intermediate_size=17, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
                              vocab_size=43, max_position_embeddings=32, no_rope_layer_interval=3, pad_token_id=None, bos_token_id=1,
                              eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Multipliers of embeddings, scores, what blocks add and logits, none of them 1.
    "granite": (GraniteForCausalLM,
                GraniteConfig(hidden_size=24, intermediate_size=17, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                              vocab_size=43, max_position_embeddings=32, embedding_multiplier=3.5, attention_multiplier=0.3,
                              residual_multiplier=0.6, logits_scaling=1.7, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "granite_tied": (GraniteForCausalLM,
                     GraniteConfig(hidden_size=20, intermediate_size=13, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
                                   vocab_size=41, max_position_embeddings=32, embedding_multiplier=2.5, attention_multiplier=0.2,
                                   residual_multiplier=0.4, logits_scaling=1.3, tie_word_embeddings=True,
                                   rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Half of a head rotates, at every length with the factors of long sequences; heads are a product of their own.
    "phi3": (Phi3ForCausalLM,
             Phi3Config(hidden_size=36, intermediate_size=17, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                        vocab_size=43, max_position_embeddings=96, original_max_position_embeddings=3, pad_token_id=None, bos_token_id=1,
                        eos_token_id=2, rope_parameters={"rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": 0.67,
                                                         "short_factor": [1.0, 1.1], "long_factor": [1.5, 4.0]})),
    # A window, and the factors of short sequences.
    "phi3_window": (Phi3ForCausalLM,
                    Phi3Config(hidden_size=24, intermediate_size=13, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                               vocab_size=41, max_position_embeddings=96, original_max_position_embeddings=96, sliding_window=7,
                               tie_word_embeddings=True, pad_token_id=None, bos_token_id=1, eos_token_id=2,
                               rope_parameters={"rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.2, 2.3],
                                                "long_factor": [1.5, 2.0, 4.0]})),
    # Norms of all queries together and of all keys, and behind layers.
    "olmo2": (Olmo2ForCausalLM,
              Olmo2Config(hidden_size=24, intermediate_size=17, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                          vocab_size=43, max_position_embeddings=96, pad_token_id=None, eos_token_id=2,
                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Layer 2 sees all tokens, with scaled frequencies; answers go far beyond the window of the others.
    "gemma3": (Gemma3ForCausalLM,
               Gemma3TextConfig(hidden_size=20, intermediate_size=17, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                head_dim=6, vocab_size=43, max_position_embeddings=96, sliding_window=7, sliding_window_pattern=3,
                                query_pre_attn_scalar=5, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5},
                                                 "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}})),
    # Caps of scores and logits that both reach; layers 1 and 3 see all tokens.
    "gemma2": (Gemma2ForCausalLM,
               Gemma2Config(hidden_size=20, intermediate_size=17, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=6, vocab_size=43, max_position_embeddings=96, sliding_window=7, query_pre_attn_scalar=5,
                            attn_logit_softcapping=2.5, final_logit_softcapping=7.0, pad_token_id=0, bos_token_id=2, eos_token_id=1,
                            rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Sinks, biases of experts; layers 1 and 3 see all tokens.
    "gpt_oss": (GptOssForCausalLM,
                GptOssConfig(hidden_size=24, intermediate_size=11, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=6,
                             vocab_size=43, max_position_embeddings=96, sliding_window=7, num_local_experts=6, num_experts_per_tok=2,
                             pad_token_id=None, eos_token_id=2,
                             rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0,
                                              "truncate": False, "original_max_position_embeddings": 16})),
    # Frequencies by YaRN, and by NTK scaling that begins beyond all positions.
    "llama_yarn": (LlamaForCausalLM,
                   LlamaConfig(hidden_size=32, intermediate_size=17, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                               vocab_size=43, max_position_embeddings=128,
                               rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "beta_fast": 4, "beta_slow": 1,
                                                "original_max_position_embeddings": 16})),
    "qwen2_yarn": (Qwen2ForCausalLM,
                   Qwen2Config(hidden_size=24, intermediate_size=17, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                               vocab_size=41, max_position_embeddings=96, tie_word_embeddings=True,
                               rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "attention_factor": 0.9,
                                                "truncate": False, "original_max_position_embeddings": 24})),
    "qwen3_dynamic": (Qwen3ForCausalLM,
                      Qwen3Config(hidden_size=20, intermediate_size=13, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  head_dim=6, vocab_size=41, max_position_embeddings=96,
                                  rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0})),
    # Answers go far beyond the window.
    "mistral": (MistralForCausalLM,
                MistralConfig(hidden_size=24, intermediate_size=17, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                              vocab_size=43, max_position_embeddings=96, sliding_window=7,
                              rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "deepseek": (DeepseekV3ForCausalLM,
                 DeepseekV3Config(hidden_size=22, intermediate_size=17, moe_intermediate_size=9, num_hidden_layers=3, num_attention_heads=6,
                                  num_key_value_heads=6, n_shared_experts=2, n_routed_experts=6, num_experts_per_tok=3, n_group=3,
                                  topk_group=2, routed_scaling_factor=1.7, q_lora_rank=10, kv_lora_rank=7, qk_nope_head_dim=3,
                                  qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=0, vocab_size=43, max_position_embeddings=32,
                                  rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Two leading blocks without experts, and YaRN, whose factors of tables and scores are not 1.
    "deepseek_dense": (DeepseekV3ForCausalLM,
                       DeepseekV3Config(hidden_size=22, intermediate_size=17, moe_intermediate_size=9, num_hidden_layers=4, num_attention_heads=6,
                                        num_key_value_heads=6, n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=3, n_group=3,
                                        topk_group=2, routed_scaling_factor=1.7, q_lora_rank=10, kv_lora_rank=7, qk_nope_head_dim=3,
                                        qk_rope_head_dim=8, v_head_dim=5, first_k_dense_replace=2, vocab_size=43, max_position_embeddings=128,
                                        rms_norm_eps=1e-5, rope_parameters=YARN)),
    # Queries that are a product of the stream, one leading block.
    "deepseek_plain": (DeepseekV3ForCausalLM,
                       DeepseekV3Config(hidden_size=22, intermediate_size=13, moe_intermediate_size=9, num_hidden_layers=3, num_attention_heads=6,
                                        num_key_value_heads=6, n_shared_experts=2, n_routed_experts=6, num_experts_per_tok=3, n_group=1,
                                        topk_group=1, routed_scaling_factor=1.7, q_lora_rank=None, kv_lora_rank=7, qk_nope_head_dim=3,
                                        qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=1, vocab_size=43, max_position_embeddings=32,
                                        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Routers of DeepSeek-V2: softmax, the best two of three groups by their best expert; and as V2-Lite, queries of the stream, no groups.
    # Sizes are even where transformers takes pairs of elements for complex numbers.
    "deepseek_v2": (DeepseekV2ForCausalLM,
                    DeepseekV2Config(hidden_size=24, intermediate_size=17, moe_intermediate_size=9, num_hidden_layers=3, num_attention_heads=6,
                                     num_key_value_heads=6, n_shared_experts=2, n_routed_experts=6, num_experts_per_tok=3, n_group=3,
                                     topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.7, q_lora_rank=10, kv_lora_rank=8,
                                     qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5, first_k_dense_replace=1, vocab_size=43,
                                     max_position_embeddings=128, rms_norm_eps=1e-5, rope_parameters=YARN)),
    "deepseek_v2_lite": (DeepseekV2ForCausalLM,
                         DeepseekV2Config(hidden_size=18, intermediate_size=13, moe_intermediate_size=7, num_hidden_layers=3, num_attention_heads=3,
                                          num_key_value_heads=3, n_shared_experts=2, n_routed_experts=5, num_experts_per_tok=2, n_group=1,
                                          topk_group=1, topk_method="greedy", q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=4,
                                          qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=1, vocab_size=43, max_position_embeddings=32,
                                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "gpt2_long": (GPT2LMHeadModel, GPT2Config(n_embd=18, n_layer=2, n_head=3, n_positions=80, vocab_size=37)),
    # A head of its own.
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config(n_embd=18, n_layer=3, n_head=3, n_positions=80, vocab_size=37, tie_word_embeddings=False)),
    # A vocabulary of bytes, to train on texts.
    "bytes": (LlamaForCausalLM,
              LlamaConfig(hidden_size=12, intermediate_size=17, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=4, vocab_size=256, max_position_embeddings=64, tie_word_embeddings=True)),
}
SEEDS = {"gpt2": 100, "llama3": 101, "llama_tied": 102, "qwen2": 103, "qwen3": 104, "mixtral": 105, "mixtral_four": 124, "mistral": 111, "qwen3_moe": 112, "qwen3_moe_plain": 113, "smollm3": 114, "granite": 115, "granite_tied": 116, "phi3": 117, "phi3_window": 118, "llama_yarn": 119, "qwen2_yarn": 120, "qwen3_dynamic": 121, "olmo2": 122, "gemma3": 123, "gemma2": 125, "gpt_oss": 127, "deepseek": 106, "deepseek_dense": 107, "deepseek_plain": 108, "deepseek_v2": 109, "deepseek_v2_lite": 110, "gpt2_long": 105, "gpt2_untied": 126, "bytes": 105}
LENGTHS = {"bytes": [9, 4], "gpt2_long": [9, 4], "gpt2_untied": [9, 4], "gpt2": [11, 7, 2], "llama3": [13, 5, 9], "llama_tied": [6, 3], "qwen2": [8, 4], "qwen3": [7, 6], "mixtral": [9, 4], "mixtral_four": [9, 4], "mistral": [19, 4], "qwen3_moe": [9, 4], "qwen3_moe_plain": [9, 4], "smollm3": [9, 4], "granite": [9, 4], "granite_tied": [9, 4], "phi3": [9, 4], "phi3_window": [9, 4], "llama_yarn": [9, 4], "qwen2_yarn": [9, 4], "qwen3_dynamic": [9, 4], "olmo2": [9, 4], "gemma3": [9, 4], "gemma2": [9, 4], "gpt_oss": [9, 4], "deepseek": [9, 4], "deepseek_dense": [9, 4], "deepseek_plain": [9, 4], "deepseek_v2": [9, 4], "deepseek_v2_lite": [9, 4]}


NEW_TOKENS = 64


def generate(model, sample):
    """64 tokens behind a sample, and how near another was to be chosen."""
    found = model.generate(sample[None], attention_mask=torch.ones_like(sample[None]), do_sample=False, max_new_tokens=NEW_TOKENS,
                           eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True)
    best = torch.cat(found.logits).topk(2).values
    return found.sequences[0, len(sample):].tolist(), (best[:, 0] - best[:, 1]).min().item()


def main():
    """All models, or those that are named."""
    for name, (kind, config) in MODELS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(SEEDS[name])
        config._experts_implementation = "eager"  # the grouped product wants sizes of 16 bytes
        model = kind(config).eval()
        with torch.no_grad():
            for p in model.parameters():  # larger than initial weights, and no bias zero, so that every term counts
                p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (1.0 if p.dim() == 1 and (p == 1).all() else 0.0))
            for buffer_name, b in model.named_buffers():
                if buffer_name.endswith("e_score_correction_bias"):
                    b.copy_(torch.randn_like(b) * 0.2)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        # The Llama with a head of its own in several files, with an index.
        model.save_pretrained(folder, max_shard_size="30KB" if name == "llama3" else "1GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        for file in folder.iterdir():
            file.chmod(0o644)
        samples = [torch.randint(config.vocab_size, (n,)) for n in LENGTHS[name]]
        out = {"samples": [s.tolist() for s in samples], "last_logits": []}
        # Rotary positions have no end but the caller's; a table of positions has.
        if kind is not GPT2LMHeadModel or config.n_positions >= max(LENGTHS[name]) + NEW_TOKENS:
            found = [generate(model, s) for s in samples]
            out["generated"] = [tokens for tokens, _ in found]
            out["margin"] = min(margin for _, margin in found)
        for precision in ("f32", "f64"):
            m = model if precision == "f32" else model.double()
            total, count, logits = 0.0, 0, []
            with torch.no_grad():
                for s in samples:
                    answer = m(input_ids=s[None], labels=s[None])
                    total += answer.loss.item() * (len(s) - 1)
                    count += len(s) - 1
                    logits.append(answer.logits[0, -1].double().tolist())
            out["loss_" + precision] = total / count
            if precision == "f32":
                out["last_logits"] = [[round(x, 9) for x in row] for row in logits]
        (folder / "expected.json").write_text(json.dumps(out) + "\n")
        print(name, out["loss_f32"], out["loss_f64"], out.get("margin"), sum(f.stat().st_size for f in folder.iterdir()))


if __name__ == "__main__":
    sys.exit(main())
