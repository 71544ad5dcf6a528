// endings <what>, under mpirun with two processes: how errors that one process has, or had, end the job.
#include <heddle/comm/mpi.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

namespace hd = heddle;
using line = hd::mesh<hd::axis<hd::dp>>;

namespace {

// Refuses to start on rank 1, and tells nobody.
struct lonely : hd::mpi {
  template <class Mesh, class Body>
  static void run(const Mesh& mesh, const hd::launch_options& options, int argc, char** argv, Body& body) {
    hd::detail::mpi_of_this_process(argc, argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) throw hd::config_error("heddle: not with me");
    run_on(MPI_COMM_WORLD, mesh, options, body);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const auto nothing = [](auto&) {};
  if (what == "sum")  // no error: as many processes as the mesh has ranks
    return hd::launch<hd::mpi>(argc, argv, line{2}, [](auto& world) {
      std::vector<int> ranks{world.rank() + 1};
      world.all().all_reduce(ranks, hd::plus{});
      if (world.rank() == 0) std::printf("2 processes: the sum is %d\n", ranks[0]);
    });
  if (what == "lonely") return hd::launch<lonely>(argc, argv, line{2}, nothing);
  if (what == "mesh") {  // one process has another mesh; no session in main
    const char* const text = std::getenv("OMPI_COMM_WORLD_RANK");
    const char* const mpich = std::getenv("PMI_RANK");
    const bool wrong = std::string_view(text != nullptr ? text : mpich != nullptr ? mpich : "") == "1";
    return hd::launch<hd::mpi>(argc, argv, line{wrong ? 3 : 2}, nothing);
  }
  // A launch fails on all, the next one succeeds, and rank 0 needs more time than rank 1.
  const hd::mpi_session session(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int first = hd::launch<hd::mpi>(argc, argv, line{2}, [](auto& world) {
    if (world.rank() == 1) throw hd::config_error("heddle: this way does not work");
    world.all().barrier();
  });
  if (what == "fall_back" && hd::launch<hd::mpi>(argc, argv, line{2}, nothing) != 0) return 2;
  if (rank == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3500));
    std::printf("the results, after status %d\n", first);
  }
  return 0;
}
