// heddle/comm/argument_checks.hpp: argument checks of communicators, for all transports.
#pragma once

#include <heddle/comm/blocks.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0::detail {

// Base of a communicator. Comparisons are inline, what happens when they fail is not.
template <class Comm>
class argument_checks {
 protected:
  template <class T>
  static std::int64_t length(std::span<T> x) {
    return static_cast<std::int64_t>(x.size());
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail(const std::string& text) const {
    throw comm_error(
        text_of({"heddle: rank ", self().world_rank(self().rank()), " on communicator (", self().name(), "): ", text}));
  }
  void require_root(int root) const {
    if (root < 0 || root >= self().size()) fail_root(root);
  }
  void require_peer(const char* what, const char* side, int peer) const {
    if (peer < 0 || peer >= self().size()) fail_peer(what, side, peer);
  }
  void require_length(const char* what, const char* side, std::int64_t got, std::int64_t expected) const {
    if (got != expected) fail_length(what, side, got, expected);
  }
  void require_divides(const char* what, std::int64_t count) const {
    if (count % self().size() != 0) fail_divides(what, count);
  }
  counted_blocks require_counts(const char* what, std::span<const std::int64_t> counts) const {
    if (static_cast<int>(counts.size()) != self().size()) fail_count_of_counts(what, counts.size());
    // The first bit of the sum is set when it first passes what a std::int64_t holds.
    std::uint64_t sum = 0, signs = 0;
    for (const std::int64_t c : counts) {
      sum += static_cast<std::uint64_t>(c);
      signs |= static_cast<std::uint64_t>(c) | sum;
    }
    if ((signs >> 63) != 0) fail_counts(what, counts);
    return {counts.data()};
  }
  // x[x_at...] and y[y_at...] may be the same memory; any other overlap is a mistake.
  template <class T>
  void require_overlap(std::string_view what, std::span<const T> x, std::span<T> y, std::int64_t x_at,
                       std::int64_t y_at) const {
    if (x.empty() || y.empty()) return;
    if (x.data() + x_at == y.data() + y_at) return;
    if (apart<T>(x, y)) return;
    fail_overlap(what, "in and out overlap other than in place");
  }
  template <class T>
  void require_apart(std::string_view what, std::span<const T> x, std::span<T> y) const {
    if (!x.empty() && !apart<T>(x, y)) fail_overlap(what, "in and out overlap");
  }

  // What a collective asks of its two buffers. `what` is its name in errors.
  template <class T>
  void require_vectors(const char* what, std::span<const T> x, std::span<T> y) const {
    require_length(what, "out", length(y), length(x));
    require_overlap<T>(what, x, y, 0, 0);
  }
  // `x` holds a block per rank, `y` the own one.
  template <class T>
  void require_blocks_in(const char* what, std::span<const T> x, std::span<T> y) const {
    require_length(what, "in", length(x), self().size() * length(y));
    require_overlap<T>(what, x, y, self().rank() * length(y), 0);
  }
  template <class T>
  counted_blocks require_blocks_in(const char* what, std::span<const T> x, std::span<T> y,
                                   std::span<const std::int64_t> counts) const {
    return require_counted<T>(what, x, y, counts, true);
  }
  // `y` holds a block per rank, `x` the own one.
  template <class T>
  void require_blocks_out(const char* what, std::span<const T> x, std::span<T> y) const {
    require_length(what, "out", length(y), self().size() * length(x));
    require_overlap<T>(what, x, y, 0, self().rank() * length(x));
  }
  template <class T>
  counted_blocks require_blocks_out(const char* what, std::span<const T> x, std::span<T> y,
                                    std::span<const std::int64_t> counts) const {
    return require_counted<T>(what, x, y, counts, false);
  }
  // Both hold a block per rank.
  template <class T>
  void require_all_to_all(std::span<const T> x, std::span<T> y) const {
    require_length("all_to_all", "out", length(y), length(x));
    require_divides("all_to_all", length(x));
    require_apart<T>("all_to_all", x, y);
  }
  template <class T>
  void require_all_to_all_v(std::span<const T> x, std::span<const std::int64_t> send_counts, std::span<T> y,
                            std::span<const std::int64_t> recv_counts) const {
    const counted_blocks sent = require_counts("all_to_all_v", send_counts);
    const counted_blocks received = require_counts("all_to_all_v", recv_counts);
    require_length("all_to_all_v", "in", length(x), sent.offset(self().size()));
    require_length("all_to_all_v", "out", length(y), received.offset(self().size()));
    require_length("all_to_all_v", "the own block", sent.count(self().rank()), received.count(self().rank()));
    require_apart<T>("all_to_all_v", x, y);
  }

  // Whether the two share no memory. False for some that are empty.
  template <class T>
  static bool apart(std::span<const T> x, std::span<T> y) {
    const auto at = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p); };
    return at(x.data() + x.size()) <= at(y.data()) || at(y.data() + y.size()) <= at(x.data());
  }

 private:
  const Comm& self() const { return static_cast<const Comm&>(*this); }

  // `x`, or else `y`, holds blocks of `counts`, the other one the own block.
  template <class T>
  counted_blocks require_counted(const char* what, std::span<const T> x, std::span<T> y,
                                 std::span<const std::int64_t> counts, bool blocks_in) const {
    const counted_blocks blocks = require_counts(what, counts);
    const std::int64_t all = blocks.offset(self().size()), own = blocks.count(self().rank()),
                       at = blocks.offset(self().rank());
    require_length(what, "in", length(x), blocks_in ? all : own);
    require_length(what, "out", length(y), blocks_in ? own : all);
    require_overlap<T>(what, x, y, blocks_in ? at : 0, blocks_in ? 0 : at);
    return blocks;
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail_root(int root) const {
    fail("root " + std::to_string(root) + " is not one of " + std::to_string(self().size()) + " ranks");
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_peer(const char* what, const char* side, int peer) const {
    fail(std::string(what) + " " + side + " rank " + std::to_string(peer) + ", which is not one of " +
         std::to_string(self().size()) + " ranks");
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_length(const char* what, const char* side, std::int64_t got,
                                                          std::int64_t expected) const {
    fail(std::string(what) + ": " + side + " has " + std::to_string(got) + " elements, expected " +
         std::to_string(expected));
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_divides(const char* what, std::int64_t count) const {
    fail(std::string(what) + ": in has " + std::to_string(count) + " elements, which " + std::to_string(self().size()) +
         " ranks do not divide; use " + what + "_v");
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_count_of_counts(const char* what, std::size_t got) const {
    fail(std::string(what) + ": " + std::to_string(got) + " counts for " + std::to_string(self().size()) + " ranks");
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_counts(const char* what,
                                                          std::span<const std::int64_t> counts) const {
    std::int64_t negative = 0;
    for (const std::int64_t c : counts)
      if (c < 0 && negative == 0) negative = c;
    if (negative == 0)
      fail(std::string(what) + ": the counts add up to more than " +
           std::to_string((std::numeric_limits<std::int64_t>::max)()) + " elements");
    fail(std::string(what) + ": a count of " + std::to_string(negative));
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_overlap(std::string_view what, const char* how) const {
    fail(std::string(what) + ": " + how);
  }
};

}  // namespace heddle::inline v0::detail
