// heddle/infer/family_units.hpp: compiles runners of the families in HEDDLE_FAMILIES.
#pragma once

#include <heddle/infer/families.hpp>
#include <heddle/infer/family_runner.hpp>
#include <heddle/model/family_units.hpp>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#if defined(HEDDLE_COMPILED_FAMILIES)  // of these units

/// Compiles the stages of a family: HEDDLE_FAMILY_STAGES(, gpt2, float) here, (extern, ..) declares that they are elsewhere.
#define HEDDLE_FAMILY_STAGES(KIND, FAMILY, T) HEDDLE_MODELS_##FAMILY(HEDDLE_STAGES_OF, KIND, T)
/// Compiles the runners of a family, as HEDDLE_FAMILY_STAGES.
#define HEDDLE_FAMILY_RUNNERS(KIND, FAMILY, T) HEDDLE_MODELS_##FAMILY(HEDDLE_RUNNERS_OF, KIND, T)
/// Compiles the stages of one model.
#define HEDDLE_STAGES_OF(KIND, ...)                                \
  KIND template struct model::detail::family_outlines<__VA_ARGS__>; \
  KIND template struct model::detail::family_stage<__VA_ARGS__, model::families_world, model::families_backend>;
/// Compiles the runners of one model.
#define HEDDLE_RUNNERS_OF(KIND, ...)                                                    \
  KIND template struct model::detail::family_weights<__VA_ARGS__, model::families_mesh>; \
  KIND template struct infer::detail::family_runner<__VA_ARGS__, model::families_world, model::families_backend>;

/// Says that a family is in the library, HEDDLE_FAMILY_LISTED(gpt2, float), for the unit that chooses among them.
#define HEDDLE_FAMILY_LISTED(FAMILY, T)        \
  HEDDLE_FAMILY_STAGES(extern, FAMILY, T)      \
  HEDDLE_FAMILY_RUNNERS(extern, FAMILY, T)     \
  HEDDLE_MODELS_##FAMILY(HEDDLE_MODEL_LISTED, , T)
/// Says that one model is in the library.
#define HEDDLE_MODEL_LISTED(KIND, ...) \
  template <>                          \
  inline constexpr bool model::detail::is_compiled_family<__VA_ARGS__> = true;

/// Compiles the functions that choose among those that are listed, of elements of type T.
#define HEDDLE_FAMILY_CHOICE(T)                                                                                        \
  template std::vector<model::parameter_outline> model::detail::compiled_outlines<T>(const model::any_config&);        \
  template std::unique_ptr<model::any_weights<T>> model::detail::compiled_weights<T>(                                  \
      const model::any_config&, const model::families_mesh&, int, model::stage_layers);                                \
  template std::unique_ptr<model::any_stage<T>> model::detail::compiled_stage<T>(                                      \
      const model::any_config&, model::families_world&, model::families_backend&, model::stage_layers, int,            \
      std::int64_t, int, model::any_stage<T>*, const model::any_layers<T>::settings&);                                 \
  template std::unique_ptr<infer::any_model_runner<T>> infer::detail::compiled_runner<T>(                              \
      const model::any_config&, model::families_world&, model::families_backend&, infer::cache_extent, std::int64_t);  \
  template std::int64_t infer::detail::compiled_cache_blocks<T>(const model::any_config&, std::int64_t,                \
                                                        const model::families_mesh&, std::int64_t);

namespace heddle::inline v0::infer::detail {

template <class T>
std::unique_ptr<any_model_runner<T>> compiled_runner(const model::any_config& config, model::families_world& world,
                                                     model::families_backend& backend, cache_extent cache,
                                                     std::int64_t max_rows) {
  using result = std::unique_ptr<any_model_runner<T>>;
  return model::detail::with_compiled_model<T, result>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> result {
        return family_runner<Model, model::families_world, model::families_backend>::make(c, world, backend,
                                                                                                  cache, max_rows);
      });
}
template <class T>
std::int64_t compiled_cache_blocks(const model::any_config& config, std::int64_t bytes,
                                   const model::families_mesh& mesh, std::int64_t block_rows) {
  return model::detail::with_compiled_model<T, std::int64_t>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) {
        return family_runner<Model, model::families_world, model::families_backend>::blocks(c, bytes, mesh,
                                                                                                    block_rows);
      });
}

}  // namespace heddle::inline v0::infer::detail

#endif
