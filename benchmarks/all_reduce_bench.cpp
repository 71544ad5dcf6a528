// all_reduce of floats among threads, in place: heddle, a loop written by hand over shared memory, MPI and Gloo, in one run.
//
//   all_reduce_bench [repetitions = 5] [largest bytes = 67108864]
//
// MPI is measured by all_reduce_mpi_bench, which is looked for beside this program and run by mpirun, Gloo by
// benchmarks/all_reduce_gloo.py, whose path HEDDLE_GLOO_BENCH gives (by default this program's source folder); without
// them a column stays empty. Algorithm bandwidth is bytes per rank / time; times are medians. Memory bandwidths are the best of
// several, on as many threads as there are cores, counting bytes read and written. An all_reduce in place among p ranks
// must read and write p * bytes; "of bound" is the time that takes at the bandwidth of scaling in place, over the time
// measured. It passes 100 % where the buffers fit into a cache.
#include <heddle/comm/threads.hpp>
#include <heddle/core/cores.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace hd = heddle;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct timing {
  double median = 0, least = 0, most = 0;
};

timing summary(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

int times_for(double seconds) {
  return static_cast<int>(std::clamp(0.03 / seconds, 1.0, 2000.0));
}

timing with_heddle(int ranks, std::size_t bytes, int repetitions) {
  std::vector<double> seconds;
  hd::launch_options options;
  if (ranks <= hd::detail::available_cores()) options.bind = hd::binding::on;  // rank 0 too
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{ranks}, options, [&](auto& world) {
    auto& c = world.all();
    std::vector<float> x(bytes / sizeof(float), 0.0f);
    const auto run = [&](int times) {
      c.barrier();
      const double start = now();
      for (int i = 0; i < times; ++i) c.all_reduce(x, hd::plus{});
      double each = (now() - start) / times;
      c.broadcast(std::span(&each, 1), 0);
      return each;
    };
    run(1);
    const int times = times_for(run(1));
    for (int i = 0; i < repetitions; ++i) {
      const double each = run(times);
      if (c.rank() == 0) seconds.push_back(each);
    }
  });
  return summary(seconds);
}

