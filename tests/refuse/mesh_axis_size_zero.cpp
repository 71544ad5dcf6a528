// refuse: heddle: axis<Tag, Size>: Size must be positive; leave it out if it is known only at start-up
#include <heddle/mesh/axis.hpp>

heddle::axis<heddle::tp, 0> a;
