// heddle/context/cost.hpp: costs of context tables, and the cheapest carrier.
#pragma once

#include <heddle/collective/round_cost.hpp>
#include <heddle/context/carriers.hpp>
#include <heddle/context/shape.hpp>
#include <heddle/context/slices_between.hpp>
#include <heddle/context/table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// How many pairs of positions each rank attends in each round, [rounds, ranks]: once for each part of the heads.
constexpr std::vector<std::int64_t> context_areas(const context_table& t) {
  const auto ranks = static_cast<std::size_t>(t.ranks());
  std::vector<std::int64_t> areas(static_cast<std::size_t>(t.round_count()) * ranks, 0);
  std::int64_t area = 0;
  for (std::size_t i = 0; i < t.tasks.size(); ++i) {
    const context_task& k = t.tasks[i];
    if (i == 0 || k.queries != t.tasks[i - 1].queries || k.keys != t.tasks[i - 1].keys)
      area = area_between(t.cut.documents[static_cast<std::size_t>(t.cut[k.queries].document)].mask, t.cut[k.queries],
                          t.cut[k.keys]);
    areas[static_cast<std::size_t>(k.round) * ranks + static_cast<std::size_t>(k.rank)] += area;
  }
  return areas;
}

/// How evenly the ranks share the pairs of positions.
struct context_balance {
  std::int64_t most = 0;  ///< of the busiest rank
  std::int64_t all = 0;   ///< of all ranks together
  int ranks = 1;
  /// Of the busiest rank over the mean; 1 where there is nothing to do.
  constexpr double max_over_mean() const noexcept {
    return all == 0 ? 1 : static_cast<double>(most) * ranks / static_cast<double>(all);
  }
};
/// The balance of a table over all its rounds.
constexpr context_balance balance_of(const context_table& t) {
  const std::vector<std::int64_t> areas = context_areas(t);
  context_balance b;
  b.ranks = t.ranks();
  for (int r = 0; r < t.ranks(); ++r) {
    std::int64_t own = 0;
    for (std::size_t i = static_cast<std::size_t>(r); i < areas.size(); i += static_cast<std::size_t>(t.ranks()))
      own += areas[i];
    b.most = (std::max)(b.most, own);
    b.all += own;
  }
  return b;
}

/// The bytes that a rank sends, by kind.
struct context_bytes {
  std::array<std::int64_t, 4> of_kind{};
  constexpr std::int64_t operator[](context_kind k) const noexcept { return of_kind[static_cast<std::size_t>(k)]; }
  constexpr std::int64_t total() const noexcept { return of_kind[0] + of_kind[1] + of_kind[2] + of_kind[3]; }
  friend constexpr bool operator==(const context_bytes&, const context_bytes&) = default;
};
/// The bytes that one rank sends in all rounds, or all ranks together where none is named: constants of table and
/// shape, and what the communicator counts.
constexpr context_bytes bytes_sent(const context_table& t, const context_shape& shape, int rank = -1) {
  context_bytes bytes;
  for (const round_transfer& m : t.rounds.transfers)
    if (rank < 0 || m.from == rank)
      for (int i = m.first; i < m.first + m.items; ++i) {
        const int item = t.rounds.items[static_cast<std::size_t>(i)];
        bytes.of_kind[static_cast<std::size_t>(t.kind_of(item))] +=
            t.cut[t.piece_of(item)].count * shape.row_bytes(t.kind_of(item), t.pass, t.parts());
      }
  return bytes;
}

/// What a rank computes and how it is linked to the others. `full_mesh`: a link from every rank to every other; else
/// one link of each rank to all, whose two directions work at once.
struct context_machine {
  double flops_per_second = 1e14;
  double bytes_per_second = 1e11;
  double message_seconds = 1e-5;
  bool full_mesh = true;
};

/// Floating-point operations of a pair of positions with one head: 2 for each number of a query and of an output, and
/// backward 2.5 times as many, as five products are computed instead of two.
constexpr double operations_per_pair(const context_shape& shape, context_pass pass) noexcept {
  return 2.0 * static_cast<double>(shape.head_dim + shape.value_dim) * (pass == context_pass::forward ? 1.0 : 2.5);
}

