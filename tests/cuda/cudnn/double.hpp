// A stand-in for cuDNN's backend interface: descriptors are checked as cuDNN checks them, and a plan computes its operation graph, operation by
// operation, as a job of a stream of the stand-in for CUDA. As cuDNN before 9.26, it reads statistics of gradients as if they were packed.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <string>

namespace cudnn_double {

/// Forgets what was planned and counted.
void reset();
/// Plans that were made, and run.
int plans();
int runs();
/// Descriptors and handles that have not been given back.
int open();
/// Whether it has an engine for any graph, from now on.
void has_engines(bool any);
/// So many engines of each graph cannot be finalized, with this status.
void refuse_engines(int count, cudnnStatus_t status);
/// The next call of this function returns `status`, and does nothing.
void fail_next(const std::string& function, cudnnStatus_t status);
/// What `cudnnGetVersion` says.
void version(std::size_t number);

}  // namespace cudnn_double