// What one writes without a library: a barrier, every thread sums its slice block by block and writes it to all, a
// barrier.
timing by_hand(int ranks, std::size_t bytes, int repetitions) {
  std::vector<double> seconds;
  const auto p = static_cast<std::size_t>(ranks);
  std::vector<float*> buffers(p);
  std::barrier sync(ranks);
  int times = 1;
  const auto rank_main = [&](std::size_t r) {
    const std::size_t n = bytes / sizeof(float);
    std::vector<float> x(n, 0.0f);
    const auto all_reduce = [&] {
      buffers[r] = x.data();
      sync.arrive_and_wait();
      constexpr std::size_t block = 1024;
      float sum[block];
      const std::size_t end = n * (r + 1) / p;
      for (std::size_t at = n * r / p; at < end; at += block) {
        const std::size_t length = std::min(block, end - at);
        std::memcpy(sum, buffers[0] + at, length * sizeof(float));
        for (std::size_t q = 1; q < p; ++q)
          for (std::size_t j = 0; j < length; ++j) sum[j] += buffers[q][at + j];
        for (std::size_t q = 0; q < p; ++q) std::memcpy(buffers[q] + at, sum, length * sizeof(float));
      }
      sync.arrive_and_wait();
    };
    const auto run = [&](int count) {
      sync.arrive_and_wait();
      const double start = now();
      for (int i = 0; i < count; ++i) all_reduce();
      const double each = (now() - start) / count;
      sync.arrive_and_wait();
      return each;
    };
    run(1);
    const double first = run(1);
    if (r == 0) times = times_for(first);
    sync.arrive_and_wait();
    for (int i = 0; i < repetitions; ++i) {
      const double each = run(times);
      if (r == 0) seconds.push_back(each);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t r = 1; r < p; ++r) threads.emplace_back(rank_main, r);
  rank_main(0);
  for (auto& t : threads) t.join();
  return summary(seconds);
}

// What another program prints: a line "<bytes> <seconds>" per size.
std::map<std::size_t, double> printed_by(std::string command, const std::vector<std::size_t>& sizes) {
  for (const std::size_t bytes : sizes) command += " " + std::to_string(bytes);
  command += " 2>/dev/null";
  std::map<std::size_t, double> seconds;
  if (std::FILE* out = ::popen(command.c_str(), "r")) {
    std::size_t bytes = 0;
    double each = 0;
    while (std::fscanf(out, "%zu %lf", &bytes, &each) == 2) seconds[bytes] = each;
    ::pclose(out);
  }
  return seconds;
}

std::map<std::size_t, double> with_mpi(const std::string& folder, int ranks, const std::vector<std::size_t>& sizes,
                                       int repetitions) {
  return printed_by("timeout 300 mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) + " '" +
                        folder + "/all_reduce_mpi_bench' " + std::to_string(repetitions),
                    sizes);
}

std::map<std::size_t, double> with_gloo(int ranks, const std::vector<std::size_t>& sizes, int repetitions) {
  const char* given = std::getenv("HEDDLE_GLOO_BENCH");
  std::string script = given != nullptr ? given : __FILE__;
  if (given == nullptr) script = script.substr(0, script.rfind('/') + 1) + "all_reduce_gloo.py";
  return printed_by(
      "timeout 300 /usr/bin/python3 '" + script + "' " + std::to_string(ranks) + " " + std::to_string(repetitions),
      sizes);
}

struct bandwidth {
  double copy = 0, in_place = 0;
};

// Bytes per second, read and written, on all cores: the best of several, as a bound should be.
bandwidth memory_bandwidth() {
  const int cores = static_cast<int>((std::max)(1u, std::thread::hardware_concurrency()));
  constexpr std::size_t count = 32u << 20, block = 512;
  bandwidth best;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{cores}, [&](auto& world) {
    std::vector<float> from(count, 1.0f), to(count, 2.0f);
    const auto rate = [&](auto work) {
      world.all().barrier();
      const double start = now();
      work();
      world.all().barrier();
      return 2.0 * sizeof(float) * count * cores / (now() - start);
    };
    for (int i = 0; i < 9; ++i) {
      const double copy = rate([&] { std::memcpy(to.data(), from.data(), count * sizeof(float)); });
      const double in_place = rate([&] {
        for (std::size_t at = 0; at < count; at += block)
          for (std::size_t j = 0; j < block; ++j) from[at + j] *= 1.5f;
      });
      if (world.rank() != 0) continue;
      best.copy = (std::max)(best.copy, copy);
      best.in_place = (std::max)(best.in_place, in_place);
    }
  });
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::size_t largest = argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : std::size_t{64} << 20;
  const std::string program = argv[0];
  const std::string folder = program.find('/') == std::string::npos ? "." : program.substr(0, program.rfind('/'));
  std::vector<std::size_t> sizes;
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 10, std::size_t{16} << 10, std::size_t{256} << 10,
                                  std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{64} << 20})
    if (bytes <= largest) sizes.push_back(bytes);

  const bandwidth memory = memory_bandwidth();
  std::printf("%u cores, memory: copy %.1f GB/s, scaling in place %.1f GB/s; medians of %d\n\n",
              std::thread::hardware_concurrency(), memory.copy * 1e-9, memory.in_place * 1e-9, repetitions);
  std::printf(
      "| ranks | bytes | heddle us | least to most | by hand us | MPI us | Gloo us | heddle GB/s | MPI GB/s | "
      "by hand / "
      "heddle | MPI / heddle | Gloo / heddle | of bound |\n"
      "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
  for (const int ranks : {2, 4, 8}) {
    const auto mpi = with_mpi(folder, ranks, sizes, repetitions);
    const auto gloo = with_gloo(ranks, sizes, repetitions);
    for (const std::size_t bytes : sizes) {
      const timing h = with_heddle(ranks, bytes, repetitions);
      const timing hand = by_hand(ranks, bytes, repetitions);
      const auto of = [&](const std::map<std::size_t, double>& other) {
        const auto found = other.find(bytes);
        return found == other.end() ? 0 : found->second;
      };
      const double size = static_cast<double>(bytes);
      const double bound = 2.0 * ranks * size / memory.in_place;
      std::printf(
          "| %d | %zu | %.1f | %.1f to %.1f | %.1f | %.1f | %.1f | %.3f | %.3f | %.2f | %.2f | %.1f | %.0f %% |\n",
          ranks, bytes, h.median * 1e6, h.least * 1e6, h.most * 1e6, hand.median * 1e6, of(mpi) * 1e6, of(gloo) * 1e6,
          size / h.median * 1e-9, of(mpi) > 0 ? size / of(mpi) * 1e-9 : 0.0, hand.median / h.median, of(mpi) / h.median,
          of(gloo) / h.median, 100 * bound / h.median);
      std::fflush(stdout);
    }
  }
}
