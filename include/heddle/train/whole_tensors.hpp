// heddle/train/whole_tensors.hpp: optimizer rules on whole tensors: shares, slots, kernels.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/stacked_parameters.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/rule_kernels.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// What the step of a whole tensor has beside weights, gradient and slots. A rule of whole tensors is one of `optimizer_rule` with
/// - `static constexpr bool whole_tensors = true;`, `moments`: how many slots it has;
/// - `static slot_shape slot(const options&, const whole_tensor&, int k)`: what it keeps of a tensor in slot k;
/// - `static std::int64_t room<T>(const options&, const whole_tensor&)`: numbers of memory that a step takes;
/// - `scalars<T>` and `at<T>(options, tensor, rate, step, decays)`: the plain numbers of a step of a tensor;
/// - `update_matrix<T>(backend, w, g, m, scalars, work)`: the step, by calls of the backend; rows `w` and `m[k]` are of T, `g` is not yet scaled
///   (`work.gradient_scale`).
/// Its tensors are whole on one rank: shares are cut between tensors, and parameters that lie in parts on several ranks are refused. It has no
/// `undo`, and no captured steps.
template <class T, class Space>
struct tensor_work {
  using row = row_view<T, Space>;
  using matrix = matrix_view<T, Space>;

  const whole_tensor& tensor;
  double gradient_scale;
  T* first;
  double* numbers;

  /// Elements [begin, begin + n) of the memory that `room` asked for.
  row room(std::int64_t begin, std::int64_t n) const noexcept { return row_at<Space>(first + begin, n); }
  /// Number k of two that stay in the backend's memory.
  row_view<double, Space> number(int k) const noexcept { return row_at<Space>(numbers + k, 1); }
  /// Number k becomes the sum of squares of a row, in the order of the backend.
  template <class Backend>
  void sum_squares(Backend& backend, row x, int k) const {
    compute::queue_of(backend).zero(number(k));
    if constexpr (std::is_same_v<Space, host_memory>)
      compute::run<compute::ops::sum_of_squares>(backend, x, numbers + k);
    else
      compute::run<compute::ops::sum_of_squares>(backend, x, scalar_view<double, Space>(numbers + k, {}));
  }
};

/// A row as a row-major matrix.
template <class T, class Space, class Row>
matrix_view<T, Space> as_matrix(const Row& x, std::int64_t rows, std::int64_t columns) noexcept {
  return {first_element(x), dynamic_shape<2>(rows, columns)};
}

/// `Element::update` for each element of rows, as a rule of single elements: `w`, gradient `g` of any type times `scale`, moments `m...`.
template <class Element, class T, class Backend, class W, class G, class... M>
void step_each(Backend& backend, const typename Element::template scalars<T>& scalars, double scale, const W& w,
               const G& g, const M&... m) {
  static_assert(sizeof...(M) == static_cast<std::size_t>(Element::moments));
  const detail::rule_body<Element, T, std::remove_const_t<element_of<const G>>> body{
      scalars, static_cast<T>(scale), first_element(w), first_element(g), {first_element(m)...}};
  detail::launch_rule(backend, static_cast<std::int64_t>(w.size()), body, w, g, m...);
}

/// w = kept w + part g, for `step_each`; with `kept` 0 whatever w held.
struct weighted_sum {
  static constexpr int moments = 0;
  template <class T>
  struct scalars {
    T kept, part;
  };
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T*, const scalars<T>& s) {
    w = s.kept == T(0) ? s.part * g : s.kept * w + s.part * g;
  }
};

namespace detail {

// w = kept w + factor() g at element i.
template <class T, class Factor>
struct sum_by_factor {
  using element = T;
  Factor factor;
  T kept;
  T* w;
  const T* g;
  HEDDLE_HD void add(std::int64_t i, T part) const { w[i] = kept == T(0) ? part * g[i] : kept * w[i] + part * g[i]; }
  HEDDLE_HD void operator()(std::int64_t i) const { add(i, factor()); }
};
template <class T, class Factor>
void step_elements(const sum_by_factor<T, Factor>& body, std::int64_t begin, std::int64_t end) {
  const T part = body.factor();
  for (std::int64_t i = begin; i < end; ++i) body.add(i, part);
}

}  // namespace detail

