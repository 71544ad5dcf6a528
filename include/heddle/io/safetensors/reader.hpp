// heddle/io/safetensors/reader.hpp: reads safetensors files, and folders of them with an index.
#pragma once

#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/block_scales.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/entry.hpp>
#include <heddle/io/safetensors/header.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/safetensors/other_weights.hpp>
#include <heddle/io/safetensors/packed_matrix.hpp>
#include <heddle/tensor/quantized_weights.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {

// Bytes of one tensor, read ahead: tensors cut along a later dimension are read in many runs close to each other, and a
// system call for each of them would take longer than the bytes. A thread that finds the buffer in use reads without
// it.
class read_ahead {
 public:
  static constexpr std::int64_t most = 32768;  // bytes

  // Calls f with `bytes` bytes, at most `most`, from `offset` on; nothing behind `end` is read.
  template <class F>
  void read(const input_file& file, std::int64_t offset, std::int64_t bytes, std::int64_t end, F&& f) {
    if (const std::unique_lock held(in_use_, std::try_to_lock); held.owns_lock()) {
      if (offset < begin_ || offset + bytes > end_) fill(file, offset, bytes, end);
      last_ = offset + bytes;
      f(buffer_.data() + (offset - begin_));
    } else {
      std::array<std::byte, most> piece;
      file.read(offset, std::span(piece).first(static_cast<std::size_t>(bytes)));
      f(piece.data());
    }
  }

 private:
  static constexpr std::int64_t close_by = 4096;  // a run that begins so close behind the last is one of many

  void fill(const input_file& file, std::int64_t offset, std::int64_t bytes, std::int64_t end) {
    const bool follows = last_ >= 0 && offset >= last_ && offset - last_ <= close_by;
    const std::int64_t count = follows ? (std::min)(most, end - offset) : bytes;
    begin_ = end_ = 0;  // what a failing read leaves is not looked at
    buffer_.resize(static_cast<std::size_t>(most));
    file.read(offset, std::span(buffer_).first(static_cast<std::size_t>(count)));
    begin_ = offset;
    end_ = offset + count;
  }

  std::mutex in_use_;
  std::vector<std::byte> buffer_;
  std::int64_t begin_ = 0, end_ = 0, last_ = -1;
};

}  // namespace detail

/// A tensor in a file that is open: what `tensor_source` asks for. It is valid as long as the file; any number of
/// threads may read it, and copies of it. Runs of less than 32 KiB that follow each other closely are read ahead, those
/// of more straight into their place where they need no conversion.
class safetensors_tensor {
 public:
  safetensors_tensor(const input_file& file, const safetensors_entry& entry, std::atomic<std::int64_t>& read)
      : file_(&file), entry_(&entry), read_(&read), ahead_(std::make_shared<detail::read_ahead>()) {}
  /// A matrix that lies in several tensors. It has the type of its words, whatever `read` makes of them.
  explicit safetensors_tensor(std::shared_ptr<detail::packed_matrix> packed)
      : file_(packed->parts().codes.file),
        entry_(&packed->entry()),
        read_(packed->parts().codes.read),
        packed_(std::move(packed)) {}

  const safetensors_entry& entry() const noexcept { return *entry_; }
  std::span<const std::int64_t> shape() const noexcept { return entry_->shape; }
  std::string_view dtype() const noexcept { return entry_->dtype.name; }
  /// File and tensor, for errors: "'model.safetensors', tensor 'wte.weight'".
  std::string where() const { return "'" + file_->path().string() + "', tensor '" + shown_name(entry_->name) + "'"; }
  /// Whether files have its elements in fewer bits than `read` gives them.
  bool is_quantized() const noexcept { return scales_ != nullptr || packed_ != nullptr; }
  /// Bytes in the files of what its elements are made of.
  std::int64_t stored_bytes() const noexcept {
    if (packed_ != nullptr) return packed_->stored_bytes();
    return entry_->bytes() + (scales_ != nullptr ? scales_->scales().entry().bytes() : 0);
  }
  /// A copy of all its bytes, as they are in the file. Errors: `io_error` if the file has changed.
  std::vector<std::byte> bytes() const {
    file_->require_unchanged();
    std::vector<std::byte> all(static_cast<std::size_t>(entry_->bytes()));
    file_->read(entry_->begin, all);
    return all;
  }

