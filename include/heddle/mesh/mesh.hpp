// heddle/mesh/mesh.hpp: ranks arranged along named axes; the last axis varies fastest.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/mesh/axis.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The kind of policies that are meshes.
struct mesh_kind {};

namespace detail {

// The arithmetic, once, on plain numbers: extents e[0..n), strides with the last axis fastest.
template <std::size_t N>
constexpr int mesh_size(const std::array<int, N>& extents) noexcept {
  unsigned n = 1;  // of a mesh that is refused it wraps around without a further error
  for (const int e : extents) n *= static_cast<unsigned>(e);
  return static_cast<int>(n);
}

template <std::size_t N>
constexpr bool mesh_fits(const std::array<int, N>& extents) noexcept {
  std::int64_t ranks = 1;
  for (const int e : extents)
    if ((ranks *= e) > (std::numeric_limits<int>::max)()) return false;
  return true;
}

template <std::size_t N>
constexpr int mesh_stride(const std::array<int, N>& extents, std::size_t axis) noexcept {
  int s = 1;
  for (std::size_t i = axis + 1; i < N; ++i) s *= extents[i];
  return s;
}

template <std::size_t N>
constexpr int mesh_coordinate(const std::array<int, N>& extents, std::size_t axis, int rank) noexcept {
  return rank / mesh_stride(extents, axis) % extents[axis];
}

template <std::size_t N>
constexpr std::array<int, N> mesh_coordinates(const std::array<int, N>& extents, int rank) noexcept {
  std::array<int, N> c{};
  for (std::size_t i = 0; i < N; ++i) c[i] = mesh_coordinate(extents, i, rank);
  return c;
}

template <std::size_t N>
constexpr int mesh_rank_of(const std::array<int, N>& extents, const std::array<int, N>& coordinates) {
  int rank = 0;
  for (std::size_t i = 0; i < N; ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= extents[i])
      throw mesh_error("heddle: coordinate " + std::to_string(coordinates[i]) + " of axis number " + std::to_string(i) +
                       " is outside [0, " + std::to_string(extents[i]) + ")");
    rank = rank * extents[i] + coordinates[i];
  }
  return rank;
}

// Position of `rank` within its group along `axes` (major first), a mixed-radix number in those axes.
template <std::size_t N, std::size_t M>
constexpr int group_index(const std::array<int, N>& extents, const std::array<std::size_t, M>& axes,
                          int rank) noexcept {
  int index = 0;
  for (const std::size_t a : axes) index = index * extents[a] + mesh_coordinate(extents, a, rank);
  return index;
}

template <std::size_t N, std::size_t M>
constexpr int group_size(const std::array<int, N>& extents, const std::array<std::size_t, M>& axes) noexcept {
  int n = 1;
  for (const std::size_t a : axes) n *= extents[a];
  return n;
}

// The member at `index` of the group of `rank` along `axes`.
template <std::size_t N, std::size_t M>
constexpr int group_member(const std::array<int, N>& extents, const std::array<std::size_t, M>& axes, int rank,
                           int index) noexcept {
  for (std::size_t i = M; i-- > 0;) {
    const std::size_t a = axes[i];
    rank += (index % extents[a] - mesh_coordinate(extents, a, rank)) * mesh_stride(extents, a);
    index /= extents[a];
  }
  return rank;
}

// Which of the groups along `axes` holds `rank`: the coordinates along all other axes, in mesh order.
template <std::size_t N, std::size_t M>
constexpr int group_color(const std::array<int, N>& extents, const std::array<std::size_t, M>& axes,
                          int rank) noexcept {
  int color = 0;
  for (std::size_t i = 0; i < N; ++i) {
    bool in_group = false;
    for (const std::size_t a : axes) in_group = in_group || a == i;
    if (!in_group) color = color * extents[i] + mesh_coordinate(extents, i, rank);
  }
  return color;
}

}  // namespace detail

template <axis_like... Axes>
class mesh;

