// The main program's part of Catch2, 2 and 3 alike: for tests that need something around all of them.
#pragma once

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