  /// The same tensor, of which `read` counts the bytes that are read from it here, too. `read` must stay.
  safetensors_tensor counted_by(std::atomic<std::int64_t>& read) const {
    safetensors_tensor t = *this;
    t.also_ = &read;
    if (scales_ != nullptr) t.scale_by(scales_->scales().counted_by(read), scales_->blocks());
    if (packed_ != nullptr) {  // with a window of its own
      t.packed_ = std::make_shared<detail::packed_matrix>(packed_->how(), entry_->name, packed_->parts());
      t.entry_ = &t.packed_->entry();
    }
    return t;
  }

  /// Reads `out.size()` elements from element `first` on, in row-major order, converted (`convert_elements`).
  /// Where the tensor has scales of blocks, each element is its number times the scale, rounded once; the scales that this takes are read, and
  /// counted, once for a row of blocks.
  /// Errors: `io_error` if the tensor has not so many, if its type does not convert to T, and if the file ends early or
  /// has changed, which is looked for once in a MiB; with scales also for NaN; for 8-bit elements whose scales nobody told the size of.
  template <class T>
  void read(std::int64_t first, std::span<T> out) const {
    const auto n = static_cast<std::int64_t>(out.size()), have = entry_->count();
    if (first < 0 || n > have || first > have - n)
      throw io_error("heddle: " + where() + " has " + std::to_string(have) + " elements, not " + std::to_string(n) +
                     " from " + std::to_string(first) + " on");
    if (is_quantized() ? !detail::is_real_element<T> : !converts_to<T>(dtype()))
      throw io_error("heddle: " + where() + ", offset " + std::to_string(entry_->begin) + ": elements of " +
                     std::string(dtype()) + " do not convert to " + std::string(safetensors_dtype_name<T>()));
    if (needs_blocks_)
      throw io_error("heddle: " + where() + " has scales beside it, '" + shown_name(entry_->name) +
                     "_scale_inv': open the folder with the size of their blocks (scale_blocks)");
    if (n == 0) return;
    if (packed_ != nullptr) {
      if constexpr (detail::is_real_element<T>)
        packed_->read(first, n, also_,
                      [&](std::int64_t k, double value) { out[static_cast<std::size_t>(k)] = converted<T>(value); });
      return;
    }
    const std::int64_t element = entry_->dtype.bits / 8, at = entry_->begin + first * element;
    if (n * element >= short_run && !std::is_same_v<T, bool> && dtype() == safetensors_dtype_name<T>()) {
      file_->read(at, std::as_writable_bytes(out));
    } else {
      for (std::int64_t done = 0; done < n;) {
        const std::int64_t count = (std::min)(n - done, short_run / element);
        ahead_->read(*file_, at + done * element, count * element, entry_->end,
                     [&](const std::byte* from) { convert(first + done, from, out.data() + done, count); });
        done += count;
      }
    }
    if (also_ != nullptr) also_->fetch_add(n * element, std::memory_order_relaxed);
    const std::int64_t before = read_->fetch_add(n * element, std::memory_order_relaxed);
    constexpr std::int64_t often = std::int64_t{1} << 20;  // asking for every short run would cost more than the run
    if (before / often != (before + n * element) / often) file_->require_unchanged();
  }

 private:
  friend class safetensors_folder;
  friend class safetensors_reads;
  static constexpr std::int64_t short_run = detail::read_ahead::most;

