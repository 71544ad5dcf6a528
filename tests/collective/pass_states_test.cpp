// tests/collective/pass_states_test.cpp: linear attention over sequences that ranks share, by states that travel or are gathered.
#include "catch.hpp"

#include <heddle/collective/pass_states.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/mesh.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
using Catch::Matchers::Contains;
using numbers = std::vector<double>;

namespace {

constexpr int heads = 2, keys = 3, values = 4, rows = heads * keys;
constexpr std::size_t state = static_cast<std::size_t>(rows * values);

// Gated linear attention, [tokens, ...]: S = gate * S + k v', o = S' q. Source: Yang et al. 2023, arXiv:2312.06635, section 3.
struct tensors {
  numbers q, k, gate, v, out;  // out, and its gradient where that is what is given
};
numbers drawn(std::size_t n, std::uint64_t stream, double from, double to) {
  const hd::counter_random random(23, stream);
  numbers x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = from + (to - from) * static_cast<double>(random.integer(i) >> 11) * 0x1p-53;
  return x;
}
tensors inputs(int tokens) {
  const auto n = static_cast<std::size_t>(tokens * rows), m = static_cast<std::size_t>(tokens * heads * values);
  return {drawn(n, 1, -1, 1), drawn(n, 2, -1, 1), drawn(n, 3, 0.5, 1), drawn(m, 4, -1, 1), numbers(m)};
}
std::size_t row_at(int t, int r) { return static_cast<std::size_t>(t * rows + r); }
std::size_t value_at(int t, int r, int e) { return static_cast<std::size_t>((t * heads + r / keys) * values + e); }
std::size_t state_at(int r, int e) { return static_cast<std::size_t>(r * values + e); }

// Tokens [first, last) from a state on: outputs, the state that they leave, and how much of what entered is left of each row.
void run(tensors& x, int first, int last, numbers& s, numbers& decay) {
  decay.assign(rows, 1.0);
  for (int t = first; t < last; ++t)
    for (int r = 0; r < rows; ++r) {
      decay[static_cast<std::size_t>(r)] *= x.gate[row_at(t, r)];
      for (int e = 0; e < values; ++e) {
        double& of = s[state_at(r, e)];
        of = x.gate[row_at(t, r)] * of + x.k[row_at(t, r)] * x.v[value_at(t, r, e)];
        x.out[value_at(t, r, e)] += of * x.q[row_at(t, r)];
      }
    }
}
// The gradients of [first, last) from that of the outputs, the entering state, and the gradient of the state that leaves: d becomes that of the
// entering one.
void run_backward(const tensors& x, const numbers& d_out, int first, int last, const numbers& entered, numbers& d, tensors& gradient) {
  std::vector<numbers> before{entered};
  for (int t = first; t < last; ++t) {
    numbers s = before.back();
    for (int r = 0; r < rows; ++r)
      for (int e = 0; e < values; ++e)
        s[state_at(r, e)] = x.gate[row_at(t, r)] * s[state_at(r, e)] + x.k[row_at(t, r)] * x.v[value_at(t, r, e)];
    before.push_back(s);
  }
  for (int t = last; t-- > first;) {
    const numbers &s = before[static_cast<std::size_t>(t - first + 1)], &old = before[static_cast<std::size_t>(t - first)];
    for (int r = 0; r < rows; ++r)
      for (int e = 0; e < values; ++e) {
        double& g = d[state_at(r, e)];
        const double o = d_out[value_at(t, r, e)];
        gradient.q[row_at(t, r)] += o * s[state_at(r, e)];
        g += o * x.q[row_at(t, r)];
        gradient.k[row_at(t, r)] += g * x.v[value_at(t, r, e)];
        gradient.v[value_at(t, r, e)] += g * x.k[row_at(t, r)];
        gradient.gate[row_at(t, r)] += g * old[state_at(r, e)];
        g *= x.gate[row_at(t, r)];
      }
  }
}
tensors zeros_like(const tensors& x) {
  return {numbers(x.q.size()), numbers(x.k.size()), numbers(x.gate.size()), numbers(x.v.size()), numbers(x.out.size())};
}
double difference(const tensors& a, const tensors& b) {
  double worst = 0;
  const auto compare = [&](const numbers& x, const numbers& y) {
    for (std::size_t i = 0; i < x.size(); ++i) worst = (std::max)(worst, std::isnan(x[i]) ? 1e300 : std::abs(x[i] - y[i]));
  };
  compare(a.q, b.q), compare(a.k, b.k), compare(a.gate, b.gate), compare(a.v, b.v), compare(a.out, b.out);
  return worst;
}

// The last factor that a rank's own gates have in the gradient of its decay: d_decay * decay / gate, token by token.
void add_decay_gradient(const tensors& x, int first, int last, const numbers& decay, const numbers& d_decay, tensors& gradient) {
  for (int t = first; t < last; ++t)
    for (int r = 0; r < rows; ++r)
      gradient.gate[row_at(t, r)] +=
          d_decay[static_cast<std::size_t>(r)] * decay[static_cast<std::size_t>(r)] / x.gate[row_at(t, r)];
}

struct split_run {
  tensors outputs, gradients;
  std::vector<std::int64_t> forward_bytes, backward_bytes;
};
// A sequence over the ranks of a list, of a group of `group` ranks. Each runs its tokens from zero, then adds what the entering state gives.
split_run over_ranks(const tensors& x, int tokens, int group, const std::vector<int>& ranks, bool gathers, int blocks) {
  split_run all{x, zeros_like(x), std::vector<std::int64_t>(static_cast<std::size_t>(group)),
                std::vector<std::int64_t>(static_cast<std::size_t>(group))};
  std::fill(all.outputs.out.begin(), all.outputs.out.end(), 0.0);
  std::mutex mutex;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{group}, [&](auto& world) {
    auto& along = world.template along<hd::cp>();
    const auto found = std::find(ranks.begin(), ranks.end(), along.rank());
    if (found == ranks.end()) return;
    const auto place = static_cast<int>(found - ranks.begin()), n = static_cast<int>(ranks.size());
    const int first = tokens * place / n, last = tokens * (place + 1) / n;
    tensors mine = x;
    std::fill(mine.out.begin(), mine.out.end(), 0.0);
    numbers local(state, 0.0), decay, in(state), d_in(state), d_local(state), d_decay(rows);
    tensors own = mine;
    run(own, first, last, local, decay);
    const hd::state_options options{.blocks = blocks, .ranks = ranks, .tag = 5};
    const std::int64_t start = along.counters().bytes_sent();
    hd::gathered_decays<double> decays;
    if (gathers)
      decays = hd::gather_states(along, std::span<const double>(decay), std::span<const double>(local), std::span<double>(in), options);
    else
      hd::pass_states(along, std::span<const double>(decay), std::span<const double>(local), std::span<double>(in), options);
    const std::int64_t middle = along.counters().bytes_sent();
    numbers s = in, unused;
    run(mine, first, last, s, unused);
    // The gradient of the entering state, by the outputs of this rank.
    tensors gradient = zeros_like(x);
    const numbers d_out = drawn(x.out.size(), 9, -1, 1);
    std::fill(d_in.begin(), d_in.end(), 0.0);
    run_backward(mine, d_out, first, last, in, d_in, gradient);
    if (gathers)
      hd::gather_states_backward(along, decays, std::span<const double>(in), std::span<const double>(d_in),
                                 std::span<double>(d_decay), std::span<double>(d_local), options);
    else
      hd::pass_states_backward(along, std::span<const double>(decay), std::span<const double>(in), std::span<const double>(d_in),
                               std::span<double>(d_decay), std::span<double>(d_local), options);
    const std::int64_t end = along.counters().bytes_sent();
    // And by those of later ranks: through the state that this one leaves, from zero, and through its decay.
    const numbers nothing(x.out.size(), 0.0), from_zero(state, 0.0);
    run_backward(mine, nothing, first, last, from_zero, d_local, gradient);
    add_decay_gradient(mine, first, last, decay, d_decay, gradient);
    const std::lock_guard lock(mutex);
    all.forward_bytes[static_cast<std::size_t>(along.rank())] = middle - start;
    all.backward_bytes[static_cast<std::size_t>(along.rank())] = end - middle;
    for (std::size_t i = 0; i < x.out.size(); ++i) all.outputs.out[i] += mine.out[i];
    const auto add = [](numbers& to, const numbers& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    add(all.gradients.q, gradient.q), add(all.gradients.k, gradient.k);
    add(all.gradients.gate, gradient.gate), add(all.gradients.v, gradient.v);
  });
  return all;
}

}  // namespace

