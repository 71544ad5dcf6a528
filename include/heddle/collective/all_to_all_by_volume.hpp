// heddle/collective/all_to_all_by_volume.hpp: all_to_all_v, its algorithm chosen by the volume.
#pragma once

#include <heddle/collective/collectives.hpp>
#include <heddle/collective/round_cost.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// Elements of all ranks, `counts[s]` of them from rank s, in rank order.
template <class T>
struct counted_elements {
  std::vector<T> elements;
  std::vector<std::int64_t> counts;
};

/// all_to_all_v where ranks know what they send, `send_counts[r]` elements to rank r, and not what they get. They tell
/// each other first, by an all_to_all of the counts; then the elements go by algorithm `A`. Where most counts are zero,
/// `sparse_exchange` sends less (collective/sparse_exchange.hpp).
///
///     const auto [tokens, counts] = hd::all_to_all_v(comm, sorted_by_expert, tokens_per_rank);
///
/// Errors: as all_to_all_v.
template <class A = algo::automatic, communicator C, detail::spannable In>
auto all_to_all_v(C& comm, In&& in, counts_span send_counts, detail::kept_plans plans = {}) {
  using T = detail::comm_element<In>;
  counted_elements<T> came;
  if constexpr (detail::can_travel<T>()) {
    const std::span<const T> x = std::span(in);
    const detail::arguments_of<C> arguments(comm);
    const detail::counted_blocks sent = arguments.require_counts("all_to_all_v", send_counts);
    arguments.require_length("all_to_all_v", "in", arguments.length(x), sent.offset(comm.size()));
    came.counts.resize(send_counts.size());
    heddle::all_to_all(comm, send_counts, came.counts, plans);
    std::int64_t all = 0;
    for (const std::int64_t n : came.counts) all += n;
    came.elements.resize(static_cast<std::size_t>(all));
    heddle::all_to_all_v<A>(comm, x, send_counts, came.elements, came.counts, plans);
  }
  return came;
}

/// Up to how many bytes that a rank sends, or gets, an all_to_all_v takes less time over the grid
/// (algo::grid_all_to_all) than directly, by Hockney's model, if every rank sends as much to each: the grid of c
/// columns takes 2 (c - 1) messages instead of p - 1, and (c - 1)^2 / p of the bytes more, after an all_gather of all
/// p^2 counts. 0 where it never does.
/// Units: bytes. Source: Uhl et al. 2024, arXiv:2404.05610.
constexpr std::int64_t grid_volume(int ranks, const hockney& net) noexcept {
  constexpr std::int64_t any = std::int64_t{1} << 60;
  const int columns = algo::grid_all_to_all::columns(ranks), rows = (ranks + columns - 1) / columns;
  const int saved = ranks - 1 - (columns + rows - 2) - detail::tree_rounds(ranks);  // messages
  if (saved <= 0 || !(net.alpha > 0)) return 0;
  if (!(net.beta > 0)) return any;
  const double counts = 8.0 * (ranks - 1) * ranks;  // bytes
  const double more = (columns - 1.0) * (rows - 1.0) / ranks;
  const double bytes = (saved * net.alpha / net.beta - counts) / more;
  return !(bytes > 0) ? 0 : bytes < static_cast<double>(any) ? static_cast<std::int64_t>(bytes) : any;
}

/// all_to_all_v over the grid of ranks where the most bytes that a rank sends or gets are at most `grid_up_to`, and
/// directly where they are more. The ranks find the most by an all_reduce of one number. Returns which it was. The
/// default is for a network of 2 microseconds and 10 GB/s; better is `grid_volume(comm.size(), measure_links(comm))`,
/// the same on every rank. Few long blocks from one row of the grid to one column can make it slower: they meet in one
/// rank.
///
///     hd::all_to_all_v_by_volume(comm, x, send_counts, y, recv_counts, hd::grid_volume(comm.size(), net), plans);
///
/// Errors: as all_to_all_v.
template <communicator C, detail::spannable In, detail::spannable Out>
algorithm_name all_to_all_v_by_volume(C& comm, In&& in, counts_span send_counts, Out&& out, counts_span recv_counts,
                                      std::int64_t grid_up_to, detail::kept_plans plans = {}) {
  if constexpr (detail::same_elements<In, Out>()) {
    const std::span<const detail::comm_element<In>> x = std::span(in);
    const std::span<detail::comm_element<Out>> y = std::span(out);
    auto most = static_cast<std::int64_t>((std::max)(x.size_bytes(), y.size_bytes()));
    comm.all_reduce(std::span<std::int64_t>(&most, 1), maximum{});
    if (most <= grid_up_to) {
      heddle::all_to_all_v<algo::grid_all_to_all>(comm, x, send_counts, y, recv_counts, plans);
      return algorithm_name::grid_all_to_all;
    }
    heddle::all_to_all_v<algo::direct>(comm, x, send_counts, y, recv_counts, plans);
  }
  return algorithm_name::direct;
}
template <communicator C, detail::spannable In, detail::spannable Out>
algorithm_name all_to_all_v_by_volume(C& comm, In&& in, counts_span send_counts, Out&& out, counts_span recv_counts,
                                      detail::kept_plans plans = {}) {
  return all_to_all_v_by_volume(comm, in, send_counts, out, recv_counts, grid_volume(comm.size(), {2e-6, 1e-10, 0}),
                                plans);
}

}  // namespace heddle::inline v0