  void scale_by(safetensors_tensor scales, scale_blocks blocks) {
    scales_ = std::make_shared<detail::block_scales<safetensors_tensor>>(std::move(scales), blocks, shape(), where(),
                                                                         dtype() == "I8");
  }
  template <class T>
  void convert(std::int64_t first, const std::byte* from, T* to, std::int64_t count) const {
    if constexpr (detail::is_real_element<T>)
      if (scales_ != nullptr) return scales_->convert(first, from, to, count);
    convert_elements(dtype(), from, to, count);
  }

  const input_file* file_;
  const safetensors_entry* entry_;
  std::atomic<std::int64_t>* read_;
  std::atomic<std::int64_t>* also_ = nullptr;
  std::shared_ptr<detail::block_scales<safetensors_tensor>> scales_;
  std::shared_ptr<detail::packed_matrix> packed_;
  bool needs_blocks_ = false;
  std::shared_ptr<detail::read_ahead> ahead_;
};

/// Counts the bytes that reads of one tensor would take from its files, the scales of its blocks too, and reads nothing.
class safetensors_reads {
 public:
  explicit safetensors_reads(safetensors_tensor tensor)
      : tensor_(std::move(tensor)), kept_(tensor_.scales_ != nullptr ? tensor_.scales_->across() : 0) {}
  /// As `tensor.read(first, out)` with `count` elements, after those that were counted before.
  void read(std::int64_t first, std::int64_t count) {
    if (tensor_.packed_ != nullptr) {
      bytes_ += tensor_.packed_->bytes_of_read(window_, first, count);
      return;
    }
    bytes_ += count * tensor_.entry().dtype.bits / 8;
    if (tensor_.scales_ != nullptr)
      tensor_.scales_->for_each_read(kept_, first, count, [&](std::int64_t scales) {
        bytes_ += scales * tensor_.scales_->scales().entry().dtype.bits / 8;
      });
  }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  safetensors_tensor tensor_;
  detail::kept_scales kept_;
  detail::packed_window window_;
  std::int64_t bytes_ = 0;
};

/// A safetensors file. Opening it reads and checks its header; elements are read when asked for, on any thread. It
/// keeps one descriptor.
/// Errors: as those of `parse_safetensors`, and `io_error` if the file cannot be read.
class safetensors_file {
 public:
  explicit safetensors_file(std::filesystem::path path)
      : file_(std::move(path)),
        header_(detail::read_safetensors_head(file_)),
        read_(std::make_unique<std::atomic<std::int64_t>>(0)) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
  }

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  const safetensors_header& header() const noexcept { return header_; }
  /// The tensors in the order of their data.
  const std::vector<safetensors_entry>& tensors() const noexcept { return header_.tensors; }
  bool contains(std::string_view name) const noexcept { return by_name_.find(name) != by_name_.end(); }
  /// Errors: `io_error` if there is none of this name.
  safetensors_tensor tensor(std::string_view name) const {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw io_error("heddle: '" + path().string() + "' has no tensor '" + shown_name(name) + "', but " +
                     std::to_string(tensors().size()) + " others");
    file_.require_unchanged();
    return {file_, header_.tensors[at->second], *read_};
  }
  /// Bytes of elements that `read` took from the file so far.
  std::int64_t bytes_read() const noexcept { return read_->load(std::memory_order_relaxed); }

 private:
  input_file file_;
  safetensors_header header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::unique_ptr<std::atomic<std::int64_t>> read_;
};

