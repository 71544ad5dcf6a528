// tests/io/save_links_test.cpp: saves reach nothing through links, and remove only what a save wrote.
#include "catch.hpp"

#include <heddle/io/checkpoint.hpp>
#include <heddle/io/save_folder.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "scratch.hpp"

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {

// A save of one or more ranks.
fs::path save(const fs::path& folder, std::int64_t step, io::commit_options options = {}, int ranks = 1) {
  io::manifest m;
  m.step = step;
  m.position = {step * 8};
  m.facts["run"] = "mine";
  for (int r = 0; r < ranks; ++r) {
    io::checkpoint_writer writer(folder, step, r);
    writer.add<double>("x" + std::to_string(r), std::vector<double>(512, static_cast<double>(step)));
    m.files.push_back(writer.finish());
  }
  return io::commit(folder, m, options);
}

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> all;
  for (const auto& e : fs::directory_iterator(folder)) all.insert(e.path().filename().string());
  return all;
}

// Entries that are no regular file, and how errors call them.
struct odd_entry {
  const char* kind;
  void (*make)(const fs::path&, const fs::path& mine);
};
const std::vector<odd_entry> odd_entries{
    {"a symbolic link", [](const fs::path& p, const fs::path& mine) { fs::create_symlink(mine, p); }},
    {"a FIFO", [](const fs::path& p, const fs::path&) { REQUIRE(::mkfifo(p.c_str(), 0600) == 0); }},
    {"a folder", [](const fs::path& p, const fs::path&) { REQUIRE(fs::create_directory(p)); }},
    {"a socket",
     [](const fs::path& p, const fs::path&) {
       const int s = ::socket(AF_UNIX, SOCK_STREAM, 0);
       ::sockaddr_un name{};
       name.sun_family = AF_UNIX;
       REQUIRE(p.string().size() < sizeof name.sun_path);
       std::copy_n(p.c_str(), p.string().size(), name.sun_path);
       REQUIRE(::bind(s, reinterpret_cast<const ::sockaddr*>(&name), sizeof name) == 0);
       ::close(s);
     }},
};

}  // namespace

TEST_CASE("what stands in the place of a file of a save is named, stays and blocks nobody", "[io][save_links]") {
  for (const odd_entry& odd : odd_entries)
    for (const char* where : {".lock", "step-00000003.partial/rank-00000.tensors", "step-00000003.partial/manifest"}) {
      CAPTURE(odd.kind, where);
      const scratch_folder folder("odd");
      put(folder / "mine", "precious");
      save(folder / "s", 2);
      fs::create_directories((folder / "s" / where).parent_path());
      odd.make(folder / "s" / where, folder / "mine");
      // At the beginning of a run, and where none claims the folder.
      CHECK_THAT(message_of<heddle::io_error>([&] { io::save_folder(folder / "s"); }),
                 Contains("heddle: cannot create '") && Contains(where) &&
                     Contains(std::string("it is ") + odd.kind + ", not a file"));
      if (std::string(where) != ".lock")
        CHECK_THAT(message_of<heddle::io_error>([&] { save(folder / "s", 3); }),
                   Contains(where) && Contains(std::string("it is ") + odd.kind + ", not a file"));
      CHECK(get(folder / "mine") == "precious");
      CHECK(fs::exists(fs::symlink_status(folder / "s" / where)));
      CHECK(io::latest(folder / "s").save->manifest.step == 2);
    }
  // A file of a save that is read.
  for (const odd_entry& odd : odd_entries)
    for (const char* name : {"rank-00000.tensors", "manifest"}) {
      CAPTURE(odd.kind, name);
      const scratch_folder folder("odd");
      save(folder.path, 2);
      const fs::path file = save(folder.path, 3) / name;
      fs::rename(file, folder / "moved");
      odd.make(file, folder / "moved");
      const auto found = io::latest(folder.path);
      REQUIRE(found.save);
      CHECK(found.save->manifest.step == 2);
      REQUIRE(found.skipped.size() == 1);
      CHECK_THAT(found.skipped[0], Contains(std::string("step-00000003/") + name + "': it is " + odd.kind));
      CHECK_THROWS_AS(io::checkpoint_reader(folder / "step-00000003"), heddle::io_error);
      save(folder.path, 4, {.keep = 1});  // what cannot be read is not removed
      CHECK(fs::exists(fs::symlink_status(file)));
    }
}

