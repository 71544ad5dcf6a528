// refuse: heddle: spike_weights<Group, K>: a group has a multiple of 4 weights, at most 1024; take 128
#include <heddle/compute/spike_weights.hpp>

heddle::compute::spike_weights<1028> large;
