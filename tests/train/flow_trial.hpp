// tests/train/flow_trial.hpp: two steps of a model in parts, and of the same on one rank.
#pragma once

#include "transport.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/layout/sbp.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/flow.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace flow_trial {

namespace hd = heddle;
namespace flow = hd::flow;
namespace op = hd::op;
using hd::sbp::B, hd::sbp::S, hd::sbp::P;

struct all_ranks {};
constexpr hd::auto_redistribute fit{};
constexpr int rounds = 5;
constexpr double rate = 0.5;  // of the update between the steps
constexpr double not_here = 1e300;

constexpr auto bottom = [](auto w, auto x) { return hd::apply<op::gelu>(fit, hd::einsum<"bi,io->bo">(fit, x, w)); };
constexpr auto top = [](auto v, auto h, auto t) {
  const auto miss = hd::apply<op::add>(fit, hd::einsum<"bo,oc->bc">(fit, h, v), t);
  return hd::mean(hd::apply<op::multiply>(fit, miss, miss));
};

// Weights are those of round 100.
inline void values(int part, int operand, int round, std::span<double> x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(0.37 * static_cast<double>(i) + 1.3 * operand + 0.7 * part + 0.11 * round) / 2;
}
inline void values(int, int, int round, std::span<std::int32_t> x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<std::int32_t>((3 * i + static_cast<std::size_t>(round)) % 4);
}

// What a rank has.
struct share {
  std::vector<double> losses;
  std::map<int, std::vector<double>> gradients;  // whole; by 100 step + 10 part + operand
  std::vector<std::int64_t> sent;                // by step
  std::int64_t predicted = 0;
  std::string text;
};
inline auto members(share& s) {
  return std::tie(s.losses, s.gradients, s.sent, s.predicted, s.text);
}

struct outcome {
  std::vector<double> losses;
  std::map<int, std::vector<double>> gradients;  // the same
  bool bytes_as_planned = true;                  // of each rank, in each step
  bool copies_agree = true;                      // of losses and gradients
  std::string text, error;
};

inline bool close(double a, double b) {
  return std::abs(a - b) <= 1e-12 * (std::max)(1.0, std::abs(b));
}
inline bool close(const std::vector<double>& a, const std::vector<double>& b) {
  bool ok = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; ok && i < a.size(); ++i) ok = close(a[i], b[i]);
  return ok;
}

// `make(world, backend)` returns the model.
template <class Make>
outcome run(int ranks, const Make& make) {
  const auto all = transport_test::on_ranks(hd::mesh<hd::axis<all_ranks>>{ranks}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = make(world, backend);
    share mine;
    model.initialize([](int part, int operand, std::span<double> x) { values(part, operand, 100, x); });
    for (int step = 0; step < 2; ++step) {
      if (step > 0)
        model.update([](std::span<double> w, std::span<const double> g) {
          for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * g[i];
        });
      mine.losses.push_back(
          model.step([&](int part, int operand, int round, auto x) { values(part, operand, round + step, x); }));
      mine.sent.push_back(model.bytes_sent());
      model.each_weight([&](int part, int operand, const auto& w, const auto& g) {
        auto& to = mine.gradients[100 * step + 10 * part + operand];
        to.assign(static_cast<std::size_t>(w.shape().size()), not_here);
        const auto o = w.local_offset();
        const auto n = w.valid_shape();
        std::size_t at = 0;
        for (std::int64_t i = o[0]; i < o[0] + n[0]; ++i)
          for (std::int64_t k = o[1]; k < o[1] + n[1]; ++k)
            to[static_cast<std::size_t>(i * w.shape()[1] + k)] = g.elements()[at++];
      });
    }
    mine.predicted = model.predicted_bytes();
    mine.text = to_string(model);
    return mine;
  });
  outcome result;
  result.error = all.error;
  if (!all.ok()) return result;
  for (const auto& one : all.by_rank) {
    result.text = one->text;
    for (const std::int64_t sent : one->sent)
      result.bytes_as_planned = result.bytes_as_planned && sent == one->predicted;
    if (one->losses[0] != 0) {
      result.copies_agree = result.copies_agree && (result.losses.empty() || close(result.losses, one->losses));
      result.losses = one->losses;
    }
    for (const auto& [weight, g] : one->gradients) {
      auto& to = result.gradients[weight];
      if (to.empty()) to.assign(g.size(), not_here);
      for (std::size_t i = 0; i < g.size(); ++i) {
        if (g[i] == not_here) continue;
        result.copies_agree = result.copies_agree && (to[i] == not_here || close(to[i], g[i]));
        to[i] = g[i];
      }
    }
  }
  return result;
}

