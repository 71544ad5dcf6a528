#!/usr/bin/env python3
"""Counts what fully static redistributions and calls of the MPI transport execute and allocate.

    callgrind.py plans <program>           no instruction is spent on planning; the same plan made at run time is the control
    callgrind.py allocations <program>     nothing is allocated but buffers
    callgrind.py slice <program>           a slice costs what it costs by hand, and a little per call
    callgrind.py mpi <program>             a call of the MPI transport costs what MPI's own costs, and a little

`plans` wants a program whose functions were not inlined (-O0), so that each function that runs has a name to be found by;
`slice` an optimised one. Without valgrind, `plans` and `slice` say so and exit with status 77: skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# What plans: everything in these headers, and these functions, which prepare and read the search.
PLANNING_FILES = re.compile(r"heddle/layout/(search|canonical)[.]hpp$")
PLANNING_FUNCTIONS = re.compile(r"\b(find_steps|problem_between|changes_between|planned_use_of|steps_of|read_placements|cheapest_path)\b")


def executed(program, *arguments):
    """Instructions per (file, function), without those of the functions it called."""
    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed, so instructions were not counted (scripts/bootstrap test installs it)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--compress-strings=no",
                   "--compress-pos=no", program, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(" ".join(command) + "\n" + result.stdout + result.stderr)
        counts, file, function, skip = {}, "", None, False
        with open(f"{folder}/out", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("fl="):
                    file = line[3:].strip()
                elif line.startswith("fn="):
                    function = (file, line[3:].strip())
                elif line.startswith("calls="):
                    skip = True  # the next line is what the called function cost
                elif re.match(r"^\d+ \d+", line) and function is not None:
                    if not skip:
                        counts[function] = counts.get(function, 0) + int(line.split()[1])
                    skip = False
    return counts


def planning(counts):
    return {name: n for (file, name), n in counts.items() if PLANNING_FILES.search(file) or PLANNING_FUNCTIONS.search(name)}


def plans(program):
    control = planning(executed(program, "planned", "1"))
    if not control:
        sys.exit("a plan made at run time runs no function that is known to plan: the list of names in callgrind.py is out of date")
    counts = executed(program, "static", "20")
    found = planning(counts)
    if found:
        sys.exit("a static redistribution plans at run time:\n" + "\n".join(f"  {n} instructions in {name}" for name, n in found.items()))
    print(f"20 static redistributions on 4 ranks: 0 of {sum(counts.values())} instructions plan; the same plan made at run time takes {sum(control.values())}")


def allocations(program):
    times = 100
    output = subprocess.run([program, "allocations", str(times)], capture_output=True, text=True, check=True).stdout
    steps, buffers, others = map(int, re.match(r"(\d+) steps, (\d+) buffers, (\d+) other allocations", output).groups())
    print(f"4 ranks, {times} redistributions each: {output.strip()}")
    if others > 8:  # rarely, a queue of messages in the transport grows, and stays as long as it is
        sys.exit("a static redistribution allocates more than its buffers")
    if buffers > 4 * (times * 2 * steps + 1):  # and the tensor itself
        sys.exit("a static redistribution asks for more than two buffers per step: one to send from, one to receive in")


def slice_cost(program):
    def per_call(mode):
        few, many = (sum(executed(program, mode, str(n)).values()) for n in (100, 1100))
        return (many - few) / 1000

    ours, by_hand = per_call("slice"), per_call("slice_by_hand")
    print(f"instructions per slice of 32 x 64 floats: {ours:.0f}; by hand, with memcpy: {by_hand:.0f}")
    if ours > 1.1 * by_hand:
        sys.exit("a static slice costs more than a tenth over the same by hand")


# Instructions that a call may cost above one hundredth of MPI's own: 40 for each call of MPI's. Those that take more so far
# have the number that must not grow: converting counts (all_to_all_v), requests that know their group (messages).
MPI_CALLS = {"all_reduce": 40, "send_recv": 80, "all_gather": 60, "all_to_all_v": 130, "messages": 250}


def mpi(program):
    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed, so instructions were not counted (scripts/bootstrap test installs it)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--compress-strings=no",
                   "--compress-pos=no", program]
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_BIND_NOW": "1"})
        if result.returncode != 0:
            sys.exit(" ".join(command) + "\n" + result.stdout + result.stderr)
        with open(f"{folder}/out", encoding="utf-8") as lines:
            text = lines.read().split("\n")
    times, cost = 5, {}  # as the program has it
    for at, line in enumerate(text):
        if name := re.match(r"cfn=void counted<(\w+)_(bare|ours), (\d+)>", line):
            calls = next(i for i in range(at, len(text)) if text[i].startswith("calls="))
            cost[name[1], int(name[3]), name[2]] = int(text[calls + 1].split()[1]) / times
    if not cost:
        sys.exit("no counted call was found in callgrind's output")
    problems = []
    for name, size, who in cost:
        if who == "bare":
            bare, ours = cost[name, size, "bare"], cost[name, size, "ours"]
            print(f"{name} of {size} bytes: {bare:.0f} instructions in MPI, {ours - bare:.0f} more in heddle")
            if ours - bare > 0.01 * bare + MPI_CALLS[name]:
                problems.append(f"{name} of {size} bytes costs {ours - bare:.0f} instructions more than MPI's own {bare:.0f}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    {"plans": plans, "allocations": allocations, "slice": slice_cost, "mpi": mpi}[sys.argv[1]](sys.argv[2])
