#!/usr/bin/env python3
"""Writes tiny masked language models and the answers that published loops decode with them: python3 make_diffusion.py [name ...]

The models are transformers' Llama, Qwen 2 and Qwen 3 (5.24, torch 2.15) with another mask: of zeros for LLaDA and Dream, of blocks for SDAR. Weights get the names, and config.json the keys,
that the published folders have. expected.json: for each loop its settings, and for each prompt the 64 tokens of the answer and the forwards they took.
The loops: `fixed` is `generate` of LLaDA (arXiv:2502.09992, generate.py) with low-confidence remasking at temperature 0; `maskgit` is `_sample` of Dream with algorithm `maskgit_plus`;
`static` is `block_diffusion_generate` of SDAR; the others are Fast-dLLM's (arXiv:2505.22618) and dInfer's (arXiv:2510.08666) with their caches. In all the mask is never the token that is drawn.
`margin`: the least distance of a decision from another one, in logits and probabilities.
`training`: three samples with masks, their targets (-100: none) and the weights 1 / p; in float64 the mean loss over all targets and its gradient norm, and the same of LLaDA's loss, the mean
over all tokens of the weighted loss of masked ones (arXiv:2502.09992, GUIDELINES.md)."""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

HERE = Path(__file__).parent
NEW = 64
SIZES = dict(hidden_size=24, intermediate_size=17, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128, tie_word_embeddings=False)
ROPE = {"rope_type": "default", "rope_theta": 1000.0}
MODELS = {
    "llada": (LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=4, vocab_size=41, rms_norm_eps=1e-5, rope_parameters=ROPE)),
    "dream": (Qwen2ForCausalLM, Qwen2Config(**SIZES, num_key_value_heads=2, vocab_size=43, rope_parameters=ROPE)),
    "sdar": (Qwen3ForCausalLM, Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=6, vocab_size=37, rope_parameters=ROPE)),
}
for _, c in MODELS.values():
    c._attn_implementation = "eager"


class Watch:
    """The least distance of a decision from another one."""

    def __init__(self):
        self.least = float("inf")

    def see(self, x):
        self.least = min(self.least, float(x))


def predict(logits, mask, watch):
    """Likeliest token but the mask, and its probability by softmax over all, in float64."""
    logits = logits.double()
    p = torch.softmax(logits, -1)
    open_logits = logits.clone()
    open_logits[..., mask] = -torch.inf
    best = open_logits.topk(2, -1).values
    watch.see((best[..., 0] - best[..., 1]).min())
    token = open_logits.argmax(-1)
    return token, p.gather(-1, token[..., None])[..., 0]


def see_order(confidence, count, watch):
    found = confidence.sort(descending=True).values
    if 0 < count < len(found) and found[count] > -torch.inf:
        watch.see(found[count - 1] - found[count])


# ---- a forward of some rows, others' keys and values from a cache: only for loops with one ----
class Rows:
    def __init__(self, model, total):
        c = model.config
        d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        shape = (c.num_hidden_layers, c.num_key_value_heads, total, d)
        self.model, self.k, self.v = model, torch.full(shape, torch.nan), torch.full(shape, torch.nan)

    def __call__(self, x, first, end):
        m = self.model.model
        h = m.embed_tokens(x[first:end][None])
        rotary = m.rotary_emb(h, torch.arange(first, end)[None])
        for i, layer in enumerate(m.layers):
            a, n = layer.self_attn, end - first
            y = layer.input_layernorm(h)
            q, k, v = (f(y).view(1, n, -1, a.head_dim) for f in (a.q_proj, a.k_proj, a.v_proj))
            q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *rotary)
            self.k[i, :, first:end], self.v[i, :, first:end] = k[0], v[0].transpose(0, 1)
            group = q.shape[1] // self.k.shape[1]
            keys, values = self.k[i].repeat_interleave(group, 0), self.v[i].repeat_interleave(group, 0)
            o = torch.softmax(q[0] @ keys.transpose(1, 2) * a.scaling, -1) @ values
            h = h + a.o_proj(o.transpose(0, 1).reshape(1, n, -1))
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        return self.model.lm_head(m.norm(h))[0]


