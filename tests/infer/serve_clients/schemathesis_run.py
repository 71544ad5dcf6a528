"""schemathesis against the example server's own description: schemathesis_run.py <path of the program serve> [options of `run`].

Ends with 77 (skipped) where the package `schemathesis` is not installed.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from example_server import served

if importlib.util.find_spec("schemathesis") is None:
    print("skipped: the Python package schemathesis is not installed (pip install schemathesis)")
    sys.exit(77)


def main(program, options):
    """All checks of schemathesis, with a fixed seed unless the options have another."""
    with served(program, keys=False) as address, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "schemathesis.cli", "run", address + "/openapi.json", "--seed", "1",
                   "--max-examples", "40", "--request-timeout", "60", "--generation-database", "none", *options]
        hooks = str(pathlib.Path(__file__).resolve().parent)
        path = os.pathsep.join([hooks, *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.call(command, cwd=folder, env={**os.environ, "PYTHONPATH": path, "SCHEMATHESIS_HOOKS": "schemathesis_hooks"})


sys.exit(main(sys.argv[1], sys.argv[2:]))
