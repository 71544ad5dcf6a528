// heddle/comm/tune.hpp: measures a network and the algorithms on it, for decisions that fit.
#pragma once

#include <heddle/comm/collective_plans.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/decision.hpp>
#include <heddle/comm/measured_decisions.hpp>
#include <heddle/comm/round_cost.hpp>
#include <heddle/comm/run_collective.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// A message size and the seconds it took.
struct message_time {
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// The line alpha + beta * bytes with the least squares of relative errors; neither is negative.
inline hockney fit_messages(std::span<const message_time> times) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const message_time& m : times) {
    if (!(m.seconds > 0)) continue;
    const double weight = 1 / (m.seconds * m.seconds), x = static_cast<double>(m.bytes);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * m.seconds;
    wxy += weight * x * m.seconds;
  }
  hockney net;
  const double determinant = w * wxx - wx * wx;
  if (!(w > 0)) return net;
  if (!(determinant > 0)) {
    net.alpha = wy / w;
    return net;
  }
  net.beta = (w * wxy - wx * wy) / determinant;
  net.alpha = (wy - net.beta * wx) / w;
  if (net.beta < 0) {
    net.beta = 0;
    net.alpha = wy / w;
  } else if (net.alpha < 0) {
    net.alpha = 0;
    net.beta = wxy / wxx;
  }
  return net;
}

namespace detail {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median_of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0 : x[x.size() / 2];
}

template <class C>
double slowest(C& comm, double mine) {
  comm.all_reduce(std::span<double>(&mine, 1), maximum{});
  return mine;
}

// The communicator's own call.
template <comm_operation What, class C>
void own_call(C& comm, std::span<const float> x, std::span<float> y) {
  if constexpr (What == comm_operation::all_reduce) comm.all_reduce(x, y, plus{});
  if constexpr (What == comm_operation::reduce) comm.reduce(x, y, plus{}, 0);
  if constexpr (What == comm_operation::broadcast) comm.broadcast(y, 0);
  if constexpr (What == comm_operation::reduce_scatter) comm.reduce_scatter(x, y, plus{});
  if constexpr (What == comm_operation::all_gather) comm.all_gather(x, y);
  if constexpr (What == comm_operation::all_to_all) comm.all_to_all(x, y);
}

}  // namespace detail

/// Measures messages between neighbouring ranks, all pairs at the same time, of 8 bytes to 1 MiB, and folds of floats.
/// A collective: every rank gets the same, the slowest pair's. Takes some tens of milliseconds on shared memory.
/// `ports` is 1. On one rank alpha and beta are 0.
template <communicator C>
hockney measure_links(C& comm) {
  constexpr std::array<std::int64_t, 5> sizes{8, 1 << 10, 16 << 10, 128 << 10, 1 << 20};
  const int peer = comm.rank() ^ 1;
  const bool paired = peer < comm.size();
  std::vector<std::byte> out(static_cast<std::size_t>(sizes.back())), in(out.size());
  std::array<message_time, sizes.size()> times{};
  for (std::size_t i = 0; comm.size() > 1 && i < sizes.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(sizes[i]);
    const int times_each = bytes < (16 << 10) ? 50 : 10;
    std::vector<double> seen;
    for (int repetition = 0; repetition < 7; ++repetition) {
      comm.barrier();
      const double start = detail::seconds_now();
      for (int k = 0; paired && k < times_each; ++k) {
        if (comm.rank() < peer) {
          comm.send(std::span<const std::byte>(out).first(bytes), peer, round_tag);
          comm.recv(std::span(in).first(bytes), peer, round_tag);
        } else {
          comm.recv(std::span(in).first(bytes), peer, round_tag);
          comm.send(std::span<const std::byte>(out).first(bytes), peer, round_tag);
        }
      }
      seen.push_back((detail::seconds_now() - start) / (2 * times_each));
    }
    times[i] = {sizes[i], detail::slowest(comm, detail::median_of(seen))};
  }
  hockney net = comm.size() > 1 ? fit_messages(times) : hockney{};

  constexpr std::int64_t n = 64 << 10;
  std::vector<float> a(n, 1.0f), b(n, 0.5f);
  std::vector<double> seen;
  for (int repetition = 0; repetition < 9; ++repetition) {
    const double start = detail::seconds_now();
    detail::fold_elements<float>(a.data(), a.data(), b.data(), n, plus{});
    seen.push_back(detail::seconds_now() - start);
  }
  net.gamma = detail::slowest(comm, detail::median_of(seen)) / static_cast<double>(n * 4);
  return net;
}

/// An algorithm and the seconds that a collective took by it, on the slowest rank.
struct algorithm_time {
  algorithm_name name = algorithm_name::built_in;
  fold_order order = fold_order::none;
  double seconds = 0;
};

