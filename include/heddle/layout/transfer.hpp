// heddle/layout/transfer.hpp: plans of transfers between two meshes of ranks.
#pragma once

#include <heddle/layout/redistribution.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// `count` ranks from `first` on, in a numbering that both sides of a transfer share.
struct rank_range {
  int first = 0;
  int count = 0;
};

/// The plan that brings a tensor from a layout on some ranks to a layout on others: the same, disjoint or overlapping.
/// In one exchange each receiver gets, straight from a rank that holds it, what it does not hold itself; contributions along partial
/// axes of the source are sent by each of the ranks that hold one, and combined by the receiver. From partial to replicated there
/// are two: the receivers that are to be equal get the contributions to a part each, then gather the parts among themselves.
/// Where the target is partial, its first ranks get the values and the others hold the identity. A rank of both sides keeps what
/// it has for nothing.
/// Units: bytes are exact. On disjoint ranks, p1 -> p2, with T the bytes of the tensor, for any sizes:
/// T + [to replicated] (p2 - 1) T + [from partial] (p1 - 1) T. Only a tensor without dimensions has no parts: p1 p2 T there.
/// Errors: `layout_error` if a list does not have one rank per rank of its mesh, has one twice, or a negative one; for bytes that
/// a 64-bit number does not count.
/// Source: Yuan et al. 2021 (OneFlow), arXiv:2110.15032, table 2.
template <layout_like From, layout_like To>
class transfer_plan {
 public:
  static_assert(!From::has_varying && !To::has_varying,
                "heddle: plan_transfer: values that vary over an axis have no meaning for the whole tensor; say what "
                "they mean with "
                "assume<To> first");

  static_assert(!From::has_halo && !To::has_halo,
                "heddle: plan_transfer: a layout has a halo, whose elements several ranks hold; transfer between "
                "layouts without_halo<layout>, and redistribute before or after");

  transfer_plan(const From& from, std::vector<int> from_ranks, const To& to, std::vector<int> to_ranks)
      : from_(from), to_(to), from_ranks_(std::move(from_ranks)), to_ranks_(std::move(to_ranks)) {
    check(from_ranks_, from_.mesh().size(), "source");
    check(to_ranks_, to_.mesh().size(), "target");
  }

  const From& from() const noexcept { return from_; }
  const To& to() const noexcept { return to_; }
  const std::vector<int>& from_ranks() const noexcept { return from_ranks_; }
  const std::vector<int>& to_ranks() const noexcept { return to_ranks_; }

  /// The rank of the source's mesh that this rank of the shared numbering is, or -1; and of the target's.
  int source_of(int rank) const noexcept { return place(from_ranks_, rank); }
  int target_of(int rank) const noexcept { return place(to_ranks_, rank); }

  /// Whether rank `target` of the target's mesh gets values at all: coordinate 0 along its partial axes.
  bool receives(int target) const {
    const auto mesh = detail::numbers_of(to_.mesh().extents());
    for (std::size_t a = 0; a < To::mesh_type::rank; ++a)
      if (To::table.use[a].role == axis_role::partial && mesh.coordinate(a, target) != 0) return false;
    return true;
  }
  /// Whether rank `source` of the source's mesh sends to rank `target` of the target's what both have in common (there may be
  /// nothing). Along axes that hold copies one rank is chosen: the receiver itself if it is one, otherwise copies take turns.
  bool sends(int source, int target) const {
    if (!receives(target)) return false;
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    const int self = source_of(to_ranks_[static_cast<std::size_t>(target)]);
    for (std::size_t a = 0; a < From::mesh_type::rank; ++a) {
      if (!detail::is_copy(From::table.use[a].role)) continue;
      const int chosen = self >= 0 ? mesh.coordinate(a, self) : target / mesh.strides[a] % mesh.extents[a];
      if (mesh.coordinate(a, source) != chosen) return false;
    }
    return true;
  }

  /// Whether there are two exchanges: to parts on the target's ranks, and from there to what they hold in the end.
  bool gathers(std::size_t tensor_rank) const {
    std::int64_t contributions = 1, copies = 1;
    for (std::size_t a = 0; a < From::mesh_type::rank; ++a)
      if (From::table.use[a].role == axis_role::partial) contributions *= from_.mesh().extents()[a];
    for (std::size_t a = 0; a < To::mesh_type::rank; ++a)
      if (detail::is_copy(To::table.use[a].role)) copies *= to_.mesh().extents()[a];
    return tensor_rank > 0 && contributions > 1 && copies > 1;
  }
  /// What rank `target` of the target's mesh has after the first exchange: where there is a second one, those that are to be equal
  /// split the dimension of which they have most.
  template <std::int64_t... E>
  detail::tensor_part<sizeof...(E), To::mesh_type::rank> landing_part(const shape<E...>& s, int target) const {
    auto part = to_.part(s, target);
    if (!gathers(sizeof...(E))) return part;
    const auto mesh = detail::numbers_of(to_.mesh().extents());
    const auto first = to_.part(s, 0);  // the same choice on all ranks
    std::size_t dim = 0;
    for (std::size_t d = 1; d < sizeof...(E); ++d)
      if (first.dims[d].size() > first.dims[dim].size()) dim = d;
    for (std::size_t a = 0; a < To::mesh_type::rank; ++a)
      if (detail::is_copy(To::table.use[a].role))
        part.dims[dim].cut(detail::functions_of<split::balanced>, static_cast<int>(dim), mesh.extents[a],
                           mesh.coordinate(a, target));
    return part;
  }

