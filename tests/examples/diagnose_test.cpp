// tests/examples/diagnose_test.cpp: the statuses of diagnose; a flight file that is cut is named, and the others are read.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/comm/threads.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include <unistd.h>

namespace {
namespace diagnose_test {

namespace hd = heddle;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

using examples_test::answer;
answer diagnosed(const std::string& arguments) {
  return examples_test::run("diagnose " + arguments);
}

TEST_CASE("diagnose ends with 2 where a flight file is cut, and still reads the others", "[examples][diagnose]") {
  if (!fs::exists(HEDDLE_EXAMPLES_DIR "/diagnose")) {
    WARN("examples/diagnose was not built");
    return;
  }
  const fs::path folder = fs::temp_directory_path() / ("heddle-diagnose-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  hd::launch_options options;
  options.flight = folder.string();
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{3}, options, [](auto& world) {
    for (int i = 0; i < 5; ++i) world.all().barrier();
  });
  const answer whole = diagnosed(folder.string());
  INFO(whole.text);
  CHECK(whole.status == 0);
  const fs::path cut = folder / "rank-1.flight";
  const std::uintmax_t bytes = fs::file_size(cut);
  for (const std::uintmax_t left : {bytes - 1, bytes / 2, std::uintmax_t{100}, std::uintmax_t{0}}) {
    fs::resize_file(cut, left);
    const answer some = diagnosed(folder.string() + " --json");
    INFO(left << " of " << bytes << " bytes\n" << some.text);
    CHECK(some.status == 2);
    CHECK_THAT(some.text, Contains("rank-1.flight is no flight file that can be read: ") && Contains("\"unread\": [") &&
                              Contains("\"rank\": 0") && Contains("\"rank\": 2") && !Contains("\"rank\": 1,"));
  }
  CHECK(diagnosed("/nowhere/at/all").status == 2);
  CHECK(diagnosed("").status == 2);
  fs::remove_all(folder);
}

}  // namespace diagnose_test
}  // namespace
