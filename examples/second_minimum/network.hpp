// The network: embed every element, aggregate each set, decode the bits. The elements of all sets lie on the ranks in
// turn.
#pragma once

#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/model/associativity.hpp>
#include <heddle/model/learned_monoid.hpp>
#include <heddle/model/recurrent_fold.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "task.hpp"

namespace second_minimum {

namespace hd = heddle;
namespace md = heddle::model;
using backend = hd::compute::host<>;
using hd::compute::transpose;

/// The aggregators to compare.
struct by_learned_monoid {};
struct by_sum {};
/// The recurrence, on one rank: an element after the other.
struct by_recurrence {};

/// The parameters around the aggregator.
struct dense_parameters {
  template <std::size_t Rank>
  void add(std::string name, const std::array<std::int64_t, Rank>& shape, double deviation) {
    md::parameter p;
    p.name = std::move(name);
    p.id = static_cast<int>(store.table().size());
    p.shape.assign(shape.begin(), shape.end());
    p.initial_deviation = deviation;
    store.add(std::move(p), shape, hd::layout<hd::mesh<hd::axis<hd::dp, 1>>>{}, 0);
  }
  md::weight_views<float> linear(std::size_t i, std::int64_t rows, std::int64_t columns) {
    return {md::as_matrix(store.weight(i), rows, columns), md::as_matrix(store.gradient(i), rows, columns),
            store.weight(i + 1), store.gradient(i + 1)};
  }
  md::parameter_store<float> store;
};

inline void update(backend& compute, md::parameter_store<float>& store, hd::train::optimizer<float, hd::zero<0>>& adamw,
                   double rate, std::int64_t step) {
  hd::train::adamw_options options;
  options.beta2 = 0.999;
  options.weight_decay = 0;
  adamw.update(compute, store.weights(), store.gradients(), options, rate, step, 1);
  std::fill(store.gradients().begin(), store.gradients().end(), 0.0f);
}

/// x W, the aggregator, relu(x W + b) W + b. What follows the aggregator is the same on all ranks.
template <class Aggregator, class Communicator>
class network {
 public:
  network(Communicator& group, int bits, std::int64_t width, std::uint64_t seed)
      : group_(group), bits_(bits), width_(width), monoid_({.width = width}, seed) {
    const double by_width = std::sqrt(2 / static_cast<double>(width));
    own_.add("embedding", std::array<std::int64_t, 2>{2 * bits_, width}, 0.5);
    own_.add("hidden.weight", std::array<std::int64_t, 2>{width, width}, by_width);
    own_.add("hidden.bias", std::array<std::int64_t, 1>{width}, 0);
    own_.add("answer.weight", std::array<std::int64_t, 2>{width, bits_}, by_width);
    own_.add("answer.bias", std::array<std::int64_t, 1>{bits_}, 0);
    own_.store.allocate();
    own_.store.initialize(seed);
    own_adamw_.emplace(made(own_.store));
    monoid_adamw_.emplace(made(monoid_.parameters()));
  }

  /// One step on a batch; `lambda` weighs the associativity loss of as many triples as there are sets. Returns the
  /// loss.
  double train(const sets& batch, float lambda, double rate) {
    saved s(plan(batch), width_);
    forward(s, batch);
    // Binary cross-entropy of each bit: the gradient of its logit is (probability - answer).
    double loss = 0;
    const float scale = 1 / static_cast<float>(batch.count() * bits_);
    std::vector<float> d_logits(s.logits.size());
    for (std::size_t i = 0; i < s.logits.size(); ++i) {
      const float l = s.logits[i];
      loss += std::log1p(std::exp(-std::abs(l))) + (std::max)(l, 0.0f) - l * batch.answers[i];
      d_logits[i] = (1 / (1 + std::exp(-l)) - batch.answers[i]) * scale;
    }
    backward(s, batch, d_logits);
    if (lambda > 0 && group_.rank() == 0)
      defect(draw(batch.bits, batch.count(), 3, 3, 7, static_cast<std::uint64_t>(step_)), lambda);
    if (group_.rank() != 0)  // equal on all ranks: count it once
      for (std::size_t i = 1; i < 5; ++i) std::ranges::fill(own_.store.gradient(i), 0.0f);
    group_.all_reduce(own_.store.gradients(), hd::plus{});
    group_.all_reduce(monoid_.parameters().gradients(), hd::plus{});
    ++step_;
    update(compute_, own_.store, *own_adamw_, rate, step_);
    update(compute_, monoid_.parameters(), *monoid_adamw_, rate, step_);
    return loss / static_cast<double>(batch.count() * bits_);
  }

  /// What the sets are to the rest of the network: [sets, width].
  std::vector<float> aggregate(const sets& batch) {
    saved s(plan(batch), width_);
    forward(s, batch);
    return s.roots;
  }

