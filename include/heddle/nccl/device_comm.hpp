// heddle/nccl/device_comm.hpp: kernels with barriers among GPUs (not run on a GPU).
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/nccl/channel.hpp>
#include <heddle/nccl/communicator.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>

#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
#include <nccl_device.h>
#endif

namespace heddle::inline v0 {

/// Whether the NCCL that this program is compiled with has the device API (2.28 and later).
inline constexpr bool nccl_has_device_api =
#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
    true;
#else
    false;
#endif

/// How many blocks of how many threads a kernel has.
template <int Blocks, int Threads = 512>
struct nccl_grid {
  static_assert(Blocks >= 1, "heddle: a kernel has one block at least");
  static_assert(Threads >= 32 && Threads <= 1024 && Threads % 32 == 0,
                "heddle: a block has 32 to 1024 threads, in warps of 32");
  static constexpr int blocks = Blocks, threads = Threads;
};

namespace detail {

template <int Barriers>
inline constexpr bool device_api_of_this_nccl = nccl_has_device_api;
template <int Blocks, int Barriers>
inline constexpr bool a_barrier_for_each_block = Blocks == Barriers;

/// Whether the library that this process has loaded takes what this program was compiled with. Structures of the device API were changed with 2.29, which can tell older ones apart and
/// refuses those of 2.28.
inline bool nccl_library_has_device_api() {
  int library = 0;
  return nccl_has_device_api && (NCCL_VERSION_CODE >= 22900 ||
                                 (ncclGetVersion(&library) == ncclSuccess && library / 100 == NCCL_VERSION_CODE / 100));
}

/// Where elements lie in a window, on each rank of its communicator.
struct nccl_place {
  void* window;  // an `ncclWindow_t`
  std::size_t offset;
};

#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)

/// A device communicator, which a channel keeps. Kernels with its barriers run one after the other.
class nccl_device_state : public nccl_attachment {
 public:
  /// By all ranks together. Null where NCCL says at once, and so on all ranks, that these GPUs have no symmetric memory (`ncclInvalidUsage`): where they do not reach each
  /// other's memory, or with `NCCL_CUMEM_ENABLE=0`. NCCL 2.28 registers windows there all the same.
  static std::shared_ptr<nccl_device_state> make(nccl_channel& channel, int barriers) {
    const auto made = std::make_shared<nccl_device_state>();
    return made->create(channel, barriers) ? made : nullptr;
  }
  nccl_device_state() = default;
  ~nccl_device_state() override { forget_event(); }

  const ncclDevComm& native() const noexcept { return *comm_; }

