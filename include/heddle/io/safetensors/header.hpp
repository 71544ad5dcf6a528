// heddle/io/safetensors/header.hpp: reads the header of a safetensors file.
#pragma once

#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/entry.hpp>
#include <heddle/io/safetensors/input_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
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

}  // namespace detail

/// The header of a safetensors file, from the file's bytes. `what` names the file in errors.
/// Errors: `io_error` with file, tensor and offset for everything that the format does not allow: a header that is no
/// JSON object or longer than 100 MB, a name that comes twice, an unknown element type, sizes that do not fit, holes,
/// overlaps, a file that is cut off or too long.
/// Source: https://github.com/huggingface/safetensors, "Format", and `SafeTensors::read_metadata`.
inline safetensors_header parse_safetensors(std::span<const std::byte> file, const std::string& what) {
  return detail::parse_safetensors_head(file, static_cast<std::int64_t>(file.size()), what);
}

}  // namespace heddle::inline v0::io
