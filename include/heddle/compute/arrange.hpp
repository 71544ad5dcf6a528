// heddle/compute/arrange.hpp: permutes dimensions of a tensor's part, and sums over some.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/core/next_index.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

// Letters in an order.
struct letter_list {
  std::array<char, 16> letters{};
  int count = 0;

  constexpr void add(char c) { letters[static_cast<std::size_t>(count++)] = c; }
  constexpr void add(const letter_list& more) {
    for (int i = 0; i < more.count; ++i) add(more[i]);
  }
  constexpr char operator[](int i) const { return letters[static_cast<std::size_t>(i)]; }
  constexpr int find(char c) const {
    for (int i = 0; i < count; ++i)
      if ((*this)[i] == c) return i;
    return -1;
  }
  constexpr bool has(char c) const { return find(c) >= 0; }
  friend constexpr bool operator==(const letter_list& a, const letter_list& b) {
    if (a.count != b.count) return false;
    for (int i = 0; i < a.count; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }
};
template <class Term>
constexpr letter_list letters_of(const Term& term) {
  letter_list list;
  for (int i = 0; i < term.count; ++i) list.add(term.letters[i]);
  return list;
}
constexpr letter_list joined_letters(letter_list a, const letter_list& b, const letter_list& c) {
  a.add(b);
  a.add(c);
  return a;
}

// How many elements of each letter this rank has, by letter.
struct letter_sizes {
  std::array<std::int64_t, 128> extent{};
  template <class Term, class Shape>
  void read(const Term& term, const Shape& valid) {
    for (std::size_t d = 0; d < Shape::rank(); ++d) extent[static_cast<std::size_t>(term.letters[d])] = valid.extent(d);
  }
  std::int64_t of(char c) const { return extent[static_cast<std::size_t>(c)]; }
  std::int64_t of(const letter_list& list) const {
    std::int64_t n = 1;
    for (int i = 0; i < list.count; ++i) n *= of(list[i]);
    return n;
  }
};

// Letters as dimensions of row-major memory; where it is padded, the extents of the memory are larger than the letters'.
struct letter_places {
  letter_list letters{};
  std::array<std::int64_t, 16> extent{};

  letter_places(const letter_list& list, const letter_sizes& sizes) : letters(list) {
    for (int d = 0; d < list.count; ++d) extent[static_cast<std::size_t>(d)] = sizes.of(list[d]);
  }
  template <std::int64_t... E>
  letter_places(const letter_list& list, const shape<E...>& memory) : letters(list) {
    for (std::size_t d = 0; d < sizeof...(E); ++d) extent[d] = memory.extent(d);
  }
  // Of a letter that has no dimension here: 0.
  std::int64_t stride(char c) const {
    const int at = letters.find(c);
    std::int64_t s = at < 0 ? 0 : 1;
    for (int e = at + 1; e < letters.count; ++e) s *= extent[static_cast<std::size_t>(e)];
    return s;
  }
  // Whether the memory holds the letters' elements and nothing else.
  bool is_dense(const letter_sizes& sizes) const {
    for (int d = 0; d < letters.count; ++d)
      if (extent[static_cast<std::size_t>(d)] != sizes.of(letters[d])) return false;
    return true;
  }
};

// Dimensions that two memories have, each with strides of its own; the last one is walked fastest. Arrays of the language,
// because kernels read them.
struct paired_dimensions {
  std::int64_t extent[16]{}, in_stride[16]{}, out_stride[16]{};
  std::size_t count = 0;

  void add(std::int64_t n, std::int64_t in, std::int64_t out) {
    extent[count] = n;
    in_stride[count] = in;
    out_stride[count++] = out;
  }
  // f(offset in the first memory, offset in the second) for each index; once if there is no dimension.
  template <class F>
  void for_each(const F& f) const {
    if (count == 0) return f(std::int64_t{0}, std::int64_t{0});
    const std::size_t last = count - 1;
    std::array<std::int64_t, 16> index{};
    std::int64_t source = 0, target = 0;
    do {
      for (std::int64_t i = 0, s = source, t = target; i < extent[last]; ++i) {
        f(s, t);
        s += in_stride[last];
        t += out_stride[last];
      }
    } while (next_index(last, [&](std::size_t d) {
      source += in_stride[d];
      target += out_stride[d];
      if (++index[d] < extent[d]) return true;
      source -= in_stride[d] * extent[d];
      target -= out_stride[d] * extent[d];
      index[d] = 0;
      return false;
    }));
  }
};

// Sums of floats are made in double and rounded once: a float stops growing at 2^24 times what is added to it.
template <class T>
using sum_of_many = std::conditional_t<std::is_same_v<T, float>, double, T>;

// The sum of in[source + i] for i in [0, n), for each source of `summed`.
template <class T>
sum_of_many<T> sum_of_runs(const T* in, std::int64_t n, const paired_dimensions& summed) {
  constexpr int lanes = 8;
  if (n < lanes) {
    sum_of_many<T> sum{};
    summed.for_each([&](std::int64_t source, std::int64_t) {
      for (std::int64_t i = 0; i < n; ++i) sum += in[source + i];
    });
    return sum;
  }
  sum_of_many<T> sums[lanes]{};
  summed.for_each([&](std::int64_t source, std::int64_t) {
    const T* const run = in + source;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int l = 0; l < lanes; ++l) sums[l] += run[i + l];
    for (int l = 0; i < n; ++i, ++l) sums[l] += run[i];
  });
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}
// out[i * step] += the sum of in[source + i] over the sources of `summed`, for i in [0, n).
template <class T>
void add_sum_of_rows(const T* in, std::int64_t n, const paired_dimensions& summed, T* out, std::int64_t step) {
  constexpr std::int64_t block = 256;
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t m = n - first < block ? n - first : block;
    sum_of_many<T> sums[block];
    for (std::int64_t i = 0; i < m; ++i) sums[i] = 0;
    summed.for_each([&](std::int64_t source, std::int64_t) {
      const T* const run = in + source + first;
      for (std::int64_t i = 0; i < m; ++i) sums[i] += run[i];
    });
    for (std::int64_t i = 0; i < m; ++i) out[(first + i) * step] += static_cast<T>(sums[i]);
  }
}

