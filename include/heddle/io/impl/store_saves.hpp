// heddle/io/impl/store_saves.hpp: bodies of heddle/io/store_saves.hpp.
#pragma once

#include <heddle/io/store_saves.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE save_files files_in(const store& from, manifest m) {
  save_files files(from.where(object_name(m, "")));
  files.from = &from;
  files.prefix = object_name(m, "");
  files.about = std::move(m);
  return files;
}

HEDDLE_INLINE stored_manifest manifest_at(const store& from, std::int64_t step) {
  const std::string name = manifest_object(step), where = "'" + from.where(name) + "'";
  constexpr std::int64_t most = std::int64_t{1} << 26;
  stored_manifest there;
  const auto bytes = from.size(name);
  if (!bytes || *bytes > most) {
    there.stays = bytes.has_value();
    there.fault = "heddle: " + where +
                  (bytes ? " has " + std::to_string(*bytes) + " bytes, at most " + std::to_string(most) + " are read"
                         : std::string(" is not there"));
    return there;
  }
  there.text.resize(static_cast<std::size_t>(*bytes));
  from.read(name, 0, std::as_writable_bytes(std::span<char>(there.text)));
  try {
    manifest m = parse_manifest(there.text, where);
    if (m.step != step) throw io_error("heddle: " + where + " says step " + std::to_string(m.step));
    there.is = std::move(m);
  } catch (const io_error& e) {
    there.fault = e.what();
    there.stays = is_of_later_format(there.text);
  }
  return there;
}

HEDDLE_INLINE std::vector<std::int64_t> steps_in(const store& from) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : from.list("step-")) {
    const auto slash = name.find('/');
    if (slash == name.npos || name.substr(slash + 1) != "manifest") continue;
    if (const save_name s = parse_save_name(name.substr(0, slash)); s.step >= 0 && s.suffix.empty())
      steps.push_back(s.step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>{});
  return steps;
}

}  // namespace detail

HEDDLE_INLINE std::optional<manifest> latest(const store& from, std::vector<std::string>* skipped,
                                             std::int64_t before) {
  for (const std::int64_t step : detail::steps_in(from)) {
    if (step >= before) continue;
    detail::stored_manifest there = detail::manifest_at(from, step);
    if (there.is)
      for (const detail::save_object& o : detail::objects_of(*there.is))
        if (there.fault.empty())
          there.fault = detail::fault_of_size(from, detail::object_name(*there.is, o.file), o.bytes);
    if (there.fault.empty()) return there.is;
    if (skipped != nullptr) skipped->push_back(there.fault);
  }
  return std::nullopt;
}

}  // namespace heddle::inline v0::io
