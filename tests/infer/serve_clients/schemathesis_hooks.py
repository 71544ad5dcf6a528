"""What the server's description cannot say, for schemathesis: that a conversation has room in the context, and which schemas and expressions are supported."""
import json

import schemathesis

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def _shorten(messages, most):
    """Cuts texts to `most` characters, which have at most four tokens each, and leaves the first messages."""
    del messages[4:]
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            message["content"] = content[:most]
        else:
            del content[4:]
            for part in content:
                part["text"] = part["text"][:most // 4]


@schemathesis.hook
def before_call(context, case, kwargs):
    """Only calls that are valid by the description are changed: the others are to be refused."""
    del context, kwargs
    mode = case.meta.generation.mode if case.meta else None
    if mode is None or mode.value != "positive" or not isinstance(case.body, dict):
        return
    body = case.body
    if "messages" in body:
        _shorten(body["messages"], 12)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        body["prompt"] = prompt[:100]
    elif isinstance(prompt, list):
        body["prompt"] = [p[:100] if isinstance(p, str) else p for p in prompt]
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "regex":
        form["regex"] = "[a-z]{1,9}"
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form["json_schema"]["schema"] = json.loads(json.dumps(SCHEMA))