// out[letters of `to`] += sum over the letters that `to` lacks of in[letters of `from`]. Padding is neither read nor
// written.
template <class T>
void arrange(const T* in, const letter_places& from, T* out, const letter_places& to, const letter_sizes& sizes) {
  const int count = from.letters.count;
  if (count == 0) {
    out[0] += in[0];
    return;
  }
  if (sizes.of(from.letters) == 0) return;
  paired_dimensions kept, summed;  // all but the last one
  for (int d = 0; d + 1 < count; ++d) {
    const char c = from.letters[d];
    (to.letters.has(c) ? kept : summed).add(sizes.of(c), from.stride(c), to.stride(c));
  }
  const char last = from.letters[count - 1];
  const std::int64_t n = sizes.of(last), step = to.stride(last);
  if (!to.letters.has(last))
    kept.for_each([&](std::int64_t source, std::int64_t target) {
      out[target] += static_cast<T>(sum_of_runs(in + source, n, summed));
    });
  else if (summed.count > 0)
    kept.for_each(
        [&](std::int64_t source, std::int64_t target) { add_sum_of_rows(in + source, n, summed, out + target, step); });
  else
    kept.for_each([&](std::int64_t source, std::int64_t target) {
      for (std::int64_t i = 0; i < n; ++i) out[target + i * step] += in[source + i];
    });
}

// `arrange` as a kernel: an element of what it writes, given its number.
template <class T>
struct arrange_each {
  const T* in;
  T* out;
  paired_dimensions kept, summed;

  arrange_each(const T* source, const letter_places& from, T* target, const letter_places& to,
               const letter_sizes& sizes)
      : in(source), out(target) {
    for (int d = 0; d < from.letters.count; ++d) {
      const char c = from.letters[d];
      (to.letters.has(c) ? kept : summed).add(sizes.of(c), from.stride(c), to.stride(c));
    }
  }
  HEDDLE_HD void operator()(std::int64_t i) const {
    std::int64_t first = 0, target = 0, runs = 1;
    for (std::size_t d = kept.count; d-- > 0;) {
      const std::int64_t at = i % kept.extent[d];
      first += at * kept.in_stride[d];
      target += at * kept.out_stride[d];
      i /= kept.extent[d];
    }
    for (std::size_t d = 0; d < summed.count; ++d) runs *= summed.extent[d];
    sum_of_many<T> sum{};
    for (std::int64_t r = 0; r < runs; ++r) {
      std::int64_t source = first, rest = r;
      for (std::size_t d = summed.count; d-- > 0;) {
        source += rest % summed.extent[d] * summed.in_stride[d];
        rest /= summed.extent[d];
      }
      sum += in[source];
    }
    out[target] += static_cast<T>(sum);
  }
};
// `arrange` in the order of a queue.
template <class Space, class T>
void arrange_in(typename Space::queue& q, const T* in, std::int64_t elements, const letter_places& from, T* out,
                std::int64_t room, const letter_places& to, const letter_sizes& sizes) {
  using queue = typename Space::queue;
  if constexpr (heddle::v0::detail::runs_at_once<queue>) {
    arrange(in, from, out, to, sizes);
  } else if constexpr (launches_kernels<queue>) {
    if (sizes.of(from.letters) != 0) launch_each(q, sizes.of(to.letters), arrange_each<T>(in, from, out, to, sizes));
  } else if constexpr (heddle::v0::detail::can_run<queue>()) {
    q.run([from, to, sizes](const auto& s, const auto& t) { arrange(s.address(), from, t.address(), to, sizes); },
          vector_view<const T, Space>(in, heddle::v0::detail::row_shape(elements)),
          vector_view<T, Space>(out, heddle::v0::detail::row_shape(room)));
  }
}

}  // namespace heddle::inline v0::compute::detail
