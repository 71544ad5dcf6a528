#!/usr/bin/env python3
"""Checks what the compiler cannot: that every header stands on its floor and keeps the house rules.

    floors.py <include directory>            check; exit status 1 and one line per finding
    floors.py <include directory> --write    write heddle/heddle.hpp and the header of each room from the headers that are there,
                                             and cmake/heddle-headers.cmake beside the include directory: the headers that need each package
    floors.py --self-test                    check made-up trees that break each rule: each must be found
"""
import re
import sys
import tempfile
from pathlib import Path

# Each room and the rooms that it stands on: it includes those, and what they stand on. A room comes after those that it stands on.
STANDS_ON = {
    "core": [], "mesh": ["core"], "draw": ["mesh"], "observe": ["draw"],
    "layout": ["draw"], "comm": ["draw"], "schedule": ["draw"],
    "collective": ["comm"], "rendezvous": ["comm"], "nccl": ["collective", "rendezvous"],
    "sim": ["layout", "collective", "rendezvous", "schedule"], "plan": ["sim"],
    "tensor": ["layout", "collective", "rendezvous", "schedule"], "io": ["tensor"],
    "compute": ["tensor"], "context": ["compute"], "testing": ["context"],
    "model": ["context"],
    "train": ["model", "observe", "io", "plan", "testing"], "infer": ["model", "observe", "io", "plan", "testing"],
    "rl": ["train", "infer"],
}
# What heddle/heddle.hpp includes: the words of a parallel program. Everything else has its room's header.
WORDS = ["version", "core/error", "core/half_precision", "core/monoid", "core/random", "core/shape", "core/split", "mesh/mesh",
         "mesh/parse", "layout/gradient", "layout/layout", "layout/propagate", "layout/redistribution", "comm/communicator",
         "comm/launch", "comm/threads", "comm/world", "schedule/check/check", "schedule/check/memory", "schedule/named", "tensor/buffer", "tensor/gradient",
         "tensor/redistribute", "tensor/sharded", "tensor/view"]
