// A warp on one thread of the host: all of its lanes' registers, with the layouts that the PTX ISA gives to fragments.
#pragma once

#include "group_of_threads.hpp"
#include "warp_accesses.hpp"

#include <heddle/compute/group/warps.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace cuda_double {

/// A warp of a block whose warps are a group of threads. Copies happen when they are waited for: memory that is read too early holds what it did before.
class emulated_warp {
  static constexpr int lanes = heddle::compute::detail::in_groups::warp_lanes;

 public:
  template <class E, int N>
  struct registers {
    E values[lanes][N];
    E& operator()(int lane, int i) { return values[lane][i]; }
    const E& operator()(int lane, int i) const { return values[lane][i]; }
  };

  emulated_warp(group_of_threads& block, int index, warp_accesses* counted = nullptr)
      : block_(block), index_(index), counted_(counted) {}
  int index() const { return index_; }
  template <class F>
  void each_lane(const F& f) {
    for (int l = 0; l < lanes; ++l) {
      step_ = 0;
      f(l);
    }
    if (counted_ == nullptr) return;
    for (const step& s : steps_)
      if (s.of_device)
        counted_->of_device(s.kind, s.lanes);
      else
        counted_->shared(s.kind, s.lanes);
    steps_.clear();
  }
  void sync() { block_.sync(); }
  void sync_lanes() {}
  void forget() {}
  static void forget(int&) {}

