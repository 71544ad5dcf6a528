#include <heddle/tensor/kokkos/view.hpp>

#include "catch.hpp"
#include "space.hpp"

#include <heddle/tensor/buffer.hpp>

#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
using tested = tested_space;
using memory = hd::kokkos_memory<tested>;
using unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;

namespace {
template <class F>
std::string text_of_view_error(const F& f) {
  try {
    f();
  } catch (const hd::kokkos_view_error& e) {
    return e.what();
  }
  return "no error";
}
}  // namespace

TEST_CASE("a heddle view is a Kokkos::View of its rank, layout and static extents", "[kokkos][law]") {
  using hd::dynamic;
  STATIC_REQUIRE(std::is_same_v<hd::kokkos_view<float, hd::dynamic_shape<2>, memory>,
                                Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace, unmanaged>>);
  STATIC_REQUIRE(std::is_same_v<hd::kokkos_view<const float, hd::shape<dynamic, 3, 4>>,
                                Kokkos::View<const float* [3][4], Kokkos::LayoutRight, Kokkos::HostSpace, unmanaged>>);
  STATIC_REQUIRE(std::is_same_v<hd::kokkos_view<int, hd::shape<5, dynamic, 4>>,
                                Kokkos::View<int** [4], Kokkos::LayoutRight, Kokkos::HostSpace, unmanaged>>);
  STATIC_REQUIRE(std::is_same_v<hd::kokkos_view<double, hd::shape<>>,
                                Kokkos::View<double, Kokkos::LayoutRight, Kokkos::HostSpace, unmanaged>>);
  STATIC_REQUIRE(
      std::is_same_v<decltype(hd::from_kokkos(Kokkos::View<float* [3], Kokkos::HostSpace>{})),
                     hd::view<float, hd::dynamic_shape<2>, hd::kokkos_memory<Kokkos::DefaultHostExecutionSpace>>>);
}

TEST_CASE("heddle views go to Kokkos and back without copies", "[kokkos]") {
  memory::queue queue;
  for (const std::int64_t rows : {0, 1, 3, 7}) {
    CAPTURE(rows);
    hd::buffer<double, memory> x(queue, rows * 20);
    std::iota(x.begin(), x.end(), 1.0);
    const hd::view<double, hd::shape<hd::dynamic, 5, 4>, memory> cube(x.address(), hd::shape<hd::dynamic, 5, 4>(rows));
    const auto there = hd::to_kokkos(cube);
    CHECK(there.data() == x.address());
    REQUIRE(there.extent(0) == static_cast<std::size_t>(rows));
    int wrong = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < 5; ++j)
        for (std::int64_t k = 0; k < 4; ++k) wrong += there(i, j, k) != 1.0 + static_cast<double>((i * 5 + j) * 4 + k);
    CHECK(wrong == 0);
    const auto back = hd::from_kokkos<memory, hd::shape<hd::dynamic, 5, 4>>(there);
    STATIC_REQUIRE(std::is_same_v<decltype(back), const hd::view<double, hd::shape<hd::dynamic, 5, 4>, memory>>);
    CHECK(back.address() == x.address());
    CHECK(back.shape() == cube.shape());
    CHECK(hd::from_kokkos(there).shape() == hd::dynamic_shape<3>(rows, 5, 4));
    CHECK(hd::from_kokkos<hd::host_memory>(there).data() == x.address());
  }
  double number = 7;
  const hd::scalar_view<double> one(&number, {});
  hd::to_kokkos(one)() += 1;
  CHECK(number == 8);
  CHECK(hd::from_kokkos<hd::host_memory>(hd::to_kokkos(one)).address() == &number);
}

