// heddle/compute/decay_attention.hpp: linear attention whose states decay by key dimension.
#pragma once

#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/math.hpp>
#include <heddle/compute/ops/on_rows.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0::compute {

/// The sequences of a call: `listed`, or, where that is empty, `count` of `rows` rows each, one behind the other, sequence i with state i.
template <memory_space Space>
struct state_sequences {
  row_view<const state_rows, Space> listed{};
  std::int64_t count = 0, rows = 0;
  bool fresh = true;  ///< whether those that are not listed begin from zeros
};

/// Sizes of the heads: `group` query heads share the key, value, decay and state of one of `heads`; each has `size` elements. Queries count `scale` times.
struct decay_heads {
  std::int64_t heads = 0, group = 1, size = 0;
  double scale = 1;
  constexpr std::int64_t queries() const noexcept { return heads * group * size; }
  constexpr std::int64_t keys() const noexcept { return heads * size; }
  constexpr std::int64_t state() const noexcept { return heads * size * size; }
};
/// Elements of a head at most: as many columns of states are kept by a thread.
inline constexpr std::int64_t most_decay_size = 256;

namespace detail {

// Elements that a body reads or writes; none where it has no address.
template <class Space, class E>
row_view<E, Space> elements_at(E* at, std::int64_t n) {
  return row_at<Space>(at, at == nullptr ? 0 : n);
}

// What bodies of decay attention share. Device code calls no member functions of views.
struct decay_items {
  const state_rows* listed = nullptr;
  std::int64_t count = 0, rows = 0;
  bool fresh = true;
  decay_heads of;
  std::int64_t all_rows = 0, all_states = 0;  // rows of the matrices, and states that lie there
  static constexpr std::int64_t lanes = 8;    // columns of a state that a thread of the host goes through at once

