// tests/train/zero_test.cpp: with shares of moments, gradients and weights (ZeRO) any mesh and schedule trains the model that
// one rank trains, with as many collectives and bytes as the table says.
#include "catch.hpp"
#include "folder.hpp"
#include "small_dataset.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = hd::schedule;
using hd::dp, hd::pp, hd::tp;
using namespace train_test;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using tensors = std::map<std::string, std::vector<double>>;

struct setup {
  std::string mesh = "", schedule = "1f1b";
  int microbatches = 3, layers = 3, steps = 3;
  std::int64_t batch = 7;
  double clip = 0.5;
  std::string save_to = "", resume_from = "", poison = "";
  bool errs = false;  // before the second step, outside of steps
};

// What one rank counted in the last step, and its memory for parameters after the run.
struct counts {
  std::int64_t gathers = 0, scatters = 0, unshards = 0;
  int stages = 0, borrowed = 0, tied = 0;
  std::int64_t elements = 0, shares = 0;  // of all flat buffers, and of this rank's parts
  std::int64_t largest = 0;
  std::int64_t bytes = 0, peak = 0, predicted = 0, lent = 0, kept = 0, taken_back = 0;
  bool weights_are_away = true;
};
struct outcome {
  std::vector<double> losses, norms, logits;
  double validation = 0;
  tensors weights, gradients;
  std::vector<counts> ranks;
  std::vector<std::string> said;  // by each rank
  std::vector<hd::event> events;  // of the ranks of this process
};

template <class Stage>
void assemble(const Stage& stage, std::span<const double> kept, std::int64_t begin, tensors& whole) {
  for (const auto& p : stage.parameters()) {
    if (p.tied_copy) continue;
    auto& to = whole[p.name];
    to.resize(static_cast<std::size_t>(p.global_count()), std::nan(""));
    hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t k = 0; k < length; ++k)
        if (const std::int64_t at = p.offset + local + k - begin;
            at >= 0 && at < static_cast<std::int64_t>(kept.size()))
          to[static_cast<std::size_t>(global + k)] = kept[static_cast<std::size_t>(at)];
    });
  }
}
void fill_in(tensors& whole, const tensors& part) {
  for (const auto& [name, values] : part) {
    auto& to = whole.try_emplace(name, values.size(), std::nan("")).first->second;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::isnan(values[i])) to[i] = values[i];
  }
}

