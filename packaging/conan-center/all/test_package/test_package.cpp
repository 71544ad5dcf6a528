#include <heddle/heddle.hpp>

#include <cstdio>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp, 2>>;
static_assert(mesh::size() == 4 && mesh::coordinate<heddle::tp>(3) == 1);

int main() { std::printf("heddle %d, %s\n", HEDDLE_VERSION, heddle::to_string(mesh{}).c_str()); }
