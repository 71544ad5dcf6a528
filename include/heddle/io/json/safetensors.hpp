// heddle/io/json/safetensors.hpp: reads safetensors files, and folders of them with an index.
#pragma once

#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/block_scales.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/entry.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/safetensors/other_weights.hpp>

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

// Takes a header apart as it is parsed: whatever does not belong there ends the parse, so that a header of any kind
// takes the memory of its tensors and no more.
class safetensors_header_reader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  safetensors_header_reader(safetensors_header& to, std::string where) : to_(to), where_(std::move(where)) {}

  bool null() { return refuse("null"); }
  bool boolean(bool) { return refuse("a truth value"); }
  bool number_integer(number_integer_t n) { return refuse(std::to_string(n)); }
  bool number_float(number_float_t, const string_t& text) { return refuse(shown_name(text)); }
  bool binary(binary_t&) { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t n) {
    if (at_ != place::numbers) return refuse(std::to_string(n));
    if (n > static_cast<number_unsigned_t>((std::numeric_limits<std::int64_t>::max)()))
      fail(std::to_string(n) + " in its " + key_ + " is more than 63 bits count");
    (key_ == "shape" ? entry_.shape : offsets_).push_back(static_cast<std::int64_t>(n));
    if (key_ != "shape" && offsets_.size() > 2) fail("data_offsets should be two numbers, got more");
    return true;
  }
  bool string(string_t& text) {
    if (at_ == place::metadata) {
      to_.metadata.emplace_back(key_, std::move(text));
      return true;
    }
    if (at_ != place::tensor || key_ != "dtype") return refuse("the text '" + shown_name(text) + "'");
    const safetensors_dtype* known = find_safetensors_dtype(text);
    if (known == nullptr) fail("unknown dtype '" + shown_name(text) + "'");
    entry_.dtype = *known;
    return true;
  }
  bool start_object(std::size_t) {
    if (at_ == place::outside) {
      at_ = place::top;
      return true;
    }
    if (at_ != place::top) return refuse("an object");
    at_ = name_ == "__metadata__" ? place::metadata : place::tensor;
    keys_.clear();
    entry_ = {};
    offsets_.clear();
    return true;
  }
  bool key(string_t& text) {
    if (at_ == place::top) {
      if (!names_.insert(text).second) throw io_error(where_ + "the tensor '" + shown_name(text) + "' comes twice");
      name_ = std::move(text);
      return true;
    }
    if (at_ == place::tensor && text != "dtype" && text != "shape" && text != "data_offsets")
      fail("unknown key '" + shown_name(text) + "'; expected dtype, shape and data_offsets");
    if (!keys_.insert(text).second) fail("the key '" + shown_name(text) + "' comes twice");
    key_ = std::move(text);
    return true;
  }
  bool end_object() {
    if (at_ == place::tensor) {
      for (const char* needed : {"dtype", "shape", "data_offsets"})
        if (keys_.count(needed) == 0) fail("it has no " + std::string(needed));
      if (offsets_.size() != 2) fail("data_offsets should be two numbers, got " + std::to_string(offsets_.size()));
      entry_.name = name_;
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
      to_.tensors.push_back(std::move(entry_));
    }
    at_ = at_ == place::top ? place::outside : place::top;
    return true;
  }
  bool start_array(std::size_t) {
    if (at_ != place::tensor || key_ == "dtype") return refuse("an array");
    at_ = place::numbers;
    return true;
  }
  bool end_array() {
    at_ = place::tensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) {
    throw io_error(where_ + "offset " + std::to_string(8 + (position > 0 ? position - 1 : 0)) +
                   ": the header is no JSON: " + json_fault(e));
  }

 private:
  enum class place : std::uint8_t { outside, top, tensor, metadata, numbers };

  [[noreturn]] void fail(const std::string& what) const {
    throw io_error(where_ +
                   (name_ == "__metadata__" ? std::string("__metadata__") : "tensor '" + shown_name(name_) + "'") +
                   ": " + what);
  }
  bool refuse(const std::string& got) const {
    switch (at_) {
      case place::outside:
        throw io_error(where_ + "offset 8: the header should be an object, got " + got);
      case place::top:
        fail("expected an object, got " + got);
      case place::metadata:
        fail("'" + shown_name(key_) + "' should be a text, got " + got);
      case place::numbers:
        fail("its " + key_ + " should be numbers of 0 or more, got " + got);
      case place::tensor:
        break;
    }
    fail("its " + key_ + " should be " + (key_ == "dtype" ? "a text" : "an array of numbers") + ", got " + got);
  }

  safetensors_header& to_;
  std::string where_, name_, key_;
  place at_ = place::outside;
  safetensors_entry entry_;
  std::vector<std::int64_t> offsets_;
  std::set<std::string, std::less<>> names_, keys_;
};

inline std::uint64_t safetensors_header_length(std::span<const std::byte> file) noexcept {
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(file[static_cast<std::size_t>(i)]);
  return length;
}

