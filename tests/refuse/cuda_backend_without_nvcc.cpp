// refuse: heddle: compute::cuda and the backends like it are for files that nvcc compiles; name this one .cu, or give nvcc -x cu
#include <heddle/compute/cuda/cuda.hpp>

int main() {
  heddle::compute::cuda backend;
}
