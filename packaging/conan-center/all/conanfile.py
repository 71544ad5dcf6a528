import os

from conan import ConanFile
from conan.tools.build import check_min_compiler_version, check_min_cppstd
from conan.tools.files import copy, get
from conan.tools.layout import basic_layout

required_conan_version = ">=2.34"


class HeddleConan(ConanFile):
    name = "heddle"
    description = "Header-only C++20 parallelism toolkit for training and serving large language models on many ranks"
    license = "Apache-2.0 WITH LLVM-exception"
    url = "https://github.com/conan-io/conan-center-index"
    homepage = "@HOMEPAGE@"
    topics = ("header-only", "parallel", "mpi", "training", "tensor")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def layout(self):
        basic_layout(self, src_folder="src")

    def package_id(self):
        self.info.clear()

    def validate(self):
        check_min_cppstd(self, 20)
        check_min_compiler_version(self, [("gcc", "12", "complete C++20"), ("clang", "17", "complete C++20")])

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "*.hpp", os.path.join(self.source_folder, "include"), os.path.join(self.package_folder, "include"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_file_name", "heddle")
        self.cpp_info.set_property("cmake_target_name", "heddle::heddle")
        self.cpp_info.set_property("pkg_config_name", "heddle")
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
