// tests/train/offload_test.cpp: training with offloaded activations: the same bits, less memory, errors that change nothing.
#include "activation_stores.hpp"
#include "catch.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/offload_if_told.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <filesystem>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
using namespace activation_stores;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
template <class Activations, class World>
using trainer_of = hd::train::trainer<hd::model::gpt2<double>,
                                      hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<1>, Activations>, World>;
using everything = act::offload<any_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>;
template <std::int64_t Least>
using half_by_half =
    act::offload<any_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<Least>, act::granularity::halves>;
using measured = act::offload<any_store, act::amount::adaptive, act::prefetch::ahead<2>, act::min_bytes<0>>;

using token_source = train_test::random_tokens<12, 61>;

hd::train::options<hd::model::gpt2_config> options(const std::string& store = "", int layers = 4, int steps = 3) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = layers, .heads = 4, .width = 24, .context = 12, .vocabulary = 61};
  o.batch = 8;
  o.microbatches = 4;
  o.steps = steps;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.threads_per_rank = 1;
  if (!store.empty()) o.offload.store.directories = {store};
  o.offload.verify = true;
  return o;
}

struct result {
  std::vector<double> losses;
  std::vector<std::vector<double>> weights, gradients;  // of each rank
  std::vector<act::offload_report> reports;             // of each stage
  std::vector<std::int64_t> kept_bytes;                 // what it would take to keep all
  bool reloads = false;                                 // the table says when a microbatch's activations come back
};

template <class Activations>
result train(const std::string& mesh_text, const std::string& schedule, const std::string& store, int layers = 4,
             int steps = 3, std::int64_t most_waiting_bytes = 0) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const hd::schedule::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), 4));
  result r;
  r.weights.resize(static_cast<std::size_t>(mesh.size()));
  r.gradients.resize(r.weights.size());
  std::vector<std::vector<act::offload_report>> reports(r.weights.size());
  std::vector<std::vector<std::int64_t>> kept_bytes(r.weights.size());
  transport_test::launch(mesh, [&](auto& world) {
    auto o = options(store, layers, steps);
    o.offload.most_waiting_bytes = most_waiting_bytes;
    const auto rank = static_cast<std::size_t>(world.rank());
    trainer_of<Activations, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    while (trainer.steps_done() < steps) {
      const auto step = trainer.compute_gradients(token_source{});
      {
        if (world.rank() == 0) r.losses.push_back(step.loss);
        auto& all = r.gradients[rank];
        for (int k = 0; k < trainer.stages(); ++k) {
          const auto g = trainer.stage(k).gradients();
          all.insert(all.end(), g.begin(), g.end());
        }
      }
      trainer.apply_gradients(step);
    }
    const double loss = trainer.validate(token_source{});
    if (world.rank() == 0) r.losses.push_back(loss);
    if (world.rank() == 0) r.reloads = trainer.plan().table.has(hd::schedule::action_kind::reload);
    for (int k = 0; k < trainer.stages(); ++k) {
      const auto w = trainer.stage(k).weights();
      r.weights[rank].insert(r.weights[rank].end(), w.begin(), w.end());
      if constexpr (!std::is_same_v<Activations, act::keep>) {
        reports[rank].push_back(trainer.stage(k).saved_layers().report());
        kept_bytes[rank].push_back(trainer.plan().storage.slots(trainer.held(k).index) *
                                   trainer.stage(k).saved_layers().bytes_per_slot());
      }
    }
  });
  transport_test::tell(r.losses, 0);
  transport_test::tell(r.reloads, 0);
  transport_test::share(r.weights);
  transport_test::share(r.gradients);
  transport_test::share(reports);
  transport_test::share(kept_bytes);
  for (const auto& of_rank : reports) r.reports.insert(r.reports.end(), of_rank.begin(), of_rank.end());
  for (const auto& of_rank : kept_bytes) r.kept_bytes.insert(r.kept_bytes.end(), of_rank.begin(), of_rank.end());
  return r;
}

}  // namespace

