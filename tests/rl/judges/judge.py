"""A judge that does what the answer says: see reward_process_test.cpp."""
import json
import os
import signal
import subprocess
import sys
import time

if len(sys.argv) > 1 and sys.argv[1] == "deaf":  # reads nothing, and closes its input
    os.close(0)
    print('{"reward": 0.5}', flush=True)
    time.sleep(60)
asked = json.loads(sys.stdin.readline())
answer = asked["answer"]
word, _, rest = answer.partition(" ")
if word == "good":
    print(json.dumps({"reward": len(asked["answer_tokens"]) + 100 * len(asked["prompt_tokens"]), "more": [1]}), flush=True)
elif word == "lingers":  # after its line it has nothing more to do
    print('{"reward": 3}', flush=True)
    time.sleep(60)
elif word == "unended":
    sys.stdout.write('{"reward": 4}')
elif word == "nan":
    print(json.dumps({"reward": float("nan")}))
elif word == "huge":
    print('{"reward": 1e999}')
elif word == "words":
    print("a good answer")
elif word == "text":
    print('{"reward": "1"}')
elif word == "throws":
    raise ValueError("no such answer")
elif word == "silent":
    pass
elif word == "closes":  # its output, and then stays
    os.close(1)
    time.sleep(60)
elif word == "hangs":
    time.sleep(60)
elif word == "spins":
    while True:
        pass
elif word == "floods":  # 1 GB without an end of line
    block = b"1" * (1 << 20)
    for _ in range(1 << 10):
        os.write(1, block)
elif word == "shouts":  # on its standard error, for ever
    while True:
        os.write(2, b"x" * (1 << 16))
elif word == "eats":
    kept = bytearray(1 << 31)
    print('{"reward": 1}')
elif word == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
elif word == "forks":  # a child that holds the output, in the same group
    child = subprocess.Popen(["sleep", "60"])
    with open(rest, "w") as file:
        file.write(str(child.pid))
