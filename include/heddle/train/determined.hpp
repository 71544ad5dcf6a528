// heddle/train/determined.hpp: sums and stages by the determinism that a strategy asks for.
#pragma once

#include <heddle/core/determinism.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/tensor/space_collectives.hpp>

namespace heddle::inline v0::train::detail {

// Sums of gradients by the communicator's own calls, in the order of a queue.
struct sums_of_transport {
  template <class Queue, class Group, class Row>
  static void all_reduce(Queue& queue, Group& group, const Row& x) {
    heddle::v0::all_reduce(queue, group, x, plus{});
  }
  template <class Queue, class Group, class In, class Out, class Counts>
  static void reduce_scatter_v(Queue& queue, Group& group, const In& in, const Out& out, Counts counts) {
    heddle::v0::reduce_scatter_v(queue, group, in, out, counts, plus{});
  }
};

template <class Communicator, class Determinism>
struct own_calls_suffice {
  static constexpr bool value = determinism::own_calls<Communicator> >= Determinism::asked;
};

// What a strategy's determinism replaces. That of `mesh_to_mesh` is in train/mesh_to_mesh.hpp.
template <class Determinism>
inline constexpr bool determinism_has_header = Determinism::asked < determinism::level::mesh_to_mesh;
template <class Determinism>
struct determined {
  static constexpr bool in_trees = false;
  template <class Stage>
  using stage = Stage;
  template <class Reductions>
  using reductions = Reductions;
  template <class Run>
  static consteval bool fits() {
    static_assert(determinism_has_header<Determinism>,
                  "heddle: a strategy with determinism::mesh_to_mesh needs #include <heddle/train/mesh_to_mesh.hpp>");
    using suffices = own_calls_suffice<typename Run::gradient_group, Determinism>;
    static_assert(
        suffices::value || !determinism_has_header<Determinism>,
        "heddle: this communicator's own reductions may fold in another order in the next run; ask the strategy "
        "for not_guaranteed, or for mesh_to_mesh, whose sums are made of messages");
    return suffices::value && determinism_has_header<Determinism>;
  }
};

}  // namespace heddle::inline v0::train::detail
