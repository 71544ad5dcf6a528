// Graphs whose nodes are to tell the second smallest of their neighbours' numbers, and the network that learns it.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/graph_layer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "../second_minimum/network.hpp"

namespace graph_minimum {

namespace hd = heddle;
namespace md = heddle::model;
using hd::compute::transpose;
using second_minimum::backend, second_minimum::dense_parameters, second_minimum::update;

inline constexpr int bits = 4;
inline constexpr std::int64_t nodes = 128, width = 32;
using line = hd::mesh<hd::axis<hd::dp>>;

// An operator of rows without weights.
template <bool Sum>
struct rows {
  static constexpr bool commutative = true, associative = !Sum, elementwise = false;
  using in = std::span<const float>;
  using out = std::span<float>;
  void operator()(in a, in b, out r) const {
    for (std::size_t i = 0; i < r.size(); ++i) r[i] = Sum ? a[i] + b[i] : (std::max)(a[i], b[i]);
  }
  std::int64_t saved_size(std::int64_t) const { return 0; }
  void forward(in a, in b, out r, out) const { (*this)(a, b, r); }
  void backward_input(in a, in b, out, in d, out d_a, out d_b) const {
    for (std::size_t i = 0; i < d.size(); ++i)
      d_a[i] = Sum || a[i] >= b[i] ? d[i] : 0, d_b[i] = Sum || a[i] < b[i] ? d[i] : 0;
  }
  void backward_weight(in, in, in) const {}
};

struct graph {
  std::vector<std::int64_t> row_pointer{0}, sources;
  std::vector<float> h, answers;  // [nodes, 2 bits], [nodes, bits]
};
inline graph draw_graph(int least, int most, std::uint64_t seed, std::uint64_t stream) {
  const hd::counter_random random(seed, stream);
  std::uint64_t at = 0;
  graph g;
  std::vector<int> numbers;
  const auto push = [](std::vector<float>& to, bool bit) { to.push_back(bit ? 1.0f : 0.0f); };
  for (std::int64_t i = 0; i < nodes; ++i) {
    numbers.push_back(static_cast<int>(random.integer(at++) % (1U << bits)));
    for (int b = 0; b < bits; ++b)
      for (int v = 0; v < 2; ++v) push(g.h, (numbers.back() >> b & 1) == v);
  }
  for (std::int64_t i = 0; i < nodes; ++i) {
    const std::size_t degree =
        static_cast<std::size_t>(least) + random.integer(at++) % static_cast<std::uint64_t>(most - least + 1);
    std::set<std::int64_t> from;
    while (from.size() < degree) from.insert(static_cast<std::int64_t>(random.integer(at++) % nodes));
    std::vector<int> heard;
    for (const std::int64_t s : from) heard.push_back(numbers[static_cast<std::size_t>(s)]);
    std::nth_element(heard.begin(), heard.begin() + 1, heard.end());
    for (int b = 0; b < bits; ++b) push(g.answers, heard[1] >> b & 1);
    g.sources.insert(g.sources.end(), from.begin(), from.end());
    g.row_pointer.push_back(static_cast<std::int64_t>(g.sources.size()));
  }
  return g;
}

// The layer and a linear map to the logits of the bits.
template <class Op, template <class> class Fold, class Group>
struct network_of_nodes {
  explicit network_of_nodes(Group& of, std::uint64_t seed) : group(of), layer({2 * bits, width, width}, seed) {
    answer.add("answer.weight", std::array<std::int64_t, 2>{width, bits}, 0.25);
    answer.add("answer.bias", std::array<std::int64_t, 1>{bits}, 0);
    answer.store.allocate();
    answer.store.initialize(seed);
    for (auto* store : {&layer.parameters(), &answer.store})
      adamw.emplace_back(store->table(), static_cast<std::int64_t>(store->weights().size()), 0, 1);
  }
  // The part of all nodes whose bits are right; with a rate above 0, a step.
  double run(const graph& g, double rate) {
    const std::vector<std::int64_t> bounds = [&] {
      std::vector<std::int64_t> b;
      for (int r = 0; r <= group.size(); ++r) b.push_back(hd::balanced_split{nodes, group.size()}.offset(r));
      return b;
    }();
    const std::int64_t first = bounds[static_cast<std::size_t>(group.rank())],
                       n = bounds[static_cast<std::size_t>(group.rank()) + 1] - first;
    std::vector<std::int64_t> own(g.row_pointer.begin() + first, g.row_pointer.begin() + first + n + 1);
    const std::vector<std::int64_t> sources(g.sources.begin() + own.front(), g.sources.begin() + own.back());
    for (std::size_t i = own.size(); i-- > 0;) own[i] -= own[0];
    const md::graph_part part(group, bounds, own, sources);
    typename decltype(layer)::saved s(part, layer.config());
    out.resize(static_cast<std::size_t>(n * width));
    std::vector<float> logits(static_cast<std::size_t>(n * bits)), d_out(out.size()),
        d_h(static_cast<std::size_t>(n * 2 * bits));
    const hd::matrix_view<const float> h(g.h.data() + first * 2 * bits, hd::dynamic_shape<2>(n, 2 * bits));
    const auto y = md::as_matrix(std::span(out), n, width), l = md::as_matrix(std::span(logits), n, bits);
    layer.forward(compute, group, part, s, h, y);
    const auto last = answer.linear(0, width, bits);
    hd::compute::matmul(compute, hd::matrix_view<const float>(y), last.weight, l);
    hd::compute::run<hd::compute::ops::add_bias>(compute, l, last.bias);
    std::array<float, 1> right{0};
    for (std::int64_t i = 0; i < n; ++i) {
      bool all = true;
      for (std::int64_t b = 0; b < bits; ++b) {
        float& v = logits[static_cast<std::size_t>(i * bits + b)];
        const float wanted = g.answers[static_cast<std::size_t>((first + i) * bits + b)];
        all = all && (v > 0) == (wanted > 0.5f);
        v = (1 / (1 + std::exp(-v)) - wanted) / static_cast<float>(nodes * bits);
      }
      right[0] += all ? 1.0f : 0.0f;
    }
    group.all_reduce(std::span<float>(right), hd::plus{});
    if (rate > 0) {
      const hd::matrix_view<const float> d_l(l), rows_out(y);
      hd::compute::matmul<transpose::yes, transpose::no>(compute, rows_out, d_l, last.weight_gradient, 1);
      hd::compute::run<hd::compute::ops::add_bias_backward>(compute, d_l, last.bias_gradient);
      hd::compute::matmul<transpose::no, transpose::yes>(compute, d_l, last.weight,
                                                         md::as_matrix(std::span(d_out), n, width));
      layer.backward(compute, group, part, s, md::as_matrix(std::span<const float>(d_out), n, width),
                     md::as_matrix(std::span(d_h), n, 2 * bits));
      ++step;
      for (std::size_t i = 0; i < 2; ++i) {
        md::parameter_store<float>& store = i == 0 ? layer.parameters() : answer.store;
        group.all_reduce(store.gradients(), hd::plus{});
        update(compute, store, adamw[i], rate, step);
      }
    }
    return right[0] / static_cast<double>(nodes);
  }
  Group& group;
  backend compute;
  md::graph_layer<float, Op, Fold> layer;
  dense_parameters answer;
  std::vector<hd::train::optimizer<float, hd::zero<0>>> adamw;
  std::vector<float> out;
  std::int64_t step = 0;
};

}  // namespace graph_minimum
