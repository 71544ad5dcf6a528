// refuse: heddle: spike_weights<Group, K>: a number of mean magnitude has K spikes, 1 to 32; take 3
#include <heddle/compute/spike_weights.hpp>

heddle::compute::spike_weights<128, 0> silent;
