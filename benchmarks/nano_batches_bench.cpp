// Nano-batches on this machine: a table of how compute, memory and network slow each other down on the cores of a rank, as text that
// `sim::parse_share_table` reads; then steps of a Llama on tp2, whole and on two lanes, by the plan that the planner makes of that table and of
// measured operations: once with links as slow as the products, once with links that cost nothing.
// Usage: nano_batches_bench [rounds = 9] [file of the table: written]
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/in_turns.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/nano_runner.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/sim/lanes.hpp>
#include HEDDLE_GEMM_HEADER

#include "read_bandwidth.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace cp = heddle::compute;
namespace inf = heddle::infer;
namespace md = heddle::model;
namespace plan = heddle::plan;
namespace sim = heddle::sim;

namespace {

using clock_type = std::chrono::steady_clock;
constexpr int parts = 2;  // of the model, and lanes
constexpr md::llama_config config{
    .layers = 6, .heads = 8, .kv_heads = 4, .width = 512, .ffn = 1408, .context = 512, .vocabulary = 1024};
constexpr std::int64_t block_rows = 16, sequences = 16, chunk = 32, before = 96, step_rows = sequences * chunk;

double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}
// The thread runs on the cores of one rank of the model, which its lanes share.
void use_cores_of(int part) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency()), each = (std::max)(1, cores / parts);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int c = 0; c < each; ++c) CPU_SET(static_cast<unsigned>((part * each + c) % cores), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// At a real-time priority whoever wakes up would wait for the other's slice of 100 ms: the thread goes first, as it does without one.
void go_first() {
  sched_param p{};
  sched_getparam(0, &p);
  if (const int how = sched_getscheduler(0); how == SCHED_RR || how == SCHED_FIFO) {
    ++p.sched_priority;
    sched_setscheduler(0, how, &p);
  }
}

// ---- links ------------------------------------------------------------------------------------------------------------
// What leaves a rank of the model goes one message after the other, whichever lane sends it.
struct link {
  std::mutex mutex;
  clock_type::time_point free{};
};
std::array<link, parts> links;
std::atomic<double> bytes_per_second{0};  // 0: no time

void carry(int part, double bytes) {
  if (bytes_per_second == 0) return;
  clock_type::time_point end;
  {
    link& l = links[static_cast<std::size_t>(part)];
    const std::lock_guard lock(l.mutex);
    end = (std::max)(l.free, clock_type::now()) +
          std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(bytes / bytes_per_second));
    l.free = end;
  }
  std::this_thread::sleep_until(end);
}
// Threads whose sums over ranks take as long as on slow links, by the bytes of a ring.
struct slow_threads {
  class communicator : public hd::threads_communicator {
   public:
    using threads_communicator::all_reduce;
    communicator split(int color, int key) { return communicator(threads_communicator::split(color, key)); }
    explicit communicator(hd::threads_communicator ranks) : threads_communicator(std::move(ranks)) {}
    template <class X, class Op>
    void all_reduce(X&& x, Op op) {
      threads_communicator::all_reduce(x, op);
      carry(world_rank(rank()) % parts, 2.0 * (size() - 1) / size() * static_cast<double>(std::span(x).size_bytes()));
    }
  };
  using control_communicator = hd::threads_communicator;
  class context : public hd::threads::context {
   public:
    explicit context(hd::threads::context of) : hd::threads::context(std::move(of)) {}
    communicator group(const std::string& name, const std::vector<int>& members, int index) const {
      return communicator(hd::threads::context::group(name, members, index));
    }
    control_communicator control(const std::string& name, const std::vector<int>& members, int index) const {
      return hd::threads::context::group(name, members, index);
    }
  };
  template <hd::mesh_like Mesh, class Body>
  static void run(const Mesh& mesh, const hd::launch_options& options, int, char**, Body& body) {
    const auto state = hd::detail::make_world_state(mesh.size(), options);
    const auto rank_main = [&](int rank) {
      hd::world<slow_threads, Mesh> here(mesh, rank, context({state, rank}));
      body(here);
    };
    hd::detail::run_ranks(*state, options, {&rank_main, [](const void* main, int rank) {
                                              (*static_cast<decltype(&rank_main)>(main))(rank);
                                            }});
  }
};

