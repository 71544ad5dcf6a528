// heddle/comm/launch.hpp: one call that starts the ranks and runs the same body on each.
#pragma once

#include <heddle/comm/options.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/mesh/mesh.hpp>

#include <concepts>
#include <cstdio>
#include <exception>
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

namespace detail {

// Runs what throws and gives a status instead: prints the error, once for all ranks. A transport whose ranks are
// processes that all get the error has a function that says whether this one is to print it.
template <class Transport, class Run>
int launch_status(Run&& run) {
  std::string text;
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "heddle: an exception that is not a std::exception";
  }
  bool here = true;
  if constexpr (requires { Transport::prints_error(text); }) here = Transport::prints_error(text);
  std::fflush(stdout);  // what was printed before stands before it, in a file too
  if (here) {
    text += '\n';
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }
  return 1;
}

}  // namespace detail

/// Runs `body(world)` once per rank of the mesh, all at the same time, and returns 0 when all have returned.
/// The mesh is a type (all extents static) or a value; the body takes `auto& world`, a `world<Transport, Mesh>`.
///
/// With the program's arguments the result is the program's status: `return hd::launch<...>(argc, argv, body)` ends it
/// with 0, or prints the error below on stderr, once for all ranks, and ends it with 1. `argc` and `argv` are for
/// transports whose launcher passes arguments; `threads` ignores them.
///
/// Errors, thrown by the forms without arguments: `mesh_error` if `options.ranks` is given and the mesh has another
/// number of ranks. If a rank throws, all ranks are ended and the first error is thrown here: as what it is or derives
/// from of core/error.hpp, else as `heddle::error`, its text preceded by "rank R: ", the original nested in it
/// (`std::rethrow_if_nested`).
template <class Transport, mesh_like Mesh, class Body>
  requires transport<Transport>
int launch(const Mesh& mesh, const launch_options& options, Body&& body) {
  Transport::run(mesh, options, 0, nullptr, body);
  return 0;
}
template <class Transport, mesh_like Mesh, class Body>
int launch(const Mesh& mesh, Body&& body) {
  return launch<Transport>(mesh, launch_options{}, body);
}
template <class Transport, mesh_like Mesh, class Body>
  requires transport<Transport>
[[nodiscard("heddle: launch with arguments returns the status for main to return")]] int launch(
    int argc, char** argv, const Mesh& mesh, const launch_options& options, Body&& body) {
  return detail::launch_status<Transport>([&] { Transport::run(mesh, options, argc, argv, body); });
}
template <class Transport, mesh_like Mesh, class Body>
[[nodiscard("heddle: launch with arguments returns the status for main to return")]] int launch(int argc, char** argv,
                                                                                                const Mesh& mesh,
                                                                                                Body&& body) {
  return launch<Transport>(argc, argv, mesh, launch_options{}, body);
}

namespace detail {

template <mesh_like Mesh>
consteval bool is_all_static() {
  static_assert(Mesh::is_static,
                "heddle: launch<Transport, Mesh>: Mesh leaves extents to start-up; pass the mesh as a value");
  return Mesh::is_static;
}

}  // namespace detail

template <class Transport, mesh_like Mesh, class Body>
int launch(const launch_options& options, Body&& body) {
  if constexpr (detail::is_all_static<Mesh>()) return launch<Transport>(Mesh{}, options, body);
  return 1;
}
template <class Transport, mesh_like Mesh, class Body>
int launch(Body&& body) {
  return launch<Transport, Mesh>(launch_options{}, body);
}
template <class Transport, mesh_like Mesh, class Body>
[[nodiscard("heddle: launch with arguments returns the status for main to return")]] int launch(
    int argc, char** argv, const launch_options& options, Body&& body) {
  if constexpr (detail::is_all_static<Mesh>()) return launch<Transport>(argc, argv, Mesh{}, options, body);
  return 1;
}
template <class Transport, mesh_like Mesh, class Body>
  requires(!std::same_as<std::remove_cvref_t<Body>, launch_options>)
[[nodiscard("heddle: launch with arguments returns the status for main to return")]] int launch(int argc, char** argv,
                                                                                                Body&& body) {
  return launch<Transport, Mesh>(argc, argv, launch_options{}, body);
}

}  // namespace heddle::inline v0
