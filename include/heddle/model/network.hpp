// heddle/model/network.hpp: sizes and initial weights of networks on pairs (x, y).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/pair_batch.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::model {

/// The deviation of initial weights that keeps the size of what passes through: 1 / sqrt(inputs).
/// Source: LeCun et al. 1998, "Efficient backprop", section 4.6.
inline double by_inputs(int inputs) {
  return 1 / std::sqrt(static_cast<double>(inputs));
}

/// Sizes of a network on pairs (x, y): x is a row of numbers, or `context` rows such as the pixels of an image.
struct network_config {
  int inputs = 1;   ///< numbers of a row of x; the channels of a pixel
  int outputs = 1;  ///< numbers of y, or classes
  int layers = 2;   ///< blocks
  int width = 32;   ///< of the residual stream
  int hidden = 64;  ///< units inside a block
  int context = 1;  ///< rows of a sample

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    const auto require = [](const char* name, int value, int least) {
      if (value < least || value > 1048576)
        throw config_error(std::string("heddle: ") + name + " must be " + std::to_string(least) + " to 1048576, got " +
                           std::to_string(value));
    };
    require("inputs", inputs, 1);
    require("outputs", outputs, 1);
    require("layers", layers, 0);
    require("width", width, 1);
    require("hidden", hidden, 1);
    require("context", context, 1);
  }
};
/// `"inputs=4 outputs=1 layers=2 ..."`.
inline std::string to_string(const network_config& c) {
  return "inputs=" + std::to_string(c.inputs) + " outputs=" + std::to_string(c.outputs) +
         " layers=" + std::to_string(c.layers) + " width=" + std::to_string(c.width) +
         " hidden=" + std::to_string(c.hidden) + " context=" + std::to_string(c.context);
}

}  // namespace heddle::inline v0::model
