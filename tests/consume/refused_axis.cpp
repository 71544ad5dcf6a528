// tests/consume/refused_axis.cpp: a mistake that a user wants to stay one.
#include <heddle/layout/layout.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp, 2>>;
using weight = heddle::layout<mesh, heddle::shard<0, heddle::tp>, heddle::shard<1, heddle::tp>>;
