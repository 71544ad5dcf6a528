#!/usr/bin/env python3
"""A rank of a training run stops inside of a step: it alone is to be called silent, and the run is to go on from its save to the same loss.

    stopped.py <mpirun> <program> <reader of flight files>
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 8


def run(mpirun, program, *arguments):
    done = subprocess.run([mpirun, "-n", str(RANKS), program, *arguments], capture_output=True, text=True, timeout=200)
    begin = re.search(r"begins at step (\d+)", done.stdout)
    end = re.search(r"ends with .*", done.stdout)
    if done.returncode != 0 or not begin or not end:
        sys.exit(f"the run failed:\n{done.stdout}{done.stderr}")
    return int(begin[1]), end[0]


def main():
    mpirun, program, reader = sys.argv[1:4]
    seed = random.SystemRandom().randrange(2**32)
    culprit = random.Random(seed).randrange(RANKS)
    print(f"seed {seed}: rank {culprit} stops")
    _, whole = run(mpirun, program)
    with tempfile.TemporaryDirectory(prefix="heddle-stopped-") as folder:
        saves, flights = folder + "/saves", folder + "/flights"
        job = subprocess.Popen([mpirun, "-n", str(RANKS), program, saves, str(culprit)], env=dict(os.environ, HEDDLE_FLIGHT=flights),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        said, end = "", time.monotonic() + 120
        try:
            while time.monotonic() < end:
                said = subprocess.run([reader, "read", flights], capture_output=True, text=True).stdout
                if said.startswith(f"silent {culprit}\n") and "in step 5" in said:
                    break
                time.sleep(0.2)
            else:
                sys.exit(f"rank {culprit} should be silent in step 5, the files say:\n{said}")
            # It stays the only one.
            for _ in range(5):
                time.sleep(0.2)
                said = subprocess.run([reader, "read", flights], capture_output=True, text=True).stdout
                if not said.startswith(f"silent {culprit}\n"):
                    sys.exit(f"rank {culprit} alone should be silent, the files say:\n{said}")
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        print(said.strip())
        time.sleep(1)  # mpirun's daemons end its processes
        begin, again = run(mpirun, program, saves)
        print(f"from step {begin}: {again}")
        if begin != 3:
            sys.exit(f"the run should go on from step 3, not from {begin}")
        if again != whole:
            sys.exit(f"without the stop it {whole}")


if __name__ == "__main__":
    main()
