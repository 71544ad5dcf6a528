// heddle/compute/cuda/sums.hpp: sums over whole rows on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/ops/sums.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::sum_packs;

/// parts[b] = the sum over part b of [0, n): term.over(group, begin, count) adds up [begin, begin + count).
template <class Term>
struct part_of_sum {
  std::int64_t n;
  Term term;
  double* parts;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t b) const {
    const std::int64_t begin = b * sum_block, rest = n - begin;
    const double sum = term.over(g, begin, rest < sum_block ? rest : sum_block);
    if (g.leads()) parts[b] = sum;
  }
};
struct sum_of_parts {
  std::int64_t count;
  const double* parts;
  double* out;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t) const {
    const double* const from = parts;
    const double sum = sum_over(g, count, [from](std::int64_t b) { return from[b]; });
    if (g.leads()) *out += sum;
  }
};
/// *out += the sum over [0, n), in double.
template <launcher L, class Term>
void add_terms(const L& on, std::int64_t n, double* out, const Term& term) {
  if (n == 0) return;
  auto room = on.template room<double>(sum_blocks(n));
  double* const parts = room.address();
  on.each_row(sum_blocks(n), sum_block, part_of_sum<Term>{n, term, parts});
  on.each_row(1, sum_blocks(n), sum_of_parts{sum_blocks(n), parts, out});
}

template <class T>
struct square_of {
  const T* x;
  template <class G>
  HEDDLE_HD double over(G& g, std::int64_t begin, std::int64_t count) const {
    const auto square = [](T e) { return static_cast<double>(e) * static_cast<double>(e); };
    return sum_packs<double>(g, count, square, x + begin);
  }
};
template <launcher L, class T>
void body(ops::sum_of_squares, const L& on, std::int64_t n, const T* x, double* out) {
  add_terms(on, n, out, square_of<T>{x});
}
/// From the bits of the exponent, so that it also holds where the compiler assumes finite numbers.
template <class T>
struct is_nonfinite {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  const T* x;
  bits exponent;
  template <class G>
  HEDDLE_HD double over(G& g, std::int64_t begin, std::int64_t count) const {
    const auto counted = [all = exponent](T e) {
      bits one = 0;
      std::memcpy(&one, &e, sizeof one);
      return (one & all) == all ? 1.0 : 0.0;
    };
    return sum_packs<double>(g, count, counted, x + begin);
  }
};
template <launcher L, class T>
void body(ops::count_nonfinite, const L& on, std::int64_t n, const T* x, double* out) {
  using bits = typename is_nonfinite<T>::bits;
  add_terms(on, n, out, is_nonfinite<T>{x, std::bit_cast<bits>((std::numeric_limits<T>::infinity)())});
}
template <class T>
struct squared_difference {
  const T *x, *target;
  template <class G>
  HEDDLE_HD double over(G& g, std::int64_t begin, std::int64_t count) const {
    const auto square = [](T e, T t) {
      const double d = static_cast<double>(e) - static_cast<double>(t);
      return d * d;
    };
    return sum_packs<double>(g, count, square, x + begin, target + begin);
  }
};
template <launcher L, class T>
void body(ops::squared_error, const L& on, std::int64_t n, const T* x, const T* target, double* out) {
  add_terms(on, n, out, squared_difference<T>{x, target});
}
template <class T>
struct loss_of_row {
  const T *m, *sum, *picked;
  const std::int32_t* targets;
  template <class G>
  HEDDLE_HD double over(G& g, std::int64_t begin, std::int64_t count) const {
    return sum_over(g, count, [this, begin](std::int64_t i) { return of(begin + i); });
  }
  HEDDLE_HD double of(std::int64_t i) const {
    if (targets[i] < 0) return 0.0;
    return std::log(static_cast<double>(sum[i])) + (static_cast<double>(m[i]) - static_cast<double>(picked[i]));
  }
};
template <launcher L, class T>
void body(ops::cross_entropy_loss, const L& on, std::int64_t rows, const T* m, const T* sum, const T* picked,
          const std::int32_t* targets, double* out) {
  add_terms(on, rows, out, loss_of_row<T>{m, sum, picked, targets});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
