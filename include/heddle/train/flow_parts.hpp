// heddle/train/flow_parts.hpp: parts of a model: functions on ranks of their own, with operands.
#pragma once

#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/layout/sbp.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// OneFlow's programs: a part is a function of tensors on a placement, what it gets says how it is split by signatures,
/// and values are boxed between parts. Source: Yuan et al. 2021, arXiv:2110.15032, sections 3 and 5.
namespace heddle::inline v0::flow {

/// Ranks `First`, `First` + 1, ... of a world, on a mesh of their own.
template <mesh_like Mesh, int First>
struct placement {
  static_assert(Mesh::is_static && First >= 0,
                "heddle: flow::placement<Mesh, First>: the mesh is static, First counts from 0");
  using mesh = Mesh;
  static constexpr int first = First, size = Mesh::size();
};

/// In which order the actors of a part act.
namespace order {
/// As a simulation in which all actors take as long; so all ranks of a placement make their collectives in one order.
struct planned {};
/// As soon as what an actor reads is there and a slot is free, by `schedule::run_actors`; placements have one rank
/// each.
struct ready {};
}  // namespace order

/// A weight or an input of a part's function, with one of `sbp::S<dim>`, `sbp::B`, `sbp::P` for each axis of the
/// placement's mesh. `Element` is void where it is the model's.
template <bool Trained, class Element, std::size_t Rank, class... Entries>
struct leaf {
  dynamic_shape<Rank> shape;
};
/// The value of part `Part` (counted from 0; -1: the part before), as this one gets it.
template <int Part, std::size_t Rank, class... Entries>
struct from_part {
  dynamic_shape<Rank> shape;
};
/// A trained tensor of this whole shape.
template <class... Entries, std::int64_t... E>
constexpr leaf<true, void, sizeof...(E), Entries...> weight(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// A tensor of this whole shape that is fed in each round.
template <class... Entries, std::int64_t... E>
constexpr leaf<false, void, sizeof...(E), Entries...> input(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// Whole numbers, such as tokens or classes, that are fed in each round.
template <class... Entries, std::int64_t... E>
constexpr leaf<false, std::int32_t, sizeof...(E), Entries...> ids(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// What the part before returns, a tensor of this whole shape.
template <class... Entries, std::int64_t... E>
constexpr from_part<-1, sizeof...(E), Entries...> before(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// What part `Part` returns, a tensor of this whole shape. Several parts may take the value of one: its gradient is the
/// sum of theirs.
template <int Part, class... Entries, std::int64_t... E>
constexpr from_part<Part, sizeof...(E), Entries...> from(const shape<E...>& s) {
  static_assert(Part >= 0, "heddle: flow::from<Part, ...>: Part counts from 0");
  return {make_shape(s.extents())};
}

/// A function of tensors on a placement; made by `on`.
template <class Placement, class F, class... Operands>
struct part {
  using where = Placement;
  using function = F;
  F f;
  std::tuple<Operands...> operands;
};
/// `f(operands...)`, an expression, on the ranks of a placement.
template <class Placement, class F, class... Operands>
part<Placement, F, Operands...> on(F f, Operands... operands) {
  return {std::move(f), {operands...}};
}

namespace detail {

inline constexpr int no_part = -2;

// The type of an operand on the mesh of its part, and what its function is called with.
template <class T, class Mesh, class Operand>
struct operand_on;
template <class T, class Mesh, bool Trained, class Element, std::size_t Rank, class... Entries>
struct operand_on<T, Mesh, leaf<Trained, Element, Rank, Entries...>> {
  using element = std::conditional_t<std::is_void_v<Element>, T, Element>;
  using type = sharded<element, Rank, sbp::signature<Mesh, Entries...>>;
  using argument = std::conditional_t<Trained, const type&, compute::detail::constant_operand<type>>;
  static constexpr bool trained = Trained, boxed = false;
};
template <class T, class Mesh, int Part, std::size_t Rank, class... Entries>
struct operand_on<T, Mesh, from_part<Part, Rank, Entries...>> {
  using type = sharded<T, Rank, sbp::signature<Mesh, Entries...>>;
  using argument = type;
  static constexpr bool trained = false, boxed = true;
};

// A part with its types: `root` is the expression that its function makes.
template <class T, class Part>
struct typed_part;
template <class T, class Placement, class F, class... Operands>
struct typed_part<T, part<Placement, F, Operands...>> {
  using where = Placement;
  using mesh = typename Placement::mesh;
  static constexpr std::size_t operands = sizeof...(Operands);
  template <std::size_t K>
  using operand = operand_on<T, mesh, type_at<K, Operands...>>;
  using root = compute::detail::expression_made<F, typename operand_on<T, mesh, Operands>::argument...>;
  using value = sharded<T, root::dimensions, typename root::layout_type>;
  // What its backward begins with.
  using value_gradient = sharded<T, root::dimensions, dual<typename root::layout_type>>;
};

// Operand `operand` of part `to` is the value of part `from`.
struct edge {
  int from = no_part, to = 0, operand = 0;
};
template <class Operand>
inline constexpr int source_of = no_part;
template <int Part, std::size_t Rank, class... Entries>
inline constexpr int source_of<from_part<Part, Rank, Entries...>> = Part;
template <class Part>
struct sources;
template <class Placement, class F, class... Operands>
struct sources<part<Placement, F, Operands...>> {
  static constexpr int edges = (0 + ... + (source_of<Operands> == no_part ? 0 : 1));
  static constexpr void add(auto& to, std::size_t& count, int at) {
    int k = 0;
    (..., [&](int from) {
      if (from != no_part) to[count++] = {from < 0 ? at - 1 : from, at, k};
      ++k;
    }(source_of<Operands>));
  }
};

// The edges in the order of the parts that take a value, and of their operands.
template <class... Parts>
struct links {
  static constexpr int parts = static_cast<int>(sizeof...(Parts));
  static constexpr std::size_t count = static_cast<std::size_t>((0 + ... + sources<Parts>::edges));
  static constexpr std::array<edge, count> edges = [] {
    std::array<edge, count> all{};
    std::size_t n = 0;
    int at = 0;
    (sources<Parts>::add(all, n, at++), ...);
    return all;
  }();
  static constexpr int number(auto&& holds) {
    int n = 0;
    for (const edge& e : edges) n += holds(e) ? 1 : 0;
    return n;
  }
  static constexpr int readers(int part) {
    return number([=](const edge& e) { return e.from == part; });
  }
  static constexpr int taken(int part) {
    return number([=](const edge& e) { return e.to == part; });
  }

  static constexpr bool apart = [] {
    const std::array<int, sizeof...(Parts)> first{Parts::where::first...}, size{Parts::where::size...};
    for (std::size_t i = 0; i < first.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (first[i] < first[k] + size[k] && first[k] < first[i] + size[i]) return false;
    return true;
  }();
  static constexpr bool begins = taken(0) == 0;
  static constexpr bool earlier = number([](const edge& e) { return e.from >= e.to; }) == 0;
  static constexpr bool once = [] {
    for (std::size_t e = 1; e < count; ++e)
      for (std::size_t f = 0; f < e; ++f)
        if (edges[e].to == edges[f].to && edges[e].from == edges[f].from) return false;
    return true;
  }();
  static constexpr bool used = [] {
    for (int p = 0; p + 1 < parts; ++p)
      if (readers(p) == 0) return false;
    return true;
  }();
  static constexpr bool chained =
      static_cast<int>(count) + 1 == parts && number([](const edge& e) { return e.from + 1 != e.to; }) == 0;
  static constexpr bool single = ((Parts::where::size == 1) && ...);
};

// Stops at the first mistake.
template <class Links, bool Chain, bool Ready>
consteval bool parts_checked() {
  constexpr bool good_chain = !Chain || Links::chained;
  constexpr bool good_order = !Ready || Links::single;
  if constexpr (!Links::apart)
    static_assert(Links::apart, "heddle: flow: placements of two parts overlap; give each part ranks of its own");
  else if constexpr (!Links::begins)
    static_assert(Links::begins, "heddle: flow: the first part has no part before it; give it flow::input");
  else if constexpr (!good_chain)
    static_assert(good_chain,
                  "heddle: flow::chain: each part but the first takes the value of the one before, once; give it "
                  "flow::before<...>(shape), or make a flow::graph");
  else if constexpr (!Links::earlier)
    static_assert(Links::earlier,
                  "heddle: flow::from<Part, ...>: a part takes values of parts that are given before it, counted from "
                  "0");
  else if constexpr (!Links::once)
    static_assert(Links::once,
                  "heddle: flow: a part takes the value of another one once; its function may use it several times");
  else if constexpr (!Links::used)
    static_assert(Links::used,
                  "heddle: flow: no part takes the value of one that is not the last; take it by flow::from<Part, "
                  "...>(shape)");
  else
    static_assert(good_order,
                  "heddle: flow::order::ready: ranks of one placement make their collectives in one order; take "
                  "order::planned, or placements of one rank");
  return Links::apart && Links::begins && good_chain && Links::earlier && Links::once && Links::used && good_order;
}
struct refused_parts {};

// What `transfer` exchanges blocks over, where those who have nothing to do with a transfer do not call it: messages,
// of which sends end later.
template <class Comm>
class messages_between {
 public:
  struct sent {
    std::vector<std::byte> bytes;
    typename Comm::request request;
  };
  struct log {
    std::deque<sent> under_way;
    std::int64_t bytes = 0;
  };
  messages_between(Comm& comm, log& sends, int tag) : comm_(comm), sends_(sends), tag_(tag) {}
  messages_between& all() noexcept { return *this; }
  int rank() const noexcept { return comm_.rank(); }
  int size() const noexcept { return comm_.size(); }

  template <class In, class Out>
  void all_to_all_v(const In& in, std::span<const std::int64_t> to, Out&& out, std::span<const std::int64_t> from) {
    const int tag = tag_++, me = rank();  // the second exchange of a transfer has another
    while (!sends_.under_way.empty() && sends_.under_way.front().request.test()) sends_.under_way.pop_front();
    const auto x = std::span(in);
    const auto y = std::span(out);
    std::size_t at = 0, own = 0;
    for (int r = 0; r < size(); ++r) {
      const auto n = static_cast<std::size_t>(to[static_cast<std::size_t>(r)]);
      if (r == me) own = at;
      if (n > 0 && r != me) {
        const auto block = std::as_bytes(x.subspan(at, n));
        sends_.bytes += static_cast<std::int64_t>(block.size());
        sends_.under_way.push_back({std::vector<std::byte>(block.begin(), block.end()), {}});
        sent& s = sends_.under_way.back();
        s.request = comm_.isend(std::span<const std::byte>(s.bytes), r, tag);
      }
      at += n;
    }
    at = 0;
    for (int r = 0; r < size(); ++r) {
      const auto n = static_cast<std::size_t>(from[static_cast<std::size_t>(r)]);
      if (n > 0 && r == me)
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(own), n, y.begin() + static_cast<std::ptrdiff_t>(at));
      else if (n > 0)
        comm_.recv(std::as_writable_bytes(y.subspan(at, n)), r, tag);
      at += n;
    }
  }

 private:
  Comm& comm_;
  log& sends_;
  int tag_;
};

}  // namespace detail
}  // namespace heddle::inline v0::flow