/// The files of a model by the names of its tensors, from its index (`model.safetensors.index.json`). `what` names it
/// in errors.
/// Errors: `io_error` if there is no `weight_map` of texts, or none in it, and for names that are no names of files in
/// the same folder, or have control characters.
inline std::map<std::string, std::string> parse_safetensors_index(const nlohmann::json& index,
                                                                  const std::string& what) {
  const std::string where = "heddle: " + what + ": ";
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw io_error(where + "expected an object with a weight_map, from names of tensors to names of files");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string of = where + "tensor '" + shown_name(tensor) + "': ";
    if (!file.is_string()) throw io_error(of + "expected the name of a file");
    const auto& name = file.get_ref<const std::string&>();
    const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    if (name.empty() || name == "." || name == ".." || std::any_of(name.begin(), name.end(), control) ||
        name.find_first_of("/\\") != std::string::npos)
      throw io_error(of + "'" + shown_name(name) + "' is no name of a file in the same folder");
    files.emplace(tensor, name);
  }
  if (files.empty()) throw io_error(where + "its weight_map names no tensor");
  return files;
}

/// A model's safetensors: one file, or a folder with `model.safetensors` or, without one, with `model.safetensors.index.json` and the
/// files that it names. Opening it reads every header and holds it against the index. It keeps one descriptor for each
/// file; threads share one folder (`safetensors_reader`). `total_size` in the index is ignored, as transformers ignores
/// it. With `quantized_weights` a tensor NAME of F8_E4M3 or I8 is a matrix whose blocks have scales in the tensor NAME_scale_inv or NAME_scale, and
/// reads as their products; of the packed forms a matrix LAYER.weight, which no file has, is read from LAYER.qweight and those beside it, and the
/// matrices NAME of all experts, [experts, out, in], from NAME_blocks and NAME_scales. Without,
/// tensors that have such scales beside them are not read.
/// Errors: `config_error` for blocks of less than 1 or more than 2^20 rows or columns; `io_error` as those of `safetensors_file`; a file or tensor of the index that is missing, a tensor that lies
/// in another file than the index says, or that the index does not name, and file names with folders in them.
class safetensors_folder {
 public:
  explicit safetensors_folder(const std::filesystem::path& path, std::optional<quantized_weights> quantized = {})
      : quantized_(quantized) {
    if (quantized)
      for (const std::int64_t size : {quantized->blocks.rows, quantized->blocks.columns})
        if (size != scale_blocks::whole && (size < 1 || size > scale_blocks::most))
          throw config_error("heddle: scale_blocks of a folder should have 1 to " + std::to_string(scale_blocks::most) +
                             " rows and columns, got " + std::to_string(quantized->blocks.rows) + " and " +
                             std::to_string(quantized->blocks.columns));
    std::error_code none;
    const auto single = path / "model.safetensors", index = path / "model.safetensors.index.json";
    if (!std::filesystem::is_directory(path, none)) {
      add(path);
    } else if (std::filesystem::exists(single, none)) {  // whatever an index beside it names, as transformers does
      add(single);
    } else if (std::filesystem::exists(index, none)) {
      open_index(path, index);
    } else {
      throw io_error("heddle: '" + path.string() + "' has neither model.safetensors nor model.safetensors.index.json" +
                     detail::other_weights(path));
    }
  }

