// Ten faults that no comparison of calls can see, as all ranks make the same one: what finds them is named here.
#include <heddle/core/observers.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/observe/call_lags.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/testing/faults.hpp>
#include <heddle/train.hpp>
#include <heddle/train/same_copies.hpp>

#include "catch.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace silent_faults {
namespace {

namespace hd = heddle;
using hd::testing::fault;
using grid = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using small_model = hd::model::gpt2<double>;

// Counts collectives by name, of rank 0.
struct counting {
  static constexpr bool enabled = true;
  std::map<std::string, int> calls{};
  void record(const hd::event& e) {
    if (e.rank == 0 && e.kind == hd::activity::collective) ++calls[e.name];
  }
};

struct outcome {
  std::vector<double> steps;  // loss and norm of each
  std::string copies, error;
  std::map<std::string, int> calls;
  std::int64_t struck = 0;
};

hd::io::corpus squares() {
  std::string text;
  for (long k = 0; k < 500; ++k) text += std::to_string(k * k) + ' ';
  return {"squares", {text.begin(), text.end()}};
}
hd::train::options<small_model::config> small_options() {
  hd::train::options<small_model::config> options{.batch = 4, .steps = 4};
  options.model = {.layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 256};
  return options;
}

outcome trained(const fault& f) {
  outcome all;
  const hd::io::corpus corpus = squares();
  const hd::io::dataset data(corpus.tokens(), {.context = 8, .batch = 4, .seed = 1});
  const auto options = small_options();
  counting counts;
  hd::testing::faults drill{f};
  hd::observers watch(counts, drill);
  using strategy = hd::strategy<grid, decltype(watch)>;
  try {
    hd::launch<hd::threads, grid>([&](auto& world) {
      auto trainer = hd::train::make_trainer<strategy>(small_model{}, world, options, watch);
      trainer.run(data, [&](const hd::train::step_report& r) {
        if (world.rank() != 0) return;
        all.steps.push_back(r.loss);
        all.steps.push_back(r.gradient_norm);
      });
      try {
        hd::train::require_same_copies(trainer);
      } catch (const hd::numeric_error& e) {
        if (world.rank() == 0) all.copies = e.what();
      }
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  all.calls = counts.calls;
  all.struck = drill.struck();
  return all;
}

// The events of a run whose weights are gathered for each use.
std::vector<hd::event> trained_in_shares(const fault& f) {
  const hd::io::corpus corpus = squares();
  const hd::io::dataset data(corpus.tokens(), {.context = 8, .batch = 4, .seed = 1});
  hd::observe::recorder events(grid::size());
  hd::testing::faults drill{f};
  hd::observers watch(events, drill);
  using strategy = hd::strategy<grid, hd::zero<3>, decltype(watch)>;
  hd::launch<hd::threads, grid>([&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(small_model{}, world, small_options(), watch);
    trainer.run(data);
  });
  return events.events();
}

}  // namespace

TEST_CASE("a call that is only started is not left out and not doubled", "[train][mutations]") {
  using Catch::Matchers::Contains;
  for (const auto what : {fault::skip, fault::twice})
    CHECK_THROWS_WITH(trained_in_shares({.name = "gather weights", .at = 1, .what = what}),
                      Contains("testing::faults: skip and twice are for calls that are complete when they return; "
                               "gather weights has a result, or is only started there"));
}

TEST_CASE("a trainer's own collectives have one flow for all members", "[train][lags]") {
  const auto events =
      trained_in_shares({.rank = 2, .kind = hd::activity::backward, .delay = std::chrono::milliseconds(60)});
  std::map<std::uint64_t, std::set<int>> ranks;
  std::map<std::uint64_t, std::string> names;
  std::map<std::string, int> seen;
  for (const hd::event& e : events) {
    if (e.kind != hd::activity::collective || e.flow == 0) continue;
    CHECK(ranks[e.flow].insert(e.rank).second);  // once of each rank
    CHECK(names.try_emplace(e.flow, e.name).first->second == e.name);
    ++seen[e.name];
  }
  CHECK(seen["gather weights"] > 0);
  CHECK(seen["reduce gradients"] > 0);
  CHECK(seen["all_reduce of loss and norm"] == 4 * grid::size());
  for (const auto& [flow, of] : ranks) {
    const std::string& name = names[flow];
    CAPTURE(name, *of.begin());
    const int first = *of.begin();
    if (name == "all_reduce of loss and norm")
      CHECK(of == std::set<int>{0, 1, 2, 3});
    else if (name == "all_reduce")  // of a layer, along tp
      CHECK(of == std::set<int>{first, first + 1});
    else
      CHECK(of == std::set<int>{first, first + 2});
  }
  const auto lags = hd::observe::call_lags(events);
  std::vector<hd::observe::call_lag> of_data;
  for (const auto& l : lags)
    if (std::string(l.name) == "reduce gradients") of_data.push_back(l);
  REQUIRE(of_data.size() >= 4 * grid::size());
  const auto latest = hd::observe::latest_ranks(of_data);
  CAPTURE(to_string(latest[0]), to_string(latest[1]));
  CHECK(latest[0].rank == 2);
  CHECK(latest[0].own_ns > 10'000'000);
}

TEST_CASE("ten silent faults of a trainer are found by its copies or by a run without them", "[train][mutations]") {
  // Mixed data and tensor parallelism, zero<1>. That the clean run equals one rank is what parallel_test shows.
  const outcome clean = trained({.rank = grid::size()});
  REQUIRE(clean.error.empty());
  REQUIRE(clean.copies.empty());
  REQUIRE(clean.steps.size() == 8);
  CHECK(trained({.rank = grid::size()}).steps == clean.steps);  // bit for bit: any difference is a fault's
  struct silent {
    const char* name;
    int at;  // below 0: from the last one
    fault::effect what;
    bool copies, numbers, error;  // who finds it
  };
  const std::array<silent, 10> all{{{"all_reduce", 0, fault::skip, true, true, false},
                                    {"all_reduce", -1, fault::skip, true, true, false},
                                    {"all_reduce", 0, fault::twice, false, true, false},
                                    {"all_reduce", -1, fault::twice, false, true, false},
                                    {"reduce gradients", 0, fault::skip, true, true, false},
                                    {"reduce gradients", -1, fault::skip, true, true, false},
                                    {"reduce gradients", 0, fault::twice, false, true, false},
                                    {"reduce gradients", -1, fault::twice, false, true, false},
                                    {"all_reduce of loss and norm", 0, fault::twice, false, true, false},
                                    {"all_reduce of loss and norm", 0, fault::skip, false, false, true}}};
  for (const silent& s : all) {
    const int n = clean.calls.at(s.name), at = s.at < 0 ? n + s.at : s.at;
    const outcome o = trained({.name = s.name, .at = at, .what = s.what});
    const bool differs = o.error.empty() && o.steps != clean.steps;
    INFO(s.name << " " << at << " of " << n << (s.what == fault::skip ? " left out" : " twice")
                << " by all ranks; copies: '" << o.copies << "', error: '" << o.error << "'");
    CHECK(o.struck >= 2);
    CHECK(!o.copies.empty() == s.copies);
    CHECK(differs == s.numbers);
    CHECK(!o.error.empty() == s.error);
    CHECK((s.copies || s.numbers || s.error));
    std::printf("%-28s %-5s %-9s caught by:%s%s%s\n", s.name, s.at < 0 ? "last" : "first",
                s.what == fault::skip ? "left out" : "twice", s.copies ? " require_same_copies" : "",
                s.numbers ? " loss and norm" : "", s.error ? " the trainer" : "");
  }
}

}  // namespace silent_faults
