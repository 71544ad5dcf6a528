// heddle/io/torch/folder.hpp: reads folders of torch.distributed.checkpoint as tensors.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/torch/metadata.hpp>
#include <heddle/io/torch/stored_tensor.hpp>
#include <heddle/io/torch/tensor.hpp>
#include <heddle/tensor/tensor_source.hpp>  // read_sharded reads these folders

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {

// The boxes of one safetensors file of `HuggingFaceStorageWriter`: a tensor is a box of a greater one where the file
// says its offsets.
// Errors: `io_error` for metadata that says something else.
inline std::map<std::string, std::vector<std::int64_t>> saved_offsets(const safetensors_header& header,
                                                                      const std::string& what) {
  std::map<std::string, std::vector<std::int64_t>> all;
  const auto& about = header.metadata;
  const auto at =
      std::find_if(about.begin(), about.end(), [](const auto& m) { return m.first == "DCP_SHARDING_INFO"; });
  if (at == about.end()) return all;
  const std::string where = "heddle: '" + what + "', DCP_SHARDING_INFO: ";
  const nlohmann::json info = parse_json(at->second, "'" + what + "', DCP_SHARDING_INFO");
  if (!info.is_object()) throw io_error(where + "expected an object");
  for (const auto& [name, box] : info.items()) {
    const std::string of = where + "tensor '" + shown_name(name) + "': ";
    if (!box.is_object() || !box.contains("saved_offsets") || !box["saved_offsets"].is_array())
      throw io_error(of + "expected saved_offsets, an array of numbers");
    auto& offsets = all[name];
    for (const nlohmann::json& n : box["saved_offsets"]) {
      if (!n.is_number_unsigned() || n.get<std::uint64_t>() > static_cast<std::uint64_t>(most_elements))
        throw io_error(of + "an offset " + n.dump() + ", expected a whole number of 0 or more");
      offsets.push_back(n.get<std::int64_t>());
    }
  }
  return all;
}

}  // namespace detail

/// A folder that PyTorch's ranks have saved together, as a `tensor_source`, which `model::read_parameters` puts onto
/// any mesh: of `torch.distributed.checkpoint.save` (`.metadata`, `__0_0.distcp` ..., Megatron's torch_dist too), or
/// of `HuggingFaceStorageWriter` (`*.safetensors`, one or more files for each rank, with DCP_SHARDING_INFO or
/// consolidated). Opening it reads what the folder says of its tensors; elements are read when asked for, on any
/// thread. The pickles in it are taken apart, never run.
/// Errors: `io_error` as those of `parse_torch_metadata` and `safetensors_file`; a folder with neither, files that are
/// missing, parts of a tensor with several types, that overlap, or have not all its elements. Files of safetensors do not
/// say how many ranks there were, nor the shapes of whole tensors: if those of the last ranks are lost, a tensor is
/// shorter. Look at its shape, as `model::read_parameters` does.
class torch_folder {
 public:
  explicit torch_folder(std::filesystem::path path)
      : path_(std::move(path)), shown_(path_.string()), cache_(std::make_unique<places>()) {
    std::error_code none;
    if (std::filesystem::exists(path_ / ".metadata", none))
      open_metadata();
    else
      open_safetensors();
    for (std::size_t i = 0; i < about_.tensors.size(); ++i) by_name_.emplace(about_.tensors[i].name, i);
    cache_->of.resize(about_.tensors.size());
  }

  /// Whether a folder is of one of these formats, and not one with a whole model that `safetensors_folder` reads.
  static bool is_one(const std::filesystem::path& folder) {
    std::error_code none;
    if (std::filesystem::exists(folder / ".metadata", none)) return true;
    for (const char* whole : {"model.safetensors", "model.safetensors.index.json"})
      if (std::filesystem::exists(folder / whole, none)) return false;
    return !safetensors_in(folder).empty();
  }

