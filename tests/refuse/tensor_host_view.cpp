// refuse: host_accessible_space
// and: checked_memory
#include <heddle/testing/checked_memory.hpp>
namespace hd = heddle;
float f(hd::matrix_view<const float, hd::testing::checked_memory> x) { return x(0, 0); }
