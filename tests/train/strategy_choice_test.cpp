// tests/train/strategy_choice_test.cpp: strategies as data: text, C++ that compiles, and what a program does not have.
#include "catch.hpp"
#include "planned_strategy.hpp"

#include <heddle/core/random.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/train/strategy_choice.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using Catch::Matchers::Contains;

namespace {

tr::strategy_choice of_planned_header() {
  return {.mesh = "dp=2,pp=2,tp=1,rows=1",
          .schedule = "interleaved:2",
          .microbatches = 4,
          .zero = 2,
          .recompute = "first 2,head.logits",
          .layers = {2, 1, 1, 2},
          .order = {3, 2, 1, 0},
          .dtype = "bf16"};
}

}  // namespace

TEST_CASE("a strategy reads back as it was written", "[train][strategy_choice]") {
  const tr::strategy_choice full = of_planned_header();
  CHECK(to_string(full) ==
        "version 1\nmesh dp=2,pp=2,tp=1,rows=1\nschedule interleaved:2\nmicrobatches 4\nzero 2\nrecompute first "
        "2,head.logits\nlayers 2,1,1,2\norder 3,2,1,0\ndtype bf16\n");
  CHECK(tr::read_strategy(to_string(full)) == full);
  CHECK(tr::read_strategy("# a comment\r\n\nversion 1\r\n  mesh   dp=1 \r\n") == tr::strategy_choice{.mesh = "dp=1"});
  const hd::counter_random random(20261202, 0);
  INFO("seed 20261202");
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random.integer(draw++) % n); };
  for (int round = 0; round < 300; ++round) {
    tr::strategy_choice c;
    const int d = 1 + below(4), p = 1 + below(4), t = 1 + below(3);
    c.mesh = "dp=" + std::to_string(d) + ",pp=" + std::to_string(p) + ",tp=" + std::to_string(t);
    c.schedule = std::vector<std::string>{
        "1f1b", "gpipe", "zb-h1", "interleaved:3", "hanayo:2", "zb-v"}[static_cast<std::size_t>(below(6))];
    c.microbatches = 1 + below(64);
    c.zero = below(4);
    c.recompute =
        std::vector<std::string>{"none", "full", "first 3", "every 2,mid"}[static_cast<std::size_t>(below(4))];
    for (int i = 0; below(2) == 0 && i < p; ++i) c.layers.push_back(below(9));
    if (below(2) == 0)
      for (int i = 0; i < d * p * t; ++i) c.order.insert(c.order.begin() + below(c.order.size() + 1), i);
    c.dtype = std::vector<std::string>{"f32", "f64", "bf16"}[static_cast<std::size_t>(below(3))];
    CAPTURE(to_string(c));
    REQUIRE(tr::read_strategy(to_string(c)) == c);
  }
}

TEST_CASE("what is printed as C++ compiles, and says the same", "[train][strategy_choice]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/train/planned_strategy.hpp");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(to_cpp(of_planned_header()) == text);  // which is compiled here
  STATIC_REQUIRE(planned::mesh::size() == 4);
  STATIC_REQUIRE(std::is_same_v<planned::scalar, float>);
  STATIC_REQUIRE(std::is_same_v<planned::strategy::zero, hd::zero<2>>);
  STATIC_REQUIRE(std::is_same_v<planned::strategy::schedule, hd::schedule::interleaved<hd::microbatches<4>, 2>>);
  tr::options<hd::model::gpt2_config> printed, applied;
  planned::apply(printed);
  of_planned_header().apply(applied, false);
  CHECK(to_string(printed) == to_string(applied));
  CHECK(applied.recompute == "first 2,head.logits");
  CHECK(applied.layers_per_stage == std::vector<int>{2, 1, 1, 2});
  CHECK(planned::order == of_planned_header().order);
  of_planned_header().apply(applied);
  CHECK(applied.schedule == "interleaved:2");
  CHECK(to_command_line(of_planned_header()) ==
        "--mesh dp=2,pp=2,tp=1,rows=1 --schedule interleaved:2 --microbatches 4 --dtype bf16 --recompute \"first "
        "2,head.logits\" --layers-per-stage 2,1,1,2  # zero 2 order 3,2,1,0");
  CHECK_THROWS_AS(tr::mesh_axes_of({.mesh = "dp=0"}), hd::config_error);
}

