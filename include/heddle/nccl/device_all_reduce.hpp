// heddle/nccl/device_all_reduce.hpp: an all-reduce as one kernel (not run on a GPU).
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/collectives.hpp>
#include <heddle/core/op_traits.hpp>
#include <heddle/core/text.hpp>
#include <heddle/nccl/communicator.hpp>
#include <heddle/nccl/device_comm.hpp>
#include <heddle/nccl/peer_fold.hpp>
#include <heddle/nccl/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace heddle::inline v0 {

namespace detail {

// A call of a communicator that is a kernel, as those that are calls of NCCL's begin and end.
struct nccl_call_of_kernel {
  template <class T, class Launch>
  static void run(nccl_communicator& comm, comm_operation what, std::int64_t count, std::uint64_t hash,
                  const Launch& launch) {
    static_cast<void>(comm.begin<T>(what, count, count, -1, ncclNumOps, hash));
    if (count > 0) launch();
    comm.complete();
  }
};

// Where elements are in a window of the communicator, and which of its windows that is.
struct numbered_place {
  nccl_place place;
  std::int64_t number;
};
inline std::optional<numbered_place> place_in_window(const nccl_channel& channel, const void* memory,
                                                     std::size_t bytes) {
  const nccl_registered* const window = channel.window_of(memory, bytes);
  if (window == nullptr) return std::nullopt;
  return numbered_place{
      {window->window, static_cast<std::size_t>(static_cast<const std::byte*>(memory) - window->begin)},
      window->number};
}

}  // namespace detail

namespace algo {

/// An all_reduce as one kernel over NCCL's device API: `all_reduce<algo::nccl_device_all_reduce<32>>(comm, x, plus{})`. Each rank folds a
/// share of the elements, read from all ranks, and writes it to all: two of the device communicator's barriers, of which it has one for each
/// block, by type. Any trivially copyable element and any operator whose elements do not depend on each other; they are
/// folded in the order of the ranks, as between threads, so that all ranks, and every number of blocks, have the same bits.
/// Inputs and outputs lie in windows of the communicator (`nccl_windows`), at one offset on all ranks. Where they do not, where ranks are not all in one
/// LSA team or NCCL has no device API for them, or in an open `nccl_group`, the call is the communicator's own, `ncclAllReduce`.
/// Errors: `comm_error` where it would be that and NCCL does not fold these elements or this operator.
/// In files that nvcc compiles, with NCCL 2.28 or later. The first call of a communicator makes its device communicator.
template <int Blocks = 32, int Threads = 512>
struct nccl_device_all_reduce {
  using communicator = nccl_communicator;
  static constexpr auto stored_name = heddle::v0::detail::name_with("nccl_device_all_reduce", Blocks, Threads);
  static constexpr std::string_view name = stored_name;

  template <class T, class Op>
  static void all_reduce(nccl_communicator& comm, std::span<const T> x, std::span<T> y, const Op& op) {
    namespace impl = heddle::v0::detail;
    constexpr bool cuts = op_traits<Op>::elementwise;
    static_assert(cuts, "heddle: this algorithm cuts the vector, and the operator declares elementwise = false");
    if constexpr (cuts) {
      impl::nccl_channel& channel = *comm.channel();
      const auto from = impl::place_in_window(channel, x.data(), x.size_bytes());
      const auto to = impl::place_in_window(channel, y.data(), y.size_bytes());
      const bool grouped = channel.grouped(), in_windows = from.has_value() && to.has_value();
      if (!grouped && in_windows && nccl_one_lsa_team(comm) && impl::nccl_device_state_of(channel, Blocks) != nullptr) {
        const std::int64_t places[] = {Blocks, from->number, static_cast<std::int64_t>(from->place.offset), to->number,
                                       static_cast<std::int64_t>(to->place.offset)};
        const auto count = static_cast<std::int64_t>(x.size());
        impl::nccl_call_of_kernel::run<T>(comm, comm_operation::all_reduce, count, impl::hash_of(places), [&] {
          launch_with_barriers(nccl_grid<Blocks, Threads>{}, nccl_device_comm<Blocks>(comm), comm.stream(),
                               impl::peer_fold<T, Op, impl::nccl_place>{op, count, from->place, to->place});
        });
      } else if constexpr (nccl_operator<Op> != ncclNumOps && nccl_type<T> != ncclNumTypes) {
        comm.all_reduce(x, y, op);
      } else {
        channel.refuse(text_of(
            {"all_reduce by ", name, ": NCCL itself does not fold these elements with this operator, and ",
             grouped       ? "a group of calls is open"
             : !in_windows ? "they are not in registered windows of the communicator (nccl_windows)"
                           : "NCCL has no device API here: not all ranks are in one LSA team, GPUs that load and store "
                             "each other's memory, or the library is not the header's"}));
      }
    }
  }
};

}  // namespace algo
}  // namespace heddle::inline v0
