// tests/examples/second_minimum_test.cpp: the golden weights of the paper's task, training of it, and files of other sizes.
#include "second_minimum/full_task.hpp"
#include "second_minimum/network.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/mesh.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace sm = second_minimum;
namespace hd = heddle;
using Catch::Matchers::Contains;

template <class Body>
void with_network(const sm::full_task& t, Body&& body) {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{1}, [&](auto& world) {
    sm::network<sm::by_learned_monoid, typename std::remove_reference_t<decltype(world)>::communicator> net(
        world.all(), t.bits, t.width, t.seed);
    body(net);
  });
}
const std::string golden = HEDDLE_SOURCE_DIR "/tests/golden/second_minimum_golden.bin";
}  // namespace

TEST_CASE("the golden weights find the second minimum of 93 in 100 sets of 32", "[examples][monoid]") {
  double exact = 0;
  with_network({}, [&](auto& net) {
    net.read(golden);
    exact = sm::exact_on_sets_of_32(net, {});
  });
  CHECK(exact >= 0.93);
}

TEST_CASE("two epochs lower the loss, and weights come back from their file", "[examples][monoid]") {
  const char* const words[] = {"second_minimum", "--bits", "8",       "--width", "16",     "--sets", "640",
                               "--epochs",       "2",      "--batch", "32",      "--rate", "1e-2"};
  const sm::full_task t = sm::read_options(static_cast<int>(std::size(words)), words);
  CHECK(t.width == 16);
  std::vector<double> losses;
  const std::string path = std::filesystem::temp_directory_path() / "heddle_second_minimum_test.bin";
  with_network(t, [&](auto& net) {
    const sm::sets some = sm::draw(8, 40, 2, 16, 9, 9);
    losses = sm::train_epochs(net, t, [](std::int64_t, double) {});
    net.save(path);
    net.read(path);  // rounded
    const std::vector<float> kept = net.aggregate(some);
    with_network(t, [&](auto& other) {
      CHECK(other.aggregate(some) != kept);
      other.read(path);
      CHECK(other.aggregate(some) == kept);
    });
  });
  std::filesystem::remove(path);
  REQUIRE(losses.size() == 2);
  CHECK(losses[1] < losses[0] - 0.005);
}

TEST_CASE("a weight file of other sizes, and options that are none, are refused by name", "[examples][monoid]") {
  with_network({.width = 64}, [&](auto& net) {
    CHECK_THROWS_WITH(net.read(golden), Contains("expected embedding [16, 64] of f16, got embedding [16, 128] of f16"));
  });
  with_network({.bits = 4}, [&](auto& net) {
    CHECK_THROWS_WITH(net.read(golden), Contains("expected embedding [8, 128] of f16, got embedding [16, 128]"));
  });
  const auto read = [](std::vector<const char*> words) {
    words.insert(words.begin(), "second_minimum");
    return sm::read_options(static_cast<int>(words.size()), words.data());
  };
  CHECK_THROWS_WITH(read({"--widht", "3"}), Contains("unknown option '--widht'"));
  CHECK_THROWS_WITH(read({"--width"}), Contains("--width needs a value"));
  CHECK_THROWS_WITH(read({"--bits", "17"}), Contains("--bits must be a number from 1 to 16, got '17'"));
  CHECK_THROWS_WITH(read({"--sets", "many"}), Contains("--sets must be a number from 1 to"));
}
