// heddle/train/rule_kernels.hpp: one kernel for the steps of any rule, on host and device.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/optimizer_rule.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

template <bool Ok, class Queue>
inline constexpr bool queue_steps_elements = Ok;

// A step of a rule, or one that is taken `Back`, at element i: weights of T, gradients of G.
template <class Rule, class T, class G, bool Back = false>
struct rule_body {
  static constexpr int moments = Rule::moments;
  static constexpr int room = moments > 0 ? moments : 1;
  using scalars_type = typename Rule::template scalars<T>;

  scalars_type scalars;
  T grad_scale;
  T* p;
  const G* g;
  T* m[room];

  using element = T;
  HEDDLE_HD static void step(T& w, T d, T* slot, const scalars_type& s) {
    if constexpr (Back)
      Rule::template undo<T>(w, d, slot, s);
    else
      Rule::template update<T>(w, d, slot, s);
  }
  HEDDLE_HD void operator()(std::int64_t i) const {
    T w = p[i], slot[room] = {};
    for (int k = 0; k < moments; ++k) slot[k] = m[k][i];
    step(w, converted<T>(g[i]) * grad_scale, slot, scalars);
    p[i] = w;
    for (int k = 0; k < moments; ++k) m[k][i] = slot[k];
  }
};
// The same with numbers that are read from memory when it runs; nothing where gradients are multiplied by less than 0.
template <class Rule, class T, class G>
struct rule_body_at {
  const typename Rule::template scalars<T>* scalars;
  const double* grad_scale;
  rule_body<Rule, T, G> body;
  HEDDLE_HD void operator()(std::int64_t i) const {
    if (*grad_scale < 0) return;
    rule_body<Rule, T, G> now = body;
    now.scalars = *scalars;
    now.grad_scale = static_cast<T>(*grad_scale);
    now(i);
  }
};

// Elements [begin, end) on the calling thread, in blocks of memory of their own, which compilers vectorise. What is shorter lies in whole
// blocks, so that every element goes through the same code.
template <class Rule, class T, class G, bool Back>
void step_elements(const rule_body<Rule, T, G, Back>& body, std::int64_t begin, std::int64_t end) {
  constexpr int width = compute::detail::block_size<T>;
  constexpr int moments = Rule::moments, room = moments > 0 ? moments : 1;
  const auto block = [&](std::int64_t i, auto size) {
    const std::int64_t count = size;  // known to the compiler for whole blocks
    T w[width] = {}, d[width] = {}, slot[room][width] = {};
    std::copy_n(body.p + i, count, w);
    compute::detail::cast_lanes(count, body.g + i, d);
    for (int k = 0; k < moments; ++k) std::copy_n(body.m[k] + i, count, slot[k]);
    for (int l = 0; l < width; ++l) {
      T mine[room] = {};
      for (int k = 0; k < moments; ++k) mine[k] = slot[k][l];
      body.step(w[l], d[l] * body.grad_scale, mine, body.scalars);
      for (int k = 0; k < moments; ++k) slot[k][l] = mine[k];
    }
    std::copy_n(w, count, body.p + i);
    for (int k = 0; k < moments; ++k) std::copy_n(slot[k], count, body.m[k] + i);
  };
  std::int64_t i = begin;
  for (; i + width <= end; i += width) block(i, std::integral_constant<std::int64_t, width>{});
  if (i < end) block(i, end - i);
}

// `body` for n elements in the order of a backend; `rows`: what it reads and writes.
template <class Backend, class Body, class... Rows>
void launch_rule(Backend& backend, std::int64_t n, const Body& body, const Rows&... rows) {
  using queue = typename space_of<Backend>::queue;
  if constexpr (std::is_same_v<space_of<Backend>, host_memory>) {
    if constexpr (requires { backend.workers(); })
      backend.workers().split(n, compute::detail::elementwise_grain,
                              compute::detail::block_size<typename Body::element>,
                              [&](std::int64_t begin, std::int64_t end) { step_elements(body, begin, end); });
    else
      step_elements(body, 0, n);
  } else if constexpr (launches_kernels<queue>) {
    if (n > 0) launch_each(compute::queue_of(backend), n, body);
  } else {
    static_assert(queue_steps_elements<runs_host_code<queue>, queue>,
                  "heddle: the rule of this optimizer is stepped by kernels: this queue runs no host code, so it must "
                  "launch kernels (launch_each, see heddle/core/launch_each.hpp; that of a CUDA device does in files "
                  "that nvcc compiles)");
    if constexpr (runs_host_code<queue>)
      compute::queue_of(backend).run([n, body](const auto&...) { step_elements(body, 0, n); }, rows...);
  }
}

