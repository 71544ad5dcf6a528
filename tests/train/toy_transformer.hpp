// tests/train/toy_transformer.hpp: a two-layer transformer whose tensor-parallel plan comes from its parameters' names.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/train/three_functions.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace toy {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::dp, hd::tp;

inline constexpr std::int64_t vocabulary = 12, width = 8, inner = 16, length = 4, heads = 4, head_dim = 2;

// Attention in the first block, a plain pair of layers in both.
struct model {
  static constexpr std::array parameters{hd::named_shape{"embed/embedding", {vocabulary, width}},
                                         hd::named_shape{"block/0/norm/scale", {width}},
                                         hd::named_shape{"block/0/norm/bias", {width}},
                                         hd::named_shape{"block/0/attn/q/kernel", {width, width}},
                                         hd::named_shape{"block/0/attn/k/kernel", {width, width}},
                                         hd::named_shape{"block/0/attn/v/kernel", {width, width}},
                                         hd::named_shape{"block/0/attn/o/kernel", {width, width}},
                                         hd::named_shape{"block/0/mlp/fc1/kernel", {width, inner}},
                                         hd::named_shape{"block/0/mlp/fc1/bias", {inner}},
                                         hd::named_shape{"block/0/mlp/fc2/kernel", {inner, width}},
                                         hd::named_shape{"block/1/mlp/fc1/kernel", {width, inner}},
                                         hd::named_shape{"block/1/mlp/fc1/bias", {inner}},
                                         hd::named_shape{"block/1/mlp/fc2/kernel", {inner, width}},
                                         hd::named_shape{"lm_head/kernel", {width, vocabulary}}};
};
// Both layers of a pair by columns: the same numbers, more bytes.
struct both_by_columns {
  static constexpr hd::name_rule given[]{{"fc1/kernel", 1}, {"fc2/kernel", 1}};
  static constexpr auto rules(std::span<const hd::named_shape> p, int m) {
    return hd::name_rules(p, m, {.given = given});
  }
};

struct example {
  std::array<std::int32_t, length> tokens{};
  std::array<std::int32_t, length> targets{};  // -1: does not count
};
struct batch {
  std::vector<std::int32_t> tokens, targets;
  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};
inline batch collate(const std::vector<example>& examples) {
  batch b;
  for (const example& e : examples) {
    b.tokens.insert(b.tokens.end(), e.tokens.begin(), e.tokens.end());
    b.targets.insert(b.targets.end(), e.targets.begin(), e.targets.end());
  }
  return b;
}
// Sequences with one to `length` targets that count.
inline std::vector<example> examples(int count) {
  std::vector<example> all(static_cast<std::size_t>(count));
  const hd::counter_random random(11, 5);
  std::uint64_t at = 0;
  for (auto& e : all) {
    const auto valid = static_cast<std::size_t>(1 + random.integer(at++) % length);
    for (std::size_t i = 0; i < length; ++i) {
      e.tokens[i] = static_cast<std::int32_t>(random.integer(at++) % vocabulary);
      e.targets[i] = i < valid ? static_cast<std::int32_t>((3 * e.tokens[i] + 1) % vocabulary) : -1;
    }
  }
  return all;
}

template <class Context>
using value_of = typename Context::value_type;
template <class Context>
using activations = typename Context::activations;
template <class Context>
using hidden = hd::sharded<value_of<Context>, 2, activations<Context>>;

template <class Context>
hidden<Context> sum(Context& c, const hidden<Context>& a, const hidden<Context>& b) {
  hidden<Context> r(a.layout(), a.shape(), a.rank());
  hd::compute::run<hd::compute::ops::add>(c.compute(), a.elements(), b.elements(), r.elements());
  return r;
}

// ---- a pair of layers: y = gelu(x W1 + b1) W2 ----
template <int Block>
struct paths;
template <>
struct paths<0> {
  using first = tr::named_linear<"block/0/mlp/fc1/kernel">;
  using second = tr::named_linear<"block/0/mlp/fc2/kernel">;
  static constexpr hd::fixed_string bias = "block/0/mlp/fc1/bias";
};
template <>
struct paths<1> {
  using first = tr::named_linear<"block/1/mlp/fc1/kernel">;
  using second = tr::named_linear<"block/1/mlp/fc2/kernel">;
  static constexpr hd::fixed_string bias = "block/1/mlp/fc1/bias";
};

// The layout of a bias along the columns of an activation.
template <class Context, class L>
using bias_layout =
    std::conditional_t<L::template is_sharded_on<tp>, hd::layout_if<typename Context::mesh_type, hd::shard<0, tp>>,
                       hd::layout_if<typename Context::mesh_type, hd::identical<tp>>>;

