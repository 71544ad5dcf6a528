"""The recipes of packaging/: that each has the version of version.hpp, and what a release fills in.

    recipes.py <repository>                                     checks versions and floors, and evaluates Spack's recipe with stand-ins
    recipes.py <repository> --release <archive> <url> <homepage> <out>   writes the recipes with the archive's address and sums filled in
    recipes.py <repository> --self-test

Spack itself has not seen the recipe: the stand-ins know the directives that it uses, and no other.
"""
import hashlib
import json
import re
import sys
import tempfile
import types
from pathlib import Path

VERSIONS = {  # file: a pattern whose first group is a version; every match is compared
    "packaging/debian/changelog": r"\Aheddle \(([^)]*)\)",
    "packaging/conan-center/config.yml": r'^  "([^"]*)":',
    "packaging/conan-center/all/conandata.yml": r'^  "([^"]*)":',
    "packaging/spack/package.py": r'^    version\("([^"]*)"',
    "packaging/vcpkg/heddle/vcpkg.json": r'^  "version": "([^"]*)"',
}
FLOORS = {  # file: a pattern with g++'s floor, and clang's; Spack's are the last versions that are refused
    "conanfile.py": (r'\("gcc", "(\d+)".*?\("clang", "(\d+)"', 0),
    "packaging/conan-center/all/conanfile.py": (r'\("gcc", "(\d+)".*?\("clang", "(\d+)"', 0),
    "packaging/spack/package.py": (r'"%gcc@:(\d+)".*?"%clang@:(\d+)"', 1),
}
HOLES = ("@URL@", "@HOMEPAGE@", "@SHA256@", "@SHA512@")


def version_of(repository):
    text = (repository / "include/heddle/version.hpp").read_text(encoding="utf-8")
    return ".".join(re.findall(r"#define HEDDLE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def floors_of(repository):
    text = (repository / "include/heddle/core/config.hpp").read_text(encoding="utf-8")
    return tuple(re.search(rf"{name} < (\d+)", text)[1] for name in ("__GNUC__", "__clang_major__"))


def spack_recipe(path):
    """What the directives of Spack's recipe say, and the options that it gives to CMake with `compiled` on."""
    said = []

    class base:
        def define(self, name, value):
            return f"-D{name}:BOOL={'ON' if value else 'OFF'}"

        def define_from_variant(self, name, variant):
            if not any(kind == "variant" and what[0] == variant for kind, what, _ in said):
                raise KeyError(f"no variant {variant}")
            return self.define(name, True)

    spack = types.ModuleType("spack.package")
    names = ("license", "version", "variant", "depends_on", "conflicts")
    for name in names:
        setattr(spack, name, lambda *what, _name=name, **more: said.append((_name, what, more)))
    spack.__all__ = list(names)
    cmake = types.ModuleType("spack_repo.builtin.build_systems.cmake")
    cmake.CMakePackage = base
    stand_ins = {"spack": types.ModuleType("spack"), "spack.package": spack, cmake.__name__: cmake}
    for depth in range(1, 4):
        name = ".".join(cmake.__name__.split(".")[:depth])
        stand_ins[name] = types.ModuleType(name)
    sys.modules.update(stand_ins)
    try:
        names_of_recipe = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names_of_recipe)
        return said, names_of_recipe["Heddle"]().cmake_args()
    finally:
        for name in stand_ins:
            del sys.modules[name]


def findings(repository):
    version, floors = version_of(repository), floors_of(repository)
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (repository / name).read_text(encoding="utf-8"), re.MULTILINE)
        if not found:
            yield f"{name}: no version, expected {version}"
        for other in found:
            if other != version:
                yield f"{name}: version {other}, version.hpp says {version}"
    for name, (pattern, below) in FLOORS.items():
        found = re.search(pattern, (repository / name).read_text(encoding="utf-8"), re.DOTALL)
        expected = tuple(str(int(floor) - below) for floor in floors)
        if not found or found.groups() != expected:
            yield f"{name}: compilers {found and found.groups()}, core/config.hpp asks for {expected}"
    port = json.loads((repository / "packaging/vcpkg/heddle/vcpkg.json").read_text(encoding="utf-8"))
    if port["name"] != "heddle":
        yield "packaging/vcpkg/heddle/vcpkg.json: another name than its folder's"
    options = (repository / "CMakeLists.txt").read_text(encoding="utf-8")
    try:
        said, arguments = spack_recipe(repository / "packaging/spack/package.py")
    except Exception as mistake:
        yield f"packaging/spack/package.py: {type(mistake).__name__}: {mistake}"
        return
    for argument in arguments:
        name = re.match(r"-D(\w+):", argument)[1]
        if f"option({name} " not in options:
            yield f"packaging/spack/package.py: gives {name}, which is no option of CMakeLists.txt"
    if not any(kind == "conflicts" for kind, _, _ in said):
        yield "packaging/spack/package.py: refuses no compiler"