  std::int64_t blocks() const noexcept { return (of.size + lanes - 1) / lanes; }
  template <class Space>
  auto sequences() const {
    return elements_at<Space>(listed, count);
  }
  template <class Space, class E>
  auto of_queries(E* at) const {
    return elements_at<Space>(at, all_rows * of.queries());
  }
  template <class Space, class E>
  auto of_keys(E* at) const {
    return elements_at<Space>(at, all_rows * of.keys());
  }
  template <class Space, class E>
  auto of_states(E* at) const {
    return elements_at<Space>(at, all_states * of.state());
  }
  std::int64_t items() const noexcept { return count * of.heads * blocks(); }
  // Operations of a pass through the sequences: a state decays, takes a key and a value in, and is asked by each query.
  std::int64_t flops() const noexcept {
    return (listed != nullptr ? all_rows : count * rows) * of.state() * (3 + 2 * of.group);
  }
  HEDDLE_HD state_rows sequence(std::int64_t s) const {
    if (listed != nullptr) return listed[s];
    return {static_cast<std::int32_t>(s * rows), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(s),
            fresh ? 1 : 0};
  }
  // Calls f(sequence, head, first column, columns as a constant).
  template <class G, class F>
  HEDDLE_HD void each(G& g, std::int64_t i, const F& f) const {
    const std::int64_t of_head = (of.size + lanes - 1) / lanes;
    const std::int64_t first = i % of_head * lanes, h = i / of_head % of.heads;
    const state_rows q = sequence(i / of_head / of.heads);
    const std::int64_t end = first + lanes < of.size ? first + lanes : of.size;
    if constexpr (std::is_same_v<G, in_groups::lone_thread>) {
      if (end - first == lanes) {
        f(q, h, first, std::integral_constant<int, static_cast<int>(lanes)>{});
        return;
      }
    }
    for (std::int64_t j = first + g.rank(); j < end; j += g.size()) f(q, h, j, std::integral_constant<int, 1>{});
  }
};
template <class S, class T>
HEDDLE_HD S not_negative(T x) {
  const auto s = static_cast<S>(x);
  return s > S(0) ? s : S(0);
}

/// Rows [rows]: decays = exp(log(sigmoid(gates)) / normalizer).
template <class T, class S, class Space>
struct decays_of_gates {
  const T* gates;
  S* decays;
  std::int64_t columns;
  S normalizer;
  std::int64_t rows;
  auto tensors() const {
    return std::tuple(elements_at<Space>(gates, rows * columns), elements_at<Space>(decays, rows * columns));
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    in_groups::for_each_of(g, columns, [&](std::int64_t c) {
      const auto x = static_cast<S>(gates[r * columns + c]);
      // log(sigmoid(x)) without overflow.
      const S log_of = x < S(0) ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
      decays[r * columns + c] = std::exp(log_of / normalizer);
    });
  }
  /// The same by a thread of the host, several elements at once.
  void by_one_thread(std::int64_t r) const {
    const auto decay = [n = normalizer](T gate) {
      const auto x = static_cast<S>(gate);
      return exp_lane((choose(x < S(0), x, S(0)) - log1p_lane(exp_lane(choose(x > S(0), -x, x)))) / n);
    };
    map_lanes(columns, decays + r * columns, decay, gates + r * columns);
  }
};
/// Rows [rows]: gradients of logarithms of decays, in place, become those of gates.
template <class T, class S, class Space>
struct gates_of_decays {
  const T* gates;
  T* gradient;
  std::int64_t columns;
  S normalizer;
  std::int64_t rows;
  auto tensors() const {
    return std::tuple(elements_at<Space>(gates, rows * columns), elements_at<Space>(gradient, rows * columns));
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    in_groups::for_each_of(g, columns, [&](std::int64_t c) {
      const auto x = static_cast<S>(gates[r * columns + c]);
      T& d = gradient[r * columns + c];
      d = static_cast<T>(static_cast<S>(d) / (normalizer * (S(1) + std::exp(x))));
    });
  }
};

/// Columns of states, by the values of heads: out[t] = S[t]' q[t] with S[t] = diag(decay[t]) S[t - 1] + k[t] v[t]'.
template <class T, class S, class Space>
struct decay_forward {
  decay_items items;
  const T *q, *k, *v;
  const S* decays;
  S* states;  // of all sequences, or null: all begin from zeros, and none is kept
  T* out;     // or null: only the states are wanted
  std::int64_t flops() const noexcept { return items.flops(); }
  auto tensors() const {
    return std::tuple(items.sequences<Space>(), items.of_queries<Space>(q), items.of_keys<Space>(k),
                      items.of_keys<Space>(v), items.of_keys<Space>(decays), items.of_states<Space>(states),
                      items.of_queries<Space>(out));
  }
  // A row goes into W columns of a state, where it is given, and `M` of its queries get what is there, all in one pass: the
  // sums of one query wait for each other, and what goes through the state alone compilers turn by its rows.
  template <bool Enters, int M, int W>
  HEDDLE_HD static void pass(const S* decay, const T* key, const S* value, S* at, const T* q, std::int64_t d, S scale,
                             T* out) {
    S sum[M * W + 1] = {}, now[W], entering[W] = {};  // of this function alone: no pointer leads to them
    for (int w = 0; Enters && w < W; ++w) entering[w] = value[w];
    for (std::int64_t a = 0; a < d; ++a) {
      if constexpr (Enters) {
        const S of_key = not_negative<S>(key[a]), of_decay = decay[a];
        for (int w = 0; w < W; ++w) now[w] = of_decay * at[a * W + w] + of_key * entering[w];
        for (int w = 0; w < W; ++w) at[a * W + w] = now[w];
      } else {
        for (int w = 0; w < W; ++w) now[w] = at[a * W + w];
      }
      for (int m = 0; m < M; ++m) {
        const S of_query = not_negative<S>(q[m * d + a]);
        for (int w = 0; w < W; ++w) sum[m * W + w] += of_query * now[w];
      }
    }
    for (int m = 0; m < M; ++m)
      for (int w = 0; w < W; ++w) out[m * d + w] = static_cast<T>(scale * sum[m * W + w]);
  }
  template <int M, int W>
  HEDDLE_HD static void ask(std::int64_t queries, S* at, const T* q, std::int64_t d, S scale, T* out) {
    for (; queries >= M; queries -= M, q += M * d, out += M * d)
      pass<false, M, W>(nullptr, nullptr, nullptr, at, q, d, scale, out);
    if constexpr (M > 1) ask<M - 1, W>(queries, at, q, d, scale, out);
  }
  // The row with up to `M` of the queries, then the others.
  template <int M, int W>
  HEDDLE_HD static void enter(std::int64_t queries, const S* decay, const T* key, const S* value, S* at, const T* q,
                              std::int64_t d, S scale, T* out) {
    if constexpr (M > 0)
      if (queries < M) return enter<M - 1, W>(queries, decay, key, value, at, q, d, scale, out);
    pass<true, M, W>(decay, key, value, at, q, d, scale, out);
    if (queries > M) ask<4, W>(queries - M, at, q + M * d, d, scale, out + M * d);
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    items.each(g, i, [&]<int W>(const state_rows& s, std::int64_t h, std::int64_t j, std::integral_constant<int, W>) {
      const std::int64_t d = items.of.size, keys = items.of.heads * d, group = items.of.group, queries = keys * group;
      const auto scale = static_cast<S>(items.of.scale);
      S at[most_decay_size * W];
      S* const kept = states == nullptr ? nullptr : states + (s.state * items.of.heads + h) * d * d + j;
      const bool begins = kept == nullptr || s.fresh != 0;
      for (std::int64_t a = 0; a < d; ++a)
        for (int w = 0; w < W; ++w) at[a * W + w] = begins ? S(0) : kept[a * d + w];
      for (std::int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
        const S* const decay = decays + r * keys + h * d;
        const T* const key = k + r * keys + h * d;
        S value[W];
        for (int w = 0; w < W; ++w) value[w] = static_cast<S>(v[r * keys + h * d + j + w]);
        const std::int64_t head = r * queries + h * group * d;
        if (out == nullptr)
          enter<0, W>(0, decay, key, value, at, q + head, d, scale, nullptr);
        else
          enter<4, W>(group, decay, key, value, at, q + head, d, scale, out + head + j);
      }
      for (std::int64_t a = 0; kept != nullptr && a < d; ++a)
        for (int w = 0; w < W; ++w) kept[a * d + w] = at[a * W + w];
    });
  }
};

/// Rows of states, by the keys of heads: gradients of queries, by going through the sequence, and of keys and logarithms of decays, by going back. That of a logarithm is the sum
/// over the rows from its own on of q dq - k dk, and of d_states S at the end.
template <class T, class S, class Space>
struct decay_backward_keys {
  decay_items items;
  const T *dout, *q, *k, *v;
  const S* decays;
  const S* states;  // that the sequences began from, or null
  S* d_states;      // of those that they left, which become those that they began from; or null: zeros
  T *dq, *dk, *d_log;
  // Without the states that are made again.
  std::int64_t flops() const noexcept { return items.flops(); }
  auto tensors() const {
    return std::tuple(items.sequences<Space>(), items.of_queries<Space>(dout), items.of_queries<Space>(q),
                      items.of_keys<Space>(k), items.of_keys<Space>(v), items.of_keys<Space>(decays),
                      items.of_states<Space>(states), items.of_states<Space>(d_states), items.of_queries<Space>(dq),
                      items.of_keys<Space>(dk), items.of_keys<Space>(d_log));
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    items.each(g, i, [&]<int W>(const state_rows& s, std::int64_t h, std::int64_t j, std::integral_constant<int, W>) {
      const std::int64_t d = items.of.size, keys = items.of.heads * d, group = items.of.group, queries = keys * group;
      const auto scale = static_cast<S>(items.of.scale);
      S at[most_decay_size * W];  // column b of row j + w at b * W + w
      const std::int64_t place = ((s.state * items.of.heads + h) * d + j) * d;
      for (std::int64_t b = 0; b < d; ++b)
        for (int w = 0; w < W; ++w)
          at[b * W + w] = states == nullptr || s.fresh != 0 ? S(0) : states[place + w * d + b];
      for (std::int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
        const std::int64_t of_head = r * keys + h * d;
        for (std::int64_t b = 0; b < d; ++b) {
          const auto value = static_cast<S>(v[of_head + b]);
          for (int w = 0; w < W; ++w)
            at[b * W + w] = decays[of_head + j + w] * at[b * W + w] + not_negative<S>(k[of_head + j + w]) * value;
        }
        for (std::int64_t m = 0; m < group; ++m) {
          const std::int64_t head = r * queries + (h * group + m) * d;
          S sum[W] = {};
          for (std::int64_t b = 0; b < d; ++b) {
            const auto gradient = static_cast<S>(dout[head + b]);
            for (int w = 0; w < W; ++w) sum[w] += at[b * W + w] * gradient;
          }
          for (int w = 0; w < W; ++w)
            dq[head + j + w] = static_cast<T>(static_cast<S>(q[head + j + w]) > S(0) ? scale * sum[w] : S(0));
        }
      }
      S later[W] = {};  // sums of the logarithm's gradient
      for (std::int64_t b = 0; b < d; ++b)
        for (int w = 0; w < W; ++w) {
          const S gradient = d_states == nullptr ? S(0) : d_states[place + w * d + b];
          later[w] += gradient * at[b * W + w];
          at[b * W + w] = gradient;
        }
      for (std::int64_t r = s.first_row + s.rows; --r >= s.first_row;) {
        const std::int64_t of_head = r * keys + h * d;
        for (std::int64_t m = 0; m < group; ++m) {
          const std::int64_t head = r * queries + (h * group + m) * d;
          S query[W];
          for (int w = 0; w < W; ++w) {
            query[w] = scale * not_negative<S>(q[head + j + w]);
            later[w] += not_negative<S>(q[head + j + w]) * static_cast<S>(dq[head + j + w]);
          }
          for (std::int64_t b = 0; b < d; ++b) {
            const auto gradient = static_cast<S>(dout[head + b]);
            for (int w = 0; w < W; ++w) at[b * W + w] += query[w] * gradient;
          }
        }
        S sum[W] = {};
        for (std::int64_t b = 0; b < d; ++b) {
          const auto value = static_cast<S>(v[of_head + b]);
          for (int w = 0; w < W; ++w) sum[w] += at[b * W + w] * value;
        }
        for (int w = 0; w < W; ++w) {
          const S key = not_negative<S>(k[of_head + j + w]);
          dk[of_head + j + w] = static_cast<T>(static_cast<S>(k[of_head + j + w]) > S(0) ? sum[w] : S(0));
          later[w] -= key * sum[w];
          d_log[of_head + j + w] = static_cast<T>(later[w]);
        }
        for (std::int64_t b = 0; b < d; ++b)
          for (int w = 0; w < W; ++w) at[b * W + w] *= decays[of_head + j + w];
      }
      for (std::int64_t b = 0; d_states != nullptr && b < d; ++b)
        for (int w = 0; w < W; ++w) d_states[place + w * d + b] = at[b * W + w];
    });
  }
};

/// Columns of states: gradients of values, by going back. Before `decay_backward_keys`, which changes `d_states`.
template <class T, class S, class Space>
struct decay_backward_values {
  decay_items items;
  const T *dout, *q, *k;
  const S* decays;
  const S* d_states;  // or null
  T* dv;
  std::int64_t flops() const noexcept { return items.flops(); }
  auto tensors() const {
    return std::tuple(items.sequences<Space>(), items.of_queries<Space>(dout), items.of_queries<Space>(q),
                      items.of_keys<Space>(k), items.of_keys<Space>(decays), items.of_states<Space>(d_states),
                      items.of_keys<Space>(dv));
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    items.each(g, i, [&]<int W>(const state_rows& s, std::int64_t h, std::int64_t j, std::integral_constant<int, W>) {
      const std::int64_t d = items.of.size, keys = items.of.heads * d, group = items.of.group, queries = keys * group;
      const auto scale = static_cast<S>(items.of.scale);
      S at[most_decay_size * W];
      const std::int64_t place = (s.state * items.of.heads + h) * d * d + j;
      for (std::int64_t a = 0; a < d; ++a)
        for (int w = 0; w < W; ++w) at[a * W + w] = d_states == nullptr ? S(0) : d_states[place + a * d + w];
      for (std::int64_t r = s.first_row + s.rows; --r >= s.first_row;) {
        const std::int64_t of_head = r * keys + h * d;
        for (std::int64_t m = 0; m < group; ++m) {
          const std::int64_t head = r * queries + (h * group + m) * d;
          S gradient[W];
          for (int w = 0; w < W; ++w) gradient[w] = scale * static_cast<S>(dout[head + j + w]);
          for (std::int64_t a = 0; a < d; ++a) {
            const S query = not_negative<S>(q[head + a]);
            for (int w = 0; w < W; ++w) at[a * W + w] += query * gradient[w];
          }
        }
        S sum[W] = {};
        for (std::int64_t a = 0; a < d; ++a) {
          const S key = not_negative<S>(k[of_head + a]), decay = decays[of_head + a];
          for (int w = 0; w < W; ++w) {
            sum[w] += key * at[a * W + w];
            at[a * W + w] *= decay;
          }
        }
        for (int w = 0; w < W; ++w) dv[of_head + j + w] = static_cast<T>(sum[w]);
      }
    });
  }
};

[[noreturn]] inline void decay_error(const std::string& what, std::int64_t expected, std::int64_t got) {
  throw layout_error("heddle: decay_attention: " + what + " should have " + std::to_string(expected) +
                     " elements, got " + std::to_string(got));
}
template <class M>
void require_decay_rows(const M& m, std::int64_t rows, std::int64_t columns, const char* what) {
  if (m.extent(1) != columns) decay_error(std::string("a row of ") + what, columns, m.extent(1));
  if (m.extent(0) != rows)
    throw layout_error("heddle: decay_attention: " + std::string(what) + " should have " + std::to_string(rows) +
                       " rows, as keys have, got " + std::to_string(m.extent(0)));
}
/// The items of a call with keys of `rows` rows and `states` elements of states, or 0.
template <class Space>
decay_items items_of(const state_sequences<Space>& s, const decay_heads& of, std::int64_t rows, std::int64_t states) {
  if (of.size < 0 || of.size > most_decay_size)
    throw layout_error("heddle: decay_attention: heads should have at most " + std::to_string(most_decay_size) +
                       " elements, got " + std::to_string(of.size));
  decay_items all;
  const auto listed = static_cast<std::int64_t>(element_count(s.listed));
  if (listed > 0) {
    all.listed = first_element(s.listed);
    all.count = listed;
  } else {
    if (s.count < 0 || s.rows < 0 || (s.rows > 0 && s.count > rows / s.rows))
      throw layout_error("heddle: decay_attention: " + std::to_string(s.count) + " sequences of " +
                         std::to_string(s.rows) + " rows should lie in the " + std::to_string(rows) + " rows of keys");
    all.count = s.count;
    all.rows = s.rows;
    all.fresh = s.fresh;
  }
  all.of = of;
  all.all_rows = rows;
  if (const std::int64_t of_one = of.state(); states > 0) {
    const std::int64_t least = listed > 0 ? of_one : s.count * of_one;
    if (of_one == 0 || states < least || states % of_one != 0) decay_error("states of the sequences", least, states);
    all.all_states = states / of_one;
  }
  return all;
}
}  // namespace detail

