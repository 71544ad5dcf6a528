// examples/transport.hpp: the ranks of an example as processes of MPI, with the source that runs them as threads.
//
// The program <example>_mpi is compiled from the example's source with `on::transport` where it says `hd::threads`.
// mpirun starts as many processes as the mesh has ranks, or several times as many: the program then runs as often.
#pragma once

#if defined(HEDDLE_EXAMPLE_MPI)
#include <heddle/comm/mpi.hpp>

#include <cstdarg>
#include <cstdio>
#include <string>
#else
#include <heddle/comm/threads.hpp>
#endif

#if defined(SMPI_H)
// Virtual ranks (SimGrid's SMPI) are threads of one process: that of rank 0 prints.
namespace std {
[[gnu::format(__printf__, 1, 2)]] inline int printf_of_rank(const char* format, ...) {
  static const int mine = [] {
    heddle::detail::mpi_of_this_process(0, nullptr);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }();
  if (mine != 0) return 0;
  va_list values;
  va_start(values, format);
  const int n = std::vprintf(format, values);
  va_end(values);
  return n;
}
}  // namespace std
#define printf printf_of_rank
#endif

namespace on {

#if defined(HEDDLE_EXAMPLE_MPI)

struct transport : heddle::mpi {
  template <class Mesh, class Body>
  static void run(const Mesh& mesh, const heddle::launch_options& options, int argc, char** argv, Body& body) {
    heddle::detail::mpi_of_this_process(argc, argv);
    int processes = 1, mine = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    const int ranks = mesh.size();
    if (processes % ranks != 0)
      throw heddle::mesh_error("heddle: " + heddle::to_string(mesh) + " has " + std::to_string(ranks) +
                               " ranks; start a multiple of that number of processes, not " +
                               std::to_string(processes));
    if (processes == ranks) return heddle::mpi::run_on(MPI_COMM_WORLD, mesh, options, body);
    struct part {
      MPI_Comm comm = MPI_COMM_NULL;
      ~part() { MPI_Comm_free(&comm); }
    } some;
    MPI_Comm_split(MPI_COMM_WORLD, mine / ranks, mine, &some.comm);
    heddle::mpi::run_on(some.comm, mesh, options, body);
  }
};

/// What the ranks are, for the output.
inline constexpr const char* ranks_are = "processes of MPI";
/// Whether a launch may have any number of ranks.
inline constexpr bool any_ranks = false;

/// From here on only one process prints.
inline void begin(int argc, char** argv) {
  static const heddle::mpi_session session(argc, argv);
#if !defined(SMPI_H)
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  if (mine != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) std::fputs("no /dev/null\n", stderr);
#endif
}

/// Whether this rank keeps a result for the code after `launch`: ranks that are processes all do.
inline bool keeps(int) {
  return true;
}

#else

using transport = heddle::threads;
inline constexpr const char* ranks_are = "threads";
inline constexpr bool any_ranks = true;
inline void begin(int, char**) {}
inline bool keeps(int rank) {
  return rank == 0;
}

#endif

}  // namespace on