// The header of a file of `size` bytes, from its first bytes: as many as the header has, or all.
inline safetensors_header parse_safetensors_head(std::span<const std::byte> head, std::int64_t size,
                                                 const std::string& what) {
  const std::string where = "heddle: '" + what + "', ";
  if (size < 8)
    throw io_error(where + "offset 0: a safetensors file begins with 8 bytes of header length, the file has " +
                   std::to_string(size));
  const std::uint64_t length = safetensors_header_length(head);
  if (length > static_cast<std::uint64_t>(most_safetensors_header))
    throw io_error(where + "offset 0: a header of " + std::to_string(length) + " bytes, at most " +
                   std::to_string(most_safetensors_header) + " are read: is it a safetensors file?");
  if (static_cast<std::int64_t>(length) > size - 8)
    throw io_error(where + "offset 0: a header of " + std::to_string(length) + " bytes in a file of " +
                   std::to_string(size) + ": the file is cut off");
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, static_cast<std::size_t>(length));
  if (text.empty() || text[0] != '{') throw io_error(where + "offset 8: the header should begin with '{'");
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)  // which the library takes for the end
    throw io_error(where + "offset " + std::to_string(8 + zero) + ": a zero byte in the header");
  safetensors_header h;
  h.data_begin = 8 + static_cast<std::int64_t>(length);
  safetensors_header_reader reader(h, where);
  try {
    nlohmann::json::sax_parse(text, &reader);
  } catch (const nlohmann::json::exception& e) {
    throw io_error(where + "offset 8: the header is no JSON: " + json_fault(e));
  }
  settle_entries(h, size, where);
  return h;
}

inline safetensors_header read_safetensors_head(const input_file& file) {
  std::vector<std::byte> head(static_cast<std::size_t>((std::min)(file.size(), std::int64_t{8})));
  file.read(0, head);
  if (head.size() == 8) {
    const std::uint64_t length = safetensors_header_length(head);
    if (length <= static_cast<std::uint64_t>((std::min)(most_safetensors_header, file.size() - 8))) {
      head.resize(8 + static_cast<std::size_t>(length));
      file.read(8, std::span(head).subspan(8));
    }
  }
  return parse_safetensors_head(head, file.size(), file.path().string());
}

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

/// The header of a safetensors file, from the file's bytes. `what` names the file in errors.
/// Errors: `io_error` with file, tensor and offset for everything that the format does not allow: a header that is no
/// JSON object or longer than 100 MB, a name that comes twice, an unknown element type, sizes that do not fit, holes,
/// overlaps, a file that is cut off or too long.
/// Source: https://github.com/huggingface/safetensors, "Format", and `SafeTensors::read_metadata`.
inline safetensors_header parse_safetensors(std::span<const std::byte> file, const std::string& what) {
  return detail::parse_safetensors_head(file, static_cast<std::int64_t>(file.size()), what);
}

/// A tensor in a file that is open: what `tensor_source` asks for. It is valid as long as the file; any number of
/// threads may read it, and copies of it. Runs of less than 32 KiB that follow each other closely are read ahead, those
/// of more straight into their place where they need no conversion.
class safetensors_tensor {
 public:
  safetensors_tensor(const input_file& file, const safetensors_entry& entry, std::atomic<std::int64_t>& read)
      : file_(&file), entry_(&entry), read_(&read), ahead_(std::make_shared<detail::read_ahead>()) {}

