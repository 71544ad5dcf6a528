// heddle/compute/kokkos/elementwise.hpp: elementwise kernels and look-ups on Kokkos.
#pragma once

#include <heddle/compute/activation_formulas.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/embedding.hpp>
#include <heddle/compute/ops/rotary.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// What formulas of activations compute with.
template <class Exec>
struct math_on {
  template <class T>
  KOKKOS_INLINE_FUNCTION static T exponential(T x) {
    return on_kokkos::exponential<Exec>(x);
  }
  template <class T>
  KOKKOS_INLINE_FUNCTION static T select(bool condition, T yes, T no) {
    return on_kokkos::select<Exec>(condition, yes, no);
  }
};

template <class Exec, class T>
void body(ops::gelu, const on<Exec>& exec, std::int64_t n, const T* x, T* y) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::gelu", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(count, y + i, [](T v) { return activation<math_on<Exec>>(gelu_tanh{}, v); }, x + i);
      });
}
template <class Exec, class T>
void body(ops::gelu_backward, const on<Exec>& exec, std::int64_t n, const T* x, const T* dy, T* dx) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::gelu_backward", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(
            count, dx + i, [](T v, T d) { return d * activation_derivative<math_on<Exec>>(gelu_tanh{}, v); }, x + i,
            dy + i);
      });
}
template <class Exec, class T>
void body(ops::soft_cap, const on<Exec>& exec, std::int64_t n, const T* x, T cap, T* y) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::soft_cap", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        using std::tanh;
        map_block<Exec>(count, y + i, [cap](T v) { return cap * tanh(v / cap); }, x + i);
      });
}
template <class Exec, class T>
void body(ops::soft_cap_backward, const on<Exec>& exec, std::int64_t n, const T* x, const T* dy, T cap, T* dx) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::soft_cap_backward", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        using std::tanh;
        const auto gradient = [cap](T v, T d) {
          const T t = tanh(v / cap);
          return d * (T(1) - t * t);
        };
        map_block<Exec>(count, dx + i, gradient, x + i, dy + i);
      });
}
template <class A, class Exec, class T>
void body(ops::gated<A>, const on<Exec>& exec, std::int64_t n, const T* gate, const T* up, T* h) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::gated", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(
            count, h + i,
            [](T g, T u) { return activation<math_on<Exec>>(A{}, g) * factor_of_unit<math_on<Exec>>(A{}, u); },
            gate + i, up + i);
      });
}
/// Both results of a few elements from one reading, so that each output may be an input's memory.
template <class A, class Exec, class T>
void body(ops::gated_backward<A>, const on<Exec>& exec, std::int64_t n, const T* gate, const T* up, const T* dh,
          T* dgate, T* dup) {
  each_block<columns_of_item<Exec, T>>(
      exec, "heddle::gated_backward", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        constexpr std::int64_t width = columns_of_item<Exec, T>;
        T to_up[width];
        map_block<Exec>(
            count, to_up,
            [](T g, T u, T d) {
              return times_factor_derivative<math_on<Exec>>(A{}, d * activation<math_on<Exec>>(A{}, g), u);
            },
            gate + i, up + i, dh + i);
        map_block<Exec>(
            count, dgate + i,
            [](T g, T u, T d) {
              return d * factor_of_unit<math_on<Exec>>(A{}, u) * activation_derivative<math_on<Exec>>(A{}, g);
            },
            gate + i, up + i, dh + i);
        for (std::int64_t l = 0; l < count; ++l) dup[i + l] = to_up[l];
      });
}

