// heddle/train/optimizers/adafactor.hpp: Adafactor: second moments by row and column.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/whole_tensors.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0 {

namespace train::detail {

// w = g^2.
struct adafactor_square {
  static constexpr int moments = 0;
  template <class T>
  struct scalars {};
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T*, const scalars<T>&) {
    w = g * g;
  }
};
// Of a tensor without rows and columns: m += c (g^2 - m), w = g / max(m, eps1^2)^(1/2).
struct adafactor_element {
  static constexpr int moments = 1;
  template <class T>
  struct scalars {
    T c, least;
  };
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    m[0] += s.c * (g * g - m[0]);
    w = g / std::sqrt(m[0] > s.least ? m[0] : s.least);
  }
};
// Element i of a matrix: u = g / max(r c / max(mean of r, eps1), eps1^2)^(1/2), r of its row and c of its column.
template <class T, class G>
struct adafactor_direction {
  using element = T;
  const G* g;
  const T *row, *column, *sum;
  T* u;
  std::int64_t rows, columns;
  T scale, least_mean, least;
  // r / max(mean of r, eps1).
  HEDDLE_HD T of_row(std::int64_t r) const {
    const T mean = *sum / static_cast<T>(rows);
    return row[r] / (mean > least_mean ? mean : least_mean);
  }
  HEDDLE_HD void find(std::int64_t i, T of_row, std::int64_t c) const {
    const T v = of_row * column[c];
    u[i] = converted<T>(g[i]) * scale / std::sqrt(v > least ? v : least);
  }
  HEDDLE_HD void operator()(std::int64_t i) const { find(i, of_row(i / columns), i % columns); }
};
template <class T, class G>
void step_elements(const adafactor_direction<T, G>& body, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const std::int64_t r = begin / body.columns, first = r * body.columns;
    const T of_row = body.of_row(r);
    const std::int64_t stop = (std::min)(end, first + body.columns);
    for (; begin < stop; ++begin) body.find(begin, of_row, begin - first);
  }
}
// -alpha / max(1, RMS(u) / d) with alpha = rho max(eps2, RMS(w)), or rho; RMS by sums of squares in the backend's memory.
template <class T>
struct adafactor_factor {
  const double *of_direction, *of_weights;
  double elements, rho, least_scale, threshold;
  bool scales;
  HEDDLE_HD T operator()() const {
    const double rms = std::sqrt(*of_weights / elements), over = std::sqrt(*of_direction / elements) / threshold;
    const double alpha = scales ? (rms > least_scale ? rms : least_scale) * rho : rho;
    return static_cast<T>(-alpha / (over > 1.0 ? over : 1.0));
  }
};

}  // namespace train::detail

namespace optimizers {

/// Adafactor without first moment, as torch.optim.Adafactor. Of a matrix: r += c (mean of g^2 over each row - r), the same of columns; u = g /
/// max(r_i c_j / max(mean of r, eps1), eps1^2)^(1/2), with c = t^beta2_decay; of another tensor u is of a second moment for each element.
/// p = (1 - lr wd) p - alpha / max(1, RMS(u) / d) u, alpha = max(eps2, RMS(p)) min(lr, t^(-1/2)): relative to the parameter.
/// State: rows + columns numbers of a matrix, one for each element of another tensor. A step has memory for r c + 2 max(r, c) + 1 numbers of the
/// greatest matrix of r x c that a rank owns of a stage.
/// Source: Shazeer and Stern 2018, arXiv:1804.04235, algorithms 4 to 6; PyTorch, torch/optim/_adafactor.py.
struct adafactor {
  using kind = optimizer_kind;
  static constexpr const char* name = "adafactor";
  static constexpr bool whole_tensors = true;
  static constexpr int moments = 3;
  static constexpr std::array slots{"row_moment", "column_moment", "second_moment"};
  static constexpr bool is_square(int) { return true; }

  struct options {
    double beta2_decay = -0.8;
    double epsilon1 = 0;        ///< least second moment, squared; 0: the spacing of 1 in the type of the arithmetic
    double epsilon2 = 1e-3;     ///< least scale of a parameter
    double threshold = 1;       ///< of the RMS of an update, above which it is scaled down
    double weight_decay = 0;    ///< on tensors of two and more dimensions only
    bool relative_step = true;  ///< the learning rate is at most step^(-1/2)
    bool scales_by_parameter = true;  ///< and is multiplied by the RMS of the parameter
    train::parameter_rates rates{};   ///< factors of the learning rate for some parameters

    /// Errors: `config_error` naming the setting, its value and what would be accepted.
    void validate() const {
      using train::detail::require_finite_setting, train::detail::refuse_setting, train::detail::require_rates;
      if (!(beta2_decay <= 0 && std::isfinite(beta2_decay)))
        refuse_setting("beta2_decay", number_text(beta2_decay), "at most 0 and finite");
      require_finite_setting("epsilon1", epsilon1);
      require_finite_setting("epsilon2", epsilon2);
      if (!(threshold >= 1 && std::isfinite(threshold)))
        refuse_setting("threshold", number_text(threshold), "at least 1 and finite");
      require_finite_setting("weight_decay", weight_decay);
      require_rates(rates);
    }
    friend std::string to_string(const options& o) {
      using train::detail::exact_text;
      return "beta2_decay=" + exact_text(o.beta2_decay) + " epsilon1=" + exact_text(o.epsilon1) +
             " epsilon2=" + exact_text(o.epsilon2) + " threshold=" + exact_text(o.threshold) +
             " weight_decay=" + exact_text(o.weight_decay) + " relative_step=" + (o.relative_step ? "1" : "0") +
             " scales_by_parameter=" + (o.scales_by_parameter ? "1" : "0") + train::detail::text_of_rates(o.rates);
    }
  };

