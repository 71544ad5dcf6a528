// tests/train/executor_schedules_test.cpp: a small real model under every schedule has the gradients of one rank.
#include "../schedule/pairs.hpp"
#include "../schedule/schedules.hpp"
#include "catch.hpp"
#include "small_model.hpp"

#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
using small_model::run, small_model::serial, small_model::gradient_of, small_model::difference;

namespace {

// Processes take longer to come together: they run what needs most of them.
bool is_large(int p) {
  return transport_test::on_threads || 2 * p > transport_test::most_ranks();
}

// Every schedule there is a name for, some with several numbers of chunks, that can run m microbatches on p ranks.
std::vector<schedules::named_table> all_tables(int p, int m) {
  std::vector<schedules::named_table> tables;
  std::vector<std::string> names(sc::named::names.begin(), sc::named::names.end());
  for (const char* more : {"interleaved:3", "zb-h1:2", "hanayo:2"}) names.push_back(more);
  for (const std::string& name : names) {
    const sc::named when(name, m);
    if (when.fits(p)) tables.push_back({name, sc::make_table(when, p)});
  }
  return tables;
}

int pairs_of_two_stages(std::span<const sc::action> list) {
  int n = 0;
  for (std::size_t k = 0; k + 1 < list.size(); ++k)
    n += list[k].overlaps_next && list[k].stage != list[k + 1].stage ? 1 : 0;
  return n;
}

// Random pairs where the schedule has none, but for those of two backwards of one stage, which both add to its gradients.
sc::action_table with_pairs(const sc::action_table& plain, std::mt19937& random) {
  if (std::any_of(plain.actions.begin(), plain.actions.end(), [](const sc::action& a) { return a.overlaps_next; }))
    return plain;
  sc::action_table t = schedules::with_pairs(plain, random, 0.3);
  for (std::size_t k = 0; k + 1 < t.actions.size(); ++k)
    if (t.actions[k].stage == t.actions[k + 1].stage && t.actions[k].kind != sc::action_kind::forward &&
        t.actions[k + 1].kind != sc::action_kind::forward)
      t.actions[k].overlaps_next = false;
  return t;
}

// Runs a table, compares all that can be counted or computed otherwise.
void check_run(const std::string& name, sc::table_view table, int sends_in_flight = 1,
               const std::vector<std::vector<int>>& ways = {}, bool beside = false) {
  INFO(name << ", p = " << table.ranks() << ", m = " << table.microbatches() << ", " << sends_in_flight
            << " sends in flight");
  const auto expected = serial(table.parts(), table.microbatches(), ways);
  const auto result = run(table, sends_in_flight, beside);
  const bool same_order = table.chains() == 1 && small_model::weights_in_order(table);
  for (int k = 0; k < table.parts(); ++k) {
    const auto g = gradient_of(table, result, k);
    const auto& wanted = expected.gradients[static_cast<std::size_t>(k)];
    CHECK(difference(g, wanted) <= 1e-12);
    if (same_order) CHECK(g == wanted);
  }
  CHECK(small_model::total_loss(result) == Approx(expected.loss).epsilon(1e-12));

  const sc::action_table lowered = table.has_transfers() ? sc::action_table{} : sc::lower(table);
  const sc::table_view run_table = table.has_transfers() ? table : lowered.view();
  const auto sizes = small_model::batches(table.microbatches());
  std::vector<int> reductions(static_cast<std::size_t>(table.stages()));
  for (int r = 0; r < table.ranks(); ++r) {
    const auto& mine = result[static_cast<std::size_t>(r)];
    std::int64_t sends = 0, bytes = 0;
    for (const sc::action& a : run_table.list(r))
      if (sc::is_send(a.kind)) {
        const auto& b = sizes[static_cast<std::size_t>(a.microbatch)];
        ++sends;
        bytes += std::int64_t{8} * b.samples * b.sequence * small_model::width;
      }
    CHECK(mine.sends == sends);
    CHECK(mine.bytes == bytes);
    CHECK(mine.peak_live == sc::peak_live(table, r));
    CHECK(mine.overlapped == (beside ? pairs_of_two_stages(table.list(r)) : 0));
    for (const int s : mine.reduced) ++reductions[static_cast<std::size_t>(s)];
  }
  CHECK(std::all_of(reductions.begin(), reductions.end(), [](int n) { return n == 1; }));
}

// Two replicas in opposite directions: first the forwards of one, then those of the other, each beside a backward of the
// first; then the other's backwards.
template <hd::microbatches_like M>
struct both_ways : sc::staged<M, sc::bidirectional> {
  using sc::staged<M, sc::bidirectional>::staged;
  bool pairs = true;
  constexpr bool fits(int) const { return this->microbatch_count() % 2 == 0; }
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    using kind = sc::action_kind;
    const int half = this->microbatch_count() / 2, there = rank, back = 2 * ranks - 1 - rank;
    for (int k = 0; k < half; ++k) emit(kind::forward, there, k);
    for (int k = 0; k < half; ++k) {
      emit(kind::forward, back, half + k, pairs);
      emit(kind::backward, there, k);
    }
    for (int k = 0; k < half; ++k) emit(kind::backward, back, half + k);
  }
};

