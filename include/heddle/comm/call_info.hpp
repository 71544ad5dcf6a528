// heddle/comm/call_info.hpp: one call of a communicator, as checks compare it and messages name it.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::detail {

// One call as its rank made it: what checked mode compares and what reports print.
struct call_info {
  comm_operation what = comm_operation::barrier;
  std::int64_t count = 0;        // elements, -1 where every rank may have another number
  std::string_view element;      // type name, empty where a call has none
  std::string_view combine;      // operator name
  std::size_t element_size = 0;  // bytes
  int root = -1;                 // rank in the group, of the root or of the other side
  int tag = 0;
  std::uint64_t counts_hash = 0;  // of the counts that must be equal on all ranks
  bool started = false;           // whether it is waited for later

  friend bool operator==(const call_info&, const call_info&) = default;
};

inline bool is_message(comm_operation what) {
  return what == comm_operation::send || what == comm_operation::recv;
}

// "all_reduce of 8 float with plus", "send of 4 double to rank 2 (tag 0)".
inline std::string describe(const call_info& call, const std::vector<int>& members) {
  std::string text(call.started ? "start_" : "");
  text += to_string(call.what);
  if (call.what == comm_operation::split) return text;
  if (!call.element.empty())
    text += " of " + (call.count < 0 ? "" : std::to_string(call.count) + " ") + std::string(call.element);
  if (!call.combine.empty()) text += " with " + std::string(call.combine);
  if (is_message(call.what))
    text += (call.what == comm_operation::send ? " to rank " : " from rank ") +
            std::to_string(members[static_cast<std::size_t>(call.root)]) + " (tag " + std::to_string(call.tag) + ")";
  else if (call.root >= 0)
    text += " with root " + std::to_string(call.root);
  return text;
}

inline std::string what_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace heddle::inline v0::detail