template <int Zero, class... Policies>
outcome train(const setup& s) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = s.layers, .heads = 4, .width = 12, .context = 6, .vocabulary = 31};
  o.batch = s.batch;
  o.microbatches = s.microbatches;
  o.steps = s.steps;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.clip_norm = s.clip;
  o.threads_per_rank = 1;
  const small_dataset data(noise(static_cast<std::size_t>(o.model.context * 40 + 1), o.model.vocabulary),
                           {.context = o.model.context, .batch = s.batch});
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const sc::tabled when(table_named(s.schedule, mesh.template extent<pp>(), s.microbatches));
  outcome result;
  result.ranks.resize(static_cast<std::size_t>(mesh.size()));
  std::mutex guard;
  using strategy = hd::strategy<mesh_type, sc::tabled, hd::zero<Zero>, Policies...>;
  hd::observe::recorder recorder(mesh.size());
  transport_test::launch(mesh, [&](auto& world) {
    using trainer_type =
        hd::train::trainer<hd::model::gpt2<double>, strategy, std::remove_reference_t<decltype(world)>>;
    std::optional<trainer_type> made;
    if constexpr (strategy::observer::enabled)
      made.emplace(world, o, when, recorder);
    else
      made.emplace(world, o, when);
    trainer_type& trainer = *made;
    for (int k = 0; k < trainer.stages(); ++k)
      for (const auto& p : trainer.stage(k).parameters())
        if (p.name == s.poison)  // its last element only
          hd::train::detail::for_kept_part(
              p, trainer.optimizer_state(k).weights_begin(),
              trainer.optimizer_state(k).weights_of(trainer.stage(k)).size(),
              [&](std::int64_t first, std::int64_t count, std::int64_t at) {
                if (first + count == p.count)
                  trainer.optimizer_state(k).weights_of(trainer.stage(k))[static_cast<std::size_t>(at + count - 1)] =
                      std::numeric_limits<double>::quiet_NaN();
              });
    if (!s.resume_from.empty()) hd::train::resume(trainer, s.resume_from, {.corpus = 77});
    hd::comm_counters before, after;
    const auto tell = [&](const hd::train::step_report& report) {
      const std::lock_guard lock(guard);
      if (world.rank() != 0) return;
      result.losses.push_back(report.loss);
      result.norms.push_back(report.gradient_norm);
    };
    while (trainer.steps_done() < s.steps) {
      if (s.errs && trainer.steps_done() == 1) {
        const std::vector<std::int32_t> outside(static_cast<std::size_t>(o.model.context), 99);
        hd::model::batch<double> b;
        b.tokens = outside;
        b.samples = 1;
        std::vector<double> logits(static_cast<std::size_t>(o.model.vocabulary));
        std::string said;  // looked at by the main thread: assertions are not for several
        try {
          trainer.last_logits(b, logits);
        } catch (const hd::config_error& e) {
          said += e.what();
        }
        trainer.parameter_memory().release_kept();  // the next step allocates anew
        if (trainer.parameter_memory().bytes().kept != 0) said += "some memory is still kept";
        if constexpr (Zero == 3) try {
            trainer.parameter_memory().with_weights([&] { trainer.step(data); });
          } catch (const hd::config_error& e) {
            said += e.what();
          }
        const std::lock_guard lock(guard);
        result.said.push_back(said);
      }
      before = trainer.ranks().template along_if<hd::dp>().counters();
      if constexpr (strategy::norm_check::steps_first) {  // the next step's forwards begin before the norm is known
        if (const auto report = trainer.step_ahead(data)) tell(*report);
        if (trainer.steps_done() == s.steps)
          if (const auto report = trainer.finish_step()) tell(*report);
      } else {
        tell(trainer.step(data));
      }
      after = trainer.ranks().template along_if<hd::dp>().counters();
    }
    const double validation = trainer.validate(data);
    if (!s.save_to.empty()) hd::train::save(trainer, s.save_to, {.corpus = 77});
    const std::vector<std::int32_t> text{3, 1, 4, 1, 5};
    hd::model::batch<double> batch;
    batch.tokens = text;
    batch.samples = 1;
    batch.sequence = 5;
    std::vector<double> logits(static_cast<std::size_t>(trainer.is_last_stage() ? o.model.vocabulary : 0));
    trainer.last_logits(batch, std::span<double>(logits));
    counts mine;
    mine.gathers = after[hd::comm_operation::all_gather_v].calls - before[hd::comm_operation::all_gather_v].calls;
    mine.scatters =
        after[hd::comm_operation::reduce_scatter_v].calls - before[hd::comm_operation::reduce_scatter_v].calls;
    for (const sc::action& a : trainer.plan().table.list(trainer.pipeline_group().rank()))
      mine.unshards += a.kind == sc::action_kind::unshard ? 1 : 0;
    mine.stages = trainer.stages();
    mine.taken_back = trainer.steps_taken_back();
    for (int k = 0; k < trainer.stages(); ++k) {
      mine.borrowed += trainer.held(k).borrows() ? 1 : 0;
      mine.tied += !trainer.held(k).borrows() && trainer.held(k).tied_elements() > 0 ? 1 : 0;
      mine.elements += trainer.stage(k).flat_elements();
      mine.largest = (std::max)(mine.largest, trainer.stage(k).flat_elements());
      mine.shares += trainer.optimizer_state(k).owned_end() - trainer.optimizer_state(k).owned_begin();
      mine.weights_are_away = mine.weights_are_away && trainer.stage(k).weights().empty();
    }
    auto& memory = trainer.parameter_memory();
    mine.bytes = memory.bytes().total();
    mine.lent = memory.bytes().lent;
    mine.kept = memory.bytes().kept;
    mine.peak = memory.peak_bytes();
    mine.predicted = memory.predicted_peak_bytes();
    memory.with_weights([&] {
      const std::lock_guard lock(guard);
      for (int k = 0; k < trainer.stages(); ++k) {
        assemble(trainer.stage(k), std::span<const double>(trainer.stage(k).weights()), 0, result.weights);
        auto& state = trainer.optimizer_state(k);
        assemble(trainer.stage(k), state.gradients_of(trainer.stage(k)), state.gradients_begin(), result.gradients);
      }
    });
    const std::lock_guard lock(guard);
    if (!logits.empty()) result.logits = logits;
    if (world.rank() == 0) result.validation = validation;
    result.ranks[static_cast<std::size_t>(world.rank())] = mine;
  });
  if constexpr (strategy::observer::enabled) result.events = recorder.events();
  for (auto* values : {&result.losses, &result.norms}) transport_test::tell(*values, 0);
  transport_test::tell(result.validation, 0);
  transport_test::share(result.ranks);
  transport_test::merge(result.weights, fill_in);
  transport_test::merge(result.gradients, fill_in);
  transport_test::merge(result.logits, [](auto& to, const auto& from) {
    if (to.empty()) to = from;
  });
  return result;
}

