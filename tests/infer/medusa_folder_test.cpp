// Heads of Medusa and their tree, written to a folder and read back.
#include "catch.hpp"

#include "../train/folder.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/infer/json/medusa_folder.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace inf = heddle::infer;
using Catch::Matchers::Contains;

TEST_CASE("heads and their tree are read as they were written, and what does not fit is refused", "[infer][medusa]") {
  using heads_type = inf::medusa_heads<float, heddle::compute::host<>>;
  const train_test::folder folder("medusa_folder");
  heddle::compute::host<> kernels{1};
  heads_type heads(kernels, 2, 6, 11, 1e-5), again(kernels, 2, 6, 11, 1e-5);
  heads.initialize(4, 0.5);
  const inf::token_tree tree({{0}, {2}, {0, 1}, {2, 0}});
  inf::write_medusa_folder(folder.path, heads, tree);
  const inf::medusa_folder_settings settings = inf::read_medusa_settings(folder.path);
  CHECK(settings.heads == 2);
  CHECK(settings.tree == tree);
  inf::read_medusa_heads(folder.path, again);
  for (std::int64_t k = 0; k < 2; ++k) {
    CHECK(std::ranges::equal(heads.norm(k), again.norm(k)));
    CHECK(std::ranges::equal(heads.square(k), again.square(k)));
    CHECK(std::ranges::equal(heads.words(k), again.words(k)));
  }
  heads_type wider(kernels, 2, 7, 11, 1e-5), more(kernels, 3, 6, 11, 1e-5);
  CHECK_THROWS_WITH(inf::read_medusa_heads(folder.path, wider), Contains("model of width 7"));
  CHECK_THROWS_AS(inf::read_medusa_heads(folder.path, more), heddle::io_error);
  const auto refused = [&](const char* text, const char* why) {
    std::ofstream(folder.path / "medusa_heads.json") << text;
    CHECK_THROWS_WITH(inf::read_medusa_settings(folder.path), Contains(why));
  };
  refused(R"({"heads": 0, "tree": [[0]]})", "from 1 to 64");
  refused(R"({"heads": 1, "tree": []})", "1 to 4096 paths");
  refused(R"({"heads": 1, "tree": [[0, 0]]})", "at most 1 ranks");
  refused(R"({"heads": 2, "tree": [[0, 0]]})", "without it");
}
