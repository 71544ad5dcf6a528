// heddle/model/with_model.hpp: the type of the model that a config.json describes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/granite.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mistral.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/qwen3_moe.hpp>
#include <heddle/model/smollm3.hpp>

#include <type_traits>
#include <variant>

namespace heddle::inline v0::model {

namespace detail {
template <class How>
inline constexpr bool splits_sequence = false;
template <class... S>
inline constexpr bool splits_sequence<sharding<S...>> = (std::is_same_v<typename S::dimension, dim::sequence> || ...);
}  // namespace detail

/// Calls `f(model, config)` with the type of the model with elements of type T, as in `std::type_identity<gpt2<T>>`,
/// and its configuration.
template <class T, class How = megatron<>, class F>
decltype(auto) with_model(const hugging_face_model& m, F&& f) {
  if (const auto* const config = std::get_if<gpt2_config>(&m.config))
    return f(std::type_identity<gpt2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen2_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_qwen2<T, How>>{}, *config)
                  : f(std::type_identity<qwen2<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen3_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_qwen3<T, How>>{}, *config)
                  : f(std::type_identity<qwen3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<deepseek_config>(&m.config)) {
    if constexpr (detail::splits_sequence<How>)
      throw config_error(
          "heddle: with_model: a DeepSeek takes whole sequences: a sharding without split<dim::sequence, ...>");
    else
      return config->query_latent > 0 ? f(std::type_identity<deepseek<T, How>>{}, *config)
                                      : f(std::type_identity<plain_query_deepseek<T, How>>{}, *config);
  }
  if (const auto* const config = std::get_if<mixtral_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_mixtral<T, How>>{}, *config)
                  : f(std::type_identity<mixtral<T, How>>{}, *config);
  if (const auto* const config = std::get_if<mistral_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_mistral<T, How>>{}, *config)
                  : f(std::type_identity<mistral<T, How>>{}, *config);
  if (const auto* const config = std::get_if<qwen3_moe_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_qwen3_moe<T, How>>{}, *config)
                  : f(std::type_identity<qwen3_moe<T, How>>{}, *config);
  if (const auto* const config = std::get_if<smollm3_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_smollm3<T, How>>{}, *config)
                  : f(std::type_identity<smollm3<T, How>>{}, *config);
  if (const auto* const config = std::get_if<granite_config>(&m.config))
    return m.tied ? f(std::type_identity<tied_granite<T, How>>{}, *config)
                  : f(std::type_identity<granite<T, How>>{}, *config);
  const llama_config& config = std::get<llama_config>(m.config);
  return m.tied ? f(std::type_identity<tied_llama<T, How>>{}, config) : f(std::type_identity<llama<T, How>>{}, config);
}
}  // namespace heddle::inline v0::model
