// heddle/testing/tensor_laws.hpp: laws of layouts with data: scatter, gather, moves.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/redistribution.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/testing/counting_world.hpp>
#include <heddle/testing/layout_laws.hpp>
#include <heddle/testing/monoid_laws.hpp>
#include <heddle/testing/report.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace testing {
namespace detail {

// Each element that a rank holds: its place in memory (padding left out) and in the whole tensor, both row-major.
template <class L, std::int64_t... E, class Visit>
void for_each_held(const L& layout, const shape<E...>& s, int rank, Visit&& visit) {
  const auto valid = valid_extents(layout, s, rank);
  const auto stored = layout.local_shape(s, rank).extents();
  const std::int64_t count = product(valid);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto local = index_at(i, valid);
    visit(flat_at(local, stored), flat_at(layout.to_global(s, rank, local), s.extents()));
  }
}

// Small whole numbers, so that sums do not depend on their order.
inline double number_at(std::uint64_t seed, std::int64_t element, std::int64_t place) {
  const auto bits =
      counter_random(seed, static_cast<std::uint64_t>(place)).integer(static_cast<std::uint64_t>(element));
  return static_cast<double>(bits % 65) - 32.0;
}
// The same for products: of -1, 1 and 2, so that those of 53 are exact.
inline double factor_at(std::uint64_t seed, std::int64_t element, std::int64_t place) {
  constexpr std::array<double, 3> factors{-1.0, 1.0, 2.0};
  return factors[static_cast<std::size_t>(number_at(seed, element, place) + 32.0) % factors.size()];
}

template <class Op>
inline constexpr bool is_product = false;
template <>
inline constexpr bool is_product<multiplies> = true;
template <class... Ops>
constexpr bool has_product(type_list<Ops...>) {
  return (is_product<Ops> || ...);
}

// The coordinates of a rank along the axes whose ranks hold different values of one element.
template <class L>
std::int64_t contribution_of(const L& layout, int rank) {
  const auto extents = layout.mesh().extents();
  std::int64_t place = 0;
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == axis_role::partial || L::table.use[a].role == axis_role::varying)
      place = place * extents[a] + hd::mesh_coordinate(extents, a, rank) + 1;
  return place;
}

// The elements that a rank holds, without padding.
template <class L, std::int64_t... E>
[[gnu::noinline]] std::vector<double> held_values(const L& layout, const shape<E...>& s, int rank,
                                                  std::span<const double> memory) {
  std::vector<double> out;
  for_each_held(layout, s, rank,
                [&](std::int64_t at, std::int64_t) { out.push_back(memory[static_cast<std::size_t>(at)]); });
  return out;
}

template <class L, std::int64_t... E>
using part_of_doubles = sharded<double, sizeof...(E), L>;

template <class L, std::int64_t... E>
[[gnu::noinline]] std::vector<part_of_doubles<L, E...>> parts_from(const L& layout, const shape<E...>& s,
                                                                   const std::vector<std::vector<double>>& memory) {
  std::vector<part_of_doubles<L, E...>> parts;
  for (std::size_t r = 0; r < memory.size(); ++r) {
    buffer<double> b(static_cast<std::int64_t>(memory[r].size()));
    std::copy(memory[r].begin(), memory[r].end(), b.begin());
    parts.emplace_back(layout, s, static_cast<int>(r), std::move(b));
  }
  return parts;
}

template <class L, std::int64_t... E>
[[gnu::noinline]] std::vector<double> whole_from(const L& layout, const shape<E...>& s,
                                                 const std::vector<std::vector<double>>& memory) {
  const auto parts = parts_from(layout, s, memory);
  const auto whole = assemble(std::span<const part_of_doubles<L, E...>>(parts));
  return {whole.begin(), whole.end()};
}

// What one rank found in a move from one layout to another.
struct moved_part {
  std::vector<double> copied, moved;
  std::int64_t bytes = 0;
  bool agreed = true;
};

