// heddle/compute/cuda/draw_tokens.hpp: draws tokens from logits on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/token_draws.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

/// Numbers in the order of logits: the smaller logit has the smaller number, and both zeros the same.
HEDDLE_HD inline std::uint64_t order_of(float logit) {
  const auto bits = __builtin_bit_cast(std::uint32_t, logit + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
HEDDLE_HD inline std::uint64_t order_of(double logit) {
  const auto bits = __builtin_bit_cast(std::uint64_t, logit + 0.0);
  return (bits & 0x8000000000000000U) != 0 ? ~bits : bits | 0x8000000000000000U;
}
template <class T>
  requires is_half_precision<T>
HEDDLE_HD std::uint64_t order_of(T logit) {
  const std::uint32_t bits = logit.bits == 0x8000U ? 0U : logit.bits;
  return (bits & 0x8000U) != 0 ? ~bits & 0xffffU : bits | 0x8000U;
}

/// Elements j in [0, n) in descending order of key(j), a number of at most `bits` bits: the key at which the sum of their masses is above `left`, or, with
/// `reaches`, at least that; the last with a mass where none is. Takes the masses of greater keys off `left`. Digits of four bits, the highest first:
/// every thread of the group adds up the masses of the 16 digits of its elements.
template <class G, class Key, class Mass>
HEDDLE_HD std::uint64_t key_at_mass(G& g, std::int64_t n, int bits, const Key& key, const Mass& mass, bool reaches,
                                    double& left) {
  std::uint64_t found = 0;
  for (int shift = (bits - 1) / 4 * 4; shift >= 0; shift -= 4) {
    double masses[16] = {};
    for (std::int64_t j = g.rank(); j < n; j += g.size()) {
      const std::uint64_t k = key(j) >> shift;
      if (k >> 4 != found) continue;
      const double m = mass(j);
      const int digit = static_cast<int>(k & 15);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int d = 0; d < 16; ++d) masses[d] += d == digit ? m : 0;  // no index: the sums stay in registers
    }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int d = 0; d < 16; ++d) masses[d] = g.sum(masses[d]);
    int last = 0;
    bool is_there = false;
    double mass_of_last = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int d = 15; d >= 0; --d) {
      if (is_there || !(masses[d] > 0)) continue;
      last = d;
      mass_of_last = masses[d];
      is_there = reaches ? left <= mass_of_last : left < mass_of_last;
      if (!is_there) left -= mass_of_last;
    }
    if (!is_there) left += mass_of_last;  // rounding left none: on to the last
    found = found << 4 | static_cast<std::uint64_t>(last);
  }
  return found;
}

