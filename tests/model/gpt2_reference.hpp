// tests/model/gpt2_reference.hpp: a serial GPT-2 in double, forward and backward, as an oracle for parallel ones.
#pragma once

#include "reference.hpp"

#include <heddle/model/gpt2_config.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace model_test::serial {

/// Every weight of a GPT-2, in the order of a forward pass; the head is the token embedding.
inline std::vector<named_shape> gpt2_shapes(const heddle::model::gpt2_config& c) {
  const auto of = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t d = of(c.width);
  std::vector<named_shape> all{{"wte.weight", {of(c.vocabulary), d}}, {"wpe.weight", {of(c.context), d}}};
  const auto pair = [&](const std::string& name, std::vector<std::size_t> shape) {
    all.push_back({name + ".weight", shape});
    all.push_back({name + ".bias", {shape.back()}});
  };
  for (int i = 0; i < c.layers; ++i) {
    const std::string p = "h." + std::to_string(i) + ".";
    pair(p + "ln_1", {d});
    pair(p + "attn.c_attn", {d, 3 * d});
    pair(p + "attn.c_proj", {d, d});
    pair(p + "ln_2", {d});
    pair(p + "mlp.c_fc", {d, 4 * d});
    pair(p + "mlp.c_proj", {4 * d, d});
  }
  pair("ln_f", {d});
  return all;
}

/// y = w * n + b with n = (x - mean) * s and s = 1 / sqrt(variance + epsilon), row by row. Given `dy`, adds to dx, dw, db.
inline numbers layer_norm(const numbers& x, const numbers& w, const numbers& b, double epsilon,
                          const numbers* dy = nullptr, numbers* dx = nullptr, numbers* dw = nullptr,
                          numbers* db = nullptr) {
  const std::size_t d = w.size();
  const auto count = static_cast<double>(d);
  numbers y(x.size()), n(d);
  for (std::size_t at = 0; at < x.size(); at += d) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < d; ++i) mean += x[at + i] / count;
    for (std::size_t i = 0; i < d; ++i) variance += (x[at + i] - mean) * (x[at + i] - mean) / count;
    const double s = 1 / std::sqrt(variance + epsilon);
    for (std::size_t i = 0; i < d; ++i) {
      n[i] = (x[at + i] - mean) * s;
      y[at + i] = w[i] * n[i] + b[i];
    }
    if (dy == nullptr) continue;
    double mean_g = 0, mean_gn = 0;
    for (std::size_t i = 0; i < d; ++i) {
      mean_g += w[i] * (*dy)[at + i] / count;
      mean_gn += w[i] * (*dy)[at + i] * n[i] / count;
    }
    for (std::size_t i = 0; i < d; ++i) {
      (*dx)[at + i] += s * (w[i] * (*dy)[at + i] - mean_g - n[i] * mean_gn);
      (*dw)[i] += (*dy)[at + i] * n[i];
      (*db)[i] += (*dy)[at + i];
    }
  }
  return y;
}

