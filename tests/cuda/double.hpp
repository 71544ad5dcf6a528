// A stand-in for the CUDA runtime: the functions heddle calls, over host memory and threads. A stream is a queue with a
// thread of its own; memory is taken and given back in its order. What was given back holds no value any more.
// A captured graph runs in an order as far from that of its capture as its edges allow; where two copies or fills meet in memory and neither
// waits for the other, the end of the capture is cudaErrorAssert, and so it is where two threads were in calls with its queues at the same time.
// Captures of the mode cudaStreamCaptureModeGlobal are those of cudaStreamCaptureModeThreadLocal here: other threads are not watched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace cuda_double {

/// How often each function was called since `reset`, by all threads together.
std::map<std::string, int> calls();
/// Device memory, pinned memory, events and streams that have not been given back.
int open_resources();
/// Forgets calls, devices and the failures that this thread has planned.
void reset();
/// How many devices there are; each has so many bytes.
void devices(int count, std::size_t bytes_each = std::size_t{1} << 40);
/// The next call of this function by this thread returns `result`, and does nothing.
void fail_next(const std::string& function, cudaError_t result);
/// A job of a stream, behind what it was given so far: for stand-ins of other libraries.
void enqueue(cudaStream_t stream, std::function<void()> job);
/// The same for one that waits for other devices: what need not wait for it in a graph goes on meanwhile.
void enqueue_waiting(cudaStream_t stream, std::function<void()> job);
/// Whether what the stream is given now becomes part of a graph, and runs as often as that is launched.
bool is_captured(cudaStream_t stream);
/// Whether this thread has begun a capture that goes on, and is not a relaxed one.
bool captures_here();
/// A call that adds to the graph that the stream is captured into, as long as what is returned lives.
std::shared_ptr<void> call_in_capture(cudaStream_t stream);
/// Kernels of neither device can use the memory of the other; they can of all other pairs.
void cut(int device, int other);
/// What a kernel on the stream is given. A word that points to memory of another device, which the stream's cannot use (`cudaDeviceEnablePeerAccess`, of
/// pools `cudaMemPoolSetAccess`), is counted.
void give_arguments(cudaStream_t stream, const void* arguments, std::size_t bytes);
int unreachable_arguments();
/// The thread's device.
int current_device();

}  // namespace cuda_double
