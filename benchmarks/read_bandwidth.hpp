// benchmarks/read_bandwidth.hpp: how fast threads read memory, which bounds decoding, and medians of rounds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <thread>
#include <vector>

/// Seconds by the clock, and seconds that all threads together were on processors, which do not count what others on the machine take.
struct spent {
  double wall = 0, processor = 0;
};
template <class F>
spent time_of(F&& work) {
  const std::clock_t used = std::clock();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const auto end = std::chrono::steady_clock::now();
  const double processor = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
  return {std::chrono::duration<double>(end - begin).count(), processor};
}

/// Bytes that `read_memory` reads.
inline constexpr std::size_t bytes_of_memory = std::size_t{512} << 20;
/// So many threads read 512 MiB, each its own part.
inline spent read_memory(int threads) {
  static const std::vector<float> memory(bytes_of_memory / sizeof(float), 1.0f);
  const std::size_t part = memory.size() / static_cast<std::size_t>(threads);
  return time_of([&] {
    std::vector<std::jthread> readers;
    for (int t = 0; t < threads; ++t)
      readers.emplace_back([&, t] {
        const float* const from = memory.data() + static_cast<std::size_t>(t) * part;
        float sums[64] = {};
        for (std::size_t i = 0; i + 64 <= part; i += 64)
          for (std::size_t l = 0; l < 64; ++l) sums[l] += from[i + l];
        float sum = 0;
        for (const float s : sums) sum += s;
        volatile float keep = sum;  // the sums are wanted
        (void)keep;
      });
  });
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}