double apart(double x, double y) {
  return std::abs(x - y) / std::abs(y);
}
double apart(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size()) return 1;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) return 1;
    most = std::fmax(most, std::abs(x[i] - y[i]));
    largest = std::fmax(largest, std::abs(y[i]));
  }
  return most / largest;
}
double apart(const tensors& x, const tensors& y) {
  double most = x.size() == y.size() && !y.empty() ? 0 : 1;
  for (const auto& [name, values] : y) most = std::fmax(most, x.contains(name) ? apart(x.at(name), values) : 1);
  return most;
}

// The model of these tests on three ranks, as a type.
struct on_three {
  static constexpr hd::model::gpt2_config config{.layers = 3, .heads = 4, .width = 12, .context = 6, .vocabulary = 31};
  static constexpr int stages = 1, dp = 3;
  static constexpr std::int64_t samples = 1;
};

// Stages of a rank that share the embedding with another rank: theirs are reduced behind the last backward.
int tied_on(const outcome& o, int rank) {
  return o.ranks[static_cast<std::size_t>(rank)].tied;
}

bool fits(const std::string& mesh) {
  return hd::parse_mesh<mesh_type>(mesh).size() <= transport_test::most_ranks();
}

void check_equal(const outcome& got, const outcome& serial) {
  CHECK(apart(got.losses, serial.losses) <= 1e-10);
  CHECK(apart(got.norms, serial.norms) <= 1e-10);
  CHECK(apart(got.weights, serial.weights) <= 1e-10);
  CHECK(apart(got.validation, serial.validation) <= 1e-10);
  CHECK(apart(got.logits, serial.logits) <= 1e-10);
}

}  // namespace