// Weights become masters, rounded to the nearest.
template <class T, class Backend>
void round_weights(Backend& backend, auto masters, auto weights) {
  const row_view<const T, space_of<Backend>> exact(masters);
  if constexpr (std::is_same_v<T, element_of<decltype(weights)>>)
    compute::queue_of(backend).copy(exact, weights);
  else
    compute::cast(backend, exact, weights);
}

// The steps of a rule as kernels, of any rule; those whose steps are kernels of the backend specialise it.
template <class Rule>
struct rule_kernels {
  using options = typename Rule::options;
  template <class T>
  using scalars = typename Rule::template scalars<T>;
  template <class T>
  struct step {
    typename Rule::template scalars<T> scalars;
    double grad_scale;
  };
  /// Where a step's numbers are when kernels run that are part of a graph.
  template <class T>
  struct step_at {
    const typename Rule::template scalars<T>* scalars;
    const double* grad_scale;
  };
  template <class T, class Space>
  using slots = std::array<row_view<T, Space>, static_cast<std::size_t>(Rule::moments)>;

  static constexpr bool undoes = rule_has_undo<Rule>;
  template <class Backend, class T>
  static constexpr bool updates_at = launches_kernels<typename space_of<Backend>::queue>;
  template <class Backend, class T, class W, class G>
  static constexpr bool updates_masters_at =
      updates_at<Backend, T> && compute::offered<compute::ops::cast<W>, Backend, T>;
  template <class Needs, class Backend, class T, class W, class G, bool InPlace>
  static consteval bool required() {
    if constexpr (!InPlace && !std::is_same_v<T, W>)
      return compute::require_facet<Needs, compute::cast_facet<W>, Backend, T>();
    else
      return true;
  }

  template <class Needs, class Backend, class T>
  static consteval bool undo_required() {
    return true;
  }

  template <class T>
  static step<T> step_of(const options& o, double rate, std::int64_t number, bool decays, double grad_scale) {
    return {Rule::template at<T>(o, rate, number, decays), grad_scale};
  }
  template <class T>
  static scalars<T> scalars_of(const step<T>& s) {
    return s.scalars;
  }

  // Weights p and moments m of T, gradients of any type.
  template <class T>
  static void update(auto& backend, auto p, auto g, const auto& m, const step<T>& s) {
    launch(backend, filled<false>(p, g, m, s), p, g, m);
  }
  template <class T>
  static void undo(auto& backend, auto p, auto g, const auto& m, const step<T>& s) {
    launch(backend, filled<true>(p, g, m, s), p, g, m);
  }
  /// The same on master weights; `weights` become those, rounded to the nearest.
  template <class T>
  static void update_masters(auto& backend, auto p, auto weights, auto g, const auto& m, const step<T>& s) {
    update<T>(backend, p, g, m, s);
    round_weights<T>(backend, p, weights);
  }
  template <class T>
  static void update_at(auto& backend, auto p, auto g, const auto& m, const step_at<T>& at) {
    const auto body = filled<false>(p, g, m, step<T>{});
    using gradient = element_of<decltype(g)>;
    launch(backend, rule_body_at<Rule, T, gradient>{at.scalars, at.grad_scale, body}, p, g, m);
  }
  template <class T>
  static void update_masters_at(auto& backend, auto p, auto weights, auto g, const auto& m, const step_at<T>& at) {
    update_at<T>(backend, p, g, m, at);
    round_weights<T>(backend, p, weights);  // the same bits again where the step was left out
  }

 private:
  template <bool Back, class T>
  static auto filled(auto p, auto g, const auto& m, const step<T>& s) {
    rule_body<Rule, T, element_of<decltype(g)>, Back> body{
        s.scalars, static_cast<T>(s.grad_scale), first_element(p), first_element(g), {}};
    for (std::size_t k = 0; k < m.size(); ++k) body.m[k] = first_element(m[k]);
    return body;
  }
  static void launch(auto& backend, const auto& body, auto p, auto g, const auto& m) {
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      launch_rule(backend, static_cast<std::int64_t>(p.size()), body, p, g, m[K]...);
    }(std::make_index_sequence<static_cast<std::size_t>(Rule::moments)>{});
  }
};

// What kernels of a rule on whole tensors keep of each tensor; of other rules nothing.
struct no_tensors {};
template <class Kernels, class T, class Space, bool Whole>
struct tensors_of_rule_as {
  using type = no_tensors;
};
template <class Kernels, class T, class Space>
struct tensors_of_rule_as<Kernels, T, Space, true> {
  using type = typename Kernels::template tensors<T, Space>;
};
template <class Kernels, class T, class Space, bool Whole>
using tensors_of_rule = typename tensors_of_rule_as<Kernels, T, Space, Whole>::type;

}  // namespace heddle::inline v0::train::detail
