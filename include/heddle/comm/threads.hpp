// heddle/comm/threads.hpp: the transport `threads`: the ranks of a world are threads of one process.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/rethrow.hpp>
#include <heddle/comm/threads/communicator.hpp>
#include <heddle/comm/world.hpp>

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Ranks as threads of this process, started by `launch`; rank 0 runs on the calling thread. There may be more ranks
/// than cores: waiting ranks sleep. Several worlds may run at once, also one inside another.
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
    if (options.ranks != 0) check_world_size(mesh, options.ranks);
    const auto state = std::make_shared<detail::world_state>(mesh.size(), options);
    const auto rank_main = [&](int rank) {
      try {
        {
          world<threads, Mesh> here(mesh, rank, context(state, rank));
          body(here);
        }
        state->throw_late_error(rank);
      } catch (...) {
        state->abort(rank, std::current_exception());
      }
      state->finish(rank);
    };
    std::vector<std::thread> others;
    try {
      others.reserve(static_cast<std::size_t>(mesh.size()));
      for (int rank = 1; rank < mesh.size(); ++rank) others.emplace_back(rank_main, rank);
      rank_main(0);
    } catch (...) {  // a thread could not be started
      state->abort(static_cast<int>(others.size()) + 1, std::current_exception());
    }
    for (std::thread& other : others) other.join();
    if (state->aborted()) detail::rethrow_of_rank(state->failed_rank(), state->failure());
  }
};

}  // namespace heddle::inline v0
