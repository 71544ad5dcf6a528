// tests/train/save_test.cpp: a resumed run continues bit for bit; on another mesh it continues the same training.
#include "folder.hpp"
#include "runs.hpp"

#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/train/save.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace train_test;
namespace fs = std::filesystem;

TEST_CASE("a run cut in two by a save equals the uninterrupted run bit for bit", "[train][save][ranks]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2", "dp=3,pp=3", "tp=3"})
    for (const int zero : {0, 1}) {
      if (!fits(mesh)) continue;
      INFO("mesh '" << mesh << "', zero " << zero);
      const folder saves("cut");
      setup s;
      s.mesh = mesh;
      s.zero = zero;
      s.steps = 5;
      const outcome whole = train_f64(s);
      setup first = s;
      first.steps = 2;
      first.save_to = saves.path.string();
      train_f64(first);
      setup second = s;
      second.resume_from = saves.path.string();
      const outcome resumed = train_f64(second);
      CHECK(resumed.first_step == 2);
      CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
      CHECK(resumed.norms == std::vector<double>(whole.norms.begin() + 2, whole.norms.end()));
      CHECK(resumed.weights == whole.weights);
    }
}

TEST_CASE("a save made on one mesh goes on, on any other", "[train][save][ranks]") {
  const folder saves("mesh");
  setup s;
  s.steps = 4;
  s.mesh = fits("dp=2,pp=3,tp=2") ? "dp=2,pp=3,tp=2" : "dp=2,pp=2";
  const outcome whole = train_f64(s);
  setup first = s;
  first.steps = 2;
  first.save_to = saves.path.string();
  train_f64(first);
  for (const char* mesh : {"", "dp=3", "tp=3,pp=2", "dp=2,pp=2,tp=2"}) {
    if (!fits(mesh)) continue;
    INFO("mesh '" << mesh << "'");
    setup second = s;
    second.mesh = mesh;
    second.resume_from = saves.path.string();
    const outcome resumed = train_f64(second);
    REQUIRE(resumed.losses.size() == 2);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(std::abs(resumed.losses[i] - whole.losses[i + 2]) <= 1e-10 * whole.losses[i + 2]);
    CHECK(largest_error(resumed.weights, whole.weights) <= 1e-10);
  }
}

TEST_CASE("a damaged newest save is passed over for the one before", "[train][save][ranks]") {
  const folder saves("damaged");
  setup s;
  s.mesh = "dp=2";
  s.steps = 4;
  s.save_every = 1;
  s.save_to = saves.path.string();
  const outcome whole = train_f64(s);
  // Two saves stay; cut the newer one's second file short.
  const fs::path victim = saves.path / "step-00000004" / "rank-00001.tensors";
  REQUIRE(fs::exists(victim));
  if (transport_test::process() == 0) fs::resize_file(victim, fs::file_size(victim) / 2);
  setup again = s;
  again.save_to = "";
  again.resume_from = saves.path.string();
  const outcome resumed = train_f64(again);
  CHECK(resumed.first_step == 3);
  CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("no save is no error; the save of another model or type is one, and says so", "[train][save]") {
  const folder saves("other");
  setup s;
  s.resume_from = (saves.path / "nothing").string();
  CHECK(train_f64(s).first_step == 0);
  s.resume_from = "";
  s.save_to = saves.path.string();
  train_f64(s);
  s.save_to = "";
  s.resume_from = saves.path.string();
  s.steps = 3;
  setup wider = s;
  wider.width = 32;
  CHECK_THROWS_WITH(train_f64(wider), Catch::Matchers::Contains("is a save of gpt2 layers=3 heads=4 width=24") &&
                                          Catch::Matchers::Contains("this run trains gpt2 layers=3 heads=4 width=32"));
  CHECK_THROWS_AS(train_f64(wider), heddle::config_error);
  CHECK_THROWS_WITH(train_f32(s),
                    Catch::Matchers::Contains("vocabulary=61 f64") && Catch::Matchers::Contains("vocabulary=61 f32"));
}

TEST_CASE("any range of a box is cut into boxes that hold each element once, in order", "[train][save]") {
  const std::uint64_t seed = 20261120;
  INFO("seed " << seed);
  const heddle::counter_random random(seed, 0);
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.integer(draw++) % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> extents;
    std::int64_t total = 1;
    for (std::int64_t d = below(5); d > 0; --d) extents.push_back(1 + below(5)), total *= extents.back();
    const std::int64_t begin = below(total + 1), end = begin + below(total - begin + 1);
    std::vector<std::int64_t> seen;
    std::size_t boxes = 0;
    heddle::train::detail::for_each_box(
        extents, begin, end, [&](const auto& start, const auto& size, std::int64_t count) {
          ++boxes;
          std::int64_t inside = 1;
          for (const std::int64_t e : size) inside *= e;
          REQUIRE(inside == count);
          for (std::int64_t i = 0; i < count; ++i) {  // walk the box row-major, flat index in the whole
            std::int64_t rest = i, stride = 1, flat = 0;
            for (std::size_t d = extents.size(); d-- > 0;) {
              flat += (start[d] + rest % size[d]) * stride;
              REQUIRE(start[d] + size[d] <= extents[d]);
              rest /= size[d];
              stride *= extents[d];
            }
            seen.push_back(flat);
          }
        });
    REQUIRE(seen.size() == static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == begin + static_cast<std::int64_t>(i));
    REQUIRE(boxes <= 2 * extents.size() + 1);
  }
}