TEST_CASE("no folder of a save is reached through a link, whatever it is called", "[io][save_links]") {
  const scratch_folder folder("links");
  const auto mine = [&] {
    fs::remove_all(folder / "mine");
    put(folder / "mine/thesis.tex", "keep");
    put(folder / "mine/rank-00000.tensors", "mine, too");
    put(folder / "mine/sub/x", "k");
  };
  const auto untouched = [&] {
    return get(folder / "mine/thesis.tex") == "keep" && get(folder / "mine/rank-00000.tensors") == "mine, too" &&
           get(folder / "mine/sub/x") == "k" && names(folder / "mine").size() == 3;
  };
  const fs::path s = folder / "s";
  for (const char* name : {"step-00000003.partial", "step-00000001.partial", "step-00000003", "step-00000001",
                           "step-00000003.replaced", "step-00000001.removed", "step-00000002.removed",
                           "step-00000001.replaced.removed"}) {
    CAPTURE(name);
    mine();
    fs::remove_all(s);
    save(s, 2);
    fs::create_directory_symlink("../mine", s / name);
    const bool partial = std::string(name).ends_with(".partial");
    const std::string claimed = message_of<heddle::io_error>([&] { io::save_folder(s / "."); });
    if (partial)
      CHECK_THAT(claimed, Contains(name) && Contains("it is a symbolic link, not a folder"));
    else
      CHECK(claimed.empty());
    const std::string saved = message_of<heddle::io_error>([&] { save(s, 3, {.keep = 1}); });
    if (std::string(name) == "step-00000003.partial")
      CHECK_THAT(saved, Contains(name) && Contains("it is a symbolic link, not a folder"));
    else
      CHECK(saved.empty());
    CHECK(untouched());
    const auto found = io::latest(s);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == (saved.empty() ? 3 : 2));
    CHECK(fs::is_symlink(s / (std::string(name) == "step-00000003" ? "step-00000003.set-aside" : name)));
  }
  // A complete save of the same run behind a link is neither read, nor removed, nor counted.
  fs::remove_all(s);
  fs::rename(save(folder / "elsewhere", 1), folder / "old");
  for (const std::int64_t step : {2, 3}) save(s, step);
  fs::create_directory_symlink("../old", s / "step-00000001");
  save(s, 4, {.keep = 2});
  CHECK(names(s) == std::set<std::string>{"step-00000001", "step-00000003", "step-00000004"});
  CHECK(fs::exists(folder / "old/manifest"));
  for (const std::int64_t step : {3, 4}) fs::remove_all(s / ("step-0000000" + std::to_string(step)));
  const auto found = io::latest(s);
  CHECK_FALSE(found.save);
  REQUIRE(found.skipped.size() == 1);
  CHECK_THAT(found.skipped[0], Contains("step-00000001': it is a symbolic link, not a folder"));
  // The folder of the saves, and a save, may be links where the user names them.
  save(s, 5);
  fs::create_directory_symlink("s", folder / "link");
  fs::create_directory_symlink("s/step-00000005", folder / "best");
  const io::save_folder claim(folder / "link");
  CHECK(claim.is_locked());
  save(folder / "link", 6);
  CHECK(io::latest(folder / "link").save->manifest.step == 6);
  CHECK(io::checkpoint_reader(folder / "best").manifest().step == 5);
}

TEST_CASE("a file with other names keeps its contents under them; a lock that says something else is the user's",
          "[io][save_links]") {
  const scratch_folder folder("hard");
  for (const char* name : {".lock", "step-00000001.partial/rank-00000.tensors", "step-00000001.partial/manifest"}) {
    put(folder / "s" / name, "precious");
    fs::create_hard_link(folder / "s" / name, folder / "other-name");
    {
      const io::save_folder claim(folder / "s");
      CHECK(claim.is_locked());
      CHECK_THAT(message_of<heddle::io_error>([&] { io::save_folder(folder / "s"); }), Contains("another run"));
    }
    save(folder / "s", 1);
    CHECK(get(folder / "other-name") == "precious");
    fs::remove_all(folder / "s");
    fs::remove(folder / "other-name");
  }
  put(folder / "s/.lock", "my own notes");
  { const io::save_folder claim(folder / "s"); }
  CHECK(get(folder / "s/.lock") == "my own notes");
  put(folder / "s/.lock", "process 1 on a host whose name is much longer than that of this one, as names may be\n");
  { const io::save_folder claim(folder / "s"); }
  CHECK(get(folder / "s/.lock") == io::detail::this_process() + "\n");
}

