// MPI's all_reduce, for all_reduce_bench to compare with: one line "<bytes> <median seconds>" per size.
//   mpirun --oversubscribe -n 8 all_reduce_mpi_bench <repetitions> <bytes>...
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  for (int a = 2; a < argc; ++a) {
    const auto bytes = static_cast<std::size_t>(std::atoll(argv[a]));
    std::vector<float> x(bytes / sizeof(float), 0.0f);
    const int count = static_cast<int>(x.size());
    const auto run = [&](int times) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (int i = 0; i < times; ++i) MPI_Allreduce(MPI_IN_PLACE, x.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      double seconds = (MPI_Wtime() - start) / times;
      MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
      return seconds;
    };
    run(1);
    const int times = static_cast<int>(std::clamp(0.03 / run(1), 1.0, 2000.0));
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; ++i) seconds.push_back(run(times));
    std::sort(seconds.begin(), seconds.end());
    if (rank == 0) std::printf("%zu %.9f\n", bytes, seconds[seconds.size() / 2]);
  }
  MPI_Finalize();
}
