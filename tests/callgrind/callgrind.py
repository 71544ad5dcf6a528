#!/usr/bin/env python3
"""Counts what fully static redistributions and calls of the MPI transport execute and allocate.

    callgrind.py plans <program>           no instruction is spent on planning; the same plan made at run time is the control
    callgrind.py allocations <program>     nothing is allocated but buffers
    callgrind.py slice <program>           a slice costs what it costs by hand, and a little per call
    callgrind.py mpi <program> <mpirun>    a call of the MPI transport costs what MPI's own costs, and a little
    callgrind.py kokkos <program> <program without checks>   a facet of the backend on Kokkos costs no more than the same loop given to Kokkos

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
    if ours > 1.125 * by_hand:
        sys.exit("a static slice costs more than an eighth over the same by hand")


# How many instructions more than by hand: 40 per call of MPI's; send_recv makes two, messages irecv, send and wait.
MPI_MORE = {"all_reduce": 40, "all_reduce_in_place": 40, "send_recv": 80, "all_gather": 40, "all_to_all_v": 40, "messages": 120}


def mpi_costs(command):
    """Of calls made several times: the fewest instructions in MPI's functions, and the fewest around them, by bytes, name, who."""
    with tempfile.TemporaryDirectory() as folder:
        counter = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--compress-strings=no",
                   "--compress-pos=no", "-q"]
        command = [word for part in command for word in (counter if part == "valgrind" else [part])]
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_BIND_NOW": "1"}, timeout=100)
        if result.returncode != 0:
            sys.exit(" ".join(command) + "\n" + result.stdout + result.stderr)
        with open(f"{folder}/out", encoding="utf-8") as lines:
            text = lines.read().split("\n")
    everything, in_mpi = {}, {}
    caller = callee = None
    for at, line in enumerate(text):
        if line.startswith("fn="):
            caller = line[3:]
        elif line.startswith("cfn="):
            callee = line[4:]
        elif line.startswith("calls="):
            cost = int(text[at + 1].split()[1])
            if COUNTED.match(callee):
                everything[callee] = everything.get(callee, 0) + cost
            elif COUNTED.match(caller) and re.match(r"P?MPI_", callee):
                in_mpi[caller] = in_mpi.get(caller, 0) + cost
    least = {}
    for function, cost in everything.items():
        name, who, size = COUNTED.match(function).groups()
        mpi, around = least.get((int(size), name, who), (1 << 60, 1 << 60))
        mine = in_mpi.get(function, 0)
        least[int(size), name, who] = min(mpi, mine), min(around, cost - mine)
    if not least:
        sys.exit("no counted call was found in callgrind's output")
    return least


COUNTED = re.compile(r"void counted<(\w+)_(bare|ours), (\d+), \d+>")


def mpi(program, launcher):
    """What heddle adds to a call, beside what the call takes: in a process on its own, where MPI's calls only copy, and between
    two. Instructions around MPI's functions do not depend on how long those wait, and are what is held to a limit."""
    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed, so instructions were not counted (scripts/bootstrap test installs it)")
        sys.exit(77)
    problems = []
    for ranks, command in ((1, ["valgrind", program]),
                           (2, [launcher, "-n", "1", "valgrind", program, ":", "-n", "1", program])):
        costs = mpi_costs(command)
        for size, name, who in sorted(costs):
            if who != "bare":
                continue
            in_mpi, by_hand = costs[size, name, "bare"]
            said = f"{ranks} ranks, {name} of {size} bytes: {in_mpi} instructions in MPI, {by_hand} by hand around it"
            if (size, name, "ours") not in costs:
                print(said)
                continue
            more = costs[size, name, "ours"][1] - by_hand
            said += f", {more} more in heddle ({100 * more / in_mpi:.2f} %)"
            print(said)
            if more > MPI_MORE[name]:
                problems.append(said)
    if problems:
        sys.exit("too much:\n" + "\n".join(problems))


# A row of a layer norm costs four instructions more or less, as registers are given out: two in ten thousand.
KOKKOS_LOOPS = 1.0005
# What a facet's checks may cost: a comparison or two for each argument.
KOKKOS_CHECKS = 50


def kokkos_calls(program, *size):
    """Instructions of a call of each function of the program, by its name and who: a facet, Kokkos' parallel_for by hand, or plain."""
    def all_calls(n):
        with tempfile.TemporaryDirectory() as folder:
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--compress-strings=no", "--compress-pos=no", "-q",
                       program, str(n), *size]
            result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_BIND_NOW": "1"})
            if result.returncode != 0:
                sys.exit(" ".join(command) + "\n" + result.stdout + result.stderr)
            with open(f"{folder}/out", encoding="utf-8") as lines:
                text = lines.read().split("\n")
        costs, callee = {}, ""
        for at, line in enumerate(text):
            if line.startswith("cfn="):
                callee = line[4:]
            elif line.startswith("calls=") and (found := re.fullmatch(r"\(anonymous namespace\)::(\w+)_(facet|kokkos|plain)\([^{]*", callee.split("'")[0])):
                costs[found.groups()] = costs.get(found.groups(), 0) + int(text[at + 1].split()[1])
        return costs
    few, many = all_calls(20), all_calls(60)
    return {name: (many[name] - few[name]) / 40 for name in many}


def kokkos(checked, unchecked):
    """Of programs that check arguments and that do not. `plain` is Kokkos' parallel_for over single elements, which is told and held to
    nothing."""
    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed, so instructions were not counted (scripts/bootstrap test installs it)")
        sys.exit(77)
    problems = []
    for size in (("1", "8"), ("40", "100")):
        without, checking = kokkos_calls(unchecked, *size), kokkos_calls(checked, *size)
        facets = [name for name, who in without if who == "facet"]
        if len(facets) != 6:
            sys.exit(f"six facets should have been counted, got {facets}")
        for name in facets:
            for costs, with_what, most in ((without, "no checks", 1.0), (checking, "the same checks", 1.0 if size[0] == "1" else KOKKOS_LOOPS)):
                ours, bare = costs[name, "facet"], costs[name, "kokkos"]
                said = f"{name} of {' x '.join(size)}, {with_what}: {ours:.0f} instructions by the facet, {bare:.0f} by Kokkos' parallel_for ({ours - bare:+.0f})"
                print(said)
                if bare < 200 or ours > most * bare:
                    problems.append(said)
            if checking[name, "facet"] > without[name, "facet"] + KOKKOS_CHECKS:
                problems.append(f"the checks of {name} cost {checking[name, 'facet'] - without[name, 'facet']:.0f} instructions")
            if (name, "plain") in without:
                print(f"{name} of {' x '.join(size)}: {without[name, 'plain']:.0f} by Kokkos' parallel_for over single elements")
    if problems:
        sys.exit("too much:\n" + "\n".join(problems))


if __name__ == "__main__":
    {"plans": plans, "allocations": allocations, "slice": slice_cost, "mpi": mpi, "kokkos": kokkos}[sys.argv[1]](*sys.argv[2:])
