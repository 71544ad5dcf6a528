// heddle/layout/plan_problem.hpp: a redistribution as numbers that the search works on.
#pragma once

#include <heddle/core/static_vector.hpp>
#include <heddle/layout/redistribution_objective.hpp>
#include <heddle/layout/step_kind.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {

namespace detail {

inline constexpr std::size_t planned_axes = 8;  // axes that may change in one redistribution
inline constexpr std::size_t planned_dims = 16;
inline constexpr std::size_t planned_steps = 3 * planned_axes + 2;

// What the axes do, 16 bits each: role, dimension, level, split policy. Only axes that change, numbered 0..; dimensions
// are numbered in order; levels count from those that change.
enum : unsigned { planned_replicated = 0, planned_sharded = 1, planned_partial = 2, planned_other_partial = 3 };
struct planned_use {
  unsigned role = planned_replicated, dim = 0, level = 0, split = 0;
};
struct planned_state {
  std::uint64_t word[2]{0, 0};

  constexpr unsigned code(unsigned a) const { return static_cast<unsigned>(word[a / 4] >> (16 * (a % 4))) & 0xffffu; }
  constexpr unsigned role(unsigned a) const { return code(a) & 3u; }
  constexpr unsigned dim(unsigned a) const { return code(a) >> 2 & 15u; }
  constexpr unsigned level(unsigned a) const { return code(a) >> 6 & 15u; }
  constexpr unsigned split(unsigned a) const { return code(a) >> 10; }
  constexpr void set(unsigned a, const planned_use& u) {
    const std::uint64_t bits = u.role | u.dim << 2 | u.level << 6 | u.split << 10;
    word[a / 4] = (word[a / 4] & ~(std::uint64_t{0xffff} << (16 * (a % 4)))) | bits << (16 * (a % 4));
  }
  friend constexpr bool operator==(const planned_state& a, const planned_state& b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
  }
};

struct plan_problem {
  unsigned axes = 0, dims = 0;
  int extents[planned_axes]{};
  planned_state from{}, to{};
  std::uint64_t intervals = ~std::uint64_t{0};  // bit s: split policy s gives intervals
  objective_mode mode = objective_mode::bytes;
  double tensor_bytes = 0;
  double seconds_per_message[planned_axes]{};
  double bytes_per_second[planned_axes]{};
};

struct planned_step {
  step_kind kind = step_kind::none;
  unsigned axes = 0;  // a bit per axis
  int from_dim = -1, to_dim = -1;
  bool other_op = false;
  planned_state after{};
};
struct planned_path {
  static_vector<planned_step, planned_steps> steps{};
  double bytes = 0;    // sent by all ranks together, in tensors
  double seconds = 0;  // alpha_beta only
  double peak = 0;     // most that one rank holds before and after a step together, in tensors
  bool proven = true;  // whether the search showed that no other way is cheaper
};

}  // namespace detail
}  // namespace heddle::inline v0
