// ends <what>, under smpirun: how checked calls on virtual ranks end, right and wrong.
#include <heddle/comm/mpi.hpp>

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>

namespace hd = heddle;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string_view what = argv[1];
  const hd::mpi_session session(argc, argv);
  int ranks = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  hd::launch_options options;
  if (what == "unchecked_throw") options.check = hd::checking::off;
  try {
    hd::mpi::run_on(MPI_COMM_WORLD, hd::mesh<hd::axis<hd::dp>>{ranks}, options, [&](auto& world) {
      auto& all = world.all();
      int sum = rank;
      all.all_reduce(std::span(&sum, 1), hd::plus{});
      if (sum != ranks * (ranks - 1) / 2) throw hd::error("heddle: a wrong sum");
      if (rank == 1 && what.ends_with("throw")) throw hd::io_error("heddle: no more paper");
      if (rank == 1 && what == "return") return;
      if (rank == ranks - 1 && what == "differ")
        all.barrier();
      else
        all.all_reduce(std::span(&sum, 1), hd::plus{});
    });
  } catch (const std::exception& e) {
    if (rank == 0) std::printf("caught: %s\n", e.what());
    return 3;
  }
  if (rank == 0) std::printf("%d ranks have agreed\n", ranks);
}
