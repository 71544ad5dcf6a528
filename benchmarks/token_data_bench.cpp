// Token data: packing a million documents by best fit, reading the tokens of a step from a mapped file, and finding a sample in each order.
#include <heddle/core/random.hpp>
#include <heddle/io/tokens/best_fit.hpp>
#include <heddle/io/tokens/blend.hpp>
#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/io/tokens/megatron_index.hpp>
#include <heddle/io/tokens/shard_order.hpp>
#include <heddle/io/tokens/token_source.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <unistd.h>

namespace {

namespace io = heddle::io;
namespace fs = std::filesystem;

// Lengths of web pages: log-normal, about 400 tokens in the middle.
std::vector<std::int32_t> lengths(std::int64_t n, std::int64_t most) {
  const heddle::counter_random random(1, 0);
  std::vector<std::int32_t> all;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(n); ++i) {
    const double u = random.uniform(2 * i) + 1e-12, v = random.uniform(2 * i + 1);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    all.push_back(static_cast<std::int32_t>(std::min(static_cast<double>(most), std::max(1.0, 400 * std::exp(1.1 * normal)))));
  }
  return all;
}

void best_fit(benchmark::State& state) {
  const std::int64_t room = state.range(0);
  const auto items = lengths(1000000, room);
  std::int64_t tokens = 0, bins = 0;
  for (const std::int32_t n : items) tokens += n;
  for (auto _ : state) {
    const auto of = io::best_fit_bins(items, room);
    bins = *std::max_element(of.begin(), of.end()) + 1;
    benchmark::DoNotOptimize(of.data());
  }
  state.counters["bins / fewest"] = static_cast<double>(bins) / std::ceil(static_cast<double>(tokens) / static_cast<double>(room));
}
BENCHMARK(best_fit)->Arg(2048)->Arg(8192)->Arg(131072)->Unit(benchmark::kMillisecond);

struct corpus_on_disk {
  fs::path prefix = fs::temp_directory_path() / ("heddle-bench-" + std::to_string(::getpid()));
  corpus_on_disk() {
    io::megatron_writer writer(prefix, 50257);
    const auto of = lengths(100000, 8192);
    std::vector<std::int32_t> document;
    for (const std::int32_t n : of) {
      document.assign(static_cast<std::size_t>(n), n % 50257);
      writer.add(document);
      writer.end_document();
    }
    writer.finish();
  }
  ~corpus_on_disk() {
    fs::remove(prefix.string() + ".bin");
    fs::remove(prefix.string() + ".idx");
  }
};
const io::megatron_corpus& corpus() {
  static const corpus_on_disk files;
  static const io::megatron_corpus of(files.prefix);
  return of;
}

// Eight samples of GPT-2's context, wherever they lie.
template <class Order>
void read_step(benchmark::State& state, const Order& order) {
  const io::token_source source(corpus(), order, 50257);
  std::vector<std::int32_t> in(8 * 1024), out(8 * 1024);
  std::int64_t step = 0;
  for (auto _ : state) {
    source.fill_train({8 * (step++ % 4000), 8}, std::span(in), std::span(out));
    benchmark::DoNotOptimize(in.data());
  }
  state.SetItemsProcessed(state.iterations() * 8 * 1024);
}
void read_gpt_order(benchmark::State& state) { read_step(state, io::gpt_order(corpus(), {.context = 1024, .samples = 40000})); }
void read_shard_order(benchmark::State& state) {
  std::vector<std::int64_t> shards;
  for (std::int64_t d = 0; d < 100000; d += 1000) shards.push_back(d);
  read_step(state, io::shard_order(corpus(), {.context = 1024, .batch = 64, .streams = 8}, shards));
}
BENCHMARK(read_gpt_order)->Unit(benchmark::kMicrosecond);
BENCHMARK(read_shard_order)->Unit(benchmark::kMicrosecond);

void blend_anywhere(benchmark::State& state) {
  const io::blend order(std::array{0.5, 0.3, 0.1, 0.05, 0.05}, 1000000);
  std::int64_t s = 0;
  for (auto _ : state) benchmark::DoNotOptimize(order(s = (s + 314159) % 1000000));
}
BENCHMARK(blend_anywhere)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
