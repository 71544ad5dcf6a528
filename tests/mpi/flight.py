#!/usr/bin/env python3
"""Plants a fault in one of four processes and wants the flight files to name its kind and the culprit.

    flight.py <repetitions> <mpirun> <program> [<two_hosts.sh>]

With the script the processes are of two hosts, which the files' reader is none of: it cannot see that a process is gone.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# The fault, whether calls are compared, the kind that is to be named; those that hang are looked at while they do.
CASES = [
    ("none", "checked", "agreed"),
    ("none", "unchecked", "agreed"),
    ("skip", "checked", "skipped"),
    ("twice", "checked", "skipped"),
    ("size", "checked", "disagreed"),
    ("swap", "checked", "disagreed"),
    ("turn", "checked", "disagreed"),
    ("type", "checked", "disagreed"),
    ("operator", "checked", "disagreed"),
    ("root", "checked", "disagreed"),
    ("return", "checked", "missing"),
    ("throw", "checked", "missing"),
    ("silent", "checked", "silent"),
    ("silent", "unchecked", "silent"),
    ("order", "checked", "circle"),
    ("kill", "checked", "lost"),
    ("kill", "unchecked", "lost"),
    ("fault", "checked", "lost"),
]


def read(program, folder):
    done = subprocess.run([program, "read", folder], capture_output=True, text=True)
    lines = done.stdout.split("\n")
    words = lines[0].split() if lines else []
    return (words[0] if words else "", [int(r) for r in words[1:]], done.stdout + done.stderr)


def fits(fault, kind, want, culprits, culprit):
    if kind != want:
        return False
    if want == "agreed":
        return culprits == []
    if want == "circle":
        return culprit in culprits and len(culprits) >= 2
    return culprits == [culprit]


def case(launcher, program, fault, check, want, culprit):
    folder = tempfile.mkdtemp(prefix="heddle-flight-")
    job = subprocess.Popen([*launcher, program, "run", folder, fault, str(culprit), check], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        hangs = fault in ("silent", "order")
        end = time.monotonic() + 25
        said = "nothing"
        while time.monotonic() < end:
            over = job.poll() is not None
            if over or hangs:
                kind, culprits, said = read(program, folder)
                if fits(fault, kind, want, culprits, culprit):
                    return ""
                if over:
                    break
            time.sleep(0.05)
        return f"{fault} of rank {culprit} ({check}) should be {want}, the files say:\n{said}"
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        shutil.rmtree(folder)


def main():
    repetitions, mpirun, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    script = sys.argv[4] if len(sys.argv) > 4 else ""
    launcher = ["bash", script, mpirun] if script else [mpirun, "-n", "4"]
    if script and subprocess.run([*launcher, "true"], capture_output=True).returncode == 77:
        print("SKIPPED: there cannot be two hosts here")
        return 77
    cases = [(f, c, "silent" if script and want == "lost" else want) for f, c, want in CASES]
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    wrong = 0
    for _ in range(repetitions):
        for fault, check, want in cases:
            problem = case(launcher, program, fault, check, want, rng.randrange(1, 4))
            if problem:
                wrong += 1
                print(problem)
    print(f"{repetitions * len(cases) - wrong} of {repetitions * len(cases)} named")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