/// One draw of token_draws.hpp, as `infer::token_sampler` makes it: weights exp((l - top) / temperature), of which the filters make zeros, and the token at which their
/// sum, by id or after top-k by likelihood, passes the drawn part. Of equal logits the lower id is the likelier. Logits of 16 bits are read as they are and widened.
template <class T>
struct draw_token_of_row {
  using S = sum_of_type<T>;
  std::int64_t vocabulary;
  const T* logits;
  const token_draw* draws;
  token_drawn* drawn;
  double* weights;  // [draws, vocabulary]

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const token_draw how = draws[i];
    const T* const row = logits + how.row * vocabulary;
    constexpr S infinity = static_cast<S>(HUGE_VAL);
    S mine = -infinity;
    for (std::int64_t j = g.rank(); j < vocabulary; j += g.size()) mine = larger(mine, S{row[j]});
    const S top = g.largest(mine);
    token_drawn result;
    if (!(top < infinity)) {
      result.flaw = token_flaw::not_a_number;
      result.token = first(g, [row](std::int64_t j) { return !(S{row[j]} < infinity); });
      result.log_probability = static_cast<double>(row[result.token]);
    } else if (top == -infinity) {
      result.flaw = token_flaw::nothing_left;
    } else {
      const auto highest = static_cast<double>(top);
      if (how.temperature > 0)
        result.token = pick(g, how, row, highest, weights + i * vocabulary);
      else
        result.token = first(g, [row, top](std::int64_t j) { return S{row[j]} == top; });
      if (how.log_probability) {
        const double t = how.log_probability_temperature;
        const auto weight = [row, highest, t](std::int64_t j) {
          return math::exponential((static_cast<double>(row[j]) - highest) / t);
        };
        result.log_probability =
            (static_cast<double>(row[result.token]) - highest) / t - std::log(sum_over(g, vocabulary, weight));
      }
    }
    if (g.leads()) drawn[i] = result;
  }

 private:
  // The lowest id of which it is true.
  template <class G, class F>
  HEDDLE_HD std::int32_t first(G& g, const F& is_true) const {
    double id = -static_cast<double>(vocabulary);
    for (std::int64_t j = g.rank(); j < vocabulary; j += g.size())
      if (is_true(j)) {
        id = -static_cast<double>(j);
        break;
      }
    return static_cast<std::int32_t>(-g.largest(id));
  }
  struct place {
    std::uint64_t order;
    std::int64_t id;
  };
  HEDDLE_HD int id_bits() const {
    int bits = 1;
    while (vocabulary >> bits != 0) ++bits;
    return bits;
  }
  // By likelihood, then by id: the first token with which the mass is above `left`, or reaches it.
  template <class G, class Mass>
  HEDDLE_HD place at_mass(G& g, const T* row, const Mass& mass, bool reaches, double left) const {
    const auto order = [row](std::int64_t j) { return order_of(row[j]); };
    const std::uint64_t at = key_at_mass(g, vocabulary, static_cast<int>(8 * sizeof(T)), order, mass, reaches, left);
    const auto of_equals = [&](std::int64_t j) { return order(j) == at ? mass(j) : 0.0; };
    return {at, id_at_mass(g, of_equals, reaches, left)};
  }
  template <class G, class Mass>
  HEDDLE_HD std::int64_t id_at_mass(G& g, const Mass& mass, bool reaches, double left) const {
    const auto last = static_cast<std::uint64_t>(vocabulary - 1);
    const auto from_behind = [last](std::int64_t j) { return last - static_cast<std::uint64_t>(j); };
    return vocabulary - 1 -
           static_cast<std::int64_t>(key_at_mass(g, vocabulary, id_bits(), from_behind, mass, reaches, left));
  }
  // Each thread writes and reads the weights of its own tokens only.
  template <class G>
  HEDDLE_HD std::int32_t pick(G& g, const token_draw& how, const T* row, double top, double* w) const {
    const auto change = [&](const auto& f) { for_each_of(g, vocabulary, [&](std::int64_t j) { w[j] = f(j); }); };
    const auto keep_to = [&](place end) {
      change([&](std::int64_t j) {
        const std::uint64_t order = order_of(row[j]);
        return order > end.order || (order == end.order && j <= end.id) ? w[j] : 0.0;
      });
    };
    const auto weight = [w](std::int64_t j) { return w[j]; };
    change([&](std::int64_t j) { return math::exponential((static_cast<double>(row[j]) - top) / how.temperature); });
    const bool sorted = how.top_k > 0 && how.top_k < vocabulary;
    if (sorted) keep_to(at_mass(g, row, [](std::int64_t) { return 1.0; }, true, static_cast<double>(how.top_k)));
    if (how.top_p < 1) keep_to(at_mass(g, row, weight, true, how.top_p * sum_over(g, vocabulary, weight)));
    if (how.min_p > 0) change([&](std::int64_t j) { return w[j] < how.min_p ? 0.0 : w[j]; });
    const double left = how.uniform * sum_over(g, vocabulary, weight);
    return static_cast<std::int32_t>(sorted ? at_mass(g, row, weight, false, left).id
                                            : id_at_mass(g, weight, false, left));
  }
};

/// The kernel of `token_drawing_kernels` as a member of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class token_drawing_members {
 public:
  /// Rows that draws name must be there; they lie on the device and are not checked. A row of weights in double is lent for each draw.
  /// Equal to `infer::token_sampler` of the same logits but where the drawn part, or the part of top-p, is as near to a sum of weights as rounding: the order in which weights are
  /// added differs, and exp is that of the device. Temperature 0 and top-k alone count and compare, and keep exactly its tokens. Results do not depend on the order of threads.
  /// Errors: `layout_error` for draws and results of different sizes.
  template <class T>
    requires(std::is_floating_point_v<std::remove_const_t<T>> || is_half_precision<std::remove_const_t<T>>)
  void draw_tokens(matrix_view<T, Space> logits, row_view<const token_draw, Space> draws,
                   row_view<token_drawn, Space> drawn) {
    using element = std::remove_const_t<T>;
    expect("draw_tokens", "elements of drawn", static_cast<std::int64_t>(draws.size()),
           static_cast<std::int64_t>(drawn.size()));
    const auto rows = static_cast<std::int64_t>(draws.size());
    if (rows == 0) return;
    auto&& on = static_cast<Backend&>(*this).launcher();
    const std::int64_t vocabulary = logits.extent(1);
    const auto weights = on.template room<double>(rows * vocabulary);
    on.each_row(rows, vocabulary,
                draw_token_of_row<element>{vocabulary, logits.address(), first_element(draws), first_element(drawn),
                                           const_cast<double*>(weights.address())});
  }

 private:
  friend Backend;
  token_drawing_members() = default;
};

}  // namespace heddle::inline v0::compute::detail::on_cuda
