// tests/model/reference.hpp: pieces of transformers as plain loops in double, forward and backward, for serial references.
#pragma once

#include <heddle/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Nothing here uses a kernel or a layout of heddle. Matrices are vectors, row-major; every backward function adds to the
// gradients that it is given.
namespace model_test::serial {

using numbers = std::vector<double>;
using tensors = std::map<std::string, numbers>;  // by Hugging Face's names

struct named_shape {
  std::string name;
  std::vector<std::size_t> shape;
  std::size_t count() const {
    std::size_t n = 1;
    for (const std::size_t e : shape) n *= e;
    return n;
  }
};

/// Of one batch: the sum of -log p over targets, the logits [samples * sequence, vocabulary], and the gradients of
/// scale * loss_sum.
struct outcome {
  double loss_sum = 0;
  numbers logits;
  tensors gradients;
};

/// Normal numbers of the given deviation; vectors are around one.
inline tensors random_weights(const std::vector<named_shape>& shapes, std::uint64_t seed, double deviation) {
  tensors all;
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    const heddle::counter_random random(seed, t);
    numbers& w = all[shapes[t].name];
    for (std::size_t i = 0; i < shapes[t].count(); ++i)
      w.push_back((shapes[t].shape.size() == 1 ? 1.0 : 0.0) + deviation * random.normal(i));
  }
  return all;
}

inline void require_shapes(const std::vector<named_shape>& shapes, const tensors& weights) {
  if (weights.size() != shapes.size())
    throw std::invalid_argument("the reference needs " + std::to_string(shapes.size()) + " weights, got " +
                                std::to_string(weights.size()));
  for (const named_shape& s : shapes) {
    const auto found = weights.find(s.name);
    if (found == weights.end() || found->second.size() != s.count())
      throw std::invalid_argument("the reference needs " + s.name + " with " + std::to_string(s.count()) +
                                  " elements, got " +
                                  (found == weights.end() ? "none" : std::to_string(found->second.size())));
  }
}

/// How a matrix is stored: Linear is [out, in], GPT-2's Conv1D [in, out].
enum class stored { out_in, in_out };

inline std::size_t place(stored how, std::size_t o, std::size_t i, std::size_t out, std::size_t in) {
  return how == stored::out_in ? o * in + i : i * out + o;
}

/// y[r][o] = sum over i of x[r][i] w[o][i].
inline numbers product(const numbers& x, const numbers& w, std::size_t in, std::size_t out,
                       stored how = stored::out_in) {
  const std::size_t rows = x.size() / in;
  numbers y(rows * out);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[place(how, o, i, out, in)];
  return y;
}

inline void product_backward(const numbers& x, const numbers& w, const numbers& dy, std::size_t in, std::size_t out,
                             numbers& dx, numbers& dw, stored how = stored::out_in) {
  for (std::size_t r = 0; r < x.size() / in; ++r)
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t i = 0; i < in; ++i) {
        dx[r * in + i] += dy[r * out + o] * w[place(how, o, i, out, in)];
        dw[place(how, o, i, out, in)] += dy[r * out + o] * x[r * in + i];
      }
}

/// Causal attention of one sample. Shapes: q [rows, heads, d], k and v [rows, kv_heads, d]; `out` as q, `p` [heads, rows,
/// rows] the softmax.
struct attention_result {
  numbers out, p;
};

inline attention_result attention(const numbers& q, const numbers& k, const numbers& v, std::size_t rows,
                                  std::size_t heads, std::size_t kv_heads, std::size_t d) {
  attention_result result{numbers(q.size()), numbers(heads * rows * rows)};
  for (std::size_t h = 0; h < heads; ++h) {
    const std::size_t g = h * kv_heads / heads;
    for (std::size_t i = 0; i < rows; ++i) {
      double* p = &result.p[(h * rows + i) * rows];
      double greatest = -(std::numeric_limits<double>::infinity)(), sum = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t e = 0; e < d; ++e) p[j] += q[(i * heads + h) * d + e] * k[(j * kv_heads + g) * d + e];
        p[j] /= std::sqrt(static_cast<double>(d));
        greatest = (std::max)(greatest, p[j]);
      }
      for (std::size_t j = 0; j <= i; ++j) sum += p[j] = std::exp(p[j] - greatest);
      for (std::size_t j = 0; j <= i; ++j) p[j] /= sum;
      for (std::size_t j = 0; j <= i; ++j)
        for (std::size_t e = 0; e < d; ++e) result.out[(i * heads + h) * d + e] += p[j] * v[(j * kv_heads + g) * d + e];
    }
  }
  return result;
}

