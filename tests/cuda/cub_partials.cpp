// The example cub_partials over the stand-ins for the CUDA runtime and for CUB.
#include "emulated_launcher.hpp"

#include "../../examples/cub_partials.cu"