namespace {
// Keeping and offloading train the same bits, and all that was stored came back.
void compare(const char* mesh, const char* schedule, std::initializer_list<const char*> stores) {
  const result keep = train<act::keep>(mesh, schedule, "");
  for (const char* store : stores) {
    INFO(schedule << " on '" << mesh << "', store " << store);
    const result away = train<everything>(mesh, schedule, store);
    CHECK(away.losses == keep.losses);
    CHECK(away.gradients == keep.gradients);
    CHECK(away.weights == keep.weights);
    CHECK_FALSE(keep.reloads);
    CHECK(away.reloads == (std::string(mesh) != "" || std::string(schedule) == "gpipe"));
    std::int64_t stored = 0;
    for (const auto& report : away.reports) {
      const act::cache_counters& c = report.tensors;
      stored += c.stored;
      CHECK(c.stored == c.loaded + c.forwarded);
      CHECK(c.bytes_stored == c.bytes_loaded + c.bytes_forwarded);
      CHECK(c.repeated == 0);
      CHECK(report.store.loads == c.loaded);
      // The write of a tensor that was forwarded meanwhile may still be going on.
      const std::int64_t writes = c.stored - c.cancelled, bytes = c.bytes_stored - c.bytes_cancelled;
      CHECK(report.store.stores <= writes);
      CHECK(writes - report.store.stores <= c.forwarded);
      CHECK((report.store.stores == writes ? report.store.bytes_written == bytes : report.store.bytes_written < bytes));
      CHECK(report.store.cancelled == c.cancelled);
      CHECK(report.store.bytes_read == c.bytes_loaded);
      if (std::string(store) == "instant") CHECK(c.forwarded == 0);
    }
    CHECK(stored > 0);
  }
}
}  // namespace

namespace {
// The model of `options`, as the formulas of memory have it.
struct model_shape {
  static constexpr hd::model::gpt2_config config{.layers = 4, .heads = 4, .width = 24, .context = 12, .vocabulary = 61};
  static constexpr int stages = 1;
  static constexpr std::int64_t samples = 2;
};
}  // namespace

TEST_CASE("halves of blocks are offloaded: the same bits, the bytes of the forecast", "[train][offload][ranks]") {
  const auto forecast = []<class Activations>(std::type_identity<Activations>) {
    return hd::train::language_memory<hd::model::gpt2<double>, model_shape, Activations>{}.offload_bytes(0);
  };
  // Sums of bytes: all that was to be stored, and that.
  const auto same_as_keep = [&]<class Activations>(std::type_identity<Activations>, const char* mesh,
                                                   const char* schedule, const char* store) {
    INFO(schedule << " on '" << mesh << "', store " << store);
    const result keep = train<act::keep>(mesh, schedule, ""), away = train<Activations>(mesh, schedule, store);
    CHECK(away.losses == keep.losses);
    CHECK(away.gradients == keep.gradients);
    CHECK(away.weights == keep.weights);
    CHECK(away.kept_bytes == train<everything>(mesh, schedule, "memory").kept_bytes);
    std::int64_t bytes = 0;
    for (const auto& report : away.reports) {
      CHECK(report.tensors.stored == report.tensors.loaded + report.tensors.forwarded);
      CHECK(report.tensors.repeated == 0);
      bytes += report.tensors.bytes_stored;
    }
    return bytes;
  };
  constexpr std::int64_t rows = 2 * 12, microbatches = 3 * 4;
  constexpr std::type_identity<half_by_half<0>> all;
  // Between what the halves save: 6 and 10 rows of the width, and statistics.
  constexpr std::type_identity<half_by_half<8 * 24 * rows * 8>> second;
  CHECK(forecast(all) == forecast(std::type_identity<everything>{}));
  CHECK(forecast(second) > forecast(all) / 2);
  CHECK(forecast(second) < forecast(all));
  // In order, so that no microbatch's last half stays, as it does where its backward follows at once.
  CHECK(same_as_keep(all, "", "gpipe", "instant") == microbatches * forecast(all));
  CHECK(same_as_keep(second, "", "gpipe", "instant") == microbatches * forecast(second));
  CHECK(same_as_keep(all, "", "1f1b", "file") < microbatches * forecast(all));
  same_as_keep(all, "pp=2", "zb-h1", "memory");
  same_as_keep(all, "dp=2,tp=2", "1f1b", "found");
  same_as_keep(std::type_identity<act::offload_if_told<half_by_half<0>>>{}, "pp=2", "1f1b", "file");
}

TEST_CASE("offloaded activations train the same bits", "[train][offload][ranks]") {
  compare("", "1f1b", {"file", "found"});
  compare("pp=4", "1f1b", {"file", "memory", "instant"});
  compare("pp=2", "zb-v", {"file", "found"});
}