// The table of GPipe in which microbatch i goes through `ways[i]` only; stage s lives on rank s mod p.
sc::action_table along_ways(int ranks, int stages, const std::vector<std::vector<int>>& ways) {
  sc::action_table t;
  const int m = static_cast<int>(ways.size());
  const auto at = [&](int s, int i) { return static_cast<std::size_t>(s * m + i); };
  t.microbatches = m;
  for (int s = 0; s < stages; ++s) t.rank_of_stage.push_back(s % ranks);
  t.next.assign(at(stages, 0), sc::not_on_path);
  t.previous = t.next;
  for (int i = 0; i < m; ++i) {
    const auto& way = ways[static_cast<std::size_t>(i)];
    for (std::size_t k = 0; k < way.size(); ++k) {
      t.next[at(way[k], i)] = k + 1 < way.size() ? way[k + 1] : -1;
      t.previous[at(way[k], i)] = k > 0 ? way[k - 1] : -1;
    }
  }
  t.offsets = {0};
  for (int r = 0; r < ranks; ++r) {
    for (int i = 0; i < m; ++i)
      for (const int s : ways[static_cast<std::size_t>(i)])
        if (s % ranks == r) t.actions.push_back({sc::action_kind::forward, s, i});
    for (int i = 0; i < m; ++i)
      for (std::size_t k = ways[static_cast<std::size_t>(i)].size(); k-- > 0;)
        if (const int s = ways[static_cast<std::size_t>(i)][k]; s % ranks == r)
          t.actions.push_back({sc::action_kind::backward, s, i});
    t.offsets.push_back(static_cast<int>(t.actions.size()));
  }
  return t;
}

}  // namespace

TEST_CASE("a real model has its serial gradients under every schedule, on any number of ranks",
          "[train][executor][schedules][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 4, 8}))
    for (const int m : {p, 2 * p}) {
      if (m == p && (p > 4 || !transport_test::on_threads)) continue;
      if (!is_large(p)) continue;
      for (const auto& [name, table] : all_tables(p, m)) check_run(name, table, m % 3);
    }
}

TEST_CASE("numbers of microbatches that ranks do not divide", "[train][executor][ranks]") {
  for (const int p : transport_test::rank_counts({2, 3}))
    for (const int m : {1, 2 * p + 1})
      if (is_large(p))
        for (const auto& [name, table] : all_tables(p, m)) check_run(name, table);
}

TEST_CASE("two replicas run in opposite directions", "[train][executor][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 4}))
    for (const int m : {2, 8}) {
      for (const bool beside : {false, true})
        check_run("both ways", sc::make_table(both_ways<hd::microbatches<>>{m}, p), 1, {}, beside);
      both_ways<hd::microbatches<>> without_pairs{m};
      without_pairs.pairs = false;
      check_run("both ways, no pairs", sc::make_table(without_pairs, p), 2);
    }
}

TEST_CASE("microbatches skip stages and take them in another order", "[train][executor][ranks]") {
  const std::vector<std::vector<int>> ways{{0, 1, 2, 3, 5},    {0, 2, 5}, {0, 3, 1, 4, 5},
                                           {0, 4, 3, 2, 1, 5}, {0, 5},    {0, 1, 2, 5}};
  for (const int p : transport_test::rank_counts({1, 2, 3, 4, 6})) check_run("ways", along_ways(p, 6, ways), 1, ways);
}