template <int Block, class Context>
auto mlp(Context& c, hidden<Context>&& x) {
  auto [y, s1] = paths<Block>::first::forward(c, std::move(x));
  using layout = typename std::remove_cvref_t<decltype(y)>::layout_type;
  static_assert(!layout::has_partial, "the first layer of a pair is split by columns or a copy here");
  const auto b = c.template convert<bias_layout<Context, layout>>(tr::copy_of(c.template weight<paths<Block>::bias>()));
  hd::compute::run<hd::compute::ops::add_bias>(c.compute(), y.local(), b.elements());
  auto a = tr::copy_of(y);
  hd::compute::run<hd::compute::ops::gelu>(c.compute(), y.elements(), a.elements());
  auto [z, s2] = paths<Block>::second::forward(c, std::move(a));
  auto out = c.template convert<activations<Context>>(std::move(z));
  struct saved {
    decltype(s1) first;
    decltype(y) before;
    decltype(s2) second;
  };
  return std::pair<hidden<Context>, saved>(std::move(out), saved{std::move(s1), std::move(y), std::move(s2)});
}
template <int Block, class Context, class Saved>
hidden<Context> mlp_backward(Context& c, const Saved& s, hidden<Context>&& dz) {
  using T = value_of<Context>;
  auto da = paths<Block>::second::backward(c, s.second, std::move(dz));
  using layout = typename std::remove_cvref_t<decltype(s.before)>::layout_type;
  auto dy = c.template convert<hd::dual<layout>>(std::move(da));
  hd::compute::run<hd::compute::ops::gelu_backward>(c.compute(), s.before.elements(), std::as_const(dy).elements(),
                                                    dy.elements());
  using bias = bias_layout<Context, layout>;
  hd::sharded<T, 1, hd::dual<bias>> db(hd::dual<bias>{c.world().mesh()}, hd::shape{inner}, c.world().rank());
  hd::compute::run<hd::compute::ops::add_bias_backward>(c.compute(), dy.local(), db.elements());
  c.template add_gradient<paths<Block>::bias>(std::move(db));
  return c.template convert<activations<Context>>(paths<Block>::first::backward(c, s.first, std::move(dy)));
}

// ---- norm ----
template <class Context>
struct norm_saved {
  hidden<Context> x;
  std::vector<value_of<Context>> mean, rstd;
};
template <class Context>
std::pair<hidden<Context>, norm_saved<Context>> norm(Context& c, const hidden<Context>& x) {
  using T = value_of<Context>;
  hidden<Context> y(x.layout(), x.shape(), x.rank());
  norm_saved<Context> s{tr::copy_of(x), {}, {}};
  s.mean.resize(static_cast<std::size_t>(x.local_shape().extent(0)));
  s.rstd.resize(s.mean.size());
  hd::compute::run<hd::compute::ops::layer_norm>(c.compute(), x.local(),
                                                 c.template weight<"block/0/norm/scale">().elements(),
                                                 c.template weight<"block/0/norm/bias">().elements(), T(1e-5),
                                                 y.local(), std::span<T>(s.mean), std::span<T>(s.rstd));
  return {std::move(y), std::move(s)};
}
template <class Context>
hidden<Context> norm_backward(Context& c, const norm_saved<Context>& s, const hidden<Context>& dy) {
  using T = value_of<Context>;
  using w_layout = typename std::remove_cvref_t<decltype(c.template weight<"block/0/norm/scale">())>::layout_type;
  using g_layout = hd::dual<w_layout>;
  hidden<Context> dx(dy.layout(), dy.shape(), dy.rank());
  hd::sharded<T, 1, g_layout> dw(g_layout{c.world().mesh()}, hd::shape{width}, c.world().rank()),
      db(g_layout{c.world().mesh()}, hd::shape{width}, c.world().rank());
  hd::compute::run<hd::compute::ops::layer_norm_backward_input>(c.compute(), dy.local(), s.x.local(),
                                                                c.template weight<"block/0/norm/scale">().elements(),
                                                                s.mean, s.rstd, dx.local());
  hd::compute::run<hd::compute::ops::layer_norm_backward_weight>(c.compute(), dy.local(), s.x.local(), s.mean, s.rstd,
                                                                 dw.elements(), db.elements());
  c.template add_gradient<"block/0/norm/scale">(std::move(dw));
  c.template add_gradient<"block/0/norm/bias">(std::move(db));
  return dx;
}

