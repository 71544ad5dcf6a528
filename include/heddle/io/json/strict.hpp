// heddle/io/json/strict.hpp: reads JSON strictly: unique names, bounds, errors with offset.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/io/json/ needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/durable_file.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {

// What the library says, without its own "[json.exception.parse_error.101] " and its line and column.
inline std::string json_fault(const nlohmann::json::exception& e) {
  std::string text = e.what();
  if (const auto at = text.find("] "); at != std::string::npos) text.erase(0, at + 2);
  if (const auto at = text.find("column "); at != std::string::npos)
    if (const auto end = text.find(": ", at); end != std::string::npos) text.erase(0, end + 2);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  constexpr std::size_t most = 200;
  return text.size() > most ? text.substr(0, most) + "..." : text;
}
}  // namespace detail

/// A JSON value from a text. `what` names it in errors.
/// Errors: `io_error` for what is no JSON (with the offset of the byte), a name that comes twice in one object, and
/// objects or arrays in more than 32 levels.
inline nlohmann::json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> names;
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using kind = nlohmann::json::parse_event_t;
    if (depth > 32) throw io_error("heddle: " + what + " has objects and arrays in more than 32 levels");
    if (event == kind::object_start) names.emplace_back();
    if (event == kind::object_end) names.pop_back();
    if (event == kind::key && !names.back().insert(value.get<std::string>()).second)
      throw io_error("heddle: " + what + ": the name '" + shown_name(value.get<std::string>()) +
                     "' comes twice in one object");
    return true;
  };
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)  // which the library takes for the end
    throw io_error("heddle: " + what + ", offset " + std::to_string(zero) + ": is no JSON: a zero byte");
  try {
    return nlohmann::json::parse(text, look);
  } catch (const nlohmann::json::parse_error& e) {
    throw io_error("heddle: " + what + ", offset " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) +
                   ": is no JSON: " + detail::json_fault(e));
  } catch (const nlohmann::json::exception& e) {
    throw io_error("heddle: " + what + ": is no JSON: " + detail::json_fault(e));
  }
}

/// A JSON value from a file of at most `most` bytes. Errors: `io_error` as those of `parse_json`, and if the file
/// cannot be read or is greater.
inline nlohmann::json read_json(const std::filesystem::path& path, std::int64_t most = std::int64_t{1} << 26) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) throw io_error("heddle: cannot read '" + path.string() + "': " + ec.message());
  if (size > static_cast<std::uintmax_t>(most))
    throw io_error("heddle: '" + path.string() + "' has " + std::to_string(size) + " bytes, at most " +
                   std::to_string(most) + " are read");
  const std::vector<std::byte> bytes = read_bytes(path, 0, static_cast<std::int64_t>(size));
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "'" + path.string() + "'");
}

/// The object of a JSON file; an empty one where there is no such file. Errors: `io_error` as those of `read_json`, and for JSON that is no object.
inline nlohmann::json read_json_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return nlohmann::json::object();
  nlohmann::json found = read_json(path);
  if (!found.is_object())
    throw io_error("heddle: '" + path.string() + "' should be a JSON object, got " + found.type_name());
  return found;
}

}  // namespace heddle::inline v0::io
