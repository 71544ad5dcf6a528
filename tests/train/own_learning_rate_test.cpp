// tests/train/own_learning_rate_test.cpp: learning rates of one's own and of learning_rates.hpp, alone and in a trainer on any mesh.
#include "catch.hpp"
#include "small_network.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/train/learning_rates.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/post_validation.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;

namespace {

using network = train_test::small_network<double>;

// Steps down by half every so many steps; it lists where, so it is no plain data.
struct halving {
  double first = 1e-2;
  std::vector<std::int64_t> at{2, 4};
  double wrong_from = -1;  // a step from which on the rate is no rate

  double operator()(std::int64_t step) const {
    if (wrong_from >= 0 && static_cast<double>(step) >= wrong_from) return -0.25;
    double rate = first;
    for (const std::int64_t s : at)
      if (step >= s) rate /= 2;
    return rate;
  }
  void validate() const {
    if (!(first >= 0)) throw hd::config_error("heddle: first must be at least 0");
  }
  friend std::string to_string(const halving& h) {
    std::string text = "halving first=" + std::to_string(h.first);
    for (const std::int64_t s : h.at) text += "," + std::to_string(s);
    return text;
  }
};

struct points {
  std::vector<double> x, y;
  points() {
    const hd::counter_random random(3, 0);
    for (std::uint64_t i = 0; i < 128; i += 2) {
      const double a = 2 * random.uniform(i) - 1, b = 2 * random.uniform(i + 1) - 1;
      x.insert(x.end(), {a, b});
      y.push_back(std::sin(2 * a) * b);
    }
  }
};

template <class Rate>
tr::options<network::config, Rate> options_of(const Rate& rate) {
  tr::options<network::config, Rate> o;
  o.model = {.inputs = 2, .outputs = 1};
  o.batch = 8;
  o.steps = 6;
  o.learning_rate = rate;
  o.clip_norm = 0.5;
  o.threads_per_rank = 1;
  return o;
}

struct told {
  std::vector<double> losses, rates;
  std::vector<std::string> errors;
};
template <class Mesh, class... Policies, class Options>
told train(const Options& o, int odd_rank = -1) {
  const points all_points;
  const hd::io::pairs data(all_points.x, all_points.y, {.inputs = 2, .targets = 1, .validation = 0.1});
  told result;
  result.errors.resize(static_cast<std::size_t>(Mesh{}.size()));
  std::mutex guard;
  hd::launch<hd::threads>(Mesh{}, [&](auto& world) {
    using strategy = hd::strategy<Mesh, hd::schedule::one_f_one_b<hd::microbatches<4>>, Policies...>;
    try {
      auto mine = o;
      if constexpr (requires { mine.learning_rate.at; })
        if (world.rank() == odd_rank) mine.learning_rate.at.push_back(5);
      auto trainer = tr::make_trainer<strategy>(network{}, world, mine);
      trainer.run(data, [&](const tr::step_report& r) {
        const std::lock_guard lock(guard);
        if (world.rank() != 0) return;
        result.losses.push_back(r.loss);
        result.rates.push_back(r.learning_rate);
      });
    } catch (const hd::error& e) {  // of a rank whose peers have ended, too
      result.errors[static_cast<std::size_t>(world.rank())] = e.what();
    }
  });
  return result;
}
using one = hd::mesh<>;
using eight = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;

}  // namespace

TEST_CASE("rates that come with heddle follow their formulas", "[train][learning_rate]") {
  using namespace tr::rates;
  const constant flat{.peak = 0.5, .warmup_steps = 4};
  CHECK(flat(0) == 0.125);
  CHECK(flat(3) == 0.5);
  CHECK(flat(1000000000000) == 0.5);

  const linear line{.peak = 1, .minimum = 0.2, .warmup_steps = 2, .total_steps = 10};
  CHECK(line(0) == 0.5);
  CHECK(line(2) == 1);
  CHECK(line(6) == Approx(0.6));
  for (std::int64_t t : {10, 11, 1000}) CHECK(line(t) == 0.2);

  const warmup_stable_decay wsd{.peak = 1, .minimum = 0.1, .warmup_steps = 2, .decay_steps = 4, .total_steps = 12};
  CHECK(wsd(1) == 1);
  for (std::int64_t t = 2; t < 8; ++t) CHECK(wsd(t) == 1);
  CHECK(wsd(8) == 1);
  CHECK(wsd(10) == Approx(0.55));
  CHECK(wsd(12) == 0.1);
  const warmup_stable_decay no_decay{.peak = 1, .total_steps = 3};
  CHECK(no_decay(2) == 1);
  CHECK(no_decay(3) == 0);

  const cosine_with_restarts waves{.peak = 1, .minimum = 0.5, .warmup_steps = 1, .period = 4, .factor = 2};
  std::int64_t begin = 1;
  for (std::int64_t length : {4, 8, 16, 32}) {
    for (std::int64_t k = 0; k < length; ++k)
      CHECK(waves(begin + k) == Approx(0.5 + 0.25 * (1 + std::cos(std::acos(-1.0) * static_cast<double>(k) /
                                                                  static_cast<double>(length)))));
    begin += length;
  }
  const cosine_with_restarts even{.peak = 1, .period = 10};
  CHECK(even(0) == even(999999999990));
  CHECK(even(5) == Approx(0.5));
}

