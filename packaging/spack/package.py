# Not run with Spack: tests/consume/recipes.py evaluates it with stand-ins for Spack's directives.
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Heddle(CMakePackage):
    """Header-only C++20 parallelism toolkit for training and serving large language models on many ranks."""

    homepage = "@HOMEPAGE@"
    url = "@URL@"

    license("Apache-2.0 WITH LLVM-exception")

    version("0.1.0", sha256="@SHA256@")

    variant("compiled", default=False, description="Compile what is no template once, into heddle::compiled")
    variant("mpi", default=False, description="Bring what heddle::mpi links")
    variant("kokkos", default=False, description="Bring what heddle::kokkos links")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi", when="+mpi", type=("build", "link", "run"))
    depends_on("kokkos@3.4:", when="+kokkos", type=("build", "link"))

    conflicts("%gcc@:11", msg="heddle needs g++ 12 or clang 17, or a later one")
    conflicts("%clang@:16", msg="heddle needs g++ 12 or clang 17, or a later one")

    def cmake_args(self):
        off = [self.define(f"HEDDLE_{part}", False) for part in ("TESTS", "EXAMPLES", "BENCHMARKS")]
        return off + [self.define_from_variant("HEDDLE_COMPILED", "compiled")]
