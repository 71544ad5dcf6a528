// heddle/version.hpp: the version of these headers, written once, readable by the preprocessor and by CMake.
#pragma once

#define HEDDLE_VERSION_MAJOR 0
#define HEDDLE_VERSION_MINOR 1
#define HEDDLE_VERSION_PATCH 0
#define HEDDLE_VERSION (HEDDLE_VERSION_MAJOR * 10000 + HEDDLE_VERSION_MINOR * 100 + HEDDLE_VERSION_PATCH)