/// For how many seconds each rank computes in each round, [rounds, ranks]: what `sim::simulate` takes.
constexpr std::vector<double> compute_seconds(const context_table& t, const context_shape& shape,
                                              double flops_per_second) {
  const std::vector<std::int64_t> areas = context_areas(t);
  const double each =
      operations_per_pair(shape, t.pass) * static_cast<double>(shape.queries_in(t.parts())) / flops_per_second;
  std::vector<double> seconds(areas.size());
  for (std::size_t i = 0; i < areas.size(); ++i) seconds[i] = static_cast<double>(areas[i]) * each;
  return seconds;
}

/// The seconds until the last rank is done, if a round of a rank takes as long as its computation or its messages,
/// whichever is longer, and the messages of a round that share a link end together. For other networks take
/// `sim::simulate`.
constexpr double seconds(const context_table& t, const context_shape& shape, const context_machine& machine) {
  const auto n = static_cast<std::size_t>(t.ranks());
  const std::vector<double> compute = compute_seconds(t, shape, machine.flops_per_second);
  const std::vector<round_transfer>& messages = t.rounds.transfers;
  const auto bytes_of = [&](const round_transfer& m) {
    std::int64_t bytes = 0;
    for (int i = m.first; i < m.first + m.items; ++i) {
      const int item = t.rounds.items[static_cast<std::size_t>(i)];
      bytes += t.cut[t.piece_of(item)].count * shape.row_bytes(t.kind_of(item), t.pass, t.parts());
    }
    return static_cast<double>(bytes);
  };
  // Of a round, by links: from each rank to each other, or out of each rank and into each.
  std::vector<double> begin(n, 0), end(n, 0), out(machine.full_mesh ? n * n : n, 0), in(out);
  const auto link_out = [&](const round_transfer& m) {
    return static_cast<std::size_t>(m.from) * (machine.full_mesh ? n : 1) +
           static_cast<std::size_t>(machine.full_mesh ? m.to : 0);
  };
  const auto link_in = [&](const round_transfer& m) {
    return machine.full_mesh ? link_out(m) : static_cast<std::size_t>(m.to);
  };
  std::size_t first = 0, last = 0;
  for (int round = 0; round < t.round_count(); ++round, first = last) {
    for (; last < messages.size() && messages[last].round == round; ++last) {
      out[link_out(messages[last])] += bytes_of(messages[last]);
      in[link_in(messages[last])] += machine.full_mesh ? 0 : bytes_of(messages[last]);
    }
    for (std::size_t r = 0; r < n; ++r) end[r] = begin[r] + compute[static_cast<std::size_t>(round) * n + r];
    for (std::size_t i = first; i < last; ++i) {
      const auto from = static_cast<std::size_t>(messages[i].from), to = static_cast<std::size_t>(messages[i].to);
      const double there = (std::max)(begin[from], begin[to]) + machine.message_seconds +
                           (std::max)(out[link_out(messages[i])], in[link_in(messages[i])]) / machine.bytes_per_second;
      end[from] = (std::max)(end[from], there);
      end[to] = (std::max)(end[to], there);
    }
    for (std::size_t i = first; i < last; ++i) out[link_out(messages[i])] = in[link_in(messages[i])] = 0;
    begin = end;
  }
  return *std::max_element(begin.begin(), begin.end());
}

/// What a carrier costs for both passes.
struct carrier_cost {
  context_carrier carrier{};
  double seconds = 0;
};
/// The carrier that takes the least time, forward and backward together, among those that offer the documents' numbers
/// of ranks and can cut the heads; the first one of equals. Its name is empty if none can.
constexpr carrier_cost cheapest(const context_cut& cut, std::span<const context_carrier> carriers,
                                const context_shape& shape, const context_machine& machine) {
  carrier_cost best;
  for (const context_carrier& c : carriers) {
    bool fits = shape.query_heads % c.parts == 0 && (shape.key_heads % c.parts == 0 || c.parts % shape.key_heads == 0);
    for (const context_document& d : cut.documents)
      fits = fits && (d.length == 0 || c.offers(static_cast<int>(d.ranks.size())));
    if (!fits) continue;
    double takes = 0;
    for (const context_pass pass : {context_pass::forward, context_pass::backward})
      takes += seconds(make_context_table(c, cut, pass), shape, machine);
    if (best.carrier.name.empty() || takes < best.seconds) best = {c, takes};
  }
  return best;
}

}  // namespace heddle::inline v0
