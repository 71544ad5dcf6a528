"""Prometheus' own parser on /metrics of `serve --watch` under load: prometheus.py <path of the program serve>.

Ends with 77 (skipped) without the package prometheus-client.
"""
import json
import sys
import threading
import time
import urllib.request

from example_server import served

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("SKIPPED: the package prometheus-client is missing")
    sys.exit(77)


def families(address):
    with urllib.request.urlopen(address + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):  # throws for what Prometheus would not take
        assert family.name not in found, f"{family.name} comes twice"
        assert family.type != "unknown", f"{family.name} has no type"
        found[family.name] = family
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(len(f.samples) for f in found.values()) == len(lines), "the parser passed over some lines"
    return found


def main():
    with served(sys.argv[1], keys=False, chats=False, more=("--watch", None)) as address:
        end = time.monotonic() + 4

        def load(seed):
            while time.monotonic() < end:
                body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 8, "seed": seed}).encode()
                call = urllib.request.Request(address + "/v1/completions", body, {"Content-Type": "application/json"})
                urllib.request.urlopen(call, timeout=30).read()

        clients = [threading.Thread(target=load, args=(k,)) for k in range(4)]
        for c in clients:
            c.start()
        while time.monotonic() < end:
            families(address)
            time.sleep(0.2)
        for c in clients:
            c.join()
        found = families(address)
        conditions = {s.labels["name"]: s.value for s in found["heddle:condition"].samples}
        assert {"admission_burst", "ingress_starvation", "early_finish"} <= set(conditions), conditions
        assert set(conditions.values()) <= {0.0, 1.0}, conditions
        histograms = [f for f in found.values() if f.type == "histogram"]
        assert histograms, "no histogram"
        for f in histograms:
            counts = [s.value for s in f.samples if s.name.endswith("_bucket")]
            assert counts == sorted(counts), f"the buckets of {f.name} are not cumulative"
            assert counts[-1] == next(s.value for s in f.samples if s.name.endswith("_count")), f.name
        print(f"{len(found)} families, {len(histograms)} histograms, conditions {sorted(conditions)}")


if __name__ == "__main__":
    main()
