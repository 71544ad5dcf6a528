// heddle/observe/text_file.hpp: escaping for JSON and XML, and writing a text to a file or saying why not.
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

/// Text for an XML element or attribute. Control characters, which XML cannot hold, become spaces; what is no UTF-8,
/// replacement characters.
inline std::string xml_escape(std::string_view text) {
  return heddle::detail::svg_escaped(text);
}

/// Writes a text file, replacing what was there. Errors: `io_error` with the path and the system's text.
HEDDLE_INLINE void write_text_file(const std::string& path, std::string_view text);

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/text_file.hpp>
#endif
