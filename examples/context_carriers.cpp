// What carriers of context parallelism cost: one document spread over ranks, attended by every carrier, against attention on one rank.
// run: 4 causal zigzag
// prints: kv-ring         4 rounds, 1.000 max/mean
// prints: same as on one rank
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/context/check.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;
using hd::context_pass;

namespace {

constexpr hd::context_shape heads{8, 4, 32, 32, sizeof(float), sizeof(float)};
constexpr float scale = 0.17677669f;  // 1 / sqrt(32)

// Rows of q, k, v, of their gradients, and of the output and its gradient.
struct rows {
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
  explicit rows(std::int64_t n) {
    for (auto* t : {&q, &dout, &out, &dq}) t->resize(static_cast<std::size_t>(n * heads.query_heads * heads.head_dim));
    for (auto* t : {&k, &v, &dk, &dv}) t->resize(static_cast<std::size_t>(n * heads.key_heads * heads.head_dim));
    lse.resize(static_cast<std::size_t>(n * heads.query_heads));
  }
};
template <class T>
hc::head_rows<T> view(std::vector<std::remove_const_t<T>>& x, std::int64_t count) {
  const std::int64_t width = count * heads.head_dim;
  return {x.data(), static_cast<std::int64_t>(x.size()) / width, count, heads.head_dim, width};
}
hc::head_rows<const float> in(std::vector<float>& x, std::int64_t count) { return view<const float>(x, count); }
hc::head_rows<float> out(std::vector<float>& x, std::int64_t count) { return view<float>(x, count); }

double run(const hd::context_carrier& carrier, const hd::context_cut& cut, rows& whole, double& error) {
  const auto forward = make_context_table(carrier, cut, context_pass::forward);
  const auto backward = make_context_table(carrier, cut, context_pass::backward);
  for (const auto* t : {&forward, &backward})
    if (const auto fault = hd::check_context(*t); !fault.ok()) throw hd::config_error(to_string(fault));
  double seconds = 0;
  std::vector<double> errors(static_cast<std::size_t>(cut.ranks), 0);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{cut.ranks}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    hc::host<> backend(1);
    rows own(cut.rows[static_cast<std::size_t>(me)]);
    // Calls f(tensor here, tensor of the whole, row here, row there, width).
    const auto each = [&](auto f, std::initializer_list<std::vector<float> rows::*> tensors) {
      for (const hd::context_piece& p : cut.pieces)
        for (std::int64_t i = 0; i < p.count && p.home == me; ++i)
          for (const auto t : tensors) {
            const auto width = static_cast<std::ptrdiff_t>(
                (t == &rows::k || t == &rows::v || t == &rows::dk || t == &rows::dv ? heads.key_heads : heads.query_heads) *
                heads.head_dim);
            f((own.*t).begin() + (p.row + i) * width, (whole.*t).begin() + (p.first + i * p.stride) * width, width);
          }
    };
    each([](auto here, auto there, auto width) { std::copy_n(there, width, here); },
         {&rows::q, &rows::k, &rows::v, &rows::dout});
    const auto to = hd::lower_context(forward, me), back = hd::lower_context(backward, me);
    hd::context_executor<float, hc::host<>, std::remove_reference_t<decltype(ranks)>> executor(backend, ranks);
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    executor.attend(to, in(own.q, heads.query_heads), in(own.k, heads.key_heads), in(own.v, heads.key_heads), scale,
                    out(own.out, heads.query_heads), own.lse);
    executor.attend_backward(back, in(own.dout, heads.query_heads), in(own.q, heads.query_heads),
                             in(own.k, heads.key_heads), in(own.v, heads.key_heads), in(own.out, heads.query_heads), own.lse,
                             scale, out(own.dq, heads.query_heads), out(own.dk, heads.key_heads),
                             out(own.dv, heads.key_heads));
    ranks.barrier();
    if (me == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double& worst = errors[static_cast<std::size_t>(me)];
    each(
        [&](auto here, auto there, auto width) {
          for (std::ptrdiff_t i = 0; i < width; ++i) worst = std::max<double>(worst, std::abs(here[i] - there[i]));
        },
        {&rows::out, &rows::dq, &rows::dk, &rows::dv});
  });
  error = *std::max_element(errors.begin(), errors.end());
  return seconds;
}

int program(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const std::string mask_name = argc > 2 ? argv[2] : "causal", order_name = argc > 3 ? argv[3] : "zigzag";
  if (ranks < 1 || ranks > 64) throw hd::config_error("context_carriers: 1 to 64 ranks are expected");
  const std::int64_t length = 64 * ranks;
  hd::context_document document{length, {}, hd::named_context_mask(mask_name, length, 1)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const hd::context_cut cut = hd::named_context_order(order_name).cut({document}, ranks);

  // One rank.
  rows whole(length);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto* t : {&whole.q, &whole.k, &whole.v, &whole.dout})
    for (float& x : *t) x = normal(random);
  hc::host<> backend(1);
  const std::span<const hc::attention_slice> mask(document.mask);
  backend.attention(in(whole.q, heads.query_heads), in(whole.k, heads.key_heads), in(whole.v, heads.key_heads), mask, scale,
                    out(whole.out, heads.query_heads), std::span(whole.lse));
  backend.attention_backward(in(whole.dout, heads.query_heads), in(whole.q, heads.query_heads),
                             in(whole.k, heads.key_heads), in(whole.v, heads.key_heads), in(whole.out, heads.query_heads),
                             std::span<const float>(whole.lse), mask, scale, out(whole.dq, heads.query_heads),
                             out(whole.dk, heads.key_heads), out(whole.dv, heads.key_heads));

  // A machine of 1 TFLOP/s and 10 GB/s in each direction between any two ranks.
  const hd::topology links = hd::topologies::full(ranks, {1e-6, 1e10});
  std::printf("%d ranks, %lld tokens, mask %s, order %s: forward and backward\n", ranks, static_cast<long long>(length),
              mask_name.c_str(), order_name.c_str());
  double worst = 0;
  for (const hd::context_carrier& carrier : hd::context_carriers()) {
    std::printf("%-14s ", std::string(carrier.name).c_str());
    if (!carrier.offers(ranks) || heads.query_heads % carrier.parts != 0) {
      std::printf(" not on %d ranks\n", ranks);
      continue;
    }
    int rounds = 0;
    double simulated = 0, balance = 1;
    std::int64_t bytes = 0;
    for (const context_pass pass : {context_pass::forward, context_pass::backward}) {
      hd::context_table t = make_context_table(carrier, cut, pass);
      bytes += bytes_sent(t, heads).total();
      if (pass == context_pass::forward) {
        rounds = t.round_count();
        balance = balance_of(t).max_over_mean();
      }
      t.rounds.sizes = context_sizes(t, heads);
      simulated += hd::sim::simulate(t.rounds, links, 0, 1, {}, hd::routing::split, compute_seconds(t, heads, 1e12)).seconds;
    }
    double error = 0;
    const double measured = run(carrier, cut, whole, error);
    worst = std::max(worst, error);
    std::printf("%2d rounds, %5.3f max/mean, %9lld bytes, %7.3f ms simulated, %7.2f ms here, error %.1e\n", rounds, balance,
                static_cast<long long>(bytes), simulated * 1e3, measured * 1e3, error);
  }
  std::printf("%s as on one rank\n", worst < 1e-4 ? "same" : "NOT the same");
  return worst < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