  /// What is put on the stream now begins when the last kernel has ended, also one on another stream. In a graph it is the
  /// caller who orders its launches and other kernels.
  void before_kernel(nccl_channel& channel, cudaStream_t stream) {
    // Also on the stream of the last kernel, which costs it nothing: handles do not tell streams apart, since those of destroyed ones come again.
    if (!recorded_ || captured(channel, stream)) return;
    channel.require_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, last_, 0));
  }
  void after_kernel(nccl_channel& channel, cudaStream_t stream) {
    if (captured(channel, stream)) return;
    channel.require_cuda("cudaEventRecord", cudaEventRecord(last_, stream));
    recorded_ = true;
  }
  void give_back(nccl_channel& channel) override {
    channel.wait_until("a kernel with barriers among ranks", [&] {
      const cudaError_t state = cudaEventQuery(last_);
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) channel.require_cuda("cudaEventQuery", state);
      static_cast<void>(cudaGetLastError());
      return false;
    });
    channel.require_nccl("ncclDevCommDestroy", ncclDevCommDestroy(channel.connected(), comm_.get()));
  }

 private:
  bool create(nccl_channel& channel, int barriers) {
#if defined(NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER)
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements needs{};
#endif
    needs.lsaBarrierCount = barriers;
    static_cast<void>(channel.connected());
    const nccl_channel::on_device here(channel);
    try {
      channel.require_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&last_, cudaEventDisableTiming));
      const ncclResult_t made = ncclDevCommCreate(channel.connected(), &needs, comm_.get());
      if (made == ncclInvalidUsage) return false;
      channel.require_nccl("ncclDevCommCreate", made);
      return true;
    } catch (...) {
      forget_event();
      channel.site().written_late.push_back(std::shared_ptr<ncclDevComm>(std::move(comm_)));
      throw;
    }
  }
  static bool captured(nccl_channel& channel, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    channel.require_cuda("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }
  void forget_event() noexcept {
    if (last_ != nullptr) static_cast<void>(cudaEventDestroy(last_));
    last_ = nullptr;
  }
  std::unique_ptr<ncclDevComm> comm_ = std::make_unique<ncclDevComm>();
  cudaEvent_t last_ = nullptr;
  bool recorded_ = false;
};

#else
struct nccl_device_state : nccl_attachment {  // of what does not compile
  static std::shared_ptr<nccl_device_state> make(nccl_channel&, int) { return nullptr; }
  int native() const noexcept { return 0; }
  void give_back(nccl_channel&) override {}
};
#endif

/// The device communicator with so many barriers, made by all ranks together when it is first asked for; null where the library or the GPUs have none.
inline std::shared_ptr<nccl_device_state> nccl_device_state_of(nccl_channel& channel, int barriers) {
  if (channel.lacks_device_api() || !nccl_library_has_device_api()) return nullptr;
  auto& kept = channel.attached(barriers);
  if (kept == nullptr) {
    channel.flush();
    kept = nccl_device_state::make(channel, barriers);
    if (kept == nullptr) channel.lack_device_api();
  }
  return std::static_pointer_cast<nccl_device_state>(kept);
}

}  // namespace detail

/// A device communicator of NCCL's with as many barriers among its ranks, for kernels with as many blocks: `launch_with_barriers` refuses
/// others. Made by all ranks of `comm` together, when it is first named for this number of barriers; `comm` keeps it to its own end. A stream that is being captured has it before.
/// It needs all ranks in one LSA team: GPUs that load and store each other's memory (`nccl_one_lsa_team`).
/// Errors: `comm_error` with NCCL's own text, where ranks are in several teams or GPUs have no symmetric memory, and with a library that is not the header's 2.28; with an NCCL older
/// than that it does not compile.
template <int Barriers>
class nccl_device_comm {
  static_assert(
      detail::device_api_of_this_nccl<Barriers>,
      "heddle: NCCL's device API comes with NCCL 2.28 and its header nccl_device.h; this program is compiled with an "
      "older nccl.h (nccl_has_device_api): call all_reduce without this algorithm");

 public:
  static constexpr int barriers = Barriers;

  explicit nccl_device_comm(const nccl_communicator& comm)
      : channel_(comm.channel()), state_(detail::nccl_device_state_of(*channel_, Barriers)) {
    if (state_ == nullptr) {
      int library = 0;
      static_cast<void>(ncclGetVersion(&library));
      channel_->refuse(text_of({"nccl_device_comm: ",
                                channel_->lacks_device_api()
                                    ? "NCCL has no symmetric memory here: expected GPUs that load and store "
                                      "each other's memory, and no NCCL_CUMEM_ENABLE=0"
                                    : "expected the library of the header that this program was compiled with",
                                "; the header is NCCL ", detail::nccl_version_text(NCCL_VERSION_CODE), ", the library ",
                                detail::nccl_version_text(library)}));
    }
#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
    // Known only now: NCCL finds its teams with the first window or device communicator.
    if (const int team = ncclTeamLsa(channel_->connected()).nRanks; team != size())
      channel_->refuse(text_of({"nccl_device_comm: expected one LSA team of ", size(),
                                " ranks, GPUs that load and store each other's memory, got one of ", team}));
#endif
  }

  int rank() const noexcept { return channel_->rank(); }
  int size() const noexcept { return channel_->size(); }
  /// NCCL's own, an argument of kernels.
  const auto& native() const noexcept { return state_->native(); }
  const std::shared_ptr<detail::nccl_channel>& channel() const noexcept { return channel_; }
  const auto& state() const noexcept { return state_; }