  static train::slot_shape slot(const options&, const train::whole_tensor& t, int k) {
    using train::slot_shape;
    if (!t.is_matrix) return k == 2 ? slot_shape::elements : slot_shape::nothing;
    return k == 0 ? slot_shape::rows : k == 1 ? slot_shape::columns : slot_shape::nothing;
  }
  template <class T>
  static std::int64_t room(const options&, const train::whole_tensor& t) {
    return t.count() + (t.is_matrix ? 2 * (std::max)(t.rows, t.columns) + 1 : 0);
  }

  template <class T>
  struct scalars {
    T c, least_mean, least;
    double rho, least_scale, threshold;
    T kept;
    bool scales;
  };
  template <class T>
  static scalars<T> at(const options& o, const train::whole_tensor&, double rate, std::int64_t step, bool decays) {
    const auto t = static_cast<double>(step);
    const double least = o.epsilon1 > 0 ? o.epsilon1 : static_cast<double>(std::numeric_limits<T>::epsilon());
    return {static_cast<T>(std::pow(t, o.beta2_decay)),
            static_cast<T>(least),
            static_cast<T>(least * least),
            o.relative_step ? (std::min)(rate, 1 / std::sqrt(t)) : rate,
            o.epsilon2,
            o.threshold,
            static_cast<T>(decays ? 1 - rate * o.weight_decay : 1),
            o.scales_by_parameter};
  }

  template <class T, class Backend, class Work>
  static void update_matrix(Backend& backend, const auto& w, const auto& g, const auto& m, const scalars<T>& s,
                            const Work& work) {
    using train::add_by_factor, train::as_matrix, train::step_each, train::weighted_sum;
    const std::int64_t n = work.tensor.count();
    const auto u = work.room(0, n);
    if (work.tensor.is_matrix)
      find_direction(backend, u, g, m, s, work);
    else
      step_each<train::detail::adafactor_element, T>(backend, {s.c, s.least}, work.gradient_scale, u, g, m[2]);
    work.sum_squares(backend, u, 0);
    work.sum_squares(backend, w, 1);
    const auto of_direction = work.number(0), of_weights = work.number(1);
    const train::detail::adafactor_factor<T> factor{first_element(of_direction),
                                                    first_element(of_weights),
                                                    static_cast<double>(n),
                                                    s.rho,
                                                    s.least_scale,
                                                    s.threshold,
                                                    s.scales};
    add_by_factor<T>(backend, factor, s.kept, w, u, of_direction, of_weights);
  }

 private:
  // The means of squares over rows and columns are products with ones.
  template <class T, class Backend, class Work>
  static void find_direction(Backend& backend, const auto& u, const auto& g, const auto& m, const scalars<T>& s,
                             const Work& work) {
    using train::add_by_factor, train::as_matrix, train::step_each, train::weighted_sum;
    using space = space_of<Backend>;
    const std::int64_t n = work.tensor.count(), rows = work.tensor.rows, columns = work.tensor.columns;
    const std::int64_t most = (std::max)(rows, columns);
    const auto ones = work.room(n, most), sum = work.room(n + 2 * most, 1);
    const auto of_rows = work.room(n + most, rows), of_columns = work.room(n + most, columns);
    const auto product = [&](const auto& a, const auto& b, const auto& to, std::int64_t r, std::int64_t k,
                             std::int64_t c) {
      compute::matmul<compute::transpose::no, compute::transpose::no>(backend, as_matrix<const T, space>(a, r, k),
                                                                      as_matrix<const T, space>(b, k, c),
                                                                      as_matrix<T, space>(to, r, c), T(0));
    };
    compute::run<compute::ops::fill>(backend, ones, T(1));
    step_each<train::detail::adafactor_square, T>(backend, {}, work.gradient_scale, u, g);
    product(u, ones, of_rows, rows, columns, 1);
    step_each<weighted_sum, T>(backend, {T(1) - s.c, s.c / static_cast<T>(columns)}, 1.0, m[0], of_rows);
    product(ones, u, of_columns, 1, rows, columns);
    step_each<weighted_sum, T>(backend, {T(1) - s.c, s.c / static_cast<T>(rows)}, 1.0, m[1], of_columns);
    product(ones, m[0], sum, 1, rows, 1);

    using gradient = std::remove_cvref_t<decltype(*first_element(g))>;
    const train::detail::adafactor_direction<T, gradient> body{first_element(g),
                                                               first_element(m[0]),
                                                               first_element(m[1]),
                                                               first_element(sum),
                                                               first_element(u),
                                                               rows,
                                                               columns,
                                                               static_cast<T>(work.gradient_scale),
                                                               s.least_mean,
                                                               s.least};
    train::detail::launch_rule(backend, n, body, u, g, m[0], m[1], sum);
  }
};

}  // namespace optimizers

}  // namespace heddle::inline v0
