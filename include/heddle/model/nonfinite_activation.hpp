// heddle/model/nonfinite_activation.hpp: the first layer whose saved output is not finite.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/model/batch_checks.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/view.hpp>

#include <string>
#include <type_traits>

namespace heddle::inline v0::model {

/// A place in the model, in the order of the forward pass; index -1: none.
struct place_in_model {
  int index = -1;
  std::string name{};
};

namespace detail {

/// Reads what the slots of a `language_stage` still hold.
template <class Stage>
struct nonfinite_activation {
  static place_in_model first(Stage& s) {
    using batch_type = typename Stage::batch_type;
    using T = typename Stage::scalar;
    constexpr const char* first_layer = std::is_same_v<batch_type, batch<T>> ? "the embedding" : "the first layer";
    const auto bad = [&](const T* x) {  // all of it: the last microbatch may have been a small one
      return !compute::all_finite(
          *s.backend_, row_at<typename Stage::space>(x, s.stream_.elements(s.max_rows())));
    };
    const stage_layers part = s.layers();
    for (int l = 0; l <= part.count; ++l)
      for (int slot = 0; slot < s.slots(); ++slot) {
        if (l < part.count && moves_now(s.saved_layers_)) continue;
        if (l == part.count && !s.is_last()) continue;
        if (!bad(l == part.count ? s.memory_.end_saved(slot)
                                 : Stage::start_of(s.saved_layers_.need(slot, Stage::scope_of(l)))))
          continue;
        const int index = part.first + l;  // what enters a block left the one before it
        return {index, index == 0 ? first_layer : s.description_.block_name + std::to_string(index - 1)};
      }
    if constexpr (requires { s.description_.out.norm.name; })
      for (int slot = 0; s.is_last() && !s.again_.of_end().any() && slot < s.slots(); ++slot) {
        auto c = s.run_of({s.max_samples_, Stage::rows_type::of_sample(s.config_)});
        s.at_end(c, s.memory_.end_saved(slot) + s.at_.stream, nullptr);
        using head = typename Stage::template call_type<typename Stage::out_layer>;
        if (!compute::all_finite(*s.backend_, head(s.at_.out, c).vector(layers::normed{})))
          return {static_cast<int>(s.description_.count) + 1, s.description_.out.norm.name};
      }
    return {};
  }
};

}  // namespace detail
}  // namespace heddle::inline v0::model
