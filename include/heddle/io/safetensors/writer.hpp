// heddle/io/safetensors/writer.hpp: writes safetensors files, and folders of them with an index.
#pragma once

#include <heddle/io/durable_file.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/entry.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A tensor to be written: the bytes are the caller's and must stay until the file is there. Shapes: row-major,
/// little-endian.
struct safetensors_output {
  std::string name;
  std::string dtype;  ///< as in "F32", see `safetensors_dtypes`
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::int64_t byte_count() const noexcept { return static_cast<std::int64_t>(bytes.size()); }
};

/// A tensor to be written, from elements. Shapes: `values` has the elements of `shape`.
template <class T>
safetensors_output safetensors_of(std::string name, std::vector<std::int64_t> shape, std::span<const T> values) {
  return {std::move(name), std::string(safetensors_dtype_name<T>()), std::move(shape), std::as_bytes(values)};
}

/// In which order tensors are written: as the reference writer does, by element type (the widest first) and then by
/// name; or as they are given.
enum class safetensors_order : std::uint8_t { reference, given };

/// Settings of a safetensors file.
struct safetensors_options {
  std::vector<std::pair<std::string, std::string>> metadata{};  ///< such as {{"format", "pt"}}
  safetensors_order order = safetensors_order::reference;
};

namespace detail {

inline std::string json_text(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw io_error(where + "'" + shown_name(text) + "' is no UTF-8");
  }
}

template <class Output>
std::vector<const Output*> places_of(std::span<const Output> tensors) {
  std::vector<const Output*> out;
  for (const Output& t : tensors) out.push_back(&t);
  return out;
}

// `Output` has name, dtype and shape, and `byte_count()` says how many bytes its elements have.
template <class Output>
std::vector<const Output*> ordered_outputs(std::vector<const Output*> tensors, safetensors_order order,
                                           const std::string& where) {
  std::set<std::string_view> names;
  for (const Output* const one : tensors) {
    const Output& t = *one;
    const std::string of = where + "tensor '" + shown_name(t.name) + "': ";
    const safetensors_dtype* dtype = find_safetensors_dtype(t.dtype);
    if (dtype == nullptr) throw io_error(of + "unknown dtype '" + shown_name(t.dtype) + "'");
    if (t.name == "__metadata__") throw io_error(of + "the format keeps this name for metadata");
    if (!names.insert(t.name).second) throw io_error(of + "it comes twice");
    for (const std::int64_t e : t.shape)
      if (e < 0) throw io_error(of + "an extent of " + std::to_string(e));
    const std::int64_t bytes = safetensors_bytes(*dtype, t.shape);
    if (bytes < 0 || bytes != t.byte_count())
      throw io_error(of + t.dtype + " " + shown_extents(t.shape) +
                     (bytes < 0 ? " has no whole number of bytes that 64 bits count"
                                : " has " + std::to_string(bytes) + " bytes, got " + std::to_string(t.byte_count())));
  }
  if (order == safetensors_order::reference)
    std::sort(tensors.begin(), tensors.end(), [](const Output* a, const Output* b) {
      const int of_a = find_safetensors_dtype(a->dtype)->order, of_b = find_safetensors_dtype(b->dtype)->order;
      return of_a != of_b ? of_a > of_b : a->name < b->name;
    });
  return tensors;
}
template <class Output>
std::vector<const Output*> ordered_outputs(std::span<const Output> tensors, safetensors_order order,
                                           const std::string& where) {
  return ordered_outputs(places_of(tensors), order, where);
}

template <class Output>
std::string safetensors_head(const std::vector<const Output*>& tensors,
                             const std::vector<std::pair<std::string, std::string>>& metadata,
                             const std::string& where) {
  std::string text = "{";
  if (!metadata.empty()) {
    std::set<std::string_view> names;
    text += "\"__metadata__\":{";
    for (const auto& [name, value] : metadata) {
      if (!names.insert(name).second) throw io_error(where + "metadata '" + shown_name(name) + "' comes twice");
      text += (names.size() > 1 ? "," : "") + json_text(name, where) + ":" + json_text(value, where);
    }
    text += "}";
  }
  std::int64_t at = 0;
  for (const Output* t : tensors) {
    const std::int64_t end = at + t->byte_count();
    if (text.size() > 1) text += ",";
    text += json_text(t->name, where) + ":{\"dtype\":\"" + t->dtype + "\",\"shape\":" + shape_text(t->shape) +
            ",\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(end) + "]}";
    at = end;
  }
  text += "}";
  while (text.size() % 8 != 0) text += ' ';
  if (static_cast<std::int64_t>(text.size()) > most_safetensors_header)
    throw io_error(where + "the header would have " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(most_safetensors_header) + " are read");
  std::string head;
  for (int i = 0; i < 8; ++i) head += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return head + text;
}

inline void write_ordered(const std::filesystem::path& path, const std::vector<const safetensors_output*>& tensors,
                          const std::vector<std::pair<std::string, std::string>>& metadata) {
  const std::string head = safetensors_head(tensors, metadata, "heddle: '" + path.string() + "', ");
  write_whole_file(path, [&](durable_file& file) {
    file.write(head);
    for (const safetensors_output* t : tensors) file.write(t->bytes);
  });
}