namespace detail {
struct mesh_tag {};

// In a function: clang takes a class whose own assertion failed for broken, and says so at every use.
template <class... Tags>
constexpr bool axes_checked() {
  static_assert(all_distinct<Tags...>,
                "heddle: a mesh names one axis twice; give each axis its own tag type (struct my_axis {};)");
  return true;
}
template <class... Axes>
struct mesh_names : mesh_tag {
  static_assert(axes_checked<typename Axes::tag...>());
  using kind = mesh_kind;
  static constexpr std::size_t rank = sizeof...(Axes);
  static constexpr bool is_static = (Axes::is_static && ...);
  /// Whether the mesh has an axis with this tag.
  template <class Tag>
  static constexpr bool has = contains<Tag, typename Axes::tag...>;
  /// Those of `Tags` of which the mesh has an axis, in their order.
  template <class... Tags>
  using tags_among = joined_lists<std::conditional_t<has<Tags>, type_list<Tags>, type_list<>>...>;
  /// Position of the axis among the mesh's axes.
  template <class Tag>
  static constexpr std::size_t position = [] {
    static_assert(has<Tag>, "heddle: the mesh has no axis with this tag; name one of its axes, or add it to the mesh");
    return index_of<Tag, typename Axes::tag...>;
  }();
  /// The axis type with this tag.
  template <class Tag>
  using axis_of = type_at<position<Tag>, Axes...>;
  using tags = type_list<typename Axes::tag...>;

  template <class... Tags>
  static constexpr std::array<std::size_t, sizeof...(Tags)> positions = [] {
    static_assert(all_distinct<Tags...>,
                  "heddle: a group of ranks is asked for along one axis twice; name each axis once");
    return std::array<std::size_t, sizeof...(Tags)>{position<Tags>...};
  }();
};

template <class Mesh, class... Axes>
class static_mesh : public mesh_names<Axes...> {
  using names = mesh_names<Axes...>;

  static_assert(mesh_fits(std::array<int, sizeof...(Axes)>{Axes::size()...}),
                "heddle: mesh<...>: the mesh has more ranks than an int counts");

 public:
  static constexpr std::array<int, sizeof...(Axes)> extents() noexcept { return {Axes::size()...}; }
  static constexpr int size() noexcept { return mesh_size(extents()); }
  template <class Tag>
  static constexpr int extent() noexcept {
    return extents()[names::template position<Tag>];
  }
  /// The extent along `Tag`, or 1 if the mesh has no such axis.
  template <class Tag>
  static constexpr int extent_or_one() noexcept {
    if constexpr (names::template has<Tag>)
      return extent<Tag>();
    else
      return 1;
  }
  template <class Tag>
  static constexpr int stride() noexcept {
    return mesh_stride(extents(), names::template position<Tag>);
  }
  template <class Tag>
  static constexpr int coordinate(int rank) noexcept {
    return mesh_coordinate(extents(), names::template position<Tag>, rank);
  }
  static constexpr std::array<int, sizeof...(Axes)> coordinates(int rank) noexcept {
    return mesh_coordinates(extents(), rank);
  }
  static constexpr int rank_of(const std::array<int, sizeof...(Axes)>& coordinates) {
    return mesh_rank_of(extents(), coordinates);
  }
  template <class... Tags>
  static constexpr int group_size() noexcept {
    return detail::group_size(extents(), names::template positions<Tags...>);
  }
  template <class... Tags>
  static constexpr int group_index(int rank) noexcept {
    return detail::group_index(extents(), names::template positions<Tags...>, rank);
  }
  template <class... Tags>
  static constexpr int group_member(int rank, int index) noexcept {
    return detail::group_member(extents(), names::template positions<Tags...>, rank, index);
  }
  template <class... Tags>
  static constexpr int group_color(int rank) noexcept {
    return detail::group_color(extents(), names::template positions<Tags...>, rank);
  }
  /// The sub-mesh along these axes, in this order.
  template <class... Tags>
  static constexpr auto sub() noexcept {
    return mesh<typename names::template axis_of<Tags>...>{};
  }

  friend constexpr bool operator==(const Mesh&, const Mesh&) noexcept { return true; }
};

template <class Mesh, class... Axes>
class dynamic_mesh : public mesh_names<Axes...> {
  using names = mesh_names<Axes...>;

