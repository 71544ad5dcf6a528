// heddle/nccl/nccl.hpp: the transport `nccl`: every rank has a GPU (not run on a GPU).
#pragma once

#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/rethrow.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/text.hpp>
#include <heddle/nccl/communicator.hpp>
#include <heddle/nccl/group.hpp>
#include <heddle/nccl/start.hpp>
#include <heddle/rendezvous/communicator.hpp>
#include <heddle/rendezvous/control.hpp>
#include <heddle/rendezvous/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Ranks with a GPU each, started by `launch`; see `nccl_communicator` for what its calls mean.
///
/// Where the environment says that this process is one of several (`HEDDLE_RANK`, `HEDDLE_RANKS`, `HEDDLE_RENDEZVOUS`,
/// optionally `HEDDLE_LOCAL_RANK`; torchrun's variables; see `launcher_place`), it is that rank, on the GPU of its local
/// rank, else rank modulo the number of GPUs. Otherwise the ranks are threads of this process, one per GPU. `run_over` starts from a communicator that is there.
///
/// Tensors go over NCCL; the control plane is in host memory, over the rendezvous (`rendezvous_control`).
///
/// Each rank has a stream, `world.all().stream()`. A rank whose body throws ends the world: its communicators are aborted,
/// and the other ranks get an `aborted_error` out of what they wait for next.
/// Errors: `comm_error` if there are not enough GPUs or the NCCL library is older than its header; `config_error` if the
/// environment is not complete; `mesh_error` if it has another number of ranks than the mesh.
template <nccl_settings Settings = nccl_settings{}>
struct basic_nccl {
  using communicator = nccl_communicator;
  /// Host memory, over the rendezvous that starts NCCL: that of the launch, or the communicator given to `run_over`.
  using control_communicator = rendezvous_control;

  /// One rank's way to the other ranks of its world.
  class context {
   public:
    context(std::shared_ptr<detail::nccl_site> site, cudaStream_t stream) : site_(std::move(site)), stream_(stream) {}
    /// This rank's number among all ranks that were launched.
    int rank() const noexcept { return site_->rank; }
    /// The communicator over `members` (launch ranks in order, this one at `index`). NCCL is connected by the first call.
    communicator group(const std::string& name, const std::vector<int>& members, int index) const {
      return {std::make_shared<detail::nccl_channel>(site_, name, members, index), stream_};
    }
    /// The same for what the host reads. Needs no communication.
    control_communicator control(const std::string& name, const std::vector<int>& members, int index) const {
      std::string key = name;
      for (const int m : members) (key += '/') += std::to_string(m);
      auto& state = site_->controls[key];
      if (state == nullptr)
        state = std::make_shared<detail::control_state>(site_->meeting, name, members, index, site_->options);
      return rendezvous_control(state);
    }

   private:
    std::shared_ptr<detail::nccl_site> site_;
    cudaStream_t stream_;
  };

  /// Runs `body(world)` on every rank of `mesh`. What `launch` calls.
  template <mesh_like Mesh, class Body>
  static void run(const Mesh& mesh, const launch_options& options, int, char**, Body& body) {
    if (options.ranks != 0) require_world_size(mesh, options.ranks);
    detail::require_nccl_version();
    const process_place place = detail::place_from_environment();
    if (place.rank >= 0) {
      require_world_size(mesh, place.size);
      const int devices = count_devices(1);
      run_rank(mesh, options, detail::make_rendezvous(place, options.timeout),
               (place.local_rank >= 0 ? place.local_rank : place.rank) % devices, body);
    } else {
      run_threads(mesh, options, body);
    }
  }

  /// Runs `body(world)` on this process, one of those of `over`: any communicator with a rank per process, such as MPI's.
  /// It hands round what NCCL needs and must not be used by others meanwhile.
  template <class Over, mesh_like Mesh, class Body>
  static void run_over(Over& over, const Mesh& mesh, const launch_options& options, int device, Body&& body) {
    require_world_size(mesh, over.size());
    detail::require_nccl_version();
    count_devices(device + 1);
    run_rank(mesh, options, std::make_shared<communicator_rendezvous<Over>>(over), device, body);
  }
  /// The same on the GPU of the local rank that the launcher gives, else rank modulo the number of GPUs.
  template <class Over, mesh_like Mesh, class Body>
  static void run_over(Over& over, const Mesh& mesh, const launch_options& options, Body&& body) {
    const int local = detail::local_rank_from_environment();
    run_over(over, mesh, options, (local >= 0 ? local : over.rank()) % count_devices(1), body);
  }

 private:
  static int count_devices(int needed) {
    int devices = 0;
    const cudaError_t result = cudaGetDeviceCount(&devices);
    if (result == cudaSuccess && devices >= needed) return devices;
    std::string text = "heddle: nccl: ";
    text += std::to_string(needed);
    text += needed == 1 ? " GPU is needed, this process sees " : " GPUs are needed, this process sees ";
    text += std::to_string(result == cudaSuccess ? devices : 0);
    if (result != cudaSuccess) {
      text += " (";
      text += cudaGetErrorString(result);
      text += ')';
    }
    text += "; start a process per GPU (HEDDLE_RANK, HEDDLE_RANKS, HEDDLE_RENDEZVOUS), or use hd::threads";
    throw comm_error(text);
  }
  static void check(const char* function, cudaError_t result) {
    if (result == cudaSuccess) return;
    throw comm_error(text_of({"heddle: nccl: ", function, ": ", cudaGetErrorString(result)}));
  }

  struct owned_stream {
    owned_stream() { check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    owned_stream(const owned_stream&) = delete;
    owned_stream& operator=(const owned_stream&) = delete;
    ~owned_stream() { static_cast<void>(cudaStreamDestroy(stream)); }
    cudaStream_t stream = nullptr;
  };

