// heddle/train/optimizers/muon.hpp: Muon: orthogonal momentum of matrices, else AdamW.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/whole_tensors.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace train::detail {

// Momentum m = mu m + (1-mu) g, and the direction of a step in w: with Nesterov's momentum (1-mu) g + mu m.
struct muon_momentum {
  static constexpr int moments = 1;
  template <class T>
  struct scalars {
    T mu, c;
    bool nesterov;
  };
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    m[0] = s.mu * m[0] + s.c * g;
    w = s.nesterov ? s.c * g + s.mu * m[0] : m[0];
  }
};
// 1 / max(norm, eps); the square of the norm lies in the backend's memory.
template <class T>
struct muon_inverse_norm {
  const double* squares;
  double epsilon;
  HEDDLE_HD T operator()() const {
    const double norm = std::sqrt(*squares);
    return static_cast<T>(1 / (norm > epsilon ? norm : epsilon));
  }
};
struct muon_adamw {
  static constexpr int moments = 2;
  template <class T>
  using scalars = compute::detail::adamw_scalars<T>;
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    w = s.updated(w, g, m[0], m[1]);
  }
};

}  // namespace train::detail

namespace optimizers {

/// Muon: m = mu m + (1-mu) g; u = (1-mu) g + mu m (Nesterov); X = u / max(|u|, eps), then `iterations` times A = X X^T, X = a X + (b A + c A A) X,
/// the Newton-Schulz iteration that takes the singular values of X near 1; p = (1 - lr wd) p - lr s X. s is max(1, rows / columns)^(1/2), or
/// 0.2 max(rows, columns)^(1/2), as `scale` says. Parameters of other than two dimensions, and those that `by_adamw` names, go by AdamW. Rows and columns
/// are those of the published tensor. The iteration runs in the type of the arithmetic, by the backend's matrix products; torch's in bf16.
/// State: one number for each element of a matrix, two for each of another tensor. A step has memory for 2 r c + 2 min(r, c)^2 numbers of the
/// greatest matrix of r x c that a rank owns of a stage.
/// Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; PyTorch, torch/optim/_muon.py; scale of
/// `match_rms_adamw`: Liu et al. 2025, arXiv:2502.16982, section 2.2.
struct muon {
  using kind = optimizer_kind;
  static constexpr const char* name = "muon";
  static constexpr bool whole_tensors = true;
  static constexpr int moments = 2;
  static constexpr std::array slots{"momentum", "second_moment"};
  static constexpr bool is_square(int k) { return k == 1; }
  enum class scaled { original, match_rms_adamw };

  struct options {
    double momentum = 0.95;
    bool nesterov = true;
    double weight_decay = 0.1;  ///< on tensors of two and more dimensions only
    double epsilon = 1e-7;      ///< the least norm that a direction is divided by
    int iterations = 5;
    std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};
    scaled scale = scaled::original;
    /// Matrices that go by AdamW: those whose names begin so; embeddings and heads of heddle's families.
    std::vector<std::string> by_adamw{"wte.", "wpe.", "lm_head.", "model.embed_tokens."};
    double adamw_rate = 1;  ///< factor of the learning rate for what goes by AdamW
    double beta1 = 0.9, beta2 = 0.95, adamw_epsilon = 1e-8;
    train::parameter_rates rates{};  ///< factors of the learning rate for some parameters

    /// Errors: `config_error` naming the setting, its value and what would be accepted.
    void validate() const {
      using train::detail::require_finite_setting, train::detail::refuse_setting, train::detail::require_rates,
          train::detail::require_fraction;
      require_fraction("momentum", momentum);
      require_finite_setting("weight_decay", weight_decay);
      if (!(epsilon > 0 && std::isfinite(epsilon)))
        refuse_setting("epsilon", number_text(epsilon), "positive and finite");
      if (iterations < 1 || iterations > 99) refuse_setting("iterations", std::to_string(iterations), "1 to 99");
      for (const double c : coefficients)
        if (!std::isfinite(c)) refuse_setting("coefficients", number_text(c), "finite");
      require_finite_setting("adamw_rate", adamw_rate);
      require_fraction("beta1", beta1);
      require_fraction("beta2", beta2);
      if (!(adamw_epsilon > 0 && std::isfinite(adamw_epsilon)))
        refuse_setting("adamw_epsilon", number_text(adamw_epsilon), "positive and finite");
      require_rates(rates);
    }
    friend std::string to_string(const options& o) {
      using train::detail::exact_text;
      std::string text = "momentum=" + exact_text(o.momentum) + " nesterov=" + (o.nesterov ? "1" : "0") +
                         " weight_decay=" + exact_text(o.weight_decay) + " epsilon=" + exact_text(o.epsilon) +
                         " iterations=" + std::to_string(o.iterations) + " coefficients=";
      for (const double c : o.coefficients) text += exact_text(c) + ",";
      text += std::string(" scale=") + (o.scale == scaled::original ? "original" : "match_rms_adamw") + " by_adamw=";
      for (const std::string& begin : o.by_adamw) text += begin + ",";
      return text + " adamw_rate=" + exact_text(o.adamw_rate) + " beta1=" + exact_text(o.beta1) +
             " beta2=" + exact_text(o.beta2) + " adamw_epsilon=" + exact_text(o.adamw_epsilon) +
             train::detail::text_of_rates(o.rates);
    }
  };

