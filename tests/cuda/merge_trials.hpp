// tests/cuda/merge_trials.hpp: partial results of attention merged by a backend on CUDA and by the host's.
#pragma once

#include "catch.hpp"

#include <heddle/compute/cuda/merge_partials.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace merge_trials {

namespace hd = heddle;
namespace co = heddle::compute;

/// `M`: the elements of what is merged in. Rows have a stride; lse of the first is by rows, of the second by heads.
template <class Backend, class M>
void compare_with_host(std::uint64_t seed, std::int64_t rows, std::int64_t heads, std::int64_t size, double tolerance) {
  CAPTURE(seed, rows, heads, size);
  using S = hd::sum_of_type<M>;
  using space = typename Backend::space;
  const hd::counter_random random(seed, 0);
  std::uint64_t at = 0;
  const std::int64_t stride = heads * size + 3;
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  std::vector<S> out(count(rows * stride)), lse(count(rows * heads)), more_lse(count(rows * heads));
  std::vector<M> more(count(rows * heads * size));
  for (S& x : out) x = static_cast<S>(random.normal(at++));
  for (M& x : more) x = static_cast<M>(static_cast<S>(random.normal(at++)));
  for (std::vector<S>* numbers : {&lse, &more_lse})
    for (S& x : *numbers)
      x = random.integer(at++) % 4 == 0 ? -std::numeric_limits<S>::infinity()
                                        : static_cast<S>(40 * random.normal(at++));
  Backend b;
  const auto there = [&]<class T>(const std::vector<T>& x) {
    hd::buffer<T, space> made(b.queue(), static_cast<std::int64_t>(x.size()));
    b.queue().copy(std::span<const T>(x), hd::row_at<space>(made.address(), static_cast<std::int64_t>(x.size())));
    return made;
  };
  auto d_out = there(out), d_lse = there(lse), d_more_lse = there(more_lse);
  auto d_more = there(more);
  merge_partials(b, co::head_rows<S, space>{d_out.address(), rows, heads, size, stride},
                 co::head_numbers<S, space>{d_lse.address(), rows, heads, heads, 1},
                 co::head_rows<const M, space>{d_more.address(), rows, heads, size, heads * size},
                 co::head_numbers<const S, space>{d_more_lse.address(), rows, heads, 1, rows});
  co::host<> host(1);
  merge_partials(host, co::head_rows<S>{out.data(), rows, heads, size, stride},
                 co::head_numbers<S>{lse.data(), rows, heads, heads, 1},
                 co::head_rows<const M>{more.data(), rows, heads, size, heads * size},
                 co::head_numbers<const S>{more_lse.data(), rows, heads, 1, rows});
  std::vector<S> got(out.size()), got_lse(lse.size());
  const auto back = [&](const S* from, std::vector<S>& to) {
    b.queue().copy(hd::row_at<space>(from, static_cast<std::int64_t>(to.size())), std::span<S>(to));
  };
  back(d_out.address(), got);
  back(d_lse.address(), got_lse);
  b.queue().wait();
  int wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    wrong += !(got[i] == Approx(out[i]).epsilon(tolerance).margin(tolerance));
  for (std::size_t i = 0; i < lse.size(); ++i)
    wrong += !(got_lse[i] == lse[i] || got_lse[i] == Approx(lse[i]).epsilon(tolerance));
  CHECK(wrong == 0);
}

template <class Backend>
void compare_all_with_host() {
  static_assert(co::offers<Backend, float, co::context_facet> && co::offers<Backend, double, co::context_facet> &&
                co::offers<Backend, hd::bf16, co::context_facet>);
  for (const std::uint64_t seed : {1U, 2U}) {
    compare_with_host<Backend, float>(seed, 7, 3, 5, 1e-5);
    compare_with_host<Backend, float>(seed, 33, 4, 128, 1e-5);
    compare_with_host<Backend, double>(seed, 7, 3, 65, 1e-13);
    compare_with_host<Backend, hd::bf16>(seed, 9, 2, 64, 1e-5);
  }
  compare_with_host<Backend, float>(3, 0, 2, 4, 1e-5);
  Backend b;
  using space = typename Backend::space;
  const co::head_rows<float, space> out{nullptr, 2, 1, 1, 1};
  const co::head_numbers<float, space> lse{nullptr, 2, 1, 1, 1};
  CHECK_THROWS_AS(merge_partials(b, out, lse, co::head_rows<const float, space>{nullptr, 3, 1, 1, 1},
                                 co::head_numbers<const float, space>(lse)),
                  hd::layout_error);
}

}  // namespace merge_trials
