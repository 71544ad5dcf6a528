// heddle/core/device_runtime.hpp: names the runtimes of devices whose memory a library for messages may take.
#pragma once

#include <cstdint>

namespace heddle::inline v0 {

/// Whose device a memory space belongs to, as libraries for messages are asked for it. A space says it as `static constexpr device_runtime
/// runtime`; one that says nothing is of `other`.
enum class device_runtime : std::uint8_t { other, cuda, hip };

}  // namespace heddle::inline v0
