// heddle/tensor/kokkos/regions.hpp: an observer that shows what a rank does as regions of Kokkos Tools.
#pragma once

#include <heddle/core/observer.hpp>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// An observer that gives each observed action to Kokkos Tools as a region with the event's name, on the thread that runs it: kernels
/// that profilers list then lie in the regions `forward`, `optimizer`, ... that launched them. Without a tool (KOKKOS_TOOLS_LIBS) a region costs a
/// comparison. Actions that are reported only when they are over are no regions. Kokkos Tools has one stack of regions in a process: where
/// several ranks are threads of one, their regions lie in each other. For ranks that are processes.
/// `hd::strategy<mesh, ..., hd::kokkos_regions>`.
struct kokkos_regions {
  using kind = observer_kind;
  static constexpr bool enabled = true;
  void begin(const event& e) const { Kokkos::Profiling::pushRegion(e.name); }
  void end(const event&) const { Kokkos::Profiling::popRegion(); }
  void record(const event&) const noexcept {}
};

}  // namespace heddle::inline v0
