"""scripts/gpu_check with a toolkit, programs and a GPU that are none: what it says of a cuDNN and of a missing nvcc, in which order it works, and what
its report has when its time is over or a signal ends it. gpu_check_test.py SOURCE_DIR COMPILER"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

source, compiler = Path(sys.argv[1]), sys.argv[2]


def library(folder: Path, version: int, cudart: int) -> None:
    """A libcudnn.so.9 that knows its versions, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {version}; }}\nsize_t cudnnGetCudartVersion(void) {{ return {cudart}; }}\n"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libcudnn.so.9")], input=text, text=True, check=True)


def headers(folder: Path, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cudnn.h").touch()
    parts = zip(("MAJOR", "MINOR", "PATCHLEVEL"), (version // 10000, version // 100 % 100, version % 100))
    (folder / "cudnn_version.h").write_text("".join(f"#define CUDNN_{name} {number}\n" for name, number in parts))


with tempfile.TemporaryDirectory() as scratch:
    toolkit, copy = Path(scratch) / "toolkit", Path(scratch) / "copy"
    (toolkit / "bin").mkdir(parents=True)
    nvcc = toolkit / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    (copy / "scripts").mkdir(parents=True)
    shutil.copy(source / "scripts" / "gpu_check", copy / "scripts")
    for room in ("include", "examples", "benchmarks", "tests/cuda/cudnn"):
        (copy / room).mkdir(parents=True)
    (copy / "tests" / "cuda" / "one_gpu_test.cu").touch()
    environment = {**os.environ, "PATH": f"{toolkit / 'bin'}:{os.environ['PATH']}", "HEDDLE_TORCH_PYTHON": sys.executable, "HEDDLE_CUDA_ARCH": "sm_90"}

    def said(*words: str) -> "tuple[int, str]":
        ran = subprocess.run([str(copy / "scripts" / "gpu_check"), *words], env=environment, text=True, capture_output=True, check=False)
        return ran.returncode, ran.stderr

    for version, cudart, of_headers, expected in (
        (91900, 13010, 91900, None),
        (91900, 13010, 91600, None),
        (91900, 12090, 91900, "cuDNN is left out: the library 9.19 is for CUDA 12, nvidia-cudnn-cu13 is wanted"),
        (91500, 13000, 91900, "cuDNN is left out: the library is 9.15, 9.16 or later is wanted"),
        (91900, 13010, 91500, f"cuDNN is left out: the headers in {toolkit}/include are 9.15, 9.16 or later is wanted"),
        (91600, 13010, 91900, f"cuDNN is left out: the headers in {toolkit}/include are 9.19, later than the library, which is 9.16"),
    ):
        library(toolkit / "lib64", version, cudart)
        headers(toolkit / "include", of_headers)
        # A program that is not there is asked for, so that nothing is built.
        status, text = said("--build-only", "--programs", "none")
        assert status == 0, (status, text)
        assert (expected in text) if expected else ("cuDNN" not in text), (expected, text)
    (toolkit / "lib64" / "libcudnn.so.9").write_text("")
    text = said("--build-only", "--programs", "none")[1]
    assert f"cuDNN is left out: {toolkit}/lib64/libcudnn.so.9 does not say its version" in text, text

    # Without nvcc: the program of cuDNN alone is no reason to do nothing, others are.
    library(toolkit / "lib64", 91900, 13010)
    headers(toolkit / "include", 91900)
    nvcc.chmod(0o644)
    script = copy / "scripts" / "gpu_check"
    script.write_text(script.read_text().replace("$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)", str(nvcc)))
    (copy / "benchmarks" / "gpu_summary.py").write_text("")
    status, text = said("--rehearse", "--only", "tests", "--programs", "cudnn_gpu_test")
    assert status == 1 and "cudnn_gpu_test not built, this machine lacks: nvcc" in text, (status, text)
    assert "## tests" in (copy / "build" / "gpu" / "report.md").read_text()
    for words in (("--rehearse", "--programs", "cudnn_gpu_test,memory_test"), ("--build-only", "--programs", "cudnn_gpu_test")):
        status, text = said(*words)
        assert status == 3 and "no GPU check, this machine lacks: nvcc" in text, (words, status, text)


# A compiler whose programs print a number, or do what a file of their name in `orders` says. It waits until two of it have begun, as long as that may come.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo stand-in; exit 0; fi
for word; do
  if [ "$before" = -o ]; then out=$word; fi
  before=$word
done
case $out in *.o) : >"$out"; exit 0 ;; esac
echo "$out" >>"{0}/begun"
n=0
while [ "$(wc -l <"{0}/begun")" -lt 2 ]; do
  n=$((n + 1))
  if [ $n -gt 200 ]; then echo "this one is alone"; exit 1; fi
  sleep 0.1
done
cp "{0}/program" "$out"
"""
PROGRAM = """#!/bin/sh
name=$(basename "$0")
if [ -e "{0}/orders/$name" ]; then . "{0}/orders/$name"; fi
echo "result stand-in.$name 1 of_one"
"""
SANITIZER = """#!/bin/sh
if [ -e "{0}/orders/compute-sanitizer" ]; then exec sleep 100; fi
while [ "${1#build/}" = "$1" ]; do shift; done
exec "$@"
"""
PARTS = ("build", "tests", "train", "kernels", "attention", "demo", "sanitizer")


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


with tempfile.TemporaryDirectory() as scratch:
    toolkit, copy = Path(scratch) / "toolkit", Path(scratch) / "copy"
    executable(toolkit / "bin" / "nvcc", COMPILER.replace("{0}", scratch))
    executable(toolkit / "bin" / "nvidia-smi", "#!/bin/sh\necho 'a stand-in'\n")
    executable(toolkit / "bin" / "compute-sanitizer", SANITIZER.replace("{0}", scratch))
    executable(Path(scratch) / "program", PROGRAM.replace("{0}", scratch))
    orders = Path(scratch) / "orders"
    orders.mkdir()
    for file in ("toolkit/include/cublasLt.h", "toolkit/lib64/libcublasLt.so.13", "copy/tests/cuda/one_gpu_test.cu",
                 "copy/tests/cuda/boxes_gpu_test.cu", "copy/include/a.hpp",
                 "copy/examples/a.hpp", "copy/build/gpu/include/catch2/catch.hpp", "copy/build/gpu/include/CLI/CLI.hpp"):
        (Path(scratch) / file).parent.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / file).touch()
    for folder in ("scripts", "tests/cuda/cudnn", "benchmarks"):
        (copy / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "scripts" / "gpu_check", copy / "scripts")
    shutil.copy(source / "benchmarks" / "gpu_summary.py", copy / "benchmarks")
    for name in ("gpt2_cuda", "attention_cuda"):
        (copy / "benchmarks" / f"{name}.py").write_text("")
    environment = {**os.environ, "PATH": f"{toolkit / 'bin'}:{os.environ['PATH']}", "HEDDLE_TORCH_PYTHON": sys.executable, "HEDDLE_CUDA_ARCH": "sm_90",
                   "HEDDLE_GPU_JOBS": "4"}
    check, report = str(copy / "scripts" / "gpu_check"), copy / "build" / "gpu" / "report.md"

    def ran(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([check, *words], env=environment, text=True, capture_output=True, check=False)

    def places(text: str) -> "list[int]":
        return [text.index(f"\n## {part}\n") for part in PARTS]

    done = ran("--build-only")
    assert done.returncode == 0, done
    assert "gpt2_cuda_bf16 built in " in done.stdout and " of processor time" in done.stdout, done.stdout
    assert (copy / "build" / "gpu" / "commit").exists()
    assert "all programs are built" in ran("--build-only").stdout

    # All of it, in the order of what tells most; numbers are in the report, and the end of the output names it.
    done = ran()
    text = report.read_text()
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr)
    assert places(text) == sorted(places(text)), text
    for name in ("one_gpu_test", "gpt2_cuda_bf16", "cuda_kernels", "gpt2_train_cuda"):
        assert f"result stand-in.{name} 1 of_one" in text.split("\n## numbers\n")[1], (name, text)
    assert done.stdout.splitlines()[-1].endswith("the report is in build/gpu/report.md"), done.stdout[-500:]

    # The time of a call ends: a program that hangs has half of what is left, the next ones are done, and the parts that are left are named. What an earlier
    # call measured of these stays.
    (orders / "gpt2_cuda_bf16").write_text("if [ $2 = 124m ]; then echo 'result stand-in.before 2 of_two'; exec sleep 100; fi\n")
    begin = time.monotonic()
    elsewhere = Path(scratch) / "away" / "report.md"
    done = ran("--only", "tests,train,demo", "--seconds", "34", "--report", str(elsewhere))
    assert done.returncode == 1 and time.monotonic() - begin < 34, (done.stdout[-2000:], time.monotonic() - begin)
    text = elsewhere.read_text()
    assert "result stand-in.before 2 of_two" in text and "result stand-in.gpt2_cuda_bf16_products 1 of_one" in text, text
    assert re.search(r"FAILED with status 124 \(124: not done after \d+ s\)", text), text
    assert "heddle: not done, or not all of it: scripts/gpu_check --only train,demo" in done.stdout, done.stdout[-500:]
    assert "train: GPT-2 124M, bf16: FAILED" in done.stdout.split("## numbers")[1], done.stdout[-500:]
    assert "result stand-in.gpt2_train_cuda 1 of_one" in text, text
    assert Path(f"{elsewhere}.logs.tar.gz").stat().st_size > 0

    # A tool that hangs has no more time than the call.
    (orders / "compute-sanitizer").touch()
    begin = time.monotonic()
    done = ran("--only", "sanitizer", "--seconds", "24")
    assert done.returncode == 1 and time.monotonic() - begin < 28, (done.stdout[-2000:], time.monotonic() - begin)
    assert "heddle: not done, or not all of it: scripts/gpu_check --only sanitizer" in done.stdout, done.stdout[-500:]
    (orders / "compute-sanitizer").unlink()

    # A signal to the script alone: the report is written, and what ran is ended.
    (orders / "gpt2_train_cuda").write_text(f"echo 'result stand-in.begun 3 of_three'\necho $$ >{scratch}/sleeps\nexec sleep 100\n")
    with subprocess.Popen([check, "--only", "kernels,demo"], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        sleeper = Path(scratch) / "sleeps"
        for _ in range(300):
            if sleeper.exists() and sleeper.read_text().strip():
                break
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=20)
    text = report.read_text()
    assert running.returncode == 1 and "stopped by a signal in the part demo" in err, (running.returncode, err)
    assert "STOPPED by a signal" in text and "result stand-in.begun 3 of_three" in text, text
    assert "result stand-in.cuda_kernels 1 of_one" in text and text.index("## kernels") < text.index("## demo"), text
    for _ in range(50):
        if not Path(f"/proc/{sleeper.read_text().strip()}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{sleeper.read_text().strip()}").exists()

    # Other flags, other programs; a report that cannot be written is said before anything is done.
    script = copy / "scripts" / "gpu_check"
    script.write_text(script.read_text().replace("-std=c++20 -O2", "-std=c++20 -O1"))
    assert "gpt2_cuda_bf16 built in " in ran("--build-only").stdout
    done = ran("--report", "/proc/none/report.md")
    assert done.returncode == 1 and "the report cannot be written to /proc/none/report.md" in done.stderr, done
    done = ran("--seconds", "soon")
    assert done.returncode == 2 and "--seconds wants a number of seconds, and has 'soon'" in done.stderr, done
    assert "--seconds N" in ran("--help").stdout
print("gpu_check says what it leaves out, and reports what it has done")
