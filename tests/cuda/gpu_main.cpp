// The entry point of tests on a GPU: where there is none it says so, and ends with 77.
#include "../catch_session.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>

int main(int argc, char** argv) {
  int devices = 0;
  if (const cudaError_t asked = cudaGetDeviceCount(&devices); asked != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU (%s)\n", cudaGetErrorString(asked));
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
