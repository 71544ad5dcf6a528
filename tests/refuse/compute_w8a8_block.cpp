// refuse: heddle: w8a8_weights<Block>: a block has a multiple of 4 weights, at most 1024
#include <heddle/compute/weight_formats.hpp>

heddle::compute::w8a8_weights<6> odd;
