// tests/train/static_profile_test.cpp: a run's needs from its types, before anything is made.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/static_profile.hpp>

#include <cstdint>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace sja = heddle::plan::sja;

namespace {

using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 4>>;
struct shape {
  static constexpr hd::model::gpt2_config config{
      .layers = 8, .heads = 4, .width = 64, .context = 32, .vocabulary = 256};
  static constexpr int stages = 4;
  static constexpr std::int64_t samples = 2;
};
using memory = hd::train::gpt2_memory<float, shape>;
using one = hd::train::static_profile<sc::one_f_one_b<hd::microbatches<8>>, mesh, memory>;
using all = hd::train::static_profile<sc::gpipe<hd::microbatches<8>>, mesh, memory>;
using zero = hd::train::static_profile<sc::zb_h1<hd::microbatches<8>>, mesh, memory>;

// All of it is known while compiling: (m + p - 1) (F + B), and less for the zero-bubble schedule.
constexpr hd::sim::stage_times times{0.5, 0.5, 0.5};
static_assert(one::seconds(times) == (8 + 4 - 1) * 1.5);
static_assert(zero::seconds(times) < one::seconds(times));
static_assert(zero::seconds(times) == 8 * 1.5 + (4 - 1) * 0.5);
// GPipe keeps eight microbatches on every rank, 1F1B four on the first; boundary buffers and scratch on top.
constexpr std::int64_t of_a_microbatch = memory{}.activation_bytes(0);
static_assert(all::bytes > 8 * of_a_microbatch);
static_assert(one::bytes > 4 * of_a_microbatch && one::bytes < all::bytes);
static_assert(one::bytes == sc::memory_of<sc::one_f_one_b<hd::microbatches<8>>, 4, memory>.bytes);

}  // namespace

TEST_CASE("a job's profile may come from types alone", "[train][sja]") {
  const auto p = one::profile(100, times, 1'000'000, {.step = 0.5, .step_sd = 0, .set_up = 5, .finish = 5});
  CHECK(p.unit == 17);
  CHECK(p.set_up == 5);
  REQUIRE(p.phases.size() == 1);
  CHECK(p.phases[0].bytes == static_cast<double>(one::bytes + 1'000'000));
  // What it says decides what the job bids for.
  const sja::profiled_job<> job(0, p, {.units = 100});
  const auto fits = static_cast<double>(one::bytes + 1'000'000);
  CHECK(job.interest({-1, {0}, 0, 10 + 17 * 20, fits, 0})->units == 20);
  CHECK(!job.interest({-1, {0}, 0, 10 + 17 * 20, fits - 1, 0}));
  CHECK(!sja::profiled_job<>(1, all::profile(100, times, 1'000'000), {.units = 100})
             .interest({-1, {0}, 0, 1000, fits, 0}));
  CHECK_THROWS_AS(one::profile(0, times), hd::config_error);
}
