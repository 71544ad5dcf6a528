// tests/catch.hpp: Catch2, version 2 or 3, under the spelling of version 2.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>

#include <string>

using Catch::Approx;

// In version 3 `Contains` looks for an element; for text the name is ContainsSubstring.
namespace Catch::Matchers {
inline auto Contains(const char* text) { return ContainsSubstring(text); }
inline auto Contains(const std::string& text) { return ContainsSubstring(text); }
inline auto Contains(std::string& text) { return ContainsSubstring(text); }
inline auto Contains(std::string&& text) { return ContainsSubstring(text); }
}  // namespace Catch::Matchers
#else
#include <catch2/catch.hpp>
#endif