  static bool is_orthogonal(const options& o, const train::whole_tensor& t) {
    return t.is_matrix && std::none_of(o.by_adamw.begin(), o.by_adamw.end(),
                                       [&](const std::string& begin) { return t.name.starts_with(begin); });
  }
  static train::slot_shape slot(const options& o, const train::whole_tensor& t, int k) {
    return k == 0 || !is_orthogonal(o, t) ? train::slot_shape::elements : train::slot_shape::nothing;
  }
  template <class T>
  static std::int64_t room(const options& o, const train::whole_tensor& t) {
    const std::int64_t least = (std::min)(t.rows, t.columns);
    return is_orthogonal(o, t) ? 2 * t.count() + 2 * least * least : 0;
  }

  template <class T>
  struct scalars {
    bool is_orthogonal;
    train::detail::muon_momentum::scalars<T> momentum;
    train::weighted_sum::scalars<T> decayed;  // of weights and direction
    double epsilon;
    T a, b, c;
    int iterations;
    compute::detail::adamw_scalars<T> of_others;  // tensors that are no matrices
  };
  template <class T>
  static scalars<T> at(const options& o, const train::whole_tensor& t, double rate, std::int64_t step, bool decays) {
    const auto of = [](double x) { return static_cast<T>(x); };
    const double decay = decays ? o.weight_decay : 0;
    scalars<T> s{};
    s.is_orthogonal = is_orthogonal(o, t);
    if (!s.is_orthogonal) {
      s.of_others = compute::detail::adamw_scalars<T>(
          compute::adamw_step{rate * o.adamw_rate, o.beta1, o.beta2, o.adamw_epsilon, decay, step, 1.0});
      return s;
    }
    const auto rows = static_cast<double>(t.rows), columns = static_cast<double>(t.columns);
    const double scale = o.scale == scaled::original ? std::sqrt((std::max)(1.0, rows / columns))
                                                     : 0.2 * std::sqrt((std::max)(rows, columns));
    s.momentum = {of(o.momentum), of(1 - o.momentum), o.nesterov};
    s.decayed = {of(1 - rate * decay), of(-rate * scale)};
    s.epsilon = o.epsilon;
    s.a = of(o.coefficients[0]), s.b = of(o.coefficients[1]), s.c = of(o.coefficients[2]);
    s.iterations = o.iterations;
    return s;
  }

  template <class T, class Backend, class Work>
  static void update_matrix(Backend& backend, const auto& w, const auto& g, const auto& m, const scalars<T>& s,
                            const Work& work) {
    using train::add_by_factor, train::as_matrix, train::step_each, train::weighted_sum;
    if (!s.is_orthogonal)
      return step_each<train::detail::muon_adamw, T>(backend, s.of_others, work.gradient_scale, w, g, m[0], m[1]);
    const std::int64_t n = work.tensor.count(), rows = work.tensor.rows, columns = work.tensor.columns;
    const std::int64_t least = (std::min)(rows, columns), squared = least * least;
    auto x = work.room(0, n), y = work.room(n, n);
    const auto a = work.room(2 * n, squared), b = work.room(2 * n + squared, squared);
    step_each<train::detail::muon_momentum, T>(backend, s.momentum, work.gradient_scale, x, g, m[0]);
    work.sum_squares(backend, x, 0);
    const auto squares = work.number(0);
    add_by_factor<T>(backend, train::detail::muon_inverse_norm<T>{first_element(squares), s.epsilon}, T(0), x, x,
                     squares);
    using space = space_of<Backend>;
    const auto read = [](const auto& row, std::int64_t r, std::int64_t c) {
      return as_matrix<const T, space>(row, r, c);
    };
    const auto written = [](const auto& row, std::int64_t r, std::int64_t c) { return as_matrix<T, space>(row, r, c); };
    using compute::transpose;
    for (int i = 0; i < s.iterations; ++i) {
      const auto of_x = read(x, rows, columns);
      if (rows > columns)
        compute::matmul<transpose::yes, transpose::no>(backend, of_x, of_x, written(a, least, least), T(0));
      else
        compute::matmul<transpose::no, transpose::yes>(backend, of_x, of_x, written(a, least, least), T(0));
      const auto of_a = read(a, least, least), of_b = read(b, least, least);
      compute::matmul<transpose::no, transpose::no>(backend, of_a, of_a, written(b, least, least), T(0));
      step_each<weighted_sum, T>(backend, {s.c, s.b}, 1.0, b, a);  // b A + c A A
      step_each<weighted_sum, T>(backend, {T(0), s.a}, 1.0, y, x);
      if (rows > columns)
        compute::matmul<transpose::no, transpose::no>(backend, of_x, of_b, written(y, rows, columns), T(1));
      else
        compute::matmul<transpose::no, transpose::no>(backend, of_b, of_x, written(y, rows, columns), T(1));
      std::swap(x, y);
    }
    step_each<weighted_sum, T>(backend, s.decayed, 1.0, w, x);
  }
};

}  // namespace optimizers

}  // namespace heddle::inline v0
