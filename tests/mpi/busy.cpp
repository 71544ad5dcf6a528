// A program that communicates until it is ended: kill.py ends one of its processes.
#include <heddle/comm/mpi.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

namespace hd = heddle;

int main(int argc, char** argv) {
  hd::launch_options options;
  if (argc > 1 && std::string_view(argv[1]) == "unchecked") options.check = hd::checking::off;
  const hd::mpi_session session(argc, argv);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return hd::launch<hd::mpi>(argc, argv, hd::mesh<hd::axis<hd::dp>>{ranks}, options, [](auto& world) {
    auto& c = world.all();
    std::printf("rank %d process %d\n", c.rank(), static_cast<int>(::getpid()));
    std::fflush(stdout);
    std::vector<float> x(1000), y(1000);
    const int next = (c.rank() + 1) % c.size(), last = (c.rank() + c.size() - 1) % c.size();
    const auto start = std::chrono::steady_clock::now();
    for (float stop = 0; stop == 0;) {
      c.all_reduce(x, y, hd::plus{});
      auto sent = c.isend(x, next);
      c.recv(y, last);
      sent.wait();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      stop = std::chrono::steady_clock::now() - start > std::chrono::seconds(60) ? 1.0f : 0.0f;
      c.all_reduce(std::span(&stop, 1), hd::maximum{});
    }
  });
}
