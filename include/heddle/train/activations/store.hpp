// heddle/train/activations/store.hpp: the concept of a store of activations.
#pragma once

#include <heddle/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::activations {

/// What a store is told at start-up. Those that keep nothing in files use what concerns them.
struct store_options {
  std::vector<std::string> directories{};  ///< of the files, used in turn (several drives); empty: the system's for
                                           ///< temporary files
  bool direct = true;                      ///< past the page cache, where the file system and the alignment allow it
  int threads = 1;                         ///< that write, and as many that read
};

/// What offloading is told at start-up.
struct offload_settings {
  store_options store{};
  bool keep_last = false;       ///< the last layer stays; also where every backward directly follows its forward
  double bytes_per_second = 0;  ///< of the store, for `amount::adaptive`; 0: as measured, again and again
  bool verify = false;          ///< compare what comes back, by checksums: slow
  /// A layer stays in memory when with it more bytes than these would wait to be written. 0: as many as the policy's
  /// amount takes to be good: with `amount::adaptive` as can be written, and the layer read, before its backward.
  std::int64_t most_waiting_bytes = 0;
};

/// What a store has done, counted. Times are those in which at least one write, or read, was under way.
struct store_counters {
  std::int64_t stores = 0;
  std::int64_t loads = 0;
  std::int64_t cancelled = 0;  ///< stores that were taken back before they began
  std::int64_t bytes_written = 0;
  std::int64_t bytes_read = 0;
  std::int64_t bytes_direct = 0;  ///< of both, past the page cache
  double write_seconds = 0;
  double read_seconds = 0;
  std::string_view moved_by{};  ///< what moves the bytes, where the store says so: "threads", "io_uring", ..
};

/// Takes activations and gives them back, while the computation goes on. The caller chooses the ids: small numbers that
/// are used again. One operation of an id at a time; the memory belongs to the store until the operation has ended.
/// - `store(id, bytes)` starts to write, `load(id, bytes)` to read as many as were stored under this id; both return.
/// - `finished(id)`: whether the last operation of this id has ended; `wait(id)` returns when it has. Both throw
///   `io_error` if it failed, once; so may `store` and `load`. What has failed leaves the memory as it was, and nothing
///   under this id (`store`), or the memory undefined (`load`).
/// - `cancel(id)` takes back a `store` that has not begun: true if nothing of it is or will be written. Then the memory
///   is the caller's again and nothing is stored under this id. False leaves everything as it was.
/// - `forget(id)`: what is stored under this id, if anything is, is not needed any more. Not while an operation of it
///   is under way.
/// One thread calls at a time. The destructor waits for what is under way.
/// The memory is the host's: `offloaded_layers` copies to it and from it what lies elsewhere.
template <class S>
concept activation_store = requires(S& s, const S& c, int id, std::span<const std::byte> out, std::span<std::byte> in) {
  s.store(id, out);
  s.load(id, in);
  { s.finished(id) } -> std::convertible_to<bool>;
  s.wait(id);
  { s.cancel(id) } -> std::convertible_to<bool>;
  s.forget(id);
  { c.counters() } -> std::convertible_to<store_counters>;
};

}  // namespace heddle::inline v0::activations