// What keeps neighbours together in one file: those of the same unit that is not empty.
template <class Output>
std::string_view unit_of(const Output& t) {
  if constexpr (requires { t.unit; })
    return t.unit;
  else
    return {};
}

// The tensors of each file of a folder, in order: a tensor, or a unit of them, is never cut, and a greater one has a file of its own, before
// that of its neighbours, as the package huggingface_hub (1.0) cuts.
template <class Output>
std::vector<std::vector<const Output*>> split_into_files(std::span<const Output> tensors, std::int64_t most_bytes,
                                                         const std::string& where) {
  if (most_bytes < 1) throw io_error(where + "files of at most " + std::to_string(most_bytes) + " bytes asked for");
  std::vector<std::vector<const Output*>> files;
  std::vector<const Output*> current;
  std::int64_t in_current = 0;
  for (std::size_t i = 0; i < tensors.size();) {
    std::vector<const Output*> unit;
    std::int64_t bytes = 0;
    const std::string_view name = unit_of(tensors[i]);
    do {
      bytes += tensors[i].byte_count();
      unit.push_back(&tensors[i++]);
    } while (!name.empty() && i < tensors.size() && unit_of(tensors[i]) == name);
    if (bytes > most_bytes) {
      files.push_back(std::move(unit));
      continue;
    }
    if (bytes > most_bytes - in_current) {
      files.push_back(std::move(current));
      current.clear();
      in_current = 0;
    }
    current.insert(current.end(), unit.begin(), unit.end());
    in_current += bytes;
  }
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}
inline constexpr std::string_view model_index_file = "model.safetensors.index.json";
// The name of the file number `file` of `files`; `stem`: what it begins with.
inline std::string model_file_name(std::size_t file, std::size_t files, const std::string& stem = "model") {
  const auto padded = [](std::size_t n) {
    const std::string digits = std::to_string(n);
    return digits.size() < 5 ? std::string(5 - digits.size(), '0') + digits : digits;
  };
  return stem + (files == 1 ? "" : "-" + padded(file + 1) + "-of-" + padded(files)) + ".safetensors";
}
inline void require_no_model(const std::filesystem::path& folder, const std::string& stem = "model") {
  for (const std::string& there : {stem + ".safetensors", stem + ".safetensors.index.json"})
    if (std::error_code none; std::filesystem::exists(folder / there, none))
      throw io_error("heddle: '" + folder.string() + "', '" + there + "' is there already: a model is not overwritten");
}

}  // namespace detail

/// Writes a safetensors file: under another name first, durable before it gets its own, so that a reader sees all of it
/// or none. With the same order and metadata the bytes are those of the `safetensors` package.
/// Errors: `io_error` with file and tensor for what the format cannot hold, and for what the disk refuses.
inline void write_safetensors(const std::filesystem::path& path, std::span<const safetensors_output> tensors,
                              const safetensors_options& options = {}) {
  const auto ordered = detail::ordered_outputs(tensors, options.order, "heddle: '" + path.string() + "', ");
  detail::write_ordered(path, ordered, options.metadata);
}

/// Writes a folder that `safetensors_folder` and transformers read: `model.safetensors` where everything fits into
/// `most_bytes` of data, else `model-00001-of-0000N.safetensors` to N with `model.safetensors.index.json`, which is
/// written last. A tensor is never cut: a greater one has a file of its own. Tensors go to the files in the order in
/// which they are given; `options` orders each file. Returns the number of files.
/// Errors: `io_error` as those of `write_safetensors`, and if the folder has a model already. What the format cannot
/// hold is refused before the first file is written.
inline int write_safetensors_folder(const std::filesystem::path& folder, std::span<const safetensors_output> tensors,
                                    std::int64_t most_bytes = 5000000000, const safetensors_options& options = {}) {
  const std::string where = "heddle: '" + folder.string() + "', ";
  detail::make_folder(folder);
  detail::require_no_model(folder);
  const auto files = detail::split_into_files(tensors, most_bytes, where);
  // Everything that the format refuses is refused before the first file is written: names here, headers below.
  static_cast<void>(detail::ordered_outputs(tensors, safetensors_order::given, where));
  for (const auto& file : files)
    static_cast<void>(
        detail::safetensors_head(detail::ordered_outputs(file, options.order, where), options.metadata, where));
  std::int64_t total = 0;
  for (const safetensors_output& t : tensors) total += t.byte_count();
  nlohmann::json about = {{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string name = detail::model_file_name(f, files.size());
    const std::string of_file = "heddle: '" + (folder / name).string() + "', ";
    detail::write_ordered(folder / name, detail::ordered_outputs(files[f], options.order, of_file), options.metadata);
    for (const safetensors_output* t : files[f]) about["weight_map"][t->name] = name;
  }
  if (files.size() > 1)
    detail::write_whole_file(folder / detail::model_index_file,
                             [&](durable_file& file) { file.write(about.dump(2) + "\n"); });
  return static_cast<int>(files.size());
}

}  // namespace heddle::inline v0::io
