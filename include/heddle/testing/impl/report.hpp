// heddle/testing/impl/report.hpp: bodies of heddle/testing/report.hpp.
#pragma once

#include <heddle/testing/report.hpp>
#include <heddle/core/config.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0 {
namespace testing {
namespace detail {

HEDDLE_INLINE std::string thrown_text() {
  std::string text = "threw: ";
  try {
    throw;
  } catch (const std::exception& e) {
    text += e.what();
  } catch (...) {
    text += "an exception that is not a std::exception";
  }
  return text;
}

}  // namespace detail
}  // namespace testing
}  // namespace heddle::inline v0

namespace heddle::inline v0 {
namespace testing {

HEDDLE_INLINE std::string to_string(const report& r) {
  if (!r.ok()) return r.what;
  std::string text = "holds in ";
  text += std::to_string(r.cases);
  return text + " cases";
}

HEDDLE_INLINE std::string to_string(const finding& f) {
  std::string text;
  const auto add = [&](const char* name, std::int64_t value) {
    if (value < 0) return;
    if (!text.empty()) text += ", ";
    text += name;
    text += std::to_string(value);
  };
  add("extent ", f.extent);
  add("parts ", f.parts);
  add("rank ", f.rank);
  add("index ", f.at);
  if (!text.empty()) text += ": ";
  text += to_string(f.what);
  const bool out_of_range = f.what == problem::owner_out_of_range || f.what == problem::local_out_of_range ||
                            f.what == problem::global_out_of_range;
  // Of an operator's values there are only the places.
  if (f.what != problem::none && f.what != problem::no_case && f.what < problem::left_identity) {
    text += out_of_range ? ": expected at least 0 and less than " : ": expected ";
    text += std::to_string(f.expected);
    text += ", got ";
    text += std::to_string(f.got);
  }
  return text;
}

HEDDLE_INLINE report report_of(const finding& f, std::string_view where) {
  if (f.ok()) return {true, {}, f.cases};
  std::string text(where);
  text += ": ";
  text += to_string(f);
  return failure(std::move(text), f.cases);
}

}  // namespace testing
}  // namespace heddle::inline v0