  /// The part of the sets whose bits are all right.
  double accuracy(const sets& batch) {
    saved s(plan(batch), width_);
    forward(s, batch);
    std::int64_t right = 0;
    for (std::int64_t t = 0; t < batch.count(); ++t) {
      bool all = true;
      for (std::size_t i = static_cast<std::size_t>(t * bits_); i < static_cast<std::size_t>((t + 1) * bits_); ++i)
        all = all && (s.logits[i] > 0) == (batch.answers[i] > 0.5f);
      right += all;
    }
    return static_cast<double>(right) / static_cast<double>(batch.count());
  }

  /// Writes all weights as 16-bit floating point, 2 bytes each.
  void save(const std::string& path) {
    hd::io::tensor_file_writer file(path);
    for (md::parameter_store<float>* store : {&own_.store, &monoid_.parameters()})
      for (std::size_t i = 0; i < store->table().size(); ++i) {
        std::vector<hd::f16> rounded;
        for (const float w : store->weight(i)) rounded.emplace_back(w);
        file.add(store->table()[i].name, std::span<const hd::f16>(rounded),
                 hd::io::tensor_region::whole(store->table()[i].shape));
      }
    (void)file.finish();
  }

  /// Reads what `save` wrote. Errors: `io_error` for a file of other tensors or sizes, with both.
  void read(const std::string& path) {
    const auto index = hd::io::read_tensor_index(path);
    std::size_t next = 0;
    for (md::parameter_store<float>* store : {&own_.store, &monoid_.parameters()})
      for (std::size_t i = 0; i < store->table().size(); ++i, ++next) {
        const md::parameter& p = store->table()[i];
        const auto text = [](const std::string& name, const std::vector<std::int64_t>& shape) {
          std::string all = name + " [";
          for (const std::int64_t n : shape) all += (all.back() == '[' ? "" : ", ") + std::to_string(n);
          return all + "]";
        };
        const std::string expected = text(p.name, p.shape);
        const std::string got = next < index.size()
                                    ? text(index[next].name, index[next].region.local) + " of " + index[next].dtype
                                    : "nothing";
        if (got != expected + " of f16")
          throw hd::io_error("heddle: second_minimum: '" + path + "': expected " + expected + " of f16, got " + got);
        const std::vector<std::byte> bytes = hd::io::read_tensor_bytes(path, index[next]);
        std::vector<hd::f16> rounded(bytes.size() / sizeof(hd::f16));
        std::memcpy(rounded.data(), bytes.data(), bytes.size());
        std::ranges::copy(rounded, store->weight(i).begin());
      }
  }

  /// How far the operator is from associative on sets of three; lambda adds the gradient.
  double defect(const sets& triples, float lambda = 0) {
    const std::vector<float> e = embed(triples, 0, triples.elements());
    std::vector<float> abc[3];
    for (std::size_t i = 0; i < e.size(); ++i) abc[i / static_cast<std::size_t>(width_) % 3].push_back(e[i]);
    return md::associativity_loss(monoid_.op(compute_), width_, std::span<const float>(abc[0]),
                                  std::span<const float>(abc[1]), std::span<const float>(abc[2]), lambda);
  }

 private:
  struct saved {
    saved(hd::dyadic_plan plan, std::int64_t width) : monoid(std::move(plan), {.width = width}) {}
    md::learned_monoid<float>::saved monoid;
    std::optional<md::recurrent_fold<float>> recurrence;
    std::vector<float> embedded, roots, hidden, logits;
  };

  hd::dyadic_plan plan(const sets& batch) const {
    std::vector<std::int64_t> bounds;
    for (int r = 0; r <= group_.size(); ++r)
      bounds.push_back(hd::balanced_split{batch.elements(), group_.size()}.offset(r));
    return hd::dyadic_plan(batch.trees, bounds, group_.rank());
  }
  hd::matrix_view<const float> inputs(const sets& batch, std::int64_t first, std::int64_t count) const {
    return {batch.one_hot.data() + first * 2 * bits_, hd::dynamic_shape<2>(count, 2 * bits_)};
  }
  hd::matrix_view<float> table() { return md::as_matrix(own_.store.weight(0), 2 * bits_, width_); }
  std::vector<float> embed(const sets& batch, std::int64_t first, std::int64_t count) {
    std::vector<float> e(static_cast<std::size_t>(count * width_));
    hd::compute::matmul(compute_, inputs(batch, first, count), table(), md::as_matrix(std::span(e), count, width_));
    return e;
  }

