// tests/model/llama_reference.hpp: a serial Llama in double, forward and backward, as an oracle for parallel ones.
#pragma once

#include "reference.hpp"

#include <heddle/model/llama_config.hpp>

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace model_test::serial {

/// Every weight of a Llama, in the order of a forward pass.
inline std::vector<named_shape> llama_shapes(const heddle::model::llama_config& c) {
  const auto of = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t d = of(c.width), kv = of(c.kv_heads) * of(c.width / c.heads), f = of(c.ffn), v = of(c.vocabulary);
  std::vector<named_shape> all{{"model.embed_tokens.weight", {v, d}}};
  for (int i = 0; i < c.layers; ++i) {
    const std::string p = "model.layers." + std::to_string(i) + ".";
    all.push_back({p + "input_layernorm.weight", {d}});
    all.push_back({p + "self_attn.q_proj.weight", {d, d}});
    all.push_back({p + "self_attn.k_proj.weight", {kv, d}});
    all.push_back({p + "self_attn.v_proj.weight", {kv, d}});
    all.push_back({p + "self_attn.o_proj.weight", {d, d}});
    all.push_back({p + "post_attention_layernorm.weight", {d}});
    all.push_back({p + "mlp.gate_proj.weight", {f, d}});
    all.push_back({p + "mlp.up_proj.weight", {f, d}});
    all.push_back({p + "mlp.down_proj.weight", {d, f}});
  }
  all.push_back({"model.norm.weight", {d}});
  all.push_back({"lm_head.weight", {v, d}});
  return all;
}

/// The angle that pair i of a head turns per position, by wavelengths as Llama 3.1's publication has it.
inline double rotary_angle(const heddle::model::llama_config& c, std::size_t i) {
  const double d = c.width / c.heads;
  const double inverse = 1 / std::pow(c.theta, 2.0 * static_cast<double>(i) / d);
  const auto& s = c.scaling;
  const double wavelength = 2 * std::numbers::pi / inverse;
  if (wavelength < s.original / s.high) return inverse;
  if (wavelength > s.original / s.low) return inverse / s.factor;
  const double smooth = (s.original / wavelength - s.low) / (s.high - s.low);
  return (1 - smooth) * inverse / s.factor + smooth * inverse;
}

/// Turns every head's pairs (i, i + d/2), taken as complex numbers, by their angle at each row's position; `direction` -1
/// turns back, which is the backward pass.
inline void rotate(const heddle::model::llama_config& c, numbers& x, std::size_t rows, double direction) {
  const auto d = static_cast<std::size_t>(c.width / c.heads);
  const std::size_t heads = x.size() / rows / d;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < d / 2; ++i) {
        double &a = x[(r * heads + h) * d + i], &b = x[(r * heads + h) * d + i + d / 2];
        const std::complex<double> turned =
            std::complex(a, b) * std::polar(1.0, direction * static_cast<double>(r) * rotary_angle(c, i));
        a = turned.real();
        b = turned.imag();
      }
}

