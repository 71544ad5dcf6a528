// heddle/model/family_units.hpp: compiles models of each family, and their choice.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/any_layers.hpp>
#include <heddle/model/families.hpp>
#include <heddle/model/family_stage.hpp>
#include <heddle/model/with_model.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#if defined(HEDDLE_COMPILED_FAMILIES)  // of these units

// M(KIND, model) for each of the models of a family with elements of type T.
/// Models of GPT-2.
#define HEDDLE_MODELS_gpt2(M, KIND, T) M(KIND, model::tied_by_config<model::untied_gpt2<T>>)
/// Models of Llama.
#define HEDDLE_MODELS_llama(M, KIND, T) M(KIND, model::tied_by_config<model::llama<T>>)
/// Models of Qwen2.
#define HEDDLE_MODELS_qwen2(M, KIND, T) M(KIND, model::tied_by_config<model::qwen2<T>>)
/// Models of Qwen3.
#define HEDDLE_MODELS_qwen3(M, KIND, T) M(KIND, model::tied_by_config<model::qwen3<T>>)
/// Models of Mistral.
#define HEDDLE_MODELS_mistral(M, KIND, T) M(KIND, model::tied_by_config<model::mistral<T>>)
/// Models of Mixtral.
#define HEDDLE_MODELS_mixtral(M, KIND, T) \
  M(KIND, model::tied_by_config<model::mixtral<T, model::megatron_folded<>>>)
/// Models of Qwen3 with experts.
#define HEDDLE_MODELS_qwen3_moe(M, KIND, T) \
  M(KIND, model::tied_by_config<model::qwen3_moe<T, model::megatron_folded<>>>)
/// Models of SmolLM3.
#define HEDDLE_MODELS_smollm3(M, KIND, T) M(KIND, model::tied_by_config<model::smollm3<T>>)
/// Models of Granite.
#define HEDDLE_MODELS_granite(M, KIND, T) M(KIND, model::tied_by_config<model::granite<T>>)
/// Models of Phi-3 and Phi-4.
#define HEDDLE_MODELS_phi3(M, KIND, T) M(KIND, model::tied_by_config<model::phi3<T>>)
/// Models of OLMo-2.
#define HEDDLE_MODELS_olmo2(M, KIND, T) M(KIND, model::tied_by_config<model::olmo2<T>>)
/// Models of Gemma-2.
#define HEDDLE_MODELS_gemma2(M, KIND, T) M(KIND, model::tied_by_config<model::gemma2<T>>)
/// Models of Gemma-3.
#define HEDDLE_MODELS_gemma3(M, KIND, T) M(KIND, model::tied_by_config<model::gemma3<T>>)
/// Models of GPT-OSS.
#define HEDDLE_MODELS_gpt_oss(M, KIND, T) M(KIND, model::tied_by_config<model::gpt_oss<T, model::megatron_folded<>>>)
/// Models of DeepSeek-V2 and V3.
#define HEDDLE_MODELS_deepseek(M, KIND, T) \
  M(KIND, model::deepseek<T, model::megatron_folded<>>) M(KIND, model::plain_query_deepseek<T, model::megatron_folded<>>)

namespace heddle::inline v0::model {

namespace detail {

// What HEDDLE_FAMILIES names an element type.
template <class T>
inline constexpr const char* families_suffix = std::is_same_v<T, float>    ? "_f32"
                                               : std::is_same_v<T, double> ? "_f64"
                                                                           : "_bf16";

// Whether a model is in the library: specialized in the unit that chooses among them, which also has their list.
template <class Model>
inline constexpr bool is_compiled_family = false;
extern const char* const compiled_families_list;

// Calls f(model, configuration) of a model that is in the library.
template <class T, class Result, class F>
Result with_compiled_model(const any_config& config, F&& f) {
  return with_family<T>(config.of, [&]<class Model>(std::type_identity<Model> model, const auto& c) -> Result {
    if constexpr (is_compiled_family<Model>) {
      return f(model, c);
    } else {
      const std::string all = compiled_families_list;
      std::string name(config.of.family());
      if (name.starts_with("deepseek")) name = "deepseek";
      if (name == "gemma3_text") name = "gemma3";
      name += families_suffix<T>;
      throw config_error("heddle: heddle::families was compiled without " + name + ": it has " + all +
                         "; configure heddle with -DHEDDLE_FAMILIES=\"" + all + ";" + name +
                         "\", or compile the program without heddle::families");
    }
  });
}

template <class T>
std::vector<parameter_outline> compiled_outlines(const any_config& config) {
  using result = std::vector<parameter_outline>;
  return with_compiled_model<T, result>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> result {
        return family_outlines<Model>::of(config, c);
      });
}
template <class T>
std::unique_ptr<any_weights<T>> compiled_weights(const any_config& config, const families_mesh& mesh, int rank,
                                                 stage_layers part) {
  using result = std::unique_ptr<any_weights<T>>;
  return with_compiled_model<T, result>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> result {
        return family_weights<Model, families_mesh>::make(c, mesh, rank, part);
      });
}
template <class T>
std::unique_ptr<any_stage<T>> compiled_stage(const any_config& config, families_world& world, families_backend& backend,
                                             stage_layers part, int slots, std::int64_t max_samples, int deferred,
                                             any_stage<T>* lender, const typename any_layers<T>::settings& saving) {
  using result = std::unique_ptr<any_stage<T>>;
  return with_compiled_model<T, result>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> result {
        return family_stage<Model, families_world, families_backend>::make(
            config, c, world, backend, part, slots, max_samples, deferred, lender, saving);
      });
}

}  // namespace detail

}  // namespace heddle::inline v0::model

#endif
