#!/usr/bin/env python3
"""Writes galvatron_golden.txt: the profiles and expected plans of Galvatron's tests and examples, as numbers.

    git clone https://github.com/PKU-DAIR/Hetu-Galvatron && git -C Hetu-Galvatron checkout cea12ffb146a220643c8f99f9cb84294755d29f8
    pip install numpy; python3 tests/golden/galvatron_golden.py Hetu-Galvatron tests/golden/galvatron_golden.txt

Three cases, a `key numbers` line for each table: what the authors' search reads (profiles of a layer, of embedding and head, of the network) after the
fits that it makes of them, and what it is expected to find. The profiles of the first two are those of the authors' tests, made up; the third is
measured. Units: MiB, ms, ms per MiB.
"""
import ast
import json
import subprocess
import sys

import numpy as np

DEGREES = ("1", "2", "4", "8")


def read(repository, path):
    return subprocess.run(["git", "-C", repository, "show", "HEAD:" + path], check=True, capture_output=True, text=True).stdout


def tables_of_tests(repository):
    """The dictionaries that functions of the test's configuration return."""
    tree = ast.parse(read(repository, "tests/utils/search_configs.py"))
    tables = {}
    for f in tree.body:
        if isinstance(f, ast.FunctionDef) and f.name.startswith("create_"):
            for statement in f.body:
                if isinstance(statement, ast.Return):
                    tables[f.name] = ast.literal_eval(statement.value)
    return tables


def line(points, degree=1):
    """Coefficients of the least-squares polynomial, the highest first."""
    x, y = zip(*sorted(points))
    return np.polyfit(x, y, degree)


def network(bandwidth, p2p, overlap, times):
    for key, value in bandwidth.items():  # allreduce_size_4_consec_1, in GB/s, which is MB/ms
        _, _, size, _, consecutive = key.split("_")
        yield f"all_reduce {size} {consecutive}", [1.0 / value]
    for key, value in p2p.items():
        yield f"p2p {key.split('_')[-1]}", [1.0 / value]
    yield "overlap", [overlap]
    for verb, name, factor in (("all_gather", "allreduce", 0.5), ("all_to_all", "all2all", 1.0)):
        for size in DEGREES[1:]:
            points = [(int(key.split("_")[-2][:-2]), value * factor) for key, value in times.items()
                      if key.startswith(f"{name}_size_{size}_")]
            yield f"{verb} {size}", [*line(points), *(v for point in sorted(points) for v in point)]


def memory(layer, whole, first, last):
    yield "parameters", [layer["parameter_size"]]
    yield "activations", [layer["tp_activation_per_bsz_dict"][d] for d in DEGREES]
    yield "recomputed", [layer["tp_activation_per_bsz_dict"]["checkpoint"]]
    for name, ends in (("ends", whole), ("first", first), ("last", last)):
        yield f"{name}_states", [ends["model_states"][d] for d in DEGREES]
        yield f"{name}_activations", [ends["activation"][d] for d in DEGREES]


def main(repository, out):
    lines = ["# Written by galvatron_golden.py from PKU-DAIR/Hetu-Galvatron, commit cea12ff (Apache-2.0): numbers of its profiles."]

    def case(name, tables):
        lines.append("case " + name)
        for key, values in tables:
            lines.append(" ".join([key, *(v if isinstance(v, str) else repr(float(v)) for v in values)]))

    t = tables_of_tests(repository)
    hardware, mock, times = t["create_hardware_configs"], t["create_sequence_memory_config_sp"], t["create_sequence_time_config"]
    at, sequence = "8192", 8192
    layer = [(int(k.split("seq")[-1]), v) for k, v in times.items() if k.startswith("layertype_0_bsz1_")]
    other = [(int(k.split("seq")[-1]), v) for k, v in times.items() if k.startswith("layertype_other_bsz1_")]
    shared = [("sizes", [28, sequence, 4096]),
              ("forward", [np.polyval(line(layer, 2), sequence), 0]),
              ("ends_forward", [np.polyval(line(other), sequence), 0]),
              # The authors take parameters from the shortest sequence that was profiled, all else from the longest.
              *memory({**mock["layertype_0_sp"][at], "parameter_size": mock["layertype_0_sp"]["512"]["parameter_size"]}, mock["other_memory_pp_off_sp"][at], mock["other_memory_pp_on_first_sp"][at],
                      mock["other_memory_pp_on_last_sp"][at]),
              *network(hardware["allreduce"], hardware["p2p"], hardware["overlap"]["overlap_coe"], hardware["sp"])]
    # tests/search_engine/test_parallelsim_optimization.py. Of a layer: tp, ulysses, dp, zero, recomputed, then how many such follow.
    case("per_layer", [*shared, ("search", [64, 32, 36]), ("throughput", [2.6485091403918064]), ("ends_plan", [8, 1, 1, 0]),
                       ("plan", [4, 1, 2, 3, 1, 14]), ("plan", [4, 1, 2, 3, 0, 12]), ("plan", [4, 1, 2, 2, 0, 2])])
    case("uniform", [*shared, ("search", [64, 8, 36]), ("throughput", [2.5246283459057333]), ("ends_plan", [1, 1, 8, 3]),
                     ("plan", [1, 1, 8, 3, 1, 28])])

    # The measured profile of Llama 2 7B, and galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json.
    models, machines = "galvatron/models/gpt/configs/", "galvatron/profile_hardware/hardware_configs/"
    mem = json.loads(read(repository, models + "memory_profiling_bf16_llama2-7b_all.json"))
    times = json.loads(read(repository, models + "computation_profiling_bf16_llama2-7b_all.json"))
    of = lambda name: json.loads(read(repository, machines + name))
    fit = lambda kind: line([(int(k.split("_")[-2][3:]), v * int(k.split("_")[-2][3:])) for k, v in times.items()
                             if k.startswith(kind)])
    plan = json.loads(read(repository, models + "galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json"))
    numbers = lambda key: [int(n) for n in plan[key].split(",")]
    runs = []
    for tp, sdp, sp, ckpt in zip(numbers("tp_sizes_enc"), numbers("dp_types_enc"), numbers("use_sp"), numbers("checkpoint")):
        one = [1 if sp else tp, tp if sp else 1, 8 // tp, 3 if sdp else 2, ckpt]
        if runs and runs[-1][:5] == one:
            runs[-1][5] += 1
        else:
            runs.append([*one, 1])
    width = plan["vtp"]
    case("llama2_7b", [
        ("sizes", [32, 2048, 4096]), ("forward", fit("layertype_0_")), ("ends_forward", fit("layertype_other_")),
        *memory(mem["layertype_0_sp"]["2048"], mem["other_memory_pp_off_sp"]["2048"], mem["other_memory_pp_on_first_sp"]["2048"],
                mem["other_memory_pp_on_last_sp"]["2048"]),
        *network(of("allreduce_bandwidth_1nodes_8gpus_per_node.json"), of("p2p_bandwidth_1nodes_8gpus_per_node.json"),
                 of("overlap_coefficient.json")["overlap_coe"], of("sp_time_1nodes_8gpus_per_node.json")),
        ("search", [plan["global_bsz"], plan["chunks"], 36]),
        ("ends_plan", [1 if plan["vsp"] else width, width if plan["vsp"] else 1, 8 // width, 3 if plan["embed_sdp"] else 2]),
        *(("plan", run) for run in runs)])
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