  const safetensors_entry& entry() const noexcept { return *entry_; }
  std::span<const std::int64_t> shape() const noexcept { return entry_->shape; }
  std::string_view dtype() const noexcept { return entry_->dtype.name; }
  /// File and tensor, for errors: "'model.safetensors', tensor 'wte.weight'".
  std::string where() const {
    return "'" + file_->path().string() + "', tensor '" + detail::shown_name(entry_->name) + "'";
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
    if (!converts_to<T>(dtype()))
      throw io_error("heddle: " + where() + ", offset " + std::to_string(entry_->begin) + ": elements of " +
                     std::string(dtype()) + " do not convert to " + std::string(safetensors_dtype_name<T>()));
    if (needs_blocks_)
      throw io_error("heddle: " + where() + " has scales beside it, '" + detail::shown_name(entry_->name) +
                     "_scale_inv': open the folder with the size of their blocks (scale_blocks)");
    if (n == 0) return;
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
    scales_ = std::make_shared<detail::block_scales<safetensors_tensor>>(std::move(scales), blocks, shape(), where());
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
      throw io_error("heddle: '" + path().string() + "' has no tensor '" + detail::shown_name(name) + "', but " +
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
    const std::string of = where + "tensor '" + detail::shown_name(tensor) + "': ";
    if (!file.is_string()) throw io_error(of + "expected the name of a file");
    const auto& name = file.get_ref<const std::string&>();
    const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    if (name.empty() || name == "." || name == ".." || std::any_of(name.begin(), name.end(), control) ||
        name.find_first_of("/\\") != std::string::npos)
      throw io_error(of + "'" + detail::shown_name(name) + "' is no name of a file in the same folder");
    files.emplace(tensor, name);
  }
  if (files.empty()) throw io_error(where + "its weight_map names no tensor");
  return files;
}

/// A model's safetensors: one file, or a folder with `model.safetensors` or, without one, with `model.safetensors.index.json` and the
/// files that it names. Opening it reads every header and holds it against the index. It keeps one descriptor for each
/// file; threads share one folder (`safetensors_reader`). `total_size` in the index is ignored, as transformers ignores
/// it. With `scale_blocks` a tensor NAME of F8_E4M3 is a matrix in 8 bits whose blocks have scales in the tensor NAME_scale_inv, and reads as their
/// products; without, tensors that have such scales beside them are not read.
/// Errors: `config_error` for blocks of less than 1 or more than 2^20 rows or columns; `io_error` as those of `safetensors_file`; a file or tensor of the index that is missing, a tensor that lies
/// in another file than the index says, or that the index does not name, and file names with folders in them.
class safetensors_folder {
 public:
  explicit safetensors_folder(const std::filesystem::path& path, std::optional<scale_blocks> blocks = {})
      : blocks_(blocks) {
    if (blocks)
      for (const std::int64_t size : {blocks->rows, blocks->columns})
        if (size < 1 || size > scale_blocks::most)
          throw config_error("heddle: scale_blocks of a folder should have 1 to " + std::to_string(scale_blocks::most) +
                             " rows and columns, got " + std::to_string(blocks->rows) + " and " +
                             std::to_string(blocks->columns));
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
  bool contains(std::string_view name) const noexcept { return by_name_.find(name) != by_name_.end(); }
  /// The names of all tensors, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, file] : by_name_) all.push_back(name);
    return all;
  }
  /// Errors: `io_error` if there is none of this name; with `scale_blocks`, if it is in 8 bits and no matrix, and if its scales are missing, or
  /// have another shape or type.
  safetensors_tensor tensor(std::string_view name) const {
    safetensors_tensor found = stored(name);
    if (found.dtype() != "F8_E4M3") return found;
    const std::string scales = detail::scales_of(name);
    if (!blocks_)
      found.needs_blocks_ = contains(scales);
    else if (!contains(scales))
      throw io_error("heddle: " + found.where() + " is in 8 bits, and its scales '" + detail::shown_name(scales) +
                     "' are missing");
    else
      found.scale_by(stored(scales), *blocks_);
    return found;
  }
  /// Whether a tensor is the scales of another that this folder has in 8 bits.
  bool is_scales(std::string_view name) const {
    const std::string none = detail::scales_of("");
    if (!blocks_ || name.size() < none.size() || name.substr(name.size() - none.size()) != none) return false;
    const auto of = name.substr(0, name.size() - none.size());
    return contains(of) && stored(of).dtype() == "F8_E4M3";
  }
  /// Bytes of elements that `read` took from all files so far.
  std::int64_t bytes_read() const noexcept {
    std::int64_t all = 0;
    for (const safetensors_file& f : files_) all += f.bytes_read();
    return all;
  }

 private:
  safetensors_tensor stored(std::string_view name) const {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw io_error("heddle: '" + files_.front().path().parent_path().string() + "' has no tensor '" +
                     detail::shown_name(name) + "', but " + std::to_string(by_name_.size()) + " others");
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
      const std::string of = where + "tensor '" + detail::shown_name(tensor) + "': ";
      auto at = files.find(name);
      if (at == files.end()) {
        std::error_code none;
        if (!std::filesystem::exists(folder / name, none))
          throw io_error(of + "the file '" + detail::shown_name(name) + "' is not there");
        at = files.emplace(name, files_.size()).first;
        files_.emplace_back(folder / name);
      }
      if (!files_[at->second].contains(tensor))
        throw io_error(of + "the file '" + detail::shown_name(name) + "' has no such tensor");
      by_name_.emplace(tensor, at->second);
    }
    for (std::size_t f = 0; f < files_.size(); ++f)
      for (const safetensors_entry& e : files_[f].tensors())
        if (const auto named = by_name_.find(e.name); named == by_name_.end() || named->second != f)
          throw io_error(where + "tensor '" + detail::shown_name(e.name) + "' lies in '" +
                         files_[f].path().filename().string() + "' too; the index says " +
                         (named == by_name_.end() ? std::string("nothing of it")
                                                  : "'" + files_[named->second].path().filename().string() + "'"));
  }

  std::optional<scale_blocks> blocks_;
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

  bool contains(std::string_view name) const noexcept { return folder_->contains(name); }
  /// Errors: `io_error` if there is none of this name.
  safetensors_tensor tensor(std::string_view name) const { return folder_->tensor(name).counted_by(read_); }
  /// Bytes of elements that tensors of this reader were asked for so far.
  std::int64_t bytes_read() const noexcept { return read_.load(std::memory_order_relaxed); }

 private:
  const safetensors_folder* folder_;
  mutable std::atomic<std::int64_t> read_ = 0;
};

}  // namespace heddle::inline v0::io
