"""The example `serve` with a small golden model on a free port, for the client checks beside this file."""
import contextlib
import json
import pathlib
import random
import re
import signal
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[3]
KEY = "a key with 100%25"


def expected():
    """Prompts of the golden model and the 64 greedy tokens that transformers gave for each."""
    return json.loads((SOURCE / "tests/golden/models/llama3/expected.json").read_text())


def widen(source, target, words, context):
    """Copies a model's folder, with random weights for a vocabulary of `words`: that of the tokenizer, so that it can chat."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
            continue
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, draw, body = json.loads(data[8:8 + size]), random.Random(7), b""
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            part = data[8 + size + begin:8 + size + end]
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                tensor["shape"][0] = words
                count = words * tensor["shape"][1]
                part = struct.pack(f"<{count}f", *(draw.gauss(0, 0.5) for _ in range(count)))
            tensor["data_offsets"] = [len(body), len(body) + len(part)]
            body += part
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (target / file.name).write_bytes(struct.pack("<Q", len(text)) + text + body)
    config = json.loads((source / "config.json").read_text())
    config["vocab_size"] = words
    config["max_position_embeddings"] = context
    (target / "config.json").write_text(json.dumps(config))


def healthy(address):
    """Whether the server answers calls."""
    try:
        with urllib.request.urlopen(address + "/health", timeout=10) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


@contextlib.contextmanager
def served(program, keys=True, chats=True, context=512, more=(), folder=None):
    """Starts `program`; gives its address, and stops it at the end. It must then end with 0.

    `more`: further options of the program and their values, None for one that has none. With `chats` the golden model has random weights for all words of the tokenizer, and `context`; without, it is as transformers wrote it.
    `folder`: a model to serve in its place, with its own tokenizer and chat template."""
    golden = SOURCE / "tests/golden"
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file, tempfile.TemporaryDirectory() as wide:
        file.write(KEY + "\n")
        file.flush()
        model = golden / "models/llama3"
        if folder is not None:
            model = folder
        elif chats:
            widen(model, pathlib.Path(wide) / "wide", 905, context)
            model = pathlib.Path(wide) / "wide"
        command = [program, "--model", str(model), "--port", "0", "--cache-mib", "4", "--name", "golden"]
        if folder is None:
            command += ["--tokenizer", str(golden / "tokenizer/llama3.json"), "--chat-template", "llama3"]
        for option, value in zip(more[::2], more[1::2]):  # in place of those, or further ones
            if option in command:
                command[command.index(option) + 1] = value
            else:
                command += [option] if value is None else [option, value]
        process = subprocess.Popen(command + (["--api-key-file", file.name] if keys else []), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        try:
            served.process = process.pid
            head = ""
            for line in process.stdout:
                head += line
                if "context" in line:  # the model is loaded
                    break
            found = re.search(r"http://[0-9.]+:\d+", head)
            if not found:
                raise SystemExit(f"the server did not start:\n{head}")
            until = time.monotonic() + 60
            while not healthy(found.group()):  # until the engine takes requests
                if time.monotonic() > until:
                    raise SystemExit("the server is not ready after 60 s")
                time.sleep(0.02)
            yield found.group()
            process.send_signal(signal.SIGTERM)
            if process.wait(60) != 0:
                raise SystemExit(f"the server ended with {process.returncode}:\n{process.stdout.read()}")
        finally:
            if process.poll() is None:
                process.kill()