 public:
  static constexpr std::size_t dynamic_count = (std::size_t{0} + ... + (Axes::is_static ? 0u : 1u));

  constexpr dynamic_mesh() {
    extents_.fill(1);
    set_static();
  }

  /// The dynamic extents, in the order of their axes.
  template <std::integral... N>
    requires(sizeof...(N) == dynamic_count)
  constexpr explicit dynamic_mesh(N... n) {
    const std::array<long long, dynamic_count> given{static_cast<long long>(n)...};
    set_static();
    std::size_t next = 0;
    for (std::size_t i = 0; i < sizeof...(Axes); ++i) {
      if (fixed[i] != dynamic) continue;
      const long long extent = given[next++];
      if (extent <= 0 || extent > (std::numeric_limits<int>::max)())
        throw mesh_error("heddle: axis number " + std::to_string(i) + " of a mesh needs at least one rank, got " +
                         std::to_string(extent));
      extents_[i] = static_cast<int>(extent);
    }
    require_size(extents_);
  }

  constexpr const std::array<int, sizeof...(Axes)>& extents() const noexcept { return extents_; }
  constexpr int size() const noexcept { return mesh_size(extents_); }
  template <class Tag>
  constexpr int extent() const noexcept {
    return extents_[names::template position<Tag>];
  }
  /// The extent along `Tag`, or 1 if the mesh has no such axis.
  template <class Tag>
  constexpr int extent_or_one() const noexcept {
    if constexpr (names::template has<Tag>)
      return extent<Tag>();
    else
      return 1;
  }
  template <class Tag>
  constexpr int stride() const noexcept {
    return mesh_stride(extents_, names::template position<Tag>);
  }
  template <class Tag>
  constexpr int coordinate(int rank) const noexcept {
    return mesh_coordinate(extents_, names::template position<Tag>, rank);
  }
  constexpr std::array<int, sizeof...(Axes)> coordinates(int rank) const noexcept {
    return mesh_coordinates(extents_, rank);
  }
  constexpr int rank_of(const std::array<int, sizeof...(Axes)>& coordinates) const {
    return mesh_rank_of(extents_, coordinates);
  }
  template <class... Tags>
  constexpr int group_size() const noexcept {
    return detail::group_size(extents_, names::template positions<Tags...>);
  }
  template <class... Tags>
  constexpr int group_index(int of) const noexcept {
    return detail::group_index(extents_, names::template positions<Tags...>, of);
  }
  template <class... Tags>
  constexpr int group_member(int of, int index) const noexcept {
    return detail::group_member(extents_, names::template positions<Tags...>, of, index);
  }
  template <class... Tags>
  constexpr int group_color(int of) const noexcept {
    return detail::group_color(extents_, names::template positions<Tags...>, of);
  }
  /// The sub-mesh along these axes, in this order.
  template <class... Tags>
  constexpr auto sub() const {
    using result = mesh<typename names::template axis_of<Tags>...>;
    if constexpr (result::is_static)
      return result{};
    else
      return result::from_extents({extent<Tags>()...});
  }

  /// All extents, static ones included. Errors: `mesh_error` if a static one differs or one is not positive.
  static constexpr Mesh from_extents(const std::array<int, sizeof...(Axes)>& extents) {
    Mesh m;
    for (std::size_t i = 0; i < sizeof...(Axes); ++i) {
      if (extents[i] <= 0 || (fixed[i] != dynamic && fixed[i] != extents[i]))
        throw mesh_error("heddle: axis number " + std::to_string(i) + " of a mesh " +
                         (fixed[i] == dynamic ? "needs at least one rank" : "is fixed at " + std::to_string(fixed[i])) +
                         ", got " + std::to_string(extents[i]));
      static_cast<dynamic_mesh&>(m).extents_[i] = extents[i];
    }
    require_size(extents);
    return m;
  }

  friend constexpr bool operator==(const Mesh& a, const Mesh& b) noexcept { return a.extents() == b.extents(); }

 private:
  static constexpr std::array<int, sizeof...(Axes)> fixed{Axes::fixed_size...};