// ---- attention: whole heads on each rank ----
template <class Context>
auto attention(Context& c, hidden<Context>&& x) {
  using T = value_of<Context>;
  auto [q, sq] = tr::named_linear<"block/0/attn/q/kernel">::forward(c, tr::copy_of(x));
  auto [k, sk] = tr::named_linear<"block/0/attn/k/kernel">::forward(c, tr::copy_of(x));
  auto [v, sv] = tr::named_linear<"block/0/attn/v/kernel">::forward(c, std::move(x));
  const std::int64_t rows = q.local_shape().extent(0), columns = q.local_shape().extent(1);
  const hd::compute::attention_shape shape{rows / length, length, columns / head_dim, head_dim};
  hd::buffer<T> qkv(3 * rows * columns), lse(rows * shape.heads);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < columns; ++i) {
      T* row = qkv.data() + r * 3 * columns;
      row[i] = q.local()(r, i);
      row[columns + i] = k.local()(r, i);
      row[2 * columns + i] = v.local()(r, i);
    }
  auto out = tr::copy_of(q);
  hd::compute::run<hd::compute::ops::causal_attention>(c.compute(),
                                                       hd::matrix_view<const T>(qkv.data(), {rows, 3 * columns}), shape,
                                                       out.local(), std::span<T>(lse.data(), lse.size()));
  auto kept = tr::copy_of(out);
  auto [y, so] = tr::named_linear<"block/0/attn/o/kernel">::forward(c, std::move(out));
  struct saved {
    decltype(sq) q;
    decltype(sk) k;
    decltype(sv) v;
    decltype(so) o;
    decltype(kept) out;
    hd::buffer<T> qkv, lse;
    hd::compute::attention_shape shape;
  };
  auto result = c.template convert<activations<Context>>(std::move(y));
  return std::pair<hidden<Context>, saved>(
      std::move(result), saved{std::move(sq), std::move(sk), std::move(sv), std::move(so), std::move(kept),
                               std::move(qkv), std::move(lse), shape});
}
template <class Context, class Saved>
hidden<Context> attention_backward(Context& c, const Saved& s, hidden<Context>&& dy) {
  using T = value_of<Context>;
  using layout = typename std::remove_cvref_t<decltype(s.out)>::layout_type;
  const auto dout =
      c.template convert<hd::dual<layout>>(tr::named_linear<"block/0/attn/o/kernel">::backward(c, s.o, std::move(dy)));
  const std::int64_t rows = s.shape.rows(), columns = s.shape.width();
  hd::buffer<T> dqkv(3 * rows * columns);
  hd::compute::run<hd::compute::ops::causal_attention_backward>(
      c.compute(), dout.local(), hd::matrix_view<const T>(s.qkv.data(), {rows, 3 * columns}), s.out.local(),
      std::span<const T>(s.lse.data(), s.lse.size()), s.shape, hd::matrix_view<T>(dqkv.data(), {rows, 3 * columns}));
  const auto third = [&](std::int64_t which) {
    hd::sharded<T, 2, hd::dual<layout>> part(dout.layout(), dout.shape(), dout.rank());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i)
        part.local()(r, i) = dqkv[static_cast<std::size_t>((r * 3 + which) * columns + i)];
    return part;
  };
  auto dx =
      c.template convert<activations<Context>>(tr::named_linear<"block/0/attn/q/kernel">::backward(c, s.q, third(0)));
  dx = sum(
      c, dx,
      c.template convert<activations<Context>>(tr::named_linear<"block/0/attn/k/kernel">::backward(c, s.k, third(1))));
  return sum(
      c, dx,
      c.template convert<activations<Context>>(tr::named_linear<"block/0/attn/v/kernel">::backward(c, s.v, third(2))));
}

// ---- embedding, in whichever dimension the plan splits it ----
template <class Context>
using embedding_table =
    typename std::remove_cvref_t<decltype(std::declval<Context&>().template weight<"embed/embedding">())>::layout_type;
template <class Context, class Table = embedding_table<Context>>
using embedded = std::conditional_t<
    !Table::template is_sharded_on<tp>, activations<Context>,
    std::conditional_t<Table::template dim_of<tp> == 0,
                       hd::layout_if<typename Context::mesh_type, hd::shard<0, dp>, hd::partial<hd::plus, tp>>,
                       hd::layout_if<typename Context::mesh_type, hd::shard<0, dp>, hd::shard<1, tp>>>>;

template <class Context>
hidden<Context> embed(Context& c, const batch& b) {
  using T = value_of<Context>;
  const auto& table = c.template weight<"embed/embedding">();
  hd::sharded<T, 2, embedded<Context>> x(embedded<Context>{c.world().mesh()},
                                         c.make_activations(b.rows(), width).shape(), c.world().rank());
  hd::compute::run<hd::compute::ops::embedding>(c.compute(), b.tokens, table.local(), table.local_offset()[0],
                                                x.local());
  return c.template convert<activations<Context>>(std::move(x));
}
template <class Context>
void embed_backward(Context& c, const batch& b, hidden<Context>&& dx) {
  using T = value_of<Context>;
  const auto& table = c.template weight<"embed/embedding">();
  const auto dy = c.template convert<hd::dual<embedded<Context>>>(std::move(dx));
  using g_layout = hd::dual<embedding_table<Context>>;
  hd::sharded<T, 2, g_layout> g(g_layout{c.world().mesh()}, table.shape(), c.world().rank());
  hd::compute::run<hd::compute::ops::embedding_backward>(c.compute(), b.tokens, dy.local(), table.local_offset()[0],
                                                         g.local());
  c.template add_gradient<"embed/embedding">(std::move(g));
}

