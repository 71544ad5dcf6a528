// Folders that appear whole or not at all: what is there already is not touched, and nothing is written through a link.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/io/output_folder.hpp>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;
using Catch::Matchers::Contains;

namespace {

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a folder gets its name when it is whole", "[io][output_folder]") {
  const scratch_folder f("output");
  for (const char* name : {"new", "new2/", "deep/er/new", "empty"}) {
    CAPTURE(name);
    if (name == std::string("empty")) fs::create_directory(f.path / name);
    {
      io::output_folder out(f.path / name);
      CHECK(out.path().string() == out.name().string() + ".partial");
      put(out.path() / "model.safetensors", "weights");
      CHECK(fs::exists(out.name()) == (name == std::string("empty")));
      out.finish();
    }
    const fs::path there = (f.path / name / "x").lexically_normal().parent_path();
    CHECK(get(there / "model.safetensors") == "weights");
    CHECK(entries(there) == 1);
    CHECK_FALSE(fs::exists(there.string() + ".partial"));
  }
  // Without `finish` nothing stays, of parents neither.
  { const io::output_folder out(f.path / "one/two/three"); }
  CHECK_FALSE(fs::exists(f.path / "one"));
}

TEST_CASE("what is there under the name, or where it is written, stays as it is", "[io][output_folder]") {
  const scratch_folder f("output");
  const fs::path out = f.path / "out", partial = f.path / "out.partial";
  const auto refused = [&](const std::string& why) {
    CHECK_THROWS_WITH(io::output_folder(out), Catch::StartsWith("heddle: ") && Contains(why));
  };
  put(out / "config.json", "mine");
  refused("out', 'config.json' is there already: nothing is written beside other files");
  put(out / "model-00001-of-00002.safetensors", "mine");
  refused("out', 'model-00001-of-00002.safetensors' is there already: a model is not overwritten");
  CHECK(entries(out) == 2);
  fs::remove_all(out);
  put(out, "a file");
  refused("out' is there and is no folder");
  CHECK(get(out) == "a file");
  fs::remove(out);
  fs::create_directory(f.path / "empty");
  fs::create_symlink(f.path / "empty", out);
  refused("out' is a link to '" + (f.path / "empty").string() + "'");
  fs::remove(out);
  fs::create_symlink(f.path / "nowhere", out);
  refused("out' is a link to");
  fs::remove(out);
  put(f.path / "file", "a file");
  CHECK_THROWS_WITH(io::output_folder(f.path / "file" / "out"), Contains("cannot "));
  CHECK_FALSE(fs::exists(partial));

  put(f.path / "elsewhere" / ".lock", "mine");
  put(f.path / "elsewhere" / "model.safetensors", "mine");
  fs::create_symlink(f.path / "elsewhere", partial);
  refused("out.partial' is a link to");
  CHECK(get(f.path / "elsewhere" / ".lock") == "mine");
  CHECK(get(f.path / "elsewhere" / "model.safetensors") == "mine");
  fs::remove(partial);
  put(partial, "a file");
  refused("out.partial', where '");
  fs::remove(partial);
  put(partial / "model.safetensors", "mine");
  refused("has files, which no run has left there");
  put(partial / ".lock", "process 1 on here");
  put(partial / "notes.txt", "mine");
  refused("has 'notes.txt', which no run has left there");
  fs::remove(partial / "notes.txt");
  fs::create_symlink(f.path / "file", partial / "config.json");
  refused("has 'config.json', which no run has left there");
  fs::remove(partial / "config.json");
  put(partial / "step-00000000" / "notes.txt", "mine");
  refused("has 'step-00000000/notes.txt'");
  CHECK(get(partial / "model.safetensors") == "mine");
  CHECK(get(f.path / "file") == "a file");
}

TEST_CASE("what a killed run has left is removed, what another run writes is not", "[io][output_folder]") {
  const scratch_folder f("output");
  const fs::path partial = f.path / "out.partial";
  put(partial / ".lock", "process 1 on here\n");
  for (const char* name : {"model-00001-of-00002.safetensors.partial", "tokenizer.json", "LICENSE", ".probe-12-0",
                           "adapter/adapter_model.safetensors", "adapter/adapter_config.json",
                           "step-00000000.partial/rank-00000.tensors"})
    put(partial / name, "old");
  io::output_folder out(f.path / "out");
  CHECK(entries(partial) == 1);
  put(partial / "config.json", "new");
  CHECK_THROWS_WITH(io::output_folder(f.path / "out"), Contains("another run is saving here"));
  CHECK(get(partial / "config.json") == "new");
  out.finish();
  CHECK(entries(f.path / "out") == 1);
}

TEST_CASE("a folder whose name is gone at the end lies beside it", "[io][output_folder]") {
  const scratch_folder f("output");
  put(f.path / "out-2" / "x", "mine");
  io::output_folder out(f.path / "out");
  put(out.path() / "config.json", "new");
  put(f.path / "out" / "config.json", "another's");
  CHECK_THROWS_WITH(out.finish(), Contains("out' cannot be had any more (") &&
                                      Contains("): the files are in '" + (f.path / "out-3").string() + "'"));
  CHECK(get(f.path / "out" / "config.json") == "another's");
  CHECK(get(f.path / "out-3" / "config.json") == "new");
  CHECK(entries(f.path / "out-2") == 1);
}

TEST_CASE("more than the file system has room for is refused before it is written", "[io][output_folder]") {
  const scratch_folder f("output");
  const io::output_folder out(f.path / "out");
  CHECK_NOTHROW(out.require_room(1));
  CHECK_THROWS_WITH(out.require_room(std::int64_t{1} << 62),
                    Contains("out' needs 4611686018427387904 bytes, its file system has "));
}

TEST_CASE("files that go with weights are those of tokenizers, licenses and generation", "[io][output_folder]") {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "LICENSE", "LICENSE.txt",
                           "NOTICE", "generation_config.json", "chat_template.jinja", "merges.txt", "vocab.json"})
    CHECK(io::is_beside_weights(name));
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "adapter_config.json", "optimizer.pt", "README.md"})
    CHECK_FALSE(io::is_beside_weights(name));
}