TEST_CASE("linear attention over ranks is that of one recurrence, forward and backward", "[collective][states][ranks]") {
  for (const int tokens : {29, 3}) {
    const tensors x = inputs(tokens);
    tensors serial = x;
    numbers s(state, 0.0), decay;
    run(serial, 0, tokens, s, decay);
    tensors gradients = zeros_like(x);
    numbers d(state, 0.0);
    run_backward(x, drawn(x.out.size(), 9, -1, 1), 0, tokens, numbers(state, 0.0), d, gradients);
    // In chunks of one rank, the last of them short.
    tensors chunked = x;
    std::fill(chunked.out.begin(), chunked.out.end(), 0.0);
    numbers carried(state, 0.0);
    for (int t = 0; t < tokens; t += 8) run(chunked, t, (std::min)(tokens, t + 8), carried, decay);
    CHECK(difference(chunked, serial) <= 1e-10);
    for (int n = 1; n <= 8; ++n) {
      std::vector<int> ranks(static_cast<std::size_t>(n));
      for (int r = 0; r < n; ++r) ranks[static_cast<std::size_t>(r)] = r;
      for (const bool gathers : {false, true})
        for (const int blocks : {1, 4, 100}) {
          if (gathers && blocks > 1) continue;
          INFO(tokens << " tokens on " << n << " ranks, " << (gathers ? "gathered" : "passed") << " in " << blocks << " blocks");
          const split_run got = over_ranks(x, tokens, n, ranks, gathers, blocks);
          CHECK(difference(got.outputs, serial) <= 1e-10);
          CHECK(difference(got.gradients, gradients) <= 1e-10);
          for (int r = 0; r < n; ++r) {
            const std::int64_t size = static_cast<std::int64_t>(state) * 8;
            const auto at = static_cast<std::size_t>(r);
            CHECK(got.forward_bytes[at] == (gathers ? (n - 1) * (size + rows * 8) : r + 1 < n ? size : 0));
            CHECK(got.backward_bytes[at] == (gathers ? (n - 1) * size : r > 0 ? size : 0));
          }
        }
    }
  }
}