/// w = kept w + factor() g for rows, with `kept` 0 whatever w held. `factor` reads `numbers`, rows in the backend's memory, when the kernel runs.
template <class T, class Backend, class Factor, class Row, class... Numbers>
void add_by_factor(Backend& backend, const Factor& factor, T kept, const Row& w, const Row& g,
                   const Numbers&... numbers) {
  const detail::sum_by_factor<T, Factor> body{factor, kept, first_element(w), first_element(g)};
  detail::launch_rule(backend, static_cast<std::int64_t>(w.size()), body, w, g, numbers...);
}

namespace detail {

template <bool Ok, class Parameter>
inline constexpr bool parameters_have_tensors = Ok;

// The tensors of a flat buffer of parameters in its order, those of a rank's share, and what their slots have.
class tensors_of_share {
 public:
  struct range {
    std::int64_t begin = 0, end = 0;
  };
  struct one {
    whole_tensor tensor;
    std::int64_t offset = 0;
    bool decays = false;
    bool stacked = false;
    std::vector<slot_shape> shapes{};   // of its slots
    std::vector<std::int64_t> slots{};  // where it begins in each
    std::int64_t numbers(std::size_t k) const noexcept {
      return shapes[k] == slot_shape::elements  ? tensor.count()
             : shapes[k] == slot_shape::rows    ? tensor.rows
             : shapes[k] == slot_shape::columns ? tensor.columns
                                                : 0;
    }
  };

  tensors_of_share() = default;
  // Errors: `config_error` for a parameter of which this rank has a part only.
  template <class Table>
  tensors_of_share(const char* rule, const Table& table) {
    using entry = std::remove_cvref_t<decltype(*table.begin())>;
    constexpr bool ok = std::is_convertible_v<const entry&, const model::parameter&>;
    static_assert(
        parameters_have_tensors<ok, entry>,
        "heddle: an optimizer's rule that acts on whole matrices needs the shapes of a stage's parameters: make "
        "them model::parameter");
    if constexpr (ok)
      for (const model::parameter& p : table)
        if (p.count > 0) add(rule, p);
    std::sort(all_.begin(), all_.end(), [](const one& a, const one& b) { return a.offset < b.offset; });
  }

  // How many of the elements each rank owns: tensors in order, the largest share as small as can be.
  std::vector<std::int64_t> shares(std::int64_t elements, int ranks) const {
    std::vector<std::int64_t> ends;  // of tensors, with the padding behind them
    for (std::size_t i = 1; i < all_.size(); ++i) ends.push_back(all_[i].offset);
    ends.push_back(elements);
    const auto cut = [&](std::int64_t most, std::vector<std::int64_t>* to) {
      std::int64_t begin = 0, last = 0;
      int used = 1;
      for (const std::int64_t end : ends) {
        if (end - last > most) return false;
        if (end - begin > most) {
          if (to != nullptr) to->push_back(last - begin);
          begin = last;
          if (++used > ranks) return false;
        }
        last = end;
      }
      if (to != nullptr) to->push_back(elements - begin);
      return true;
    };
    std::int64_t low = elements / ranks, high = elements;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (cut(middle, nullptr))
        high = middle;
      else
        low = middle + 1;
    }
    std::vector<std::int64_t> shares;
    cut(low, &shares);
    shares.resize(static_cast<std::size_t>(ranks), 0);
    return shares;
  }

