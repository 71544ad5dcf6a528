#include <heddle/tensor/view.hpp>

#include "catch.hpp"

#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

using heddle::dynamic;
using heddle::shape;
using heddle::view;

namespace {
constexpr std::array<int, 24> numbers = [] {
  std::array<int, 24> n{};
  for (std::size_t i = 0; i < n.size(); ++i) n[i] = static_cast<int>(i);
  return n;
}();

// The definition: walking the indices in order, the last one fastest, walks the memory in order.
template <class View>
constexpr bool walks_memory(View v) {
  int next = 0;
  for (std::int64_t i = 0; i < v.extent(0); ++i)
    for (std::int64_t j = 0; j < v.extent(1); ++j)
      for (std::int64_t k = 0; k < v.extent(2); ++k)
        if (v(i, j, k) != next++) return false;
  return next == v.size();
}
}  // namespace

TEST_CASE("a view is row-major in all three regimes", "[tensor][law]") {
  STATIC_REQUIRE(walks_memory(view<const int, shape<2, 3, 4>>(numbers.data(), {})));
  STATIC_REQUIRE(walks_memory(view<const int, shape<dynamic, 3, dynamic>>(numbers.data(), {2, 4})));
  STATIC_REQUIRE(walks_memory(view<const int, heddle::dynamic_shape<3>>(numbers.data(), {2, 3, 4})));
  STATIC_REQUIRE(walks_memory(view<const int, shape<4, 3, 2>>(std::span(numbers), {})));
}

TEST_CASE("a view of a static shape is a pointer", "[tensor][law]") {
  STATIC_REQUIRE(sizeof(view<float, shape<8, 64>>) == sizeof(float*));
  STATIC_REQUIRE(sizeof(view<float, shape<dynamic, 64>>) == sizeof(float*) + sizeof(std::int64_t));
  STATIC_REQUIRE(std::is_trivially_copyable_v<heddle::matrix_view<float>>);
}

TEST_CASE("a view that writes becomes one that reads, not the other way round", "[tensor][law]") {
  using writes = heddle::matrix_view<float>;
  using reads = heddle::matrix_view<const float>;
  STATIC_REQUIRE(std::is_convertible_v<writes, reads>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<writes, reads>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<heddle::matrix_view<double>, reads>);
  STATIC_REQUIRE(std::is_same_v<reads::value_type, float>);

  std::vector<float> memory(6);
  const writes w(memory.data(), {2, 3});
  w(1, 2) = 5;
  const reads r = w;
  CHECK(memory[5] == 5);
  CHECK(r(1, 2) == 5);
  CHECK(r.elements().data() == memory.data());
  CHECK(r.elements().size() == 6);
}

TEST_CASE("scalars and empty tensors have views", "[tensor]") {
  int number = 3;
  const view<int, shape<>> scalar(&number, {});
  scalar() = 4;
  CHECK(number == 4);
  CHECK(scalar.size() == 1);
  const heddle::matrix_view<int> empty;
  CHECK(empty.size() == 0);
  CHECK(empty.elements().empty());
}

TEST_CASE("a view refuses memory of another size", "[tensor][error]") {
  using Catch::Matchers::Contains;
  std::vector<float> memory(7);
  CHECK_THROWS_AS(heddle::matrix_view<float>(std::span(memory), {2, 3}), heddle::layout_error);
  CHECK_THROWS_WITH(heddle::matrix_view<float>(std::span(memory), {2, 3}),
                    Contains("heddle: ") && Contains("2 x 3") && Contains("needs 6") && Contains("got 7"));
}

#if defined(__cpp_lib_mdspan)
TEST_CASE("a view converts to std::mdspan and back", "[tensor]") {
  std::vector<float> memory(6);
  const heddle::matrix_view<float> v(memory.data(), {2, 3});
  const std::mdspan<float, std::dextents<std::int64_t, 2>> m = v;
  CHECK(m.extent(1) == 3);
  CHECK(m.data_handle() == memory.data());
  CHECK(heddle::matrix_view<float>(m).shape() == v.shape());
}
#endif