TEST_CASE("offloaded activations train the same bits under any schedule", "[train][offload][ranks][slow]") {
  compare("", "gpipe", {"file", "instant"});
  compare("pp=2", "interleaved:2", {"file", "found", "instant"});
  compare("pp=2,tp=2", "1f1b", {"file", "instant"});
  compare("dp=2,pp=2", "chimera", {"file", "instant"});
  compare("pp=2", "dual-pipe-v", {"file", "instant"});
}

TEST_CASE("activations are offloaded where the options name folders, by one type of trainer",
          "[train][offload][ranks]") {
  using told = act::recompute<act::offload_if_told<everything>>;
  using files =
      act::offload_if_told<act::offload<act::file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;
  const result keep = train<act::keep>("dp=2,pp=2", "zb-h1", ""), none = train<told>("dp=2,pp=2", "zb-h1", ""),
               away = train<told>("dp=2,pp=2", "zb-h1", "file");
  for (const result* r : {&none, &away}) {
    CHECK(r->losses == keep.losses);
    CHECK(r->gradients == keep.gradients);
    CHECK(r->weights == keep.weights);
  }
  CHECK_FALSE(none.reloads);
  CHECK(away.reloads);
  CHECK(none.kept_bytes == away.kept_bytes);
  for (const act::offload_report& r : none.reports) CHECK(r.tensors.stored + r.tensors.kept + r.allocated_bytes == 0);
  for (const act::offload_report& r : away.reports) CHECK(r.tensors.stored > 0);
  // Before the first step.
  CHECK_THROWS_WITH(train<files>("", "1f1b", "/dev/null/no-folder"),
                    Catch::Matchers::Contains("making a file for activations in /dev/null/no-folder failed"));
}

TEST_CASE("what recomputation keeps is offloaded, with the same bits", "[train][offload][ranks]") {
  const result keep = train<act::keep>("pp=4", "1f1b", ""),
               both = train<act::recompute<act::full, everything>>("pp=4", "1f1b", "file"),
               away = train<everything>("pp=4", "1f1b", "file");
  CHECK(both.losses == keep.losses);
  CHECK(both.gradients == keep.gradients);
  CHECK(both.weights == keep.weights);
  const auto total = [](const result& r, std::int64_t act::cache_counters::* what) {
    std::int64_t n = 0;
    for (const auto& report : r.reports) n += report.tensors.*what;
    return n;
  };
  using counters = act::cache_counters;
  CHECK(total(both, &counters::stored) == total(away, &counters::stored));
  CHECK(total(both, &counters::stored) == total(both, &counters::loaded) + total(both, &counters::forwarded));
  // One tensor of a width instead of sixteen.
  CHECK(10 * total(both, &counters::bytes_stored) <= total(away, &counters::bytes_stored));
}

TEST_CASE("a slow store is served from memory, and never read too soon", "[train][offload][ranks]") {
  const result keep = train<act::keep>("pp=2", "1f1b", ""), away = train<everything>("pp=2", "1f1b", "crawling");
  CHECK(away.losses == keep.losses);
  CHECK(away.weights == keep.weights);
  std::int64_t forwarded = 0;
  for (const auto& report : away.reports) forwarded += report.tensors.forwarded;
  CHECK(forwarded > 0);
}

TEST_CASE("a backward that waits for a slow read says so", "[train][offload][ranks]") {
  const result keep = train<act::keep>("pp=2", "1f1b", ""), away = train<everything>("pp=2", "1f1b", "late");
  CHECK(away.losses == keep.losses);
  CHECK(away.gradients == keep.gradients);
  CHECK(away.weights == keep.weights);
  for (const auto& report : away.reports) {
    const act::cache_counters& c = report.tensors;
    CHECK(c.loaded > 0);
    CHECK(c.stalls == c.loaded);
    CHECK(c.stall_seconds >= 0.002 * static_cast<double>(c.stalls));
  }
}

