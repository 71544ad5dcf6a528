// Parts of a trainer whose steps can be captured into a graph; each file changes one of them.
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/train/captured_steps.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/steps.hpp>

#include <cstdint>

namespace captured_parts {

namespace hd = heddle;

struct device {
  struct queue {
    using graph = int;
    using pinned = int;
    int stream() const { return 0; }
    template <class Body>
    friend void launch_each(queue&, std::int64_t, const Body&) {}
  };
};
struct backend {
  using space = device;
};
struct stage {
  using space = hd::testing::checked_memory;
  static constexpr bool only_queues = true;
  void copy_loss(int, hd::scalar_view<double, space>) {}
};
struct optimizer {
  template <class Backend>
  static constexpr bool updates_at = true;
};
struct communicator {
  static constexpr bool host_memory = false;
  communicator on(int) const { return {}; }
};
struct world {
  communicator& all();
};
struct strategy {
  using steps = hd::captured_steps;
  using backend = captured_parts::backend;
  using norm_check = hd::norm_first;
  using observer = hd::null_observer;
};

template <class Strategy = strategy, class Stage = stage, class Optimizer = optimizer, class World = world>
inline constexpr bool captured = hd::train::detail::steps_are_captured<Strategy, Stage, Optimizer, World>();
static_assert(captured<>);

}  // namespace captured_parts