template <class Exec, class T>
void body(ops::add, const on<Exec>& exec, std::int64_t n, const T* a, const T* b, T* c) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::add", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(count, c + i, [](T x, T y) { return x + y; }, a + i, b + i);
      });
}
template <class Exec, class T>
void body(ops::scale, const on<Exec>& exec, std::int64_t n, T* x, T factor) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::scale", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(count, x + i, [factor](T v) { return v * factor; }, static_cast<const T*>(x + i));
      });
}
/// x[i] = value in one item of work.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION void fill_block(std::int64_t n, T* x, T value) {
  if constexpr (runs_on_host<Exec>) {
    map_lanes_apart(n, x, [value] { return value; });  // g++ -O2 leaves std::fill_n a loop of single elements
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] = value;
  }
}
/// y[i] = x[i] in one item of work.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION void copy_block(std::int64_t n, const T* x, T* y) {
  if constexpr (runs_on_host<Exec>) {
    std::copy_n(x, n, y);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i];
  }
}
template <class Exec, class T>
void body(ops::fill, const on<Exec>& exec, std::int64_t n, T* x, T value) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::fill", n,
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) { fill_block<Exec>(count, x + i, value); });
}
template <class Exec, class T>
void body(ops::copy, const on<Exec>& exec, std::int64_t n, const T* x, T* y) {
  if (x != y) exec.queue.copy(row_at<kokkos_memory<Exec>>(x, n), row_at<kokkos_memory<Exec>>(y, n));
}
template <class From, class To>
[[gnu::noinline]] void cast_lanes_apart(std::int64_t n, const From* x, To* y) {
  cast_lanes(n, x, y);
}
/// y[i] = x[i] in another element type, in one item of work.
template <class Exec, class From, class To>
KOKKOS_INLINE_FUNCTION void cast_block(std::int64_t n, const From* x, To* y) {
  if constexpr (runs_on_host<Exec>) {
    cast_lanes_apart(n, x, y);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = converted<To>(x[i]);
  }
}
template <class Exec, class From, class To>
void body(ops::cast<To>, const on<Exec>& exec, std::int64_t n, const From* x, To* y) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::cast", n,
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) { cast_block<Exec>(count, x + i, y + i); });
}

/// y[i] = x[i], rounded stochastically with the numbers of index first + i, in one item of work.
template <class Exec, class From>
KOKKOS_INLINE_FUNCTION void cast_stochastic_block(std::int64_t n, const From* x, const counter_random& random,
                                                  std::uint64_t first, bf16* y) {
  if constexpr (runs_on_host<Exec>) {
    cast_stochastic_lanes(n, x, random, first, y);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t at = first + static_cast<std::uint64_t>(i);
      y[i] = round_stochastically(static_cast<float>(x[i]), random.bits16(at));
    }
  }
}
template <class Exec>
void body(ops::stochastic_cast, const on<Exec>& exec, std::int64_t n, const float* x, bf16* y,
          const stochastic& rounding) {
  const counter_random random = rounding.random;
  const std::uint64_t first = rounding.first;
  each_block<elements_of_item<Exec>>(
      exec, "heddle::cast_stochastic", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        cast_stochastic_block<Exec>(count, x + i, random, first + static_cast<std::uint64_t>(i), y + i);
      });
}

template <class Exec, class T>
void body(ops::add_bias, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, T* y, const T* bias) {
  each(
      exec, "heddle::add_bias", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = y + i * columns;
        map_block<Exec>(columns, row, [](T v, T b) { return v + b; }, static_cast<const T*>(row), bias);
      });
}
template <class Exec, class T>
void body(ops::add_bias_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy, T* db) {
  each_block<columns_of_item<Exec, T>>(
      exec, "heddle::add_bias_backward", columns, rows,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count) {
        add_columns<Exec>(rows, columns, begin, count, db, [](std::int64_t, T d) { return d; }, dy);
      });
}

