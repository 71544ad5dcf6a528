// refuse: heddle: the host kernels need IEEE arithmetic: compile this file without -ffast-math, -Ofast and -fassociative-math
#define __FAST_MATH__ 1  // what the compiler defines under -ffast-math
#include <heddle/compute/host/math.hpp>
