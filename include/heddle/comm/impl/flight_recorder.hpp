// heddle/comm/impl/flight_recorder.hpp: bodies of heddle/comm/flight_recorder.hpp.
#pragma once

#include <heddle/comm/flight_recorder.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::detail {

// Behind all stores before it, for readers of the file. `std::atomic_ref` would be three classes that every program instantiates.
inline void store_last(volatile std::uint32_t& to, std::uint32_t value) noexcept {
  std::atomic_thread_fence(std::memory_order_release);
  to = value;
}
inline void store_last(volatile std::uint64_t& to, std::uint64_t value) noexcept {
  std::atomic_thread_fence(std::memory_order_release);
  to = value;
}
inline void store_last(volatile std::int64_t& to, std::int64_t value) noexcept {
  std::atomic_thread_fence(std::memory_order_release);
  to = value;
}

HEDDLE_INLINE flight_place flight_place_of(const std::string& folder, int calls) {
  flight_place place{folder, calls};
  if (const char* const text = std::getenv("HEDDLE_FLIGHT"); place.folder.empty() && text != nullptr && *text != 0) {
    place.folder = text;
    const std::size_t colon = place.folder.rfind(':');
    if (colon != std::string::npos && place.folder.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
        colon + 1 < place.folder.size() && place.folder.size() - colon < 9) {
      place.calls = std::atoi(place.folder.c_str() + colon + 1);
      place.folder.resize(colon);
    }
  }
  if (!place.folder.empty() && place.calls < 1)
    throw config_error("heddle: a flight file should keep at least 1 call, flight_calls is " +
                       std::to_string(place.calls));
  return place;
}

HEDDLE_INLINE std::int64_t flight_time() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

#if defined(__linux__)

HEDDLE_INLINE flight_recorder::flight_recorder(const flight_place& place, std::int64_t run_ns, int rank, int ranks) {
  const auto refuse = [](const std::string& path) {
    throw io_error("heddle: the flight file " + path + " cannot be made: " + std::generic_category().message(errno));
  };
  if (::mkdir(place.folder.c_str(), 0777) != 0 && errno != EEXIST) refuse(place.folder);
  const std::string path = place.folder + "/rank-" + std::to_string(rank) + ".flight";
  // A world has few groups of many ranks, or many of few.
  const std::uint32_t groups = 64, members = 1024 + 8 * static_cast<std::uint32_t>(ranks);
  const auto calls = static_cast<std::uint32_t>(place.calls);
  static_assert((sizeof(flight_header) + 64 * sizeof(flight_group)) % alignof(flight_call) == 0);
  bytes_ = sizeof(flight_header) + groups * sizeof(flight_group) + members * sizeof(std::int32_t) +
           calls * sizeof(flight_call);
  // A run that has the file of this name mapped keeps it.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) refuse(path);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) refuse(path);
  // All blocks are there before the first call: a store to a page that the disk has no room for would end the process.
  if (const int full = ::posix_fallocate(file, 0, static_cast<::off_t>(bytes_)); full != 0) {
    ::close(file);
    errno = full;
    refuse(path);
  }
  void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int problem = errno;
  ::close(file);
  if (at == MAP_FAILED) {
    errno = problem;
    refuse(path);
  }
  header_ = static_cast<flight_header*>(at);
  groups_ = reinterpret_cast<flight_group*>(header_ + 1);
  members_ = reinterpret_cast<std::int32_t*>(groups_ + groups);
  calls_ = reinterpret_cast<flight_call*>(members_ + members);
  header_->version = flight_header::right_version;
  header_->rank = rank;
  header_->ranks = ranks;
  header_->groups = groups;
  header_->members = members;
  header_->calls = calls;
  header_->run_ns = run_ns;
  header_->clock_ahead_ns = flight_time() - now_ns();
  header_->pid = static_cast<std::int32_t>(::getpid());
  char host[64] = {};
  if (::gethostname(host, sizeof host - 1) == 0) put_text(header_->host, sizeof header_->host, host);
  if (const int boot = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); boot >= 0) {
    char text[40] = {};
    if (::read(boot, text, sizeof text - 1) > 0) put_text(header_->boot, sizeof header_->boot, text);
    ::close(boot);
  }
  std::atomic_thread_fence(std::memory_order_release);
  header_->magic = flight_header::right_magic;
}