TEST_CASE("shares of gradients and weights train the model that one rank trains", "[train][zero][ranks]") {
  struct one {
    const char *mesh, *schedule;
    int microbatches, layers;
  };
  std::map<std::pair<int, int>, outcome> serial;
  int borrowed = 0;
  for (const one& at :
       {one{"", "1f1b", 3, 3}, one{"dp=2", "1f1b", 3, 3}, one{"dp=4", "breadth-first:3", 3, 3},
        one{"dp=5", "gpipe", 2, 3}, one{"dp=2,pp=2,tp=2", "interleaved", 4, 4}, one{"dp=3,pp=2", "zb-v", 4, 4},
        one{"dp=2,pp=3", "zb-h1", 3, 3}, one{"dp=2,pp=2", "dual-pipe-v", 4, 4}, one{"dp=2,pp=2", "bidirectional", 2, 3},
        one{"dp=2,pp=2", "breadth-first:3", 2, 6}, one{"pp=2,tp=2", "breadth-first", 2, 4}}) {
    if (!fits(at.mesh)) continue;
    setup s;
    s.microbatches = at.microbatches;
    s.layers = at.layers;
    auto& alone = serial[{at.microbatches, at.layers}];
    if (alone.losses.empty()) alone = train<1>(s);
    s.mesh = at.mesh;
    s.schedule = at.schedule;
    for (const int zero : {2, 3}) {
      INFO("mesh '" << at.mesh << "', " << at.schedule << ", zero " << zero);
      const outcome got = zero == 2 ? train<2>(s) : train<3>(s);
      check_equal(got, alone);
      for (const counts& c : got.ranks) {
        CHECK(c.peak == c.predicted);
        CHECK(c.lent == 0);             // nothing whole is left between steps
        CHECK(c.bytes <= c.predicted);  // with the memory that is kept for the next
        const std::int64_t d = static_cast<std::int64_t>(hd::parse_mesh<mesh_type>(at.mesh).extent<dp>());
        // The tied gradient, and what lies on either side of it, are reduced one after the other where two ranks share it.
        if (d > 1) CHECK(c.scatters >= c.stages);
        if (d > 1) CHECK(c.scatters <= c.stages + 2 * c.tied);
        if (zero == 2) {
          CHECK(c.gathers == (d > 1 ? c.stages : 0));
          continue;
        }
        if (d > 1) CHECK(c.gathers >= c.unshards);
        if (d > 1 && c.borrowed == 0) CHECK(c.gathers == c.unshards);
        CHECK(c.weights_are_away);
      }
      for (const counts& c : got.ranks) borrowed += c.borrowed;
    }
  }
  if (fits("dp=3,pp=2")) CHECK(borrowed > 0);  // some heads use the embedding of another sharded stage
}

TEST_CASE("a looped schedule gathers each stage twice, not for each microbatch", "[train][zero][ranks]") {
  if (!fits("dp=2,pp=2")) return;
  for (const int microbatches : {2, 6}) {
    setup s;
    s.mesh = "dp=2,pp=2";
    s.schedule = "breadth-first:4";
    s.layers = 8;
    s.microbatches = microbatches;
    s.batch = 12;
    s.steps = 1;
    const outcome got = train<3>(s);
    for (const counts& c : got.ranks) {
      // Two stages are whole at a time: the last two of the forwards are the first two of the backwards.
      CHECK(c.stages == 4);
      CHECK(c.unshards == 2 * 4 - 2);
      CHECK(c.gathers == 2 * 4 - 2);
      // Each stage once; the tied embedding's is cut in two or three.
      CHECK(c.tied == 1);
      CHECK(c.scatters >= 4 + 1);
      CHECK(c.scatters <= 4 + 2);
    }
  }
}

