// heddle/core/error.hpp: the exceptions heddle throws.
#pragma once

#include <heddle/core/config.hpp>

#include <stdexcept>

namespace heddle::inline v0 {

/// What this library throws. `what()` says which rank, axis or tensor, what was expected and what came.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A mesh does not describe the ranks that are there.
struct mesh_error : error {
  using error::error;
};

/// A shape, a layout or a redistribution does not fit the tensor or the mesh.
struct layout_error : error {
  using error::error;
};

/// A transport failed, ranks disagree about a call, or a rank did not arrive in time.
struct comm_error : error {
  using error::error;
};

/// Another rank of the same world failed first; `what()` repeats that rank's message.
struct aborted_error : comm_error {
  using comm_error::comm_error;
};

/// A schedule is incomplete, out of order, deadlocks, or does not fit its memory.
struct schedule_error : error {
  using error::error;
};

/// A setting that cannot work: names the setting, its value and what would be accepted.
struct config_error : error {
  using error::error;
};

/// A value that should be finite is not, or a computation left its domain.
struct numeric_error : error {
  using error::error;
};

/// Memory was not to be had; `what()` says for what, how many bytes, and how many there are.
struct memory_error : error {
  using error::error;
};

/// A file or folder is missing, unreadable, damaged or of another format.
struct io_error : error {
  using error::error;
};

}  // namespace heddle::inline v0
