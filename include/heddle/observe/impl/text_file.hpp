// heddle/observe/impl/text_file.hpp: bodies of heddle/observe/text_file.hpp.
#pragma once

#include <heddle/observe/text_file.hpp>
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

HEDDLE_INLINE std::string json_escape(std::string_view text) {
  std::string out;
  for (std::size_t n = 0; !text.empty(); text.remove_prefix(n == 0 ? 1 : n)) {
    n = heddle::detail::utf8_length(text);
    const char c = text.front();
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (n == 0) {
          out += "\ufffd";
        } else if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += "0123456789abcdef"[(c >> 4) & 15];
          out += "0123456789abcdef"[c & 15];
        } else {
          out += text.substr(0, n);
        }
    }
  }
  return out;
}

HEDDLE_INLINE void write_text_file(const std::string& path, std::string_view text) {
  const file_size_signal_off no_signal;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw io_error("heddle: cannot create '" + path + "': " + std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int code = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed)
    throw io_error("heddle: cannot write '" + path + "': " + write_error_text(written ? errno : code));
}

}  // namespace heddle::inline v0::observe