# Headers of a room that its own header leaves out: what few programs use, and what costs all others a good part of their compile
# time. Those who want them include them, as docs/tutorial/headers.md says.
ASIDE = {"model": ["any_config", "any_model", "context_batch", "described_weights", "elastic_llama", "experts_in_order", "families", "family_stage", "family_units", "gemma2", "gemma2_config", "gemma3", "gemma3_config", "gpt_oss", "gpt_oss_config", "granite",
                   "granite_config", "hugging_face_model", "layers/gated_linear_attention", "layers/multiplied", "layers/normed_after", "masked", "mistral", "olmo2", "olmo2_config", "phi3", "phi3_config",
                   "paper/backend", "paper/even_routes", "paper/memory", "paper/profile", "paper/timed", "paper/trace", "paper/world",
                   "parameter_route", "qwen3_moe", "qwen3_moe_config", "smollm3", "smollm3_config", "spiking_brain", "spiking_brain_config",
                   "with_model"],
         "infer": ["affinity_router", "any_model_runner", "cut_step", "diffusion", "diffusion_caches", "diffusion_rules", "elastic", "elastic_blocks", "families", "family_runner",
                   "family_units", "handed_words", "lockstep_runner", "move_cache", "nano_runner", "pools", "rows_by_experts", "serve/watch", "timed_steps", "windowed"],
         "collective": ["determined", "shuffled"],
         "train": ["activations/cache", "activations/default_file_store", "activations/file_store", "activations/language_memory",
                   "activations/host_store", "activations/pooled_layers", "activations/memory", "activations/memory_store", "activations/offload", "activations/offload_if_told", "activations/store_files",
                   "activations/threaded_store", "atomized", "background_saves", "branches", "cluster", "context", "context_batches",
                   "context_policies", "explain", "explain_page", "flow", "flow_parts", "further_targets", "glancing_distillation", "language_state", "learning_rates",
                   "masked_targets", "measure_layers", "measure_machine", "measured_schedule", "mesh_to_mesh", "named_context", "named_parameters",
                   "online/message", "online/online_pairs", "online/received_steps", "online/reservoir", "online/run_online", "online/solvers",
                   "optimizers/adafactor", "optimizers/lion", "optimizers/muon", "optimizers/sgd", "paper_rank", "peak_bytes", "peer_saves",
                   "same_copies", "sampling", "save", "saved_boxes", "saved_frozen", "saved_stage", "search", "search_on_paper", "search_tables",
                   "split_copies", "static_profile", "store_saves", "strategy_choice", "texts_of_ranks", "three_functions", "three_functions_stage",
                   "trainer_weights", "training_job", "weights", "whole_tensors"],
         "comm": ["flight_recorder"],
         "observe": ["call_lags", "conditions", "flight_report", "heat_map", "linux_counters"],
         "testing": ["faults"],
         "rl": ["batch_buffer", "colocated_weights", "critic", "forecast", "frozen_reference", "group_advantages", "line_process",
                "objective_checks", "planned", "run", "run_arguments", "run_state", "save", "scored_batch", "scorer", "settings", "simulated",
                "spare_weights", "with_critic"],
         "io": ["background_save", "save_snapshot", "store", "store_saves", "tokens/best_fit", "tokens/blend", "tokens/byte_store",
                "tokens/candidate_pairs", "tokens/gpt_order", "tokens/llm_c", "tokens/mapped_file", "tokens/megatron_index", "tokens/minhash",
                "tokens/prefetched_source", "tokens/provenance", "tokens/shard_cache", "tokens/shard_order", "tokens/token_source",
                "tokens/token_store", "torch/metadata", "torch/pickle", "torch/stored_tensor", "torch/tensor"],
         "sim": ["diffusion_cost", "lanes", "levels", "reliability", "served_chart", "served_load", "serving_cluster", "transformer_step", "world_step"],
         "plan": ["circuit_matchings", "co_clustering", "elastic_degrees", "experts_svg", "fabric_step", "galvatron_costs", "improve_schedule", "level_bytes",
                  "nano_batches", "place_groups", "placement_svg", "shares_by_speed", "stage_limits", "strategy_space"],
         "core": ["discrete_laplace", "exact_sum", "key_lines", "line_reader", "privacy"],
         "compute": ["decay_attention", "in_turns", "launched_pixelize", "pixelize", "pixelized", "spike_coding", "spike_weights", "watched_choices"],
         "schedule": ["actor/actor_ranks", "lower/reorder", "text/derive"],
         "layout": ["choose"],
         "tensor": ["give_back"]}