TEST_CASE("a program's own Views come in where their elements lie in rows without gaps", "[kokkos]") {
  const Kokkos::View<float**, Kokkos::LayoutRight, tested> rows("rows", 6, 5);
  CHECK(hd::from_kokkos(rows).address() == rows.data());
  const Kokkos::View<const float**, Kokkos::LayoutRight, tested> read = rows;
  STATIC_REQUIRE(std::is_same_v<decltype(hd::from_kokkos(read)), hd::matrix_view<const float, memory>>);
  // Whole rows of a matrix are a matrix; LayoutLeft in one dimension is a row.
  const auto middle = Kokkos::subview(rows, std::pair<int, int>(2, 4), Kokkos::ALL());
  CHECK(hd::from_kokkos(middle).address() == rows.data() + 10);
  CHECK(hd::from_kokkos(middle).extent(0) == 2);
  CHECK(hd::from_kokkos(Kokkos::View<int*, Kokkos::LayoutLeft, tested>("left", 9)).size() == 9);
  const Kokkos::View<float**, Kokkos::LayoutStride, tested> strided(rows.data(), Kokkos::LayoutStride(6, 5, 5, 1));
  CHECK(hd::from_kokkos(strided).shape() == hd::dynamic_shape<2>(6, 5));
}

TEST_CASE("Views of other strides or extents are refused by name", "[kokkos]") {
  const Kokkos::View<float**, Kokkos::LayoutRight, tested> rows("rows", 6, 5);
  const auto columns = Kokkos::subview(rows, Kokkos::ALL(), std::pair<int, int>(1, 4));
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::from_kokkos(columns)); }),
             Catch::Matchers::Contains("should have the stride 3 in dimension 0, got 5"));
  const auto column = Kokkos::subview(rows, Kokkos::ALL(), 2);
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::from_kokkos(column)); }),
             Catch::Matchers::Contains("rank 1 should have the stride 1 in dimension 0, got 5"));
  const Kokkos::View<float**, Kokkos::LayoutStride, tested> transposed(rows.data(), Kokkos::LayoutStride(6, 1, 5, 6));
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::from_kokkos(transposed)); }),
             Catch::Matchers::Contains("the stride 1 in dimension 1, got 6"));
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::from_kokkos<memory, hd::shape<6, 4>>(rows)); }),
             Catch::Matchers::Contains("'rows' of rank 2 should have the extent 4 in dimension 1, got 5"));
  CHECK(text_of_view_error([&] { static_cast<void>(hd::from_kokkos<memory, hd::shape<6, 5>>(rows)); }) == "no error");
}

TEST_CASE("a View's memory is a buffer of its space, which holds on to it", "[kokkos]") {
  memory::queue queue;
  using rows = Kokkos::View<double**, Kokkos::LayoutRight, tested>;
  hd::buffer<double, memory> held;
  const double* first = nullptr;
  {
    const rows x("mine", 5, 7);
    x(4, 6) = 3;
    first = x.data();
    held = hd::buffer_of_view(queue, x);
    CHECK(x.use_count() == 2);
    hd::buffer<double, memory> moved(std::move(held));
    CHECK(held.empty());
    held = std::move(moved);
    CHECK(x.use_count() == 2);
  }
  CHECK(held.address() == first);
  REQUIRE(held.size() == 35);
  CHECK(held[34] == 3);
  const rows other("other", 2, 8);
  held = hd::buffer_of_view(queue, other);
  CHECK(other.use_count() == 2);
  held = {};
  CHECK(other.use_count() == 1);
  CHECK(hd::buffer_of_view(queue, rows("none", 0, 7)).empty());
  // What is no buffer's memory.
  const auto columns = Kokkos::subview(other, Kokkos::ALL(), std::pair<int, int>(1, 4));
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::buffer_of_view(queue, columns)); }),
             Catch::Matchers::Contains("should have the stride 3 in dimension 0, got 8"));
  const Kokkos::View<double*, tested, unmanaged> behind(other.data() + 1, 5);
  CHECK_THAT(text_of_view_error([&] { static_cast<void>(hd::buffer_of_view(queue, behind)); }),
             Catch::Matchers::Contains("should begin at a multiple of 64 bytes, got one 8 bytes behind it"));
}