TEST_CASE("a rank allocates as many activations as its table says", "[train][executor][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 4}))
    for (const auto& [name, table] : all_tables(p, 2 * p)) {
      if (!is_large(p)) continue;
      INFO(name << ", p = " << p);
      std::vector<small_model::batch> equal;
      for (int i = 0; i < 2 * p; ++i) equal.push_back({2, 3, i});
      const std::int64_t bytes_each = std::int64_t{8} * 2 * 3 * (small_model::width + small_model::hidden);
      const auto result = small_model::run_on(table, 1, false, equal, [](auto& pipe) -> auto& { return pipe; });
      const bool pairs =
          std::any_of(table.actions.begin(), table.actions.end(), [](const sc::action& a) { return a.overlaps_next; });
      for (int r = 0; r < p; ++r) {
        const std::int64_t allocated = result[static_cast<std::size_t>(r)].peak_bytes;
        const std::int64_t planned = bytes_each * sc::peak_live(table, r);
        if (pairs)  // one after the other a backward may have ended before the forward begins
          CHECK((allocated <= planned && allocated >= planned - bytes_each));
        else
          CHECK(allocated == planned);
      }
    }
}

TEST_CASE("pairs that run at the same time change no bit", "[train][executor][ranks]") {
  std::mt19937 random(20261121);
  for (const int p : transport_test::rank_counts({1, 2, 4}))
    for (const auto& [name, plain] : all_tables(p, 2 * p)) {
      if (!is_large(p)) continue;
      if (plain.view().stages() == p) continue;  // only pairs of a stage with itself
      check_run(name + " with pairs", with_pairs(plain, random), 1, {}, true);
    }
}

namespace {

void check_blocking(const std::string& name, sc::table_view table) {
  INFO(name << ", p = " << table.ranks() << ", m = " << table.microbatches());
  const auto expected = serial(table.parts(), table.microbatches());
  const auto result = small_model::run_on(table, 0, false, small_model::batches(table.microbatches()), [](auto& pipe) {
    return small_model::blocking<std::remove_cvref_t<decltype(pipe)>>(pipe.split(0, pipe.rank()));
  });
  for (int k = 0; k < table.parts(); ++k)
    CHECK(difference(gradient_of(table, result, k), expected.gradients[static_cast<std::size_t>(k)]) <= 1e-12);
}

}  // namespace

TEST_CASE("every schedule completes where sends and receives block", "[train][executor][schedules][ranks]") {
  std::mt19937 random(20261122);
  for (const int p : transport_test::rank_counts({2, 4}))
    for (const auto& [name, table] : all_tables(p, 2 * p))
      if (is_large(p)) check_blocking(name, with_pairs(table, random));
  for (const int p : transport_test::rank_counts({2, 4}))
    check_blocking("both ways", sc::make_table(both_ways<hd::microbatches<>>{4}, p));
}

TEST_CASE("every schedule completes where sends and receives block, on more ranks", "[train][executor][ranks][slow]") {
  for (const int p : transport_test::rank_counts({3, 8}))
    for (const auto& [name, table] : all_tables(p, 2 * p)) check_blocking(name, table);
}

namespace {

// A stage of a forward-only pipeline: adds its number to what comes.
struct adding_stage {
  using scalar = int;
  static constexpr bool forward_only = true;
  int index, last;
  std::vector<int> results;
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int, const small_model::batch& of, std::span<const int> in, std::span<int> out) {
    std::vector<int> x(static_cast<std::size_t>(of.samples), of.id);
    if (index > 0) x.assign(in.begin(), in.end());
    for (int& v : x) v = 3 * v + index;
    std::copy(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(out.size()), out.begin());
    if (index == last) results.insert(results.end(), x.begin(), x.end());
  }
};

struct forward_hooks {
  int& forwards;
  void forward_done(int, int, int) { ++forwards; }
  void reduce_gradient(int) { throw hd::error("there is no gradient"); }
};

}  // namespace