ABOUT = {
    "core": "shapes, splits, monoids, random numbers, errors and observers",
    "mesh": "meshes of named axes, and the networks under them",
    "layout": "layouts of tensors, propagation through operators and redistribution plans",
    "comm": "the communicator, the world of ranks, and the transport over threads",
    "collective": "collectives as tables of rounds: algorithms, decisions, checks, folds",
    "rendezvous": "rendezvous of processes, and control messages over it",
    "nccl": "the transport of ranks that are GPUs",
    "schedule": "pipeline schedules, their checks, and lowering to executable actions",
    "tensor": "memory spaces, sharded tensors and redistribution of them",
    "context": "context parallelism: pieces, masks, carriers as tables, execution",
    "compute": "kernels on the host, and typed operators on sharded tensors",
    "model": "layers, models made of them, and the stages of pipelines",
    "train": "the trainer, its policies and predictions",
    "infer": "the inference engine and its policies",
    "rl": "reinforcement learning over trainers and engines",
    "plan": "cost models, searches and placements",
    "sim": "execution of plans and schedules in virtual time",
    "draw": "pictures in SVG and as text",
    "observe": "traces, timelines and diagnosis",
    "io": "data sets, tokens and saved tensors",
    "testing": "laws, worlds and memories for tests of sharding algebra and pipelines",
}
# The component that a header or a folder needs; of several that match the longest. cmake/heddle-headers.cmake is written from it.
COMPONENTS = {
    "mpi": ["comm/mpi"],
    "kokkos": ["compute/kokkos", "observe/kokkos", "tensor/kokkos"],
    "cuda": ["compute/cuda", "observe/cuda", "tensor/cuda"],
    "nccl": ["nccl"],
    "cudnn": ["compute/cudnn"],
    "onednn": ["compute/host/onednn"],
    "cblas": ["compute/host/cblas"],
    "range_v3": ["io/range_v3"],
    "hwloc": ["io/hwloc"],
    "pugixml": ["io/nccl_topology"],
    "json": ["infer/falcon_folder", "infer/generation_config", "infer/medusa_folder", "infer/schema_grammar", "infer/serve/openai",
             "infer/token_tree_json", "io/json", "io/safetensors/header", "io/safetensors/parts", "io/safetensors/reader", "io/safetensors/writer",
             "io/tokens/mds", "io/torch/folder", "model/hugging_face", "rl/subprocess", "train/cluster_file", "train/hugging_face", "train/torch"],
    "uring": ["train/activations/uring"],
    "zstd": ["io/zstd"],
    "zmq": ["train/online/receiver", "train/online/sender"],
    "tokenizer": ["infer/serve/answer", "infer/serve/openai/call", "infer/serve/openai/response", "infer/serve/openai/running_call",
                  "infer/text_output", "io/chat", "io/choice_lines", "io/choice_tasks", "io/tokenizer"],
    "httplib": ["infer/serve/http"],
    "curl": ["io/s3"],
}
FOR_GPUS = {"cuda", "nccl", "cudnn"}
CMAKE_LISTS = "cmake/heddle-headers.cmake"
COMPONENT_OF = {path: component for component, paths in COMPONENTS.items() for path in paths}
# Components whose targets have the packages of others.
HOLDS = {"cudnn": {"cuda"}, "tokenizer": {"json"}, "httplib": {"json", "tokenizer"}, "curl": {"pugixml"}}
# Packages that only the header set of their component may include.
PACKAGES = re.compile(r"^(mpi\.h|nccl\.h|cuda|cublas|cudnn|cub/|thrust/|Kokkos|dnnl|oneapi/|cblas|omp\.h|range/v3|hwloc|pugixml|nlohmann/|CLI/|catch2/|benchmark/|liburing|pcre2\.h|utf8proc\.h|httplib\.h|zstd\.h|zmq\.hp?p?|curl/)")
HEAVY = {"iostream", "ranges", "regex", "functional"}  # not in core to schedule: they cost more than the room
LIGHT_ROOMS = {"core", "mesh", "layout", "comm", "collective", "rendezvous", "nccl", "schedule", "draw"}
# Bodies of a header (HEDDLE_INLINE) and lists of what is compiled once: <room>/impl/<name of the header>.
IMPL = re.compile(r"^heddle/(\w+)/impl/(.+)$")
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)")
ALLOWED_MACROS = {"OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX", "PCRE2_CODE_UNIT_WIDTH"}  # settings that mpi.h and pcre2.h read


def allowed(room):
    """The rooms that `room` may include, itself among them."""
    return {room}.union(*(allowed(below) for below in STANDS_ON[room]))


def component_of(inside):
    """The component that a header needs, such as io/json/strict.hpp, or None."""
    path = inside.removesuffix(".hpp")
    while path not in COMPONENT_OF and "/" in path:
        path = path.rpartition("/")[0]
    return COMPONENT_OF.get(path)


