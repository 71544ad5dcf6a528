// heddle/core/device_runtime.hpp: device runtimes whose memory a message library takes.
#pragma once

#include <cstdint>

namespace heddle::inline v0 {

/// Whose device a memory space belongs to, as libraries for messages are asked for it. A space says it as `static constexpr device_runtime
/// runtime`; one that says nothing is of `other`.
enum class device_runtime : std::uint8_t { other, cuda, hip };

}  // namespace heddle::inline v0