  void forward(saved& s, const sets& batch) {
    auto& fold = s.monoid.fold;
    const std::int64_t n = batch.count();
    s.embedded = embed(batch, fold.plan().begin(), fold.plan().leaves());
    if constexpr (std::is_same_v<Aggregator, by_sum>)
      fold.run(group_, std::span<const float>(s.embedded), hd::plus{});
    else if constexpr (std::is_same_v<Aggregator, by_recurrence>)
      s.recurrence.emplace(fold.plan(), width_)
          .forward(group_, std::span<const float>(s.embedded), monoid_.op<md::one_order>(compute_));
    else
      monoid_.forward(compute_, group_, s.monoid,
                      md::as_matrix(std::span<const float>(s.embedded), fold.plan().leaves(), width_));
    for (std::int64_t t = 0; t < n; ++t) {
      const auto root = s.recurrence ? *s.recurrence->root(t) : *fold.root(t);
      s.roots.insert(s.roots.end(), root.begin(), root.end());
    }
    s.hidden.resize(s.roots.size());
    s.logits.resize(static_cast<std::size_t>(n * bits_));
    const auto first = own_.linear(1, width_, width_), last = own_.linear(3, width_, bits_);
    const auto h = md::as_matrix(std::span(s.hidden), n, width_), l = md::as_matrix(std::span(s.logits), n, bits_);
    hd::compute::matmul(compute_, md::as_matrix(std::span<const float>(s.roots), n, width_), first.weight, h);
    hd::compute::run<hd::compute::ops::add_bias>(compute_, h, first.bias);
    for (float& v : s.hidden) v = (std::max)(v, 0.0f);
    hd::compute::matmul(compute_, hd::matrix_view<const float>(h), last.weight, l);
    hd::compute::run<hd::compute::ops::add_bias>(compute_, l, last.bias);
  }

  void backward(saved& s, const sets& batch, const std::vector<float>& d_logits) {
    const auto& tree = s.monoid.fold.plan();
    const std::int64_t n = batch.count();
    const auto first = own_.linear(1, width_, width_), last = own_.linear(3, width_, bits_);
    const auto d_l = md::as_matrix(std::span<const float>(d_logits), n, bits_);
    std::vector<float> d_hidden(s.hidden.size()), d_roots(s.roots.size()), d_embedded(s.embedded.size());
    const auto d_h = md::as_matrix(std::span(d_hidden), n, width_);
    hd::compute::matmul<transpose::no, transpose::yes>(compute_, d_l, last.weight, d_h);
    hd::compute::matmul<transpose::yes, transpose::no>(
        compute_, md::as_matrix(std::span<const float>(s.hidden), n, width_), d_l, last.weight_gradient, 1);
    hd::compute::run<hd::compute::ops::add_bias_backward>(compute_, d_l, last.bias_gradient);
    for (std::size_t i = 0; i < d_hidden.size(); ++i) d_hidden[i] = s.hidden[i] > 0 ? d_hidden[i] : 0;
    hd::compute::matmul<transpose::no, transpose::yes>(compute_, d_h, first.weight,
                                                       md::as_matrix(std::span(d_roots), n, width_));
    hd::compute::matmul<transpose::yes, transpose::no>(
        compute_, md::as_matrix(std::span<const float>(s.roots), n, width_), d_h, first.weight_gradient, 1);
    hd::compute::run<hd::compute::ops::add_bias_backward>(compute_, d_h, first.bias_gradient);
    const auto d_e = md::as_matrix(std::span(d_embedded), tree.leaves(), width_);
    if constexpr (std::is_same_v<Aggregator, by_sum>) {
      std::size_t t = 0;
      for (std::int64_t i = 0; i < tree.leaves(); ++i) {
        while (batch.trees[t + 1] <= tree.begin() + i) ++t;
        std::copy_n(d_roots.data() + static_cast<std::int64_t>(t) * width_, width_, d_embedded.data() + i * width_);
      }
    } else if constexpr (std::is_same_v<Aggregator, by_recurrence>) {
      s.recurrence->backward(monoid_.op<md::one_order>(compute_), d_roots, d_e.elements());
    } else {
      monoid_.backward(compute_, s.monoid, d_roots, d_e);
    }
    hd::compute::matmul<transpose::yes, transpose::no>(compute_, inputs(batch, tree.begin(), tree.leaves()), d_e,
                                                       md::as_matrix(own_.store.gradient(0), 2 * bits_, width_), 1);
  }

  using optimizer = hd::train::optimizer<float, hd::zero<0>>;
  Communicator& group_;
  std::int64_t bits_, width_;
  backend compute_;
  dense_parameters own_;
  md::learned_monoid<float> monoid_;
  std::optional<optimizer> own_adamw_, monoid_adamw_;
  std::int64_t step_ = 0;

  static optimizer made(md::parameter_store<float>& store) {
    return {store.table(), static_cast<std::int64_t>(store.weights().size()), 0, 1};
  }
};

}  // namespace second_minimum