/// The facet of backends that work on rows (`ops::on_rows`).
using decay_attention_facet = context_facet;

/// decays = sigmoid(gates)^(1 / normalizer). Shapes: gates, decays [rows, heads * size]. Errors: `layout_error` if they differ.
template <class B, class T, class S, class Space>
void gate_decays(B& backend, matrix_view<const T, Space> gates, double normalizer, matrix_view<S, Space> decays) {
  detail::require_decay_rows(decays, gates.extent(0), gates.extent(1), "decays");
  if (gates.size() > 0)
    run_on_rows(backend, gates.extent(0), gates.extent(1),
                detail::decays_of_gates<T, S, Space>{gates.address(), decays.address(), gates.extent(1),
                                                     static_cast<S>(normalizer), gates.extent(0)});
}
/// The gradients of the decays' logarithms become those of the gates, in place.
template <class B, class T, class Space>
void gate_decays_backward(B& backend, matrix_view<const T, Space> gates, double normalizer,
                          matrix_view<T, Space> gradient) {
  using S = sum_of_type<T>;
  detail::require_decay_rows(gradient, gates.extent(0), gates.extent(1), "gradients of decays");
  if (gates.size() > 0)
    run_on_rows(backend, gates.extent(0), gates.extent(1),
                detail::gates_of_decays<T, S, Space>{gates.address(), gradient.address(), gates.extent(1),
                                                     static_cast<S>(normalizer), gates.extent(0)});
}