TEST_CASE("tables without backwards run stages that have none", "[train][executor][ranks]") {
  const auto table = sc::parse("0F0 2F0 0F1 2F1 0F2 2F2 | 1F0 3F0 1F1 3F1 1F2 3F2", {.forward_only = true});
  std::vector<std::vector<int>> results(2);
  std::vector<int> peaks(2), forwards(2);
  transport_test::launch(hd::mesh<hd::axis<hd::pp>>(2), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    const sc::plan plan = sc::make_plan(table);
    std::vector<adding_stage> here{{pipe.rank(), 3, {}}, {pipe.rank() + 2, 3, {}}};
    std::vector<adding_stage*> held(4, nullptr);
    for (adding_stage& s : here) held[static_cast<std::size_t>(s.index)] = &s;
    hd::null_observer off;
    hd::model::executor<adding_stage, std::remove_reference_t<decltype(pipe)>> executor(plan, held, pipe, 3, off);
    const auto all = small_model::batches(3);
    const auto r = static_cast<std::size_t>(pipe.rank());
    for (int step = 0; step < 2; ++step)
      executor.run(std::span<const small_model::batch>(all), step, forward_hooks{forwards[r]});
    results[r] = here[1].results;
    peaks[r] = executor.counters().peak_live;
  });
  transport_test::share(results);
  transport_test::share(peaks);
  transport_test::share(forwards);
  const auto after = [](int x) { return 3 * (3 * (3 * (3 * x) + 1) + 2) + 3; };
  const std::vector<int> once{after(0), after(1), after(1), after(2), after(2), after(2)};
  std::vector<int> twice(once);
  twice.insert(twice.end(), once.begin(), once.end());
  CHECK(results[1] == twice);
  CHECK(peaks == std::vector<int>{0, 0});
  CHECK(forwards == std::vector<int>{12, 12});
  const sc::plan trains = sc::make_plan(sc::parse("F0 B0"));
  CHECK_THROWS_WITH(
      transport_test::launch(hd::mesh<hd::axis<hd::pp>>(1),
                             [&](auto& world) {
                               auto& pipe = world.template along<hd::pp>();
                               hd::null_observer off;
                               hd::model::executor<adding_stage, std::remove_reference_t<decltype(pipe)>> executor(
                                   trains, {nullptr}, pipe, 3, off);
                             }),
      Catch::Matchers::Contains("the stages are forward-only"));
}

namespace {

// A part of a model that makes tokens: what it hands on within a pass is twice as large as its tokens, of which the
// last part gives one per sample, and the first takes one, or the prompt.
struct token_stage {
  using scalar = int;
  static constexpr bool forward_only = true;
  int part, last;
  std::vector<std::vector<int>> tokens{};  // of each microbatch, on the last part

  std::int64_t boundary_elements(int samples) const { return 2 * samples; }
  std::int64_t input_elements(const small_model::batch& of) const { return part == 0 ? of.samples : 2 * of.samples; }
  std::int64_t output_elements(const small_model::batch& of) const {
    return part == last ? of.samples : 2 * of.samples;
  }
  static int prompt(const small_model::batch& of, int sample) { return 5 * of.id + sample; }
  void forward(int, const small_model::batch& of, std::span<const int> in, std::span<int> out) {
    if (in.size() != (part == 0 && in.empty() ? 0u : static_cast<std::size_t>(input_elements(of))))
      throw hd::error("token stage: an input has the wrong size");
    for (int k = 0; k < of.samples; ++k) {
      const auto at = static_cast<std::size_t>(k);
      const int x = part > 0 ? in[2 * at] - in[2 * at + 1] : in.empty() ? prompt(of, k) : in[at];
      const int y = step(x, part);
      if (part < last) {
        out[2 * at] = y + 7;
        out[2 * at + 1] = 7;
      } else {
        tokens.resize((std::max)(tokens.size(), static_cast<std::size_t>(of.id) + 1));
        tokens[static_cast<std::size_t>(of.id)].push_back(y);
        if (!out.empty()) out[at] = y;
      }
    }
  }
  static int step(int x, int of_part) { return (3 * x + of_part + 1) % 1009; }
};

}  // namespace