 private:
  std::shared_ptr<detail::nccl_channel> channel_;
  std::shared_ptr<detail::nccl_device_state> state_;
};

/// Whether all ranks of a communicator are in one LSA team, and the library has the device API of the header. Only with a window registered (`nccl_window::registered`), and the same on all ranks.
inline bool nccl_one_lsa_team(const nccl_communicator& comm) {
#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
  const auto& channel = comm.channel();
  return !channel->lacks_device_api() && detail::nccl_library_has_device_api() &&
         ncclTeamLsa(channel->connected()).nRanks == comm.size();
#else
  static_cast<void>(comm);
  return false;
#endif
}

#if defined(__CUDACC__) && NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
namespace detail {

// A thread of a block, as kernel bodies see it (nccl/peer_fold.hpp).
class thread_among_peers {
 public:
  __device__ explicit thread_among_peers(const ncclDevComm& comm)
      : team_(ncclTeamLsa(comm)), barrier_(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x) {}
  __device__ int rank() const { return team_.rank; }
  __device__ int ranks() const { return team_.nRanks; }
  __device__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() { barrier_.sync(ncclCoopCta(), ::cuda::memory_order_acq_rel); }
  template <class T>
  __device__ T* at(const nccl_place& place, int rank) const {
    return static_cast<T*>(ncclGetLsaPointer(static_cast<ncclWindow_t>(place.window), place.offset, rank));
  }

 private:
  ncclTeam team_;
  ncclLsaBarrierSession<ncclCoopCta> barrier_;
};

template <int Threads, class Body>
__global__ void __launch_bounds__(Threads)
    kernel_with_barriers(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Body body) {
  thread_among_peers here(comm);
  body(here);
}

}  // namespace detail

/// What `launch_with_barriers` calls: body(here) by each thread of the grid.
template <int Blocks, int Threads, class Body>
void launch_among_peers(nccl_grid<Blocks, Threads>, const nccl_device_comm<Blocks>& device, cudaStream_t stream,
                        const Body& body) {
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(Blocks);
  how.blockDim = dim3(Threads);
  how.stream = stream;
  device.channel()->require_cuda(
      "a kernel with barriers among ranks",
      cudaLaunchKernelEx(&how, detail::kernel_with_barriers<Threads, Body>, device.native(), body));
}
#endif

/// A kernel of this grid on the stream, whose threads call `body(here)` (what `here` has: nccl/peer_fold.hpp); each of its blocks has one of the device
/// communicator's barriers, and as many blocks as there are barriers is part of the types. All ranks call it in one order, and the GPU must
/// have room for all blocks. A kernel that waits for a rank that has failed ends with the process: aborting a communicator ends NCCL's kernels
/// only. In files that nvcc compiles. Errors: `comm_error` if CUDA refuses the launch,
/// `aborted_error` after a failure.
template <int Blocks, int Threads, int Barriers, class Body>
void launch_with_barriers(nccl_grid<Blocks, Threads> grid, const nccl_device_comm<Barriers>& device,
                          cudaStream_t stream, const Body& body) {
  static_assert(
      detail::a_barrier_for_each_block<Blocks, Barriers>,
      "heddle: each block of the kernel waits at a barrier of its own, and the device communicator has another "
      "number of them: name nccl_grid<N> and nccl_device_comm<N> with one N");
  if constexpr (Blocks == Barriers && nccl_has_device_api) {
    constexpr bool launches = requires { launch_among_peers(grid, device, stream, body); };
    static_assert(launches, "heddle: kernels with barriers among ranks are launched in files that nvcc compiles");
    if constexpr (launches) {
      static_cast<void>(device.channel()->connected());
      const detail::nccl_channel::on_device here(*device.channel());
      device.state()->before_kernel(*device.channel(), stream);
      launch_among_peers(grid, device, stream, body);
      device.state()->after_kernel(*device.channel(), stream);
    }
  }
}

}  // namespace heddle::inline v0
