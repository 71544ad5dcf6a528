// Parts read from a source are those of the whole tensor, and no element is read that the part does not hold.
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/tensor_source.hpp>

#include "catch.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hd = heddle;
using hd::cp, hd::dp, hd::tp;

namespace {

using mesh = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

// Tensors in memory that count what is read.
struct memory_source {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<double> values;
    mutable std::int64_t read_count = 0;

    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "the tensor of a test"; }
    template <class T>
    void read(std::int64_t first, std::span<T> out) const {
      if (first < 0 || first + static_cast<std::int64_t>(out.size()) > static_cast<std::int64_t>(values.size()))
        throw hd::io_error("heddle: out of bounds");
      read_count += static_cast<std::int64_t>(out.size());
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<T>(static_cast<float>(values[static_cast<std::size_t>(first) + i]));
    }
  };
  std::map<std::string, one, std::less<>> all;

  bool contains(std::string_view name) const { return all.find(name) != all.end(); }
  const one& tensor(std::string_view name) const {
    const auto at = all.find(name);
    if (at == all.end()) throw hd::io_error("heddle: no tensor");
    return at->second;
  }
};
static_assert(hd::tensor_source<memory_source, float>);
static_assert(hd::tensor_source<memory_source, hd::bf16>);
static_assert(!hd::tensor_source<std::vector<float>, float>);

memory_source::one counted(std::vector<std::int64_t> extents) {
  std::int64_t n = 1;
  for (const std::int64_t e : extents) n *= e;
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return {std::move(extents), std::move(values)};
}

// Every rank's part read, against the part of the whole; `published`: the source's shape.
template <class Layout, std::size_t Rank>
void compare(const Layout& layout, std::array<std::int64_t, Rank> extents, std::vector<std::int64_t> published = {}) {
  const auto whole = hd::make_shape(extents);
  if (published.empty()) published.assign(extents.begin(), extents.end());
  memory_source source;
  source.all["x"] = counted(published);
  if (Rank == 2) {  // the transpose, with the values where they belong
    auto& t = source.all["t"] = counted({extents[Rank - 1], extents[0]});
    for (std::int64_t i = 0; i < extents[0]; ++i)
      for (std::int64_t j = 0; j < extents[Rank - 1]; ++j)
        t.values[static_cast<std::size_t>(j * extents[0] + i)] =
            source.all["x"].values[static_cast<std::size_t>(i * extents[Rank - 1] + j)];
  }
  std::vector<float> values(source.all["x"].values.begin(), source.all["x"].values.end());
  for (int rank = 0; rank < layout.mesh().size(); ++rank) {
    CAPTURE(rank, layout.mesh().size());
    const auto expected =
        hd::shard_of(hd::view<const float, hd::dynamic_shape<Rank>>(values.data(), whole), layout, rank);
    const std::vector<float> wanted(expected.elements().begin(), expected.elements().end());
    source.all["x"].read_count = 0;
    const auto got = hd::read_sharded<float>(source, "x", layout, whole, rank);
    CHECK(std::vector<float>(got.elements().begin(), got.elements().end()) == wanted);
    const std::int64_t valid = got.valid_shape().size();
    CHECK((source.all["x"].read_count == valid || (Layout::has_partial && source.all["x"].read_count == 0)));
    if (Rank != 2) continue;
    source.all["t"].read_count = 0;
    const auto turned = hd::read_sharded<float>(source, "t", layout, whole, rank, hd::stored_as::transposed);
    CHECK(std::vector<float>(turned.elements().begin(), turned.elements().end()) == wanted);
    CHECK(source.all["t"].read_count <= valid);
  }
}

}  // namespace

TEST_CASE("parts that are read are those of the whole tensor", "[tensor][source]") {
  for (const auto& [a, b, c] : {std::array{1, 1, 1}, std::array{2, 1, 3}, std::array{1, 3, 2}})
    for (const std::int64_t n : {0, 1, 5, 34})
      for (const std::int64_t m : {1, 7, 40}) {
        CAPTURE(a, b, c, n, m);
        const mesh w{a, b, c};
        const std::array<std::int64_t, 2> s{n, m};
        compare(hd::layout<mesh>{w}, s);
        compare(hd::layout<mesh, hd::shard<0, tp>>{w}, s);
        compare(hd::layout<mesh, hd::shard<1, tp, dp>>{w}, s);
        compare(hd::layout<mesh, hd::shard<1, dp>, hd::shard<0, cp>>{w}, s);
        compare(hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>{w}, s);
        compare(hd::layout<mesh, hd::halo<0, 1, tp>>{w}, s);
      }
  const mesh w{2, 1, 3};
  compare(hd::layout<mesh, hd::shard<2, tp>, hd::shard<0, dp>>{w}, std::array<std::int64_t, 4>{3, 2, 7, 5});
  compare(hd::layout<mesh, hd::shard<0, tp>>{w}, std::array<std::int64_t, 1>{8});
}

TEST_CASE("a source may join dimensions: queries, keys and values split by heads", "[tensor][source]") {
  const mesh w{1, 1, 2};
  compare(hd::layout<mesh, hd::shard<2, tp>>{w}, std::array<std::int64_t, 4>{6, 3, 4, 2}, {6, 24});
  compare(hd::layout<mesh, hd::shard<1, tp>>{w}, std::array<std::int64_t, 3>{5, 3, 2}, {30});
  compare(hd::layout<mesh, hd::shard<1, tp>>{w}, std::array<std::int64_t, 3>{1, 4, 1}, {4});
}

TEST_CASE("other shapes are refused by both", "[tensor][source]") {
  memory_source source;
  source.all["x"] = counted({6, 4});
  const hd::layout<mesh, hd::shard<0, tp>> l{mesh{1, 1, 2}};
  CHECK_THROWS_WITH(hd::read_sharded<float>(source, "x", l, hd::shape{4, 6}, 0),
                    "heddle: the tensor of a test: expected the shape [4,6], it has [6,4]");
  CHECK_THROWS_WITH(hd::read_sharded<float>(source, "x", l, hd::shape{6, 4}, 0, hd::stored_as::transposed),
                    "heddle: the tensor of a test: expected the shape [4,6], it has [6,4]");
  CHECK_THROWS_WITH(hd::read_sharded<float>(source, "x", l, hd::shape{6, 2, 2}, 0, hd::stored_as::transposed),
                    Catch::Contains("should be a transposed matrix for a tensor of 3 dimensions"));
  CHECK_THROWS_AS(hd::read_sharded<float>(source, "y", l, hd::shape{6, 4}, 0), hd::io_error);
  CHECK_NOTHROW(hd::read_sharded<float>(source, "x", l, hd::shape{4, 6}, 0, hd::stored_as::transposed));
}
