// heddle/comm/flight_recorder.hpp: a rank's last calls in a mapped file that outlives the process.
#pragma once

#include <heddle/comm/call_info.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/flight_format.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::detail {

// Where a launch keeps its flight files: `launch_options::flight`, or the environment variable HEDDLE_FLIGHT, "folder" or "folder:256".
struct flight_place {
  std::string folder;  // empty: nowhere
  int calls = 256;
};
// Errors: `config_error` for a number of calls below 1.
HEDDLE_INLINE flight_place flight_place_of(const std::string& folder, int calls);
// Nanoseconds since 1970.
HEDDLE_INLINE std::int64_t flight_time();

// Written by its rank's thread only, with stores and no system call; the kernel keeps the pages of a process that is killed.
class flight_recorder {
 public:
  // Makes folder/rank-3.flight, and the folder where there is none.
  // Errors: `io_error` with the path and the system's text; `config_error` where files cannot be mapped.
  HEDDLE_INLINE flight_recorder(const flight_place& place, std::int64_t run_ns, int rank, int ranks);
  HEDDLE_INLINE ~flight_recorder();
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  // The number of a group, the same for the same name and members; groups beyond the room that there is have the last one.
  HEDDLE_INLINE std::uint32_t group(std::string_view name, const std::vector<int>& members);
  // A call that begins, and where it is to be marked as left. `number`: the how manieth collective of the group it is, 0 of a message.
  HEDDLE_INLINE flight_call& enter(std::uint32_t group, const call_info& call, std::int64_t number) noexcept;
  HEDDLE_INLINE static void leave(flight_call& call) noexcept;
  // The body has ended; `problem`: what it threw, or nothing.
  HEDDLE_INLINE void ended(const std::exception_ptr& problem) noexcept;

 private:
  flight_header* header_ = nullptr;
  flight_group* groups_ = nullptr;
  std::int32_t* members_ = nullptr;
  flight_call* calls_ = nullptr;
  std::size_t bytes_ = 0;
};

// A call of a rank that may have a recorder, from its beginning to the end of the scope. A call that throws is not left: the file
// shows where the rank waited when it gave up.
class flight_scope {
 public:
  // `group`: where the group's number is kept, -1 before its first call. `number`: see `flight_recorder::enter`.
  flight_scope(flight_recorder* to, int& group, std::string_view name, const std::vector<int>& members,
               const call_info& call, std::int64_t number) {
    if (to != nullptr) [[unlikely]]
      begin(*to, group, name, members, call, number);
  }
  flight_scope(const flight_scope&) = delete;
  flight_scope& operator=(const flight_scope&) = delete;
  ~flight_scope() {
    if (call_ != nullptr && std::uncaught_exceptions() <= exceptions_) flight_recorder::leave(*call_);
  }

 private:
  HEDDLE_INLINE void begin(flight_recorder& to, int& group, std::string_view name, const std::vector<int>& members,
                           const call_info& call, std::int64_t number);

  flight_call* call_ = nullptr;
  int exceptions_ = 0;
};

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/flight_recorder.hpp>
#endif