  const std::filesystem::path& path() const noexcept { return path_; }
  bool contains(std::string_view name) const noexcept { return by_name_.find(name) != by_name_.end(); }
  /// The names of all tensors, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, at] : by_name_) all.push_back(name);
    return all;
  }
  /// Names of what is no tensor or has elements of a type that is not read.
  const std::vector<std::string>& others() const noexcept { return about_.others; }
  /// Errors: `io_error` if there is none of this name, its parts are not as the folder says, or a file has changed.
  torch_tensor tensor(std::string_view name) const {
    const auto at = by_name_.find(name);
    if (at == by_name_.end() && std::find(about_.others.begin(), about_.others.end(), name) != about_.others.end())
      throw io_error("heddle: '" + shown_ + "': '" + shown_name(std::string(name)) +
                     "' is no tensor, or one of a type that is not read");
    if (at == by_name_.end())
      throw io_error("heddle: '" + shown_ + "' has no tensor '" + shown_name(std::string(name)) + "', but " +
                     std::to_string(by_name_.size()) + " others");
    const torch_record& record = about_.tensors[at->second];
    const std::scoped_lock lock(cache_->lock);
    auto& found = cache_->of[at->second];
    if (!found) found = std::make_unique<std::vector<detail::placed_chunk>>(place(record));
    const input_file* last = nullptr;
    for (const detail::placed_chunk& c : *found)
      if (c.file != last) (last = c.file)->require_unchanged();
    return {record, *found, shown_};
  }

 private:
  // Files and parts are looked up when they are first asked for.
  struct places {
    std::mutex lock;
    std::vector<std::unique_ptr<std::vector<detail::placed_chunk>>> of;
    std::map<std::string, std::unique_ptr<input_file>> files;
  };

  static std::vector<std::string> safetensors_in(const std::filesystem::path& folder) {
    std::vector<std::string> all;
    std::error_code ec;
    for (std::filesystem::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec))
      if (at->path().extension() == ".safetensors") all.push_back(at->path().filename().string());
    if (ec) throw io_error("heddle: cannot read the folder '" + folder.string() + "': " + ec.message());
    std::sort(all.begin(), all.end());
    return all;
  }
  // "model-00002-of-00003.safetensors", of a rank behind "shard-00001-": of each number up to the last some rank has a
  // file. A rank that holds nothing of a number has none of it.
  void require_numbers(const std::vector<std::string>& files) const {
    std::map<std::pair<std::string, std::int64_t>, std::set<std::int64_t>> all;
    for (const std::string& file : files) {
      std::string_view name = std::string_view(file).substr(0, file.rfind('.'));
      const auto take_number = [&name]() -> std::int64_t {
        const auto begin = name.find_last_not_of("0123456789") + 1;  // 0 without
        const std::string_view digits = name.substr(begin);
        if (digits.empty() || digits.size() > 9) return -1;
        name.remove_suffix(digits.size());
        return detail::parse_number<std::int64_t>(digits, 10, "a number in a file's name");
      };
      const std::int64_t last = take_number();
      if (last < 1 || !name.ends_with("-of-")) continue;
      name.remove_suffix(4);
      const std::int64_t number = take_number();
      if (number < 1 || number > last) continue;
      constexpr std::string_view shard = "shard-";
      if (name.starts_with(shard))
        if (const auto end = name.find_first_not_of("0123456789", shard.size()); end != name.npos && end > shard.size())
          name.remove_prefix(end + 1);
      all[{std::string(name), last}].insert(number);
    }
    for (const auto& [of, numbers] : all) {
      std::int64_t next = 1;
      for (const std::int64_t n : numbers) next += n == next;
      if (next <= of.second)
        throw io_error("heddle: '" + shown_ + "' has " + std::to_string(numbers.size()) + " of the " +
                       std::to_string(of.second) + " files '" + shown_name(of.first) + "...-of-" +
                       std::to_string(of.second) + "': number " + std::to_string(next) + " is missing");
    }
  }
  const input_file& file(const std::string& name) const {
    auto& found = cache_->files[name];
    if (!found) found = std::make_unique<input_file>(path_ / name);
    return *found;
  }
  std::vector<detail::placed_chunk> place(const torch_record& record) const {
    std::vector<detail::placed_chunk> all;
    for (const torch_chunk& c : record.chunks) {
      const input_file& from = file(c.file);
      const std::string where =
          "'" + from.path().string() + "', tensor '" + shown_name(record.name) + "', offset " + std::to_string(c.begin);
      all.push_back({&from, stored_ ? detail::position_of_stored(from, c.begin, c.bytes, c.extents, record.dtype, where)
                                    : c.begin});
    }
    return all;
  }

  void open_metadata() {
    stored_ = true;
    const auto at = path_ / ".metadata";
    const input_file about(at);
    if (about.size() > pickle::most_bytes)
      throw io_error("heddle: '" + at.string() + "' has " + std::to_string(about.size()) + " bytes, at most " +
                     std::to_string(pickle::most_bytes) + " are read");
    std::vector<std::byte> text(static_cast<std::size_t>(about.size()));
    about.read(0, text);
    about_ = parse_torch_metadata(text, "'" + at.string() + "'");
  }
  void open_safetensors() {
    const auto files = safetensors_in(path_);
    if (files.empty()) throw io_error("heddle: '" + shown_ + "' has neither a .metadata nor a file of safetensors");
    require_numbers(files);
    std::map<std::string, torch_record> all;
    for (const std::string& name : files) {
      const safetensors_header header = detail::read_safetensors_head(file(name));
      auto offsets = detail::saved_offsets(header, (path_ / name).string());
      for (const safetensors_entry& e : header.tensors) {
        torch_record& t = all[e.name];
        const std::string of = "heddle: '" + (path_ / name).string() + "', tensor '" + shown_name(e.name) + "': ";
        auto at = offsets.find(e.name);
        std::vector<std::int64_t> offset =
            at == offsets.end() ? std::vector<std::int64_t>(e.shape.size(), 0) : std::move(at->second);
        if (offset.size() != e.shape.size())
          throw io_error(of + std::to_string(offset.size()) + " offsets for " + std::to_string(e.shape.size()) +
                         " dimensions");
        if (t.chunks.empty()) {
          t.name = e.name;
          t.dtype = e.dtype;
          t.shape.assign(e.shape.size(), 0);
        }
        if (!(t.dtype == e.dtype) || t.shape.size() != e.shape.size())
          throw io_error(of + std::string(e.dtype.name) + " of " + std::to_string(e.shape.size()) +
                         " dimensions, in another file " + std::string(t.dtype.name) + " of " +
                         std::to_string(t.shape.size()));
        if (e.dtype.bits % 8 != 0) throw io_error(of + "elements of " + std::string(e.dtype.name) + " are not read");
        for (std::size_t d = 0; d < offset.size(); ++d) {
          if (offset[d] > detail::most_elements - e.shape[d])
            throw io_error(of + "an offset beyond what 64 bits count");
          t.shape[d] = (std::max)(t.shape[d], offset[d] + e.shape[d]);
        }
        t.chunks.push_back({std::move(offset), e.shape, name, e.begin, e.bytes()});
      }
    }
    for (auto& [name, t] : all) {
      detail::require_chunks(t, "heddle: '" + shown_ + "': ");
      about_.tensors.push_back(std::move(t));
    }
  }

  std::filesystem::path path_;
  std::string shown_;
  torch_metadata about_;
  bool stored_ = false;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::unique_ptr<places> cache_;
};

}  // namespace heddle::inline v0::io
