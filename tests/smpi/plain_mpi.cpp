// plain_mpi <cluster>, under smpirun: each message takes the time that the topology promises, and collectives give what
// they should.
#include <mpi.h>
#include <unistd.h>

#include "clusters.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace {

// The time of one message between ranks that are otherwise idle, known to the receiver; clocks of virtual ranks agree.
double message_seconds(int from, int to, std::size_t bytes, int rank) {
  std::vector<char> data(bytes);
  char word = 0;  // so that nothing else moves while the message does
  double begin = 0, end = 0;
  if (rank == to) {
    MPI_Request request;
    MPI_Recv(&word, 1, MPI_CHAR, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Irecv(data.data(), static_cast<int>(bytes), MPI_CHAR, from, 0, MPI_COMM_WORLD, &request);
    MPI_Send(&word, 1, MPI_CHAR, from, 2, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    end = MPI_Wtime();
    MPI_Recv(&begin, 1, MPI_DOUBLE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&word, 1, MPI_CHAR, from, 4, MPI_COMM_WORLD);
  } else {
    MPI_Send(&word, 1, MPI_CHAR, to, 3, MPI_COMM_WORLD);
    MPI_Recv(&word, 1, MPI_CHAR, to, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    begin = MPI_Wtime();
    MPI_Send(data.data(), static_cast<int>(bytes), MPI_CHAR, to, 0, MPI_COMM_WORLD);
    MPI_Send(&begin, 1, MPI_DOUBLE, to, 1, MPI_COMM_WORLD);
    MPI_Recv(&word, 1, MPI_CHAR, to, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  return end - begin;
}

int check(const hd::topology& t) {
  int rank = 0, ranks = 0, wrong = 0, messages = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != t.ranks()) return 1;
  for (const int from : {0, 5, ranks - 1}) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == from) usleep(1000);  // in virtual time: until all have left the barrier
    for (int to = 0; to < ranks; to += 3)
      for (const std::size_t bytes : {std::size_t{1000}, std::size_t{1000000}}) {
        if (from == to || (rank != from && rank != to)) continue;
        const double took = message_seconds(from, to, bytes, rank);
        if (rank != to) continue;
        const hd::route_table way = t.route(from, to);
        const double promised = way.seconds + static_cast<double>(bytes) / way.bytes_per_second;
        ++messages;
        if (std::abs(took - promised) <= 1e-6 * promised + 2e-9) continue;  // SimGrid itself is exact to 1e-9 s
        ++wrong;
        std::printf("%d to %d, %zu bytes: %.9g s, promised %.9g s\n", from, to, bytes, took, promised);
      }
    // Those who are done keep quiet until all are.
    char word = 0;
    if (rank != from) MPI_Recv(&word, 1, MPI_CHAR, from, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int r = 0; r < ranks && rank == from; ++r)
      if (r != from) MPI_Send(&word, 1, MPI_CHAR, r, 5, MPI_COMM_WORLD);
  }
  // Whole numbers: the sums are exact in any order.
  std::vector<double> mine(1000), sum(1000);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<double>((rank + 1) * static_cast<int>(i));
  MPI_Allreduce(mine.data(), sum.data(), 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (std::size_t i = 0; i < sum.size(); ++i)
    wrong += sum[i] != static_cast<double>(ranks * (ranks + 1) / 2) * static_cast<double>(i);
  std::vector<int> out(static_cast<std::size_t>(ranks)), in(static_cast<std::size_t>(ranks));
  for (int to = 0; to < ranks; ++to) out[static_cast<std::size_t>(to)] = rank * ranks + to;
  MPI_Alltoall(out.data(), 1, MPI_INT, in.data(), 1, MPI_INT, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from) wrong += in[static_cast<std::size_t>(from)] != from * ranks + rank;
  int all_wrong = 0, all_messages = 0;
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&messages, &all_messages, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  const double end = MPI_Wtime();  // of messages that share links, too
  if (rank == 0) std::printf("%d ranks, %d messages timed, %d wrong, %.12g s\n", ranks, all_messages, all_wrong, end);
  return all_wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  MPI_Init(&argc, &argv);
  const int status = check(named(argv[1]));
  MPI_Finalize();
  return status;
}
