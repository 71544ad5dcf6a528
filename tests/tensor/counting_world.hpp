// tests/tensor/counting_world.hpp: the counting world under its short name.
#pragma once

#include <heddle/testing/counting_world.hpp>

namespace counting = heddle::testing::counting;
