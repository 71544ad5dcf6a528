"""heddle for Conan 2: headers, one package for all settings and options; with the option `compiled`, one package for each
setting, which has the static library heddle::compiled besides; with `families` also heddle::families, of the models of Hugging Face that
it names: "all_f32", or "llama_f32,qwen3_f32".

An option with_<component> makes the CMake target heddle::<component>. Its package comes from the system, found when the
consumer configures; the option changes no header and nothing in the package.
"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_compiler_version, check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load
from conan.tools.layout import basic_layout
from conan.tools.system.package_manager import Apt

required_conan_version = ">=2.34"

# The components of cmake/heddle-components.cmake, and the Debian packages that bring what each needs. CUDA's toolkit, NCCL, cuDNN and
# a Kokkos for GPUs come from NVIDIA or from source.
COMPONENTS = {
    "mpi": ["libopenmpi-dev", "openmpi-bin"],
    "kokkos": ["libtrilinos-kokkos-dev"],
    "cuda": [],
    "nccl": [],
    "cudnn": [],
    "onednn": ["libdnnl-dev"],
    "cblas": ["libopenblas-dev"],
    "range_v3": ["librange-v3-dev"],
    "hwloc": ["libhwloc-dev"],
    "pugixml": ["libpugixml-dev"],
    "json": ["nlohmann-json3-dev"],
    "uring": ["liburing-dev"],
    "zstd": ["libzstd-dev"],
    "zmq": ["libzmq3-dev", "cppzmq-dev"],
    "tokenizer": ["libpcre2-dev", "libutf8proc-dev", "nlohmann-json3-dev"],
    "httplib": ["libcpp-httplib-dev", "pkg-config", "libpcre2-dev", "libutf8proc-dev", "nlohmann-json3-dev"],
    "curl": ["libcurl4-openssl-dev", "libpugixml-dev"],
}


class HeddleConan(ConanFile):
    name = "heddle"
    description = "Header-only C++20 parallelism toolkit for training and serving large language models on many ranks"
    topics = ("header-only", "parallel", "mpi", "training", "tensor")
    license = "Apache-2.0 WITH LLVM-exception"
    settings = "os", "arch", "compiler", "build_type"
    options = {"compiled": [True, False], "families": ["ANY"], **{f"with_{component}": [True, False] for component in COMPONENTS}}
    default_options = {"compiled": False, "families": "", **{f"with_{component}": False for component in COMPONENTS}}
    exports_sources = "CMakeLists.txt", "include/*", "cmake/*", "LICENSE"
    no_copy_source = True

    def _components(self):
        return [c for c in COMPONENTS if self.options.get_safe(f"with_{c}")]

    def _families(self):
        return [name for name in str(self.options.families).split(",") if name]

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "include", "heddle", "version.hpp"))
        self.version = ".".join(re.search(rf"VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def configure(self):
        if self._families():
            self.options.compiled = True
        self.package_type = "static-library" if self.options.compiled else "header-library"

    def layout(self):
        basic_layout(self)

    def package_id(self):
        if self.info.options.compiled:  # the components change nothing in the package
            for component in COMPONENTS:
                self.info.options.rm_safe(f"with_{component}")
        else:
            self.info.clear()

    def generate(self):
        if self.options.compiled:
            toolchain = CMakeToolchain(self)
            for part in ("TESTS", "EXAMPLES", "BENCHMARKS", "INSTALL"):
                toolchain.cache_variables[f"HEDDLE_{part}"] = False
            toolchain.cache_variables["HEDDLE_COMPILED"] = True
            toolchain.cache_variables["HEDDLE_FAMILIES"] = ";".join(self._families())
            toolchain.generate()

    def build(self):
        if self.options.compiled:
            cmake = CMake(self)
            cmake.configure()
            cmake.build()

    def validate(self):
        check_min_cppstd(self, 20)
        check_min_compiler_version(self, [("gcc", "12", "complete C++20"), ("clang", "17", "complete C++20")])  # as heddle/core/config.hpp

    def system_requirements(self):
        # Whoever installed them: CMake says what is missing. These are installed, or listed, only where a profile asks for it.
        if self.conf.get("tools.system.package_manager:mode", default="check") != "check":
            packages = [package for component in self._components() for package in COMPONENTS[component]]
            if packages:
                Apt(self).install(packages, update=True, check=True)

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "*.hpp", os.path.join(self.source_folder, "include"), os.path.join(self.package_folder, "include"))
        for file in ("components", "testing", "refusal", "conan"):
            copy(self, f"heddle-{file}.cmake", os.path.join(self.source_folder, "cmake"),
                 os.path.join(self.package_folder, "cmake"))
        if self.options.compiled:
            copy(self, "*.a", self.build_folder, os.path.join(self.package_folder, "lib"), keep_path=False)

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        # heddle::heddle is the headers alone, so what stands for all components has another name.
        self.cpp_info.set_property("cmake_file_name", "heddle")
        self.cpp_info.set_property("cmake_target_name", "heddle::all")
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        self.cpp_info.set_property("cmake_build_modules", ["cmake/heddle-conan.cmake"])
        self.cpp_info.set_property("pkg_config_name", "heddle-all")

        headers = self.cpp_info.components["heddle"]
        headers.set_property("cmake_target_name", "heddle::heddle")
        headers.set_property("pkg_config_name", "heddle")
        headers.bindirs = []
        headers.libdirs = []
        if self.settings.get_safe("os") in ("Linux", "FreeBSD"):
            headers.system_libs = ["pthread"]
        if self.options.compiled:
            library = self.cpp_info.components["compiled"]
            library.set_property("cmake_target_name", "heddle::compiled")
            library.set_property("pkg_config_name", "heddle-compiled")
            library.requires = ["heddle"]
            library.libs = ["heddle"]
            library.defines = ["HEDDLE_SEPARATE_COMPILATION"]
            library.includedirs = []
            library.bindirs = []
        if self._families():
            library = self.cpp_info.components["families"]
            library.set_property("cmake_target_name", "heddle::families")
            library.set_property("pkg_config_name", "heddle-families")
            library.requires = ["compiled"]
            library.libs = ["heddle_families"]
            library.defines = ["HEDDLE_COMPILED_FAMILIES"]
            library.includedirs = []
            library.bindirs = []
        for name in self._components():
            component = self.cpp_info.components[name]
            component.set_property("cmake_target_name", f"heddle::{name}")
            component.set_property("pkg_config_name", f"heddle-{name}")
            component.requires = ["heddle"]
            component.includedirs = []
            component.bindirs = []
            component.libdirs = []