TEST_CASE("settings of rates that cannot work are refused by name", "[train][learning_rate]") {
  using namespace tr::rates;
  const auto refused = [](const auto& rate, const char* text) {
    CHECK_THROWS_AS(rate.validate(), hd::config_error);
    CHECK_THROWS_WITH(rate.validate(), Contains(text));
  };
  refused(constant{.peak = -1}, "the learning rate must be a finite number >= 0, got -1");
  refused(linear{.peak = 1, .minimum = 2}, "the minimum learning rate must be in [0, peak = 1], got 2");
  refused(linear{.total_steps = -1}, "total_steps of the learning rate must be 0 to 1000000000000, got -1");
  refused(warmup_stable_decay{.decay_steps = -3}, "decay_steps of the learning rate must be 0 to 1000000000000, got -3");
  refused(cosine_with_restarts{.period = 0}, "period of the learning rate must be 1 to 1000000000000, got 0");
  refused(cosine_with_restarts{.factor = 0}, "factor of the learning rate must be 1 to 1000000, got 0");
  refused(cosine_with_restarts{.factor = std::int64_t{1} << 62}, "factor of the learning rate must be 1 to 1000000, got");
  refused(warmup_stable_decay{.warmup_steps = 3, .decay_steps = 8, .total_steps = 10},
          "at most total_steps = 10 together, got 3 and 8");
  CHECK_NOTHROW(warmup_stable_decay{.warmup_steps = 3, .decay_steps = 8}.validate());  // total_steps of the run
  auto of_run = options_of(warmup_stable_decay{.warmup_steps = 3, .decay_steps = 8});
  of_run.steps = 10;
  using strategy = hd::strategy<hd::mesh<hd::axis<dp, 1>>>;
  CHECK_THROWS_WITH(tr::detail::checked_options<strategy>(tr::options<network::config, tr::any_learning_rate>(of_run)),
                    Contains("at most total_steps = 10 together, got 3 and 8"));
  CHECK_NOTHROW(cosine_with_restarts{}.validate());
}

TEST_CASE("any learning rate is the one it was made of", "[train][learning_rate]") {
  const tr::any_learning_rate none;
  CHECK(none.target<tr::warmup_cosine>() != nullptr);
  CHECK(none.target<halving>() == nullptr);
  const tr::any_learning_rate halves = halving{};
  CHECK(halves(3) == 5e-3);
  CHECK(to_string(halves) == to_string(halving{}));
  CHECK_FALSE(halves.greatest());
  CHECK(halves.over(9).target<halving>() != nullptr);
  CHECK(tr::any_learning_rate(tr::rates::linear{}).over(9).target<tr::rates::linear>()->total_steps == 9);
  CHECK(tr::any_learning_rate(tr::rates::linear{.total_steps = 3}).over(9).target<tr::rates::linear>()->total_steps ==
        3);
  CHECK_THROWS_AS(tr::any_learning_rate(halving{.first = -1}).validate(), hd::config_error);
  const double infinite = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(tr::any_learning_rate(tr::rates::constant{.peak = infinite})(7),
                    Contains("the learning rate of step 7 must be a finite number >= 0, got inf"));

  // The text that ranks compare has the words that it always had, and those of another rate in their place.
  const std::string usual = to_string(options_of(tr::warmup_cosine{.peak = 0.5, .warmup_steps = 3}));
  CHECK_THAT(usual, Contains(" steps=6 lr=0.5 minimum_lr=0 warmup_steps=3 total_steps=0 beta1=0.9"));
  CHECK_THAT(to_string(options_of(halving{})), Contains(" steps=6 halving first=0.010000,2,4 beta1=0.9"));
  const tr::options<network::config, tr::any_learning_rate> any = options_of(halving{});
  CHECK(to_string(any) == to_string(options_of(halving{})));
}

TEST_CASE("a rate of one's own trains on any mesh what it trains on one rank", "[train][learning_rate][parity]") {
  const auto o = options_of(halving{});
  const told alone = train<one>(o);
  REQUIRE(alone.rates == std::vector<double>{1e-2, 1e-2, 5e-3, 5e-3, 2.5e-3, 2.5e-3});
  for (const told& many : {train<eight, hd::zero<3>>(o), train<eight, hd::zero<0>>(o)}) {
    REQUIRE(many.losses.size() == alone.losses.size());
    CHECK(many.rates == alone.rates);
    for (std::size_t i = 0; i < alone.losses.size(); ++i)
      CHECK(std::abs(many.losses[i] - alone.losses[i]) <= 1e-10 * std::abs(alone.losses[i]));
  }
  // It is the rate that decides: with the usual one the losses are others.
  const told other = train<one>(options_of(tr::warmup_cosine{.peak = 1e-2}));
  CHECK(other.losses[0] == alone.losses[0]);
  CHECK(other.losses[5] != alone.losses[5]);
}

TEST_CASE("rates that are no numbers, or not the same on all ranks, are errors that say where",
          "[train][learning_rate]") {
  for (const std::string& e : train<eight>(options_of(halving{.wrong_from = 3})).errors)
    CHECK(e == "heddle: the learning rate of step 3 must be a finite number >= 0, got -0.25");
  const told odd = train<one>(options_of(halving{.first = -2}));
  CHECK(odd.errors[0] == "heddle: first must be at least 0");

  using two = hd::mesh<hd::axis<dp, 2>>;
  const told differs = train<two>(options_of(halving{}), 1);
  CHECK_THAT(differs.errors[1],
             Contains("rank 1 has other options than rank 0: ") && Contains("halving first=0.010000,2,4,5"));

  using ahead = hd::mesh<hd::axis<pp, 2>>;
  for (const std::string& e : train<ahead, hd::post_validation>(options_of(halving{})).errors)
    CHECK_THAT(e, Contains("needs a bound of the learning rate: give it `double greatest() const`"));
  const told taken = train<ahead, hd::post_validation>(options_of(tr::rates::constant{.peak = 1e-2}));
  CHECK(taken.errors == std::vector<std::string>(2));
  CHECK(taken.rates == std::vector<double>(6, 1e-2));
}
