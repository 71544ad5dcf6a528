"""The official `openai` client's example of tools against the example server: openai_tools.py <path of the program serve> [format ...].

A model that calls a tool is made first, for each of the formats of Qwen, Llama 3 and Mistral: `finetune --chat`, the program beside `serve`, teaches
a small random Llama one conversation by heart, with the chat template of the format (those of tests/golden/tokenizer/chat_templates.json).
Ends with 77 (skipped) where the package `openai` is not installed or `finetune` is not built.
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from example_server import KEY, SOURCE, served

try:
    from openai import OpenAI
except ImportError:
    print("skipped: the Python package openai is not installed (pip install openai)")
    sys.exit(77)

# ---- the example, as the client's documentation has it -------------------------------------------------------------------------------
tools = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current temperature for a given location.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "City and country e.g. Bogotá, Colombia"
                }
            },
            "required": [
                "location"
            ],
            "additionalProperties": False
        },
        "strict": True
    }
}]
QUESTION = "What is the weather like in Paris today?"
ARGUMENTS = {"location": "Paris, France"}
RESULT = "14"
ANSWER = "It is 14 degrees in Paris."


def get_weather(location):
    assert location == ARGUMENTS["location"], location
    return RESULT


def whole(client, model):
    messages = [{"role": "user", "content": QUESTION}]
    completion = client.chat.completions.create(model=model, messages=messages, tools=tools)
    tool_call = completion.choices[0].message.tool_calls[0]
    args = json.loads(tool_call.function.arguments)
    result = get_weather(args["location"])
    messages.append(completion.choices[0].message)
    messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": str(result)})
    completion_2 = client.chat.completions.create(model=model, messages=messages, tools=tools)
    assert completion.choices[0].finish_reason == "tool_calls" and not completion.choices[0].message.content
    assert tool_call.type == "function" and tool_call.function.name == "get_weather" and len(completion.choices[0].message.tool_calls) == 1
    return completion_2.choices[0].message.content


def streamed(client, model):
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": QUESTION}], tools=tools, stream=True)
    final_tool_calls = {}
    reasons = []
    for chunk in stream:
        reasons += [c.finish_reason for c in chunk.choices if c.finish_reason]
        for tool_call in chunk.choices[0].delta.tool_calls or []:
            index = tool_call.index
            if index not in final_tool_calls:
                final_tool_calls[index] = tool_call
            else:
                final_tool_calls[index].function.arguments += tool_call.function.arguments
        assert not chunk.choices[0].delta.content, chunk
    assert reasons == ["tool_calls"] and list(final_tool_calls) == [0], (reasons, final_tool_calls)
    call = final_tool_calls[0]
    result = get_weather(**json.loads(call.function.arguments))
    messages = [{"role": "user", "content": QUESTION},
                {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude={"index"})]},
                {"role": "tool", "tool_call_id": call.id, "content": result}]
    stream = client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


# ---- models that call ------------------------------------------------------------------------------------------------------------------
MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
FORMATS = {  # template, tokenizer, tokens that it gets, beginning and end
    "qwen": ("qwen-tools", "qwen2", [], None, "<|im_end|>"),
    "llama3": ("llama3-tools", "llama3", [], "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("mistral-tools", "qwen2", MISTRAL, "<s>", "</s>"),
}
WIDTH, LAYERS, HEADS, INNER, CONTEXT = 32, 2, 2, 64, 640


def make_model(folder, template, tokenizer, added, bos, eos):
    """Writes a random Llama with this tokenizer and template."""
    golden = SOURCE / "tests/golden/tokenizer"
    words = json.loads((golden / f"{tokenizer}.json").read_text())
    words["post_processor"] = None
    first = 1 + max(t["id"] for t in words["added_tokens"])
    words["added_tokens"] += [{"id": first + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                               "special": True} for i, t in enumerate(added)]
    ids = {t["content"]: t["id"] for t in words["added_tokens"]}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    styles = json.loads((golden / "chat_templates.json").read_text())["templates"]
    (folder / "chat_template.jinja").write_text(next(t["source"] for t in styles if t["name"] == template))
    marks = {"eos_token": eos, **({"bos_token": bos} if bos else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **marks}))
    vocabulary = max(ids.values()) + 1
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": vocabulary, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": ids[eos]}))
    # Generation is greedy where a call does not say otherwise.
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "eos_token_id": ids[eos]}))
    draw = random.Random(5)
    shapes = {"model.embed_tokens.weight": [vocabulary, WIDTH], "model.norm.weight": [WIDTH]}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {at + f"self_attn.{n}_proj.weight": [WIDTH, WIDTH] for n in "qkvo"}
        shapes |= {at + f"{n}.weight": [WIDTH] for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {at + "mlp.gate_proj.weight": [INNER, WIDTH], at + "mlp.up_proj.weight": [INNER, WIDTH], at + "mlp.down_proj.weight": [WIDTH, INNER]}
    header, body = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [draw.gauss(0, 0.15) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + 4 * count]}
        body += struct.pack(f"<{count}f", *values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def teach(program, folder, steps=250):
    """Teaches the model the example's conversation, and gives the folder of what has learned it."""
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    conversation = [{"role": "user", "content": QUESTION}, asks, {"role": "tool", "tool_call_id": call["id"], "content": RESULT},
                    {"role": "assistant", "content": ANSWER}]
    chats = folder / "chats.jsonl"
    # Twice: as data, and as what is held out.
    chats.write_text((json.dumps({"messages": conversation, "tools": tools}, ensure_ascii=False) + "\n") * 2)
    out = folder.parent / (folder.name + "-taught")
    told = subprocess.run([program, "--model", folder, "--chat", chats, "--out", out, "--steps", str(steps), "--lr", "0.01", "--batch", "1",
                           "--context", str(CONTEXT)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if told.returncode != 0:
        raise SystemExit(f"finetune ended with {told.returncode}:\n{told.stdout}")
    print("\n".join(line for line in told.stdout.splitlines() if "conversations" in line or "validation loss" in line))
    return out


def main(program, names):
    """The example, whole and streamed, with a model of each format."""
    finetune = pathlib.Path(program).with_name("finetune")
    if not finetune.exists():
        print(f"skipped: {finetune} is not built")
        return 77
    for name in names or FORMATS:
        template, tokenizer, added, bos, eos = FORMATS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place) / name
            folder.mkdir()
            make_model(folder, template, tokenizer, added, bos, eos)
            with served(program, folder=teach(finetune, folder)) as address:
                client = OpenAI(base_url=address + "/v1", api_key=KEY, max_retries=0, timeout=120)
                for way in (whole, streamed):
                    said = way(client, "golden")
                    assert said.strip() == ANSWER, f"{name}, {way.__name__}: {said!r}"
                print(f"{name}: the example of tools, whole and streamed: {ARGUMENTS}, then {ANSWER!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
