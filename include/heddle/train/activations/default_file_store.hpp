// heddle/train/activations/default_file_store.hpp: a file store: io_uring, else threads.
#pragma once

#include <heddle/train/activations/file_store.hpp>
#if defined(HEDDLE_HAS_URING)
#include <heddle/train/activations/uring.hpp>
#endif

namespace heddle::inline v0::activations {

/// `uring_store` in a program that links heddle::uring, whose target defines HEDDLE_HAS_URING (without CMake: define it
/// and link liburing), else `file_store`. All of a program's files should agree. Where the system refuses io_uring the
/// former works with threads as the latter does; `store_counters::moved_by` says what it came to.
#if defined(HEDDLE_HAS_URING)
using found_file_store = uring_store;
#else
using found_file_store = file_store;
#endif

}  // namespace heddle::inline v0::activations
