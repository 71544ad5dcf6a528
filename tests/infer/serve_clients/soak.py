"""Many clients at once that leave at random: soak.py <path of the program serve> [seconds] [clients].

Each of 200 clients makes one call after the other for 60 s: whole, streamed, constrained by expressions and schemas; some leave before or within the answer. What is answered must be what the same call got alone. In the end no
request runs or waits, no block of the cache is in use, and the server's memory has not grown with the number of calls. Needs nothing but Python.
"""
import asyncio
import json
import pathlib
import random
import re
import sys
import time
import urllib.request

from example_server import served

CALLS = []
for i in range(24):
    CALLS.append({"prompt": [(7 * i + k) % 900 + 4 for k in range(1 + 3 * i % 40)], "max_tokens": 4 + 5 * i % 60, "seed": i,
                  "temperature": 0 if i % 3 == 0 else 1, "ignore_eos": True})
for i in range(4):
    CALLS.append({"prompt": [5, 6, 7 + i], "max_tokens": 40, "seed": i, "response_format": {"type": "regex", "regex": "(ab|c)+!"}})


for i in range(8):  # more schemas than memory for their tables, each asked for by several clients at once
    schema = {"type": "object", "additionalProperties": False, "required": ["n", "s"], "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9 + i}, "s": {"type": "string", "minLength": 2, "maxLength": 300 + 80 * i}}}
    CALLS.append({"prompt": [5, 6, 7 + i], "max_tokens": 30 + i, "seed": i,
                  "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}})


async def call(host, port, body, leave_after=None):
    """The text of an answer, or None where it was left after so many bytes, or the status of a refusal."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        text = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "
                     + str(len(text)).encode() + b"\r\n\r\n" + text)
        await writer.drain()
        got = b""
        while True:
            if leave_after is not None and len(got) >= leave_after:
                return None
            more = await reader.read(4096)
            if not more:
                break
            got += more
    finally:
        writer.transport.abort() if leave_after is not None else writer.close()
    while got.startswith(b"HTTP/1.1 100"):
        got = got.split(b"\r\n\r\n", 1)[1]
    head, rest = got.split(b"\r\n\r\n", 1)
    status = int(head.split()[1])
    if status != 200:
        return status
    if not body.get("stream"):
        return json.loads(rest)["choices"][0]["text"]
    body_text, at = b"", 0  # chunks
    while True:
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end], 16)
        if size == 0:
            break
        body_text += rest[end + 2:end + 2 + size]
        at = end + 4 + size
    assert body_text.endswith(b"data: [DONE]\n\n"), body_text[-200:]
    events = [json.loads(e[6:]) for e in body_text.decode().split("\n\n") if e.startswith("data: {")]
    return "".join(e["choices"][0]["text"] for e in events)


def resident_kib(process):
    """Memory of the server."""
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process}/status").read_text()).group(1))


async def client(host, port, seed, until, expected, seen):
    """One client, until its time is over."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        which = draw.randrange(len(CALLS))
        body = {**CALLS[which], "stream": draw.random() < 0.5}
        leave = draw.choice([0, 0, 200, 700]) if draw.random() < 0.4 else None
        answer = await call(host, port, body, leave)
        if isinstance(answer, int):
            assert answer in (429, 503), f"status {answer} for {body}"
            seen["refused"] += 1
            await asyncio.sleep(0.2)
        elif answer is None:
            seen["left"] += 1
        else:
            assert answer == expected[which], f"{body}: got {answer!r}, alone {expected[which]!r}"
            seen["answered"] += 1


async def run(address, process, seconds, clients):
    """All clients; then what they left behind."""
    host, port = address.removeprefix("http://").split(":")
    expected = [await call(host, int(port), c) for c in CALLS]
    assert all(isinstance(e, str) for e in expected), expected
    seed = random.randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    seen = {"answered": 0, "left": 0, "refused": 0}
    until = time.monotonic() + seconds
    memory = []

    async def watch():
        while time.monotonic() < until:
            await asyncio.sleep(seconds / 10)
            memory.append(resident_kib(process))

    await asyncio.gather(watch(), *(client(host, int(port), seed + i, until, expected, seen) for i in range(clients)))
    for _ in range(200):
        metrics = urllib.request.urlopen(address + "/metrics", timeout=10).read().decode()
        value = lambda name: float(re.search(rf"heddle:{name}{{[^}}]*}} ([0-9.e+-]+)", metrics).group(1))
        left = [value(n) for n in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
        if left == [0, 0, 0]:
            break
        await asyncio.sleep(0.1)
    assert left == [0, 0, 0], f"running, waiting, cache in use: {left}"
    assert [await call(host, int(port), c) for c in CALLS] == expected
    print(f"{seen}; refused by {value('requests_refused_total'):g}; {value('num_preemptions_total'):g} preemptions; resident KiB by tenths of the time {memory}")
    assert seen["answered"] > clients and seen["left"] > clients, seen
    assert memory[-1] < memory[len(memory) // 2] * 1.2 + 20000, f"memory grows: {memory}"


def main(program, seconds=60.0, clients=200):
    """A server with a cache that holds only some of what runs."""
    with served(program, keys=False, more=["--cache-mib", "1", "--running", "64", "--context", "128", "--mask-mib", "1", "--grammar-mib", "9",
                                             "--waiting", "160"]) as address:
        asyncio.run(run(address, served.process, float(seconds), int(clients)))


main(*sys.argv[1:])
