// heddle/comm/threads/block_calls.hpp: reduce_scatter and all_gather of ranks that are threads.
#pragma once

#include <heddle/comm/blocks.hpp>
#include <heddle/comm/communicator.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::detail {

/// Base of a communicator, which it is a friend of: calls its `reduce_scatter_blocks<T>(what, x, y, blocks, op, hash)` and
/// `all_gather_blocks<T>(what, x, y, blocks, count, hash)`.
template <class Comm>
class block_calls {
 public:
  template <class T, class Op>
  void waiting_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    self().template reduce_scatter_blocks<T>(comm_operation::reduce_scatter, x, y, equal_blocks{count_of(y)}, op, 0);
  }
  template <class T, class Op>
  void waiting_reduce_scatter_v(std::span<const T> x, std::span<T> y, std::span<const std::int64_t> counts,
                                const Op& op) {
    self().template reduce_scatter_blocks<T>(comm_operation::reduce_scatter_v, x, y, counted_blocks{counts.data()}, op,
                                             hash_of(counts));
  }
  template <class T>
  void waiting_all_gather(std::span<const T> x, std::span<T> y) {
    self().template all_gather_blocks<T>(comm_operation::all_gather, x, y, equal_blocks{count_of(x)}, count_of(x), 0);
  }
  template <class T>
  void waiting_all_gather_v(std::span<const T> x, std::span<T> y, std::span<const std::int64_t> counts) {
    self().template all_gather_blocks<T>(comm_operation::all_gather_v, x, y, counted_blocks{counts.data()}, count_of(y),
                                         hash_of(counts));
  }

 private:
  Comm& self() { return static_cast<Comm&>(*this); }
  template <class T>
  static std::int64_t count_of(std::span<T> x) {
    return static_cast<std::int64_t>(x.size());
  }
};

}  // namespace heddle::inline v0::detail