/// out[t] = scale S[t]' relu(q[t]) with S[t] = diag(decays[t]) S[t - 1] + relu(k[t]) v[t]', head by head. A sequence begins from its state, or from zeros, and leaves its last one
/// there; without states all begin from zeros. The numbers of a row depend on its sequence alone: cut anywhere into calls, a sequence has the same bits. Empty `out`: only the states are wanted.
/// Shapes: q, out [rows, heads * group * size]; k, v, decays [rows, heads * size]; states [sequences' states, heads * size * size]. Sums and states are of `sum_of_type<T>`.
/// Errors: `layout_error` for heads of more than `most_decay_size` elements, and sizes that do not belong together.
/// Source: Yang et al. 2024, arXiv:2312.06635 (gated linear attention), equation 3; SpikingBrain, arXiv:2509.05276.
template <class B, class T, class S, class Space>
void decay_attention(B& backend, const decay_heads& of, const state_sequences<Space>& sequences,
                     matrix_view<const T, Space> q, matrix_view<const T, Space> k, matrix_view<const T, Space> v,
                     matrix_view<const S, Space> decays, row_view<S, Space> states, matrix_view<T, Space> out) {
  const std::int64_t rows = k.extent(0);
  const detail::decay_items items =
      detail::items_of(sequences, of, rows, static_cast<std::int64_t>(element_count(states)));
  detail::require_decay_rows(k, rows, of.keys(), "keys");
  detail::require_decay_rows(q, rows, of.queries(), "queries");
  detail::require_decay_rows(v, rows, of.keys(), "values");
  detail::require_decay_rows(decays, rows, of.keys(), "decays");
  if (out.size() > 0) detail::require_decay_rows(out, rows, of.queries(), "outputs");
  S* const kept = element_count(states) == 0 ? nullptr : first_element(states);
  if (items.items() > 0)
    run_on_rows(backend, items.items(), of.size * of.size,
                detail::decay_forward<T, S, Space>{items, q.address(), k.address(), v.address(), decays.address(), kept,
                                                   out.size() == 0 ? nullptr : out.address()});
}

