// heddle/collective/algorithm/reduce_scatter_gather.hpp: reduce as reduce_scatter, then gather.
#pragma once

#include <heddle/collective/algorithm/append_rounds.hpp>
#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/ring.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace algo {

/// Reduce as a reduce_scatter by the algorithm `Scatter` and a gather up the binomial tree: with the ring, with PAT,
/// and with recursive halving where p is a power of two, no rank receives more than 2 (p - 1) / p of the vector, where
/// the binomial tree alone brings log2 p times the vector to the root. (Halving for other p first brings some ranks a
/// whole vector: up to 3 in all.) Folds in the order in which `Scatter` does. Source: Rabenseifner 2004.
template <class Scatter = ring>
struct reduce_scatter_gather
    : detail::offers_with_part<comm_operation::reduce, Scatter, comm_operation::reduce_scatter> {
  static constexpr auto stored_name = detail::name_with("reduce_scatter_gather", std::string_view(Scatter::name));
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr fold_order order = Scatter::template order<comm_operation::reduce_scatter>;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    const round_table scatter = Scatter::template rounds<comm_operation::reduce_scatter>(ranks, 0);
    round_builder rounds(What, ranks, root, scatter.blocks, scatter.parts);
    const int folded = detail::append_rounds(rounds, scatter, 0);
    detail::binomial_gather(rounds, folded);
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0
