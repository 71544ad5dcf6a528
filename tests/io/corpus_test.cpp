// A corpus is the text files of a folder, in an order that is the same everywhere; what cannot be read is named.
#include "catch.hpp"

#include <heddle/draw/svg.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/observe/chrome_trace.hpp>
#include <heddle/observe/recorder.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {
std::string text_of(const io::corpus& c) {
  return {c.tokens().begin(), c.tokens().end()};
}
}  // namespace

template <class C>
concept tokens_of = requires(C&& c) { static_cast<C&&>(c).tokens(); };
TEST_CASE("the tokens of a corpus that ends with the line cannot be taken", "[io][law]") {
  STATIC_REQUIRE(tokens_of<heddle::io::corpus&>);
  STATIC_REQUIRE(tokens_of<const heddle::io::corpus&>);
  STATIC_REQUIRE_FALSE(tokens_of<heddle::io::corpus>);
}

TEST_CASE("a file is its bytes", "[io][corpus]") {
  const scratch_folder folder("corpus");
  const std::string bytes("ab\0\xff\n", 5);
  put(folder / "data.bin", bytes);
  const io::corpus c(folder / "data.bin");
  CHECK(text_of(c) == bytes);
  CHECK(c.size() == 5);
  CHECK(c.files() == 1);
  CHECK(io::corpus::vocabulary() == 256);
  std::string large(100000, 'x');
  large[99999] = 'y';
  put(folder / "large.txt", large);
  CHECK(text_of(io::corpus(folder / "large.txt")) == large);
  put(folder / "page.txt", std::string(4096, 'p'));  // exactly one read
  CHECK(io::corpus(folder / "page.txt").size() == 4096);
}

TEST_CASE("a folder is its text files by path, with a separator between", "[io][corpus]") {
  const scratch_folder folder("corpus");
  put(folder / "b.txt", "B");
  put(folder / "a/z.txt", "Z");
  put(folder / "a/deep/er/y.txt", "Y");
  put(folder / "C.txt", "C");                               // capitals sort first, in bytes
  put(folder / "empty.txt", "");                            // adds nothing, not even a separator
  put(folder / "binary", std::string("x\0y", 3));           // a zero byte near the start
  std::string late(4097, 'l');
  late.back() = '\0';
  put(folder / "late.txt", late);  // a zero byte later on is kept
  put(folder / ".git/config", "hidden");
  put(folder / ".hidden", "hidden");
  put(folder / "build/out.txt", "built");
  put(folder / "build-debug/out.txt", "built");
  put(folder / "a/build_2/out.txt", "built");
  put(folder / "builder.txt", "kept");                           // a file, not a folder
  fs::create_directory_symlink(folder.path, folder / "a/loop");  // not followed
  fs::create_symlink("no such file", folder / "dangling");       // not a regular file
  const io::corpus c(folder.path);
  CHECK(text_of(c) == "C\nY\nZ\nB\nkept\n" + std::string(4096, 'l') + '\0');
  CHECK(c.files() == 6);
  const io::corpus other(folder.path, {.separator = 0});
  CHECK(text_of(other).substr(0, 4) == std::string("C\0Y\0", 4));
  CHECK(other.fingerprint() != c.fingerprint());
  CHECK(io::corpus(folder.path).fingerprint() == c.fingerprint());
  put(folder / "b.txt", "b");
  CHECK(io::corpus(folder.path).fingerprint() != c.fingerprint());
  CHECK(text_of(io::corpus(folder / "build")) == "built");  // named directly, it is taken
}