// ---- loss and predictions ----
// Softmax cross-entropy of whole rows; `logits` become the gradient of the summed loss.
template <class Context>
tr::token_loss cross_entropy(const batch& b, hidden<Context>& logits) {
  tr::token_loss loss;
  for (std::int64_t r = 0; r < b.rows(); ++r) {
    double most = -1e300, total = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) most = (std::max)(most, static_cast<double>(logits.local()(r, v)));
    for (std::int64_t v = 0; v < vocabulary; ++v) total += std::exp(static_cast<double>(logits.local()(r, v)) - most);
    const std::int32_t target = b.targets[static_cast<std::size_t>(r)];
    const bool counts = target >= 0;
    if (counts) {
      loss.sum += std::log(total) + most - static_cast<double>(logits.local()(r, target));
      ++loss.tokens;
    }
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      auto& l = logits.local()(r, v);
      l = counts
              ? static_cast<value_of<Context>>(std::exp(static_cast<double>(l) - most) / total - (v == target ? 1 : 0))
              : 0;
    }
  }
  return loss;
}

struct loss_function {
  template <class Context>
  tr::token_loss operator()(Context& c, const batch& b) const {
    const auto x0 = embed(c, b);
    auto [n, sn] = norm(c, x0);
    auto [a, sa] = attention(c, std::move(n));
    const auto x1 = sum(c, x0, a);
    auto [m0, s0] = mlp<0>(c, tr::copy_of(x1));
    const auto x2 = sum(c, x1, m0);
    auto [m1, s1] = mlp<1>(c, tr::copy_of(x2));
    auto x3 = sum(c, x2, m1);
    auto [l, sl] = tr::named_linear<"lm_head/kernel">::forward(c, std::move(x3));
    auto logits = c.template convert<activations<Context>>(std::move(l));
    const auto loss = cross_entropy<Context>(b, logits);
    auto d3 = c.template convert<activations<Context>>(
        tr::named_linear<"lm_head/kernel">::backward(c, sl, std::move(logits)));
    const auto d2 = sum(c, d3, mlp_backward<1>(c, s1, tr::copy_of(d3)));
    const auto d1 = sum(c, d2, mlp_backward<0>(c, s0, tr::copy_of(d2)));
    const auto dn = attention_backward(c, sa, tr::copy_of(d1));
    embed_backward(c, b, sum(c, d1, norm_backward(c, sn, dn)));
    return loss;
  }
};

struct predict_function {
  template <class Context>
  std::vector<std::int32_t> operator()(Context& c, const batch& b) const {
    // The most likely token after the first of each sequence, without attention to others: enough to tell examples apart.
    auto x = embed(c, b);
    auto [m0, s0] = mlp<0>(c, tr::copy_of(x));
    auto y = sum(c, x, m0);
    auto [l, sl] = tr::named_linear<"lm_head/kernel">::forward(c, std::move(y));
    const auto logits = c.template convert<activations<Context>>(std::move(l));
    std::vector<std::int32_t> best;
    for (std::int64_t r = 0; r < b.rows(); r += length) {
      std::int32_t at = 0;
      for (std::int32_t v = 1; v < vocabulary; ++v)
        if (logits.local()(r, v) > logits.local()(r, at)) at = v;
      best.push_back(at);
    }
    return best;
  }
};

/// Each parameter as a whole, assembled by all ranks under a lock.
class collected {
 public:
  template <class Tensor>
  void add(const std::string& path, const Tensor& x) {
    const std::lock_guard hold(lock_);
    auto& whole = values[path];
    whole.resize(static_cast<std::size_t>(x.shape().size()));
    if (!x.layout().is_primary(x.rank())) return;
    const auto local = x.local_shape().extents();
    std::array<std::int64_t, Tensor::dimensions> index{};
    for (const auto value : x.elements()) {
      const auto global = x.layout().to_global(x.shape(), x.rank(), index);
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < global.size(); ++d) flat = flat * x.shape().extent(d) + global[d];
      whole[static_cast<std::size_t>(flat)] += static_cast<double>(value);
      for (std::size_t d = global.size(); d-- > 0;) {
        if (++index[d] < local[d]) break;
        index[d] = 0;
      }
    }
  }
  std::map<std::string, std::vector<double>> values;

 private:
  std::mutex lock_;
};

}  // namespace toy