  // What a rank does, whoever started it.
  template <class Mesh, class Body>
  static void work(const Mesh& mesh, const launch_options& options, const std::shared_ptr<rendezvous>& meeting,
                   int device, Body& body, std::unique_ptr<detail::flight_recorder> flight) {
    check("cudaSetDevice", cudaSetDevice(device));
    const owned_stream own;
    const auto site = std::make_shared<detail::nccl_site>();
    site->options = options;
    site->settings = Settings;
    site->meeting = meeting;
    site->rank = meeting->rank();
    site->flight = std::move(flight);
    const auto note_end = [&](const std::exception_ptr& problem) {
      if (site->flight != nullptr) site->flight->ended(problem);
    };
    const auto tell = [&](const std::exception& e) {  // before the communicators are aborted, which the others notice
      std::string text = "rank ";
      text += std::to_string(site->rank);
      text += ": ";
      text += e.what();
      if (!site->reported) meeting->announce(text);
      detail::nccl_channel::abort_all(*site, text);
    };
    {
      world<basic_nccl, Mesh> here(mesh, site->rank, context(site, own.stream));
      try {
        body(here);
        note_end(nullptr);
      } catch (const std::exception& e) {
        note_end(std::current_exception());
        tell(e);
        throw;
      } catch (...) {
        note_end(std::current_exception());
        tell(comm_error("an exception that is not a std::exception"));
        throw;
      }
    }
    if (site->failure.empty()) return;
    const comm_error late(site->failure);  // of what nobody waited for
    tell(late);
    throw late;
  }
  template <class Mesh, class Body>
  static void run_rank(const Mesh& mesh, const launch_options& options, const std::shared_ptr<rendezvous>& meeting,
                       int device, Body& body) {
    try {
      const detail::flight_place place = detail::flight_place_of(options.flight, options.flight_calls);
      std::unique_ptr<detail::flight_recorder> flight;
      if (!place.folder.empty()) {
        std::int64_t run = detail::flight_time();
        std::vector<int> all(static_cast<std::size_t>(mesh.size()));
        std::iota(all.begin(), all.end(), 0);
        meeting->share("flight", all, std::as_writable_bytes(std::span(&run, 1)));
        flight = std::make_unique<detail::flight_recorder>(place, run, meeting->rank(), mesh.size());
      }
      work(mesh, options, meeting, device, body, std::move(flight));
    } catch (...) {
      std::string text = "rank ";  // what has been announced before stays
      text += std::to_string(meeting->rank());
      text += " has failed";
      meeting->announce(text);
      detail::rethrow_of_rank(meeting->rank(), std::current_exception());
    }
  }
  template <class Mesh, class Body>
  static void run_threads(const Mesh& mesh, const launch_options& options, Body& body) {
    const int ranks = mesh.size();
    count_devices(ranks);
    const detail::flight_place place = detail::flight_place_of(options.flight, options.flight_calls);
    std::vector<std::unique_ptr<detail::flight_recorder>> flights(static_cast<std::size_t>(ranks));
    const std::int64_t run = detail::flight_time();
    for (int rank = 0; rank < ranks && !place.folder.empty(); ++rank)
      flights[static_cast<std::size_t>(rank)] = std::make_unique<detail::flight_recorder>(place, run, rank, ranks);
    const auto shared = std::make_shared<memory_meeting>();
    std::mutex mutex;
    int failed_rank = -1;
    bool failed_first = false;
    std::exception_ptr failure;
    const auto note = [&](int rank, std::exception_ptr problem, bool first) {
      const std::lock_guard lock(mutex);
      if (failed_rank >= 0 && (failed_first || !first)) return;
      failed_rank = rank;
      failed_first = first;
      failure = std::move(problem);
    };
    const auto rank_main = [&](int rank) {
      const auto meeting = std::make_shared<memory_rendezvous>(shared, rank, ranks, options.timeout);
      try {
        work(mesh, options, meeting, rank, body, std::move(flights[static_cast<std::size_t>(rank)]));
      } catch (const aborted_error&) {  // follows from another rank's failure
        note(rank, std::current_exception(), false);
      } catch (...) {
        meeting->announce("another rank has failed");  // where no exception of the standard's has said more
        note(rank, std::current_exception(), true);
      }
    };
    std::vector<std::thread> others;
    try {
      others.reserve(static_cast<std::size_t>(ranks));
      for (int rank = 1; rank < ranks; ++rank) others.emplace_back(rank_main, rank);
      rank_main(0);
    } catch (const std::exception& e) {
      const int rank = static_cast<int>(others.size()) + 1;
      const comm_error problem = detail::thread_not_started(rank, ranks, e);
      memory_rendezvous(shared, 0, ranks, options.timeout).announce(problem.what());
      note(rank, std::make_exception_ptr(problem), true);
    }
    for (std::thread& other : others) other.join();
    if (failed_rank >= 0) detail::rethrow_of_rank(failed_rank, failure);
  }
};

/// The transport whose calls return when the stream has them.
using nccl = basic_nccl<>;
/// The transport whose calls return when their results are there: for programs that look at them on the host.
using nccl_complete = basic_nccl<nccl_settings{.complete = true}>;
/// NCCL over InfiniBand or RoCE, and over sockets, whatever the other would be better for: for `by_network`.
using nccl_rdma = basic_nccl<nccl_settings{.network = nccl_network::rdma}>;
/// NCCL over sockets, whatever other network there is: for `by_network`.
using nccl_sockets = basic_nccl<nccl_settings{.network = nccl_network::sockets}>;

}  // namespace heddle::inline v0