// What all ranks found, and what was thrown, if anything.
struct moved_parts {
  std::vector<moved_part> found;
  std::optional<std::string> thrown{};
};

template <class Mesh>
[[gnu::noinline]] moved_parts on_counting_world(
    const Mesh& mesh, const std::function<std::vector<double>(counting::world<Mesh>&)>& copy,
    const std::function<std::vector<double>(counting::world<Mesh>&)>& move) {
  moved_parts all{std::vector<moved_part>(static_cast<std::size_t>(mesh.size()))};
  try {
    counting::run(mesh, [&](counting::world<Mesh>& w) {
      moved_part& mine = all.found[static_cast<std::size_t>(w.rank())];
      mine.copied = copy(w);
      w.all().barrier();  // nobody moves on before all have counted
      mine.bytes = w.bytes_sent();
      w.all().barrier();
      mine.moved = move(w);
      mine.agreed = !w.mismatch();
    });
  } catch (...) {
    all.thrown = thrown_text();
  }
  return all;
}

inline std::vector<double> values(std::span<const double> x) {
  return {x.begin(), x.end()};
}

inline std::string digits(double x) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", x);
  return text.data();
}

template <class Same = same_value>
std::string difference(const std::vector<double>& expected, const std::vector<double>& got, const Same& same = {}) {
  std::string text;
  if (expected.size() != got.size()) {
    text += std::to_string(got.size());
    text += " elements instead of ";
    text += std::to_string(expected.size());
    return text;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (same(expected[i], got[i])) continue;
    text += "element ";
    text += std::to_string(i);
    text += ": expected ";
    text += digits(expected[i]);
    text += ", got ";
    text += digits(got[i]);
    return text;
  }
  return text;
}

// What the parts of a target must be, whatever the source was: "" or what is wrong on one rank.
template <class L, class Same = same_value, std::int64_t... E>
[[gnu::noinline]] std::string wrong_part(const L& layout, const shape<E...>& s, const std::vector<double>& whole,
                                         int rank, const std::vector<double>& memory, const Same& same = {}) {
  if (static_cast<std::int64_t>(memory.size()) != layout.local_size(s, rank)) return "a part of the wrong size";
  if (L::has_partial) return {};
  std::vector<double> want;
  for_each_held(layout, s, rank,
                [&](std::int64_t, std::int64_t at) { want.push_back(whole[static_cast<std::size_t>(at)]); });
  return difference(want, held_values(layout, s, rank, memory), same);
}

// The lowest rank that holds the same as this one: which part, and which contribution to it.
template <class L>
int lowest_copy(const L& layout, int rank) {
  const auto extents = layout.mesh().extents();
  for (int r = 0; r < rank; ++r) {
    bool equal = true;
    for (std::size_t a = 0; a < extents.size(); ++a) {
      const auto role = L::table.use[a].role;
      if (role == axis_role::replicated || role == axis_role::identical) continue;
      equal = equal && hd::mesh_coordinate(extents, a, r) == hd::mesh_coordinate(extents, a, rank);
    }
    if (equal) return r;
  }
  return rank;
}

// Whether a rank holds what the lowest rank with the same part and contribution does: "" or how not. Contributions are
// free, their copies are not, and `assemble` reads only the lowest.
template <class L, class Same = same_value, std::int64_t... E>
[[gnu::noinline]] std::string wrong_copy(const L& layout, const shape<E...>& s, int rank,
                                         const std::vector<double>& low, const std::vector<double>& memory,
                                         const Same& same = {}) {
  const int lowest = lowest_copy(layout, rank);
  if (lowest == rank) return {};
  std::string what = difference(held_values(layout, s, lowest, low), held_values(layout, s, rank, memory), same);
  if (what.empty()) return what;
  std::string text = "not the copy that rank ";
  text += std::to_string(lowest);
  text += " holds: ";
  return text + what;
}