def release(repository, archive, url, homepage, out):
    data = archive.read_bytes()
    filled = dict(zip(HOLES, (url, homepage, hashlib.sha256(data).hexdigest(), hashlib.sha512(data).hexdigest())))
    for path in sorted((repository / "packaging").rglob("*")):
        part = path.relative_to(repository / "packaging")
        if path.is_file() and part.parts[0] != "debian":
            text = path.read_text(encoding="utf-8")
            for hole, value in filled.items():
                text = text.replace(hole, value)
            (out / part).parent.mkdir(parents=True, exist_ok=True)
            (out / part).write_text(text, encoding="utf-8")


def self_test(repository):
    copied = [*VERSIONS, *FLOORS, "include/heddle/version.hpp", "include/heddle/core/config.hpp", "CMakeLists.txt"]
    mistakes = [(name, lambda text: text.replace("0.1.0", "0.0.9", 1), "version 0.0.9") for name in VERSIONS] + [
        ("packaging/spack/package.py", lambda text: text.replace("gcc@:11", "gcc@:10"), "compilers ('10', '16')"),
        ("conanfile.py", lambda text: text.replace('("clang", "17"', '("clang", "16"'), "compilers ('12', '16')"),
        ("packaging/spack/package.py", lambda text: text.replace('"HEDDLE_COMPILED"', '"HEDDLE_COMPILE"'), "gives HEDDLE_COMPILE,"),
        ("packaging/spack/package.py", lambda text: text.replace("variant(", "variants(", 1), "NameError"),
        ("packaging/vcpkg/heddle/vcpkg.json", lambda text: text.replace('"heddle"', '"weave"', 1), "another name")]
    version = version_of(repository)
    for name, change, expected in [(None, None, None), *mistakes]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for path in copied:
                text = (repository / path).read_text(encoding="utf-8").replace(version, "0.1.0")
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(change(text) if path == name else text, encoding="utf-8")
            found = list(findings(folder))
            if (expected is None and found) or (expected is not None and not any(expected in f for f in found)):
                print(f"recipes.py: {name}: found {found}, expected {expected}")
                return 1
    with tempfile.TemporaryDirectory() as scratch:
        archive, out = Path(scratch) / "a.tar.gz", Path(scratch) / "out"
        archive.write_bytes(b"an archive")
        release(repository, archive, "https://example.org/a.tar.gz", "https://example.org", out)
        left = [path for path in out.rglob("*") if path.is_file() and re.search("@[A-Z0-9]+@", path.read_text(encoding="utf-8"))]
        if left or hashlib.sha256(b"an archive").hexdigest() not in (out / "spack/package.py").read_text(encoding="utf-8"):
            print(f"recipes.py: a release leaves holes in {left}")
            return 1
    print(f"recipes.py: finds each of {len(mistakes)} mistakes; a release fills every hole")
    return 0


def main(arguments):
    if arguments[1:2] == ["--self-test"]:
        return self_test(Path(arguments[0]))
    if arguments[1:2] == ["--release"] and len(arguments) == 6:
        release(Path(arguments[0]), Path(arguments[2]), *arguments[3:5], Path(arguments[5]))
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    found = list(findings(Path(arguments[0])))
    for finding in found:
        print(finding)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