TEST_CASE("a store that cannot keep up costs no more memory than keeping", "[train][offload][ranks]") {
  // 37 ms for each write, a hundred of which a step asks for in some milliseconds.
  constexpr int steps = 5;
  for (const char* mesh : {"", "pp=2"}) {
    const result keep = train<act::keep>(mesh, "1f1b", "", 4, steps),
                 away = train<everything>(mesh, "1f1b", "crawling", 4, steps),
                 adaptive = train<measured>(mesh, "1f1b", "crawling", 4, steps);
    for (const result* r : {&away, &adaptive}) {
      INFO("mesh '" << mesh << "'" << (r == &adaptive ? ", adaptive" : ""));
      CHECK(r->losses == keep.losses);
      CHECK(r->gradients == keep.gradients);
      CHECK(r->weights == keep.weights);
      std::int64_t cancelled = 0;
      for (std::size_t i = 0; i < r->reports.size(); ++i) {
        const act::offload_report& report = r->reports[i];
        const act::cache_counters& c = report.tensors;
        // One tensor that is being written, and whole pages.
        const std::int64_t layer = 16 * 24 * 24 * 8 + 2 * 4096;
        CHECK(report.peak_bytes <= r->kept_bytes[i] + layer + 8 * 4096);
        CHECK(c.forwarded + c.loaded == c.stored);
        CHECK(c.bytes_forwarded + c.bytes_loaded == c.bytes_stored);
        CHECK(report.store.cancelled == c.cancelled);
        CHECK(report.store.stores <= c.stored - c.cancelled);  // the last one may still be written
        CHECK(report.store.stores + 1 >= c.stored - c.cancelled);
        cancelled += c.cancelled;
      }
      CHECK(cancelled > 0);
    }
  }
}

TEST_CASE("a forward that runs ahead of its writes keeps what would wait too long", "[train][offload]") {
  const result keep = train<act::keep>("", "1f1b", "");
  // Nothing may wait; then one layer of a microbatch.
  const result none = train<everything>("", "1f1b", "memory", 4, 3, 1);
  CHECK(none.weights == keep.weights);
  const auto& all = none.reports.at(0);
  CHECK(all.declined >= 3 * 4 * 3);  // steps, microbatches, layers but the last; and of the validation
  CHECK(4 * all.declined == 3 * all.tensors.kept);
  CHECK(all.tensors.stored == 0);
  CHECK(all.offloaded_layers == 3);
  const std::int64_t layer = none.kept_bytes.at(0) / 4;
  const result one = train<everything>("", "1f1b", "crawling", 4, 3, layer);
  CHECK(one.weights == keep.weights);
  const auto& some = one.reports.at(0);
  CHECK(some.declined > 0);
  CHECK(some.tensors.stored > 0);
  CHECK(some.declined + some.tensors.stored == all.declined);
  CHECK(some.tensors.kept == some.declined + all.tensors.kept - all.declined);
}

TEST_CASE("the amount follows the rate of the store", "[train][offload]") {
  const auto mesh = hd::parse_mesh<mesh_type>("");
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 1));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    auto o = options("rated", 4, 100);
    o.batch = 2;
    o.microbatches = 1;
    trainer_of<measured, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    auto& memory = trainer.stage().saved_layers();
    const auto steps = [&](int n, double write, double read) {
      rated_store::write_rate = write;
      rated_store::read_rate = read;
      for (int i = 0; i < n; ++i) trainer.step(token_source{});
      return memory.report();
    };
    auto r = steps(5, 1e15, 1e16);
    CHECK(r.offloaded_layers == 3);
    CHECK(r.bytes_per_second == Approx(1e15));  // the lower one
    CHECK(r.decisions == 1);
    r = steps(4, 0.9e15, 1e16);  // not another rate
    CHECK(r.bytes_per_second == Approx(1e15));
    CHECK(r.decisions == 1);
    r = steps(2, 1e16, 0.5e15);
    CHECK(r.bytes_per_second == Approx(0.5e15));
    CHECK(r.decisions == 2);
    CHECK(r.offloaded_layers == 3);
    // A step at the new rate, then the amount is another.
    r = steps(2, 1.0, 1e15);
    CHECK(r.bytes_per_second == Approx(1.0));
    CHECK(r.offloaded_layers == 0);
    CHECK(r.decisions == 3);
    // Every 16th step tries again; a rate that is as low changes nothing.
    const auto stored = r.tensors.stored;
    r = steps(16, 1.0, 1e15);
    CHECK(r.tensors.stored == stored + 1);  // one layer
    CHECK(r.offloaded_layers == 0);
    r = steps(17, 1e15, 1e15);
    CHECK(r.offloaded_layers == 3);
    CHECK(r.bytes_per_second == Approx(1e15));
    CHECK(r.declined == 0);
  });
}