inline bool same(const outcome& a, const outcome& b) {
  bool ok = a.error.empty() && b.error.empty() && a.bytes_as_planned && a.copies_agree && close(a.losses, b.losses) &&
            a.gradients.size() == b.gradients.size();
  for (const auto& [weight, g] : b.gradients) ok = ok && close(a.gradients.at(weight), g);
  return ok;
}

// The same two steps by one expression of one rank. `f(backend, world, weights, round)` returns the loss of a round and
// adds the gradients by the weights, which are of these shapes and stand for (part, operand).
struct weight_at {
  int part, operand;
  std::int64_t rows, columns;
};
template <class F>
outcome by_one_rank(const std::vector<weight_at>& weights, const F& f) {
  using single = hd::mesh<hd::axis<all_ranks, 1>>;
  using matrix = hd::sharded<double, 2, hd::layout<single>>;
  const auto key = [](int step, const weight_at& at) { return 100 * step + 10 * at.part + at.operand; };
  outcome result;
  hd::launch<hd::threads>(single{}, [&](auto& world) {
    hd::compute::host<> backend;
    std::vector<matrix> w;
    for (const weight_at& at : weights) {
      w.emplace_back(hd::layout<single>{}, hd::dynamic_shape<2>{at.rows, at.columns}, 0);
      values(at.part, at.operand, 100, w.back().elements());
    }
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; step > 0 && i < w.size(); ++i)
        for (std::size_t e = 0; e < w[i].elements().size(); ++e)
          w[i].elements()[e] -= rate * result.gradients.at(key(step - 1, weights[i]))[e];
      double loss = 0;
      for (const weight_at& at : weights)
        result.gradients[key(step, at)].assign(static_cast<std::size_t>(at.rows * at.columns), 0.0);
      for (int round = 0; round < rounds; ++round) {
        const auto found = f(backend, world, w, round + step);  // {loss, gradient of each weight, ...}
        loss += std::get<0>(found).elements()[0] / rounds;
        [&]<std::size_t... K>(std::index_sequence<K...>) {
          const auto add = [&](std::size_t i, const auto& g) {
            auto& sum = result.gradients.at(key(step, weights[i]));
            for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += g.elements()[e] / rounds;
          };
          const auto each = [&]<std::size_t N>(std::integral_constant<std::size_t, N>) {
            using gradient = std::remove_cvref_t<decltype(std::get<N + 1>(found))>;
            if constexpr (requires(const gradient& g) { g.elements(); })
              if (N < weights.size()) add(N, std::get<N + 1>(found));
          };
          (each(std::integral_constant<std::size_t, K>{}), ...);
        }(std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<decltype(found)>> - 1>{});
      }
      result.losses.push_back(loss);
    }
  });
  return result;
}
// A fed operand of that rank.
template <class Element = double, std::size_t Rank = 2>
auto fed(const hd::dynamic_shape<Rank>& s, int part, int operand, int round) {
  using single = hd::mesh<hd::axis<all_ranks, 1>>;
  hd::sharded<Element, Rank, hd::layout<single>> x(hd::layout<single>{}, s, 0);
  values(part, operand, round, x.elements());
  return x;
}

}  // namespace flow_trial
