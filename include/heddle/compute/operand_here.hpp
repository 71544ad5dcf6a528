// heddle/compute/operand_here.hpp: checks that an operand is this rank's, with its elements.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/tensor/sharded.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0::compute::detail {

// The value of a call that does not compile, so that its uses are not refused as well.
template <class Result>
[[noreturn]] Result refused_already() {
  throw layout_error("heddle: compute: not possible");
}

// Errors: `layout_error` that begins with what `operation()` gives, such as "heddle: einsum"; it is called for an error
// only.
template <class Operation, class T, std::size_t Rank, layout_like L, class Space, class World>
void require_operand_here(Operation operation, const sharded<T, Rank, L, Space>& x, const World& world) {
  const bool here = x.layout().mesh() == world.mesh() && x.rank() == world.rank();
  if (here && x.memory().size() == x.local_shape().size()) return;
  std::string text = operation();
  if (!here) {
    text += ": an operand is rank ";
    text += std::to_string(x.rank());
    text += "'s part of a tensor on ";
    text += to_string(x.layout().mesh());
    text += ", but this is rank ";
    text += std::to_string(world.rank());
    text += " on ";
    text += to_string(world.mesh());
  } else {
    text += ": the elements of an operand of shape ";
    text += to_string(x.shape());
    text += " were moved away or released";
  }
  throw layout_error(text);
}

}  // namespace heddle::inline v0::compute::detail
