// heddle/train/pipeline_axis.hpp: the mesh axis of pipeline stages, as a policy.
#pragma once

#include <heddle/mesh/mesh.hpp>

#include <type_traits>

namespace heddle::inline v0 {

/// The kind of policies that name the axis of the pipeline.
struct pipeline_axis_kind {};

/// A strategy's pipeline runs along the axis `Tag`, which its mesh must have. The default is `pipeline_axis<pp>`; a
/// mesh without pp has one pipeline rank.
template <class Tag>
struct pipeline_axis {
  using kind = pipeline_axis_kind;
  using axis = Tag;
};

namespace train::detail {

// The pipeline's axis alone, as schedules know it.
template <class Pipeline, mesh_like Mesh>
constexpr auto pipeline_mesh(const Mesh& whole) {
  if constexpr (std::is_same_v<Pipeline, pp>) {
    return whole;
  } else if constexpr (!Mesh::template has<Pipeline>) {
    return mesh<axis<pp, 1>>{};
  } else {
    using only = mesh<axis<pp, Mesh::template axis_of<Pipeline>::fixed_size>>;
    if constexpr (only::is_static)
      return only{};
    else
      return only::from_extents({whole.template extent<Pipeline>()});
  }
}

}  // namespace train::detail
}  // namespace heddle::inline v0
