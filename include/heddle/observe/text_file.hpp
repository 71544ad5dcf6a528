// heddle/observe/text_file.hpp: escapes text for JSON, and writes a text to a file.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/draw/svg.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace heddle::inline v0::observe {

/// The text between the quotes of a JSON string. What is no UTF-8 becomes replacement characters.
HEDDLE_INLINE std::string json_escape(std::string_view text);

/// Writes a text file, replacing what was there. Errors: `io_error` with the path and the system's text.
HEDDLE_INLINE void write_text_file(const std::string& path, std::string_view text);

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/text_file.hpp>
#endif