TEST_CASE("what heddle wrote below a folder is not trained on", "[io][corpus]") {
  const scratch_folder folder("corpus");
  put(folder / "a.txt", "A");
  put(folder / "z.txt", "Z");
  const std::uint64_t before = io::corpus(folder.path).fingerprint();
  // A save, complete and not.
  io::manifest m;
  m.step = 3;
  for (const std::int64_t step : {3, 4}) {
    io::checkpoint_writer writer(folder / "saves", step, 0);
    writer.add<double>("x", std::vector<double>{1, 2});
    m.files = {writer.finish()};
  }
  io::commit(folder / "saves", m);
  const io::save_folder claim(folder / "deep/er/saves");
  put(folder / "saves/step-00000005.partial-a-0/rank-00001.saved", "16 33e6d9106c2ebe4b\n");
  put(folder / "saves/step-00000005.partial-a-0/rank-00002.failed", "heddle: no room");
  // Trace and pictures.
  const std::vector<heddle::event> events;
  heddle::observe::write_chrome_trace((folder / "trace.json").string(), events);
  heddle::observe::trace_metadata about;
  about.about = {{"run", "x"}};
  heddle::observe::write_chrome_trace((folder / "deep/other.json").string(), events, about);
  put(folder / "timeline.svg", heddle::svg_drawing().page("", 100, 50, "#ffffff"));
  CHECK(text_of(io::corpus(folder.path)) == "A\nZ");
  CHECK(io::corpus(folder.path).fingerprint() == before);
  // Other files of those kinds are text, and so is one that is named.
  put(folder / "b.json", "{\"displayTimeUnit\":\"ms\"}");
  put(folder / "c.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"4\">\n</svg>");
  put(folder / "saves/step-00000003/notes", "N");
  CHECK(io::corpus(folder.path).files() == 5);
  CHECK(io::corpus(folder / "timeline.svg").files() == 1);
  CHECK(io::corpus(folder.path, {.leave_out = {folder / "saves/.", folder / "b.json", folder / "none"}}).files() == 3);

  CHECK(io::describe_nesting(folder / "a.txt", folder / "saves").empty());
  CHECK(io::describe_nesting(folder / "sav", folder / "saves").empty());
  CHECK(io::describe_nesting(folder.path, folder / "new/saves").find("lies below '" + folder.path.string()) !=
        std::string::npos);
  CHECK(io::describe_nesting(folder / "saves/text", folder / "./saves/").find("text' lies below '") !=
        std::string::npos);
  CHECK(io::describe_nesting(folder / "saves/", folder / "saves").find("is also the folder of the saves") !=
        std::string::npos);
  fs::create_directory_symlink("saves", folder / "link");
  CHECK(io::describe_nesting(folder / "saves", folder / "link/x").find("lies below") != std::string::npos);
  CHECK(io::describe_nesting(".", ".").find("is also the folder") != std::string::npos);
}

TEST_CASE("what cannot be read is named", "[io][corpus]") {
  const scratch_folder folder("corpus");
  const auto message = [](const fs::path& p, io::corpus_options o = {}) {
    return message_of<heddle::io_error>([&] { io::corpus c(p, o); });
  };
  const auto name = [](const fs::path& p) { return "'" + p.string() + "'"; };
  CHECK(message(folder / "none") == "heddle: no such file or folder: " + name(folder / "none"));
  put(folder / "empty", "");
  CHECK(message(folder / "empty") == "heddle: " + name(folder / "empty") + " is empty");
  fs::create_directories(folder / "nothing/inside");
  CHECK(message(folder / "nothing") ==
        "heddle: " + name(folder / "nothing") + " has no text file with anything in it (0 files looked at)");
  put(folder / "binaries/one", std::string(3, '\0'));
  CHECK(message(folder / "binaries").find("(1 files looked at)") != std::string::npos);
  CHECK(message("/dev/null") == "heddle: '/dev/null' is neither a regular file nor a folder");
  put(folder / "short", "0123456789");
  CHECK(message(folder / "short", {.minimum = 11}) ==
        "heddle: " + name(folder / "short") + " is too small: it has 10 tokens, at least 11 are needed");
  CHECK(message(folder / "short", {.minimum = 10}).empty());
  CHECK(message(folder / "short/er").find("short/er'") != std::string::npos);  // below a file
  if (::geteuid() != 0) {                                                      // root reads everything
    fs::permissions(folder / "short", fs::perms::none);
    CHECK(message(folder / "short").find("cannot read " + name(folder / "short") + ": Permission denied") !=
          std::string::npos);
    CHECK(message(folder.path).find("cannot read " + name(folder / "short")) != std::string::npos);
  }
}

TEST_CASE("bytes in memory are a corpus too", "[io][corpus]") {
  const io::corpus c("memory", std::vector<std::uint8_t>{1, 2, 3});
  CHECK(c.size() == 3);
  CHECK(c.name() == "memory");
  CHECK_THROWS_AS(io::corpus("memory", std::vector<std::uint8_t>{}), heddle::io_error);
}