// ---- the table --------------------------------------------------------------------------------------------------------
// A kernel that is called again and again by one thread, for a part of its time.
class burst {
 public:
  explicit burst(sim::lane what) : what_(what) {}
  void operator()() {
    if (what_ == sim::lane::network) {  // the copies of a message, and the wait for the link
      std::copy(from_.begin(), from_.end(), to_.begin());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    } else {  // a product of many rows, or of one with each matrix of a cache that is larger than the processor's
      const bool many = what_ == sim::lane::compute;
      const std::int64_t rows = many ? 128 : 1;
      for (int i = 0; i < (many ? 1 : 4); ++i) {
        const float* b = from_.data() + (many ? 0 : (at_++ % 64) * size * size);
        cp::matmul<cp::transpose::no, cp::transpose::yes>(
            kernels_, hd::matrix_view<const float>(a_.data(), hd::dynamic_shape<2>(rows, size)),
            hd::matrix_view<const float>(b, hd::dynamic_shape<2>(size, size)),
            hd::matrix_view<float>(c_.data(), hd::dynamic_shape<2>(rows, size)));
      }
    }
  }

 private:
  static constexpr std::int64_t size = 512;
  sim::lane what_;
  cp::host<HEDDLE_GEMM> kernels_{1};
  std::vector<float> a_ = std::vector<float>(128 * size, 0.5f), c_ = a_;
  std::vector<float> from_ = std::vector<float>(static_cast<std::size_t>(what_ == sim::lane::memory ? 64 * size * size
                                                                         : what_ == sim::lane::compute ? size * size
                                                                                                       : 64 * size),
                                                0.25f);
  std::vector<float> to_ = std::vector<float>(what_ == sim::lane::network ? from_.size() : 0);
  std::int64_t at_ = 0;
};

// Calls a second of products and of the other kernel, side by side on the cores of a rank; the other rests so that it runs for `duty` of its time.
std::pair<double, double> rates(bool products, sim::lane other, double duty) {
  std::atomic<bool> stop{false};
  std::array<double, 2> found{};
  const auto thread_of = [&](std::size_t i, sim::lane what, double part) {
    return std::thread([&, i, what, part] {
      use_cores_of(0);
      if (i == 1) go_first();
      burst work(what);
      work();
      const auto begin = clock_type::now();
      std::int64_t calls = 0;
      for (; !stop; ++calls) {
        const auto called = clock_type::now();
        work();
        if (part < 1) std::this_thread::sleep_for((clock_type::now() - called) * ((1 - part) / part));
      }
      found[i] = static_cast<double>(calls) / seconds_since(begin);
    });
  };
  std::vector<std::thread> threads;
  if (products) threads.push_back(thread_of(0, sim::lane::compute, 1));
  if (duty > 0) threads.push_back(thread_of(1, other, duty));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stop = true;
  for (std::thread& t : threads) t.join();
  return {found[0], found[1]};
}

// As the paper does it: what products lose is the other's share, and its speed is relative to that alone. The highest of the points.
sim::share_table measured_table(int rounds) {
  sim::share_table table;
  table.points[0] = {{0, 0}, {1, 1}};
  for (const sim::lane l : {sim::lane::memory, sim::lane::network}) {
    std::vector<sim::share_table::point> all;
    for (int d = 1; d <= 5; ++d) {
      std::vector<double> shares, speeds;
      for (int i = 0; i < rounds; ++i) {
        const double alone = rates(true, l, 0).first, other = rates(false, l, 1).second;
        const auto [products, beside] = rates(true, l, 0.2 * d);
        shares.push_back(std::clamp(1 - products / alone, 0.01, 0.99));
        speeds.push_back(std::clamp(beside / other, 0.0, 1.0));
      }
      all.push_back({median(shares), median(speeds)});
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {  // of one share the fastest first
      return a.share != b.share ? a.share < b.share : a.speed > b.speed;
    });
    auto& line = table.points[static_cast<std::size_t>(l)] = {{0, 0}};
    for (const auto& p : all)
      if (p.share > line.back().share && p.speed > line.back().speed) line.push_back(p);
    line.push_back({1, 1});
  }
  return table;
}

// ---- steps ------------------------------------------------------------------------------------------------------------
// A backend that notes its products and attention, in order.
class noted : public cp::in_turns<cp::host<HEDDLE_GEMM>> {
  using base = cp::in_turns<cp::host<HEDDLE_GEMM>>;

 public:
  using base::base;
  struct call {
    bool product;
    double seconds;
  };
  std::vector<call>* calls = nullptr;
  template <class Op, class T, class... X>
    requires cp::offered<Op, base, T>
  void run(const X&... x) {
    constexpr bool product = std::is_base_of_v<cp::ops::product_operation, Op>,
                   attends = std::is_base_of_v<cp::ops::attention_operation, Op>;
    const auto begin = clock_type::now();
    cp::run<Op>(static_cast<base&>(*this), x...);
    if ((product || attends) && calls != nullptr) calls->push_back({product, seconds_since(begin)});
  }
};