TEST_CASE("of an old save only what it wrote is removed, and what stays is said", "[io][save_links]") {
  const scratch_folder folder("retention");
  const fs::path s = folder.path;
  std::vector<std::string> left;
  for (const std::int64_t step : {1, 2, 3}) save(s, step, {.keep = 0}, 2);
  put(s / "step-00000001/notes.txt", "the best one");
  put(s / "step-00000001/rank-00007.tensors", "of no rank of this save");
  fs::create_symlink("notes.txt", s / "step-00000001/link");
  put(s / "step-00000002/sub/manifest", "mine");
  save(s, 4, {.keep = 1, .left = &left});
  CHECK(names(s) == std::set<std::string>{"step-00000001", "step-00000002", "step-00000004"});
  CHECK(names(s / "step-00000001") == std::set<std::string>{"link", "notes.txt", "rank-00007.tensors"});
  CHECK(get(s / "step-00000001/notes.txt") == "the best one");
  CHECK(get(s / "step-00000002/sub/manifest") == "mine");
  REQUIRE(left.size() == 2);
  CHECK_THAT(left[0], Contains("step-00000002': the save was removed") && Contains("'sub'"));
  CHECK_THAT(left[1], Contains("step-00000001': the save was removed") &&
                          Contains("'link' 'notes.txt' 'rank-00007.tensors'"));
  save(s, 5, {.keep = 1, .left = &left});
  CHECK(left.size() == 2);  // said once

  // The same of attempts that were killed, of what a removal left, and of a save that is replaced.
  put(s / "step-00000006.partial/rank-00000.tensors", "an attempt");
  put(s / "step-00000006.partial/notes.txt", "mine");
  put(s / "step-00000003.partial/rank-00001.tensors", "an attempt");
  put(s / "step-00000003.partial/sub/x", "mine");
  put(s / "step-00000002.removed/manifest", "of a removal");
  put(s / "step-00000002.removed/todo", "mine");
  put(s / "step-00000005/notes.txt", "mine");
  save(s, 5, {.keep = 1, .left = &left});
  REQUIRE(left.size() == 3);
  CHECK_THAT(left[2], Contains("step-00000005.replaced': the save was removed") && Contains("'notes.txt'"));
  CHECK(names(s / "step-00000003.partial") == std::set<std::string>{"sub"});
  CHECK(names(s / "step-00000002.removed") == std::set<std::string>{"todo"});
  CHECK(get(s / "step-00000005.replaced/notes.txt") == "mine");
  CHECK(names(s / "step-00000006.partial").size() == 2);  // perhaps of a run that is under way
  { const io::save_folder claim(s); }                     // there is none
  CHECK(names(s / "step-00000006.partial") == std::set<std::string>{"notes.txt"});
  const fs::path six = save(s, 6);
  CHECK(get(six / "notes.txt") == "mine");
  CHECK(io::latest(s).save->manifest.step == 6);
}