TEST_CASE("a sequence may be on any ranks of a group, in any order", "[collective][states][ranks]") {
  const int tokens = 17;
  const tensors x = inputs(tokens);
  tensors serial = x;
  numbers s(state, 0.0), decay;
  run(serial, 0, tokens, s, decay);
  for (const bool gathers : {false, true})
    CHECK(difference(over_ranks(x, tokens, 5, {4, 1, 2}, gathers, 2).outputs, serial) <= 1e-10);
}

TEST_CASE("states of sizes that do not belong together are refused", "[collective][states][error]") {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{1}, [&](auto& world) {
    auto& along = world.template along<hd::cp>();
    const numbers decay(3), local(12);
    numbers in(12), few(11), d(3);
    const auto pass = [&](const numbers& a, const numbers& b, numbers& to, const hd::state_options& o = {}) {
      hd::pass_states(along, std::span<const double>(a), std::span<const double>(b), std::span<double>(to), o);
    };
    CHECK_NOTHROW(pass(decay, local, in));
    CHECK_THROWS_WITH(pass(decay, local, few), Contains("decays of 3 rows and states of 12 and 11 elements"));
    CHECK_THROWS_WITH(pass(local, few, few), Contains("do not belong together"));
    CHECK_THROWS_WITH(pass(decay, local, in, {.blocks = 0}), Contains("at least 1 block, got 0"));
    const std::vector<int> others{1};
    CHECK_THROWS_WITH(pass(decay, local, in, {.ranks = others}), Contains("rank 0 is not among those"));
    CHECK_THROWS_WITH(hd::pass_states_backward(along, std::span<const double>(decay), std::span<const double>(local),
                                               std::span<const double>(in), std::span<double>(few).first(2),
                                               std::span<double>(in)),
                      Contains("d_decay should have 3 elements, got 2"));
    CHECK_THROWS_WITH(hd::gather_states_backward(along, hd::gathered_decays<double>{}, std::span<const double>(local),
                                                 std::span<const double>(in), std::span<double>(d), std::span<double>(in)),
                      Contains("decays of 1 ranks should have 3 elements each, got 0"));
  });
}