  /// Elements that rank `source` of the source's mesh sends to rank `target` of the target's in the first exchange; also when they
  /// are one.
  template <std::int64_t... E>
  std::int64_t elements(const shape<E...>& s, int source, int target) const {
    if (!sends(source, target)) return 0;
    const auto held = from_.part(s, source);
    const auto wanted = landing_part(s, target);
    std::int64_t n = 1;
    for (std::size_t d = 0; d < sizeof...(E); ++d) n *= detail::common_size(held.dims[d], wanted.dims[d]);
    return n;
  }
  /// Elements that rank `target` of the target's mesh sends to rank `other` of it in the second; also when they are one.
  template <std::int64_t... E>
  std::int64_t gathered_elements(const shape<E...>& s, int target, int other) const {
    if (!gathers(sizeof...(E)) || !receives(target)) return 0;
    const auto mesh = detail::numbers_of(to_.mesh().extents());
    for (std::size_t a = 0; a < To::mesh_type::rank; ++a)
      if (!detail::is_copy(To::table.use[a].role) && mesh.coordinate(a, target) != mesh.coordinate(a, other)) return 0;
    return landing_part(s, target).size();
  }
  /// Bytes that one rank of the shared numbering sends to others.
  template <std::int64_t... E>
  std::int64_t bytes_sent(const shape<E...>& s, std::size_t element_size, int rank) const {
    const int source = source_of(rank);
    std::int64_t n = 0;
    if (source >= 0)
      for (int target = 0; target < to_.mesh().size(); ++target)
        if (to_ranks_[static_cast<std::size_t>(target)] != rank) n = sum_of_counts(n, elements(s, source, target));
    const int own = target_of(rank);
    if (own >= 0)
      for (int other = 0; other < to_.mesh().size(); ++other)
        if (other != own) n = sum_of_counts(n, gathered_elements(s, own, other));
    return sent(product_of_counts(n, static_cast<std::int64_t>(element_size)), s);
  }
  /// Bytes that all ranks send together.
  template <std::int64_t... E>
  std::int64_t bytes_sent_in_total(const shape<E...>& s, std::size_t element_size) const {
    std::int64_t total = 0;
    for (const int rank : from_ranks_) total = sum_of_counts(total, bytes_sent(s, element_size, rank));
    for (const int rank : to_ranks_)
      if (source_of(rank) < 0) total = sum_of_counts(total, bytes_sent(s, element_size, rank));
    return sent(total, s);
  }

 private:
  template <std::int64_t... E>
  static std::int64_t sent(std::int64_t bytes, const shape<E...>& s) {
    return detail::counted(bytes, s.extents(), "sends more bytes");
  }
  static int place(const std::vector<int>& ranks, int rank) noexcept {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] == rank) return static_cast<int>(i);
    return -1;
  }
  static void check(const std::vector<int>& ranks, int size, const char* side) {
    bool distinct = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) distinct = distinct && place(ranks, ranks[i]) == static_cast<int>(i);
    for (const int r : ranks) {
      if (r >= 0) continue;
      std::string text = "heddle: plan_transfer: ranks count from 0; the ";
      text += side;
      text += "'s list names rank ";
      text += std::to_string(r);
      throw layout_error(text);
    }
    if (distinct && ranks.size() == static_cast<std::size_t>(size)) return;
    throw layout_error(text_of({"heddle: plan_transfer: the ", side, "'s mesh has ", size,
                                " ranks, so its list must name as many, each once; it names ", ranks.size()}));
  }

  From from_;
  To to_;
  std::vector<int> from_ranks_, to_ranks_;
};

/// The plan of a transfer between explicit lists of ranks, each in the order of its mesh.
template <layout_like From, layout_like To>
transfer_plan<From, To> plan_transfer(const From& from, std::vector<int> from_ranks, const To& to,
                                      std::vector<int> to_ranks) {
  return {from, std::move(from_ranks), to, std::move(to_ranks)};
}

/// The plan of a transfer between two ranges of ranks.
template <layout_like From, layout_like To>
transfer_plan<From, To> plan_transfer(const From& from, rank_range from_ranks, const To& to, rank_range to_ranks) {
  const auto list = [](rank_range r) {
    std::vector<int> out;
    for (int i = 0; i < r.count; ++i) out.push_back(r.first + i);
    return out;
  };
  return {from, list(from_ranks), to, list(to_ranks)};
}

}  // namespace heddle::inline v0