HEDDLE_INLINE flight_recorder::~flight_recorder() {
  if (header_ != nullptr) ::munmap(header_, bytes_);
}

#else

HEDDLE_INLINE flight_recorder::flight_recorder(const flight_place&, std::int64_t, int, int) {
  throw config_error(
      "heddle: flight files are mapped into memory, which this system is not asked for; leave `flight` empty");
}
HEDDLE_INLINE flight_recorder::~flight_recorder() = default;

#endif

HEDDLE_INLINE std::uint32_t flight_recorder::group(std::string_view name, const std::vector<int>& members) {
  flight_group mine{};
  put_text(mine.name, sizeof mine.name, name);
  const std::uint32_t used = header_->groups_used;
  const std::size_t bytes = members.size() * sizeof(std::int32_t);
  static_assert(sizeof(int) == sizeof(std::int32_t));
  for (std::uint32_t g = 0; g < used; ++g)
    if (std::memcmp(groups_[g].name, mine.name, sizeof mine.name) == 0 && groups_[g].members == members.size() &&
        std::memcmp(members.data(), members_ + groups_[g].first_member, bytes) == 0)
      return g;
  // The last one has no members: of groups for which there is no room.
  const bool fits = used + 1 < header_->groups && header_->members_used + members.size() <= header_->members;
  if (!fits && used == header_->groups) return used - 1;
  if (!fits) put_text(mine.name, sizeof mine.name, "others");
  mine.first_member = header_->members_used;
  mine.members = fits ? static_cast<std::uint32_t>(members.size()) : 0;
  if (fits) std::memcpy(members_ + header_->members_used, members.data(), bytes);
  header_->members_used += mine.members;
  groups_[used] = mine;
  store_last(header_->groups_used, used + 1);
  return used;
}

HEDDLE_INLINE flight_call& flight_recorder::enter(std::uint32_t group, const call_info& call,
                                                  std::int64_t number_in_group) noexcept {
  const std::uint64_t number = header_->calls_made + 1;
  flight_call& c = calls_[(number - 1) % header_->calls];
  store_last(c.number, 0);
  std::atomic_thread_fence(std::memory_order_release);
  c.call = number_in_group;
  c.count = call.count;
  c.mark = call.mark;
  c.counts_hash = call.counts_hash;
  c.entered_ns = now_ns();
  c.left_ns = 0;
  c.group = group;
  c.root = call.root;
  c.tag = call.tag;
  c.operation = static_cast<std::uint8_t>(call.what);
  c.started = call.started ? 1 : 0;
  c.element_size = static_cast<std::uint16_t>(call.element_size);
  put_text(c.element, sizeof c.element, call.element);
  put_text(c.combine, sizeof c.combine, call.combine);
  store_last(c.number, number);
  store_last(header_->calls_made, number);
  return c;
}

HEDDLE_INLINE void flight_recorder::leave(flight_call& call) noexcept {
  store_last(call.left_ns, now_ns());
}

HEDDLE_INLINE void flight_recorder::ended(const std::exception_ptr& problem) noexcept {
  if (problem != nullptr) {
    try {
      put_text(header_->problem, sizeof header_->problem, what_of(problem));
    } catch (...) {  // no memory for the text
    }
  }
  store_last(header_->state, problem != nullptr ? flight_header::failed : flight_header::returned);
}

HEDDLE_INLINE void flight_scope::begin(flight_recorder& to, int& group, std::string_view name,
                                       const std::vector<int>& members, const call_info& call, std::int64_t number) {
  if (group < 0) group = static_cast<int>(to.group(name, members));
  exceptions_ = std::uncaught_exceptions();
  call_ = &to.enter(static_cast<std::uint32_t>(group), call, number);
}

}  // namespace heddle::inline v0::detail
