// heddle/train/activations/cache.hpp: activations that are offloaded and brought back.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/train/activations/memory.hpp>
#include <heddle/train/activations/store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::activations {

/// What a cache has done, counted in tensors, and in bytes and seconds where the name says so.
/// Every tensor that was stored is loaded or forwarded, or its backward never came. The store has written all of them
/// but those that were cancelled.
struct cache_counters {
  std::int64_t stored = 0;  ///< given to the store
  std::int64_t bytes_stored = 0;
  std::int64_t loaded = 0;
  std::int64_t bytes_loaded = 0;
  std::int64_t forwarded = 0;  ///< served from memory: the store was not done with them, or somebody else held them
  std::int64_t bytes_forwarded = 0;
  std::int64_t cancelled = 0;  ///< forwarded, or not needed any more, before their write began: never written
  std::int64_t bytes_cancelled = 0;
  std::int64_t kept = 0;  ///< not given to the store
  std::int64_t bytes_kept = 0;
  std::int64_t repeated = 0;  ///< saved again by another user: not stored again
  std::int64_t stalls = 0;    ///< how often a backward waited for its load
  double stall_seconds = 0;
};

/// Between the forward, which saves tensors, and the backward, which uses them again. A saved tensor goes to the store,
/// and its memory is free as soon as the store has it and nobody else holds it. It comes back when it is asked for; what
/// is still in memory then is used from there (forwarding), and need not be written if that has not begun. A tensor is
/// known by the stamp of its memory and its place in it: saved twice, it is stored once; other data at the same address
/// are another tensor.
///
/// Tensors belong to scopes (a layer of a microbatch): `prefetch(scope)` brings back what it needs, `end(scope)` lets
/// go of what no other scope needs.
///
/// So a store that is too slow costs little memory: at any time the cache holds tensors between their saving and the
/// end of their last scope, and beside them only those whose write the store is at.
///
/// One thread. After an exception only `reset` and the destructor may be called. Both wait for what the store is at.
/// Errors: those of the store, at the first call after they happened, `prefetch` and `end` included.
/// Source: Wu et al., arXiv:2408.10013 (SSDTrain), the tensor cache.
template <activation_store Store>
class cache {
 public:
  /// Tensors of less than `min_bytes` are kept. With `verify` every tensor's bytes are compared, by a checksum, between
  /// its saving and its use: slow, for tests and for the search for whoever writes over saved tensors.
  cache(Store& store, memory& from, std::int64_t min_bytes = 0, bool verify = false)
      : store_(store), memory_(from), min_bytes_(min_bytes), verify_(verify) {}
  cache(const cache&) = delete;
  cache& operator=(const cache&) = delete;
  ~cache() { reset(); }

  /// Saves `bytes`, a part of the memory `at`, for `scope`; returns the number to ask for it. With `keep` it stays in
  /// memory. The caller gives up its own lease when it does not read the tensor any more.
  int save(const memory::lease& at, std::span<const std::byte> bytes, int scope, bool keep = false) {
    collect();
    const identity who{at.mark().index, at.mark().stamp, bytes.data() - at.bytes().data(), bytes.size()};
    const auto known = ids_.find(who);
    if (known != ids_.end()) {
      ++counters_.repeated;
      use_in(scope, known->second);
      return known->second;
    }
    const int id = free_id();
    entry& e = entries_[static_cast<std::size_t>(id)];
    e = entry{};
    e.who = who;
    if (verify_) e.checksum = checksum(bytes);
    if (keep || static_cast<std::int64_t>(bytes.size()) < min_bytes_) {
      e.held = at;
      e.offset = static_cast<std::size_t>(std::get<2>(who));
      e.at = state::kept;
      ++counters_.kept;
      counters_.bytes_kept += static_cast<std::int64_t>(bytes.size());
    } else {
      store_.store(id, bytes);
      e.writing = at;
      e.at = state::stored;
      writing_.push_back(id);
      waiting_bytes_ += static_cast<std::int64_t>(bytes.size());
      ++counters_.stored;
      counters_.bytes_stored += static_cast<std::int64_t>(bytes.size());
    }
    ids_.emplace(who, id);
    use_in(scope, id);
    collect();  // a store may be that fast
    return id;
  }

  /// Begins to bring back all that a scope needs.
  void prefetch(int scope) {
    collect();
    const std::vector<int>& ids = scopes_[scope];
    for (std::size_t i = ids.size(); i-- > 0;) bring_back(ids[i]);
  }

  /// Where a tensor is until its last scope ends. Waits for it; time that this takes is counted as stall.
  std::span<std::byte> use(int id) {
    collect();
    bring_back(id);
    entry& e = entries_[static_cast<std::size_t>(id)];
    if (e.at == state::loading) {
      if (!store_.finished(id)) {
        const std::int64_t begin = now_ns();
        store_.wait(id);
        counters_.stall_seconds += 1e-9 * static_cast<double>(now_ns() - begin);
        ++counters_.stalls;
      }
      e.at = state::there;
    }
    const std::span<std::byte> bytes = e.held.bytes().subspan(e.offset, e.size());
    if (verify_ && checksum(bytes) != e.checksum)
      throw io_error("heddle: saved activations of " + std::to_string(bytes.size()) +
                     " bytes are not what they were: something wrote over them, or the store gave back other data");
    return bytes;
  }

