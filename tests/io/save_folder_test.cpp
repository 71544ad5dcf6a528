// tests/io/save_folder_test.cpp: a folder of saves has one run at a time, and can be written.
#include "catch.hpp"

#include <heddle/io/save_folder.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/mesh/topology_file.hpp>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scratch.hpp"

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace io = heddle::io;

TEST_CASE("the second run in a folder is told that another one is saving there", "[io][save_folder]") {
  const scratch_folder folder("claim");
  const auto refused = [&] { return message_of<heddle::io_error>([&] { io::save_folder(folder / "runs/a"); }); };
  std::optional<io::save_folder> first(std::in_place, folder / "runs/a");
  CHECK(first->is_held());
  CHECK_THAT(refused(),
             Contains("runs/a': another run is saving here (process " + std::to_string(::getpid()) + " on ") &&
                 Contains("give another folder"));
  io::save_folder moved = std::move(*first);
  first.reset();
  CHECK_THAT(refused(), Contains("another run is saving here"));
  CHECK(refused() == refused());  // a refusal does not free the folder
  moved.release();
  CHECK(refused().empty());

  // The claim of another process ends with it, however it ends.
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const ::pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const io::save_folder theirs(folder / "runs/a");
    static_cast<void>(::write(pipe[1], "x", 1) < 0);
    for (;;) ::pause();
  }
  char x = 0;
  REQUIRE(::read(pipe[0], &x, 1) == 1);
  CHECK_THAT(refused(), Contains("another run is saving here (process " + std::to_string(child) + " on "));
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(refused().empty());
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("a folder that cannot be written is found by a probe, which leaves nothing", "[io][save_folder]") {
  const scratch_folder folder("probe");
  io::probe_folder(folder / "new");
  CHECK(fs::is_empty(folder / "new"));
  put(folder / "file", "x");
  CHECK_THAT(message_of<heddle::io_error>([&] { io::probe_folder(folder / "file/runs"); }),
             Contains("heddle: nothing can be saved in '") && Contains("file/runs") && Contains("Not a directory"));
  CHECK_THAT(message_of<heddle::io_error>([&] { io::save_folder(folder / "file"); }), Contains("file'"));
  if (::geteuid() != 0) {
    fs::permissions(folder / "new", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THAT(message_of<heddle::io_error>([&] { io::probe_folder(folder / "new"); }), Contains("Permission denied"));
    CHECK_THAT(message_of<heddle::io_error>([&] { io::save_folder(folder / "new"); }), Contains("Permission denied"));
    fs::permissions(folder / "new", fs::perms::owner_all);
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 100;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string what = message_of<heddle::io_error>([&] { io::probe_folder(folder / "new"); });
  const std::string topology = message_of<heddle::io_error>(
      [&] { heddle::save_topology(heddle::topologies::hypercube(6), (folder / "topology").string()); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_THAT(topology, Contains("heddle: cannot write the topology to"));
  CHECK_THAT(what, Contains("nothing can be saved") && Contains("file size limit of this process is 100 bytes"));
  CHECK(fs::is_empty(folder / "new"));
}
