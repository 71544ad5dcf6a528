// heddle/collective/tune.hpp: measures a network and the algorithms on it, for decisions that fit.
#pragma once

#include <heddle/collective/collective_plans.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/collective/decision.hpp>
#include <heddle/collective/measured_decisions.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/run_collective.hpp>

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

// What a call takes where nothing else disturbs it: the mean of the fastest quarter. Other programs only ever make it
// slower, often by much; the least time alone is luck where it depends on who wakes whom.
inline double typical_of(std::vector<double> x) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  const std::size_t quarter = (x.size() + 3) / 4;
  double sum = 0;
  for (std::size_t i = 0; i < quarter; ++i) sum += x[i];
  return sum / static_cast<double>(quarter);
}

// The same on every rank.
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
    for (int repetition = 0; repetition < 8; ++repetition) {  // the first one warms up
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
      if (repetition > 0) seen.push_back((detail::seconds_now() - start) / (2 * times_each));
    }
    times[i] = {sizes[i], detail::slowest(comm, detail::typical_of(seen))};
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
  net.gamma = detail::slowest(comm, detail::typical_of(seen)) / static_cast<double>(n * 4);
  return net;
}

/// An algorithm and the seconds that a collective took by it, on the slowest rank.
struct algorithm_time {
  algorithm_name name = algorithm_name::built_in;
  fold_order order = fold_order::none;
  double seconds = 0;
};

/// Measures one collective of floats, of `bytes` as in `collective_question`, by every algorithm that heddle has for this
/// number of ranks, and by the communicator's own call, which is the first of the result. All take turns, `repetitions`
/// times up to 20 calls each, and those that may be the fastest three times as often; a time is the mean of the fastest
/// quarter of one's turns, so that other programs disturb it little. A collective: every rank gets the same times.
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
  std::int64_t block = bytes / 4 / (vector ? 1 : p);
  if (bytes > 0) block = (std::max)(block, std::int64_t{1});
  const std::int64_t in =
      What == comm_operation::reduce_scatter || What == comm_operation::all_to_all ? p * block : block;
  const std::int64_t out = What == comm_operation::all_gather || What == comm_operation::all_to_all ? p * block : block;
  std::vector<float> x(static_cast<std::size_t>(in), 0.0f), y(static_cast<std::size_t>(out), 0.0f);

  struct candidate {
    const detail::round_source* source;
    int times = 1;
    std::vector<double> seconds{};
  };
  std::vector<algorithm_time> result{{}};
  std::vector<candidate> candidates{{nullptr}};
  for (const detail::known_source& k : detail::known_sources<What>) {
    if (k.source == nullptr || !k.source->offers(p)) continue;
    result.push_back({k.name, k.source->order, 0});
    candidates.push_back({k.source});
  }
  const auto run = [&](const candidate& c) {
    if (c.source == nullptr)
      detail::own_call<What>(comm, x, y);
    else
      detail::by_source<What, float>(comm, *c.source, x.data(), y.data(),
                                     vector ? block_sizes::vector(block) : block_sizes::equal(block), 0,
                                     What == comm_operation::broadcast, plus{}, plans);
  };
  const auto take = [&](candidate& c) {
    comm.barrier();
    run(c);  // the one before left its traces
    const double start = detail::seconds_now();
    for (int k = 0; k < c.times; ++k) run(c);
    return detail::slowest(comm, (detail::seconds_now() - start) / c.times);
  };
  for (candidate& c : candidates) {  // warm up; then see how often it fits into 0.3 ms
    take(c);
    c.times = static_cast<int>(std::clamp(3e-4 / (take(c) + 1e-9), 1.0, 20.0));
  }
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (candidate& c : candidates) c.seconds.push_back(take(c));
  const auto weigh = [&] {
    for (std::size_t i = 0; i < candidates.size(); ++i) result[i].seconds = detail::typical_of(candidates[i].seconds);
  };
  weigh();
  double least = result[0].seconds, least_in_order = least;
  for (const algorithm_time& t : result) {
    least = (std::min)(least, t.seconds);
    if (t.order != fold_order::any) least_in_order = (std::min)(least_in_order, t.seconds);
  }
  const auto close = [&](const algorithm_time& t) {
    return t.seconds <= 1.5 * (t.order == fold_order::any ? least : least_in_order);
  };
  std::vector<std::size_t> again;
  for (std::size_t i = 0; i < result.size(); ++i)
    if (close(result[i])) again.push_back(i);
  for (int repetition = 0; repetition < 2 * repetitions; ++repetition)
    for (std::size_t k = again.size(); k-- > 0;)  // now each comes after another one than before
      candidates[again[k]].seconds.push_back(take(candidates[again[k]]));
  weigh();
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
/// holds from half way (geometrically) to the size below. `sizes` in bytes, the same on every rank. A collective: every
/// rank gets the same decisions. Takes some milliseconds per collective, size and algorithm.
///
///     plans.decide_by(hd::tune(comm, sizes));
template <communicator C>
measured_decisions tune(C& comm, std::span<const std::int64_t> sizes_in_bytes, int repetitions = 7) {
  std::vector<std::int64_t> sizes(sizes_in_bytes.begin(), sizes_in_bytes.end());
  std::sort(sizes.begin(), sizes.end());
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
