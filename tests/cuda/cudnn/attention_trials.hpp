// Causal attention of packed q, k and v of 16-bit elements on a backend, against the host's attention in double of the same rounded numbers.
#pragma once

#include "compute/backend_trials.hpp"
#include "cuda/half_attention_trials.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kernels.hpp>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace packed_attention {

namespace hd = heddle;
namespace co = heddle::compute;
using half_attention_trials::numbers;
using half_attention_trials::rounded;

struct outcome {
  numbers out, lse, dqkv;
};
/// In double, on the host; gradients from an output that is rounded as the backend has it.
template <class Half>
outcome expected(const co::attention_shape& s, const numbers& qkv, const numbers& dout) {
  co::host<> host(1);
  const auto matrix = [&](auto& x, std::int64_t columns) {
    return hd::matrix_view<std::remove_pointer_t<decltype(x.data())>>(x.data(),
                                                                      hd::dynamic_shape<2>(s.rows(), columns));
  };
  const auto n = static_cast<std::size_t>(s.rows() * s.width());
  outcome y{numbers(n), numbers(static_cast<std::size_t>(s.heads * s.rows())), numbers(3 * n)};
  co::run<co::ops::causal_attention>(host, matrix(qkv, 3 * s.width()), s, matrix(y.out, s.width()), std::span(y.lse));
  const numbers out = rounded<Half>(y.out);
  co::run<co::ops::causal_attention_backward>(host, matrix(dout, s.width()), matrix(qkv, 3 * s.width()),
                                              matrix(out, s.width()), y.lse, s, matrix(y.dqkv, 3 * s.width()));
  return y;
}

/// Arrays of a backend's memory that hold one problem; they may be used again.
template <class B, class Half>
struct problem {
  using space = typename B::space;
  co::attention_shape s;
  numbers qkv, dout;
  backend_trials::trial<B, float>& t;
  Half *at_qkv, *at_dout, *at_out, *at_dqkv;
  float* at_lse;

  problem(backend_trials::trial<B, float>& in, const co::attention_shape& shape, std::uint64_t seed)
      : s(shape),
        qkv(rounded<Half>(3 * s.rows() * s.width(), seed, 1.5f)),
        dout(rounded<Half>(s.rows() * s.width(), seed + 1, 1.0f)),
        t(in),
        at_qkv(keep(qkv)),
        at_dout(keep(dout)),
        at_out(keep(dout)),
        at_dqkv(keep(qkv)),
        at_lse(t.keep(std::vector<float>(static_cast<std::size_t>(s.heads * s.rows()), -7.0f))) {}
  Half* keep(const numbers& x) {
    std::vector<Half> out;
    for (const double e : x) out.push_back(Half(static_cast<float>(e)));
    return t.keep(out);
  }
  hd::matrix_view<Half, space> matrix(Half* at, std::int64_t columns) const {
    return {at, hd::dynamic_shape<2>(s.rows(), columns)};
  }
  void forward() {
    co::run<co::ops::causal_attention>(t.backend, matrix(at_qkv, 3 * s.width()), s, matrix(at_out, s.width()),
                                       hd::row_at<space>(at_lse, s.heads * s.rows()));
  }
  void backward() {
    co::run<co::ops::causal_attention_backward>(
        t.backend, matrix(at_dout, s.width()), matrix(at_qkv, 3 * s.width()), matrix(at_out, s.width()),
        hd::row_at<space>(static_cast<const float*>(at_lse), s.heads * s.rows()), s, matrix(at_dqkv, 3 * s.width()));
  }
  template <class E>
  numbers values(const E* at, std::int64_t n) {
    std::vector<E> here(static_cast<std::size_t>(n));
    t.backend.queue().copy(hd::row_at<space>(at, n), here);
    t.backend.queue().wait();
    numbers out;
    for (const E e : here) out.push_back(static_cast<double>(static_cast<float>(e)));
    return out;
  }
  /// The largest differences of output, log-sum-exp and gradients, in parts of the largest numbers.
  double error() {
    const outcome y = expected<Half>(s, qkv, dout);
    const auto differ = [](const numbers& got, const numbers& want) {
      return half_attention_trials::difference(got, want, static_cast<std::int64_t>(want.size()));
    };
    return (std::max)({differ(values(at_out, s.rows() * s.width()), y.out),
                       differ(values(at_lse, s.heads * s.rows()), y.lse),
                       differ(values(at_dqkv, 3 * s.rows() * s.width()), y.dqkv)});
  }
};

}  // namespace packed_attention
