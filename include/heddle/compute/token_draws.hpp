// heddle/compute/token_draws.hpp: samples tokens: request, result, concept of backends.
#pragma once

#include <heddle/tensor/view.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {

/// How one token is drawn: the likeliest (`temperature` 0), or with the temperature, filters and a number in [0, 1). `top_k`: 0 for all. `row`: of the logits.
struct token_draw {
  double temperature = 0;
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;
  std::int64_t top_k = 0;
  std::int64_t row = 0;
  bool log_probability = false;  ///< whether that of the token is wanted
  double log_probability_temperature = 1;  ///< it is of softmax(logits / this)
};

/// What keeps a row of logits from having a token.
enum class token_flaw : std::int32_t { none, not_a_number, nothing_left };

/// A token that was drawn, with its log-probability where it was asked for. With `not_a_number` the first token whose logit is NaN or plus infinity, and that logit.
struct token_drawn {
  double log_probability = 0;
  std::int32_t token = 0;
  token_flaw flaw = token_flaw::none;
};

/// Backends that draw tokens: `draw_tokens(logits, draws, drawn)` draws draws[i] to drawn[i], in the order of the queue.
/// Shapes: logits [rows, vocabulary], draws and drawn of one size.
template <class B, class T>
concept token_drawing_kernels = requires(
    B& backend, matrix_view<const T, typename B::space> logits, row_view<const token_draw, typename B::space> draws,
    row_view<token_drawn, typename B::space> drawn) { backend.draw_tokens(logits, draws, drawn); };

}  // namespace heddle::inline v0::compute
