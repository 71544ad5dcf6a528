// What the accesses of an emulated warp cost: phases of shared memory, and sectors of the device's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace cuda_double {

/// One access of the lanes of a warp: the addresses of those that take part, in the order of lanes, of so many bytes each.
struct warp_access {
  std::vector<std::uintptr_t> at;
  std::size_t bytes;

  /// Lanes whose bytes shared memory hands out together: 128 bytes, in 32 banks of 4.
  std::size_t least_phases() const { return (at.size() * bytes + 127) / 128; }
  /// Phases that these lanes take: different words of one bank are in different phases.
  /// Source: CUDA C++ Programming Guide 13.0, section 20.7.4 (shared memory); 16 bytes go by eight lanes.
  std::size_t phases() const {
    const std::size_t together = 128 / bytes;
    std::size_t all = 0;
    for (std::size_t first = 0; first < at.size(); first += together) {
      std::vector<std::set<std::uintptr_t>> words(32);
      for (std::size_t i = first; i < (std::min)(at.size(), first + together); ++i)
        for (std::size_t byte = 0; byte < bytes; byte += 4) words[(at[i] + byte) / 4 % 32].insert((at[i] + byte) / 4);
      std::size_t most = 0;
      for (const auto& of_bank : words) most = (std::max)(most, of_bank.size());
      all += most;
    }
    return all;
  }
  /// Sectors of 32 bytes that these lanes touch, and as many as hold their bytes.
  std::size_t sectors() const {
    std::set<std::uintptr_t> all;
    for (const std::uintptr_t a : at)
      for (std::size_t byte = 0; byte < bytes; byte += 4) all.insert((a + byte) / 32);
    return all.size();
  }
  std::size_t least_sectors() const { return (at.size() * bytes + 31) / 32; }
};

/// Accesses of one kind: how many, what they take, and what they would take at least.
struct access_count {
  std::size_t accesses = 0, taken = 0, least = 0;
  void add(std::size_t more, std::size_t more_least) { ++accesses, taken += more, least += more_least; }
  friend access_count operator+(const access_count& a, const access_count& b) {
    return {a.accesses + b.accesses, a.taken + b.taken, a.least + b.least};
  }
};
/// Of a warp. In shared memory: rows that `ldmatrix` reads, 16 bytes that are read, 4 bytes that are written, and what asynchronous copies of 16 and of 4 bytes write;
/// in the device's: what copies of 16 bytes read, and what is stored.
struct warp_accesses {
  access_count matrices, loads, pairs, copies, numbers, copied, stored;

  void shared(access_count warp_accesses::* kind, const warp_access& a) {
    (this->*kind).add(a.phases(), a.least_phases());
  }
  void of_device(access_count warp_accesses::* kind, const warp_access& a) {
    (this->*kind).add(a.sectors(), a.least_sectors());
  }
  friend warp_accesses operator+(const warp_accesses& a, const warp_accesses& b) {
    return {a.matrices + b.matrices, a.loads + b.loads,   a.pairs + b.pairs,  a.copies + b.copies,
            a.numbers + b.numbers,   a.copied + b.copied, a.stored + b.stored};
  }
};

}  // namespace cuda_double
