// heddle/train/cast_backend.hpp: conversions between element types without a given backend.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::train::detail {

template <class From, class To>
void convert(std::span<const From> x, std::span<To> y) {
  compute::detail::cast_lanes(static_cast<std::int64_t>(x.size()), x.data(), y.data());
}

// A kernel of a backend from rows of From to one of To, whatever the backend's type is.
template <class From, class To, memory_space Space>
struct kept_cast {
  using from = row_view<const From, Space>;
  using to = row_view<To, Space>;
  void (*call)(void*, from, to) = nullptr;

  template <class Needs, class Backend>
  void keep() {
    if constexpr (!std::is_same_v<From, To>)
      if constexpr (compute::require_facet<Needs, compute::cast_facet<To>, Backend, From>())
        call = [](void* backend, from x, to y) { compute::cast(*static_cast<Backend*>(backend), x, y); };
  }
};

// Conversions between T and W, between `sum_of_type<T>` and G, from T to M, and sums of `sum_of_type<T>`, in the order of the backend's queue.
template <class T, class W, class G, class M, memory_space Space>
class cast_backend {
 public:
  using sum = sum_of_type<T>;
  using row = row_view<sum, Space>;
  using const_row = row_view<const sum, Space>;

  // `backend` must live as long; `Needs` is what errors name.
  template <class Needs, class Backend>
  void keep(Backend& backend) {
    backend_ = &backend;
    to_weight_.template keep<Needs, Backend>();
    from_weight_.template keep<Needs, Backend>();
    to_gradient_.template keep<Needs, Backend>();
    from_gradient_.template keep<Needs, Backend>();
    to_master_.template keep<Needs, Backend>();
    add_ = [](void* b, const_row x, row all) {
      compute::run<compute::ops::add>(*static_cast<Backend*>(b), all, x, all);
    };
  }
  template <class From, class To>
  void convert(typename Space::queue& queue, row_view<const From, Space> x, row_view<To, Space> y) const {
    if constexpr (std::is_same_v<From, To>)
      queue.copy(x, y);
    else if constexpr (std::is_same_v<To, T> && std::is_same_v<From, W>)
      from_weight_.call(backend_, x, y);
    else if constexpr (std::is_same_v<To, sum> && std::is_same_v<From, G>)
      from_gradient_.call(backend_, x, y);
    else if constexpr (std::is_same_v<To, W> && std::is_same_v<From, T>)
      to_weight_.call(backend_, x, y);
    else if constexpr (std::is_same_v<To, G> && std::is_same_v<From, sum>)
      to_gradient_.call(backend_, x, y);
    else
      to_master_.call(backend_, x, y);
  }
  // all := all + x.
  void add(const_row x, row all) const { add_(backend_, x, all); }

 private:
  void* backend_ = nullptr;
  kept_cast<T, W, Space> to_weight_{};
  kept_cast<W, T, Space> from_weight_{};
  kept_cast<sum, G, Space> to_gradient_{};
  kept_cast<G, sum, Space> from_gradient_{};
  kept_cast<T, M, Space> to_master_{};
  void (*add_)(void*, const_row, row) = nullptr;
};
template <class T, class W, class G, class M>
class cast_backend<T, W, G, M, host_memory> {
 public:
  template <class From, class To>
  static void convert(host_memory::queue&, std::span<const From> x, std::span<To> y) {
    detail::convert(x, y);
  }
};

}  // namespace heddle::inline v0::train::detail