template <class T, std::size_t Rank, class L, class World>
sharded<T, Rank, L> along_path(type_list<>, sharded<T, Rank, L>&& x, World&) {
  return std::move(x);
}
template <class Next, class... Rest, class T, std::size_t Rank, class L, class World>
auto along_path(type_list<Next, Rest...>, sharded<T, Rank, L>&& x, World& world) {
  return along_path(type_list<Rest...>{}, redistribute<Next>(std::move(x), world), world);
}

}  // namespace detail

/// One rank's part of a made-up tensor: whole numbers that depend on the seed, the element, and, along partial and varying
/// axes, the rank; so copies agree and sums are exact. Where contributions are multiplied: -1, 1 and 2.
template <layout_like L, std::int64_t... E>
sharded<double, sizeof...(E), L> some_part(const L& layout, const shape<E...>& s, int rank, std::uint64_t seed = 1) {
  sharded<double, sizeof...(E), L> part(layout, s, rank);
  const std::int64_t place = detail::contribution_of(layout, rank);
  detail::for_each_held(layout, s, rank, [&](std::int64_t at, std::int64_t element) {
    part.elements()[static_cast<std::size_t>(at)] = detail::has_product(typename L::ops{})
                                                        ? detail::factor_at(seed, element, place)
                                                        : detail::number_at(seed, element, place);
  });
  return part;
}

/// Law 2, round trip: what is scattered and gathered again is the same tensor, and each rank holds the elements that the
/// layout's index maps name.
/// `same(a, b)` says when two values are the same, here and in the laws below: give one with a tolerance where an operator
/// rounds.
template <layout_like L, class Same = same_value, std::int64_t... E>
[[nodiscard]] report check_round_trip(const L& layout, const shape<E...>& s, std::uint64_t seed = 1,
                                      const Same& same = {}) {
  std::vector<double> whole;
  for (std::int64_t i = 0; i < s.size(); ++i) whole.push_back(detail::number_at(seed, i, 0));
  const auto wrong = [&](const std::string& what) {
    return failure(text_of({"seed ", seed, ", ", to_string(layout), ", shape ", to_string(s), ": ", what}));
  };
  std::vector<std::vector<double>> memory;
  const auto dynamic = make_shape(s.extents());
  for (int r = 0; r < layout.mesh().size(); ++r) {
    const auto part = shard_of(view<const double, dynamic_shape<sizeof...(E)>>(whole.data(), dynamic), layout, r);
    memory.push_back(detail::values(part.elements()));
    std::string what = detail::wrong_part(layout, s, whole, r, memory.back(), same);
    if (what.empty())
      what = detail::wrong_copy(layout, s, r, memory[static_cast<std::size_t>(detail::lowest_copy(layout, r))],
                                memory.back(), same);
    if (!what.empty()) return wrong(text_of({"scatter to rank ", r, ": ", what}));
  }
  const std::string what = detail::difference(whole, detail::whole_from(layout, s, memory), same);
  if (!what.empty()) return wrong("gather of what was scattered: " + what);
  return {true, {}, s.size() + 1};
}

