"""The official `openai` client against the example server: openai_client.py <path of the program serve>.

Ends with 77 (skipped) where the package `openai` is not installed.
"""
import json
import re
import sys
import time
import urllib.request

from example_server import KEY, expected, served

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed (pip install openai)")
    sys.exit(77)


try:
    import jsonschema
except ImportError:
    jsonschema = None


def refused(call, kind, status):
    """Asserts that a call raises the client's error `kind` with this status."""
    try:
        call()
    except kind as e:
        assert e.status_code == status, f"status {e.status_code}, expected {status}"
        return e
    raise AssertionError(f"a call that should be refused with {status} was answered")


def metrics(address):
    """Values of the server's metrics by name, those of all labels but the model's added up."""
    request = urllib.request.Request(address + "/metrics", headers={"Authorization": "Bearer " + KEY})
    out = {}
    for name, labels, value in re.findall(r"^heddle:(\w+)({[^}]*})? ([0-9.e+-]+)$",
                                          urllib.request.urlopen(request, timeout=10).read().decode(), re.M):
        reason = re.search(r'finished_reason="(\w+)"', labels)
        key = name + (":" + reason.group(1) if reason else "")
        out[key] = out.get(key, 0.0) + float(value)
    return out


def wait_for(condition, what):
    """Waits until `condition()` holds, at most 20 s."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def main(program):
    """Every kind of call once, and refusals as the client's own exceptions."""
    golden = expected()
    with served(program, chats=False) as address:
        client = openai.OpenAI(base_url=address + "/v1", api_key=KEY, max_retries=0, timeout=60)
        assert [m.id for m in client.models.list()] == ["golden"]
        assert client.models.retrieve("golden").owned_by == "heddle"

        greedy = {"model": "golden", "temperature": 0, "max_tokens": 64, "extra_body": {"ignore_eos": True}}
        whole = [client.completions.create(prompt=p, **greedy) for p in golden["samples"][:2]]
        for answer, prompt, ids in zip(whole, golden["samples"], golden["generated"]):
            assert answer.usage.prompt_tokens == len(prompt) and answer.usage.completion_tokens == len(ids)
            assert answer.choices[0].finish_reason == "length"
        parts = list(client.completions.create(prompt=golden["samples"][0], stream=True,
                                               stream_options={"include_usage": True}, **greedy))
        assert "".join(p.choices[0].text for p in parts if p.choices) == whole[0].choices[0].text
        assert parts[-1].usage.completion_tokens == 64
        both = client.completions.create(prompt=golden["samples"][:2], **greedy)
        assert [c.text for c in both.choices] == [w.choices[0].text for w in whole]

    with served(program) as address:
        client = openai.OpenAI(base_url=address + "/v1", api_key=KEY, max_retries=0, timeout=60)
        chat = {"model": "golden", "messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 8}
        answer = client.chat.completions.create(n=3, logprobs=True, top_logprobs=2, **chat)
        assert [c.index for c in answer.choices] == [0, 1, 2]
        for c in answer.choices:
            assert c.message.role == "assistant" and len(c.logprobs.content[0].top_logprobs) == 2
        stream = client.chat.completions.create(stream=True, **chat)
        text = "".join(e.choices[0].delta.content or "" for e in stream)
        assert text == answer.choices[0].message.content

        before = metrics(address).get("request_success_total:cancelled", 0)
        for _ in range(3):  # leave, as early as can be
            with client.chat.completions.create(stream=True, **{**chat, "max_tokens": 490},
                                                extra_body={"ignore_eos": True}) as cut:
                next(iter(cut))
        wait_for(lambda: metrics(address).get("request_success_total:cancelled", 0) > before,
                 "no request of a stream that was left is cancelled")
        wait_for(lambda: metrics(address)["num_requests_running"] == 0 and metrics(address)["kv_cache_usage_perc"] == 0,
                 "requests of streams that were left still run, or hold blocks of the cache")

        schema = {"type": "object", "properties": {"kind": {"enum": ["warp", "weft"]},
                                                   "threads": {"type": "array", "maxItems": 2,
                                                               "items": {"type": "integer", "minimum": 0, "maximum": 9}}},
                  "required": ["kind", "threads"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "part", "schema": schema, "strict": True}}
        stopped = 0
        for c in client.chat.completions.create(**{**chat, "n": 20, "max_tokens": 120}, response_format=form).choices:
            if c.finish_reason != "stop":
                continue
            stopped += 1
            value = json.loads(c.message.content)
            if jsonschema:
                jsonschema.validate(value, schema)
            assert list(value) == ["kind", "threads"], value
        assert stopped > 0, "no answer by a schema ended"
        for c in client.chat.completions.create(**{**chat, "n": 5}, response_format={"type": "regex", "regex": "yes|no"},
                                                ).choices:
            assert c.message.content in ("yes", "no") and c.finish_reason == "stop", c
        refused(lambda: client.chat.completions.create(**chat, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "not": {"const": "a"}}}}),
                openai.BadRequestError, 400)

        refused(lambda: client.completions.create(model="golden", prompt="x", n=0), openai.BadRequestError, 400)
        e = refused(lambda: client.completions.create(model="golden", prompt="x", logit_bias={"99999": 1}),
                    openai.BadRequestError, 400)
        assert e.param == "logit_bias"
        refused(lambda: client.completions.create(model="other", prompt="x"), openai.NotFoundError, 404)
        wrong = openai.OpenAI(base_url=address + "/v1", api_key="a key with 100%", max_retries=0)
        refused(lambda: wrong.completions.create(model="golden", prompt="x"), openai.AuthenticationError, 401)
    print(f"openai {openai.__version__}: models, completions, conversations, streams, refusals: all as expected")


main(sys.argv[1])