  // Ranks are numbered by int.
  static constexpr void require_size(const std::array<int, sizeof...(Axes)>& extents) {
    long long ranks = 1;
    for (const int e : extents) {
      ranks *= e;
      if (ranks > (std::numeric_limits<int>::max)())
        throw mesh_error("heddle: the extents of a mesh multiply to " + std::to_string(ranks) +
                         " ranks and more, which is too many to number");
    }
  }

  constexpr void set_static() noexcept {
    for (std::size_t i = 0; i < sizeof...(Axes); ++i)
      if (fixed[i] != dynamic) extents_[i] = fixed[i];
  }

  // Whole extents, static ones too: reading them needs no case distinction.
  std::array<int, sizeof...(Axes)> extents_{};
};

template <class Mesh, class... Axes>
using mesh_base = std::conditional_t<(Axes::is_static && ...), static_mesh<Mesh, Axes...>, dynamic_mesh<Mesh, Axes...>>;

}  // namespace detail

/// Ranks arranged along named axes, row-major: the last axis varies fastest.
/// A mesh whose extents are all static is an empty object and everything is also a static function;
/// otherwise it stores its extents: `mesh<axis<dp>, axis<tp, 2>> m{4}` (dynamic ones in order).
/// Ranks are numbers in `[0, size())`. Groups along several axes order their members major axis first, in the order
/// the axes are named: `group<tp, dp>` lets dp vary fastest.
/// Errors: `mesh_error` for a coordinate out of range or an extent that is not positive.

template <axis_like... Axes>
class mesh : public detail::mesh_base<mesh<Axes...>, Axes...> {
 public:
  using detail::mesh_base<mesh<Axes...>, Axes...>::mesh_base;
};

/// Any `mesh<...>`.
template <class M>
concept mesh_like = std::derived_from<M, detail::mesh_tag>;

/// The mesh type along these axes of `Mesh`, in this order.
template <mesh_like Mesh, class... Tags>
using sub_mesh = decltype(std::declval<const Mesh&>().template sub<Tags...>());

/// The world ranks of the group that `rank` belongs to along `Tags`, in group order.
template <class... Tags, mesh_like Mesh>
std::vector<int> group(const Mesh& mesh, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(mesh.template group_size<Tags...>()));
  for (std::size_t i = 0; i < ranks.size(); ++i)
    ranks[i] = mesh.template group_member<Tags...>(rank, static_cast<int>(i));
  return ranks;
}

/// The names of these axes: `{"dp", "pp", "tp"}`.
template <class... Tags>
std::vector<std::string> axis_names(type_list<Tags...>) {
  std::vector<std::string> names;
  names.reserve(sizeof...(Tags));
  (..., names.emplace_back(short_type_name<Tags>()));
  return names;
}

namespace detail {
inline std::string text_of_mesh(const std::vector<std::string>& names, const int* extents) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i ? " x " : "") + names[i] + "=" + std::to_string(extents[i]);
  return text.empty() ? "one rank" : text;
}
[[noreturn]] inline void refuse_world_size(const std::string& mesh, int ranks, int world_size) {
  throw mesh_error("heddle: the mesh " + mesh + " has " + std::to_string(ranks) + " ranks, but the world has " +
                   std::to_string(world_size) + "; change an extent or the number of ranks");
}
}  // namespace detail

/// The names of the axes, in mesh order: `{"dp", "pp", "tp"}`.
template <mesh_like Mesh>
std::vector<std::string> axis_names() {
  return axis_names(typename Mesh::tags{});
}

/// `"dp=2 x pp=2 x tp=2"`.
template <mesh_like Mesh>
std::string to_string(const Mesh& mesh) {
  const auto extents = mesh.extents();
  return detail::text_of_mesh(axis_names(typename Mesh::tags{}), extents.data());
}

/// Refuses a mesh that does not have exactly `world_size` ranks. Errors: `mesh_error` naming both numbers.
template <mesh_like Mesh>
void require_world_size(const Mesh& mesh, int world_size) {
  if (mesh.size() != world_size) detail::refuse_world_size(to_string(mesh), mesh.size(), world_size);
}

}  // namespace heddle::inline v0