/// Laws 2 and 4 for one pair: redistributing a made-up tensor keeps its value, gives every rank what `To` says (copies agree),
/// leaves the source alone, gives the same from a source that is moved in, and each rank sends exactly the bytes that the plan
/// promises, counted by a world that shares nothing with the transports.
template <layout_like To, layout_like From, class Same = same_value, std::int64_t... E>
[[nodiscard]] report check_redistribution(const From& from, const shape<E...>& s, std::uint64_t seed = 1,
                                          const Same& same = {}) {
  using mesh_type = typename From::mesh_type;
  using world_type = counting::world<mesh_type>;
  const mesh_type& mesh = from.mesh();
  const To to{mesh};
  const auto plan = plan_redistribution(from, to);
  std::vector<sharded<double, sizeof...(E), From>> sources, spare;
  std::vector<std::vector<double>> before, after;
  for (int r = 0; r < mesh.size(); ++r) {
    sources.push_back(some_part(from, s, r, seed));
    spare.push_back(some_part(from, s, r, seed));
    before.push_back(detail::values(sources.back().elements()));
  }
  const auto whole = detail::whole_from(from, s, before);
  const auto wrong = [&](int rank, std::string_view what) {
    std::string text = text_of({"seed ", seed, ", ", to_string(plan), ", shape ", to_string(s)});
    if (rank >= 0) text += text_of({", rank ", rank});
    text += text_of({": ", what});
    return failure(std::move(text));
  };
  auto [found, thrown] = detail::on_counting_world<mesh_type>(
      mesh,
      [&](world_type& w) {
        return detail::values(redistribute<To>(sources[static_cast<std::size_t>(w.rank())], w).elements());
      },
      [&](world_type& w) {
        return detail::values(redistribute<To>(std::move(spare[static_cast<std::size_t>(w.rank())]), w).elements());
      });
  if (thrown) return wrong(-1, *thrown);
  for (int r = 0; r < mesh.size(); ++r) {
    const auto& f = found[static_cast<std::size_t>(r)];
    if (!f.agreed) return wrong(r, "ranks disagreed about a count");
    const auto& low = found[static_cast<std::size_t>(detail::lowest_copy(to, r))];
    std::string what = detail::wrong_part(to, s, whole, r, f.copied, same);
    if (what.empty()) what = detail::wrong_part(to, s, whole, r, f.moved, same);
    if (what.empty()) what = detail::wrong_copy(to, s, r, low.copied, f.copied, same);
    if (what.empty() &&
        !detail::difference(detail::held_values(to, s, r, f.copied), detail::held_values(to, s, r, f.moved), same)
             .empty())
      what = "a source that is moved in gives other values";
    if (!what.empty()) return wrong(r, what);
    const std::int64_t planned = plan.bytes_sent(s, sizeof(double), r);
    if (f.bytes != planned)
      return wrong(r, text_of({"planned to send ", std::to_string(planned), " bytes, sent ", std::to_string(f.bytes)}));
    const auto left = sources[static_cast<std::size_t>(r)].elements();
    if (!std::equal(left.begin(), left.end(), before[static_cast<std::size_t>(r)].begin()))
      return wrong(r, "the source was changed");
    after.push_back(f.copied);
  }
  const std::string what = detail::difference(whole, detail::whole_from(to, s, after), same);
  if (!what.empty()) return wrong(-1, "another tensor: " + what);
  return {true, {}, mesh.size()};
}

/// `check_redistribution` from every layout of one list to every layout of another.
template <layout_like... Froms, layout_like... Tos, mesh_like Mesh, class Same = same_value, std::int64_t... E>
[[nodiscard]] report check_redistributions(type_list<Froms...>, type_list<Tos...>, const Mesh& mesh,
                                           const shape<E...>& s, std::uint64_t seed = 1, const Same& same = {}) {
  report found;
  [[maybe_unused]] const auto from = [&]<class From>(std::type_identity<From>) {
    ((found.ok() ? void(found += check_redistribution<Tos>(From{mesh}, s, seed, same)) : void()), ...);
  };
  (from(std::type_identity<Froms>{}), ...);
  if (found.cases == 0 && found.ok()) return failure("no pair of layouts was given", 0);
  return found;
}
/// The same for every pair of these layouts: `check_redistributions(type_list<A, B, C>{}, mesh, shape)`.
template <layout_like... Ls, mesh_like Mesh, class Same = same_value, std::int64_t... E>
[[nodiscard]] report check_redistributions(type_list<Ls...> all, const Mesh& mesh, const shape<E...>& s,
                                           std::uint64_t seed = 1, const Same& same = {}) {
  return check_redistributions(all, all, mesh, s, seed, same);
}

/// Law 2, path independence: `check_path<A, B, C, D>(mesh, shape)`: the way from A over B and C to D gives every rank the values
/// that the straight way from A to D gives, bit by bit. Where D is partial, contributions are free and the tensors are compared.
template <layout_like From, layout_like... Steps, mesh_like Mesh, class Same = same_value, std::int64_t... E>
  requires(sizeof...(Steps) > 0)
