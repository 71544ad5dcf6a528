// heddle/model/deepseek_attention.hpp: latent attention of a DeepSeek configuration.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/deepseek_config.hpp>
#include <heddle/model/layers/latent_attention.hpp>

#include <cstdint>

namespace heddle::inline v0::model::layers {

/// The layer that makes the queries of a DeepSeek-V3: of a latent vector (`q_a_proj`, `q_a_layernorm`, `q_b_proj`), or of the residual stream
/// (`q_proj`).
template <bool LatentQueries, class Adapter>
struct deepseek_queries {
  using layer = low_rank<dims<dim::heads, dim::head_size>, Adapter>;
  /// Errors: `config_error` if the configuration has no latent vector of queries.
  static constexpr layer of(const deepseek_config& c, const Adapter& adapt, double epsilon) {
    if (c.query_latent <= 0)
      throw config_error("heddle: a DeepSeek whose query_latent is 0 is a plain_query_deepseek, not a deepseek");
    const std::int64_t d = c.width, q = c.query_latent, h = c.heads, n = c.still + c.rotating;
    return {"",
            adapt(typename layer::down_base("q_a_proj", {d}, {q}, c.initial_deviation)),
            {"q_a_layernorm", q, epsilon, detail::kept_qkv},
            adapt(typename layer::up_base("q_b_proj", {q}, {h, n}, c.initial_deviation)),
            detail::kept_qkv};
  }
};
template <class Adapter>
struct deepseek_queries<false, Adapter> {
  using base = linear<dims<dim::width>, dims<dim::heads, dim::head_size>, false, storage::out_in>;
  using layer = typename Adapter::template layer<base>;
  /// Errors: `config_error` if the configuration has a latent vector of queries.
  static constexpr layer of(const deepseek_config& c, const Adapter& adapt, double /*epsilon*/) {
    if (c.query_latent != 0)
      throw config_error("heddle: a plain_query_deepseek is one whose query_latent is 0, not a positive number");
    const std::int64_t d = c.width, h = c.heads, n = c.still + c.rotating;
    return adapt(base("q_proj", {d}, {h, n}, c.initial_deviation));
  }
};

/// The attention of each block of a DeepSeek-V3, with Hugging Face's names. Errors: `config_error`.
template <bool LatentQueries, class Adapter>
constexpr auto deepseek_attention(const deepseek_config& c, const Adapter& adapt) {
  using queries = deepseek_queries<LatentQueries, Adapter>;
  using attention = latent_attention<Adapter, typename queries::layer>;
  const std::int64_t d = c.width, h = c.heads, k = c.key_latent;
  const double deviation = c.initial_deviation, epsilon = 1e-6;  // that of the stream's norms is not theirs
  return attention{"self_attn",
                   queries::of(c, adapt, epsilon),
                   adapt(typename attention::down_base("kv_a_proj_with_mqa", {d}, {k + c.rotating}, deviation)),
                   {"kv_a_layernorm", k, epsilon, detail::kept_qkv},
                   adapt(typename attention::up_base("kv_b_proj", {k}, {h, c.still + c.value}, deviation)),
                   adapt(typename attention::out_base("o_proj", {h, c.value}, {d}, deviation)),
                   h,
                   latent_head{c.still, c.rotating, c.value},
                   c.theta,
                   c.scaling,
                   c.context,
                   c.neighbours,
                   c.yarn};
}

}  // namespace heddle::inline v0::model::layers
