#!/usr/bin/env python3
"""Programs of threads, MPI and NCCL under a launcher: right, or one sentence and status 1, and never two whole jobs.

    started.py <variables|mpirun|torchrun|srun> --threads PROGRAM [--mpi PROGRAM] [--nccl PROGRAM] [--mpirun PROGRAM]

PROGRAM of threads prints on rank 0 and needs no arguments; that of MPI is tests/mpi/endings.cpp, that of NCCL tests/nccl/gpu_test.cpp over the
stand-in for processes. `srun` starts a Slurm of one node in a scratch folder (munged, slurmctld, slurmd; root), and ends it. What is not here is
said; status 77 where it is the launcher.
"""
import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WRONG = []
LAUNCHERS = ("HEDDLE_", "OMPI_", "PMI", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC_", "MPI_LOCALRANKID")
KEPT = ("OMPI_ALLOW_", "OMPI_MCA_")


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS) or k.startswith(KEPT)}


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def check(what, commands, status, pattern, times=1):
    """Runs the commands at the same time, each a pair of variables and words: their status, and how often the pattern is in what all say."""
    run = [subprocess.Popen(words, env=clean() | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) for variables, words in commands]
    said, ended = "", []
    for process in run:
        try:
            said += process.communicate(timeout=200)[0]
        except subprocess.TimeoutExpired:
            for one in run:  # with what they have started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            said += process.communicate()[0] + "\nstarted.py: stopped after 200 s"
        ended.append(process.returncode)
    found = len(re.findall(pattern, said))
    right = all(e == status for e in ended) and (found == times if times is not None else found > 0)
    print(f"{'right' if right else 'WRONG'}: {what}", flush=True)
    if not right:
        WRONG.append(what)
        print(f"  status {ended}, should be {status}; '{pattern}' is there {found} times, should be {times}; said:\n{said[-3000:]}", flush=True)


def refusal(by, of):
    return rf"heddle: started as process \d+ of \d+ by {by}, but " + {
        "threads": "its ranks are threads of each process", "mpi": "MPI sees one process", "nccl": "not where the ranks meet"}[of]


def whole_job(ranks):
    """What each of NCCL's processes says at its end."""
    return rf"process \d of {ranks}: \d+ checks, 0 wrong"


