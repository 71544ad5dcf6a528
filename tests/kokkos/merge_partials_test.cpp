// Merged partial results of attention: those of the host's backend.
#include "catch.hpp"
#include "compute/decay_trials.hpp"
#include "space.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/compute/kokkos/merge_partials.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
using tested = co::kokkos<tested_space>;
using space = tested::space;

constexpr std::int64_t rows = 7, heads = 3, size = 5;

// Elements in the backend's memory.
template <class T>
hd::buffer<T, space> there(tested& b, const std::vector<T>& x) {
  hd::buffer<T, space> made(b.queue(), static_cast<std::int64_t>(x.size()));
  b.queue().copy(std::span<const T>(x), hd::row_at<space>(made.address(), static_cast<std::int64_t>(x.size())));
  return made;
}

template <class M>
void check(std::uint64_t seed) {
  CAPTURE(seed);
  const hd::counter_random random(seed, 0);
  std::uint64_t at = 0;
  std::vector<float> out(rows * heads * size), lse(rows * heads), more_lse(rows * heads);
  std::vector<M> more(rows * heads * size);
  for (float& x : out) x = static_cast<float>(random.normal(at++));
  for (M& x : more) x = static_cast<M>(static_cast<float>(random.normal(at++)));
  const auto numbers = [&](std::vector<float>& of) {
    for (float& x : of)
      x = random.integer(at++) % 4 == 0 ? -std::numeric_limits<float>::infinity()
                                        : static_cast<float>(40 * random.normal(at++));
  };
  numbers(lse);
  numbers(more_lse);
  tested b;
  auto d_out = there(b, out), d_lse = there(b, lse), d_more_lse = there(b, more_lse);
  auto d_more = there(b, more);
  // lse of the first by rows, of the second by heads.
  merge_partials(b, co::head_rows<float, space>{d_out.address(), rows, heads, size, heads * size},
                 co::head_numbers<float, space>{d_lse.address(), rows, heads, heads, 1},
                 co::head_rows<const M, space>{d_more.address(), rows, heads, size, heads * size},
                 co::head_numbers<const float, space>{d_more_lse.address(), rows, heads, 1, rows});
  co::host<> host;
  merge_partials(host, co::head_rows<float>{out.data(), rows, heads, size, heads * size},
                 co::head_numbers<float>{lse.data(), rows, heads, heads, 1},
                 co::head_rows<const M>{more.data(), rows, heads, size, heads * size},
                 co::head_numbers<const float>{more_lse.data(), rows, heads, 1, rows});
  std::vector<float> got(out.size()), got_lse(lse.size());
  const auto back = [&](auto& from, std::vector<float>& to) {
    const float* const address = from.address();
    b.queue().copy(hd::row_at<space>(address, static_cast<std::int64_t>(to.size())), std::span<float>(to));
  };
  back(d_out, got);
  back(d_lse, got_lse);
  b.queue().wait();
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == Approx(out[i]).epsilon(1e-6).margin(1e-6));
  for (std::size_t i = 0; i < lse.size(); ++i)
    CHECK((got_lse[i] == lse[i] || got_lse[i] == Approx(lse[i]).epsilon(1e-6)));
}

}  // namespace

TEST_CASE("partial results of attention are merged on Kokkos as on the host", "[kokkos][context]") {
  STATIC_REQUIRE(co::offers<tested, float, co::context_facet> && co::offers<tested, double, co::context_facet> &&
                 co::offers<tested, hd::bf16, co::context_facet>);
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    check<float>(seed);
    check<hd::bf16>(seed);
  }
  tested b;
  const co::head_rows<float, space> out{nullptr, 2, 1, 1, 1};
  const co::head_numbers<float, space> lse{nullptr, 2, 1, 1, 1};
  CHECK_THROWS_AS(merge_partials(b, out, lse, co::head_rows<const float, space>{nullptr, 3, 1, 1, 1},
                                 co::head_numbers<const float, space>(lse)),
                  hd::layout_error);
}

TEST_CASE("linear attention with decays is on Kokkos what it is on the host", "[kokkos][compute]") {
  decay_trials::compare_all_with_host<tested>();
}