TEST_CASE("what is not offloaded is what is in flight and three layers", "[train][offload]") {
  // One microbatch at a time of eight layers; the last stays. A store without delay: nothing else is in memory.
  const auto mesh = hd::parse_mesh<mesh_type>("");
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    auto o = options("instant", 8);
    o.microbatches = 1;
    trainer_of<everything, std::remove_reference_t<decltype(world)>> trainer(
        world, o, hd::schedule::tabled(train_test::table_named("1f1b", 1, 1)));
    trainer.compute_gradients(token_source{});
    const auto report = trainer.stage().saved_layers().report();
    const std::int64_t all = trainer.stage().saved_layers().bytes_per_slot(), layer = all / 8;
    CHECK(report.offloaded_layers == 7);
    CHECK(report.tensors.bytes_stored == 7 * layer);
    CHECK(report.tensors.kept == 1);
    CHECK(report.peak_bytes <= all - 7 * layer + 3 * layer + 8 * 4096);  // whole pages
    CHECK(report.peak_bytes <= all * 53 / 100);                          // 47 % less at least
  });
}

TEST_CASE("an error of the store ends the step and changes nothing", "[train][offload]") {
  const std::filesystem::path folder = "heddle_offload_test_save";
  std::filesystem::remove_all(folder);
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 4));
  std::vector<double> expected;
  const auto mesh = hd::parse_mesh<mesh_type>("");
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    trainer_of<act::keep, world_type> whole(world, options(), when);
    for (int i = 0; i < 3; ++i) whole.step(token_source{});
    const auto w = whole.stage().weights();
    expected.assign(w.begin(), w.end());

    struct kind {
      int places, writes, reads;
      const char* says;
    };
    for (const kind& k :
         {kind{30, 999, 999, "storing activations failed at layer"}, kind{999, 15, 999, "activations failed"},
          kind{999, 999, 14, "bringing back activations failed at layer"}}) {
      failing_device::fail_after(k.places, k.writes, k.reads);
      trainer_of<everything, world_type> trainer(world, options("failing"), when);
      std::string text;
      try {
        while (trainer.steps_done() < 3) trainer.step(token_source{});
      } catch (const hd::offload_error& e) {
        text = e.what();
      }
      CHECK_THAT(text, Catch::Contains(k.says));
      CHECK_THAT(text, Catch::Contains("nothing was updated in this step: heddle: "));
      CHECK(trainer.steps_done() < 3);
      // What is left is saved, and a trainer without the store ends where the uninterrupted one did.
      hd::train::save(trainer, folder);
      trainer_of<act::keep, world_type> next(world, options(), when);
      hd::train::resume(next, folder);
      CHECK(next.steps_done() == trainer.steps_done());
      while (next.steps_done() < 3) next.step(token_source{});
      const auto got = next.stage().weights();
      CHECK(std::vector<double>(got.begin(), got.end()) == expected);
      std::filesystem::remove_all(folder);
    }
  });
}

TEST_CASE("the amount is decided in the third step, by what was measured or told", "[train][offload]") {
  const auto mesh = hd::parse_mesh<mesh_type>("");
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 4));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    for (const double rate : {1.0, 1e15}) {  // bytes per second: nothing fits, all does
      auto o = options("memory");
      o.offload.bytes_per_second = rate;
      trainer_of<measured, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      auto& memory = trainer.stage().saved_layers();
      trainer.step(token_source{});
      trainer.step(token_source{});
      CHECK(memory.report().offloaded_layers == 3);  // all but the last, whose backward follows
      CHECK(memory.report().bytes_per_second == 0);
      const auto before = memory.report().tensors;
      trainer.step(token_source{});
      CHECK(memory.report().bytes_per_second == rate);
      CHECK(memory.report().offloaded_layers == (rate == 1.0 ? 0 : 3));
      CHECK(memory.report().tensors.stored - before.stored == (rate == 1.0 ? 0 : 12));
    }
    // Measured: some rate.
    trainer_of<measured, std::remove_reference_t<decltype(world)>> trainer(world, options("memory"), when);
    for (int i = 0; i < 3; ++i) trainer.step(token_source{});
    CHECK(trainer.stage().saved_layers().report().bytes_per_second > 0);
  });
}