def without_comments(text):
    """The text with comments blanked, line numbers kept; good enough for code that has no comment marks in literals."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def check_header(root, path):
    name = path.relative_to(root).as_posix()  # heddle/core/shape.hpp
    inside = name.split("/", 1)[1]
    room = inside.split("/")[0] if "/" in inside else None
    optional = component_of(inside)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()

    if room is not None and room not in STANDS_ON:
        yield f"{name}: the room '{room}' is not in the floor table"
        return
    if not lines or not re.match(r"// " + re.escape(name) + r": \S", lines[0]):
        yield f"{name}:1: the first line must read \"// {name}: what it is\""
    elif len(lines[0]) > 100:
        yield f"{name}:1: the first line has {len(lines[0])} characters, more than 100"
    elif (optional in FOR_GPUS or "/captured_" in name) != ("(not run on a GPU)" in lines[0]):
        yield f"{name}:1: the first lines of headers with code for GPUs, and no others, say (not run on a GPU)"
    if "#pragma once" not in lines:
        yield f"{name}: no #pragma once"
    if len(lines) > 640:
        yield f"{name}: {len(lines)} lines; a header has one idea and at most 640 lines"

    others_began = False
    asked = None  # the component that the #if just above asks for
    compilation = False  # whether the #if just above asks for separate compilation, or its absence
    if (own := IMPL.match(name)) and "HEDDLE_INLINE" in text:
        header = root / "heddle" / own[1] / own[2]
        if not header.is_file() or f"#if !defined(HEDDLE_SEPARATE_COMPILATION)\n#include <{name}>\n#endif" not in header.read_text():
            yield f"{name}: heddle/{own[1]}/{own[2]} does not include these bodies at its end, without HEDDLE_SEPARATE_COMPILATION"
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        where = f"{name}:{number}"
        if match := DEFINE.match(line):
            if not match[1].startswith("HEDDLE_") and match[1] not in ALLOWED_MACROS:
                yield f"{where}: the macro {match[1]} does not begin with HEDDLE_"
        if re.match(r"\s*using\s+namespace\b", line):
            yield f"{where}: using namespace in a header"
        if re.match(r"\s*(inline\s+)?namespace\s*\{", line):
            yield f"{where}: anonymous namespace in a header"
        if re.search(r"(\bstd|>)::(min|max)(<[^()]*>)?\(", line):
            yield f"{where}: others define macros min and max: write (std::min)(a, b) and (std::numeric_limits<T>::max)()"
        match = INCLUDE.match(line)
        if not match:
            compilation = bool(re.match(r"#if !?defined\(HEDDLE_SEPARATE_COMPILATION\)$", line.strip()))
            asked = (re.match(r"#if defined\(HEDDLE_HAS_([A-Z0-9_]+)\)$", line.strip()) or [None, ""])[1].lower()
            continue
        target = match[2]
        if match[1] == '"' or not target.startswith("heddle/"):
            others_began = True
            if match[1] == '"':
                yield f"{where}: \"{target}\": headers are included with <heddle/...>"
            if room in LIGHT_ROOMS and target in HEAVY:
                yield f"{where}: <{target}> is too heavy for {room}"
            if PACKAGES.match(target) and not optional:
                yield f"{where}: <{target}> belongs to an optional package; COMPONENTS has none for this header"
            continue
        if part := IMPL.match(target):
            if name != "heddle/impl.hpp" and (part[1] != room or not (compilation or IMPL.match(name))):
                yield f"{where}: <{target}> is included by heddle/{part[1]}/ alone, where HEDDLE_SEPARATE_COMPILATION is asked for"
        elif others_began:
            yield f"{where}: heddle's own headers are included first, so that a missing include in them shows"
        if not (root / target).is_file():
            yield f"{where}: <{target}> does not exist"
            continue
        other = target.split("/", 1)[1]
        needed = component_of(other)
        if needed and needed not in {optional, asked} | HOLDS.get(optional, set()):
            yield f"{where}: <{target}> needs the component {needed}; a header that needs none must not include it"
        if "/" not in other:
            if other != "version.hpp":
                yield f"{where}: <{target}> is for users; include the header that is needed"
            continue
        if room is not None and other.split("/")[0] not in allowed(room):
            yield f"{where}: {room} must not include {other.split('/')[0]} (<{target}>): see the floor table"


def headers_of(root, room):
    """Every header of a room that needs no optional package and does not stand aside."""
    names = [path.relative_to(root).as_posix() for path in root.glob(f"heddle/{room}/**/*.hpp")]
    aside = {f"heddle/{room}/{name}.hpp" for name in ASIDE.get(room, [])}
    return sorted(n for n in names if n not in aside and not component_of(n.split("/", 1)[1]) and not IMPL.match(n))


def components(root):
    """The headers that are written by rule: names and texts."""
    def text(name, about, included):
        return f"// {name}: {about}.\n#pragma once\n\n" + "".join(f"#include <{n}>\n" for n in included)

    words = [f"heddle/{word}.hpp" for word in WORDS]
    made = {"heddle/heddle.hpp": text("heddle/heddle.hpp", "the vocabulary of a parallel program: meshes, layouts, schedules, tensors",
                                      [word for word in words if (root / word).is_file()])}
    for room in STANDS_ON:
        if included := headers_of(root, room):
            made[f"heddle/{room}.hpp"] = text(f"heddle/{room}.hpp", ABOUT[room], included)
    bodies = sorted(path.relative_to(root).as_posix() for path in root.glob("heddle/*/impl/**/*.hpp"))
    if bodies := [n for n in bodies if not component_of(n.split("/", 1)[1])]:
        guard = ("#if !defined(HEDDLE_SEPARATE_COMPILATION)\n"
                 "#error \"heddle/impl.hpp: define HEDDLE_SEPARATE_COMPILATION for this file and for all others of the program\"\n#endif\n\n")
        made["heddle/impl.hpp"] = text("heddle/impl.hpp", "the bodies for the one file that HEDDLE_SEPARATE_COMPILATION compiles",
                                       bodies).replace("#pragma once\n\n", "#pragma once\n\n" + guard)
    return made


def cmake_lists(root):
    """What CMake knows of COMPONENTS: the headers that need each."""
    text = "# Written by tests/headers/floors.py --write: the headers that need each component; all others need no package.\n"
    names = sorted(path.relative_to(root).as_posix() for path in root.glob("heddle/**/*.hpp"))
    for component in COMPONENTS:
        text += f"set(HEDDLE_HEADERS_OF_{component}" + "".join(f"\n  {n}" for n in names if component_of(n.split("/", 1)[1]) == component) + ")\n"
    return text


def write_components(root):
    for name, text in components(root).items():
        (root / name).write_text(text)
    (root.resolve().parent / CMAKE_LISTS).write_text(cmake_lists(root))


def check(root):
    root = Path(root)
    rooms = list(STANDS_ON)
    for number, room in enumerate(rooms):
        for below in set(STANDS_ON[room]) - set(rooms[:number]):
            yield f"floors.py: {room} stands on {below}, which does not come before it"
    for path in sorted(root.glob("heddle/**/*.hpp")):
        yield from check_header(root, path)
    yield from equal_lines(root)
    made = components(root)
    if (root / "heddle/version.hpp").is_file():  # a whole tree, not one made up for a rule
        for word in WORDS:
            if not (root / f"heddle/{word}.hpp").is_file():
                yield f"heddle/heddle.hpp: its word heddle/{word}.hpp does not exist"
        for path in COMPONENT_OF:
            if not (root / f"heddle/{path}.hpp").is_file() and not (root / f"heddle/{path}").is_dir():
                yield f"floors.py: COMPONENTS names heddle/{path}, which does not exist"
        lists = root.resolve().parent / CMAKE_LISTS
        known = lists.with_name("heddle-components.cmake")
        if not known.is_file() or f"set(HEDDLE_KNOWN_COMPONENTS {' '.join(COMPONENTS)} CACHE" not in known.read_text():
            yield f"cmake/heddle-components.cmake: HEDDLE_KNOWN_COMPONENTS are not those of COMPONENTS: {' '.join(COMPONENTS)}"
        if not lists.is_file() or lists.read_text() != cmake_lists(root):
            yield f"{CMAKE_LISTS}: is not what floors.py --write makes of COMPONENTS and the headers"
    for name, text in made.items():
        file = root / name
        if not file.is_file() or file.read_text() != text:
            have = set(re.findall(r"^#include <([^>]+)>", file.read_text() if file.is_file() else "", flags=re.M))
            want = set(re.findall(r"^#include <([^>]+)>", text, flags=re.M))
            yield f"{name}: is not what floors.py --write makes of the room: lacks {sorted(want - have)}, has too much {sorted(have - want)}"
    for path in sorted(root.glob("heddle/*.hpp")):
        if (name := path.relative_to(root).as_posix()) not in made and name != "heddle/version.hpp":
            yield f"{name}: belongs to no room"


def equal_lines(root, most=11):
    """Runs of more than `most` lines of code that stand in two places; includes, comments and blank lines aside."""
    places = {}
    for path in sorted(root.glob("heddle/**/*.hpp")):
        name, until = path.relative_to(root).as_posix(), 0
        numbered = enumerate(without_comments(path.read_text(encoding="utf-8")).splitlines(), 1)
        code = [(number, line.strip()) for number, line in numbered if line.strip() not in ("", "#pragma once") and not INCLUDE.match(line)]
        for begin in range(len(code) - most):
            run = tuple(line for _, line in code[begin:begin + most + 1])
            if run in places and begin >= until:
                yield f"{name}:{code[begin][0]}: {most + 1} lines are those of {places[run]}; what both need stands once"
                until = begin + most + 1
            places.setdefault(run, f"{name}:{code[begin][0]}")


def self_test():
    """Each tree breaks one rule; the finding must contain the text. The last tree breaks none."""
    def header(name, *body):
        about = "a test (not run on a GPU)." if name.startswith("nccl/") else "a test."
        return {f"heddle/{name}": "\n".join([f"// heddle/{name}: {about}", "#pragma once", *body, ""])}

    low, mesh = header("core/low.hpp"), header("mesh/mesh.hpp")
    cases = [
        ({**low, **header("mesh/up.hpp", "#include <heddle/layout/a.hpp>"), **header("layout/a.hpp")}, "mesh must not include layout"),
        ({**header("comm/side.hpp", "#include <heddle/layout/a.hpp>"), **header("layout/a.hpp")}, "comm must not include layout"),
        ({**header("comm/a.hpp", "#include <heddle/collective/a.hpp>"), **header("collective/a.hpp")}, "comm must not include collective"),
        ({**header("comm/a.hpp", "#include <heddle/rendezvous/a.hpp>"), **header("rendezvous/a.hpp")}, "comm must not include rendezvous"),
        ({**header("nccl/a.hpp", "#include <heddle/rendezvous/a.hpp>"), **header("rendezvous/a.hpp", "#include <heddle/comm/a.hpp>"),
          **header("comm/a.hpp"), **header("collective/a.hpp", "#include <heddle/comm/a.hpp>")}, None),
        ({**header("rendezvous/a.hpp", "#include <heddle/collective/a.hpp>"), **header("collective/a.hpp")}, "rendezvous must not include collective"),
        ({**header("draw/a.hpp", "#include <heddle/layout/a.hpp>"), **header("layout/a.hpp")}, "draw must not include layout"),
        ({**header("core/a.hpp", "#include <heddle/draw/a.hpp>"), **header("draw/a.hpp")}, "core must not include draw"),
        ({**header("layout/a.hpp", "#include <heddle/draw/a.hpp>"), **header("draw/a.hpp")}, None),
        ({**header("train/a.hpp", "#include <heddle/infer/a.hpp>"), **header("infer/a.hpp")}, "train must not include infer"),
        ({**header("infer/a.hpp", "#include <heddle/model/pipeline/executor.hpp>"), **header("model/pipeline/executor.hpp")}, None),
        ({**header("infer/a.hpp", "#include <heddle/train/a.hpp>"), **header("train/a.hpp")}, "infer must not include train"),
        ({**header("model/pipeline/a.hpp", "#include <heddle/train/a.hpp>"), **header("train/a.hpp")}, "model must not include train"),
        ({**header("model/a.hpp", "#include <heddle/io/a.hpp>"), **header("io/a.hpp")}, "model must not include io"),
        ({**header("observe/a.hpp", "#include <heddle/comm/a.hpp>"), **header("comm/a.hpp")}, "observe must not include comm"),
        ({**header("core/a.hpp", "  #  include <heddle/mesh/mesh.hpp>"), **mesh}, "core must not include mesh"),
        (header("attic/a.hpp"), "not in the floor table"),
        (header("core/a.hpp", "#include <heddle/core/b.hpp>"), "does not exist"),
        ({**low, **header("core/a.hpp", "#include <vector>", "#include <heddle/core/low.hpp>")}, "included first"),
        ({**low, **header("core/a.hpp", '#include "low.hpp"')}, "included with <heddle/...>"),
        (header("core/a.hpp", "#include <ranges>"), "too heavy for core"),
        (header("comm/a.hpp", "#include <mpi.h>"), "belongs to an optional package"),
        ({**header("io/a.hpp", "#include <heddle/io/range_v3.hpp>"), **header("io/range_v3.hpp")}, "needs the component range_v3"),
        ({**header("io/json/a.hpp", "#include <heddle/io/tokenizer/b.hpp>"), **header("io/tokenizer/b.hpp")}, "needs the component tokenizer"),
        ({**header("infer/serve/openai/a.hpp", "#include <heddle/infer/serve/openai/call.hpp>"), **header("infer/serve/openai/call.hpp")},
         "needs the component tokenizer"),
        ({**header("io/safetensors/a.hpp", "#include <heddle/io/safetensors/header.hpp>"), **header("io/safetensors/header.hpp")},
         "needs the component json"),
        ({**header("comm/mpi.hpp", "#include <heddle/nccl/nccl.hpp>"), **header("nccl/nccl.hpp")}, "needs the component nccl"),
        ({**header("io/a.hpp", "#if defined(HEDDLE_HAS_MPI)", "#include <heddle/io/range_v3.hpp>", "#endif"), **header("io/range_v3.hpp")},
         "needs the component range_v3"),
        ({**header("io/a.hpp", "#if defined(HEDDLE_HAS_RANGE_V3)", "#include <heddle/io/range_v3.hpp>", "#endif"), **header("io/range_v3.hpp")}, None),
        (header("core/a.hpp", "#define OTHER 1"), "does not begin with HEDDLE_"),
        (header("core/a.hpp", "using namespace std;"), "using namespace"),
        (header("core/a.hpp", "namespace {", "}"), "anonymous namespace"),
        (header("core/a.hpp", "const int most = std::numeric_limits<int>::max();"), "others define macros min and max"),
        (header("core/a.hpp", "auto f(int a) { return std::min(a, 2); }"), "others define macros min and max"),
        (header("core/a.hpp", "const int most = (std::numeric_limits<int>::max)(), least = (std::min<int>)(most, 2);  // std::min()"), None),
        (header("core/a.hpp", *["//"] * 640), "at most 640 lines"),
        ({**header("core/a.hpp", *[f"inline int f{n}() {{ return 1; }}" for n in range(12)]),
          **header("core/b.hpp", "// b", *[f"inline int f{n}() {{ return 1; }}" for n in range(12)])}, "12 lines are those of heddle/core/a.hpp:3"),
        ({**header("core/a.hpp", *[f"inline int f{n}() {{ return 1; }}" for n in range(11)]),
          **header("core/b.hpp", *[f"inline int f{n}() {{ return 1; }}" for n in range(11)])}, None),
        ({"heddle/core/a.hpp": "#pragma once\n"}, "the first line must read"),
        ({"heddle/core/a.hpp": f"// heddle/core/a.hpp: {'too long ' * 9}.\n#pragma once\n"}, "more than 100"),
        ({"heddle/nccl/a.hpp": "// heddle/nccl/a.hpp: a test.\n#pragma once\n"}, "say (not run on a GPU)"),
        ({"heddle/core/a.hpp": "// heddle/core/a.hpp: a test (not run on a GPU).\n#pragma once\n"}, "say (not run on a GPU)"),
        ({"heddle/core/a.hpp": "// heddle/core/b.hpp: wrong name.\n#pragma once\n"}, "the first line must read"),
        ({"heddle/core/a.hpp": "// heddle/core/a.hpp: no guard.\n"}, "no #pragma once"),
        ({**low, "heddle/core.hpp": "// heddle/core.hpp: empty.\n#pragma once\n"}, "lacks ['heddle/core/low.hpp']"),
        ({**header("comm/mpi.hpp", "#include <mpi.h>"), **header("comm.hpp", "#include <heddle/comm/mpi.hpp>"), **header("comm/a.hpp")},
         "has too much ['heddle/comm/mpi.hpp']"),
        ({**header("train/weights.hpp"), **header("train/a.hpp"),
          **header("train.hpp", "#include <heddle/train/a.hpp>", "#include <heddle/train/weights.hpp>")}, "has too much ['heddle/train/weights.hpp']"),
        ({**header("train/a.hpp"), **header("heddle.hpp", "#include <heddle/train/a.hpp>")}, "has too much ['heddle/train/a.hpp']"),
        ({**low, **header("core.hpp", "#include <heddle/core/low.hpp>")}, "is not what floors.py --write makes"),
        (header("others.hpp"), "belongs to no room"),
        ({**header("version.hpp"), **header("core/error.hpp")}, "its word heddle/mesh/mesh.hpp does not exist"),
        (header("version.hpp"), "COMPONENTS names heddle/comm/mpi, which does not exist"),
        (header("version.hpp"), "is not what floors.py --write makes of COMPONENTS"),
        ({**low, **header("mesh/a.hpp", "#include <heddle/core.hpp>")}, "is for users"),
        ({**header("testing/a.hpp", "#include <heddle/model/a.hpp>"), **header("model/a.hpp")}, "testing must not include model"),
        (header("io/impl/a.hpp", "HEDDLE_INLINE void f() {}"), "does not include these bodies"),
        ({**header("io/a.hpp", "#include <heddle/io/impl/a.hpp>"), **header("io/impl/a.hpp")}, "where HEDDLE_SEPARATE_COMPILATION is asked for"),
        ({**header("io/a.hpp", "#if !defined(HEDDLE_SEPARATE_COMPILATION)", "#include <heddle/comm/impl/a.hpp>", "#endif"),
          **header("comm/impl/a.hpp")}, "is included by heddle/comm/ alone"),
        ({**low, **header("core/impl/a.hpp"), **header("core.hpp", "#include <heddle/core/impl/a.hpp>")}, "has too much ['heddle/core/impl/a.hpp']"),
        ({**header("io/impl/a.hpp"), **header("impl.hpp")}, "lacks ['heddle/io/impl/a.hpp']"),
        ({**header("io/a.hpp", "", "#include <vector>", "", "#if !defined(HEDDLE_SEPARATE_COMPILATION)", "#include <heddle/io/impl/a.hpp>", "#endif"),
          **header("io/impl/a.hpp", "#include <heddle/io/a.hpp>", "HEDDLE_INLINE void f() {}")}, None),
        ({**low, **mesh, **header("comm/mpi.hpp", "#include <mpi.h>"), **header("train/a.hpp", "#include <heddle/sim/a.hpp>", "// #include <mpi.h>"),
          **header("sim/a.hpp", "#include <heddle/mesh/mesh.hpp>", "", "#include <vector>")}, None),
    ]
    failed = 0
    for number, (files, text) in enumerate(cases):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            for name, content in components(root).items():
                if name not in files:
                    (root / name).write_text(content)
            findings = list(check(root))
        if findings != [] if text is None else not any(text in finding for finding in findings):
            failed += 1
            print(f"self-test {number}: expected {text!r}, found {findings}")
    print(f"self-test: {len(cases) - failed} of {len(cases)} trees judged rightly")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) == 2 and arguments[1] == "--write":
        write_components(Path(arguments[0]))
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    findings = list(check(arguments[0]))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings in {len(list(Path(arguments[0]).glob('heddle/**/*.hpp')))} headers")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