def whole(model, x, attention=None):
    n = len(x)
    attention = torch.zeros(1, 1, n, n) if attention is None else attention[None, None]
    return model(input_ids=x[None], attention_mask=attention).logits[0]


def fixed(model, prompt, mask, watch, block, steps):
    x = torch.cat([prompt, torch.full((NEW,), mask)])
    forwards = 0
    for b in range(NEW // block):
        first, end = len(prompt) + b * block, len(prompt) + (b + 1) * block
        masks = int((x[first:end] == mask).sum())
        quota = [masks // steps + (1 if i < masks % steps else 0) for i in range(steps)]
        for i in range(steps):
            is_mask = x == mask
            token, p = predict(whole(model, x), mask, watch)
            forwards += 1
            p[end:] = -torch.inf
            confidence = torch.where(is_mask, p, -torch.inf)
            see_order(confidence, quota[i], watch)
            chosen = confidence.topk(quota[i]).indices
            x[chosen] = token[chosen]
    return x[len(prompt):].tolist(), forwards


def choose(kind, s, confidence, watch):
    """As of dInfer; confidence is -inf where nothing is masked."""
    best = confidence.max()
    if kind in ("threshold", "credit"):
        least = min(s["tau"], best - 1e-5)
        watch.see((confidence[confidence != best] - least).abs().min() if (confidence != best).any() else 1)
        return confidence >= least
    taken = torch.zeros(len(confidence), dtype=torch.bool)
    taken[confidence.argmax()] = True
    taken |= confidence > s["tau"]
    is_mask = confidence > -torch.inf
    i = 0
    while i < len(confidence):
        j = i
        while j < len(confidence) and is_mask[j]:
            j += 1
        if j > i:
            run = confidence[i:j]
            watch.see((run.max() - s["low"]).abs())
            if j > i + 1:
                see_order(run, 1, watch)
            if run.max() > s["low"]:
                taken[i + int(run.argmax())] = True
        i = max(j, i + 1)
    watch.see((confidence[is_mask] - s["tau"]).abs().min())
    return taken


def cached(model, prompt, mask, watch, block, rule, cache, shifted=0, **s):
    x = torch.cat([prompt, torch.full((NEW,), mask)])
    total, rows, forwards = len(x), Rows(model, len(x)), 0
    credits = None
    for b in range(NEW // block):
        first, end = len(prompt) + b * block, len(prompt) + (b + 1) * block
        step = 0
        credits = torch.zeros(block, model.config.vocab_size, dtype=torch.float64)
        while (x[first:end] == mask).any():
            if cache == "none" or step == 0 or (cache == "vicinity" and forwards < s["warm"]):
                begin, stop = 0, total
            elif cache == "prefix":
                begin, stop = first - shifted, total
            elif cache == "dual":
                begin, stop = first - shifted, end
            else:
                begin, stop = max(0, first - s["before"]), min(total, end + s["after"])
            logits = rows(x, begin, stop)
            if begin == 0 and stop == total:
                assert torch.allclose(logits, whole(model, x), atol=1e-4)
            logits = logits[first - shifted - begin:end - shifted - begin].double()
            is_mask = x[first:end] == mask
            if rule == "credit":
                credits *= s["beta"]
                token, p = predict(logits, mask, watch)
                for i in range(block):
                    if is_mask[i]:
                        credits[i, token[i]] += p[i] ** s["gamma"]
                logits = logits + s["alpha"] * torch.log(1 + credits)
            token, p = predict(logits, mask, watch)
            taken = choose(rule, s, torch.where(is_mask, p, -torch.inf), watch)
            x[first:end][taken] = token[taken]
            forwards, step = forwards + 1, step + 1
    return x[len(prompt):].tolist(), forwards


def maskgit(model, prompt, mask, watch, steps):
    x = torch.cat([prompt, torch.full((NEW,), mask)])
    times = torch.linspace(1, 1e-3, steps + 1)
    for i in range(steps):
        logits = whole(model, x)
        logits = torch.cat([logits[:1], logits[:-1]])
        is_mask = x == mask
        token, p = predict(logits, mask, watch)
        count = int(is_mask.sum())
        if i < steps - 1:
            count = int(count * (1 - times[i + 1] / times[i]))
        assert count > 0
        confidence = torch.where(is_mask, p, -torch.inf)
        see_order(confidence, count, watch)
        chosen = confidence.topk(count).indices
        x[chosen] = token[chosen]
    return x[len(prompt):].tolist(), steps


def static(model, prompt, mask, watch, block, steps):
    blocks = (len(prompt) + NEW + block - 1) // block
    total = blocks * block
    x = torch.full((total,), mask)
    x[:len(prompt)] = prompt
    of = torch.arange(total) // block
    attention = torch.where(of[None, :] <= of[:, None], 0.0, torch.finfo(torch.float32).min)
    quota = [block // steps + (1 if i < block % steps else 0) for i in range(steps)]
    forwards = 0
    for b in range(len(prompt) // block, blocks):
        first, end = b * block, (b + 1) * block
        for i in range(steps + 1):
            is_mask = x[first:end] == mask
            if not is_mask.any():
                break
            token, p = predict(whole(model, x[:end], attention[:end, :end])[first:end], mask, watch)
            forwards += 1
            confidence = torch.where(is_mask, p, -torch.inf)
            count = min(quota[i], int(is_mask.sum()))
            see_order(confidence, count, watch)
            chosen = confidence.topk(count).indices
            x[first:end][chosen] = token[chosen]
    return x[len(prompt):len(prompt) + NEW].tolist(), forwards


LOOPS = {
    "llada": [("fixed", dict(block=16, steps=8))] +
             [("cached", dict(block=16, rule="threshold", cache=c, tau=0.55)) for c in ("none", "prefix", "dual")] +
             [("cached", dict(block=16, rule="threshold", cache="vicinity", tau=0.55, before=3, after=5, warm=2)),
              ("cached", dict(block=16, rule="one_per_run", cache="dual", tau=0.9, low=0.3)),
              ("cached", dict(block=16, rule="credit", cache="none", tau=0.7, alpha=0.7, gamma=0.2, beta=0.8))],
    "dream": [("maskgit", dict(steps=16)), ("cached", dict(block=16, rule="threshold", cache="dual", tau=0.55, shifted=1))],
    "sdar": [("static", dict(block=8, steps=3))],
}
NAMES = {"self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj", "self_attn.v_proj": "v_proj", "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj",
         "mlp.down_proj": "ff_out", "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm"}


def llada_name(name):
    whole = {"model.embed_tokens.weight": "model.transformer.wte.weight", "model.norm.weight": "model.transformer.ln_f.weight", "lm_head.weight": "model.transformer.ff_out.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"model.transformer.blocks.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def config_of(name, c, mask):
    if name == "llada":  # the keys of the published file
        return {"activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"], "attention_dropout": 0.0, "attention_layer_norm": False,
                "attention_layer_norm_with_affine": True, "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": c.hidden_size, "embedding_dropout": 0.0,
                "embedding_size": c.vocab_size, "eos_token_id": 1, "flash_attention": False, "include_bias": False, "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta",
                "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms", "layer_norm_with_affine": True, "mask_token_id": mask,
                "max_sequence_length": c.max_position_embeddings, "mlp_hidden_size": c.intermediate_size, "mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None,
                "n_heads": c.num_attention_heads, "n_kv_heads": c.num_key_value_heads, "n_layers": c.num_hidden_layers, "pad_token_id": 1, "precision": "amp_bf16", "residual_dropout": 0.0,
                "rms_norm_eps": c.rms_norm_eps, "rope": True, "rope_full_precision": True, "rope_theta": ROPE["rope_theta"], "scale_logits": False, "use_cache": False,
                "vocab_size": c.vocab_size, "weight_tying": False}
    out = {k: v for k, v in json.loads(c.to_json_string(use_diff=False)).items() if k in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
        "tie_word_embeddings", "hidden_act", "initializer_range", "attention_dropout", "use_sliding_window", "max_window_layers") and v is not None}
    out |= {"rope_theta": ROPE["rope_theta"], "rope_scaling": None, "mask_token_id": mask, "torch_dtype": "float32", "use_cache": True, "sliding_window": None}
    if name == "dream":
        return out | {"model_type": "Dream", "architectures": ["DreamModel"], "auto_map": {"AutoModel": "modeling_dream.DreamModel"}}
    return out | {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "attention_bias": False, "block_size": LOOPS[name][0][1]["block"],
                  "auto_map": {"AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"}}


@torch.no_grad()
def attempt(kind, config, name, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = kind(config).eval()
    for p in model.parameters():
        p.copy_(torch.randn_like(p) * (0.4 if p.dim() > 1 else 0.2) + (1.0 if p.dim() == 1 and (p == 1).all() else 0.0))
    model.lm_head.weight.mul_(2)  # surer of some tokens, so that rules commit several
    mask = config.vocab_size - 1
    prompts = [torch.randint(mask, (n,)) for n in (7, 12)]
    watch, out = Watch(), {"mask": mask, "prompts": [p.tolist() for p in prompts], "loops": []}
    for loop, settings in LOOPS[name]:
        found = [globals()[loop](model, p, mask, watch, **settings) for p in prompts]
        out["loops"].append({"loop": loop, **settings, "answers": [a for a, _ in found], "forwards": [f for _, f in found]})
        if watch.least < 3e-5 or min(len(set(a)) for a, _ in found) < 8:
            return None, None
    out["margin"] = watch.least
    return model, out


class Wide:
    """transformers computes norms, angles and softmax in float32 whatever the type is; inside, these are float64."""

    def __enter__(self):
        self.was = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *_):
        torch.float32, torch.float, torch.Tensor.float = self.was


def training(model, name, mask, length=20):
    model.double().train()
    c = model.config
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    model.model.rotary_emb.inv_freq = 1 / ROPE["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    torch.manual_seed(5)
    whole_tokens = torch.randint(mask, (3, length))
    p = (1 - 1e-3) * torch.tensor([[0.3], [0.5], [0.9]], dtype=torch.float64) + 1e-3
    is_mask = torch.rand(3, length) < p
    x = torch.where(is_mask, mask, whole_tokens)
    of = torch.arange(length) // (LOOPS[name][0][1]["block"] if name == "sdar" else length)
    attention = torch.where(of[None, :] <= of[:, None], 0.0, -torch.inf).double()[None, None].expand(3, 1, -1, -1)
    out = {"tokens": x.tolist(), "targets": torch.where(is_mask, whole_tokens, -100).tolist(), "whole": whole_tokens.tolist(),
           "weights": torch.where(is_mask, (1 / p).float(), 0.0).tolist()}
    weights = torch.tensor(out["weights"]).double()
    for kind in ("mean", "weighted"):
        model.zero_grad()
        with Wide():
            logits = model(input_ids=x, attention_mask=attention).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, c.vocab_size), whole_tokens.reshape(-1), reduction="none").view(3, length)
        loss = loss[is_mask].mean() if kind == "mean" else (loss * weights).sum() / whole_tokens.numel()
        loss.backward()
        out[kind + "_loss"] = loss.item()
        out[kind + "_gradient_norm"] = sum((q.grad ** 2).sum() for q in model.parameters()).sqrt().item()
    return out


def main():
    for name, (kind, config) in MODELS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for seed in range(200, 400):
            model, out = attempt(kind, config, name, seed)
            if model is not None:
                break
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config_of(name, config, out["mask"]), indent=2) + "\n")
        weights = {llada_name(k) if name == "llada" else k: v.clone().contiguous() for k, v in model.state_dict().items()}
        if name != "dream":
            out["training"] = training(model, name, out["mask"])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "expected.json").write_text(json.dumps(out) + "\n")
        print(name, "seed", seed, "margin", out["margin"], [x["forwards"] for x in out["loops"]], sum(f.stat().st_size for f in folder.iterdir()))


if __name__ == "__main__":
    sys.exit(main())
