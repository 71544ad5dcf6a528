"""The load generator guidellm against the example server: guidellm_run.py <path of the program serve>.

Poisson arrivals and requests one beside the other, of prompts of several lengths; every request must end well, and the server's own counts must agree.
Ends with 77 (skipped) where the package `guidellm` is not installed.
"""
import importlib.util
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from example_server import served

if importlib.util.find_spec("guidellm") is None:
    print("skipped: the Python package guidellm is not installed (pip install guidellm)")
    sys.exit(77)

REQUESTS = 40


def counts(report):
    """Requests that ended well in a report of guidellm, and what it says about others."""
    good, bad = 0, []
    for benchmark in report["benchmarks"]:
        requests = benchmark["requests"]
        good += len(requests["successful"])
        bad += [str(r.get("info", r).get("error", r))[:500] for r in requests["errored"] + requests["incomplete"]]
    return good, bad


def main(program):
    """One run for each way in which requests arrive."""
    command = shutil.which("guidellm", path=str(pathlib.Path(sys.executable).parent)) or "guidellm"
    draw = random.Random(5)
    with served(program, keys=False) as address, tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "prompts.jsonl"
        words = "the warp thread of a loom lifts each weft to its place".split()
        data.write_text("".join(
            json.dumps({"prompt": " ".join(draw.choices(words, k=draw.randint(3, 40))), "output_tokens_count": 16}) + "\n"
            for _ in range(REQUESTS)))
        total = 0
        for number, profile in enumerate(["kind=concurrent,streams=4", "kind=poisson,rate=20"]):
            report = pathlib.Path(folder) / f"report{number}.json"
            subprocess.run([command, "run", "--backend", f"kind=openai_http,target={address},request_format=/v1/chat/completions",
                            "--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}",
                            "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}",
                            "--disable-progress", "--disable-console"], check=True, timeout=280)
            good, bad = counts(json.loads(report.read_text()))
            # Of Poisson arrivals guidellm 0.8 leaves the last one out of its report at times.
            assert bad == [] and good >= 0.9 * REQUESTS, f"{profile}: {good} requests ended well, others did not: {bad[:3]}"
            total += good
        metrics = urllib.request.urlopen(address + "/metrics", timeout=10).read().decode()
        ended = sum(float(n) for n in re.findall(r'heddle:request_success_total{[^}]*} ([0-9.]+)', metrics))
        assert ended >= total, f"the server counts {ended} requests, guidellm {total}"
    print(f"guidellm: {total} requests, all ended well")


main(sys.argv[1])
