"""Parameter lists of known models and the tensor-parallel plan for each, by the rules of Redco (arXiv:2310.16355).

Run in this folder: python3 make.py. It writes one text file per model, and one of random lists with a blank line
between them, a parameter per line:
    path  extents (joined by x)  dimension split for m = 1, 2, 4, 8 (-1: copied)
Written from the published description of the rules, not from the C++ code that is tested with it.
Names are those of the Flax models; weights are [in, out]. Files *_torch.txt have the names of PyTorch's models and the extents
of its state dictionaries; there each parameter is listed with what it is, so that nothing is guessed from names: the rules
see the Flax form, and the dimensions of a linear layer's weight are exchanged.
"""

import random
import re


def dense(path, rows, columns, bias=False):
    lines = [(path + "/kernel", (rows, columns))]
    return lines + [(path + "/bias", (columns,))] if bias else lines


def norm(path, width, leaf=("scale", "bias")):
    return [(path + "/" + name, (width,)) for name in leaf]


def gpt2(width=768, layers=12, vocabulary=50257):
    p = [("transformer/wte/embedding", (vocabulary, width)), ("transformer/wpe/embedding", (1024, width))]
    for i in range(layers):
        h = f"transformer/h/{i}"
        p += norm(h + "/ln_1", width) + dense(h + "/attn/c_attn", width, 3 * width, True)
        p += dense(h + "/attn/c_proj", width, width, True) + norm(h + "/ln_2", width)
        p += dense(h + "/mlp/c_fc", width, 4 * width, True) + dense(h + "/mlp/c_proj", 4 * width, width, True)
    return p + norm("transformer/ln_f", width)


