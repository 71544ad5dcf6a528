// heddle/observe/cuda/ranges.hpp: an observer with NVTX ranges of ranks (not run on a GPU).
#pragma once

#include <heddle/core/observer.hpp>

#include <string>

#if !__has_include(<nvtx3/nvToolsExt.h>)
#error \
    "heddle/observe/cuda/ranges.hpp needs NVTX 3, which comes with the CUDA Toolkit: link the CMake target heddle::cuda, or add the folder of nvtx3/nvToolsExt.h to the include path"
#endif
#include <nvtx3/nvToolsExt.h>

namespace heddle::inline v0 {

/// An observer that gives each observed action to NVTX as a range of the thread that runs it, with rank and name: `rank 3: forward`. Profilers (Nsight
/// Systems) show the kernels that it launched under it. Each thread has a stack of ranges of its own, so ranks may be threads.
/// Actions that are reported only when they are over are no ranges. `hd::strategy<mesh, ..., hd::nvtx_ranges>`.
struct nvtx_ranges {
  using kind = observer_kind;
  static constexpr bool enabled = true;
  void begin(const event& e) const {
    if (e.rank < 0) {
      static_cast<void>(nvtxRangePushA(e.name));
      return;
    }
    const std::string name = "rank " + std::to_string(e.rank) + ": " + e.name;
    static_cast<void>(nvtxRangePushA(name.c_str()));
  }
  void end(const event&) const noexcept { static_cast<void>(nvtxRangePop()); }
  void record(const event&) const noexcept {}
};

}  // namespace heddle::inline v0
