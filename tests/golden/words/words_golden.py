#!/usr/bin/env python3
"""Writes a tiny Llama with a tokenizer's vocabulary, questions for it and conversations, and what lm-evaluation-harness, transformers and trl make of them.

- `config.json`, `model.safetensors`: the model; its tokenizer is `../tokenizer/llama3.json`, `tokenizer_config.json` names two of its tokens.
- `questions.jsonl`: 200 made questions. `expected.json`, `tasks`: the harness' accuracies and log-likelihoods.
- `chats.jsonl`: conversations. `expected.json`, `masks`: of each template, tokenizer and conversation the samples, each with the number of its tokens,
  their hash (XXH64 of 32-bit ids) and the ranges of those that the assistant wrote. By `return_assistant_tokens_mask` where the template has
  statements `generation`; else as trl's data of prompts and completions, one of each of the assistant's turns.
- `expected.json`, `step`: the loss of a training step and of the held-out conversation, labels -100 where nothing is learned.

lm-eval 0.4.13, transformers 5.24.0, trl 1.16.0, torch 2.15.0 and xxhash wrote what is committed.
"""
import json
import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import torch
import xxhash
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent
sys.path.insert(0, str(GOLDEN / "tokenizer"))
from chat_template_golden import CHATS, STYLES  # noqa: E402, which stops the clock
CONTEXT = 96
WORDS = ("loom heddle warp weft shuttle treadle thread cloth weaver foot shaft yarn quick pull break lifts rises flies passes between "
         "Größe Höhe Straße métier été mañana станок нити 织机 機織り 날실 🧵 12345 3.14 the a of it's they've").split()
TEMPLATE = ("{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
            "{%- if m.role == 'assistant' %}{%- generation %}{{- m.content | trim + '<|eot_id|>' }}{%- endgeneration %}"
            "{%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}"
            "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}")
# As ChatML, with calls of tools and parts that are not learned; no space is cut around what is.
CHATML = """{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{% for message in messages %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>
{% endif %}
{% endfor %}"""
# Without an end of turns: a token may begin before what is learned.
PLAIN = ("{% for m in messages %}{% if m.role == 'assistant' %}Assistant: {% generation %}{{ m.content }}{% endgeneration %}\\n"
         "{% else %}{{ m.role }}: {{ m.content }}\\n{% endif %}{% endfor %}").replace("\\n", "{{ '\\n' }}")


def sentence(draw, least, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def make_model():
    torch.manual_seed(20)
    config = LlamaConfig(hidden_size=18, intermediate_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=4,
                         vocab_size=905, max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=900, eos_token_id=904,
                         initializer_range=0.3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(HERE)
    (HERE / "generation_config.json").unlink(missing_ok=True)
    return model


def make_questions():
    draw = random.Random(46)
    out = []
    for i in range(200):
        context = sentence(draw, 1, 5)
        if i % 10 == 3:
            context += draw.choice([" ", "  ", "\n", " \t ", "\u00a0", "\u3000 "])
        if i % 25 == 7:
            context = ""
        if i % 40 == 11:
            context = "<|begin_of_text|>" + context
        if i % 50 == 49:
            context = sentence(draw, 60, 90)  # longer than the model's context
        choices = [sentence(draw, 1, draw.choice([1, 2, 3])) for _ in range(draw.randint(2, 4))]
        out.append({"context": context, "choices": choices, "answer": draw.randrange(len(choices))})
    (HERE / "questions.jsonl").write_text("".join(json.dumps(q, ensure_ascii=False) + "\n" for q in out))
    return out


def tokenizer(name, template=None, **marks):
    t = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / f"tokenizer/{name}.json"), **marks)
    t.chat_template = template
    return t


LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
MARKS = {"llama3": LLAMA, "qwen2": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}}  # which the tokenizers have


def tasks(questions):
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
            shutil.copy(HERE / name, folder)
        shutil.copy(GOLDEN / "tokenizer/llama3.json", Path(folder) / "tokenizer.json")
        model = HFLM(pretrained=folder, device="cpu", batch_size=1, dtype="float32")
    metrics = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm", "acc_bytes")]
    task = ConfigurableTask(config={
        "task": "words", "custom_dataset": lambda **_: datasets.DatasetDict({"test": datasets.Dataset.from_list(questions)}), "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": lambda d: d["context"], "doc_to_choice": lambda d: d["choices"],
        "doc_to_target": lambda d: d["answer"], "metric_list": metrics})
    found = lm_eval.simple_evaluate(model=model, tasks=[task], num_fewshot=0, log_samples=True)
    result = found["results"]["words"]
    samples = sorted(found["samples"]["words"], key=lambda s: s["doc_id"])
    out = {name: result[name + ",none"] for name in ("acc", "acc_norm", "acc_bytes", "acc_stderr")}
    out["log_likelihoods"] = [[round(r[0][0], 5) for r in s["resps"]] for s in samples]
    return out