using model = md::llama<float>;
using mesh = hd::mesh<hd::axis<inf::lane, 2>, hd::axis<hd::tp, parts>>;
using world_type = hd::world<slow_threads, mesh>;
using lanes_type = inf::nano_runner<model, world_type, noted>;
using runner_type = lanes_type::runner_type;

inf::step step_of(std::int64_t count) {
  inf::step s;
  const std::int64_t blocks = (before + chunk) / block_rows;
  for (std::int64_t q = 0; q < count; ++q) {
    s.sequences.push_back({s.rows(), chunk, before, std::ssize(s.blocks), blocks});
    for (std::int64_t b = 0; b < blocks; ++b) s.blocks.push_back(static_cast<std::int32_t>(b * sequences + q));
    for (std::int64_t r = 0; r < chunk; ++r) s.tokens.push_back(static_cast<std::int32_t>((17 * q + 29 * r) % 1024));
    s.wanted.push_back(s.rows() - 1);
  }
  return s;
}

// Seconds of a layer's operations: products before attention, attention, the product behind it, the rest with all that is no product.
using layer_seconds = std::array<double, 4>;
layer_seconds layer_of(const std::vector<noted::call>& calls, double step_seconds) {
  std::size_t first = 0;
  while (first < calls.size() && calls[first].product) ++first;
  layer_seconds s{};
  double noted_seconds = 0;
  std::size_t behind = 0;  // products since the last attention
  std::vector<std::size_t> attentions;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    noted_seconds += calls[i].seconds;
    if (!calls[i].product) attentions.push_back(i);
  }
  const std::size_t of_layer = attentions.size() > 1 ? attentions[1] - attentions[0] : calls.size();
  for (std::size_t i = 0; i < calls.size() && i < of_layer * attentions.size(); ++i) {
    behind = i % of_layer;
    s[behind < first ? 0 : behind == first ? 1 : behind == first + 1 ? 2 : 3] += calls[i].seconds;
  }
  s[3] += step_seconds - noted_seconds;
  for (double& x : s) x /= static_cast<double>(attentions.size());
  return s;
}

plan::nano_plan plan_of(const layer_seconds& whole, const layer_seconds& half, const sim::share_table& table,
                        double bandwidth) {
  const auto line = [&](std::size_t i) {
    return [a = half[i], b = whole[i]](int rows) {  // straight through both
      return (std::max)(a + (b - a) * (2.0 * rows / static_cast<double>(step_rows) - 1), 0.0);
    };
  };
  const auto messages = [bandwidth](int rows) {
    const double bytes = 2.0 * (parts - 1) / parts * rows * static_cast<double>(config.width) * sizeof(float);
    return bandwidth > 0 ? bytes / bandwidth : 0.0;
  };
  const std::vector<plan::nano_operation> layer{
      {"qkv", sim::lane::compute, line(0), {}},  {"attention", sim::lane::memory, line(1), {0}},
      {"o", sim::lane::compute, line(2), {1}},   {"sum o", sim::lane::network, messages, {2}},
      {"ffn", sim::lane::compute, line(3), {3}}, {"sum ffn", sim::lane::network, messages, {4}}};
  return plan::find_nano_plan(layer, table,
                              {.rows = static_cast<int>(step_rows),
                               .multiple = static_cast<int>(chunk),
                               .parts = parts,
                               .layers = static_cast<int>(config.layers),
                               .least_gain = 0.05});
}

// Steps in turn on the plain runner of lane 0 and on lanes, by one plan.
struct compared {
  std::vector<double> plain, lanes;
  double same = 0;
};
compared compare(world_type& world, noted& kernels, noted& on_lanes, const plan::nano_plan& p, int rounds,
                 const std::function<void(runner_type&)>& first = {}) {
  const inf::cache_extent cache{sequences * 8 * 2, block_rows};
  lanes_type lanes(config, world, on_lanes, cache, step_rows, p);
  auto of_tp = world.sub<hd::tp>();
  std::optional<runner_type> plain;
  if (lanes.owns_memory()) {
    plain.emplace(config, of_tp, kernels, cache, step_rows);
    plain->stage().initialize(1);
    lanes.stage().initialize(1);
  }
  compared all;
  const inf::step s = step_of(sequences);
  std::vector<float> logits(static_cast<std::size_t>(sequences * config.vocabulary)), other = logits;
  if (world.rank() == 0) {
    if (first) first(*plain);
    const auto time = [&](auto& runner, std::vector<float>& to, std::vector<double>& found) {
      runner.run(s, to);
      for (int i = 0; i < 3; ++i) {
        const auto begin = clock_type::now();
        runner.run(s, to);
        found.push_back(seconds_since(begin));
      }
    };
    for (int i = 0; i < rounds; ++i) {
      time(*plain, logits, all.plain);
      plain->interrupt();
      time(lanes, other, all.lanes);
      lanes.interrupt();
    }
    all.same = logits == other ? 1 : 0;
    plain->finish();
    lanes.finish();
  } else {
    for (bool go_on = true; go_on;) {
      if (plain && !plain->leads()) go_on = plain->follow() == inf::followed::interrupted;
      go_on = lanes.follow() == inf::followed::interrupted && go_on;
    }
  }
  return all;
}

