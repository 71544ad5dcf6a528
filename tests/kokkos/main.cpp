// tests/kokkos/main.cpp: the entry point of tests of the component kokkos, all between Kokkos' beginning and its end.
#include "../catch_session.hpp"

#include <Kokkos_Core.hpp>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  return Catch::Session().run(argc, argv);
}