/// Turns the first 2 * pairs elements of each head by the angles of the row's position, or back, and copies the rest.
template <rotary_pairs Pairs, bool Back, class Exec, class T>
void body(ops::rotary<Pairs, Back>, const on<Exec>& exec, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          std::int64_t pairs, head_rows<const T> x, const std::int32_t* positions, const T* cos, const T* sin,
          head_rows<T> y) {
  const bool neighbours = Pairs == rotary_pairs::neighbours;
  const std::int64_t step = neighbours ? 2 : 1, other = neighbours ? 1 : pairs, heads = x.heads, width = x.head_dim;
  const std::int64_t from_stride = x.stride, to_stride = y.stride;
  const T* const from = x.data;
  T* const to = y.data;
  each(
      exec, "heddle::rotary", x.rows, x.rows * heads * width, KOKKOS_LAMBDA(const std::int64_t r) {
        const std::int64_t at = positions[r] * pairs;
        for (std::int64_t h = 0; h < heads; ++h) {
          const T* const in = from + r * from_stride + h * width;
          T* const out = to + r * to_stride + h * width;
          for (std::int64_t i = 0; i < pairs; ++i) {
            const T a = in[i * step], b = in[i * step + other], c = cos[at + i];
            const T s = Back ? -sin[at + i] : sin[at + i];
            out[i * step] = a * c - b * s;
            out[i * step + other] = b * c + a * s;
          }
          for (std::int64_t i = 2 * pairs; i < width; ++i) out[i] = in[i];
        }
      });
}

template <class Exec, class T>
void body(ops::squared_error_backward, const on<Exec>& exec, std::int64_t n, T* x, const T* target, T factor) {
  each_block<elements_of_item<Exec>>(
      exec, "heddle::squared_error_backward", n, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count) {
        map_block<Exec>(
            count, x + i, [factor](T v, T t) { return T(2) * factor * (v - t); }, static_cast<const T*>(x + i),
            target + i);
      });
}

template <class Exec, class T>
void body(ops::embedding, const on<Exec>& exec, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
          const std::int32_t* ids, const T* table, std::int64_t first_id, T* out) {
  each(
      exec, "heddle::embedding", tokens, tokens * width, KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = ids[i] - first_id;
        const bool here = row >= 0 && row < vocabulary;
        if (here)
          copy_block<Exec>(width, table + row * width, out + i * width);
        else
          fill_block<Exec>(width, out + i * width, T(0));
      });
}
/// Columns are shared, and each walks the tokens in order, so that repeated tokens add up in that order.
template <class Exec, class T>
void body(ops::embedding_backward, const on<Exec>& exec, std::int64_t tokens, std::int64_t vocabulary,
          std::int64_t width, const std::int32_t* ids, const T* dout, std::int64_t first_id, T* dtable) {
  each_block<columns_of_item<Exec, T>>(
      exec, "heddle::embedding_backward", width, tokens,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count) {
        for (std::int64_t i = 0; i < tokens; ++i) {
          const std::int64_t row = ids[i] - first_id;
          if (row < 0 || row >= vocabulary) continue;
          T* const to = dtable + row * width + begin;
          map_block<Exec>(
              count, to, [](T old, T d) { return old + d; }, static_cast<const T*>(to), dout + i * width + begin);
        }
      });
}
template <class Exec, class T>
void body(ops::add_positions, const on<Exec>& exec, std::int64_t rows, std::int64_t, std::int64_t width, T* x,
          const T* wpe, std::int64_t sequence) {
  each(
      exec, "heddle::add_positions", rows, rows * width, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = x + i * width;
        map_block<Exec>(
            width, row, [](T v, T p) { return v + p; }, static_cast<const T*>(row), wpe + i % sequence * width);
      });
}
template <class Exec, class T>
void body(ops::add_positions_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t, std::int64_t width,
          const T* dx, std::int64_t sequence, T* dwpe) {
  each(
      exec, "heddle::add_positions_backward", rows < sequence ? rows : sequence, rows * width,
      KOKKOS_LAMBDA(const std::int64_t s) {
        T* const to = dwpe + s * width;
        for (std::int64_t i = s; i < rows; i += sequence)
          map_block<Exec>(width, to, [](T old, T d) { return old + d; }, static_cast<const T*>(to), dx + i * width);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