  const std::vector<safetensors_file>& files() const noexcept { return files_; }
  /// Also for a matrix that lies in several tensors.
  bool contains(std::string_view name) const { return has(name) || has(codes_of(name)); }
  /// The names of all tensors in the files, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, file] : by_name_) all.push_back(name);
    return all;
  }
  /// Errors: `io_error` if there is none of this name; of a quantised matrix, if it is no matrix, and if its scales are missing, or
  /// have another shape or type.
  safetensors_tensor tensor(std::string_view name) const {
    if (!has(name) && has(codes_of(name))) return packed(name);
    safetensors_tensor found = stored(name);
    if (!is_8_bits(found.dtype())) return found;
    const std::string scales = scales_of(name);
    if (!quantized_)
      found.needs_blocks_ = !scales.empty() && found.dtype() != "I8";
    else if (!scales.empty())
      found.scale_by(stored(scales), quantized_->blocks);
    else if (found.dtype() != "I8")
      throw io_error("heddle: " + found.where() + " is in 8 bits, and its scales '" + shown_name(name) +
                     "_scale_inv' are missing");
    return found;
  }
  /// Whether a tensor is no weight but belongs to one that is quantised: its words, scales, zero points. So does a bias of zeros beside words,
  /// which programs write for layers without.
  bool is_scales(std::string_view name) const {
    if (!quantized_) return false;
    const auto ends = [&](std::string_view end) { return !end.empty() && name.ends_with(end); };
    const auto before = [&](std::string_view end) { return std::string(name.substr(0, name.size() - end.size())); };
    const auto is_scaled = [&](const std::string& of) { return has(of) && is_8_bits(stored(of).dtype()); };
    for (const char* end : detail::ends_of_scales)
      if (ends(end) && is_scaled(before(end))) return true;
    for (const char* end : detail::ends_of_other_scales)
      if (ends(end) && contains(before(end) + ".weight") && tensor(before(end) + ".weight").is_quantized()) return true;
    if (!is_packed()) return false;
    const detail::packed_names packed = detail::names_of(quantized_->how);
    for (const char* end : {packed.codes, packed.scales, packed.zeros, packed.groups, packed.shape})
      if (ends(end) && has(before(end) + packed.codes)) return true;
    return ends(".bias") && has(before(".bias") + packed.codes) && is_zero(stored(name));
  }
  /// The matrices that files have in fewer bits than their elements are given.
  struct widened {
    std::int64_t matrices = 0, stored_bytes = 0, elements = 0;
  };
  /// Errors: those of `tensor`.
  widened quantized() const {
    widened all;
    const auto add = [&](const std::string& name) {
      const safetensors_tensor t = tensor(name);
      if (!t.is_quantized()) return;
      all.matrices += t.shape().size() > 2 ? t.shape()[0] : 1;
      all.stored_bytes += t.stored_bytes();
      all.elements += t.entry().count();
    };
    const std::string codes = is_packed() ? detail::names_of(quantized_->how).codes : "";
    for (const auto& [name, file] : by_name_)
      if (!codes.empty() && name.ends_with(codes))
        add(name.substr(0, name.size() - codes.size()).append(end_of_packed()));
      else if (is_8_bits(stored(name).dtype()))
        add(name);
    return all;
  }
  /// Bytes of elements that `read` took from all files so far.
  std::int64_t bytes_read() const noexcept {
    std::int64_t all = 0;
    for (const safetensors_file& f : files_) all += f.bytes_read();
    return all;
  }

 private:
  static bool is_8_bits(std::string_view type) { return type == "F8_E4M3" || type == "I8"; }
  bool is_packed() const noexcept { return quantized_ && quantized_->how != quantized_weights::form::scaled; }
  bool has(std::string_view name) const noexcept { return by_name_.find(name) != by_name_.end(); }
  // The name of the scales of a matrix in 8 bits; empty if there are none.
  std::string scales_of(std::string_view name) const {
    for (const char* end : detail::ends_of_scales)
      if (has(std::string(name) + end)) return std::string(name) + end;
    return {};
  }
  // How the name of a matrix ends behind that of its layer.
  std::string_view end_of_packed() const noexcept {
    return quantized_ && quantized_->how == quantized_weights::form::stacked_mxfp4 ? "" : ".weight";
  }
  // The name of the words of a matrix; empty where it can have none.
  std::string codes_of(std::string_view name) const {
    const std::string_view end = end_of_packed();
    if (!is_packed() || !name.ends_with(end)) return {};
    return std::string(name.substr(0, name.size() - end.size())) + detail::names_of(quantized_->how).codes;
  }
  static bool is_zero(const safetensors_tensor& t) {
    if (!converts_to<float>(t.dtype())) return false;
    std::vector<float> all(static_cast<std::size_t>(t.entry().count()));
    t.read(0, std::span<float>(all));
    return std::all_of(all.begin(), all.end(), [](float v) { return v == 0; });
  }
  safetensors_tensor packed(std::string_view name) const {
    const detail::packed_names ends = detail::names_of(quantized_->how);
    const std::string layer(name.substr(0, name.size() - end_of_packed().size()));
    const auto part = [&](const char* end) {
      const safetensors_tensor t = stored(layer + end);
      return detail::stored_tensor{t.file_, t.entry_, t.read_};
    };
    const auto perhaps = [&](const char* end) {
      return *end != '\0' && has(layer + end) ? std::optional(part(end)) : std::nullopt;
    };
    detail::packed_parts parts{part(ends.codes), part(ends.scales), perhaps(ends.zeros), perhaps(ends.groups), {}};
    if (*ends.shape != '\0') parts.shape = part(ends.shape);
    using form = quantized_weights::form;
    if (quantized_->how == form::gptq || quantized_->how == form::awq) parts.zeros = part(ends.zeros);
    return safetensors_tensor(std::make_shared<detail::packed_matrix>(*quantized_, std::string(name), parts));
  }
  safetensors_tensor stored(std::string_view name) const {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw io_error("heddle: '" + files_.front().path().parent_path().string() + "' has no tensor '" +
                     shown_name(name) + "', but " + std::to_string(by_name_.size()) + " others");
    return files_[at->second].tensor(name);
  }
  void add(const std::filesystem::path& path) {
    files_.emplace_back(path);
    for (const safetensors_entry& e : files_.back().tensors()) by_name_.emplace(e.name, files_.size() - 1);
  }
  void open_index(const std::filesystem::path& folder, const std::filesystem::path& index) {
    const std::string where = "heddle: '" + index.string() + "': ";
    std::map<std::string, std::size_t> files;  // by name: its place
    for (const auto& [tensor, name] :
         parse_safetensors_index(read_json(index, most_safetensors_header), "'" + index.string() + "'")) {
      const std::string of = where + "tensor '" + shown_name(tensor) + "': ";
      auto at = files.find(name);
      if (at == files.end()) {
        std::error_code none;
        if (!std::filesystem::exists(folder / name, none))
          throw io_error(of + "the file '" + shown_name(name) + "' is not there");
        at = files.emplace(name, files_.size()).first;
        files_.emplace_back(folder / name);
      }
      if (!files_[at->second].contains(tensor))
        throw io_error(of + "the file '" + shown_name(name) + "' has no such tensor");
      by_name_.emplace(tensor, at->second);
    }
    for (std::size_t f = 0; f < files_.size(); ++f)
      for (const safetensors_entry& e : files_[f].tensors())
        if (const auto named = by_name_.find(e.name); named == by_name_.end() || named->second != f)
          throw io_error(where + "tensor '" + shown_name(e.name) + "' lies in '" +
                         files_[f].path().filename().string() + "' too; the index says " +
                         (named == by_name_.end() ? std::string("nothing of it")
                                                  : "'" + files_[named->second].path().filename().string() + "'"));
  }

  std::optional<quantized_weights> quantized_;
  std::vector<safetensors_file> files_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// One of several readers of a folder, such as a rank that is a thread: the files are open once, and each reader counts
/// the bytes that it reads itself. The folder must stay.
class safetensors_reader {
 public:
  explicit safetensors_reader(const safetensors_folder& folder) : folder_(&folder) {}
  safetensors_reader(const safetensors_reader&) = delete;
  safetensors_reader& operator=(const safetensors_reader&) = delete;

  bool contains(std::string_view name) const { return folder_->contains(name); }
  /// Errors: `io_error` if there is none of this name.
  safetensors_tensor tensor(std::string_view name) const { return folder_->tensor(name).counted_by(read_); }
  /// Bytes of elements that tensors of this reader were asked for so far.
  std::int64_t bytes_read() const noexcept { return read_.load(std::memory_order_relaxed); }

 private:
  const safetensors_folder* folder_;
  mutable std::atomic<std::int64_t> read_ = 0;
};

}  // namespace heddle::inline v0::io
