// heddle/core/durations.hpp: durations and clocks of std::chrono, without calendars.
#pragma once

#include <heddle/core/config.hpp>

// Mutexes with a timeout are declared with durations and time points, and every standard library defines these on the way.
// <chrono> itself brings <sstream> and more along: a third of a second in each translation unit with g++ 12.
// <condition_variable> would do, too, and brings <memory> and stop tokens.
#include <mutex>