[[nodiscard]] report check_path(const Mesh& mesh, const shape<E...>& s, std::uint64_t seed = 1, const Same& same = {}) {
  using world_type = counting::world<Mesh>;
  using To = type_at<sizeof...(Steps) - 1, Steps...>;
  const From from{mesh};
  const To to{mesh};
  const auto wrong = [&](std::string_view what) {
    std::string text = text_of({"seed ", seed, ", ", to_string(from)});
    ((text += text_of({" -> ", to_string(Steps{mesh})})), ...);
    text += text_of({", shape ", to_string(s), ": ", what});
    return failure(std::move(text));
  };
  auto [found, thrown] = detail::on_counting_world<Mesh>(
      mesh,
      [&](world_type& w) { return detail::values(redistribute<To>(some_part(from, s, w.rank(), seed), w).elements()); },
      [&](world_type& w) {
        return detail::values(
            detail::along_path(type_list<Steps...>{}, some_part(from, s, w.rank(), seed), w).elements());
      });
  if (thrown) return wrong(*thrown);
  std::vector<std::vector<double>> straight, around;
  for (std::size_t r = 0; r < found.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (!To::has_partial) {
      const std::string what = detail::difference(detail::held_values(to, s, rank, found[r].copied),
                                                  detail::held_values(to, s, rank, found[r].moved), same);
      if (!what.empty()) return wrong(text_of({"rank ", rank, ", around against straight: ", what}));
    }
    const auto lowest = static_cast<std::size_t>(detail::lowest_copy(to, rank));  // moved away already, unless it is r
    straight.push_back(std::move(found[r].copied));
    around.push_back(std::move(found[r].moved));
    std::string what = detail::wrong_copy(to, s, rank, straight[lowest], straight.back(), same);
    if (what.empty()) what = detail::wrong_copy(to, s, rank, around[lowest], around.back(), same);
    if (!what.empty()) return wrong(text_of({"rank ", rank, ": ", what}));
  }
  const std::string what =
      detail::difference(detail::whole_from(to, s, straight), detail::whole_from(to, s, around), same);
  if (!what.empty()) return wrong("around against straight: " + what);
  return {true, {}, mesh.size()};
}

/// Law 3, composition: of all these layouts, no detour over a third sends fewer bytes than the plan, and a plan from a layout
/// to itself sends none. A plan is chosen for even parts: give a shape that all cuts divide.
template <layout_like... Ls, mesh_like Mesh, std::int64_t... E>
[[nodiscard]] report check_costs(type_list<Ls...>, const Mesh& mesh, const shape<E...>& s) {
  constexpr std::size_t count = sizeof...(Ls);
  std::vector<std::int64_t> cost;
  const auto row = [&]<class From>(std::type_identity<From>) {
    (cost.push_back(plan_redistribution(From{mesh}, Ls{mesh}).bytes_sent_in_total(s, 1)), ...);
  };
  (row(std::type_identity<Ls>{}), ...);
  const std::array<std::string, count> names{to_string(Ls{mesh})...};
  report found;
  const auto at = [&](std::size_t a, std::size_t b) { return cost[a * count + b]; };
  for (std::size_t a = 0; a < count && found.ok(); ++a)
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t c = 0; c < count; ++c, ++found.cases) {
        if (a == c ? at(a, a) == 0 : at(a, c) <= at(a, b) + at(b, c)) continue;
        return failure(text_of({"shape ", to_string(s), ": ", names[a], " -> ", names[c], " is planned to send ",
                                std::to_string(at(a, c)), " elements, over ", names[b], " it would be ",
                                std::to_string(at(a, b)), " + ", std::to_string(at(b, c))}),
                       found.cases);
      }
  return found;
}

}  // namespace testing
}  // namespace heddle::inline v0