/// Its gradients: of queries, keys and values as they were given, and of the logarithms of the decays. Nothing of forward but its inputs is read. `states`: that sequences began
/// from, or empty; `d_states`: gradients of those that they left, which become those of the states that they began from, or empty: zeros.
/// Shapes and errors: as above. Source: the same, appendix C: gradients of decays without states of each row.
template <class B, class T, class S, class Space>
void decay_attention_backward(B& backend, const decay_heads& of, const state_sequences<Space>& sequences,
                              matrix_view<const T, Space> dout, matrix_view<const T, Space> q,
                              matrix_view<const T, Space> k, matrix_view<const T, Space> v,
                              matrix_view<const S, Space> decays, row_view<const S, Space> states,
                              row_view<S, Space> d_states, matrix_view<T, Space> dq, matrix_view<T, Space> dk,
                              matrix_view<T, Space> dv, matrix_view<T, Space> d_log) {
  const std::int64_t rows = k.extent(0), queries = of.queries(), keys = of.keys();
  const auto began = static_cast<std::int64_t>(element_count(states)),
             left = static_cast<std::int64_t>(element_count(d_states));
  if (began > 0 && left > 0 && began != left) detail::decay_error("gradients of states", began, left);
  const detail::decay_items items = detail::items_of(sequences, of, rows, began > 0 ? began : left);
  detail::require_decay_rows(k, rows, keys, "keys");
  detail::require_decay_rows(q, rows, queries, "queries");
  detail::require_decay_rows(v, rows, keys, "values");
  detail::require_decay_rows(decays, rows, keys, "decays");
  detail::require_decay_rows(dout, rows, queries, "gradients of outputs");
  detail::require_decay_rows(dq, rows, queries, "gradients of queries");
  detail::require_decay_rows(dk, rows, keys, "gradients of keys");
  detail::require_decay_rows(dv, rows, keys, "gradients of values");
  detail::require_decay_rows(d_log, rows, keys, "gradients of decays");
  if (items.items() == 0) return;
  const auto start = [](auto row) { return element_count(row) == 0 ? nullptr : first_element(row); };
  run_on_rows(backend, items.items(), of.size * of.size,
              detail::decay_backward_values<T, S, Space>{items, dout.address(), q.address(), k.address(),
                                                         decays.address(), start(d_states), dv.address()});
  run_on_rows(backend, items.items(), of.size * of.size,
              detail::decay_backward_keys<T, S, Space>{items, dout.address(), q.address(), k.address(), v.address(),
                                                       decays.address(), start(states), start(d_states), dq.address(),
                                                       dk.address(), d_log.address()});
}

}  // namespace heddle::inline v0::compute
