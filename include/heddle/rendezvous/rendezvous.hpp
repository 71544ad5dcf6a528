// heddle/rendezvous/rendezvous.hpp: the rendezvous interface: bytes before communicators.
#pragma once

#include <heddle/comm/options.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// The ranks of a job, before they have a transport: rank r of n. A rendezvous carries small things (the unique id of an
/// NCCL communicator, an address), messages of the control plane, and the news that a rank has failed. `file_rendezvous`,
/// `tcp_rendezvous` and `memory_rendezvous` are meeting places without MPI; `communicator_rendezvous` uses a communicator
/// that is there. One of another kind that has no `give` and `take` has no control plane.
class rendezvous : uncopyable {
 public:
  virtual ~rendezvous() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// Hands the bytes of `members[0]` to all other members, all of which call this with the same key and as many bytes.
  /// A key is used once by a set of members. `members` are ranks. Errors: `comm_error` if a member does not come in time,
  /// `aborted_error` if a rank has announced a failure.
  virtual void share(const std::string& key, std::span<const int> members, std::span<std::byte> bytes) = 0;
  /// Leaves a message for rank `to` under a key; each key is used once. Returns at once.
  virtual void give(const std::string& key, int to, std::span<const std::byte> bytes);
  /// Takes the message that rank `from` has left for this one under that key, and forgets it. Waits for it at most as long
  /// as `patience`, roughly; false if it has not come. Errors: `aborted_error` if it has not come and a rank has
  /// announced a failure.
  virtual bool take(const std::string& key, int from, std::vector<std::byte>& bytes,
                    std::chrono::milliseconds patience);
  /// Tells all ranks that this one has failed, and why; the first announcement stays.
  virtual void announce(const std::string& text) noexcept = 0;
  /// What was announced first, or what is known to be wrong with another rank; empty while all is well.
  virtual std::string failure() = 0;
};

namespace detail {
[[noreturn]] inline void refuse_messages() {
  throw comm_error(
      "heddle: this rendezvous carries no messages, which the control plane of a world is made of: give it the members "
      "give and take");
}
}  // namespace detail

inline void rendezvous::give(const std::string&, int, std::span<const std::byte>) {
  detail::refuse_messages();
}
inline bool rendezvous::take(const std::string&, int, std::vector<std::byte>&, std::chrono::milliseconds) {
  detail::refuse_messages();
}

namespace detail {

/// A point in time to give up at; never, for a timeout of zero.
class deadline {
 public:
  using clock = std::chrono::steady_clock;
  explicit deadline(std::chrono::milliseconds timeout) : timeout_(countable(timeout)), end_(clock::now() + timeout_) {}
  bool passed() const { return timeout_.count() > 0 && clock::now() >= end_; }
  /// How long to sleep next: at most `slice`, nothing once the time is over.
  std::chrono::milliseconds rest(std::chrono::milliseconds slice) const {
    if (timeout_.count() <= 0) return slice;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - clock::now());
    return (std::max)(std::chrono::milliseconds(0), (std::min)(slice, left + std::chrono::milliseconds(1)));
  }
  std::string text() const {
    std::string out = std::to_string(timeout_.count());
    out += " ms";
    return out;
  }

 private:
  std::chrono::milliseconds timeout_;
  clock::time_point end_;
};

HEDDLE_INLINE void require_rank_of(const char* what, int rank, int size);

HEDDLE_INLINE std::string absent_ranks(const std::vector<int>& ranks);

/// A rendezvous that keeps values under keys: `put` once, `get` waits until the value is there.
class keyed_rendezvous : public rendezvous {
 public:
  void share(const std::string& key, std::span<const int> members, std::span<std::byte> bytes) final {
    if (members.size() < 2) return;
    std::string full = key;  // two sets of members may use one name
    full += '@';
    for (const int m : members) {
      full += std::to_string(m);
      full += ',';
    }
    if (members.front() == rank()) {
      put(full, bytes);
      return;
    }
    const std::vector<std::byte> value = get(full, members.front());
    if (value.size() != bytes.size()) {
      throw comm_error(text_of({"heddle: rank ", members.front(), " gave ", value.size(), " bytes for \"", key,
                                "\", rank ", rank(), " expects ", bytes.size()}));
    }
    std::copy(value.begin(), value.end(), bytes.begin());
  }

  void give(const std::string& key, int to, std::span<const std::byte> bytes) final {
    put(message_key(key, rank(), to), bytes);
  }
  bool take(const std::string& key, int from, std::vector<std::byte>& bytes, std::chrono::milliseconds patience) final {
    return draw(message_key(key, from, rank()), bytes, patience);
  }

  /// Stores a value; once per key.
  virtual void put(const std::string& key, std::span<const std::byte> value) = 0;
  /// The value of a key, which `giver` is to store.
  virtual std::vector<std::byte> get(const std::string& key, int giver) = 0;
  /// Takes a value out of the store; false if it does not come within `patience`.
  virtual bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) = 0;

 protected:
  static std::string message_key(const std::string& key, int from, int to);
  [[noreturn]] static void absent(int rank, const deadline& until, const std::string& place, const std::string& key,
                                  int giver);
};

}  // namespace detail
}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/rendezvous.hpp>
#endif
