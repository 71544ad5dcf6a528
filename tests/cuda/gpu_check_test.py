"""What scripts/gpu_check says of a cuDNN and of a missing nvcc, with a toolkit that is none: gpu_check_test.py SOURCE_DIR COMPILER"""

import os
import shutil
import subprocess
import sys
import tempfile
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
    assert status == 1 and "cudnn_gpu_test is not built, this machine lacks: nvcc" in text, (status, text)
    assert "## tests" in (copy / "build" / "gpu" / "report.md").read_text()
    for words in (("--rehearse", "--programs", "cudnn_gpu_test,memory_test"), ("--build-only", "--programs", "cudnn_gpu_test")):
        status, text = said(*words)
        assert status == 3 and "no GPU check, this machine lacks: nvcc" in text, (words, status, text)
print("gpu_check says what it leaves out")
