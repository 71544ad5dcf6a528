"""Judges an answer to a sum: half for the share of its characters that are right, half for the share of digits.

It reads a line of JSON, in whose "facts" is the line of the prompt, and prints a line of JSON."""
import json
import sys

asked = json.loads(sys.stdin.readline())
right, said = str(asked["facts"]["sum"]), asked["answer"]
longer = max(len(right), len(said))
same = sum(a == b for a, b in zip(right, said)) / longer
digits = sum(c in "0123456789" for c in said) / longer
print(json.dumps({"reward": (same + digits) / 2}))
