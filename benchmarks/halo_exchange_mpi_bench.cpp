// Halo exchanges of a tensor of doubles cut over a grid of ranks: heddle's halo_exchange over MPI, the redistribution from the
// blocks to the halo, and an exchange written by hand (MPI_Irecv and MPI_Isend per neighbour, columns packed by a loop, rows
// sent from where they lie, MPI_Waitall). The first and the last alternate in stretches of 2 ms; each line has medians of the
// slowest rank's microseconds, the median of the ratios of neighbouring stretches, and the ratio of the fastest ones.
//   mpirun -n 4 halo_exchange_mpi_bench <rows of ranks> <columns of ranks> <rounds> <rows and columns of the tensor>...
#include <heddle/comm/mpi.hpp>
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace hd = heddle;

namespace {

struct rows {};
struct columns {};
using mesh = hd::mesh<hd::axis<rows>, hd::axis<columns>>;
using cells = hd::layout<mesh, hd::halo<0, 1, rows>, hd::halo<1, 1, columns>>;
using blocks = hd::without_halo<cells>;

// By hand, for a halo of 1 on a grid whose blocks have at least one cell.
class by_hand {
 public:
  by_hand(MPI_Comm comm, std::array<int, 2> ranks, int rank, std::int64_t height, std::int64_t width)
      : comm_(comm), stride_(width) {
    const int r = rank / ranks[1], c = rank % ranks[1];
    const bool up = r > 0, down = r + 1 < ranks[0], left = c > 0, right = c + 1 < ranks[1];
    const std::int64_t top = up ? 1 : 0, bottom = height - (down ? 1 : 0);   // own rows
    const std::int64_t begin = left ? 1 : 0, end = width - (right ? 1 : 0);  // own columns
    for (int y = -1; y <= 1; ++y)
      for (int x = -1; x <= 1; ++x) {
        if ((y == 0 && x == 0) || (y < 0 && !up) || (y > 0 && !down) || (x < 0 && !left) || (x > 0 && !right)) continue;
        border b;
        b.peer = (r + y) * ranks[1] + c + x;
        b.rows = y == 0 ? bottom - top : 1;
        b.columns = x == 0 ? end - begin : 1;
        b.send = (y > 0 ? bottom - 1 : top) * width + (x > 0 ? end - 1 : begin);
        b.receive = (y < 0 ? 0 : y > 0 ? height - 1 : top) * width + (x < 0 ? 0 : x > 0 ? width - 1 : begin);
        if (b.columns == 1) {
          b.out.resize(static_cast<std::size_t>(b.rows));
          b.in.resize(static_cast<std::size_t>(b.rows));
        }
        borders_.push_back(b);
      }
    requests_.resize(2 * borders_.size());
  }
  void operator()(double* memory) {
    std::size_t at = 0;
    for (border& b : borders_)
      MPI_Irecv(b.columns == 1 ? b.in.data() : memory + b.receive, static_cast<int>(b.rows * b.columns), MPI_DOUBLE,
                b.peer, 7, comm_, &requests_[at++]);
    for (border& b : borders_) {
      if (b.columns == 1)
        for (std::int64_t i = 0; i < b.rows; ++i) b.out[static_cast<std::size_t>(i)] = memory[b.send + i * stride_];
      MPI_Isend(b.columns == 1 ? b.out.data() : memory + b.send, static_cast<int>(b.rows * b.columns), MPI_DOUBLE,
                b.peer, 7, comm_, &requests_[at++]);
    }
    MPI_Waitall(static_cast<int>(at), requests_.data(), MPI_STATUSES_IGNORE);
    for (border& b : borders_)
      if (b.columns == 1)
        for (std::int64_t i = 0; i < b.rows; ++i) memory[b.receive + i * stride_] = b.in[static_cast<std::size_t>(i)];
  }