def gptj(width=4096, layers=28, vocabulary=50400):
    p = [("transformer/wte/embedding", (vocabulary, width))]
    for i in range(layers):
        h = f"transformer/h/{i}"
        p += norm(h + "/ln_1", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            p += dense(f"{h}/attn/{name}", width, width)
        p += dense(h + "/mlp/fc_in", width, 4 * width, True) + dense(h + "/mlp/fc_out", 4 * width, width, True)
    return p + norm("transformer/ln_f", width) + dense("lm_head", width, vocabulary, True)


def opt(width=2048, layers=24, vocabulary=50272):
    p = [("model/decoder/embed_tokens/embedding", (vocabulary, width)),
         ("model/decoder/embed_positions/embedding", (2050, width))]
    for i in range(layers):
        h = f"model/decoder/layers/{i}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            p += dense(f"{h}/self_attn/{name}", width, width, True)
        p += norm(h + "/self_attn_layer_norm", width)
        p += dense(h + "/fc1", width, 4 * width, True) + dense(h + "/fc2", 4 * width, width, True)
        p += norm(h + "/final_layer_norm", width)
    return p + norm("model/decoder/final_layer_norm", width)


def attention_of_llama(h, width, kv_width):
    p = dense(h + "/q_proj", width, width) + dense(h + "/k_proj", width, kv_width)
    return p + dense(h + "/v_proj", width, kv_width) + dense(h + "/o_proj", width, width)


def llama(width=4096, kv_width=1024, ff=14336, layers=32, vocabulary=128256):
    p = [("model/embed_tokens/embedding", (vocabulary, width))]
    for i in range(layers):
        h = f"model/layers/{i}"
        p += norm(h + "/input_layernorm", width, ("weight",)) + attention_of_llama(h + "/self_attn", width, kv_width)
        p += norm(h + "/post_attention_layernorm", width, ("weight",))
        p += dense(h + "/mlp/gate_proj", width, ff) + dense(h + "/mlp/up_proj", width, ff)
        p += dense(h + "/mlp/down_proj", ff, width)
    return p + norm("model/norm", width, ("weight",)) + dense("lm_head", width, vocabulary)


def t5(width=4096, inner=4096, ff=10240, heads=64, layers=24, vocabulary=32128):
    p = [("shared/embedding", (vocabulary, width))]
    for side in ("encoder", "decoder"):
        for i in range(layers):
            h = f"{side}/block/{i}/layer"
            parts = ["SelfAttention"] + (["EncDecAttention"] if side == "decoder" else [])
            for j, part in enumerate(parts):
                for name in ("q", "k", "v"):
                    p += dense(f"{h}/{j}/{part}/{name}", width, inner)
                p += dense(f"{h}/{j}/{part}/o", inner, width) + norm(f"{h}/{j}/layer_norm", width, ("weight",))
            if i == 0:
                p.append((f"{h}/0/SelfAttention/relative_attention_bias/embedding", (32, heads)))
            j = len(parts)
            for name in ("wi_0", "wi_1"):
                p += dense(f"{h}/{j}/DenseReluDense/{name}", width, ff)
            p += dense(f"{h}/{j}/DenseReluDense/wo", ff, width) + norm(f"{h}/{j}/layer_norm", width, ("weight",))
        p += norm(f"{side}/final_layer_norm", width, ("weight",))
    return p + dense("lm_head", width, vocabulary)


def mixtral(width=4096, kv_width=1024, ff=14336, layers=32, experts=8, vocabulary=32000):
    p = [("model/embed_tokens/embedding", (vocabulary, width))]
    for i in range(layers):
        h = f"model/layers/{i}"
        p += norm(h + "/input_layernorm", width, ("weight",)) + attention_of_llama(h + "/self_attn", width, kv_width)
        p += norm(h + "/post_attention_layernorm", width, ("weight",))
        p += dense(h + "/block_sparse_moe/gate", width, experts)
        for e in range(experts):
            x = f"{h}/block_sparse_moe/experts/{e}"
            p += dense(x + "/w1", width, ff) + dense(x + "/w3", width, ff) + dense(x + "/w2", ff, width)
    return p + norm("model/norm", width, ("weight",)) + dense("lm_head", width, vocabulary)


def key_of(path):
    parts = path.split("/")
    return tuple(parts[-2:]) if parts[-1] == "kernel" else tuple(parts[-1:])


def plan(parameters, m):
    """The dimension split of each parameter, or -1."""
    valid, attention = {}, {}
    for path, extents in parameters:
        key = key_of(path)
        fits = [e % m == 0 for e in extents]
        if path.split("/")[-1] not in ("kernel", "embedding"):
            valid[key] = None
        elif key not in valid:
            valid[key] = fits
        elif valid[key] is not None:
            same_rank = len(valid[key]) == len(fits)
            valid[key] = [a and b for a, b in zip(valid[key], fits)] if same_rank else None
        attention[key] = attention.get(key, True) and re.search("attention|attn", path.lower()) is not None
    chosen, last = {}, None
    for key in sorted(valid):
        dims = [d for d, ok in enumerate(valid[key] or []) if ok][::-1]
        if not dims:
            chosen[key] = -1
            continue
        name, special = key[0], True
        ends = {name[0], name[-1]}
        if key == ("embedding",):
            dims = dims[::-1]
        elif attention[key] and ends & set("qkv"):
            pass
        elif attention[key] and "o" in ends:
            dims = dims[::-1]
        elif re.match("up|gate|wi", name) or "in" in name.split("_"):
            pass
        elif re.match("down|wo", name) or "out" in name.split("_"):
            dims = dims[::-1]
        elif name.startswith("head") or name.endswith("head"):
            pass
        else:
            special = False
        d = dims[0]
        if not special:
            if d == last and len(dims) > 1:
                d = dims[1]
            last = d
        chosen[key] = d
    return [chosen[key_of(path)] for path, _ in parameters]


# Two or three layers show what all of them do; the extents are those of the published models.
MODELS = {
    "gpt2": gpt2(layers=2),                                                             # 124M
    "gptj": gptj(layers=2),                                                             # 6B
    "opt": opt(layers=2),                                                               # 1.3B
    "llama": llama(layers=2),                                                           # Llama-3-8B
    "t5": t5(layers=2),                                                                 # v1.1 XXL
    "mixtral": mixtral(layers=2),                                                       # 8x7B
}

# PyTorch: (path, extents, kind). Conv1D is what GPT-2 has for linear layers: [in, out].
def linear(path, inputs, outputs, bias=False):
    return [(path + ".weight", (outputs, inputs), "linear")] + ([(path + ".bias", (outputs,), "vector")] if bias else [])


def conv1d(path, inputs, outputs):
    return [(path + ".weight", (inputs, outputs), "conv1d"), (path + ".bias", (outputs,), "vector")]


def table(path, rows, width):
    return [(path + ".weight", (rows, width), "table")]


def vectors(path, width, leaves=("weight", "bias")):
    return [(f"{path}.{leaf}", (width,), "vector") for leaf in leaves]


def gpt2_torch(width=768, layers=2):
    p = table("transformer.wte", 50257, width) + table("transformer.wpe", 1024, width)
    for i in range(layers):
        h = f"transformer.h.{i}"
        p += vectors(h + ".ln_1", width) + conv1d(h + ".attn.c_attn", width, 3 * width)
        p += conv1d(h + ".attn.c_proj", width, width) + vectors(h + ".ln_2", width)
        p += conv1d(h + ".mlp.c_fc", width, 4 * width) + conv1d(h + ".mlp.c_proj", 4 * width, width)
    return p + vectors("transformer.ln_f", width) + linear("lm_head", width, 50257)


def opt_torch(width=2048, layers=2):
    p = table("model.decoder.embed_tokens", 50272, width) + table("model.decoder.embed_positions", 2050, width)
    for i in range(layers):
        h = f"model.decoder.layers.{i}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            p += linear(f"{h}.self_attn.{name}", width, width, True)
        p += vectors(h + ".self_attn_layer_norm", width)
        p += linear(h + ".fc1", width, 4 * width, True) + linear(h + ".fc2", 4 * width, width, True)
        p += vectors(h + ".final_layer_norm", width)
    return p + vectors("model.decoder.final_layer_norm", width) + linear("lm_head", width, 50272)


def llama_torch(width=4096, kv_width=1024, ff=14336, layers=2, vocabulary=128256, experts=0):
    p = table("model.embed_tokens", vocabulary, width)
    for i in range(layers):
        h = f"model.layers.{i}"
        p += linear(h + ".self_attn.q_proj", width, width) + linear(h + ".self_attn.k_proj", width, kv_width)
        p += linear(h + ".self_attn.v_proj", width, kv_width) + linear(h + ".self_attn.o_proj", width, width)
        if experts:
            p += linear(h + ".block_sparse_moe.gate", width, experts)
        for e in range(experts):
            x = f"{h}.block_sparse_moe.experts.{e}"
            p += linear(x + ".w1", width, ff) + linear(x + ".w2", ff, width) + linear(x + ".w3", width, ff)
        if not experts:
            p += linear(h + ".mlp.gate_proj", width, ff) + linear(h + ".mlp.up_proj", width, ff)
            p += linear(h + ".mlp.down_proj", ff, width)
        p += vectors(h + ".input_layernorm", width, ("weight",))
        p += vectors(h + ".post_attention_layernorm", width, ("weight",))
    return p + vectors("model.norm", width, ("weight",)) + linear("lm_head", width, vocabulary)


def t5_torch(width=4096, inner=4096, ff=10240, heads=64, layers=2):
    p = table("shared", 32128, width)
    for side, parts in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for i in range(layers):
            h = f"{side}.block.{i}.layer"
            for j, part in enumerate(parts):
                for name in ("q", "k", "v"):
                    p += linear(f"{h}.{j}.{part}.{name}", width, inner)
                p += linear(f"{h}.{j}.{part}.o", inner, width) + vectors(f"{h}.{j}.layer_norm", width, ("weight",))
            if i == 0:
                p += table(f"{h}.0.SelfAttention.relative_attention_bias", 32, heads)
            j = len(parts)
            for name in ("wi_0", "wi_1"):
                p += linear(f"{h}.{j}.DenseReluDense.{name}", width, ff)
            p += linear(f"{h}.{j}.DenseReluDense.wo", ff, width) + vectors(f"{h}.{j}.layer_norm", width, ("weight",))
        p += vectors(f"{side}.final_layer_norm", width, ("weight",))
    return p + linear("lm_head", width, 32128)


def phi3_torch(width=3072, ff=8192, layers=2):
    """Fused matrices: q|k|v and gate|up."""
    p = table("model.embed_tokens", 32064, width)
    for i in range(layers):
        h = f"model.layers.{i}"
        p += linear(h + ".self_attn.o_proj", width, width) + linear(h + ".self_attn.qkv_proj", width, 3 * width)
        p += linear(h + ".mlp.gate_up_proj", width, 2 * ff) + linear(h + ".mlp.down_proj", ff, width)
    return p + linear("lm_head", width, 32064)


def torch_plan(parameters, m):
    flax = []
    for path, extents, kind in parameters:
        stem = "/".join(path.split(".")[:-1])
        if kind == "linear":
            flax.append((stem + "/kernel", extents[::-1]))
        elif kind in ("conv1d", "table"):
            flax.append((stem + ("/kernel" if kind == "conv1d" else "/embedding"), extents))
        else:
            flax.append((stem + "/scale", extents))
    return [1 - d if kind == "linear" and d >= 0 else d for (_, _, kind), d in zip(parameters, plan(flax, m))]


TORCH_MODELS = {
    "gpt2_torch": gpt2_torch(),
    "opt_torch": opt_torch(),
    "llama_torch": llama_torch(),
    "t5_torch": t5_torch(),
    "mixtral_torch": llama_torch(vocabulary=32000, experts=8),
    "phi3_torch": phi3_torch(),
}


def random_list(generator):
    """Names that meet every test of the rules, and shapes that seldom divide."""
    names = ("q", "k_proj", "query", "wo", "ov", "vo", "out", "c_attn", "fc1", "fc2", "up_proj", "gate", "wi_1", "w2", "x_in",
             "x_out", "down", "head", "heads_mix", "lm_head", "in", "inner", "dense", "embedding", "Outer", "do")
    modules = ("h/0/attn", "h/1/SelfAttention", "h/0/mlp", "mlp", "attn_pool_mlp", "a/b/c", "decoder/Attn")
    found = {}
    for _ in range(generator.randint(1, 14)):
        leaf = generator.choice(("kernel",) * 6 + ("embedding", "bias", "scale"))
        extents = tuple(generator.choice((1, 2, 3, 4, 6, 8, 12, 16, 20)) for _ in range(generator.choice((1, 2, 2, 2, 3))))
        found[f"{generator.choice(modules)}/{generator.choice(names)}/{leaf}"] = extents
    return list(found.items())


def write(file, parameters, rules=plan):
    plans = [rules(parameters, m) for m in (1, 2, 4, 8)]
    for i, (path, extents, *_) in enumerate(parameters):
        dims = " ".join(str(p[i]) for p in plans)
        file.write(f"{path} {'x'.join(map(str, extents))} {dims}\n")


if __name__ == "__main__":
    for model, parameters in MODELS.items():
        with open(model + ".txt", "w") as file:
            write(file, parameters)
    for model, parameters in TORCH_MODELS.items():
        with open(model + ".txt", "w") as file:
            write(file, parameters, torch_plan)
    with open("random.txt", "w") as file:
        generator = random.Random(1)
        for _ in range(100):
            write(file, random_list(generator))
            file.write("\n")
