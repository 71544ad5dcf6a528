"""Uses heddle as others do: trains two steps on four ranks, as threads or, with_mpi, as processes."""
from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout


class HeddleTestConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["COMPILED"] = bool(self.dependencies["heddle"].options.compiled)
        toolchain.cache_variables["WITH_MPI"] = bool(self.dependencies["heddle"].options.with_mpi)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            CMake(self).ctest(["--verbose"])