/// y = w * x * r with r = 1 / sqrt(mean(x^2) + epsilon), row by row.
inline numbers rms_norm(const numbers& x, const numbers& w, double epsilon) {
  const std::size_t d = w.size();
  numbers y(x.size());
  for (std::size_t at = 0; at < x.size(); at += d) {
    double squares = 0;
    for (std::size_t i = 0; i < d; ++i) squares += x[at + i] * x[at + i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
    for (std::size_t i = 0; i < d; ++i) y[at + i] = w[i] * x[at + i] * r;
  }
  return y;
}

inline void rms_norm_backward(const numbers& x, const numbers& w, double epsilon, const numbers& dy, numbers& dx,
                              numbers& dw) {
  const std::size_t d = w.size();
  for (std::size_t at = 0; at < x.size(); at += d) {
    double squares = 0, along = 0;
    for (std::size_t i = 0; i < d; ++i) {
      squares += x[at + i] * x[at + i];
      along += w[i] * dy[at + i] * x[at + i];
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
    for (std::size_t i = 0; i < d; ++i) {
      dx[at + i] += r * w[i] * dy[at + i] - x[at + i] * r * r * r / static_cast<double>(d) * along;
      dw[i] += dy[at + i] * x[at + i] * r;
    }
  }
}

/// Loss, logits and gradients of a batch of `samples` sequences of one length, at most the context. Gradients are those
/// of scale * (sum over targets of -log p); negative targets are ignored. Weights: those of `llama_shapes`.
inline outcome llama(const heddle::model::llama_config& c, const tensors& weights, std::span<const std::int32_t> tokens,
                     std::span<const std::int32_t> targets, int samples, double scale) {
  const auto of = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t d = of(c.width), heads = of(c.heads), kv_heads = of(c.kv_heads), head = d / heads;
  const std::size_t kv = kv_heads * head, f = of(c.ffn), v = of(c.vocabulary), rows = tokens.size() / of(samples);
  outcome result;
  const auto shapes = llama_shapes(c);
  require_shapes(shapes, weights);
  for (const named_shape& s : shapes) result.gradients[s.name].resize(s.count());
  const auto weight = [&](const std::string& name) -> const numbers& { return weights.at(name + ".weight"); };
  const auto gradient = [&](const std::string& name) -> numbers& { return result.gradients.at(name + ".weight"); };

  struct layer {
    numbers x, n, q, k, v;  // the stream, its norm; queries and keys are rotated
    attention_result a;
    numbers middle, m, gate, up, h;  // the stream behind attention, its norm; h = silu(gate) * up
  };
  for (std::size_t sample = 0; sample < of(samples); ++sample) {
    const auto ids = tokens.subspan(sample * rows, rows);
    numbers x(rows * d);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < d; ++i) x[r * d + i] = weight("model.embed_tokens")[of(ids[r]) * d + i];

    std::vector<layer> layers(of(c.layers));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      layer& s = layers[l];
      s.x = x;
      s.n = rms_norm(x, weight(p + "input_layernorm"), c.epsilon);
      s.q = product(s.n, weight(p + "self_attn.q_proj"), d, d);
      s.k = product(s.n, weight(p + "self_attn.k_proj"), d, kv);
      s.v = product(s.n, weight(p + "self_attn.v_proj"), d, kv);
      rotate(c, s.q, rows, 1);
      rotate(c, s.k, rows, 1);
      s.a = attention(s.q, s.k, s.v, rows, heads, kv_heads, head);
      add(product(s.a.out, weight(p + "self_attn.o_proj"), d, d), x);
      s.middle = x;
      s.m = rms_norm(x, weight(p + "post_attention_layernorm"), c.epsilon);
      s.gate = product(s.m, weight(p + "mlp.gate_proj"), d, f);
      s.up = product(s.m, weight(p + "mlp.up_proj"), d, f);
      for (std::size_t i = 0; i < s.gate.size(); ++i) s.h.push_back(s.gate[i] / (1 + std::exp(-s.gate[i])) * s.up[i]);
      add(product(s.h, weight(p + "mlp.down_proj"), f, d), x);
    }
    const numbers last = rms_norm(x, weight("model.norm"), c.epsilon);
    const numbers logits = product(last, weight("lm_head"), d, v);
    result.logits.insert(result.logits.end(), logits.begin(), logits.end());

    numbers dlogits, dlast(rows * d), dx(rows * d);
    result.loss_sum += cross_entropy(logits, targets.subspan(sample * rows, rows), v, scale, dlogits);
    product_backward(last, weight("lm_head"), dlogits, d, v, dlast, gradient("lm_head"));
    rms_norm_backward(x, weight("model.norm"), c.epsilon, dlast, dx, gradient("model.norm"));
    for (std::size_t l = layers.size(); l-- > 0;) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      const layer& s = layers[l];
      numbers dh(rows * f), dgate(rows * f), dup(rows * f), dm(rows * d);
      product_backward(s.h, weight(p + "mlp.down_proj"), dx, f, d, dh, gradient(p + "mlp.down_proj"));
      for (std::size_t i = 0; i < dh.size(); ++i) {
        const double sigmoid = 1 / (1 + std::exp(-s.gate[i]));
        dup[i] = dh[i] * s.gate[i] * sigmoid;
        dgate[i] = dh[i] * s.up[i] * sigmoid * (1 + s.gate[i] * (1 - sigmoid));
      }
      product_backward(s.m, weight(p + "mlp.gate_proj"), dgate, d, f, dm, gradient(p + "mlp.gate_proj"));
      product_backward(s.m, weight(p + "mlp.up_proj"), dup, d, f, dm, gradient(p + "mlp.up_proj"));
      rms_norm_backward(s.middle, weight(p + "post_attention_layernorm"), c.epsilon, dm, dx,
                        gradient(p + "post_attention_layernorm"));

      numbers da(rows * d), dq(rows * d), dk(rows * kv), dv(rows * kv), dn(rows * d);
      product_backward(s.a.out, weight(p + "self_attn.o_proj"), dx, d, d, da, gradient(p + "self_attn.o_proj"));
      attention_backward(s.q, s.k, s.v, s.a.p, da, rows, heads, kv_heads, head, dq, dk, dv);
      rotate(c, dq, rows, -1);
      rotate(c, dk, rows, -1);
      product_backward(s.n, weight(p + "self_attn.q_proj"), dq, d, d, dn, gradient(p + "self_attn.q_proj"));
      product_backward(s.n, weight(p + "self_attn.k_proj"), dk, d, kv, dn, gradient(p + "self_attn.k_proj"));
      product_backward(s.n, weight(p + "self_attn.v_proj"), dv, d, kv, dn, gradient(p + "self_attn.v_proj"));
      rms_norm_backward(s.x, weight(p + "input_layernorm"), c.epsilon, dn, dx, gradient(p + "input_layernorm"));
    }
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < d; ++i) gradient("model.embed_tokens")[of(ids[r]) * d + i] += dx[r * d + i];
  }
  return result;
}

}  // namespace model_test::serial