def ranges(mask):
    out = []
    for i, m in enumerate(mask):
        if m and out and out[-1][1] == i:
            out[-1][1] = i + 1
        elif m:
            out.append([i, i + 1])
    return out


def sample(ids, mask):
    return {"tokens": len(ids), "hash": xxhash.xxh64(struct.pack(f"<{len(ids)}i", *ids)).hexdigest(), "learned": ranges(mask)}


def samples_of(t, chat):
    """The samples of a conversation, or None where the template refuses it."""
    from trl.data_utils import _tokenize, common_prefix_length
    how = {"tools": chat["tools"]}
    try:
        if "endgeneration" in t.chat_template:
            whole = t.apply_chat_template(chat["messages"], return_assistant_tokens_mask=True, return_dict=True, **how)
            return [sample(whole["input_ids"], whole["assistant_masks"])]
        whole = _tokenize(t, chat["messages"], **how)["input_ids"]
        mask, turns, apart = [0] * len(whole), [], False
        for k, m in enumerate(chat["messages"]):
            if m["role"] != "assistant":
                continue
            before = _tokenize(t, chat["messages"][:k], add_generation_prompt=True, **how)["input_ids"]
            turn = _tokenize(t, chat["messages"][:k + 1], **how)["input_ids"]
            begin = common_prefix_length(before, turn)
            turns.append(sample(turn, [0] * begin + [1] * (len(turn) - begin)))
            apart = apart or whole[:len(turn)] != turn
            if not apart:
                mask[begin:len(turn)] = [1] * (len(turn) - begin)
        return turns if apart else [sample(whole, mask)]
    except Exception:  # of a template that refuses
        return None


def masks():
    chats = [c for c in CHATS if any(m["role"] == "assistant" for m in c["messages"])]
    named = [("llama3-generation", "llama3", TEMPLATE), ("chatml-generation", "qwen2", CHATML), ("plain-generation", "llama3", PLAIN)]
    named += [(name, "qwen2" if name in ("qwen-tools", "hermes", "smollm3") else "llama3", source) for name, source in STYLES.items()]
    out = []
    for name, of, source in named:
        t = tokenizer(of, source, **MARKS[of])
        found = [samples_of(t, c) for c in chats]
        print(name, of, sum(f is None for f in found), "refused,", sum(len(f) for f in found if f), "samples,",
              sum(len(f) > 1 for f in found if f), "conversations in several")
        out.append({"name": name, "tokenizer": of, "tokens": MARKS[of], "source": source, "samples": found})
    return chats, out


def make_chats():
    draw = random.Random(47)
    out = []
    for i in range(9):
        messages = [{"role": "system", "content": sentence(draw, 1, 4)}] if i % 3 == 0 else []
        for _ in range(1 + i % 3):
            messages += [{"role": "user", "content": sentence(draw, 1, 6)}, {"role": "assistant", "content": sentence(draw, 1, 8)}]
        out.append({"messages": messages})
    (HERE / "chats.jsonl").write_text("".join(json.dumps(c, ensure_ascii=False) + "\n" for c in out))
    return out


def step(model, chats):
    t = tokenizer("llama3", TEMPLATE, **LLAMA)
    rows = []
    for c in chats:
        r = t.apply_chat_template(c["messages"], return_assistant_tokens_mask=True, return_dict=True)
        ids, mask = r["input_ids"][:CONTEXT + 1], r["assistant_masks"][:CONTEXT + 1]
        rows.append(([ids, [i if m else -100 for i, m in zip(ids, mask)]], len(r["input_ids"]) > CONTEXT + 1))

    def loss(part):
        longest = max(len(r[0]) for r, _ in part)
        ids = torch.tensor([r[0] + [0] * (longest - len(r[0])) for r, _ in part])
        labels = torch.tensor([r[1] + [-100] * (longest - len(r[1])) for r, _ in part])
        with torch.no_grad():
            return model(input_ids=ids, labels=labels).loss.item()

    return {"train": loss(rows[:-1]), "held_out": loss(rows[-1:]), "cut": sum(c for _, c in rows),
            "learned": sum(sum(x >= 0 for x in r[1][1:]) for r, _ in rows)}


def main():
    (HERE / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **LLAMA}) + "\n")
    (HERE / "chat_template.jinja").write_text(TEMPLATE)
    model = make_model()
    questions = make_questions()
    out = {"tasks": tasks(questions), "step": step(model, make_chats())}
    out["chats"], out["masks"] = masks()
    lines = [f"{json.dumps(k)}: " + ("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in v) + "\n]" if isinstance(v, list) else
                                     json.dumps(v, ensure_ascii=False)) for k, v in out.items()]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({k: v for k, v in out["tasks"].items() if k != "log_likelihoods"}, out["step"])


if __name__ == "__main__":
    sys.exit(main())
