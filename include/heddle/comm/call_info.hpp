// heddle/comm/call_info.hpp: one call of a communicator, as checks compare it and messages name it.
#pragma once

#include <heddle/core/config.hpp>
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
  std::string_view memory{};      // whose the elements are, empty for the host's
  std::int64_t mark = -1;         // the step that its world is at, see `world::mark`; not of messages

  friend bool operator==(const call_info&, const call_info&) = default;
};

// The same as `a == b`. Where both were made by the same function the names are the same text in the same place.
inline bool same_call(const call_info& a, const call_info& b) noexcept {
  const auto same = [](std::string_view x, std::string_view y) {
    return x.size() == y.size() && (x.data() == y.data() || x == y);
  };
  return a.what == b.what && a.count == b.count && a.element_size == b.element_size && a.root == b.root &&
         a.tag == b.tag && a.counts_hash == b.counts_hash && a.started == b.started && a.mark == b.mark &&
         same(a.element, b.element) && same(a.combine, b.combine) && same(a.memory, b.memory);
}

inline bool is_message(comm_operation what) {
  return what == comm_operation::send || what == comm_operation::recv;
}

// "all_reduce of 8 float with plus in step 13", "send of 4 double to rank 2 (tag 0)".
HEDDLE_INLINE std::string describe(const call_info& call, const std::vector<int>& members);

HEDDLE_INLINE std::string what_of(const std::exception_ptr& problem);

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/call_info.hpp>
#endif