 private:
  struct border {
    int peer = 0;
    std::int64_t rows = 0, columns = 0, send = 0, receive = 0;
    std::vector<double> out{}, in{};
  };
  MPI_Comm comm_;
  std::int64_t stride_;
  std::vector<border> borders_;
  std::vector<MPI_Request> requests_;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

double fastest(const std::vector<double>& x) {
  return *std::min_element(x.begin(), x.end());
}

// Microseconds of one call, of the slowest rank.
template <class Work>
double microseconds(int times, Work&& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < times; ++i) work();
  const double mine = (MPI_Wtime() - start) / times * 1e6;
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

template <class World>
bool compare(World& world, std::array<int, 2> ranks, int rounds, std::int64_t n) {
  const hd::shape size(n, n);
  const cells layout{world.mesh()};
  const blocks own{world.mesh()};
  hd::sharded<double, 2, cells> x(layout, size, world.rank()), hand(layout, size, world.rank());
  hd::sharded<double, 2, blocks> inner(own, size, world.rank());
  const auto value = [&](std::int64_t i, std::int64_t j) { return static_cast<double>(i * n + j); };
  for (auto* t : {&x, &hand})
    for (std::int64_t i = 0; i < t->local().extent(0); ++i)
      for (std::int64_t j = 0; j < t->local().extent(1); ++j) {
        const std::array<std::int64_t, 2> at{t->local_offset()[0] + i, t->local_offset()[1] + j};
        t->local()(i, j) = own.owns(size, world.rank(), at) ? value(at[0], at[1]) : -1;
      }
  hd::halo_exchange refresh(x, world);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  by_hand exchange(comm, ranks, world.rank(), x.local().extent(0), x.local().extent(1));
  std::vector<double> ours, theirs, moved, ratios;
  refresh(x);
  exchange(hand.elements().data());
  const int times = static_cast<int>(std::clamp(2e3 / (1 + microseconds(10, [&] { refresh(x); })), 5.0, 5000.0));
  int agreed = times;
  MPI_Bcast(&agreed, 1, MPI_INT, 0, MPI_COMM_WORLD);
  for (int round = 0; round < rounds; ++round) {
    const auto heddle_first = [&] { ours.push_back(microseconds(agreed, [&] { refresh(x); })); };
    if (round % 2 == 0) heddle_first();
    theirs.push_back(microseconds(agreed, [&] { exchange(hand.elements().data()); }));
    if (round % 2 != 0) heddle_first();
    ratios.push_back(ours.back() / theirs.back());
  }
  for (int round = 0; round < std::min(rounds, 5); ++round)
    moved.push_back(microseconds(std::max(1, agreed / 50), [&] { hd::redistribute<cells>(inner, world); }));
  MPI_Comm_free(&comm);
  int same = 1;
  for (std::int64_t i = 0; i < x.local().extent(0); ++i)
    for (std::int64_t j = 0; j < x.local().extent(1); ++j) {
      const double want = value(x.local_offset()[0] + i, x.local_offset()[1] + j);
      same = same != 0 && x.local()(i, j) == want && hand.local()(i, j) == want ? 1 : 0;
    }
  MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  std::int64_t bytes = refresh.bytes_sent();
  world.all().all_reduce(bytes, hd::plus{});
  if (world.rank() == 0)
    std::printf("%6lld x %-6lld %9lld %10.2f %10.2f %8.3f %8.3f %14.1f%s\n", static_cast<long long>(n),
                static_cast<long long>(n), static_cast<long long>(bytes), median(theirs), median(ours), median(ratios),
                fastest(ours) / fastest(theirs), median(moved), same != 0 ? "" : "  WRONG VALUES");
  return same != 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: halo_exchange_mpi_bench <rows of ranks> <columns of ranks> <rounds> <size>...\n", stderr);
    return 2;
  }
  const std::array<int, 2> ranks{std::atoi(argv[1]), std::atoi(argv[2])};
  bool same = true;
  hd::launch_options options;
  options.check = hd::checking::off;  // as MPI's calls are
  hd::launch<hd::mpi>(mesh{ranks[0], ranks[1]}, options, [&](auto& world) {
    if (world.rank() == 0)
      std::printf("%-15s %9s %10s %10s %8s %8s %14s\n", "tensor", "bytes", "by hand us", "heddle us", "ratio",
                  "fastest", "redistribute us");
    for (int a = 4; a < argc; ++a) same = compare(world, ranks, std::atoi(argv[3]), std::atoll(argv[a])) && same;
  });
  return same ? 0 : 1;
}
