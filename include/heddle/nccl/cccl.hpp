// heddle/nccl/cccl.hpp: communicators shared with CCCL's algorithms (not run on a GPU).
#pragma once

#include <heddle/nccl/communicator.hpp>
#include <heddle/nccl/group.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#if __has_include(<cuda/functional>)
#include <cuda/functional>
#include <cuda/std/functional>
#endif

namespace heddle::inline v0 {

/// heddle's operator for one of another library, for `cccl_communicator`: for CCCL's own four, where its headers are there, and for those of heddle's that NCCL folds
/// with. `void` for all others; a program specialises it for its own.
template <class Op>
struct operator_of_cccl : std::type_identity<std::conditional_t<nccl_operator<Op> != ncclNumOps, Op, void>> {};
#if __has_include(<cuda/functional>)
template <class T>
struct operator_of_cccl<::cuda::std::plus<T>> : std::type_identity<plus> {};
template <class T>
struct operator_of_cccl<::cuda::std::multiplies<T>> : std::type_identity<multiplies> {};
template <class T>
struct operator_of_cccl<::cuda::maximum<T>> : std::type_identity<maximum> {};
template <class T>
struct operator_of_cccl<::cuda::minimum<T>> : std::type_identity<minimum> {};
#endif

namespace detail {
template <class Op, class T>
concept nccl_folds_for_cccl = !std::is_void_v<typename operator_of_cccl<std::remove_cvref_t<Op>>::type> &&
                              nccl_type<std::remove_cv_t<T>> != ncclNumTypes;
// `cudaStream_t`, or what holds one: cuda::stream_ref, cuda::stream.
template <class S>
concept stream_or_holder = std::convertible_to<S, cudaStream_t> || requires(S s) {
  { s.get() } -> std::convertible_to<cudaStream_t>;
};
template <stream_or_holder S>
cudaStream_t stream_in(const S& stream) {
  if constexpr (std::convertible_to<S, cudaStream_t>)
    return stream;
  else
    return stream.get();
}
}  // namespace detail

/// A heddle communicator with the members that CCCL's communicator concept (cudax, CCCL 3.6: `__communicator` and its `__has_...`) asks for. It owns nothing:
/// the communicator outlives it. Calls are heddle's own, on the stream that is given, so they are counted, compared and fail as heddle's do.
///
///     hd::cccl_communicator comm(world.along<dp>());
///     {
///       auto guard = comm.group_guard();                        // one NCCL group
///       comm.send(guard, x, n, next, stream);
///       comm.recv(guard, y, n, previous, stream);
///     }                                                         // launched
///
/// - counts are elements; those of `void` in `send` and `recv` are bytes; elements of types that NCCL does not know travel as bytes;
/// - reductions take operators that `operator_of_cccl` knows, of elements that NCCL folds;
/// - a guard is one of the communicator it came from: heddle has one communicator per rank, and a rank per thread.
///
/// Errors: `comm_error`, as the communicator's; what goes wrong when a guard ends is thrown by the next call.
/// Source: CCCL 3.6, cuda/experimental/__multi_gpu/concepts.h.
class cccl_communicator {
 public:
  using native_handle_type = ncclComm_t;
  using group_guard_type = nccl_group;

  /// Connects NCCL, if that is not done: all ranks make one together. Errors: `comm_error`.
  explicit cccl_communicator(nccl_communicator& comm) : comm_(&comm), native_(comm.native()) {}

  native_handle_type native_handle() const noexcept { return native_; }
  std::int32_t rank() const noexcept { return comm_->rank(); }
  std::int32_t size() const noexcept { return comm_->size(); }
  [[nodiscard("heddle: the calls are launched where the guard ends")]] group_guard_type group_guard() const {
    return group_guard_type(*comm_);
  }

  template <class T, detail::stream_or_holder Stream>
  void send(group_guard_type&, const T* x, std::size_t count, std::int32_t peer, Stream stream) const {
    require_peer("send", peer);
    put(true, x, nullptr, count, peer, stream);
  }
  template <class T, detail::stream_or_holder Stream>
  void recv(group_guard_type&, T* x, std::size_t count, std::int32_t peer, Stream stream) const {
    require_peer("recv", peer);
    put(false, static_cast<const T*>(nullptr), x, count, peer, stream);
  }

  template <class T, class Op, detail::stream_or_holder Stream>
    requires detail::nccl_folds_for_cccl<Op, T>
  void reduce(group_guard_type&, const T* x, T* y, std::size_t count, Op, std::int32_t root, Stream stream) const {
    on(stream).reduce(std::span<const T>(x, count), std::span<T>(y, rank() == root ? count : 0), operator_for<Op>(),
                      root);
  }
  template <class T, class Op, detail::stream_or_holder Stream>
    requires detail::nccl_folds_for_cccl<Op, T>
  void all_reduce(group_guard_type&, const T* x, T* y, std::size_t count, Op, Stream stream) const {
    on(stream).all_reduce(std::span<const T>(x, count), std::span<T>(y, count), operator_for<Op>());
  }
  template <class T, detail::stream_or_holder Stream>
  void broadcast(group_guard_type&, const T* x, T* y, std::size_t count, std::int32_t root, Stream stream) const {
    nccl_communicator c = on(stream);
    if (rank() == root && x != y)
      comm_->channel()->require_cuda("cudaMemcpyAsync",
                                     cudaMemcpyAsync(y, x, count * sizeof(T), cudaMemcpyDeviceToDevice, c.stream()));
    c.broadcast(std::span<T>(y, count), root);
  }
  template <class T, detail::stream_or_holder Stream>
  void all_gather(group_guard_type&, const T* x, T* y, std::size_t count, Stream stream) const {
    on(stream).all_gather(std::span<const T>(x, count), std::span<T>(y, count * ranks()));
  }
  template <class T, detail::stream_or_holder Stream>
  void gather(group_guard_type&, const T* x, T* y, std::size_t count, std::int32_t root, Stream stream) const {
    on(stream).gather(std::span<const T>(x, count), std::span<T>(y, rank() == root ? count * ranks() : 0), root);
  }
  template <class T, detail::stream_or_holder Stream>
  void all_to_all(group_guard_type&, const T* x, T* y, std::size_t count, Stream stream) const {
    on(stream).all_to_all(std::span<const T>(x, count * ranks()), std::span<T>(y, count * ranks()));
  }

