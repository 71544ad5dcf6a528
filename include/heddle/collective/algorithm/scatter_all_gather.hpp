// heddle/collective/algorithm/scatter_all_gather.hpp: broadcast as scatter, then all_gather.
#pragma once

#include <heddle/collective/algorithm/append_rounds.hpp>
#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/ring.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace algo {

/// Broadcast as a scatter down the binomial tree and an all_gather by the algorithm `Gather`: with the ring in
/// log2 p + p - 1 rounds, with recursive doubling in 2 log2 p. The root sends 2 (p - 1) / p of the vector instead of
/// log2 p times the vector. Source: Barnett et al. 1994; van de Geijn 1991.
template <class Gather = ring>
struct scatter_all_gather : detail::offers_with_part<comm_operation::broadcast, Gather, comm_operation::all_gather>,
                            detail::folds_in<fold_order::none> {
  static constexpr auto stored_name = detail::name_with("scatter_all_gather", std::string_view(Gather::name));
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    const round_table gather = Gather::template rounds<comm_operation::all_gather>(ranks, 0);
    round_builder rounds(What, ranks, root, gather.blocks, gather.parts);
    const int scattered = detail::binomial_scatter(rounds, 0);
    detail::append_rounds(rounds, gather, scattered);
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0
