// heddle/comm/threads.hpp: the transport `threads`: ranks are threads of one process.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads/communicator.hpp>
#include <heddle/comm/world.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// What a rank of a launch does; `call` gets `context`.
struct rank_body {
  const void* context;
  void (*call)(const void* context, int rank);
};

// Runs the body on every rank of the world, rank 0 on the calling thread, and returns when all have returned. Threads are
// bound to cores as `launch_options::bind` and the environment variable HEDDLE_BIND say.
// Errors: `config_error` for another word in that variable, and where a launcher has started several such processes
// (`require_alone`); the first error of a rank, see `rethrow_of_rank`.
HEDDLE_INLINE void run_ranks(world_state& state, const launch_options& options, const rank_body& body);

}  // namespace detail

/// Ranks as threads of this process, started by `launch`; rank 0 runs on the calling thread. There may be more ranks
/// than cores: waiting ranks sleep. Several worlds may run at once, also one inside another.
///
/// A process that mpirun, srun or torchrun has started as one of several is refused with a `config_error`, as each would
/// run the whole job; HEDDLE_ALONE=1 allows it, and so does a program that includes heddle/comm/mpi.hpp.
///
/// Ranks are bound to cores when there are enough, as `mpirun` does (`launch_options::bind`), by the first of several
/// worlds; one inside another stays on the cores of its rank. The calling thread keeps its cores, and with it all threads
/// that it starts, unless `binding::on` asks for its share; then it gets them back at the end.
///
/// A rank whose body throws ends the world: every other rank gets an `aborted_error` out of what it waits for or calls
/// next, all threads are joined, and `launch` throws the first error. A rank that computes and never communicates
/// again is waited for: a thread cannot be stopped from outside.
struct threads {
  using communicator = threads_communicator;

  /// One rank's way to the other ranks of its world.
  class context {
   public:
    context(std::shared_ptr<detail::world_state> state, int rank) : state_(std::move(state)), rank_(rank) {}
    /// This rank's number among all ranks that were launched.
    int rank() const noexcept { return rank_; }
    /// The communicator over `members` (launch ranks in order, this one at `index`). Needs no communication.
    communicator group(const std::string& name, const std::vector<int>& members, int index) const {
      return {state_, state_->group(name, members, true), index};
    }

   private:
    std::shared_ptr<detail::world_state> state_;
    int rank_;
  };

  /// Runs `body(world)` on every rank of `mesh`. What `launch` calls.
  template <mesh_like Mesh, class Body>
  static void run(const Mesh& mesh, const launch_options& options, int, char**, Body& body) {
    if (options.ranks != 0) require_world_size(mesh, options.ranks);
    const auto state = detail::make_world_state(mesh.size(), options);
    const auto rank_main = [&](int rank) {
      world<threads, Mesh> here(mesh, rank, context(state, rank));
      body(here);
    };
    detail::run_ranks(*state, options, {&rank_main, [](const void* main, int rank) {
                                          (*static_cast<decltype(&rank_main)>(main))(rank);
                                        }});
  }
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads.hpp>
#endif