  // With counts and places of their own for each rank, in elements: as messages of the group.
  template <class T, detail::stream_or_holder Stream>
  void gather_v(group_guard_type&, const T* x, std::size_t count, T* y, const std::size_t* counts,
                const std::size_t* places, std::int32_t root, Stream stream) const {
    require_peer("gather_v", root);
    put(true, x, nullptr, count, root, stream);
    if (rank() == root) take_from_all(y, counts, places, stream);
  }
  template <class T, detail::stream_or_holder Stream>
  void all_gather_v(group_guard_type&, const T* x, std::size_t count, T* y, const std::size_t* counts,
                    const std::size_t* places, Stream stream) const {
    for (std::int32_t r = 0; r < size(); ++r) put(true, x, nullptr, count, r, stream);
    take_from_all(y, counts, places, stream);
  }
  template <class T, detail::stream_or_holder Stream>
  void all_to_all_v(group_guard_type&, const T* x, const std::size_t* send_counts, const std::size_t* send_places, T* y,
                    const std::size_t* recv_counts, const std::size_t* recv_places, Stream stream) const {
    for (std::int32_t r = 0; r < size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      put(true, x + send_places[at], nullptr, send_counts[at], r, stream);
    }
    take_from_all(y, recv_counts, recv_places, stream);
  }

 private:
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }
  template <class Stream>
  nccl_communicator on(const Stream& stream) const {
    return comm_->on(detail::stream_in(stream));
  }
  template <class Op>
  static auto operator_for() {
    return typename operator_of_cccl<std::remove_cvref_t<Op>>::type();
  }
  void require_peer(const char* call, std::int32_t peer) const {
    if (peer < 0 || peer >= size())
      throw comm_error("heddle: " + std::string(call) + " on " + comm_->name() + ": rank " + std::to_string(peer) +
                       " of a communicator of " + std::to_string(size()));
  }
  template <class T, class Stream>
  void put(bool sends, const T* from, std::remove_const_t<T>* to, std::size_t count, std::int32_t peer,
           const Stream& stream) const {
    using element = std::conditional_t<std::is_void_v<T>, std::byte, std::remove_cv_t<T>>;
    static_assert(std::is_trivially_copyable_v<element>, "heddle: elements that travel are trivially copyable");
    const auto n = static_cast<std::int64_t>(count);
    comm_->channel()->add({sends, from, to, detail::nccl_moved<element>(n), peer,
                           static_cast<std::int64_t>(count * sizeof(element)), detail::stream_in(stream)});
  }

  template <class T, class Stream>
  void take_from_all(T* y, const std::size_t* counts, const std::size_t* places, const Stream& stream) const {
    for (std::int32_t r = 0; r < size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      put(false, static_cast<const T*>(nullptr), y + places[at], counts[at], r, stream);
    }
  }

  nccl_communicator* comm_;
  ncclComm_t native_;
};

/// A communicator as CCCL has them, over NCCL: cudax's `nccl_communicator`, `nccl_communicator_ref`, or one's own.
template <class C>
concept cccl_communicator_over_nccl = requires(C& c) {
  typename std::remove_cvref_t<C>::group_guard_type;
  { c.native_handle() } -> std::convertible_to<ncclComm_t>;
  { c.rank() } -> std::convertible_to<std::int32_t>;
  { c.size() } -> std::convertible_to<std::int32_t>;
};

/// heddle's communicator of the ranks of `comm`, which somebody else has made, keeps alive and destroys: on `stream`, with every call of heddle's. Errors:
/// `comm_error` where NCCL's handle is none, or has another rank or size than `comm` says.
template <cccl_communicator_over_nccl C>
nccl_communicator borrow_cccl(C& comm, cudaStream_t stream, const launch_options& options = {},
                              nccl_settings settings = {}) {
  nccl_communicator made = nccl_communicator::borrow(comm.native_handle(), stream, options, settings);
  const auto rank = static_cast<std::int32_t>(comm.rank()), size = static_cast<std::int32_t>(comm.size());
  if (made.rank() != rank || made.size() != size)
    throw comm_error("heddle: a communicator that says rank " + std::to_string(rank) + " of " + std::to_string(size) +
                     " has an NCCL handle of rank " + std::to_string(made.rank()) + " of " +
                     std::to_string(made.size()));
  return made;
}

}  // namespace heddle::inline v0