  // Places the slots of a rule's options, of all tensors, and of those in [begin, end) of the buffer.
  template <class Rule, class T>
  void place(const typename Rule::options& options, std::int64_t begin, std::int64_t end) {
    constexpr auto slots = static_cast<std::size_t>(Rule::moments);
    std::vector<std::int64_t> at(slots, 0);
    owned_.assign(slots, {});
    first_ = last_ = room_ = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      one& t = all_[i];
      const bool mine = t.offset >= begin && t.offset < end;
      t.slots = at;
      t.shapes.clear();
      for (std::size_t k = 0; k < slots; ++k) {
        t.shapes.push_back(Rule::slot(options, t.tensor, static_cast<int>(k)));
        if (mine && last_ == 0) owned_[k].begin = at[k];
        at[k] += t.numbers(k);
        if (mine) owned_[k].end = at[k];
      }
      if (!mine) continue;
      if (last_ == 0) first_ = i;
      last_ = i + 1;
      room_ = (std::max)(room_, Rule::template room<T>(options, t.tensor));
    }
    placed_ = true;
  }
  bool placed() const noexcept { return placed_; }
  // This rank's numbers of a slot among those of all tensors; memory for a step.
  range owned(int k) const noexcept { return owned_[static_cast<std::size_t>(k)]; }
  std::int64_t room() const noexcept { return room_; }
  // Elements of the largest tensor in [begin, end).
  std::int64_t largest(std::int64_t begin, std::int64_t end) const noexcept {
    std::int64_t most = 0;
    for (const one& t : all_)
      if (t.offset >= begin && t.offset < end) most = (std::max)(most, t.tensor.count());
    return most;
  }

  // f(tensor, factor of the learning rate) for this rank's, in order.
  template <class F>
  void each(const parameter_rates& rates, F&& f) const {
    for (std::size_t i = first_; i < last_; ++i) {
      const auto rate = std::find_if(rates.begin(), rates.end(),
                                     [&](const auto& r) { return all_[i].tensor.name.starts_with(r.first); });
      f(all_[i], rate == rates.end() ? 1.0 : rate->second);
    }
  }

  // Slot k of a parameter as a parameter of its own, in a buffer of that slot of all tensors.
  template <class Parameter>
  Parameter slot_of(const Parameter& p, int slot) const {
    const auto k = static_cast<std::size_t>(slot);
    const auto at = std::partition_point(all_.begin(), all_.end(), [&](const one& t) { return t.offset < p.offset; });
    Parameter mine = p;
    mine.count = 0;
    if (p.count == 0 || at == all_.end()) return mine;
    mine.offset = at->slots[k];
    if (at->shapes[k] == slot_shape::elements) {
      mine.count = p.count;
      return mine;
    }
    const std::int64_t n = at->numbers(k);
    const auto cut = [&](auto& extents, std::int64_t own) {
      extents.resize(at->stacked ? 1 : 0);
      extents.push_back(own);
    };
    cut(mine.logical, n), cut(mine.local, n), cut(mine.start, 0);
    mine.count = at->stacked ? mine.local.front() * n : n;
    return mine;
  }

 private:
  void add(const char* rule, const model::parameter& p) {
    const bool stacked = model::is_stacked(p.name);
    bool whole = p.local.size() == p.logical.size();
    for (std::size_t d = stacked ? 1 : 0; whole && d < p.local.size(); ++d) whole = p.local[d] == p.logical[d];
    if (!whole)
      throw config_error(text_of(
          {"heddle: the rule ", rule, " acts on whole matrices, and this rank has a part of '", p.name,
           "' only; take a mesh whose axes do not cut weights (no tensor parallelism), or a rule of single elements"}));
    model::for_each_tensor(p, [&](const model::parameter& tensor) {
      const bool is_matrix = tensor.shape.size() == 2;
      const std::int64_t rows = is_matrix ? tensor.shape[0] : 1;
      if (tensor.count > 0)
        all_.push_back({.tensor = {tensor.name, rows, tensor.count / rows, is_matrix},
                        .offset = tensor.offset,
                        .decays = p.decay,
                        .stacked = stacked});
    });
  }

  std::vector<one> all_;
  std::vector<range> owned_;
  std::size_t first_ = 0, last_ = 0;  // this rank's: [first, last)
  std::int64_t room_ = 0;
  bool placed_ = false;
};