/// Measures one collective of floats, of `bytes` as in `collective_question`, by every algorithm that heddle has for this
/// number of ranks, and by the communicator's own call, which is the first of the result. Each time is the median of
/// `repetitions`, between which the algorithms take turns. A collective: every rank gets the same times.
template <comm_operation What, communicator C>
std::vector<algorithm_time> measure_algorithms(C& comm, std::int64_t bytes, int repetitions, collective_plans& plans) {
  static_assert(
      What == comm_operation::all_reduce || What == comm_operation::reduce || What == comm_operation::broadcast ||
          What == comm_operation::reduce_scatter || What == comm_operation::all_gather ||
          What == comm_operation::all_to_all,
      "heddle: measure_algorithms knows all_reduce, reduce, broadcast, reduce_scatter, all_gather, all_to_all");
  const int p = comm.size();
  const bool vector =
      What == comm_operation::all_reduce || What == comm_operation::reduce || What == comm_operation::broadcast;
  const std::int64_t block = bytes / 4 / (vector ? 1 : p);
  const std::int64_t in =
      What == comm_operation::reduce_scatter || What == comm_operation::all_to_all ? p * block : block;
  const std::int64_t out = What == comm_operation::all_gather || What == comm_operation::all_to_all ? p * block : block;
  std::vector<float> x(static_cast<std::size_t>(in), 0.0f), y(static_cast<std::size_t>(out), 0.0f);

  struct candidate {
    const detail::round_source* source;
    std::vector<double> seconds;
    int times;
  };
  std::vector<algorithm_time> result{{}};
  std::vector<candidate> candidates{{nullptr, {}, 1}};
  for (const detail::known_source& k : detail::known_sources<What>) {
    if (k.source == nullptr || !k.source->offers(p)) continue;
    result.push_back({k.name, k.source->order, 0});
    candidates.push_back({k.source, {}, 1});
  }
  const auto run = [&](const candidate& c) {
    if (c.source == nullptr)
      detail::own_call<What>(comm, x, y);
    else
      detail::by_source<What, float>(comm, *c.source, x.data(), y.data(),
                                     vector ? block_sizes::vector(block) : block_sizes::equal(block), 0,
                                     What == comm_operation::broadcast, plus{}, plans);
  };
  for (candidate& c : candidates) {  // warm up; then about a millisecond each
    run(c);
    comm.barrier();
    const double start = detail::seconds_now();
    run(c);
    const double once = detail::slowest(comm, detail::seconds_now() - start);
    c.times = static_cast<int>(std::clamp(1e-3 / (once + 1e-9), 1.0, 100.0));
  }
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (candidate& c : candidates) {
      comm.barrier();
      const double start = detail::seconds_now();
      for (int k = 0; k < c.times; ++k) run(c);
      c.seconds.push_back(detail::slowest(comm, (detail::seconds_now() - start) / c.times));
    }
  for (std::size_t i = 0; i < candidates.size(); ++i) result[i].seconds = detail::median_of(candidates[i].seconds);
  return result;
}

/// The fastest of these: of those that keep the ranks' order only, where the operator does not commute. Another algorithm
/// than the communicator's own call must be faster by a twentieth.
inline algorithm_time fastest(std::span<const algorithm_time> times, bool commutative) {
  algorithm_time best;
  double to_beat = 0;
  bool any = false;
  for (const algorithm_time& t : times) {
    if (!commutative && t.order == fold_order::any) continue;
    if (any && t.seconds >= to_beat) continue;
    best = t;
    any = true;
    to_beat = t.name == algorithm_name::built_in ? t.seconds * 0.95 : t.seconds;
  }
  return best;
}

/// Decisions measured on this communicator, for its number of ranks: at each of these sizes the fastest algorithm, which
/// holds from half way (geometrically) to the size below. `sizes` in bytes, ascending. A collective: every rank gets the
/// same. Takes a few milliseconds per collective, size and algorithm.
///
///     plans.decide_by(hd::tune(comm, sizes));
template <communicator C>
measured_decisions tune(C& comm, std::span<const std::int64_t> sizes, int repetitions = 5) {
  measured_decisions decisions;
  collective_plans plans;
  const auto add = [&]<comm_operation What>() {
    const bool folds =
        What == comm_operation::all_reduce || What == comm_operation::reduce || What == comm_operation::reduce_scatter;
    algorithm_name before[2] = {algorithm_name::built_in, algorithm_name::built_in};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto times = measure_algorithms<What>(comm, sizes[i], repetitions, plans);
      const std::int64_t from =
          i == 0 ? 0
                 : static_cast<std::int64_t>(std::sqrt(static_cast<double>((std::max)(sizes[i - 1], std::int64_t{1})) *
                                                       static_cast<double>(sizes[i])));
      for (const bool commutative : {true, false}) {
        if (!folds && !commutative) continue;
        const algorithm_name best = fastest(times, commutative).name;
        if (i > 0 && best == before[commutative ? 1 : 0]) continue;
        before[commutative ? 1 : 0] = best;
        decisions.add({What, comm.size(), commutative, from, best});
      }
    }
  };
  add.template operator()<comm_operation::all_reduce>();
  add.template operator()<comm_operation::reduce>();
  add.template operator()<comm_operation::broadcast>();
  add.template operator()<comm_operation::reduce_scatter>();
  add.template operator()<comm_operation::all_gather>();
  add.template operator()<comm_operation::all_to_all>();
  return decisions;
}

}  // namespace heddle::inline v0
