"""schemathesis against the example server's own description: schemathesis_run.py <path of the program serve> [options of `run`].

Ends with 77 (skipped) where the package `schemathesis` is not installed.
"""
import importlib.util
import subprocess
import sys
import tempfile

from example_server import served

if importlib.util.find_spec("schemathesis") is None:
    print("skipped: the Python package schemathesis is not installed (pip install schemathesis)")
    sys.exit(77)


def main(program, options):
    """All checks and phases of schemathesis, with a fixed seed unless the options have another, and nothing between it and the server. The context has room for what it
    thinks of, since a description cannot count tokens; answers are short, so that many calls are made."""
    room = ["--context", "16384", "--answer", "24", "--cache-mib", "32"]
    with served(program, keys=False, context=16384, more=room) as address, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "schemathesis.cli", "run", address + "/openapi.json", "--seed", "1", "--checks", "all",
                   "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100", "--request-timeout", "60", "--max-response-time", "60",
                   "--generation-database", "none", *options]
        return subprocess.call(command, cwd=folder)


sys.exit(main(sys.argv[1], sys.argv[2:]))