/// Loss, logits and gradients of a batch of `samples` sequences of one length, at most the context. Gradients are those
/// of scale * (sum over targets of -log p); negative targets are ignored. Weights: those of `gpt2_shapes`.
inline outcome gpt2(const heddle::model::gpt2_config& c, const tensors& weights, std::span<const std::int32_t> tokens,
                    std::span<const std::int32_t> targets, int samples, double scale) {
  const auto of = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t d = of(c.width), heads = of(c.heads), f = 4 * d, v = of(c.vocabulary);
  const std::size_t rows = tokens.size() / of(samples);
  outcome result;
  const auto shapes = gpt2_shapes(c);
  require_shapes(shapes, weights);
  for (const named_shape& s : shapes) result.gradients[s.name].resize(s.count());
  const auto weight = [&](const std::string& name) -> const numbers& { return weights.at(name); };
  const auto gradient = [&](const std::string& name) -> numbers& { return result.gradients.at(name); };

  const auto linear = [&](const numbers& x, const std::string& name, std::size_t in, std::size_t out) {
    numbers y = product(x, weight(name + ".weight"), in, out, stored::in_out);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += weight(name + ".bias")[i % out];
    return y;
  };
  const auto linear_backward = [&](const numbers& x, const numbers& dy, const std::string& name, std::size_t in,
                                   std::size_t out) {
    numbers dx(x.size());
    product_backward(x, weight(name + ".weight"), dy, in, out, dx, gradient(name + ".weight"), stored::in_out);
    for (std::size_t i = 0; i < dy.size(); ++i) gradient(name + ".bias")[i % out] += dy[i];
    return dx;
  };
  const auto norm = [&](const numbers& x, const std::string& name) {
    return layer_norm(x, weight(name + ".weight"), weight(name + ".bias"), c.epsilon);
  };
  const auto norm_backward = [&](const numbers& x, const numbers& dy, const std::string& name, numbers& dx) {
    layer_norm(x, weight(name + ".weight"), weight(name + ".bias"), c.epsilon, &dy, &dx, &gradient(name + ".weight"),
               &gradient(name + ".bias"));
  };
  // The thirds of each row [q | k | v].
  const auto third = [&](const numbers& qkv, std::size_t which) {
    numbers part;
    for (std::size_t i = 0; i < qkv.size(); ++i)
      if (i % (3 * d) / d == which) part.push_back(qkv[i]);
    return part;
  };
  const double root = std::sqrt(2 / std::numbers::pi);

  struct layer {
    numbers x, n, q, k, v;
    attention_result a;
    numbers middle, m, u, h;  // the stream behind attention, its norm; h = gelu(u)
  };
  for (std::size_t sample = 0; sample < of(samples); ++sample) {
    const auto ids = tokens.subspan(sample * rows, rows);
    numbers x(rows * d);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < d; ++i)
        x[r * d + i] = weight("wte.weight")[of(ids[r]) * d + i] + weight("wpe.weight")[r * d + i];

    std::vector<layer> layers(of(c.layers));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::string p = "h." + std::to_string(l) + ".";
      layer& s = layers[l];
      s.x = x;
      s.n = norm(x, p + "ln_1");
      const numbers qkv = linear(s.n, p + "attn.c_attn", d, 3 * d);
      s.q = third(qkv, 0);
      s.k = third(qkv, 1);
      s.v = third(qkv, 2);
      s.a = attention(s.q, s.k, s.v, rows, heads, heads, d / heads);
      add(linear(s.a.out, p + "attn.c_proj", d, d), x);
      s.middle = x;
      s.m = norm(x, p + "ln_2");
      s.u = linear(s.m, p + "mlp.c_fc", d, f);
      for (const double u : s.u) s.h.push_back(0.5 * u * (1 + std::tanh(root * (u + 0.044715 * u * u * u))));
      add(linear(s.h, p + "mlp.c_proj", f, d), x);
    }
    const numbers last = norm(x, "ln_f");
    const numbers logits = product(last, weight("wte.weight"), d, v);
    result.logits.insert(result.logits.end(), logits.begin(), logits.end());

    numbers dlogits, dlast(rows * d), dx(rows * d);
    result.loss_sum += cross_entropy(logits, targets.subspan(sample * rows, rows), v, scale, dlogits);
    product_backward(last, weight("wte.weight"), dlogits, d, v, dlast, gradient("wte.weight"));
    norm_backward(x, dlast, "ln_f", dx);
    for (std::size_t l = layers.size(); l-- > 0;) {
      const std::string p = "h." + std::to_string(l) + ".";
      const layer& s = layers[l];
      numbers du = linear_backward(s.h, dx, p + "mlp.c_proj", f, d);
      for (std::size_t i = 0; i < du.size(); ++i) {
        const double u = s.u[i], t = std::tanh(root * (u + 0.044715 * u * u * u));
        du[i] *= 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * root * (1 + 3 * 0.044715 * u * u);
      }
      norm_backward(s.middle, linear_backward(s.m, du, p + "mlp.c_fc", d, f), p + "ln_2", dx);

      const numbers da = linear_backward(s.a.out, dx, p + "attn.c_proj", d, d);
      numbers dq(rows * d), dk(rows * d), dv(rows * d), dqkv(rows * 3 * d);
      attention_backward(s.q, s.k, s.v, s.a.p, da, rows, heads, heads, d / heads, dq, dk, dv);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t i = 0; i < d; ++i) {
          dqkv[r * 3 * d + i] = dq[r * d + i];
          dqkv[r * 3 * d + d + i] = dk[r * d + i];
          dqkv[r * 3 * d + 2 * d + i] = dv[r * d + i];
        }
      norm_backward(s.x, linear_backward(s.n, dqkv, p + "attn.c_attn", d, 3 * d), p + "ln_1", dx);
    }
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < d; ++i) {
        gradient("wte.weight")[of(ids[r]) * d + i] += dx[r * d + i];
        gradient("wpe.weight")[r * d + i] += dx[r * d + i];
      }
  }
  return result;
}

}  // namespace model_test::serial
