// heddle/compute/rotary_table.hpp: rotary frequencies, also Llama 3.1's; cosines and sines.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// Llama 3.1's stretching of long wavelengths: those above `original / low` positions are stretched by `factor`, those
/// below `original / high` kept, the ones between blended.
struct rotary_scaling {
  double factor = 1;
  double low = 1, high = 4;
  double original = 8192;
  friend constexpr bool operator==(const rotary_scaling&, const rotary_scaling&) = default;
};

/// Every wavelength stretched by `factor`: position interpolation. Source: Chen et al. 2023, arXiv:2306.15595; "linear" in Hugging Face's
/// configurations.
constexpr rotary_scaling linear_scaling(double factor) noexcept {
  return {.factor = factor, .low = 1e300, .high = 1e301, .original = 1};  // no wavelength is short enough to be kept
}

/// Angle per position of each rotating pair: theta^(-2i / rotating), then scaled.
/// Errors: `config_error` for an odd or negative number of elements, or a theta or scaling that is no positive number.
/// Source: Su et al. 2021, arXiv:2104.09864, equation 15; Llama 3.1's reference implementation for the scaling.
inline std::vector<double> rotary_frequencies(std::int64_t rotating, double theta, const rotary_scaling& scaling = {}) {
  if (rotating < 0 || rotating % 2 != 0)
    throw config_error("heddle: rotary_frequencies: the elements that rotate should be an even number, got " +
                       std::to_string(rotating));
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  if (!positive(theta) || !positive(scaling.factor) || !positive(scaling.low) || !positive(scaling.original) ||
      !(scaling.high > scaling.low) || !std::isfinite(scaling.high))
    throw config_error(
        "heddle: rotary_frequencies: theta, factor, low and original should be positive and high above low, "
        "got theta " +
        number_text(theta) + ", factor " + number_text(scaling.factor) + ", low " + number_text(scaling.low) +
        ", high " + number_text(scaling.high) + ", original " + number_text(scaling.original));
  std::vector<double> frequencies(static_cast<std::size_t>(rotating / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotating));
    const double turns = scaling.original * f / (2 * std::numbers::pi);  // of the original length
    if (turns > scaling.high || scaling.factor == 1)
      frequencies[i] = f;
    else if (turns < scaling.low)
      frequencies[i] = f / scaling.factor;
    else {
      const double keep = (turns - scaling.low) / (scaling.high - scaling.low);
      frequencies[i] = (1 - keep) * f / scaling.factor + keep * f;
    }
  }
  return frequencies;
}

/// Cosines and sines of `positions` rows, times `size`: what `rotary` reads. Shapes: [positions, frequencies.size()], row-major.
template <class T>
struct rotary_table {
  std::int64_t positions = 0;
  std::int64_t pairs = 0;
  std::vector<T> cos;
  std::vector<T> sin;
  rotary_table(std::int64_t rows, std::span<const double> frequencies, double size = 1)
      : positions(rows), pairs(static_cast<std::int64_t>(frequencies.size())) {
    if (rows < 0)
      throw config_error("heddle: rotary_table: there should be 0 or more positions, got " + std::to_string(rows));
    cos.reserve(static_cast<std::size_t>(rows) * frequencies.size());
    sin.reserve(cos.capacity());
    for (std::int64_t p = 0; p < rows; ++p)
      for (const double f : frequencies) {
        cos.push_back(static_cast<T>(size * std::cos(static_cast<double>(p) * f)));
        sin.push_back(static_cast<T>(size * std::sin(static_cast<double>(p) * f)));
      }
  }
  matrix_view<const T> cosines() const noexcept { return {cos.data(), dynamic_shape<2>(positions, pairs)}; }
  matrix_view<const T> sines() const noexcept { return {sin.data(), dynamic_shape<2>(positions, pairs)}; }
};

}  // namespace heddle::inline v0::compute