TEST_CASE("tokens are made one by one, prompts in microbatches", "[train][executor][ranks]") {
  const int steps = 5;
  for (const int p : transport_test::rank_counts({1, 2, 4}))
    for (const int m : {1, 3, 6}) {
      INFO("p = " << p << ", m = " << m);
      const auto table = sc::make_table(sc::decode<>{m, steps}, p);
      std::vector<std::vector<std::vector<int>>> tokens(static_cast<std::size_t>(p));
      transport_test::launch(hd::mesh<hd::axis<hd::pp>>(p), [&](auto& world) {
        auto& pipe = world.template along<hd::pp>();
        const sc::plan plan = sc::make_plan(table);
        token_stage here{pipe.rank(), p - 1};
        std::vector<token_stage*> held;  // all passes of a part are one stage
        for (int s = 0; s < p * steps; ++s) held.push_back(s % p == pipe.rank() ? &here : nullptr);
        hd::null_observer off;
        hd::model::executor<token_stage, std::remove_reference_t<decltype(pipe)>> executor(plan, held, pipe, 3, off);
        const auto all = small_model::batches(m);
        int forwards = 0;
        executor.run(std::span<const small_model::batch>(all), 0, forward_hooks{forwards});
        tokens[static_cast<std::size_t>(pipe.rank())] = here.tokens;
      });
      transport_test::share(tokens);
      for (const auto& of : small_model::batches(m)) {
        const auto& got = tokens.back()[static_cast<std::size_t>(of.id)];
        REQUIRE(got.size() == static_cast<std::size_t>(steps * of.samples));
        for (int k = 0; k < of.samples; ++k)
          for (int t = 0, x = token_stage::prompt(of, k); t < steps; ++t) {
            for (int part = 0; part < p; ++part) x = token_stage::step(x, part);
            CHECK(got[static_cast<std::size_t>(t * of.samples + k)] == x);
          }
      }
    }
}

namespace {
// Hooks of all actions, noted in the order they come.
struct all_hooks {
  std::string& text;
  void note(const char* what, int stage, int microbatch, int slot) {
    text += what;
    text += std::to_string(stage);
    if (microbatch >= 0) {
      text += ',';
      text += std::to_string(microbatch);
      text += '@';
      text += std::to_string(slot);
    }
    text += ' ';
  }
  void forward_done(int s, int i, int slot) { note("F", s, i, slot); }
  void reduce_gradient(int s) { note("reduce", s, -1, -1); }
  void optimizer_step(int s) { note("step", s, -1, -1); }
  void unshard(int s) { note("unshard", s, -1, -1); }
  void reshard(int s) { note("reshard", s, -1, -1); }
  void recompute(int s, int i, int slot) { note("recompute", s, i, slot); }
  void offload(int s, int i, int slot) { note("offload", s, i, slot); }
  void reload(int s, int i, int slot) { note("reload", s, i, slot); }
};
}  // namespace

TEST_CASE("hooks are called where the table has their actions, if there are any", "[train][executor]") {
  const auto table = sc::parse(
      "0UNSHARD 0F0 0OFFLOAD0 0F1 0RESHARD 0UNSHARD 0RECOMPUTE1 0B1 0RELOAD0 0B0 0RESHARD 0REDUCE_GRAD 0OPTIM");
  const sc::plan plan = sc::make_plan(table);
  const auto all = small_model::batches(2);
  std::string noted;
  std::vector<double> with, without;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp>>(1), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    hd::null_observer off;
    const auto gradients = [&](auto&& hooks) {
      small_model::stage model(0, 1, 2);
      hd::model::executor<small_model::stage, std::remove_reference_t<decltype(pipe)>> executor(
          plan, {&model}, pipe, small_model::most_samples, off);
      executor.run(std::span<const small_model::batch>(all), 0, hooks);
      return model.gradients;
    };
    with = gradients(all_hooks{noted});
    small_model::rank_result ignored;
    without = gradients(small_model::hooks{ignored});
  });
  CHECK(noted ==
        "unshard0 F0,0@0 offload0,0@0 F0,1@1 reshard0 unshard0 recompute0,1@1 reload0,0@0 reshard0 reduce0 step0 ");
  CHECK(with == without);
}

