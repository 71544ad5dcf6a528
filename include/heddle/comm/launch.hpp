// heddle/comm/launch.hpp: one call that starts the ranks and runs the same body on each.
#pragma once

#include <heddle/comm/options.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/mesh/mesh.hpp>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A way to run ranks: `threads`, and others with the same members. `run` starts the ranks and calls the body on each;
/// `context` is one rank's way to make communicators.
template <class T>
concept transport =
    communicator<typename T::communicator> &&
    requires(const typename T::context& context, const std::string& name, const std::vector<int>& members) {
      { context.rank() } -> std::same_as<int>;
      { context.group(name, members, 0) } -> std::same_as<typename T::communicator>;
    };

/// Runs `body(world)` once per rank of the mesh, all at the same time, and returns 0 when all have returned.
/// The mesh is a type (all extents static) or a value; the body takes `auto& world`, a `world<Transport, Mesh>`.
/// `argc` and `argv` are for transports whose launcher passes arguments; `threads` ignores them.
/// Errors: `mesh_error` if `options.ranks` is given and the mesh has another number of ranks. If a rank throws, all
/// ranks are ended and the first error is thrown here: as what it is or derives from of core/error.hpp, else as
/// `heddle::error`, its text preceded by "rank R: ", the original nested in it (`std::rethrow_if_nested`).
template <class Transport, mesh_like Mesh, class Body>
  requires transport<Transport>
int launch(int argc, char** argv, const Mesh& mesh, const launch_options& options, Body&& body) {
  Transport::run(mesh, options, argc, argv, body);
  return 0;
}
template <class Transport, mesh_like Mesh, class Body>
int launch(int argc, char** argv, const Mesh& mesh, Body&& body) {
  return launch<Transport>(argc, argv, mesh, launch_options{}, body);
}
template <class Transport, mesh_like Mesh, class Body>
int launch(const Mesh& mesh, const launch_options& options, Body&& body) {
  return launch<Transport>(0, nullptr, mesh, options, body);
}
template <class Transport, mesh_like Mesh, class Body>
int launch(const Mesh& mesh, Body&& body) {
  return launch<Transport>(0, nullptr, mesh, launch_options{}, body);
}

template <class Transport, mesh_like Mesh, class Body>
int launch(int argc, char** argv, const launch_options& options, Body&& body) {
  static_assert(Mesh::is_static,
                "heddle: launch<Transport, Mesh>: Mesh leaves extents to start-up; pass the mesh as a value");
  if constexpr (Mesh::is_static)
    return launch<Transport>(argc, argv, Mesh{}, options, body);
  else
    return 1;
}
template <class Transport, mesh_like Mesh, class Body>
  requires(!std::same_as<std::remove_cvref_t<Body>, launch_options>)
int launch(int argc, char** argv, Body&& body) {
  return launch<Transport, Mesh>(argc, argv, launch_options{}, body);
}
template <class Transport, mesh_like Mesh, class Body>
int launch(const launch_options& options, Body&& body) {
  return launch<Transport, Mesh>(0, nullptr, options, body);
}
template <class Transport, mesh_like Mesh, class Body>
int launch(Body&& body) {
  return launch<Transport, Mesh>(0, nullptr, launch_options{}, body);
}

}  // namespace heddle::inline v0
