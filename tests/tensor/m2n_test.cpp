// tests/tensor/m2n_test.cpp: the redistributions between disjoint groups of ranks that NCCL tests its ncclReshard with
// (contrib/nccl_m2n/tests, 11 groups of cases), and those that it leaves out because a tensor or a mesh does not divide.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/transfer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace hd = heddle;

namespace {

struct m2n_rows {};
struct m2n_columns {};
using m2n_mesh = hd::mesh<hd::axis<m2n_rows>, hd::axis<m2n_columns>>;
using m2n_world = hd::mesh<hd::axis<hd::dp>>;

// Which axis of a side's mesh splits a dimension: the second, the first, none.
enum class m2n_split { columns, rows, none };
struct m2n_side {
  int rows = 1;  // of the mesh, as far as they divide its ranks
  m2n_split split = m2n_split::columns;
  int dimension = 0;
  int share = 1;  // of all ranks
};
struct m2n_case {
  const char* group;
  std::vector<std::int64_t> shape;
  m2n_side from, to;
  std::size_t element_size;
};

// `shrink`: by how much the large tensors are smaller than theirs in each dimension.
std::vector<m2n_case> m2n_cases(std::int64_t shrink) {
  using enum m2n_split;
  // fp32, bf16, uint8, fp16, fp64, int8, fp8 (two)
  const std::array<std::size_t, 8> elements{4, 2, 1, 2, 8, 1, 1, 1};
  const std::array<std::array<m2n_split, 2>, 4> splits{
      {{rows, rows}, {columns, columns}, {rows, columns}, {columns, rows}}};
  const std::array<std::array<int, 2>, 4> dimensions{{{0, 0}, {0, 1}, {1, 0}, {1, 1}}};
  std::vector<m2n_case> all;
  const auto placements = [&](const char* group, std::vector<std::int64_t> shape, int from, int to, int of_from,
                              int of_to) {
    for (const auto& d : dimensions) {
      if (shape.size() == 1 && d[0] + d[1] > 0) continue;
      for (const auto& s : splits)
        all.push_back({group, shape, {from, s[0], d[0], of_from}, {to, s[1], d[1], of_to}, 2});
    }
  };
  for (const std::size_t e : elements)
    all.push_back({"full_replication", {200, 200}, {1, none, 0, 1}, {1, none, 0, 1}, e});
  for (const auto& d : dimensions)
    for (const std::size_t e : elements)
      all.push_back({"full_sharding", {200, 200}, {1, columns, d[0], 1}, {1, columns, d[1], 1}, e});
  for (const auto& [from, to] : {std::array{2, 4}, {4, 2}, {2, 2}})
    placements("2d_placement", {200, 200}, from, to, 1, 1);
  for (const auto& [from, to] : {std::array{3, 1}, {1, 3}}) placements("uneven_ratio", {240, 240}, 2, 2, from, to);
  placements("tensor_size_sensitivity", {576, 576}, 4, 4, 1, 1);
  placements("tensor_size_sensitivity", {3072 / shrink, 6144 / shrink}, 4, 4, 1, 1);
  placements("tensor_size_sensitivity", {3072 / shrink, 3072 / shrink}, 4, 4, 1, 1);
  for (const bool first : {true, false})
    for (const auto& d : {std::array{0, 0}, {0, 1}, {0, 2}, {2, 0}, {1, 0}, {1, 1}, {1, 2}})
      if (!first || d != std::array{0, 1})  // that one is among the regressions
        all.push_back({"nd_tensors",
                       first ? std::vector<std::int64_t>{64, 128, 128} : std::vector<std::int64_t>{128, 64, 64},
                       {1, columns, d[0], 1},
                       {1, columns, d[1], 1},
                       2});
  for (const std::size_t e : elements)
    all.push_back({"1d_full_sharding", {8192}, {1, columns, 0, 1}, {1, columns, 0, 1}, e});
  for (const auto& [from, to] : {std::array{2, 4}, {4, 2}, {2, 2}})
    placements("1d_2d_placement", {8192}, from, to, 1, 1);
  for (const auto& [from, to] : {std::array{3, 1}, {1, 3}}) placements("1d_uneven_ratio", {16384}, 2, 2, from, to);
  for (const std::int64_t n : {std::int64_t{16384}, 1048576 / shrink, 4194304 / shrink})
    placements("1d_tensor_size_sensitivity", {n}, 4, 4, 1, 1);
  for (const auto& s : splits) all.push_back({"cross_dim_regression", {200, 200}, {2, s[0], 0, 1}, {4, s[1], 1, 1}, 2});
  all.push_back({"cross_dim_regression", {64, 128, 128}, {1, columns, 0, 1}, {1, columns, 1, 1}, 2});
  return all;
}

// What the tensors are the beginning of: bytes in a cycle that no power of two divides.
template <class T>
std::vector<T> m2n_elements(std::size_t bytes) {
  std::vector<unsigned char> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<unsigned char>(i % 251);
  std::vector<T> x(bytes / sizeof(T));
  std::memcpy(x.data(), all.data(), x.size() * sizeof(T));
  return x;
}
struct m2n_memory {
  explicit m2n_memory(std::size_t bytes)
      : of(m2n_elements<std::uint8_t>(bytes), m2n_elements<std::uint16_t>(bytes), m2n_elements<std::uint32_t>(bytes),
           m2n_elements<std::uint64_t>(bytes)) {}
  std::tuple<std::vector<std::uint8_t>, std::vector<std::uint16_t>, std::vector<std::uint32_t>,
             std::vector<std::uint64_t>>
      of;
};

// f(layout) for the placement of one side.
template <int Rank, std::size_t Size, class F>
void with_m2n_layout(const m2n_side& side, const m2n_mesh& mesh, F&& f) {
  const auto along = [&]<class Axis>(std::type_identity<Axis>) {
    if (side.dimension == 0) f(hd::layout<m2n_mesh, hd::shard<0, Axis>>{mesh});
    if constexpr (Rank > 1)
      if (side.dimension == 1) f(hd::layout<m2n_mesh, hd::shard<1, Axis>>{mesh});
    if constexpr (Rank > 2)
      if (side.dimension == 2) f(hd::layout<m2n_mesh, hd::shard<2, Axis>>{mesh});
  };
  if (side.split == m2n_split::columns) return along(std::type_identity<m2n_columns>{});
  if constexpr (Size == 2 && Rank < 3)
    if (side.split == m2n_split::rows) return along(std::type_identity<m2n_rows>{});
  if constexpr (Rank == 2)
    if (side.split == m2n_split::none) return f(hd::layout<m2n_mesh>{mesh});
}

// The part of a dimension, by the formula of NCCL's test where it divides: the first parts have one more where it does not.
std::array<std::int64_t, 2> m2n_part(const m2n_side& side, const m2n_mesh& mesh, int rank, std::int64_t extent) {
  if (side.split == m2n_split::none) return {0, extent};
  const std::int64_t columns = mesh.extent<m2n_columns>();
  const bool by_rows = side.split == m2n_split::rows;
  const std::int64_t parts = by_rows ? mesh.extent<m2n_rows>() : columns, k = by_rows ? rank / columns : rank % columns;
  const std::int64_t each = extent / parts, more = extent % parts;
  return {k * each + (std::min)(k, more), each + (k < more ? 1 : 0)};
}

// Whether each byte of what a rank holds is the one of the whole tensor in its place.
template <class T, int Rank>
bool has_its_bytes(std::span<const T> part, const std::vector<T>& whole, const std::array<std::int64_t, Rank>& shape,
                   int dimension, const std::array<std::int64_t, 2>& mine) {
  std::int64_t before = 1, inner = 1;
  for (int d = 0; d < dimension; ++d) before *= shape[static_cast<std::size_t>(d)];
  for (int d = dimension + 1; d < Rank; ++d) inner *= shape[static_cast<std::size_t>(d)];
  const std::int64_t run = mine[1] * inner, step = shape[static_cast<std::size_t>(dimension)] * inner;
  if (static_cast<std::int64_t>(part.size()) != before * run) return false;
  for (std::int64_t i = 0; i < before; ++i)
    if (std::memcmp(part.data() + i * run, whole.data() + i * step + mine[0] * inner,
                    static_cast<std::size_t>(run) * sizeof(T)) != 0)
      return false;
  return true;
}

template <class T, int Rank, class World>
bool m2n_arrives(const m2n_case& c, const m2n_memory& memory, World& world) {
  const int ranks = world.size(), first = ranks * c.from.share / (c.from.share + c.to.share);
  const auto mesh_of = [](const m2n_side& side, int n) {
    const int rows = side.split == m2n_split::none ? n : std::gcd(side.rows, n);
    return m2n_mesh{rows, n / rows};
  };
  const m2n_mesh from = mesh_of(c.from, first), to = mesh_of(c.to, ranks - first);
  std::array<std::int64_t, Rank> shape{};
  std::copy(c.shape.begin(), c.shape.end(), shape.begin());
  const hd::dynamic_shape<Rank> s = hd::make_shape(shape);
  const std::vector<T>& whole = std::get<std::vector<T>>(memory.of);
  const hd::view<const T, hd::dynamic_shape<Rank>> all(whole.data(), s);
  bool ok = false;
  with_m2n_layout<Rank, sizeof(T)>(c.from, from, [&](const auto& a) {
    with_m2n_layout<Rank, sizeof(T)>(c.to, to, [&](const auto& b) {
      using from_layout = std::remove_cvref_t<decltype(a)>;
      const auto plan = hd::plan_transfer(a, hd::rank_range{0, first}, b, hd::rank_range{first, ranks - first});
      std::optional<hd::sharded<T, Rank, from_layout>> x;
      if (plan.source_of(world.rank()) >= 0) x.emplace(hd::shard_of(all, a, plan.source_of(world.rank())));
      const auto got = hd::transfer(plan, s, x ? &*x : nullptr, world);
      const int target = plan.target_of(world.rank());
      const std::int64_t extent = shape[static_cast<std::size_t>(c.to.dimension)];
      ok = target < 0 ? !got
                      : got && has_its_bytes<T, Rank>(got->elements(), whole, shape, c.to.dimension,
                                                      m2n_part(c.to, to, target, extent));
    });
  });
  return ok;
}

template <class T, class World>
bool m2n_arrives(const m2n_case& c, const m2n_memory& memory, World& world) {
  if (c.shape.size() == 1) return m2n_arrives<T, 1>(c, memory, world);
  if (c.shape.size() == 2) return m2n_arrives<T, 2>(c, memory, world);
  if constexpr (sizeof(T) == 2) return m2n_arrives<T, 3>(c, memory, world);
  return false;
}

void check_m2n(std::int64_t shrink, std::initializer_list<int> sizes) {
  const std::vector<m2n_case> cases = m2n_cases(shrink);
  CHECK(cases.size() == 226);
  std::size_t most = 0;
  for (const m2n_case& c : cases) {
    std::size_t bytes = c.element_size;
    for (const std::int64_t n : c.shape) bytes *= static_cast<std::size_t>(n);
    most = (std::max)(most, bytes);
  }
  const m2n_memory memory(most);
  for (const int ranks : sizes) {
    std::vector<std::string> wrong;
    std::mutex guard;
    hd::launch<hd::threads>(m2n_world{ranks}, [&](auto& world) {
      for (std::size_t k = 0; k < cases.size(); ++k) {
        const m2n_case& c = cases[k];
        const bool ok = c.element_size == 1   ? m2n_arrives<std::uint8_t>(c, memory, world)
                        : c.element_size == 2 ? m2n_arrives<std::uint16_t>(c, memory, world)
                        : c.element_size == 4 ? m2n_arrives<std::uint32_t>(c, memory, world)
                                              : m2n_arrives<std::uint64_t>(c, memory, world);
        if (ok) continue;
        const std::lock_guard lock(guard);
        wrong.push_back(c.group + (" " + std::to_string(k)) + " on rank " + std::to_string(world.rank()));
      }
    });
    CAPTURE(ranks, wrong.size() > 0 ? wrong[0] : std::string());
    CHECK(wrong.empty());
  }
}

}  // namespace

TEST_CASE("NCCL's m2n cases on 4, 8 and 16 ranks, and on some that do not divide", "[tensor][transfer][m2n]") {
  check_m2n(16, {4, 8, 16});
  check_m2n(64, {7});
}
TEST_CASE("NCCL's m2n cases with tensors as large as theirs", "[.m2n-large][slow]") {
  check_m2n(1, {4, 8, 16});
}