TEST_CASE("the bytes of parameters are those of the formulas", "[train][zero][memory][ranks]") {
  if (!fits("dp=3")) return;
  constexpr std::int64_t s8 = sizeof(double);
  setup s;
  s.mesh = "dp=3";
  s.steps = 1;
  for (const counts& c : train<1>(s).ranks) {
    CHECK(c.bytes == s8 * (2 * c.elements + 2 * c.shares));
    CHECK(c.kept == 0);
    CHECK(c.peak == c.bytes);
  }
  for (const counts& c : train<2>(s).ranks) {
    CHECK(c.bytes == s8 * (c.elements + 3 * c.shares) + c.kept);
    CHECK(c.kept == s8 * c.elements);
    CHECK(c.peak == c.bytes);
  }
  std::int64_t shares = 0, elements = 0;
  for (const counts& c : train<3>(s).ranks) {
    CHECK(c.bytes == s8 * 4 * c.shares + c.kept);
    CHECK(c.kept == s8 * 2 * c.elements);  // one stage: its weights and its gradients
    CHECK(c.peak == c.bytes);
    shares += c.shares;
    elements = c.elements;
  }
  CHECK(shares == elements);
  // The same from the types alone, of the first rank.
  constexpr std::int64_t n = hd::train::gpt2_with_state<double, on_three, hd::zero<0>>::weight_bytes(0);
  CHECK(n == s8 * elements);
  const auto formula = []<int Zero>() {
    using of = hd::train::gpt2_with_state<double, on_three, hd::zero<Zero>>;
    return of::state_bytes(0) + of::gathered_bytes(0);
  };
  CHECK(train<1>(s).ranks[0].peak == formula.operator()<1>());
  CHECK(train<2>(s).ranks[0].peak == formula.operator()<2>());
  CHECK(train<3>(s).ranks[0].peak == formula.operator()<3>());
  // Six stages on a rank, two of them whole at a time: far less than all of them.
  s.schedule = "breadth-first:6";
  s.layers = 12;
  for (const counts& c : train<3>(s).ranks) CHECK(c.peak <= c.bytes - c.kept + s8 * 5 * c.largest);
}

TEST_CASE("a save of shares goes on with others, on other meshes", "[train][zero][save][ranks]") {
  if (!fits("dp=3,pp=2")) return;
  setup s;
  s.steps = 4;
  const outcome whole = train<1>(s);
  const auto cut = [&](const char* name, auto&& first, auto&& second) {
    INFO(name);
    const folder saves(name);
    setup one = s;
    one.mesh = "dp=3,pp=2";
    one.steps = 2;
    one.save_to = saves.path.string();
    first(one);
    setup two = s;
    two.mesh = "dp=2,tp=2";
    two.resume_from = saves.path.string();
    const outcome got = second(two);
    CHECK(apart(got.weights, whole.weights) <= 1e-10);
    CHECK(apart(got.losses, {whole.losses[2], whole.losses[3]}) <= 1e-10);
  };
  const auto with_1 = [](const setup& x) { return train<1>(x); };
  const auto with_2 = [](const setup& x) { return train<2>(x); };
  const auto with_3 = [](const setup& x) { return train<3>(x); };
  cut("3to1", with_3, with_1);
  cut("1to3", with_1, with_3);
  cut("2to3", with_2, with_3);
  cut("3to2", with_3, with_2);
}

TEST_CASE("steps on shares are taken back", "[train][zero][ranks]") {
  if (!fits("dp=2,pp=2")) return;
  setup s;
  s.microbatches = 4;
  s.clip = 1e9;
  const outcome unclipped = train<1>(s);
  // Less than the norm of all, more than that of one pipeline rank's part.
  s.clip = 0.97 * *std::min_element(unclipped.norms.begin(), unclipped.norms.end());
  const outcome serial = train<1>(s);
  s.mesh = "dp=2,pp=2";
  for (const char* schedule : {"1f1b", "zb-v", "breadth-first, OPTIM"}) {
    INFO(schedule);
    s.schedule = schedule;
    const outcome got = train<3, hd::post_validation>(s);
    check_equal(got, serial);
    std::int64_t taken_back = 0;
    for (const counts& c : got.ranks) {
      CHECK(c.peak == c.predicted);
      CHECK(c.lent == 0);
      taken_back += c.taken_back;
    }
    CHECK(taken_back > 0);
  }
}

TEST_CASE("errors that are caught outside of a step leave no old weights behind", "[train][zero][ranks]") {
  if (!fits("dp=2")) return;
  setup s;
  const outcome serial = train<0>(s);
  s.mesh = "dp=2";
  s.errs = true;
  const outcome got = train<3>(s);
  check_equal(got, serial);
  REQUIRE(got.said.size() == 2);
  for (const std::string& said : got.said) {
    CHECK_THAT(said, Catch::Matchers::Contains("token"));
    CHECK_THAT(said, Catch::Matchers::Contains("no step can run inside of with_weights"));
    CHECK_THAT(said, !Catch::Matchers::Contains("still kept"));
  }
  for (const counts& c : got.ranks) CHECK(c.lent == 0);
  check_equal(train<2>(s), serial);
}

