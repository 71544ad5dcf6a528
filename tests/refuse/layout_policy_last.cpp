// refuse: heddle: shard<dim, ...>: a split policy comes last, where it does nothing; a policy holds for the axes after it
#include <heddle/layout/layout.hpp>

using namespace heddle;
layout<mesh<axis<cp, 2>>, shard<0, cp, split::zigzag>>* wrong = nullptr;
