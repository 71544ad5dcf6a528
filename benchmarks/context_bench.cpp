// Masks by carriers by ranks, in the manner of the Long-Context Attention Benchmark (arXiv:2510.17896): seconds of both passes on ranks that are
// threads of this machine, and of each table its balance, its bytes and its time on a simulated machine. And how long tables take to make.
//
//   context_bench --benchmark_filter='^causal/.*/8/'                      one mask on eight ranks
//   context_bench --benchmark_out=context.json --benchmark_out_format=json
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/context/carriers.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;

namespace {

constexpr std::int64_t tokens_per_rank = 256;
constexpr hd::context_shape heads{8, 1, 32, 32, sizeof(float), sizeof(float)};  // eight queries to a key, as there

hd::context_cut document_on(int ranks, std::int64_t length, std::string_view mask) {
  hd::context_document document{length, {}, hd::named_context_mask(mask, length, 1)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  return hd::cut_documents<hd::split::zigzag>({document}, ranks);
}

// Seconds of both passes, between barriers.
double seconds_of(const hd::context_table& forward, const hd::context_table& backward) {
  double seconds = 0;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{forward.ranks()}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    const std::int64_t rows = forward.cut.rows[static_cast<std::size_t>(me)];
    const auto made = [&](std::int64_t count) {
      return std::vector<float>(static_cast<std::size_t>(rows * count * heads.head_dim), 0.1F);
    };
    const auto view = [&](std::vector<float>& x, std::int64_t count) {
      return hc::head_rows<float>{x.data(), rows, count, heads.head_dim, count * heads.head_dim};
    };
    auto q = made(heads.query_heads), out = q, dout = q, dq = q, k = made(heads.key_heads), v = k, dk = k, dv = k;
    std::vector<float> lse(static_cast<std::size_t>(rows * heads.query_heads));
    hc::host<> backend(1);
    hd::context_executor<float, hc::host<>, std::remove_reference_t<decltype(ranks)>> attention(backend, ranks);
    const hd::context_program to = hd::lower_context(forward, me), back = hd::lower_context(backward, me);
    const std::int64_t h = heads.query_heads, g = heads.key_heads;
    constexpr float scale = 0.17677669F;
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    attention.attend(to, view(q, h), view(k, g), view(v, g), scale, view(out, h), lse);
    attention.attend_backward(back, view(dout, h), view(q, h), view(k, g), view(v, g), view(out, h), lse, scale,
                              view(dq, h), view(dk, g), view(dv, g));
    ranks.barrier();
    if (me == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  return seconds;
}

void attend(benchmark::State& state, const hd::context_carrier& carrier, std::string_view mask, int ranks) {
  const hd::context_cut cut = document_on(ranks, tokens_per_rank * ranks, mask);
  hd::context_table forward = make_context_table(carrier, cut, hd::context_pass::forward);
  hd::context_table backward = make_context_table(carrier, cut, hd::context_pass::backward);
  const hd::topology links = hd::topologies::full(ranks, {2e-6, 50e9});
  double simulated = 0, operations = 0;
  for (hd::context_table* t : {&forward, &backward}) {
    t->rounds.sizes = context_sizes(*t, heads);
    const std::vector<double> compute = compute_seconds(*t, heads, 1e13);
    for (const double c : compute) operations += c * 1e13;
    simulated += hd::sim::simulate(t->rounds, links, 0, 1, {}, hd::routing::split, compute).seconds;
  }
  double seconds = 0;
  for (auto _ : state) {
    const double one = seconds_of(forward, backward);
    state.SetIterationTime(one);
    seconds += one;
  }
  state.counters["max/mean"] = balance_of(forward).max_over_mean();
  state.counters["rounds"] = forward.round_count();
  state.counters["sent_MB"] =
      static_cast<double>(bytes_sent(forward, heads).total() + bytes_sent(backward, heads).total()) / 1e6;
  state.counters["simulated_ms"] = simulated * 1e3;
  state.counters["GFLOP/s"] = operations * static_cast<double>(state.iterations()) / seconds / 1e9;
}

// 100 documents of log-normal lengths on as many ranks of 64 as hold them: the tables of a step.
void tables(benchmark::State& state) {
  const hd::counter_random random(1, 0);
  std::vector<hd::context_document> documents;
  for (int d = 0; d < 100; ++d) {
    const auto at = static_cast<std::uint64_t>(d);
    const auto length = static_cast<std::int64_t>(1200 * std::exp(1.6 * random.normal(at))) + 1;
    const int ranks = static_cast<int>(length / 8192 < 64 ? length / 8192 + 1 : 64);
    documents.push_back({length, {}, hd::masks::causal{}.slices(length)});
    for (int r = 0; r < ranks; ++r)
      documents.back().ranks.push_back(static_cast<int>((random.integer(1000 + at) + static_cast<unsigned>(r)) % 64));
  }
  for (auto _ : state) {
    const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>(documents, 64);
    for (const hd::context_pass pass : {hd::context_pass::forward, hd::context_pass::backward})
      benchmark::DoNotOptimize(hd::make_context_table<hd::carrier::kv_ring>(cut, pass).tasks.size());
  }
}
BENCHMARK(tables)->Unit(benchmark::kMillisecond);

// One document on all 64 ranks.
void table_of_64_ranks(benchmark::State& state) {
  const hd::context_cut cut = document_on(64, 64 * 8192, "causal");
  for (auto _ : state)
    benchmark::DoNotOptimize(
        hd::make_context_table<hd::carrier::kv_ring>(cut, hd::context_pass::backward).tasks.size());
}
BENCHMARK(table_of_64_ranks)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  for (const std::string_view mask : hd::context_mask_names())
    for (const hd::context_carrier& carrier : hd::context_carriers())
      for (const int ranks : {1, 2, 4, 8})
        if (carrier.offers(ranks))
          benchmark::RegisterBenchmark(
              (std::string(mask) + "/" + std::string(carrier.name) + "/" + std::to_string(ranks)).c_str(),
              [&carrier, mask, ranks](benchmark::State& state) { attend(state, carrier, mask, ranks); })
              ->UseManualTime()
              ->Iterations(1)
              ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