TEST_CASE("a table that gathers the weights of some stages only is refused", "[train][zero]") {
  const auto bare = table_named("interleaved:2", 2, 4);
  const auto whole = sc::passes::unshard{}(bare.view());
  CHECK_NOTHROW(hd::train::detail::require_unshard_of_all(whole.view()));
  CHECK_THROWS_WITH(hd::train::detail::require_unshard_of_all(bare.view()),
                    Catch::Matchers::Contains("but none of stage 0"));
}

TEST_CASE("a weight that is not finite is found in the share of whoever has it", "[train][zero][ranks]") {
  if (!fits("dp=3")) return;
  setup s;
  s.mesh = "dp=3";
  s.poison = "h.1.mlp.c_fc.weight";
  CHECK_THROWS_WITH(train<3>(s), Catch::Matchers::Contains("the weight h.1.mlp.c_fc.weight was not finite"));
  CHECK_THROWS_WITH(train<2>(s), Catch::Matchers::Contains("the weight h.1.mlp.c_fc.weight was not finite"));
}

TEST_CASE("reductions beside the backward give the bits of those that are waited for", "[train][zero][ranks]") {
  for (const auto& [mesh, schedule] :
       {std::pair{"dp=2,pp=2,tp=2", "interleaved"}, {"dp=4,pp=2", "zb-v"}, {"dp=8", "breadth-first:4"}}) {
    if (!fits(mesh)) continue;
    setup s;
    s.mesh = mesh;
    s.schedule = schedule;
    s.microbatches = s.layers = 4;
    s.batch = 9;
    const auto same = [&](const outcome& beside, const outcome& plain) {
      INFO("mesh '" << mesh << "', " << schedule);
#if defined(HEDDLE_TEST_MPI)  // which may add up in another order where a call is started
      check_equal(beside, plain);
#else
      CHECK(beside.losses == plain.losses);
      CHECK(beside.norms == plain.norms);
      CHECK(beside.weights == plain.weights);
#endif
      for (const counts& c : beside.ranks) CHECK(c.peak == c.predicted);
      // On each rank of more than one stage: the first reductions have begun when the last backward ends, and all have ended before
      // the optimizer's step.
      std::map<std::pair<int, int>, std::vector<hd::event>> steps;
      for (const hd::event& e : beside.events)
        if (e.step >= 0) steps[{e.rank, e.step}].push_back(e);
      CHECK(!steps.empty());
      for (const auto& [at, events] : steps) {
        std::int64_t backward = 0, waited = 0, stepped = 0;
        std::vector<std::int64_t> begun;
        for (const hd::event& e : events) {
          const std::string name = e.name;
          if (e.kind == hd::activity::backward || e.kind == hd::activity::backward_weight)
            backward = std::max(backward, e.end_ns);
          if (name == "reduce gradients") begun.push_back(e.begin_ns);
          if (name == "wait for gradients") waited = e.end_ns;
          if (e.kind == hd::activity::optimizer) stepped = e.begin_ns;
        }
        REQUIRE(begun.size() > 1);
        CHECK(std::count_if(begun.begin(), begun.end(), [&](std::int64_t t) { return t > backward; }) <=
              1 + 2 * tied_on(beside, at.first));
        CHECK(waited > 0);
        CHECK(waited <= stepped);
      }
    };
    using hd::reduce_beside, hd::observe::recorder;
    same(train<0, reduce_beside, recorder>(s), train<0>(s));
    same(train<1, reduce_beside, recorder>(s), train<1>(s));
    same(train<2, reduce_beside, recorder>(s), train<2>(s));
    same(train<3, reduce_beside, recorder>(s), train<3>(s));
  }
}
