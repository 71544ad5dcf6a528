"""The official `openai` client against the example server: openai_client.py <path of the program serve>.

Ends with 77 (skipped) where the package `openai` is not installed.
"""
import sys

from example_server import KEY, expected, served

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed (pip install openai)")
    sys.exit(77)


def refused(call, kind, status):
    """Asserts that a call raises the client's error `kind` with this status."""
    try:
        call()
    except kind as e:
        assert e.status_code == status, f"status {e.status_code}, expected {status}"
        return e
    raise AssertionError(f"a call that should be refused with {status} was answered")


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

        with client.chat.completions.create(stream=True, **{**chat, "max_tokens": 500}) as cut:
            next(iter(cut))  # and leave

        refused(lambda: client.completions.create(model="golden", prompt="x", n=0), openai.BadRequestError, 400)
        e = refused(lambda: client.completions.create(model="golden", prompt="x", logit_bias={"99999": 1}),
                    openai.BadRequestError, 400)
        assert e.param == "logit_bias"
        refused(lambda: client.completions.create(model="other", prompt="x"), openai.NotFoundError, 404)
        wrong = openai.OpenAI(base_url=address + "/v1", api_key="a key with 100%", max_retries=0)
        refused(lambda: wrong.completions.create(model="golden", prompt="x"), openai.AuthenticationError, 401)
    print(f"openai {openai.__version__}: models, completions, conversations, streams, refusals: all as expected")


main(sys.argv[1])