  /// Asynchronous copies may be done at any time between their beginning and a wait for them: with false, the first value, as late as they may be, so that what reads too
  /// early is seen; with true at once, so that a copy onto what others still read is.
  static bool& copies_at_once() {
    static bool at_once = false;
    return at_once;
  }
  template <class T>
  void copy(T* to, const T* from, bool is_there) {
    note(&warp_accesses::copies, to, 16, false);
    note(&warp_accesses::copied, from, 16, true, is_there);
    later(to, from, 16, is_there);
  }
  void copy_number(float* to, const float* from, bool is_there) {
    note(&warp_accesses::numbers, to, 4, false);
    later(to, from, 4, is_there);
  }
  void commit() { ends_.push_back(copies_.size()); }
  template <int N>
  void wait() {
    const std::size_t groups = ends_.size() > N ? ends_.size() - N : 0;
    const std::size_t count = groups == 0 ? 0 : ends_[groups - 1];
    for (std::size_t i = 0; i < count; ++i) done(copies_[i]);
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(count));
    ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(groups));
    for (std::size_t& e : ends_) e -= count;
  }
  template <class T>
  void store(T* to, const T* from) {
    note(&warp_accesses::loads, from, 16, false);
    note(&warp_accesses::stored, to, 16, true);
    std::memcpy(to, from, 16);
  }
  template <class T>
  void store_pair(T* to, std::uint32_t pair) {
    note(&warp_accesses::pairs, to, 4, false);
    std::memcpy(to, &pair, 4);
  }

  template <bool Transposed, class T, class F>
  void load_matrices(registers<std::uint32_t, 4>& x, const T* memory, const F& at, int turn, int step) {
    // On the device `turn` goes to bits of the whole address.
    if (((reinterpret_cast<std::uintptr_t>(memory) / sizeof(T)) & static_cast<std::uintptr_t>(turn)) != 0)
      throw std::logic_error("ldmatrix: the address of the tile has bits of the swizzle");
    if (counted_ != nullptr) {
      warp_access rows{{}, 16};
      for (int l = 0; l < lanes; ++l)
        rows.at.push_back(reinterpret_cast<std::uintptr_t>(memory + (at(l) ^ turn) + step));
      counted_->shared(&warp_accesses::matrices, rows);
    }
    for (int m = 0; m < 4; ++m)
      for (int l = 0; l < lanes; ++l)
        for (int i = 0; i < 2; ++i) {
          const int along = l / 4, across = 2 * (l % 4) + i, row = Transposed ? across : along;
          put(x(l, m), i, memory[(at(8 * m + row) ^ turn) + step + (Transposed ? along : across)].bits);
        }
  }
  template <class T>
  void multiply_add(registers<float, 4>& c, const registers<std::uint32_t, 4>& a, const registers<std::uint32_t, 4>& b,
                    int half) {
    float left[16][16], right[16][8];
    for (int l = 0; l < lanes; ++l) {
      const int g = l / 4, t = 2 * (l % 4);
      for (int i = 0; i < 8; ++i) left[g + (i / 2 % 2) * 8][t + i % 2 + i / 4 * 8] = element<T>(a(l, i / 2), i % 2);
      for (int i = 0; i < 4; ++i) right[t + i % 2 + i / 2 * 8][g] = element<T>(b(l, 2 * half + i / 2), i % 2);
    }
    for (int l = 0; l < lanes; ++l)
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + i / 2 * 8, column = 2 * (l % 4) + i % 2;
        float sum = c(l, i);
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
        c(l, i) = sum;
      }
  }
  template <class T>
  static std::uint32_t packed(float x, float y) {
    return T(x).bits | std::uint32_t{T(y).bits} << 16;
  }
  template <int N, class Op>
  void over_quads(registers<float, N>& x, const Op& op) {
    for (int i = 0; i < N; ++i)
      for (int l = 0; l < lanes; l += 4) {
        const float all = op(op(x(l, i), x(l + 1, i)), op(x(l + 2, i), x(l + 3, i)));
        for (int k = 0; k < 4; ++k) x(l + k, i) = all;
      }
  }
  template <class E, int N, class Op>
  void over_lanes(registers<E, N>& x, const Op& op) {
    for (int i = 0; i < N; ++i) {
      E all = x(0, i);
      for (int l = 1; l < lanes; ++l) all = op(all, x(l, i));
      for (int l = 0; l < lanes; ++l) x(l, i) = all;
    }
  }
  template <int N>
  static bool any(const registers<int, N>& x) {
    int all = 0;
    for (int l = 0; l < lanes; ++l)
      for (int i = 0; i < N; ++i) all |= x(l, i);
    return all != 0;
  }
  static float reciprocal(float x) { return 1.0f / x; }
  static float power_of_two(float x) { return std::exp2(x); }

 private:
  struct one_copy {
    void* to;
    const void* from;
    std::size_t bytes;
    bool is_there;
  };
  void later(void* to, const void* from, std::size_t bytes, bool is_there) {
    const one_copy c{to, from, bytes, is_there};
    if (copies_at_once())
      done(c);
    else
      copies_.push_back(c);
  }
  static void done(const one_copy& c) {
    if (c.is_there)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
  }
  static void put(std::uint32_t& word, int half, std::uint16_t bits) {
    word = half == 0 ? (word & 0xffff0000u) | bits : (word & 0xffffu) | std::uint32_t{bits} << 16;
  }
  template <class T>
  static float element(std::uint32_t word, int half) {
    return T::from_bits(static_cast<std::uint16_t>(word >> (16 * half)));
  }
  /// An access that lanes make one after the other, each as the same of its own.
  struct step {
    access_count warp_accesses::* kind;
    bool of_device;
    warp_access lanes;
  };
  void note(access_count warp_accesses::* kind, const void* at, std::size_t bytes, bool of_device,
            bool is_there = true) {
    if (counted_ == nullptr) return;
    if (step_ == steps_.size()) steps_.push_back({kind, of_device, {{}, bytes}});
    if (is_there) steps_[step_].lanes.at.push_back(reinterpret_cast<std::uintptr_t>(at));
    ++step_;
  }
  group_of_threads& block_;
  int index_;
  warp_accesses* counted_;
  std::vector<step> steps_;
  std::size_t step_ = 0;
  std::vector<one_copy> copies_;
  std::vector<std::size_t> ends_;
};

}  // namespace cuda_double