void print(const char* what, const compared& c, const plan::nano_plan& p, double wanted) {
  std::vector<double> ratios;  // of rounds, of their medians
  for (std::size_t i = 0; i + 3 <= c.plain.size(); i += 3) {
    const auto of = [&](const std::vector<double>& v) {
      return median({v.begin() + static_cast<std::ptrdiff_t>(i), v.begin() + static_cast<std::ptrdiff_t>(i) + 3});
    };
    ratios.push_back(of(c.plain) / of(c.lanes));
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("%s\n  plan: %s\n", what, to_string(p).c_str());
  std::printf(
      "  whole %.2f ms, on lanes %.2f ms: %.3f x (rounds %.3f to %.3f; wanted >= %.2f), planned %.3f x, the same bits: "
      "%s\n",
      1e3 * median(c.plain), 1e3 * median(c.lanes), median(c.plain) / median(c.lanes), ratios.front(), ratios.back(),
      wanted, p.serial_seconds / p.seconds, c.same != 0 ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  if (rounds < 1 || argc > 3) return std::fprintf(stderr, "usage: nano_batches_bench [rounds >= 1] [file]\n"), 2;
  const std::string text = to_text(measured_table((std::min)(rounds, 3)));
  std::printf("%s", text.c_str());
  if (argc == 3 && !(std::ofstream(argv[2]) << text))
    throw hd::io_error("heddle: cannot write " + std::string(argv[2]));
  const sim::share_table table = sim::parse_share_table(text);

  layer_seconds whole{}, half{};
  double seconds = 0;
  const auto launched = [&](const plan::nano_plan& p, int times,
                            const std::function<void(noted&, runner_type&)>& first) {
    compared all;
    hd::launch<slow_threads>(mesh{}, hd::launch_options{.bind = hd::binding::off}, [&](world_type& world) {
      use_cores_of(world.coordinate<hd::tp>());
      noted kernels{1}, on_lanes{1};
      compared mine = compare(world, kernels, on_lanes, p, times, [&](runner_type& r) {
        if (first) first(kernels, r);
      });
      if (world.rank() == 0) all = mine;
    });
    return all;
  };
  plan::nano_plan none;
  none.serial = true;
  none.rows = static_cast<int>(step_rows);
  launched(none, 1, [&](noted& kernels, runner_type& runner) {
    std::vector<float> logits(static_cast<std::size_t>(sequences * config.vocabulary));
    for (const bool all : {true, false}) {
      const std::int64_t count = all ? sequences : sequences / 2;
      const inf::step s = step_of(count);
      double best = 1e9;
      for (int i = 0; i < 2 * rounds; ++i) {
        std::vector<noted::call> calls;
        kernels.calls = &calls;
        const auto begin = clock_type::now();
        runner.run(s, std::span(logits).first(static_cast<std::size_t>(count * config.vocabulary)));
        const double took = seconds_since(begin);
        kernels.calls = nullptr;
        if (i > 0 && took < best) {
          best = took;
          (all ? whole : half) = layer_of(calls, took);
        }
      }
      if (all) seconds = best;
    }
  });
  std::printf(
      "a layer of %d rows: qkv %.3f, attention %.3f, o %.3f, ffn and the rest %.3f ms; of half the rows %.3f, %.3f, "
      "%.3f, %.3f\n",
      static_cast<int>(step_rows), 1e3 * whole[0], 1e3 * whole[1], 1e3 * whole[2], 1e3 * whole[3], 1e3 * half[0],
      1e3 * half[1], 1e3 * half[2], 1e3 * half[3]);
  const double products = (whole[0] + whole[2] + whole[3]) * static_cast<double>(config.layers);
  const double bytes = 2.0 * static_cast<double>(config.layers) * 2.0 * (parts - 1) / parts *
                       static_cast<double>(step_rows * config.width) * sizeof(float);
  const plan::nano_plan slow = plan_of(whole, half, table, bytes / products), fast = plan_of(whole, half, table, 0);
  bytes_per_second = bytes / products;
  print("links as slow as the products", launched(slow, rounds, {}), slow, 1.2);
  bytes_per_second = 0;
  print("links that cost nothing", launched(fast, rounds, {}), fast, 0.97);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