TEST_CASE("an executor refuses batches that it has no room for", "[train][executor]") {
  const sc::plan plan = sc::make_plan(sc::parse("0F0 1F0 1B0 0B0"));
  const auto run_with = [&](std::vector<small_model::batch> all) {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp>>(1), [&](auto& world) {
      auto& pipe = world.template along<hd::pp>();
      hd::null_observer off;
      small_model::stage first(0, 2, 1), last(1, 2, 1);
      hd::model::executor<small_model::stage, std::remove_reference_t<decltype(pipe)>> executor(plan, {&first, &last},
                                                                                                pipe, 2, off);
      small_model::rank_result ignored;
      executor.run(std::span<const small_model::batch>(all), 0, small_model::hooks{ignored});
    });
  };
  CHECK_NOTHROW(run_with({{2, 5, 0}}));
  CHECK_THROWS_WITH(run_with({{2, 6, 0}}), Catch::Matchers::Contains("microbatch 0 needs 48 elements between stages"));
  CHECK_THROWS_WITH(run_with({{2, 5, 0}, {2, 5, 1}}), Catch::Matchers::Contains("is for 1 microbatches, got 2"));
}

namespace {

// A stage whose computations of a pair end only when both have begun.
struct meeting_stage {
  using scalar = double;
  static constexpr int nobody = -1;
  std::atomic<int>* begun;
  bool beside = true;
  int thrower = nobody;  // the microbatch whose forward throws
  std::thread::id forward_on{}, backward_on{};

  bool runs_beside(const meeting_stage&) const { return beside; }
  std::int64_t boundary_elements(int samples) const { return samples; }
  void meet() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    begun->fetch_add(1);
    while (begun->load() < 2) {
      if (std::chrono::steady_clock::now() > end) throw hd::error("the other computation of the pair did not begin");
      std::this_thread::yield();
    }
  }
  void forward(int, const small_model::batch& of, std::span<const double>, std::span<double>) {
    forward_on = std::this_thread::get_id();
    if (of.id == 0) return;
    if (beside) meet();
    if (of.id == thrower) throw hd::error("this forward fails");
  }
  void backward(int, const small_model::batch& of, std::span<const double>, std::span<double>) {
    backward_on = std::this_thread::get_id();
    if (of.id == 0 && beside) meet();
  }
  void backward_input(int, const small_model::batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const small_model::batch&) {}
};

struct meeting {
  bool apart = false;  // whether the two ran on different threads
  int overlapped = 0;
  std::vector<hd::event> events;
};

meeting meet(const char* text, bool beside, int thrower = meeting_stage::nobody) {
  const auto table = sc::parse(text, {.chains = 2});
  const sc::plan plan = sc::make_plan(table);
  const auto all = small_model::batches(2);
  meeting result;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp>>(1), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    std::atomic<int> begun{0};
    meeting_stage one{&begun, beside, thrower}, other{&begun, beside, thrower};
    hd::observe::recorder recorder(1);
    hd::model::executor<meeting_stage, std::remove_reference_t<decltype(pipe)>, hd::observe::recorder> executor(
        plan, {&one, &other}, pipe, 3, recorder);
    small_model::rank_result ignored;
    executor.run(std::span<const small_model::batch>(all), 0, small_model::hooks{ignored});
    result.apart = one.backward_on != other.forward_on;
    result.overlapped = executor.counters().overlapped;
    result.events = recorder.events();
  });
  return result;
}

}  // namespace

TEST_CASE("the two computations of a pair run at the same time where their stages allow it", "[train][executor]") {
  for (const char* text : {"0F0 (1F1;0B0)OVERLAP_F_B 1B1", "0F0 (0B0;1F1)OVERLAP_B_F 1B1"}) {
    INFO(text);
    const meeting met = meet(text, true);
    CHECK(met.apart);
    CHECK(met.overlapped == 1);
    REQUIRE(met.events.size() == 4);
    const auto find = [&](hd::activity kind, int microbatch) {
      return *std::find_if(met.events.begin(), met.events.end(),
                           [&](const hd::event& e) { return e.kind == kind && e.microbatch == microbatch; });
    };
    const hd::event f = find(hd::activity::forward, 1), b = find(hd::activity::backward, 0);
    CHECK((f.begin_ns < b.end_ns && b.begin_ns < f.end_ns));
    const meeting passed = meet(text, false);
    CHECK_FALSE(passed.apart);
    CHECK(passed.overlapped == 0);
    CHECK_THROWS_WITH(meet(text, true, 1), Catch::Matchers::Contains("this forward fails"));
  }
}
