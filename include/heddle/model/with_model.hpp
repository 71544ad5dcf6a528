// heddle/model/with_model.hpp: the type of the model that a config.json describes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/gemma2.hpp>
#include <heddle/model/gemma3.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/gpt_oss.hpp>
#include <heddle/model/granite.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mistral.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/olmo2.hpp>
#include <heddle/model/phi3.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/qwen3_moe.hpp>
#include <heddle/model/smollm3.hpp>
#include <heddle/model/tied_by_config.hpp>

#include <type_traits>
#include <variant>

namespace heddle::inline v0::model {

namespace detail {
template <class How>
inline constexpr bool splits_sequence = false;
template <class... S>
inline constexpr bool splits_sequence<sharding<S...>> = (std::is_same_v<typename S::dimension, dim::sequence> || ...);
}  // namespace detail

namespace detail {
// Calls `f(model, config)`, or `f(model, tied, config)` where the head of the family may be tied, as `with_model` does. `OfExperts`: the
// sharding of families with experts.
template <class T, class How, class OfExperts, class F>
decltype(auto) with_types_of(const hugging_face_model& m, F&& f) {
  if (const auto* const config = std::get_if<gpt2_config>(&m.config))
    return f(std::type_identity<model::untied_gpt2<T, How>>{}, std::type_identity<model::gpt2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen2_config>(&m.config))
    return f(std::type_identity<model::qwen2<T, How>>{}, std::type_identity<model::tied_qwen2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen3_config>(&m.config))
    return f(std::type_identity<model::qwen3<T, How>>{}, std::type_identity<model::tied_qwen3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<deepseek_config>(&m.config)) {
    if constexpr (splits_sequence<How>)
      throw config_error(
          "heddle: with_model: a DeepSeek takes whole sequences: a sharding without split<dim::sequence, ...>");
    else
      return config->query_latent > 0 ? f(std::type_identity<model::deepseek<T, OfExperts>>{}, *config)
                                      : f(std::type_identity<model::plain_query_deepseek<T, OfExperts>>{}, *config);
  }
  if (const auto* const config = std::get_if<mixtral_config>(&m.config))
    return f(std::type_identity<model::mixtral<T, OfExperts>>{},
             std::type_identity<model::tied_mixtral<T, OfExperts>>{}, *config);
  if (const auto* const config = std::get_if<mistral_config>(&m.config))
    return f(std::type_identity<model::mistral<T, How>>{}, std::type_identity<model::tied_mistral<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen3_moe_config>(&m.config))
    return f(std::type_identity<model::qwen3_moe<T, OfExperts>>{},
             std::type_identity<model::tied_qwen3_moe<T, OfExperts>>{}, *config);
  if (const auto* const config = std::get_if<smollm3_config>(&m.config))
    return f(std::type_identity<model::smollm3<T, How>>{}, std::type_identity<model::tied_smollm3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<granite_config>(&m.config))
    return f(std::type_identity<model::granite<T, How>>{}, std::type_identity<model::tied_granite<T, How>>{}, *config);
  if (const auto* const config = std::get_if<phi3_config>(&m.config))
    return f(std::type_identity<model::phi3<T, How>>{}, std::type_identity<model::tied_phi3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<olmo2_config>(&m.config))
    return f(std::type_identity<model::olmo2<T, How>>{}, std::type_identity<model::tied_olmo2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<gemma3_config>(&m.config))
    return f(std::type_identity<model::gemma3<T, How>>{}, std::type_identity<model::tied_gemma3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<gemma2_config>(&m.config))
    return f(std::type_identity<model::gemma2<T, How>>{}, std::type_identity<model::tied_gemma2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<gpt_oss_config>(&m.config))
    return f(std::type_identity<model::gpt_oss<T, OfExperts>>{},
             std::type_identity<model::tied_gpt_oss<T, OfExperts>>{}, *config);
  return f(std::type_identity<model::llama<T, How>>{}, std::type_identity<model::tied_llama<T, How>>{},
           std::get<llama_config>(m.config));
}
template <class F>
struct with_tied_type {
  bool tied;
  F& f;
  template <class Model, class Config>
  decltype(auto) operator()(Model of, const Config& c) const {
    return f(of, c);
  }
  template <class Model, class Tied, class Config>
  decltype(auto) operator()(Model of, Tied when_tied, const Config& c) const {
    return tied ? f(when_tied, c) : f(of, c);
  }
};
template <class F>
struct with_tied_value {
  bool tied;
  F& f;
  template <class Model, class Config>
  decltype(auto) operator()(Model of, const Config& c) const {
    return f(of, c);
  }
  template <class Model, class Tied, class Config>
  decltype(auto) operator()(std::type_identity<Model>, Tied, const Config& c) const {
    return f(std::type_identity<tied_by_config<Model>>{}, tied_config<Config>{c, tied});
  }
};
}  // namespace detail

/// Calls `f(model, config)` with the type of the model with elements of type T, as in `std::type_identity<gpt2<T>>`,
/// and its configuration.
template <class T, class How = megatron<>, class F>
decltype(auto) with_model(const hugging_face_model& m, F&& f) {
  return detail::with_types_of<T, How, How>(m, detail::with_tied_type<std::remove_reference_t<F>>{m.tied, f});
}
/// The same, with one type for each family whether its head is tied or not: `tied_by_config`, where both are possible. Families with experts
/// split these over ep, as `OfExperts` says.
template <class T, class How = megatron<>, class OfExperts = megatron_folded<>, class F>
decltype(auto) with_family(const hugging_face_model& m, F&& f) {
  return detail::with_types_of<T, How, OfExperts>(m, detail::with_tied_value<std::remove_reference_t<F>>{m.tied, f});
}
}  // namespace heddle::inline v0::model
