#!/usr/bin/env python3
"""PyTorch's own analyzer reads converted flight files: of each fault it says what heddle says, or nothing. Needs torch.

    pytorch_flights.py <mpirun> <program heddle_mpi_flight> <program diagnose>
"""
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time

try:
    from torch.distributed.flight_recorder import fr_trace
except ImportError:
    print("SKIPPED: torch with its flight recorder's analyzer is not installed")
    sys.exit(77)

# The fault, and whether their analyzer decides; it knows no operators, roots and steps.
CASES = [("none", False), ("size", True), ("type", True), ("swap", True), ("return", True), ("throw", True), ("silent", True),
         ("kill", True), ("order", True), ("operator", False), ("root", False), ("skip", False), ("twice", False)]
HANGS = ("silent", "order")
CULPRIT = 2


def flights(mpirun, program, diagnose, fault, folder):
    """Runs until the verdict stands; gives it, and the folder of dumps."""
    job = subprocess.Popen([mpirun, "-n", "4", program, "run", folder, fault, str(CULPRIT), "checked"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, start_new_session=True)
    said = {}
    try:
        end = time.monotonic() + 25
        while time.monotonic() < end:
            over = job.poll() is not None
            done = subprocess.run([diagnose, folder, "--json", "--pytorch", folder + "/dumps"], capture_output=True, text=True)
            said = json.loads(done.stdout) if done.stdout.startswith("{") else {}
            if over or (fault in HANGS and len(said.get("culprits", [])) + len(said.get("victims", [])) == 4 and said["kind"] != "agreed"):
                break
            time.sleep(0.1)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return said


def theirs(dumps):
    """The first collective that did not pass: its group, number and name, and the ranks that they name."""
    out = dumps + ".out"
    fr_trace.main([dumps, "-p", "heddle_", "-o", out])
    with open(out, "rb") as f:
        _, db = pickle.load(f)
    for c in db.collectives:
        if not c.pass_check or c.missing_ranks:
            ranks = sorted(c.missing_ranks or (c.mismatch_collectives or {}).keys())
            return c.pg_desc, c.collective_seq_id, c.collective_name, ranks, "missing" if c.missing_ranks else "differ"
    return None


def main():
    mpirun, program, diagnose = sys.argv[1:4]
    wrong = 0
    for fault, decides in CASES:
        with tempfile.TemporaryDirectory(prefix="heddle-pytorch-") as folder:
            said = flights(mpirun, program, diagnose, fault, folder)
            found = theirs(folder + "/dumps")
            print(f"{fault}: heddle {said.get('kind')} {said.get('culprits')} call {said.get('call')} of ({said.get('group')}); PyTorch {found}")
            if (found is not None) != decides:
                wrong += 1
                print("  it should " + ("decide" if decides else "say nothing"))
            elif found is not None:
                if not set(found[3]) & set(said["culprits"]):
                    wrong += 1
                    print("  it names other ranks")
                if said["call"] and said["kind"] != "circle" and (found[1] != said["call"] or said["group"] not in found[0]):
                    wrong += 1
                    print("  it names another call")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
