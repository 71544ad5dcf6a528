// refuse: heddle: carrier::ulysses<Ranks>: name 1 to 64 ranks that share the heads
#include <heddle/context/carriers.hpp>

heddle::carrier::ulysses<0> none;
