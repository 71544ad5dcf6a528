// heddle/compute/kokkos/launch.hpp: launches of kernels on an instance of Kokkos.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/math.hpp>
#include <heddle/tensor/kokkos/memory.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Whether kernels of this execution space are code of the host, which may then call functions of the host: those of the
/// host's backend, which compilers vectorise. Elsewhere the same is computed element by element.
template <class Exec>
inline constexpr bool runs_on_host = Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible;

/// What kernels keep from call to call: sums of blocks, choices and biased scores of experts, and which rows were used.
template <class Exec>
struct kept_rooms {
  growing_room<double, kokkos_memory<Exec>> sums{}, counts{};
  growing_room<std::int32_t, kokkos_memory<Exec>> used{};
  std::tuple<growing_room<float, kokkos_memory<Exec>>, growing_room<double, kokkos_memory<Exec>>> scores{};
};

/// What kernels are launched on.
template <class Exec>
struct on {
  static constexpr bool host_can_read = runs_on_host<Exec>;
  const Exec& instance;
  typename kokkos_memory<Exec>::queue& queue;
  kept_rooms<Exec>& rooms;
};

/// Whether a kernel is run by several threads of the host, and has run when its launch returns.
template <class Exec>
inline constexpr bool forks_and_joins =
    heddle::v0::detail::kokkos_shares_threads<Exec> || heddle::v0::detail::kokkos_launches_from_one_thread<Exec>;

/// Whether so few elements are for the calling thread alone: fewer than the host's backend would share among two threads. To
/// wake the others and wait for them takes as long, and far longer where they wait for a core that others use.
constexpr bool is_for_one_thread(std::int64_t n, std::int64_t elements) noexcept {
  return n == 1 || elements < 2 * elementwise_grain;
}

/// `body(i)` for every i in [0, n) on the calling thread. Tools are told of a kernel as of any other.
template <class Exec, class Body>
void each_on_calling_thread(const on<Exec>& exec, const std::string& name, std::int64_t n, const Body& body) {
  const bool told = Kokkos::Tools::profileLibraryLoaded();
  std::uint64_t kernel = 0;
  if (told) [[unlikely]]
    Kokkos::Tools::beginParallelFor(name, Kokkos::Tools::Experimental::device_id(exec.instance), &kernel);
  for (std::int64_t i = 0; i < n; ++i) body(i);
  if (told) [[unlikely]]
    Kokkos::Tools::endParallelFor(kernel);
}

/// `body(i)` for every i in [0, n), in the order of the instance, with that many elements in all. The label is that of the first
/// launch of this type of body: a lambda, which has one. Errors: `kokkos_error` for what Kokkos throws.
template <class Exec, class Body>
void each(const on<Exec>& exec, const char* label, std::int64_t n, std::int64_t elements, const Body& body) {
  if (n <= 0) return;
  // Kokkos would make one for each launch, on the heap where it has over 15 characters.
  static const std::string name(label);
  try {  // not kokkos_call: compilers need not inline a function that catches, and would give it the arguments in memory
    if constexpr (forks_and_joins<Exec>)
      if (is_for_one_thread(n, elements)) return each_on_calling_thread(exec, name, n, body);
    Kokkos::parallel_for(name, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec.instance, 0, n), body);
  } catch (...) {
    heddle::v0::detail::kokkos_failed(label);
  }
}
// Named, because a lambda for devices may not hold one that is not.
template <std::int64_t Size, class Body>
struct block_body {
  std::int64_t n;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * Size, rest = n - begin;
    body(begin, rest < Size ? rest : Size);
  }
};
/// `body(begin, count)` for the blocks of [0, n) that `Size` elements each make, in each of so many rows.
template <std::int64_t Size, class Exec, class Body>
void each_block(const on<Exec>& exec, const char* label, std::int64_t n, std::int64_t rows, const Body& body) {
  each(exec, label, (n + Size - 1) / Size, n * rows, block_body<Size, Body>{n, body});
}
template <std::int64_t Size, class Exec, class Body>
void each_block(const on<Exec>& exec, const char* label, std::int64_t n, const Body& body) {
  each_block<Size>(exec, label, n, 1, body);
}

/// Elements of one item of work of a kernel element by element, and columns of one where columns are shared: a few blocks of
/// the host's loops; one on a device, where neighbouring items read neighbours.
template <class Exec>
inline constexpr std::int64_t elements_of_item = runs_on_host<Exec> ? 4096 : 1;
template <class Exec, class T>
inline constexpr std::int64_t columns_of_item = runs_on_host<Exec> ? block_size<T> : 1;

// The host's loops as functions of their own: inlined into kernels they would keep compilers from inlining Kokkos' launch.
template <class T, class Op, class... In>
[[gnu::noinline]] void map_lanes_apart(std::int64_t n, T* out, Op op, const In*... in) {
  map_lanes(n, out, op, in...);
}
template <class Sum, class Op, class... In>
[[gnu::noinline]] Sum sum_lanes_apart(std::int64_t n, Op op, const In*... in) {
  return sum_lanes<Sum>(n, op, in...);
}

/// out[i] = op(in[i]...) in one item of work; `out` may be an input.
template <class Exec, class T, class Op, class... In>
KOKKOS_INLINE_FUNCTION void map_block(std::int64_t n, T* out, const Op& op, const In*... in) {
  if constexpr (runs_on_host<Exec>) {
    map_lanes_apart(n, out, op, in...);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = op(in[i]...);
  }
}
/// The sum of op(in[i]...) in one item of work, in an order that depends on n alone.
template <class Exec, class Sum, class Op, class... In>
KOKKOS_INLINE_FUNCTION Sum sum_of_block(std::int64_t n, const Op& op, const In*... in) {
  if constexpr (runs_on_host<Exec>) {
    return sum_lanes_apart<Sum>(n, op, in...);
  } else {
    constexpr int lanes = 8;
    Sum part[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int l = 0; l < lanes; ++l) part[l] += op(in[i + l]...);
    for (int l = 0; i + l < n; ++l) part[l] += op(in[i + l]...);
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) part[l] += part[l + half];
    return part[0];
  }
}
/// sums[j] += the sum over rows i, in order, of op(i, in[i * columns + j]...) for the columns [begin, begin + count).
template <class Exec, class T, class Op, class... In>
KOKKOS_INLINE_FUNCTION void add_columns(std::int64_t rows, std::int64_t columns, std::int64_t begin, std::int64_t count,
                                        T* sums, const Op& op, const In*... in) {
  if constexpr (runs_on_host<Exec>) {
    detail::sum_columns(rows, columns, begin, begin + count, sums, op, in...);
  } else {
    for (std::int64_t j = begin; j < begin + count; ++j) {
      T sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += op(i, in[i * columns + j]...);
      sums[j] += sum;
    }
  }
}

/// e^x.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T exponential(T x) {
  if constexpr (runs_on_host<Exec>) {
    return exp_lane(x);
  } else {
    using std::exp;
    return exp(x);
  }
}
/// The square root of x.
template <class T>
KOKKOS_INLINE_FUNCTION T square_root(T x) {
  using std::sqrt;
  return sqrt(x);
}
/// `condition ? yes : no`.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T select(bool condition, T yes, T no) {
  if constexpr (runs_on_host<Exec>)
    return choose(condition, yes, no);
  else
    return condition ? yes : no;
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
