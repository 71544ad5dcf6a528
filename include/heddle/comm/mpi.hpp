// heddle/comm/mpi.hpp: the transport `mpi`: the ranks of a world are MPI processes.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/mpi/communicator.hpp>
#include <heddle/comm/mpi/ending.hpp>
#include <heddle/comm/mpi/session.hpp>
#include <heddle/comm/world.hpp>

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// Of a process that is alone in MPI. Errors: `config_error` where a launcher says that it is one of several.
inline void require_known_to_mpi() {
  const process_place place = launcher_seen();
  if (virtual_ranks || place.size <= 1 || runs_alone()) return;
  throw config_error(text_of({"heddle: ", started_as(place),
                              ", but MPI sees one process: start the program with the mpirun or "
                              "srun of its MPI, or set HEDDLE_ALONE=1 to run a job in each"}));
}

}  // namespace detail

/// Ranks as processes that `mpirun` has started: all of them call `launch<hd::mpi>`, and the ranks of the mesh are those
/// of `MPI_COMM_WORLD`. MPI is initialised by the first launch unless somebody has done so, and then finalised at the
/// end of the process (`mpi_session`). The world's messages never meet those of the rest of the program.
///
/// Communicators along one axis, those along several in the mesh's order and `control()` are made when the world is;
/// others when first asked for, and then by all their ranks in the same order. Each is a communicator of MPI's.
///
/// A mesh that is wrong on some processes is an error on all of them. A rank whose body throws ends the world: when all
/// bodies have ended, `launch` throws the first rank's error on every rank. Ranks that wait in MPI for a rank that has failed cannot be woken: after a grace of some seconds the failed rank
/// prints its message and ends the job.
struct mpi {
  using communicator = mpi_communicator;

  /// One rank's way to the other ranks of its world.
  class context {
   public:
    explicit context(std::shared_ptr<detail::mpi_world> world) : world_(std::move(world)) {}
    /// This rank's number among all ranks that were launched.
    int rank() const noexcept { return world_->rank(); }
    /// The communicator over `members` (launch ranks in order). The first time, all of them have to ask.
    communicator group(const std::string& name, const std::vector<int>& members, int) const {
      return communicator(world_->group(name, members));
    }

   private:
    std::shared_ptr<detail::mpi_world> world_;
  };

  /// Runs `body(world)` on every rank of `mesh`. What `launch` calls.
  template <mesh_like Mesh, class Body>
  static void run(const Mesh& mesh, const launch_options& options, int argc, char** argv, Body& body) {
    detail::mpi_of_this_process(argc, argv);
    run_on(MPI_COMM_WORLD, mesh, options, body);
  }

  /// As `launch`, on the ranks of a communicator. MPI is initialised. A collective over the communicator.
  template <mesh_like Mesh, class Body>
  static void run_on(MPI_Comm comm, const Mesh& mesh, const launch_options& options, Body&& body) {
    int ranks = 0;
    detail::mpi_check(MPI_Comm_size(comm, &ranks), "MPI_Comm_size");
    int mine = 0;
    detail::mpi_check(MPI_Comm_rank(comm, &mine), "MPI_Comm_rank");
    detail::mpi_last_error() = {};
    mpi_session::last_launch_failed(false);
    std::exception_ptr problem;
    try {
      if (options.ranks != 0) require_world_size(mesh, options.ranks);
      if (comm == MPI_COMM_WORLD && ranks == 1) detail::require_known_to_mpi();
      require_world_size(mesh, ranks);
    } catch (...) {
      problem = std::current_exception();
    }
    detail::agree_to_begin(comm, mine, ranks, problem);
    const auto shared = std::make_shared<detail::mpi_world>(comm, options);
    try {
      {
        world<mpi, Mesh> here(mesh, shared->rank(), context(shared));
        make_groups(here, typename Mesh::tags{});
        body(here);
      }
      shared->state().throw_late_error();
    } catch (...) {
      problem = std::current_exception();
    }
    shared->finish(problem);
  }

  /// Of a launch that gives a status: whether this process prints the error, as it does unless another prints the same.
  static bool prints_error(const std::string& error) {
    const detail::mpi_agreed_error& agreed = detail::mpi_last_error();
    const bool known = agreed.text == error;
    mpi_session::last_launch_failed(!known || !agreed.everywhere);
    return !known || !agreed.elsewhere;
  }

 private:
  // Those that most programs need, in an order that is the same on every rank, so that nobody has to wait for them later.
  template <class World, class... Tags>
  static void make_groups(World& here, type_list<Tags...>) {
    here.all();
    here.control();
    (here.template along<Tags>(), ...);
    pairs(here, type_list<Tags...>{});
  }
  template <class World, class First, class... Rest>
  static void pairs(World& here, type_list<First, Rest...>) {
    (here.template along<First, Rest>(), ...);
    pairs(here, type_list<Rest...>{});
  }
  template <class World>
  static void pairs(World&, type_list<>) {}
};

static_assert(transport<mpi>);

}  // namespace heddle::inline v0
