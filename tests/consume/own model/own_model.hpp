// tests/consume/own model/own_model.hpp: a library of the user's own, in a folder with a space.
#pragma once

#include <heddle/layout/layout.hpp>

namespace own_model {
inline constexpr int axes = 2;
}
