// The example gpu_redistribute over the stand-in for the CUDA runtime.
#include "emulated_launcher.hpp"

#include "../../examples/gpu_redistribute.cu"
