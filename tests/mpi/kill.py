#!/usr/bin/env python3
"""Kills a random process of a running program at a random moment, and wants the others to end and to say who is lost.

    kill.py <repetitions> <mpirun> <program> [unnamed]

Within 10 seconds mpirun has to end, its output has to name the lost rank, and no process of the program may be left. `unnamed`
asks for no name: MPICH's launcher kills the others before they can say anything, and names any one of the processes.
"""
import os
import random
import re
import signal
import subprocess
import sys
import time

RANKS = 4


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def end_all(job, processes):
    for pid in processes.values():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    job.kill()
    job.communicate()


def drill(mpirun, program, rng, must_name):
    checked = rng.choice(["checked", "unchecked"])
    job = subprocess.Popen([mpirun, "-n", str(RANKS), program, checked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes, output = {}, ""
    while len(processes) < RANKS:
        line = job.stdout.readline()
        if not line:
            end_all(job, processes)
            return f"the program did not start:\n{output}"
        output += line
        for rank, pid in re.findall(r"rank (\d+) process (\d+)", line):
            processes[int(rank)] = int(pid)
    time.sleep(rng.uniform(0, 0.5))
    victim = rng.randrange(RANKS)
    start = time.monotonic()
    os.kill(processes[victim], signal.SIGKILL)
    try:
        rest, _ = job.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        end_all(job, processes)
        return f"{checked}: rank {victim} was killed, and after 10 s the job had not ended"
    seconds = time.monotonic() - start
    output += rest
    while time.monotonic() - start < 10 and any(alive(pid) for pid in processes.values()):
        time.sleep(0.01)
    left = [rank for rank, pid in processes.items() if alive(pid)]
    if left:
        end_all(job, processes)
        return f"{checked}: rank {victim} was killed, and rank {left[0]} is still there"
    if job.returncode == 0:
        return f"{checked}: rank {victim} was killed, and the job ended as if nothing had happened"
    named = f"heddle: rank {victim} is lost" in output or re.search(rf"\brank {victim}\b.*(signal 9|Killed)", output)
    if must_name and not named:
        return f"{checked}: rank {victim} was killed, but is not named:\n{output}"
    drill.named += f"heddle: rank {victim} is lost" in output
    print(f"{checked}: rank {victim} killed, ended after {seconds:.2f} s")
    return ""


if __name__ == "__main__":
    repetitions, mpirun, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    must_name = sys.argv[4:] != ["unnamed"]
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    drill.named = 0
    for _ in range(repetitions):
        problem = drill(mpirun, program, rng, must_name)
        if problem:
            sys.exit(problem)
    print(f"{repetitions} of {repetitions} ended in time{' and named the lost rank' if must_name else ''}, {drill.named} by heddle's own message")