// A backend without the rounding of the model's products (`products_in`).
template <class Backend>
auto& without_rounding(Backend& backend) noexcept {
  if constexpr (requires { typename Backend::unrounded; })
    return static_cast<typename Backend::unrounded&>(backend);
  else
    return backend;
}

// The steps of a rule of whole tensors, each of one tensor.
template <class Rule>
  requires acts_on_whole_tensors<Rule>
struct rule_kernels<Rule> {
  using options = typename Rule::options;
  template <class T>
  using scalars = typename Rule::template scalars<T>;
  template <class T>
  struct step {
    typename Rule::template scalars<T> scalars;
    double grad_scale;
    const whole_tensor* tensor;
    std::array<tensors_of_share::range, static_cast<std::size_t>(Rule::moments)> slots;
    T* room;
    double* numbers;
  };
  template <class T>
  struct step_at {
    const typename Rule::template scalars<T>* scalars;
    const double* grad_scale;
  };
  template <class T, class Space>
  using slots = std::array<row_view<T, Space>, static_cast<std::size_t>(Rule::moments)>;
  // What a rank keeps beside its moments.
  template <class T, class Space>
  struct tensors : tensors_of_share {
    using tensors_of_share::tensors_of_share;
    buffer<T, Space> memory{};
    buffer<double, Space> numbers{};
    void allocate(typename Space::queue& queue) {
      memory = buffer<T, Space>(queue, room(), "memory for steps of whole tensors");
      numbers = buffer<double, Space>(queue, 2, "sums of a step of a whole tensor");
    }
    std::int64_t bytes() const noexcept {
      return static_cast<std::int64_t>(memory.size() * sizeof(T) + numbers.size() * sizeof(double));
    }
  };

  static constexpr bool undoes = false;
  template <class Backend, class T>
  static constexpr bool updates_at = false;
  template <class Backend, class T, class W, class G>
  static constexpr bool updates_masters_at = false;
  template <class Needs, class Backend, class T, class W, class G, bool InPlace>
  static consteval bool required() {
    if constexpr (!InPlace && !std::is_same_v<T, W>)
      return compute::require_facet<Needs, compute::cast_facet<W>, Backend, T>();
    else
      return true;
  }

  template <class T, class Space>
  static step<T> step_of(const options& o, tensors<T, Space>& all, const tensors_of_share::one& t, double rate,
                         std::int64_t number, double grad_scale) {
    step<T> s{Rule::template at<T>(o, t.tensor, rate, number, t.decays),
              grad_scale,
              &t.tensor,
              {},
              all.memory.address(),
              all.numbers.address()};
    for (std::size_t k = 0; k < s.slots.size(); ++k) {
      const std::int64_t begin = t.slots[k] - all.owned(static_cast<int>(k)).begin;
      s.slots[k] = {begin, begin + t.numbers(k)};
    }
    return s;
  }
  template <class T>
  static scalars<T> scalars_of(const step<T>& s) {
    return s.scalars;
  }

  // Weights p and moments m of T, gradients of any type.
  template <class T, class Backend>
  static void update(Backend& backend, auto p, auto g, const auto& m, const step<T>& s) {
    using space = space_of<Backend>;
    if constexpr (compute::require_facets<Rule, Backend, T, compute::product_facet, compute::reduction_facet>())
      Rule::template update_matrix<T>(without_rounding(backend), p, g, m, s.scalars,
                                      tensor_work<T, space>{*s.tensor, s.grad_scale, s.room, s.numbers});
  }
  /// The same on master weights; `weights` become those, rounded to the nearest.
  template <class T, class Backend>
  static void update_masters(Backend& backend, auto p, auto weights, auto g, const auto& m, const step<T>& s) {
    update<T>(backend, p, g, m, s);
    round_weights<T>(backend, p, weights);
  }
};

}  // namespace detail

}  // namespace heddle::inline v0::train
