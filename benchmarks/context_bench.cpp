// Masks by carriers by ranks, in the manner of the Long-Context Attention Benchmark (arXiv:2510.17896): seconds of both passes on ranks that are
// threads of this machine, and of each table its balance, its bytes and its time on a simulated machine. How long tables take to make. And
// rings whose links are as slow as their kernels, or half as fast: a pass over what the longer of both takes in each round, and a picture of it.
//
//   context_bench --benchmark_filter=slow --svg=.                         writes context_bench_kv_ring_2_1.svg and the others
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
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/text_file.hpp>
#include <heddle/observe/timeline_svg.hpp>
#include <heddle/sim/network.hpp>
#include <heddle/testing/slow_links.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

// ---- overlap ----
constexpr std::int64_t slow_tokens = 512;  // of each rank
constexpr hd::context_shape slow_heads{4, 4, 64, 64, sizeof(float), sizeof(float)};

// Slow links that somebody watches.
template <class Links>
struct watched : Links {
  hd::observe::recorder* recorder;
  watched(Links links, hd::observe::recorder& r) : Links(links), recorder(&r) {}
  void record(hd::event e) {
    e.rank = this->rank();
    recorder->record(e);
  }
};

// Seconds of a forward pass under a full mask, in which all calls are alike.
double seconds_on(hd::testing::slow_network& network, const hd::context_table& table, hd::observe::recorder& recorder) {
  std::vector<double> seconds(static_cast<std::size_t>(table.ranks()), 0);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{table.ranks()}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    using links = watched<hd::testing::slow_links<std::remove_reference_t<decltype(group)>>>;
    links ranks({group, network}, recorder);
    const std::int64_t h = slow_heads.query_heads, d = slow_heads.head_dim;
    std::vector<float> q(static_cast<std::size_t>(slow_tokens * h * d), 0.1F), k = q, v = q, out = q;
    std::vector<float> lse(static_cast<std::size_t>(slow_tokens * h));
    const auto view = [&](std::vector<float>& x) { return hc::head_rows<float>{x.data(), slow_tokens, h, d, h * d}; };
    hc::host<> backend(1);
    hd::context_executor<float, hc::host<>, links> attention(backend, ranks);
    const hd::context_program program = hd::lower_context(table, group.rank());
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    attention.attend(program, view(q), view(k), view(v), 0.125F, view(out), lse);
    seconds[static_cast<std::size_t>(group.rank())] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  return *std::max_element(seconds.begin(), seconds.end());
}
// Of one call of the kernel, while all ranks compute.
double seconds_of_call(const std::vector<hd::event>& events) {
  std::vector<double> calls;
  for (const hd::event& e : events)
    if (e.kind == hd::activity::other) calls.push_back(static_cast<double>(e.end_ns - e.begin_ns) * 1e-9);
  std::nth_element(calls.begin(), calls.begin() + std::ssize(calls) / 2, calls.end());
  return calls[calls.size() / 2];
}
void draw(const std::string& path, const std::string& title, int ranks, const std::vector<hd::event>& events) {
  hd::observe::timeline_chart chart{title, {}, {}, {}};
  for (int r = 0; r < ranks; ++r) chart.rows.push_back("rank " + std::to_string(r));
  std::int64_t first = events.front().begin_ns;
  for (const hd::event& e : events) first = (std::min)(first, e.begin_ns);
  for (const hd::event& e : events) chart.boxes.push_back({e.rank, e.kind, "", e.begin_ns - first, e.end_ns - first});
  hd::observe::write_text_file(path, hd::observe::timeline_svg(std::span(&chart, 1)));
}

// A message of operands takes `messages` times as long as a call of the kernel.
void slow(benchmark::State& state, std::string_view carrier, int ranks, int messages, const std::string& pictures) {
  hd::context_document document{slow_tokens * ranks, {}, hd::masks::full{}.slices(slow_tokens * ranks)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const hd::context_cut cut = hd::cut_documents<hd::split::balanced>({document}, ranks);
  const auto table = make_context_table(hd::named_context_carrier(carrier), cut, hd::context_pass::forward);
  const auto kind = carrier == "kv-ring" ? hd::context_kind::keys : hd::context_kind::queries;
  const double bytes = static_cast<double>(slow_tokens * slow_heads.row_bytes(kind, hd::context_pass::forward));
  double call = 0, over = 0;
  std::vector<double> all;
  for (auto _ : state) {
    {
      hd::testing::slow_network fast(1e12);
      hd::observe::recorder recorder(ranks);
      seconds_on(fast, table, recorder);
      call = seconds_of_call(recorder.events());
    }
    hd::testing::slow_network network(bytes / (messages * call));
    hd::observe::recorder recorder(ranks);
    const double one = seconds_on(network, table, recorder);
    state.SetIterationTime(one);
    // The kernels of this pass and the messages between them; behind the last kernel of TokenRing a result goes home, as large as queries are.
    const double now = seconds_of_call(recorder.events()), tail = carrier == "kv-ring" ? 0 : messages * call;
    all.push_back(one / ((ranks - 1) * (std::max)(now, messages * call) + now + tail));
    if (!pictures.empty()) {
      std::string name(carrier);
      std::replace(name.begin(), name.end(), '-', '_');
      draw(pictures + "/context_bench_" + name + "_" + std::to_string(ranks) + "_" + std::to_string(messages) + ".svg",
           std::string(carrier) + " on " + std::to_string(ranks) + " ranks, a message " + std::to_string(messages) + " times a call", ranks,
           recorder.events());
    }
  }
  std::sort(all.begin(), all.end());
  over = all[all.size() / 2];
  state.counters["call_ms"] = call * 1e3;
  state.counters["over_longer"] = over;
}

}  // namespace

int main(int argc, char** argv) {
  std::string pictures;
  for (int i = 1; i < argc; ++i)
    if (const std::string_view one = argv[i]; one.starts_with("--svg=")) {
      pictures = one.substr(6);
      std::rotate(argv + i, argv + i + 1, argv + argc);
      --argc;
    }
  for (const std::string_view carrier : {"kv-ring", "token-ring"})
    for (const int ranks : {2, 4})
      for (const int messages : {1, 2})
        benchmark::RegisterBenchmark(
            ("slow/" + std::string(carrier) + "/" + std::to_string(ranks) + "/" + std::to_string(messages)).c_str(),
            [carrier, ranks, messages, pictures](benchmark::State& state) { slow(state, carrier, ranks, messages, pictures); })
            ->UseManualTime()
            ->Iterations(7)
            ->Unit(benchmark::kMillisecond);
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
