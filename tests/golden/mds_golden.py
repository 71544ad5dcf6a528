#!/usr/bin/env python3
"""Writes tests/golden/mds: shards of MosaicML Streaming's own MDSWriter, plain and compressed by zstd.

    pip install --no-deps mosaicml-streaming==0.13.0 numpy zstd typing_extensions
    python3 tests/golden/mds_golden.py tests/golden/mds

What the writer does not use (PyTorch, clouds, images, other compressions) is replaced by stand-ins. Sample i has a text
`sample i` of its own length, a number 7 i - 3, and tokens: i % 5 + 1 of them, token t being 100 i + t.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import types
from unittest import mock

import numpy


class stand_ins(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = {"torch", "transformers", "boto3", "botocore", "brotli", "snappy", "PIL", "tqdm", "psutil", "azure", "google", "oci", "yaml",
             "xxhash", "torchvision", "paramiko", "catalogue", "click", "matplotlib", "zstandard", "databricks", "huggingface_hub",
             "requests", "filelock", "fsspec", "pandas", "pyarrow", "packaging", "alipcs_python_sdk", "oss2", "lz4"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        base = type("Base", (), {"__class_getitem__": classmethod(lambda cls, item: cls)})
        for name in ("Dataset", "IterableDataset", "DataLoader", "VisionDataset", "ClientError", "JpegImageFile"):
            setattr(module, name, type(name, (base,), {}))
        module.Image = type("Image", (), {"Image": base})
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, stand_ins())
# The packages without what they import themselves: data sets and loaders.
top = importlib.util.find_spec("streaming").submodule_search_locations[0]
for name, path in {"streaming": "", "streaming.base": "/base", "streaming.base.format": "/base/format", "streaming.base.storage": "/base/storage"}.items():
    package = types.ModuleType(name)
    package.__path__ = [top + path]
    sys.modules[name] = package
from streaming.base.format.mds.writer import MDSWriter  # noqa: E402


def main(folder):
    kinds = {"bytes": ("bytes", None), "array": ("ndarray:uint16", None), "any": ("ndarray", None), "fixed": ("ndarray:int32:3", "zstd:7")}
    for name, (encoding, compression) in kinds.items():
        out = os.path.join(folder, name)
        shutil.rmtree(out, ignore_errors=True)
        columns = {"text": "str", "number": "int", "tokens": encoding}
        with MDSWriter(columns=columns, out=out, compression=compression, size_limit=600) as writer:
            for i in range(20):
                dtype = {"bytes": numpy.int64, "array": numpy.uint16, "any": numpy.uint32, "fixed": numpy.int32}[name]
                count = 3 if name == "fixed" else i % 5 + 1
                tokens = (100 * i + numpy.arange(count)).astype(dtype)
                writer.write({"text": "sample " + "i" * i, "number": 7 * i - 3, "tokens": tokens.tobytes() if name == "bytes" else tokens})


if __name__ == "__main__":
    main(sys.argv[1])
