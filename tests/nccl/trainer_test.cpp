// A GPT-2 trains over the stand-in for NCCL as over threads, and NCCL is given tensors only; what travels between stages in
// memory that the host may not touch goes in the order of queues.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/observers.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/tensor/cuda/device_times.hpp>
#include <heddle/tensor/sum_among_in_order.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "../cuda/emulated_launcher.hpp"
#include "../train/random_tokens.hpp"
#include "catch.hpp"
#include "double.hpp"

namespace {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr int context = 6, words = 20, steps = 3;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
using watcher = hd::observers<hd::observe::recorder, hd::cuda_device_times<hd::observe::recorder>>;
using eight_bits = hd::precision<hd::products_in<hd::float8>>;
using rows_of_eight_bits = hd::precision<hd::products_in<hd::float8_rows>>;
using samples = train_test::random_tokens<context, words>;

struct setup {
  std::string mesh;
  int microbatches = 2;
  std::string schedule = "1f1b";
  int layers = 2, width = 8;
  bool poisoned = false;
};

struct outcome {
  std::vector<double> numbers;  // loss and norm of each step, then the loss on held-out samples
  std::vector<std::int32_t> text;
  std::int64_t host_bytes = 0;   // copied between device and host in all steps but the first, by all ranks
  std::int64_t collectives = 0;  // that layers called, as an observer was told
  bool timed = false;            // the device gave each action and message of rank 0 times, those of the host or later
  std::string error;
};

// With zero<1>, if the policies name none.
template <class... Policies>
struct strategy_of {
  using type = hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, Policies...>;
};
template <class... Policies>
  requires(std::is_same_v<typename Policies::kind, hd::zero_kind> || ...)
struct strategy_of<Policies...> {
  using type = hd::strategy<mesh_type, hd::schedule::named, Policies...>;
};

bool is_message(const hd::event& e) {
  return e.kind == hd::activity::send || e.kind == hd::activity::recv;
}

// Whether both tell of the same actions, in the same order, and of the same messages; none began on the device before the host gave it.
bool as_timed(std::span<const hd::event> host, std::span<const hd::event> all_of_device) {
  constexpr std::int64_t clocks_differ =
      500'000'000;  // the host notes when it began behind the device's event, perhaps late
  std::vector<hd::event> device;
  std::map<std::pair<std::uint64_t, hd::activity>, int> messages;
  for (const hd::event& e : all_of_device) {
    if (!is_message(e))
      device.push_back(e);
    else if (e.bytes <= 0 || e.end_ns < e.begin_ns || ++messages[{e.flow, e.kind}] != 1)
      return false;
  }
  for (const hd::event& e : host)
    if (is_message(e) && e.flow != 0 && --messages[{e.flow, e.kind}] != 0) return false;
  if (!std::all_of(messages.begin(), messages.end(), [](const auto& m) { return m.second == 0; })) return false;
  std::size_t n = 0;
  for (const hd::event& e : host) {
    if (is_message(e)) continue;
    if (n == device.size()) return false;
    const hd::event& d = device[n++];
    if (d.kind != e.kind || d.step != e.step || d.microbatch != e.microbatch || std::string(d.name) != e.name ||
        d.end_ns < d.begin_ns || d.begin_ns < e.begin_ns - clocks_differ)
      return false;
  }
  return n == device.size() && n > 0;
}

template <class Transport, class... Policies>
outcome train(const setup& s) {
  constexpr bool on_checked = (std::is_same_v<Policies, checked> || ...);
  constexpr bool on_device = on_checked || (std::is_same_v<Policies, emulated> || ...);
  constexpr bool watched = (std::is_same_v<Policies, watcher> || ...);
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = s.layers, .heads = 2, .width = s.width, .context = context, .vocabulary = words};
  o.batch = 4;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  std::atomic<std::int64_t> host_bytes = 0;
  try {
    hd::launch<Transport>(mesh, launch, [&](auto& world) {
      // Where threads share a device, logits are made for seven words of a rank at a time.
      constexpr bool chunked = std::is_same_v<Transport, hd::threads> && on_device;
      constexpr bool in_float8 =
          ((std::is_same_v<Policies, eight_bits> || std::is_same_v<Policies, rows_of_eight_bits>) || ...);
      using plain = hd::model::gpt2<std::conditional_t<in_float8, float, double>>;
      using model = std::conditional_t<chunked, hd::model::with_chunked_loss<plain, 7>, plain>;
      using trainer_type =
          hd::train::trainer<model, typename strategy_of<Policies...>::type, std::remove_reference_t<decltype(world)>>;
      hd::observe::recorder recorder(world.size()), by_device(world.size());
      hd::cuda_device_times times(by_device, world.size());
      watcher watch(recorder, times);
      trainer_type trainer = [&] {
        if constexpr (watched)
          return trainer_type(world, o, watch);
        else
          return trainer_type(world, o);
      }();
      if constexpr (on_checked) {
        // The stand-in's devices are those of a thread: communicators connect on the rank's own, before the queue's uses them.
        for (auto* group : {&trainer.ranks().template along_if<hd::dp>(), &trainer.ranks().template along_if<hd::tp>()})
          group->native();
      } else if constexpr (!on_device && !in_float8) {
        if (s.poisoned && world.rank() == world.size() - 1)
          trainer.stage().weights()[0] = std::numeric_limits<double>::quiet_NaN();
      }
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(samples{}, [&](const hd::train::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
        if constexpr (on_checked) {
          const std::int64_t so_far = trainer.backend().queue().bytes_copied_with_host();
          if (report.step == 0) host_bytes -= so_far;
          if (report.step + 1 == steps) host_bytes += so_far;
        }
      });
      note(trainer.validate(samples{}));
      const std::vector<std::int32_t> prompt{1, 2, 3};
      const auto text = hd::train::sample(trainer, prompt, {.tokens = 4, .temperature = 0.8, .seed = 5});
      if (world.rank() == 0) all.text = text;
      for (const hd::event& e : recorder.events(world.rank()))
        if (world.rank() == 0 && e.kind == hd::activity::collective && e.bytes > 0 &&
            e.name == std::string("all_reduce"))
          ++all.collectives;
      times.finish();
      if (world.rank() == 0 && watched)
        all.timed = times.dropped() == 0 && as_timed(recorder.events(0), by_device.events(0));
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  all.host_bytes = host_bytes;
  return all;
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace

namespace {

// Tensors are of doubles, the smallest with a number per row. What splits communicators is the transport's own, and so are `sizes`: numbers of elements that ranks
// compare before they register memory.
void check_transfers(int sizes = 0) {
  int splits = 0, tensors = 0;
  std::map<std::string, int> others;
  for (const auto& t : nccl_double::transfers()) {
    if (t.function == "ncclAllGather" && t.type == ncclInt64 && t.count == 2)
      ++splits;
    else if (t.type == ncclFloat64 && t.count >= context)
      ++tensors;
    else
      ++others[t.function + " of " + std::to_string(t.count) + " of type " + std::to_string(t.type)];
  }
  for (const auto& [what, n] : others) {
    INFO(n << " times " << what);
    CHECK(false);
  }
  CHECK(tensors > 0);
  CHECK(splits == nccl_double::calls()["ncclCommSplit"] + sizes);
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(nccl_double::open_resources() == 0);
}

}  // namespace

TEST_CASE("a GPT-2 trains over the stand-in for NCCL as over threads; its scalars pass NCCL by", "[nccl][train]") {
  for (const char* mesh : {"dp=2", "tp=2", "pp=2", "dp=2,tp=2", "dp=2,pp=2", "dp=2,pp=2,tp=2"}) {
    for (const int m : {1, 2}) {
      CAPTURE(mesh, m);
      const outcome expected = train<hd::threads>({mesh, m});
      REQUIRE(expected.error == "");
      REQUIRE(expected.numbers.size() == 2 * steps + 1);
      nccl_double::reset();
      const outcome got = train<hd::nccl_complete>({mesh, m});
      CHECK(got.error == "");
      CHECK(largest_relative(got.numbers, expected.numbers) < 1e-12);
      CHECK(got.text == expected.text);
      check_transfers();
      nccl_double::reset();
      const outcome ahead = train<hd::nccl_complete, hd::post_validation>({mesh, m});
      CHECK(ahead.error == "");
      CHECK(largest_relative(ahead.numbers, expected.numbers) < 1e-9);  // steps are taken back and done again
      check_transfers();
    }
  }
  nccl_double::reset();
}

TEST_CASE("a GPT-2 in memory that the host may not touch trains over the stand-in for NCCL with the bits of the host's",
          "[nccl][train][memory]") {
  for (const setup& s :
       {setup{"dp=2"}, setup{"tp=2"}, setup{"dp=3,tp=2"}, setup{"pp=2", 1}, setup{"pp=2", 4}, setup{"pp=2,tp=2", 4},
        setup{"dp=2,pp=2", 2, "zb-h1"}, setup{"pp=3", 4, "1f1b", 5}, setup{"pp=3", 4, "zb-h1", 3},
        setup{"pp=2,tp=2", 4, "interleaved", 4}, setup{"pp=2", 4, "zb-v", 4}, setup{"dp=2,pp=2", 2, "chimera", 3}}) {
    CAPTURE(s.mesh, s.schedule, s.microbatches, s.layers);
    const outcome expected = train<hd::nccl_complete>(s);
    REQUIRE(expected.error == "");
    nccl_double::reset();
    const outcome got = train<hd::nccl_complete, checked>(s);
    CHECK(got.error == "");
    CHECK(got.numbers == expected.numbers);
    CHECK(got.text == expected.text);
    check_transfers();
    nccl_double::reset();
    if (s.mesh.find("dp") == std::string::npos) continue;
    const outcome shares = train<hd::nccl_complete, checked, hd::zero<3>>(s);
    CHECK(shares.error == "");
    CHECK(shares.numbers == expected.numbers);
    CHECK(shares.text == expected.text);
    check_transfers();
    nccl_double::reset();
  }
}

TEST_CASE("a GPT-2 trains on the CUDA backend over the stand-ins for CUDA and NCCL as on the host",
          "[nccl][cuda][train][memory]") {
  for (const setup& s : {setup{"dp=2"}, setup{"tp=2"}, setup{"pp=2", 4}, setup{"dp=2,pp=2", 2, "zb-h1"},
                         setup{"pp=2,tp=2", 4, "interleaved", 4}, setup{"dp=2,pp=2,tp=2"}}) {
    CAPTURE(s.mesh, s.schedule, s.microbatches, s.layers);
    nccl_double::reset();
    const outcome expected = train<hd::nccl_complete>(s);
    REQUIRE(expected.error == "");
    nccl_double::reset();
    const outcome got = train<hd::nccl, emulated>(s);
    CHECK(got.error == "");
    CHECK(largest_relative(got.numbers, expected.numbers) < 1e-10);
    CHECK(got.text == expected.text);
    check_transfers();
    nccl_double::reset();
    const outcome ahead = train<hd::nccl, emulated, hd::post_validation>(s);  // takes steps back, and drops messages
    CHECK(ahead.error == "");
    CHECK(largest_relative(ahead.numbers, expected.numbers) < 1e-9);
    check_transfers();
    if (s.mesh.find("dp") == std::string::npos) continue;
    nccl_double::reset();
    const outcome shares = train<hd::nccl_complete, emulated, hd::zero<3>, watcher>(s);
    CHECK(shares.error == "");
    CHECK(largest_relative(shares.numbers, expected.numbers) < 1e-10);
    CHECK((shares.collectives > 0) == (s.mesh.find("tp") != std::string::npos));
    CHECK(shares.timed);
    check_transfers();
  }
  nccl_double::reset();
}

TEST_CASE("equal shares of a step are one call of NCCL each way, others a group of one for each rank",
          "[nccl][cuda][train]") {
  const auto check = []<class Zero>(Zero) {
    for (const setup& s : {setup{"dp=2"}, setup{.mesh = "dp=3", .layers = 1}}) {  // of 1968 and of 1096 elements
      CAPTURE(s.mesh, Zero::stage);
      const bool equal = s.mesh == "dp=2";
      const int p = equal ? 2 : 3;
      nccl_double::reset();
      const outcome expected = train<hd::nccl_complete>(s);
      REQUIRE(expected.error == "");
      nccl_double::reset();
      const outcome got = train<hd::nccl_complete, emulated, Zero>(s);
      CHECK(got.error == "");
      CHECK(largest_relative(got.numbers, expected.numbers) < 1e-10);
      std::map<std::string, int> shares;
      for (const auto& t : nccl_double::transfers())
        if (t.type == ncclFloat64) ++shares[t.function];
      // A gather behind each step; of shares of the weights one before each step, and for validation and each of four tokens.
      const int gathers = Zero::stage < 3 ? steps : steps + 5;
      CHECK(shares[equal ? "ncclReduceScatter" : "ncclReduce"] == p * steps * (equal ? 1 : p));
      CHECK(shares[equal ? "ncclReduce" : "ncclReduceScatter"] == 0);
      CHECK(shares[equal ? "ncclAllGather" : "ncclBroadcast"] == p * gathers * (equal ? 1 : p));
      CHECK(shares[equal ? "ncclBroadcast" : "ncclAllGather"] == 0);
      check_transfers();
    }
  };
  check(hd::zero<1>{});
  check(hd::zero<2>{});
  check(hd::zero<3>{});
  nccl_double::reset();
}

TEST_CASE("gradients lie in windows where the transport asks for it, registered once for each stage of a rank",
          "[nccl][cuda][train][memory]") {
  using in_windows = hd::basic_nccl<hd::nccl_settings{.windows = true}>;
  for (const setup& s : {setup{"dp=2"}, setup{"dp=2,pp=2", 2, "chimera", 3}, setup{"pp=2", 4}}) {
    CAPTURE(s.mesh, s.schedule);
    nccl_double::reset();
    const outcome expected = train<hd::nccl_complete>(s);
    REQUIRE(expected.error == "");
    nccl_double::reset();
    const outcome got = train<in_windows, emulated, hd::zero<0>>(s);
    CHECK(got.error == "");
    CHECK(largest_relative(got.numbers, expected.numbers) < 1e-10);
    CHECK(got.text == expected.text);
    int sums = 0, in_window = 0;
    for (const auto& t : nccl_double::transfers())
      if (t.function == "ncclAllReduce") {
        ++sums;
        in_window += t.in_windows;
      }
    auto calls = nccl_double::calls();
    const int stages = s.mesh == "dp=2"   ? 2
                       : s.mesh == "pp=2" ? 0
                                          : 4 * 2;  // of all ranks that have somebody to sum with
    CHECK(sums >= steps * stages);
    CHECK(in_window == sums);
    CHECK(calls["ncclCommWindowRegister"] == stages);
    CHECK(calls["ncclCommWindowDeregister"] == stages);
    CHECK(calls["ncclMemAlloc"] == stages);
    check_transfers(stages);
  }
  nccl_double::reset();
}

TEST_CASE("a GPT-2 trains on the CUDA backend over threads that share a device", "[cuda][threads][train][ranks]") {
  using end = hd::compute::detail::on_cuda::product_end;
  const auto made = [](end e) { return cuda_double::ended_products()[static_cast<std::size_t>(e)].load(); };
  for (auto& count : cuda_double::ended_products()) count = 0;
  for (const setup& s : {setup{"dp=2", 2}, setup{"tp=2", 2}, setup{"pp=2", 4, "1f1b"},
                         setup{"dp=2,pp=2", 2, "chimera", 3}, setup{"dp=2,pp=2,tp=2", 2, "1f1b"}}) {
    CAPTURE(s.mesh, s.schedule);
    const outcome expected = train<hd::threads>(s), got = train<hd::threads, emulated>(s);
    CHECK(expected.error == "");
    CHECK(got.error == "");
    CHECK(largest_relative(got.numbers, expected.numbers) < 1e-10);
    CHECK(got.text == expected.text);
    // Of a block queries, keys and values have their bias with the product; where nothing splits layers, both sums of it, too.
    if (s.mesh == "dp=2") CHECK(made(end::bias) == 3 * made(end::gelu_of_bias));
  }
  for (const char* mesh : {"dp=4", "dp=2,tp=2"}) {  // with somebody who observes
    CAPTURE(mesh);
    const setup shared{mesh, 2};
    const outcome expected = train<hd::threads>(shared),
                  got = train<hd::threads, emulated, hd::zero<3>, watcher>(shared);
    CHECK(got.error == "");
    CHECK(largest_relative(got.numbers, expected.numbers) < 1e-10);
    CHECK((got.collectives > 0) == (mesh != std::string("dp=4")));
    CHECK(got.timed);
  }
  for (const end e : {end::bias, end::gelu_of_bias, end::gelu_derivative, end::sums_of_right}) {
    CAPTURE(static_cast<int>(e));
    CHECK(made(e) > 0);  // by epilogues of the library
  }
}

TEMPLATE_TEST_CASE("products of operands of 8 bits train on the CUDA backend as on the host",
                   "[cuda][threads][train][float8]", eight_bits, rows_of_eight_bits) {
  for (const char* mesh : {"dp=2", "tp=2", "pp=2"}) {
    CAPTURE(mesh);
    cuda_double::float8_products() = 0;
    const outcome expected = train<hd::threads, TestType>({mesh}), exact = train<hd::threads>({mesh});
    CHECK(expected.error == "");
    CHECK(cuda_double::float8_products() == 0);
    const outcome got = train<hd::threads, emulated, TestType>({mesh});
    CHECK(got.error == "");
    CHECK(cuda_double::float8_products() > 0);
    // Sums in another order bring some numbers to the other side of what is rounded to 8 bits.
    CHECK(largest_relative(got.numbers, expected.numbers) < 2e-3);
    CHECK(largest_relative(got.numbers, exact.numbers) > 0);
  }
}

// What a step copies between device and host are samples, losses and norms: none of it grows with the width of the model, as
// the tensors between stages and gradients do.
TEST_CASE("neither tensors between stages nor gradients go through the host over the stand-in for NCCL",
          "[nccl][train][memory]") {
  for (const setup& s : {setup{"pp=2", 4, "1f1b"}, setup{"dp=2,pp=2", 2, "chimera", 3}}) {
    CAPTURE(s.mesh, s.schedule);
    setup wide = s;
    wide.width *= 2;
    const outcome narrow = train<hd::nccl_complete, checked>(s), twice = train<hd::nccl_complete, checked>(wide);
    CHECK(narrow.error == "");
    CHECK(twice.error == "");
    CHECK(narrow.host_bytes > 0);
    CHECK(narrow.host_bytes == twice.host_bytes);
    CHECK(narrow.numbers != twice.numbers);
  }
  nccl_double::reset();
}

// A stage on checked memory: y = weight * x in the order of the queue. Weights and inputs are such that every sum is exact.
namespace {

using hd::testing::checked_memory;

struct numbers {
  int samples = 0;
  double value = 0;  // what the first part makes its tensor of
};

struct queued_stage {
  using scalar = double;
  using space = checked_memory;
  using in_row = hd::row_view<const double, space>;
  using out_row = hd::row_view<double, space>;
  int part, parts;
  checked_memory::queue* order;
  std::vector<double> saved_x, saved_dy;  // touched by the queue only, as the sum is
  double gradient = 0;

  queued_stage(int x, int n, int slots, checked_memory::queue& q)
      : part(x), parts(n), order(&q), saved_x(3 * static_cast<std::size_t>(slots)), saved_dy(saved_x) {}
  static double weight_of(int part) { return 1.0 + 0.5 * part; }
  checked_memory::queue& queue() const { return *order; }
  std::int64_t boundary_elements(std::int64_t samples) const { return samples; }
  void forward(int slot, const numbers& b, in_row in, out_row out) {
    order->run(
        [this, slot, b](auto from, auto to) {
          for (int i = 0; i < b.samples; ++i) {
            const double x = part == 0 ? b.value + i : from(i);
            saved_x[3 * static_cast<std::size_t>(slot) + static_cast<std::size_t>(i)] = x;
            if (part + 1 < parts) to(i) = weight_of(part) * x;
          }
        },
        in, out);
  }
  void backward_input(int slot, const numbers& b, in_row dout, out_row din) {
    order->run(
        [this, slot, b](auto from, auto to) {
          for (int i = 0; i < b.samples; ++i) {
            const double dy = part + 1 == parts ? 1.0 : from(i);
            saved_dy[3 * static_cast<std::size_t>(slot) + static_cast<std::size_t>(i)] = dy;
            if (part > 0) to(i) = weight_of(part) * dy;
          }
        },
        dout, din);
  }
  void backward_weight(int slot, const numbers& b) {
    order->run([this, slot, b] {
      for (std::size_t i = 0; i < static_cast<std::size_t>(b.samples); ++i)
        gradient += saved_x[3 * static_cast<std::size_t>(slot) + i] * saved_dy[3 * static_cast<std::size_t>(slot) + i];
    });
  }
  void backward(int slot, const numbers& b, in_row dout, out_row din) {
    backward_input(slot, b, dout, din);
    backward_weight(slot, b);
  }
};

// Says no to the first warm-up: it is done again.
struct hesitating {
  std::vector<queued_stage>& stages;
  int asked = 0;
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
  bool validate() { return ++asked > 1; }
  void redo() {}
};

// The gradients of all parts.
std::vector<double> run_table(hd::schedule::table_view table, int sends_in_flight) {
  const hd::schedule::plan plan = hd::schedule::make_plan(table, sends_in_flight);
  const hd::schedule::plan_view view = plan;
  std::vector<numbers> batches;
  for (int i = 0; i < table.microbatches(); ++i) batches.push_back({1 + i % 3, 1.0 + i});
  std::vector<double> gradients(static_cast<std::size_t>(table.parts()));
  std::mutex guard;
  std::int64_t sent = 0;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  hd::launch<hd::nccl_complete>(hd::mesh<hd::axis<pp>>(table.ranks()), launch, [&](auto& world) {
    auto& pipe = world.template along<pp>();
    checked_memory::queue queue;
    std::vector<queued_stage> mine;
    mine.reserve(static_cast<std::size_t>(table.stages()));
    std::vector<queued_stage*> held(static_cast<std::size_t>(table.stages()), nullptr);
    for (int s = 0; s < table.stages(); ++s)
      if (table.rank_of(s) == pipe.rank())
        held[static_cast<std::size_t>(s)] =
            &mine.emplace_back(table.part_of(s), table.parts(), view.storage.slots(s), queue);
    hd::null_observer nobody;
    hd::model::executor<queued_stage, std::remove_reference_t<decltype(pipe)>> executor(view, held, pipe, 3, nobody);
    for (int step = 0; step < 2; ++step) executor.run(std::span<const numbers>(batches), step, hesitating{mine});
    queue.wait();
    const std::lock_guard lock(guard);
    for (const queued_stage& s : mine) gradients[static_cast<std::size_t>(s.part)] += s.gradient / 2;
    sent += executor.counters().sends;
  });
  CHECK(sent == hd::schedule::sends(view.table));
  return gradients;
}

}  // namespace

TEST_CASE("an executor sends in the order of queues under every schedule, with messages that wait for their receives",
          "[nccl][memory]") {
  nccl_double::reset();
  for (const auto name : hd::schedule::named::names) {
    for (const int ranks : {2, 4}) {
      const int m = 8;
      const hd::schedule::named when(name, m);
      const hd::schedule::action_table table = hd::schedule::make_table(when, ranks);
      CAPTURE(name, ranks);
      std::vector<double> expected(static_cast<std::size_t>(table.view().parts()));
      for (int i = 0; i < m; ++i)
        for (int e = 0; e < 1 + i % 3; ++e) {
          double all = 1.0 + i + e;  // input times all weights
          for (std::size_t x = 0; x < expected.size(); ++x) all *= queued_stage::weight_of(static_cast<int>(x));
          for (std::size_t x = 0; x < expected.size(); ++x)
            expected[x] += all / queued_stage::weight_of(static_cast<int>(x));
        }
      for (const int sends_in_flight : {1, 3}) {
        const std::vector<double> got = run_table(table, sends_in_flight);
        for (std::size_t x = 0; x < expected.size(); ++x) CHECK(got[x] == Approx(expected[x]).epsilon(1e-12));
      }
    }
  }
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(nccl_double::open_resources() == 0);
  nccl_double::reset();
}

TEST_CASE("messages between stages come after their buffers are there, and before these are given back",
          "[nccl][cuda][memory]") {
  nccl_double::reset();
  std::atomic<int> right = 0;
  constexpr std::int64_t elements = 1000;
  hd::launch<hd::nccl>(hd::mesh<hd::axis<pp>>{2}, {}, [&](auto& world) {
    auto& pipe = world.template along<pp>();
    const auto late = [](hd::cuda_memory::queue& q) {
      cuda_double::enqueue(q.stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    };
    hd::cuda_memory::queue queue;
    {
      hd::model::boundary_messages<float, hd::cuda_memory, std::remove_reference_t<decltype(pipe)>> messages;
      if (pipe.rank() == 1) late(queue);  // as a stage that is still being made
      messages.allocate(&queue, 1, elements, pipe, 1);
      std::vector<float> sent(elements, 7.0f), got(elements);
      if (pipe.rank() == 0) {
        queue.copy(sent, messages.row(0, elements));
        messages.after_compute(-1, 0);
        messages.send(0, elements, 1, 0);
        late(queue);
        messages.after_compute(0, -1);
        messages.send(0, elements, 1, 0);
      } else {
        messages.receive(0, elements, 0, 0);
        messages.before_compute(0);
        queue.copy(messages.row(0, elements), got);
        messages.drop(elements, 0, 0);  // its memory is given back when it is there, 50 ms later
        queue.wait();
        right += got == sent ? 1 : 0;
      }
      messages.finish();
    }
    queue.wait();
    ++right;
  });
  CHECK(right == 3);
  CHECK(nccl_double::open_resources() == 0);
  nccl_double::reset();
}

TEST_CASE("a sum among ranks in the order of a queue is added in the order of the ranks", "[nccl][memory]") {
  constexpr int elements = 11;
  const std::vector<std::vector<int>> groups{{0, 1}, {2, 0, 3}, {3, 1, 2, 0}};
  const auto value = [](int rank, int i) { return 1.0 / (1 + rank) + std::pow(10.0, (i * 7 + rank * 5) % 17 - 8); };
  std::mutex guard;
  int summed = 0, wrong = 0;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  hd::launch<hd::nccl_complete>(hd::mesh<hd::axis<pp>>(4), launch, [&](auto& world) {
    auto& pipe = world.template along<pp>();
    pipe.native();
    checked_memory::queue queue;
    for (const auto& ranks : groups)
      for (const int room : {2, 11}) {
        if (std::find(ranks.begin(), ranks.end(), pipe.rank()) == ranks.end()) continue;
        std::vector<double> mine(elements), expected(elements), got(elements);
        for (int i = 0; i < elements; ++i) {
          const auto at = static_cast<std::size_t>(i);
          mine[at] = value(pipe.rank(), i);
          for (const int r : ranks) expected[at] = r == ranks[0] ? value(r, i) : expected[at] + value(r, i);
        }
        hd::buffer<double, checked_memory> row(queue, elements, "row");
        hd::buffer<double, checked_memory> scratch(queue, room * (static_cast<int>(ranks.size()) - 1), "scratch");
        queue.copy(mine, row);
        hd::sum_among(queue, pipe, std::span<const int>(ranks), hd::row_at<checked_memory>(row.address(), elements),
                      hd::row_at<checked_memory>(scratch.address(), static_cast<std::int64_t>(scratch.size())), 5,
                      [&](auto a, auto b, auto to) {
                        queue.run(
                            [](auto x, auto y, auto sum) {
                              for (std::int64_t i = 0; i < sum.size(); ++i) sum(i) = x(i) + y(i);
                            },
                            a, b, to);
                      });
        queue.copy(row, got);
        queue.wait();
        const std::lock_guard lock(guard);
        ++summed;
        wrong += got != expected;
      }
  });
  CHECK(summed == 18);
  CHECK(wrong == 0);
  nccl_double::reset();
}

TEST_CASE("ranks over the stand-in for NCCL agree where a NaN came from, on the control plane", "[nccl][train]") {
  const outcome expected = train<hd::threads>({.mesh = "dp=2,tp=2", .microbatches = 1, .poisoned = true});
  nccl_double::reset();
  const outcome got = train<hd::nccl_complete>({.mesh = "dp=2,tp=2", .microbatches = 1, .poisoned = true});
  INFO(got.error);
  CHECK(got.error.find("was not finite before the step, rank 3") != std::string::npos);
  CHECK(got.error.substr(got.error.find("heddle")) == expected.error.substr(expected.error.find("heddle")));
  check_transfers();
  nccl_double::reset();
}