inline void attention_backward(const numbers& q, const numbers& k, const numbers& v, const numbers& p,
                               const numbers& dout, std::size_t rows, std::size_t heads, std::size_t kv_heads,
                               std::size_t d, numbers& dq, numbers& dk, numbers& dv) {
  for (std::size_t h = 0; h < heads; ++h) {
    const std::size_t g = h * kv_heads / heads;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t at_q = (i * heads + h) * d;
      numbers dp(rows);
      double mean = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t e = 0; e < d; ++e) dp[j] += dout[at_q + e] * v[(j * kv_heads + g) * d + e];
        mean += dp[j] * p[(h * rows + i) * rows + j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        const double pij = p[(h * rows + i) * rows + j];
        const double ds = pij * (dp[j] - mean) / std::sqrt(static_cast<double>(d));
        const std::size_t at_k = (j * kv_heads + g) * d;
        for (std::size_t e = 0; e < d; ++e) {
          dq[at_q + e] += ds * k[at_k + e];
          dk[at_k + e] += ds * q[at_q + e];
          dv[at_k + e] += pij * dout[at_q + e];
        }
      }
    }
  }
}

/// The sum of -log p[target]; negative targets are ignored. `dlogits` is set to scale * (p - one at the target).
inline double cross_entropy(const numbers& logits, std::span<const std::int32_t> targets, std::size_t vocabulary,
                            double scale, numbers& dlogits) {
  double loss = 0;
  dlogits.assign(logits.size(), 0.0);
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const double* z = &logits[r * vocabulary];
    const auto target = static_cast<std::size_t>(targets[r]);
    const double greatest = *std::max_element(z, z + vocabulary);
    double sum = 0;
    for (std::size_t o = 0; o < vocabulary; ++o) sum += std::exp(z[o] - greatest);
    loss += greatest + std::log(sum) - z[target];
    for (std::size_t o = 0; o < vocabulary; ++o)
      dlogits[r * vocabulary + o] = scale * (std::exp(z[o] - greatest) / sum - (o == target ? 1.0 : 0.0));
  }
  return loss;
}

inline void add(const numbers& x, numbers& y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x.at(i);
}

/// PyTorch's AdamW behind clip_grad_norm_: decay on tensors of two dimensions.
struct adamw {
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0, greatest_norm = 0;
  tensors m{}, v{};
  int steps = 0;

  /// Returns the norm before clipping.
  double step(const std::vector<named_shape>& shapes, tensors& weights, const tensors& gradients) {
    double squares = 0;
    for (const auto& [name, g] : gradients)
      for (const double x : g) squares += x * x;
    const double norm = std::sqrt(squares), clip = (std::min)(1.0, greatest_norm / (norm + 1e-6));
    ++steps;
    for (const named_shape& s : shapes) {
      numbers &w = weights.at(s.name), &first = m[s.name], &second = v[s.name];
      first.resize(w.size());
      second.resize(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = clip * gradients.at(s.name)[i];
        if (s.shape.size() == 2) w[i] *= 1 - lr * weight_decay;
        first[i] = beta1 * first[i] + (1 - beta1) * g;
        second[i] = beta2 * second[i] + (1 - beta2) * g * g;
        w[i] -= lr * first[i] / (1 - std::pow(beta1, steps)) /
                (std::sqrt(second[i] / (1 - std::pow(beta2, steps))) + epsilon);
      }
    }
    return norm;
  }
};

}  // namespace model_test::serial
