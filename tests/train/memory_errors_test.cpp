// tests/train/memory_errors_test.cpp: memory that runs out in a trainer: one error that names tensor, bytes wanted and free, and what the
// strategy predicted; the other ranks end, too.
#include "catch.hpp"
#include "random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/stage_sizes.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/trainer.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
constexpr std::int64_t unlimited = std::int64_t{1} << 40;
using samples = train_test::random_tokens<6, 20, 5>;

struct outcome {
  std::string error;
  std::vector<tr::memory_forecast> forecast;  // of each rank
  std::vector<std::int64_t> held, most;       // bytes_held and all of the space, behind a step
  double seconds = 0;
};

// A step on ranks of which the last has so many bytes.
template <class T, int Zero, class... Policies>
outcome train(const std::string& mesh_text, std::int64_t bytes_of_last) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  tr::options<hd::model::gpt2_config> o;
  o.model = {.layers = 3, .heads = 4, .width = 8, .context = 6, .vocabulary = 20};
  o.batch = 7;
  o.microbatches = 3;
  o.schedule = mesh_text.find("pp") == std::string::npos ? "gpipe" : "zb-h1";
  o.steps = 4;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  outcome all;
  all.forecast.resize(static_cast<std::size_t>(mesh.size()));
  all.held.resize(all.forecast.size());
  all.most.resize(all.forecast.size());
  const auto begin = std::chrono::steady_clock::now();
  try {
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      using strategy = hd::strategy<mesh_type, hd::zero<Zero, 1>, checked, hd::schedule::named, Policies...>;
      const hd::testing::limited_checked_memory device(world.rank() + 1 == world.size() ? bytes_of_last : unlimited);
      using trainer_type = tr::trainer<hd::model::gpt2<T>, strategy, std::remove_reference_t<decltype(world)>>;
      static_assert(hd::model::sizes_of_stage<typename trainer_type::stage_type>::known);
      trainer_type trainer(world, o);
      const auto r = static_cast<std::size_t>(world.rank());
      all.forecast[r] = tr::predicted_memory(trainer).value();
      trainer.run(samples{});
      all.held[r] = tr::bytes_held(trainer);
      all.most[r] = trainer.backend().queue().most_bytes();
    });
  } catch (const hd::memory_error& e) {
    all.error = e.what();
  }
  all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return all;
}

// With ever more memory, which is never enough: every error says all that it must.
template <class T, int Zero, class... Policies>
std::vector<std::string> errors_of(const std::string& mesh) {
  const outcome whole = train<T, Zero, Policies...>(mesh, unlimited);
  REQUIRE(whole.error == "");
  const tr::memory_forecast& last = whole.forecast.back();
  for (std::size_t r = 0; r < whole.held.size(); ++r) CHECK(whole.held[r] == whole.forecast[r].total());
  CHECK(last.total() > 0);
  CHECK(whole.most.back() >= last.total());

  std::vector<std::string> errors;
  for (const double part : {0.02, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97}) {
    const auto limit = static_cast<std::int64_t>(part * static_cast<double>(last.total()));
    const outcome got = train<T, Zero, Policies...>(mesh, limit);
    INFO("mesh '" << mesh << "', " << limit << " bytes: " << got.error);
    const std::string rank = "rank " + std::to_string(whole.held.size() - 1) + ": ";
    CHECK_THAT(got.error, Catch::Matchers::StartsWith(rank + "heddle: no memory for "));
    CHECK_THAT(got.error, Catch::Matchers::Contains(" are free there; "));
    CHECK_THAT(got.error, Catch::Matchers::Contains(to_string(last)));
    CHECK(got.seconds < 60);  // a rank that waited for the others would wait for 300
    // Wanted is more than free.
    const auto number_before = [&](const char* what) {
      const std::size_t end = got.error.find(what), begin = got.error.rfind(' ', end - 1) + 1;
      return std::stoll(got.error.substr(begin, end - begin));
    };
    CHECK(number_before(" bytes; ") > number_before(" are free there"));
    CHECK(number_before(" are free there") <= limit);
    errors.push_back(got.error);
  }
  return errors;
}

bool any_for(const std::vector<std::string>& errors, const std::string& what) {
  for (const std::string& e : errors)
    if (e.find("no memory for " + what) != std::string::npos) return true;
  return false;
}

TEST_CASE("memory that runs out in a trainer names the tensor, what is free and what was predicted",
          "[train][memory]") {
  const auto errors = errors_of<double, 0>("");
  CHECK(any_for(errors, "the weights of"));
  CHECK_THAT(errors.front(), Catch::Matchers::Contains("the largest h.0.mlp.c_fc.weight with 256"));
  CHECK(any_for(errors, "the saved activations of a stage's layers"));
  CHECK(any_for(errors, "the moments of the optimizer"));
}

TEST_CASE("where one rank's memory runs out, the others end with it", "[train][memory]") {
  SECTION("shares") {
    const auto errors = errors_of<double, 3>("dp=2");
    CHECK(any_for(errors, "the gathered weights of a stage"));
  }
  SECTION("a pipeline of shares") {
    errors_of<double, 3>("dp=2,pp=2");
  }
  SECTION("parts of tensors") {
    errors_of<double, 0>("pp=2,tp=2");
  }
  SECTION("moments and weights of other types") {
    errors_of<float, 2, hd::precision<hd::weights_in<hd::bf16>, hd::moments_in<hd::bf16>, hd::products_in<hd::bf16>>>(
        "dp=3");
  }
}

}  // namespace