TEST_CASE("a manifest whose numbers cannot be is named and passed over, whatever its checksum", "[io][save_links]") {
  const scratch_folder folder("numbers");
  save(folder.path, 1, {}, 2);
  const fs::path file = save(folder.path, 2, {}, 2) / "manifest";
  const std::string good = get(file);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good.substr(0, good.find("checksum="));
    const auto at = text.find("\n" + from);
    REQUIRE(at != text.npos);
    text.replace(at + 1, text.find('\n', at + 1) - at - 1, to);
    put(file, text + "checksum=" + io::to_hex(io::checksum(std::as_bytes(std::span<const char>(text)))) + "\n");
  };
  const std::string two_61 = "2305843009213693952", most = "9223372036854775807";
  const std::vector<std::array<std::string, 3>> wrong{
      {"consumed=", "consumed=-8", "consumed is -8; it must be in 0 to "},
      {"consumed=", "consumed=-1", "consumed is -1; it must be in 0 to "},
      {"consumed=", "consumed=" + most, "consumed is " + most},
      {"consumed=", "consumed=" + two_61, "consumed is " + two_61},
      {"consumed=", "consumed=9223372036854775808", "consumed is not a number"},
      {"consumed=", "consumed=16 ", "consumed is not a number"},
      {"consumed=", "fact.consumed=16", "has no consumed"},
      {"step=", "step=-1", "step is -1"},
      {"step=", "step=1", "says step 1, the name of its folder step 2"},
      {"step=", "step=3", "says step 3, the name of its folder step 2"},
      {"step=", "step=" + most, "step is " + most},
      {"step=", "mesh=dp=1", "mesh comes twice"},
      {"seed=", "seed=-1", "seed is not a number"},
      {"seed=", "seed=1\nseed=1", "seed comes twice"},
      {"seed=", "fact.run=x", "fact.run comes twice"},
      {"corpus=", "corpus=-1", "corpus is not a number"},
      {"files=", "files=-2", "files is -2"},
      {"files=", "files=3", "lists 2 rank files, it says 3"},
      {"files=", "files=" + most, "lists 2 rank files, it says " + most},
      {"file=", "file=-1 10 0", "file is -1"},
      {"file=", "file=0 -10 0", "file is -10"},
      {"file=", "file=1 10 0", "file of rank 1 stands behind that of rank 1"},
      {"file=", "file=9 10 0", "file of rank 1 stands behind that of rank 9"},
      {"file=", "file=0 " + most + " 0", "bytes, " + most + " were written"},
  };
  for (const auto& [from, to, says] : wrong) {
    CAPTURE(from, to);
    with(from, to);
    const auto found = io::latest(folder.path);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == 1);
    REQUIRE(found.skipped.size() == 1);
    CHECK_THAT(found.skipped[0], Contains(says));
  }
  with("seed=", "seed=18446744073709551615");
  CHECK(io::latest(folder.path).save->manifest.seed == 18446744073709551615u);
  // A name of the user's says nothing of the step.
  put(file, good);
  fs::rename(folder / "step-00000002", folder / "best");
  CHECK(io::require_save(folder / "best").step == 2);
  CHECK(io::require_save(folder / "best/").step == 2);
  fs::rename(folder / "best", folder / "step-00000003");
  CHECK_THAT(message_of<heddle::io_error>([&] { io::require_save(folder / "step-00000003/"); }),
             Contains("says step 2, the name of its folder step 3"));
  // Nor is one written.
  io::manifest m;
  for (const std::int64_t step : {std::int64_t{-1}, io::manifest::most_steps + 1}) {
    m.step = step;
    CHECK_THROWS_AS(io::to_text(m), heddle::io_error);
  }
  m.step = 1;
  m.position.consumed = -1;
  CHECK_THROWS_AS(io::to_text(m), heddle::io_error);
}

TEST_CASE("an attempt that found no room does not stand in the way of the next one", "[io][save_links]") {
  const scratch_folder folder("full");
  const fs::path s = folder / "disk";
  fs::create_directory(s);
  // As root on a small file system of its own that is full; else what an attempt left is looked at.
  const bool small = ::mount("tmpfs", s.c_str(), "tmpfs", 0, "size=64k") == 0;
  struct unmounter {
    const fs::path* at;
    ~unmounter() {
      if (at != nullptr) ::umount(at->c_str());
    }
  } at_the_end{small ? &s : nullptr};
  { const io::save_folder claim(s); }
  save(s, 1);
  const auto attempt = [&] {
    io::checkpoint_writer writer(s, 2, 0);
    for (int k = 0; k < 64; ++k) writer.add<double>("x" + std::to_string(k), std::vector<double>(512, 1.0));
    writer.finish();
  };
  const std::string what = message_of<heddle::io_error>(attempt);
  if (small) {
    CHECK_THAT(what, Contains("heddle: cannot write '") && Contains("No space left"));
    CHECK_THAT(message_of<heddle::io_error>([&] { io::probe_folder(s); }), Contains("nothing can be saved"));
  }
  CHECK(fs::exists(s / "step-00000002.partial"));
  CHECK(message_of<heddle::io_error>([&] { const io::save_folder claim(s); }).empty());
  CHECK_FALSE(fs::exists(s / "step-00000002.partial"));
  CHECK(io::latest(s).save->manifest.step == 1);
  CHECK(io::latest(save(s, 2).parent_path()).save->manifest.step == 2);
}
