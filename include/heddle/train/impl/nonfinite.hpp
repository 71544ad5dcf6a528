// heddle/train/impl/nonfinite.hpp: bodies of heddle/train/nonfinite.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/train/nonfinite.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE std::string stopped_by_nonfinite(std::span<const std::int64_t> findings, std::int64_t step, double loss,
                                               double gradient_norm) {
  nonfinite_finding first, one;
  for (std::size_t at = 0; at < findings.size(); at += words_of_finding) {
    std::memcpy(static_cast<void*>(&one), &findings[at], sizeof one);
    if (at == 0 || one.is_closer_than(first)) first = one;
  }
  std::string what = "heddle: step " + std::to_string(step + 1) + " stopped: loss " + number_text(loss) +
                     ", gradient norm " + number_text(gradient_norm);
  switch (first.cause) {
    case nonfinite_finding::weight:
      what += "; the weight " + std::string(first.name) + " was not finite before the step";
      break;
    case nonfinite_finding::activation:
      what += "; first in the activations of " + std::string(first.name);
      break;
    case nonfinite_finding::gradient:
      what += "; first in the gradient of " + std::string(first.name);
      break;
    default:
      what += "; every weight, activation and gradient that is still held is finite: their sum overflowed";
      break;
  }
  if (first.cause != nonfinite_finding::nothing) what += ", rank " + std::to_string(first.rank);
  return what + ". The weights are those before the step";
}

HEDDLE_INLINE std::string words_of_slot(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name + " of";
}
HEDDLE_INLINE std::string fault_of_element(const char* kind, const std::string& name, double value,
                                           std::int64_t element) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  if (std::strcmp(text, "-nan") == 0) std::strcpy(text, "nan");
  return std::string(kind) + " " + name + " has " + text + " in element " + std::to_string(element);
}

}  // namespace heddle::inline v0::train::detail