  /// The scope's backward has ended.
  void end(int scope) {
    collect();
    const auto found = scopes_.find(scope);
    if (found == scopes_.end()) return;
    for (const int id : found->second) {
      entry& e = entries_[static_cast<std::size_t>(id)];
      if (--e.users > 0) continue;
      if (e.at == state::loading) store_.wait(id);  // asked for, never used
      ids_.erase(e.who);
      e.held = {};
      take_back(id);
      if (!e.writing) retire(id);  // else when the write has ended
    }
    scopes_.erase(found);
  }

  /// Lets go of the memory of what the store has by now; every call but this one begins with it.
  void collect() {
    for (std::size_t i = 0; i < writing_.size();) {
      const int id = writing_[i];
      if (!store_.finished(id)) {
        ++i;
        continue;
      }
      writing_.erase(writing_.begin() + static_cast<std::ptrdiff_t>(i));
      entry& e = entries_[static_cast<std::size_t>(id)];
      waiting_bytes_ -= static_cast<std::int64_t>(e.size());
      e.writing = {};
      if (e.users == 0) retire(id);
    }
  }

  /// Bytes that the store has been given and has not written yet.
  std::int64_t waiting_bytes() const noexcept { return waiting_bytes_; }

  /// Forgets everything. For the end, and for going on after an error.
  void reset() noexcept {
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      entry& e = entries_[id];
      if (e.at == state::unused) continue;
      for (int once_more = 0; once_more < 2; ++once_more) try {
          take_back(static_cast<int>(id));
          if (e.at == state::kept) break;
          store_.wait(static_cast<int>(id));
          store_.forget(static_cast<int>(id));
          break;
        } catch (...) {  // its error is of something that is given up here
        }
      e = entry{};
    }
    ids_.clear();
    scopes_.clear();
    writing_.clear();
    waiting_bytes_ = 0;
    unused_.clear();
    for (std::size_t id = entries_.size(); id-- > 0;) unused_.push_back(static_cast<int>(id));
  }

  /// Whether a scope has tensors that are neither in memory nor on their way.
  bool is_away(int scope) {
    const auto found = scopes_.find(scope);
    if (found == scopes_.end()) return false;
    for (const int id : found->second) {
      const entry& e = entries_[static_cast<std::size_t>(id)];
      if (e.at == state::stored && !e.writing) return true;
    }
    return false;
  }
  /// The memory of a tensor that `use` gave, for who reads it beyond the end of its last scope.
  memory::lease holding(int id) const { return entries_[static_cast<std::size_t>(id)].held; }
  const cache_counters& counters() const noexcept { return counters_; }
  Store& store() noexcept { return store_; }

 private:
  enum class state { unused, kept, stored, loading, there };
  using identity = std::tuple<std::size_t, std::uint64_t, std::ptrdiff_t, std::size_t>;

  struct entry {
    identity who{};
    state at = state::unused;
    int users = 0;
    std::size_t offset = 0;
    memory::lease writing{};  ///< while the store reads it
    memory::lease held{};     ///< while the backward may read it
    std::uint64_t checksum = 0;
    std::size_t size() const noexcept { return std::get<3>(who); }
  };

  int free_id() {
    if (unused_.empty()) {
      entries_.emplace_back();
      return static_cast<int>(entries_.size()) - 1;
    }
    const int id = unused_.back();
    unused_.pop_back();
    return id;
  }
  void use_in(int scope, int id) {
    std::vector<int>& ids = scopes_[scope];
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) return;
    ids.push_back(id);
    ++entries_[static_cast<std::size_t>(id)].users;
  }
  void retire(int id) {
    entry& e = entries_[static_cast<std::size_t>(id)];
    if (e.at != state::kept) store_.forget(id);  // does nothing if the write was cancelled
    e = entry{};
    unused_.push_back(id);
  }

  // What nobody will read from the store need not be written.
  void take_back(int id) {
    entry& e = entries_[static_cast<std::size_t>(id)];
    if (!e.writing || !store_.cancel(id)) return;
    writing_.erase(std::find(writing_.begin(), writing_.end(), id));
    e.writing = {};
    const auto bytes = static_cast<std::int64_t>(e.size());
    waiting_bytes_ -= bytes;
    ++counters_.cancelled;
    counters_.bytes_cancelled += bytes;
  }

  void bring_back(int id) {
    entry& e = entries_[static_cast<std::size_t>(id)];
    if (e.at != state::stored) return;
    const auto bytes = static_cast<std::int64_t>(e.size());
    e.held = memory_.again({std::get<0>(e.who), std::get<1>(e.who)});
    if (e.held) {
      e.offset = static_cast<std::size_t>(std::get<2>(e.who));
      e.at = state::there;
      ++counters_.forwarded;
      counters_.bytes_forwarded += bytes;
      take_back(id);
    } else {
      e.held = memory_.take(bytes);
      e.offset = 0;
      store_.load(id, e.held.bytes());
      e.at = state::loading;
      ++counters_.loaded;
      counters_.bytes_loaded += bytes;
    }
  }

  static std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
    std::uint64_t h = 14695981039346656037u;  // FNV-1a
    for (const std::byte b : bytes) h = (h ^ static_cast<std::uint64_t>(b)) * 1099511628211u;
    return h;
  }

  Store& store_;
  memory& memory_;
  std::int64_t min_bytes_;
  bool verify_;
  std::deque<entry> entries_;
  std::vector<int> unused_;
  std::vector<int> writing_;  // in the order of their saving
  std::int64_t waiting_bytes_ = 0;
  std::map<identity, int> ids_;
  std::map<int, std::vector<int>> scopes_;
  cache_counters counters_;
};

}  // namespace heddle::inline v0::activations