def variables(given):
    sets = {
        "torchrun": lambda r: {"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        "mpiexec": lambda r: {"PMI_RANK": str(r), "PMI_SIZE": "2"},
        "srun": lambda r: {"SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(r)},
    }
    for by, of in sets.items():
        check(f"threads with the variables of {by}", [(of(r), [given.threads]) for r in range(2)], 1, refusal(by, "threads"), 2)
        if given.mpi:
            check(f"mpi with the variables of {by}, not started by MPI", [(of(r), [given.mpi, "sum"]) for r in range(2)], 1, refusal(by, "mpi"), 2)
        if given.nccl:
            if by != "torchrun":
                check(f"nccl with the variables of {by} alone", [(of(r), [given.nccl]) for r in range(2)], 1, refusal(by, "nccl"), 2)
            meet = {"HEDDLE_RENDEZVOUS": f"tcp://localhost:{free_ports(1)[0]}"}
            check(f"nccl with the variables of {by} and HEDDLE_RENDEZVOUS", [(of(r) | meet, [given.nccl]) for r in range(2)], 0, whole_job(2), 2)


def mpirun(given):
    two = [given.mpirun, "-n", "2"]
    check("mpirun -n 2, threads", [({}, [*two, given.threads])], 1, refusal("mpi(run|exec)", "threads"), None)
    if given.mpi:
        check("mpirun -n 2, mpi", [({}, [*two, given.mpi, "sum"])], 0, "2 processes: the sum is 3")
    if given.nccl:
        check("mpirun -n 2, nccl", [({}, [*two, given.nccl])], 1, refusal("mpi(run|exec)", "nccl"), None)
        meet = {"HEDDLE_RENDEZVOUS": f"tcp://localhost:{free_ports(1)[0]}"}
        check("mpirun -n 2, nccl and HEDDLE_RENDEZVOUS", [(meet, [*two, given.nccl])], 0, whole_job(2), 2)


def torchrun(given):
    start = [given.torchrun, "--no-python", "--nproc-per-node"]
    check("torchrun, 2 processes, threads", [({}, [*start, "2", given.threads])], 1, refusal("torchrun", "threads"), None)
    if given.mpi:
        check("torchrun, 2 processes, mpi", [({}, [*start, "2", given.mpi, "sum"])], 1, refusal("torchrun", "mpi"), None)
    if not given.nccl:
        return
    holds = []
    for how, words in (("its agent elsewhere", ["--master-port", str(free_ports(1)[0])]), ("its agent at MASTER_PORT", ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"])):
        shown = subprocess.run([*start, "1", *words, "sh", "-c", "echo held: $TORCHELASTIC_USE_AGENT_STORE"], env=clean(), capture_output=True, text=True).stdout.strip()
        holds.append(shown)
        check(f"torchrun, 4 processes, all collectives of nccl, {how} ({shown})", [({}, [*start, "4", *words, given.nccl])], 0, whole_job(4), 4)
    if "held: True" not in holds:
        print(f"left out: no form of torchrun here holds MASTER_PORT itself; {holds}", flush=True)


def srun(given, folder):
    """A Slurm of one node."""
    conf, node = folder / "slurm.conf", socket.gethostname().split(".")[0]
    control, daemon = free_ports(2)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    munge = folder / "munge"
    (munge / "key").write_bytes(os.urandom(1024))
    os.chmod(munge / "key", 0o400)
    os.chmod(munge, 0o755)
    os.chmod(folder, 0o755)
    conf.write_text(f"""ClusterName=one
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmctldPort={control}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={node} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
""")
    environment = clean() | {"SLURM_CONF": str(conf)}
    running = []

    def start(*words):
        log = open(folder / f"{words[0]}.said", "w")
        running.append(subprocess.Popen([shutil.which(words[0]) or words[0], *words[1:]], env=environment, stdout=log, stderr=subprocess.STDOUT))

    try:
        start("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D")
        for _ in range(60):
            time.sleep(1)
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
            if state.stdout.strip() == "idle":
                break
        else:
            print(f"skipped: a Slurm of one node does not start here: {state.stdout} {state.stderr}")
            for name in ("munged.said", "slurmctld.said", "slurmd.said"):
                print((folder / name).read_text()[-1000:])
            return 77
        on = {"SLURM_CONF": str(conf)}
        check("srun -n 2, threads", [(on, ["srun", "-n", "2", given.threads])], 1, refusal("srun", "threads"), 2)
        check("srun -n 2 --mpi=pmi2, threads", [(on, ["srun", "-n", "2", "--mpi=pmi2", given.threads])], 1, refusal("srun", "threads"), 2)
        with open(folder / "batch.sh", "w") as script:
            script.write(f"#!/bin/sh\n{given.threads}\n")
        check("a batch script without srun, threads", [(on, ["sbatch", "-W", "-n", "2", "-o", str(folder / "batch.out"), str(folder / "batch.sh")])], 0, "Submitted", 1)
        if given.mpi:
            check("srun -n 2 --mpi=pmix, mpi", [(on, ["srun", "-n", "2", "--mpi=pmix", given.mpi, "sum"])], 0, "2 processes: the sum is 3")
        if given.nccl:
            check("srun -n 4, nccl", [(on, ["srun", "-n", "4", given.nccl])], 1, refusal("srun", "nccl"), 4)
            meet = {"HEDDLE_RENDEZVOUS": f"tcp://localhost:{free_ports(1)[0]}"}
            check("srun -n 4, all collectives of nccl, HEDDLE_RENDEZVOUS", [(on | meet, ["srun", "-n", "4", given.nccl])], 0, whole_job(4), 4)
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("launcher", choices=("variables", "mpirun", "torchrun", "srun"))
    for name in ("threads", "mpi", "nccl", "mpirun", "torchrun"):
        parser.add_argument("--" + name, default="")
    given = parser.parse_args()
    given.torchrun = given.torchrun or shutil.which("torchrun") or ""
    needs = {"variables": [], "mpirun": [given.mpirun], "torchrun": [given.torchrun], "srun": [shutil.which(n) for n in ("munged", "slurmctld", "slurmd", "srun", "sinfo", "sbatch")]}
    if not all(needs[given.launcher]):
        print(f"skipped: {given.launcher} is not here" + (" (Debian: slurm-wlm, munge)" if given.launcher == "srun" else ""))
        return 77
    if given.launcher == "srun" and os.geteuid() != 0:
        print("skipped: a Slurm of one node needs root here")
        return 77
    for name in ("mpi", "nccl"):
        if not getattr(given, name):
            print(f"left out: there is no program of {name}")
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder  # where the stand-in for NCCL has its files
        if given.launcher == "srun":
            status = srun(given, Path(folder))
        else:
            {"variables": variables, "mpirun": mpirun, "torchrun": torchrun}[given.launcher](given)
    return 1 if WRONG else status


if __name__ == "__main__":
    sys.exit(main())
