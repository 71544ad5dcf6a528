// An MPI program that runs the rounds of one collective as they stand in heddle's table, and prints the seconds it took:
//
//   rounds <ring|recursive_doubling|all_to_all|random> <elements of 8 bytes>
//
// Built with smpicxx and run by agreement.cpp under smpirun, where the seconds are virtual.
#include "cases.hpp"

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) MPI_Abort(MPI_COMM_WORLD, 2);
  const heddle::round_table table = agreement::rounds_of(argv[1], ranks);
  const heddle::round_view rounds = table;
  const long long elements = std::atoll(argv[2]);

  std::vector<char> in(static_cast<std::size_t>(8 * elements)),
      out(in.size());                // one message per round, at most a vector
  const double begin = MPI_Wtime();  // no barrier: virtual ranks begin at the same time, and would leave it one by one
  for (int k = 0; k < rounds.rounds(); ++k) {
    std::vector<MPI_Request> requests;
    const auto start = [&](const heddle::round_transfer& t, bool send) {
      const int bytes = static_cast<int>(8 * heddle::elements_of(rounds, t, elements));
      MPI_Request& request = requests.emplace_back();
      if (send)
        MPI_Isend(out.data(), bytes, MPI_CHAR, t.to, k, MPI_COMM_WORLD, &request);
      else
        MPI_Irecv(in.data(), bytes, MPI_CHAR, t.from, k, MPI_COMM_WORLD, &request);
    };
    for (const heddle::round_transfer& t : rounds.round(k))
      if (t.to == rank) start(t, false);
    for (const heddle::round_transfer& t : rounds.round(k))
      if (t.from == rank) start(t, true);
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }
  const double end = MPI_Wtime();
  double first = 0, last = 0;
  MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
  MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("seconds %.12e\n", last - first);
  MPI_Finalize();
}
