// heddle/comm/impl/call_info.hpp: bodies of heddle/comm/call_info.hpp.
#pragma once

#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::detail {

HEDDLE_INLINE std::string describe(const call_info& call, const std::vector<int>& members) {
  std::string text(call.started ? "start_" : "");
  text += to_string(call.what);
  const std::string step = call.mark < 0 ? std::string() : " in step " + std::to_string(call.mark);
  if (call.what == comm_operation::split) return text + step;
  if (!call.element.empty())
    text += " of " + (call.count < 0 ? "" : std::to_string(call.count) + " ") + std::string(call.element);
  if (!call.combine.empty()) text += " with " + std::string(call.combine);
  if (!call.memory.empty()) text += " in the memory of " + std::string(call.memory);
  if (is_message(call.what))
    text += (call.what == comm_operation::send ? " to rank " : " from rank ") +
            std::to_string(members[static_cast<std::size_t>(call.root)]) + " (tag " + std::to_string(call.tag) + ")";
  else if (call.root >= 0)
    text += " with root " + std::to_string(call.root);
  return text + step;
}

HEDDLE_INLINE std::string what_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace heddle::inline v0::detail