TEST_CASE("mistakes in a strategy are named with file, line and key", "[train][strategy_choice]") {
  const auto refused = [](const std::string& text, const char* says) {
    CAPTURE(text);
    CHECK_THROWS_WITH(tr::read_strategy(text, "plan.txt"), Contains("plan.txt") && Contains(says));
  };
  refused("", "is empty; expected \"version 1\"");
  refused("mesh dp=1\n", "line 1: expected \"version 1\", got \"mesh dp=1\"");
  refused("version 2\nmesh dp=1\n", "expected \"version 1\", got \"version 2\"");
  refused("version 1\n", "has no mesh");
  refused("version 1\nmesh dp=1\nmehs dp=2\n", "line 3: there is no key \"mehs\"; there are mesh, schedule");
  refused("version 1\nmesh dp=1\nmesh dp=2\n", "line 3: mesh is given twice");
  for (const char* mesh :
       {"dp", "dp=", "dp=0", "dp=-1", "dp=2,dp=2", "dp=2,", "=2", "2p=2", "dp=2x", "dp=2000000", "dp=99999,pp=99999"})
    refused(std::string("version 1\nmesh ") + mesh + "\n", "line 2: mesh: expected a mesh such as");
  refused("version 1\nmesh dp=1\nschedule 2f2b\n", "line 3: schedule: expected a schedule, gpipe, 1f1b");
  refused("version 1\nmesh dp=1\nschedule 1f1b:2\n", "schedule: expected");
  refused("version 1\nmesh dp=1\nmicrobatches 0\n", "microbatches: expected whole numbers from 1");
  refused("version 1\nmesh dp=1\nmicrobatches 1,2\n", "microbatches: expected one number");
  refused("version 1\nmesh dp=1\nzero 4\n", "zero: expected whole numbers from 0 to 3 between commas, got \"4\"");
  refused("version 1\nmesh dp=1\nzero\n", "zero: expected a value");
  refused("version 1\nmesh dp=1\nlayers 2,,1\n", "layers: expected");
  refused("version 1\nmesh dp=2\norder 0,0\n", "order: expected each of the mesh's 2 ranks once");
  refused("version 1\nmesh dp=2\norder 0\n", "order: expected each of the mesh's 2 ranks once");
  refused("version 1\nmesh dp=1\ndtype f16\n", "dtype: expected f32, f64 or bf16, got \"f16\"");
  refused(std::string("version 1\nmesh dp=1\nrecompute a\0b\n", 34), "control character");
  CHECK_THROWS_WITH(tr::read_strategy_file("/nowhere/plan.txt"),
                    Contains("cannot read") && Contains("/nowhere/plan.txt"));
}

TEST_CASE("a program says what it was not compiled for", "[train][strategy_choice]") {
  const tr::compiled_strategies program{.dtypes = {"f32", "bf16"}};
  CHECK_NOTHROW(tr::require_compiled({.mesh = "dp=2,pp=2", .recompute = "full", .dtype = "bf16"}, program));
  const auto refused = [&](const tr::strategy_choice& c, const char* says) {
    CHECK_THROWS_WITH(tr::require_compiled(c, program, "plan.txt"), Contains(says));
  };
  refused({.mesh = "dp=2", .zero = 3}, "plan.txt asks for ZeRO-3; this program was compiled for ZeRO-1");
  refused({.mesh = "dp=2", .dtype = "f64"}, "asks for dtype f64; this program was compiled for f32, bf16");
  refused({.mesh = "cp=2"}, "asks for a mesh with the axis cp; this program was compiled for the axes dp, pp, tp");
  refused({.mesh = "dp=2", .order = {1, 0}}, "an order of its ranks");
  CHECK_THROWS_WITH(tr::require_compiled({.mesh = "dp=2", .recompute = "full"}, {.recomputes = false}),
                    Contains("recompute \"full\""));
}
