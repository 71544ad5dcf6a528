// heddle/model/mixtral_config.hpp: sizes of a Mixtral, and its counts.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/model/config_checks.hpp>
#include <heddle/model/llama_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Mixtral: that of a Llama with `experts` MLPs of `ffn` hidden units in each block, of which a token takes `chosen`.
/// Source: Jiang et al. 2024, arXiv:2401.04088; Hugging Face `MixtralConfig`.
struct mixtral_config : llama_config {
  int experts = 8;
  int chosen = 2;      ///< experts that each token takes
  double balance = 0;  ///< weight of the loss's term for an even choice of experts, in each block

  constexpr mixtral_config() = default;
  constexpr mixtral_config(const llama_config& shape, int how_many = 8, int each = 2)
      : llama_config(shape), experts(how_many), chosen(each) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    const detail::config_checks check{"mixtral_config"};
    check.in_range(1, 65536, {{"experts", experts}});
    check.in_range(1, experts, {{"chosen", chosen}});
    const double d = width, all = static_cast<double>(layers) * experts * (3.0 * d * ffn + d);
    if (all > 0x1p61)
      throw config_error("heddle: the experts of a mixtral_config must have at most 2^61 parameters, got " +
                         std::to_string(all));
    if (!(balance >= 0 && balance <= 1e6))
      throw config_error("heddle: mixtral_config.balance must be a number >= 0, got " + number_text(balance));
  }

  /// Numbers that enter a matrix product for each token: those of a Llama, with `chosen` MLPs and the router.
  constexpr std::int64_t matmul_parameters() const noexcept {
    const std::int64_t d = width;
    return llama_config::matmul_parameters() + layers * ((chosen - 1) * mlp() + experts * d);
  }
  /// Trained numbers where the head is not tied.
  constexpr std::int64_t parameters() const noexcept {
    const std::int64_t d = width;
    return llama_config::parameters() + layers * ((experts - 1) * mlp() + experts * d);
  }
  /// Floating-point operations of one training step per token: as those of a Llama, of the chosen experts.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    return llama_config::flops_per_token(sequence) +
           6.0 * static_cast<double>(matmul_parameters() - llama_config::matmul_parameters());
  }

  friend constexpr bool operator==(const mixtral_config&, const mixtral_config&) = default;
  friend constexpr bool operator==(const mixtral_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const mixtral_config& c) {
    return detail::llama_text("mixtral", c) + " experts=" + std::to_string(c.experts) +
           " chosen=" + std::to_string(c.chosen);
  }

 private:
  constexpr std::int64_t mlp() const noexcept { return std::int64_t{3} * width * ffn; }
};

/// Mixtral 8x7B: of its 46.7 billion parameters 12.9 billion are used for each token.
constexpr mixtral_config mixtral_8x7b() noexcept {
  return llama_config{.layers = 32,
                      .heads = 32,
                      .kv_heads = 8,
                      .width = 4096,
                      .ffn = 14336,
                      .context = 32768,
                      .vocabulary = 32000,
                      .theta = 1000000};
}

/// For tests: sizes that divide by little, five experts.
constexpr mixtral_config mixtral_tiny() noexcept {
  return {{.layers = 2, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 13, .context = 13, .vocabulary = 61}, 5, 2};
}

}  // namespace heddle::inline v0::model
