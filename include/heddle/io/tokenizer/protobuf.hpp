// heddle/io/tokenizer/protobuf.hpp: reads fields of protobuf's wire format, strictly.
#pragma once

#include <heddle/core/error.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::io::detail {

// Fields of a message, in the order of the file. Errors: `io_error` with the byte of the file.
// Source: protobuf.dev/programming-guides/encoding.
class protobuf_message {
 public:
  // `at` is where `bytes` begin in the file `name`, which outlives this.
  protobuf_message(std::string_view bytes, const std::string& name, std::size_t at = 0)
      : bytes_(bytes), name_(&name), begin_(at) {}

  // Goes to the next field: false at the end.
  bool next() {
    if (wire_ != read) skip();
    if (at_ == bytes_.size()) return false;
    field_begin_ = at_;
    const std::uint64_t tag = number();
    field_ = tag >> 3;
    wire_ = static_cast<int>(tag & 7);
    if (field_ == 0 || field_ > 0x1fffffff ||
        (wire_ != varint_type && wire_ != fixed64 && wire_ != text_type && wire_ != fixed32))
      fail(field_begin_,
           "expected a field of protobuf, got field " + std::to_string(field_) + " of type " + std::to_string(wire_));
    return true;
  }
  std::uint64_t field() const noexcept { return field_; }

  std::uint64_t integer(const char* what) {
    expect(varint_type, what, "an integer");
    return number();
  }
  bool flag(const char* what) {
    const std::uint64_t value = integer(what);
    if (value > 1) fail(field_begin_, std::string("expected 0 or 1 for ") + what + ", got " + std::to_string(value));
    return value == 1;
  }
  float real(const char* what) {
    expect(fixed32, what, "a float");
    std::uint32_t bits = 0;
    const std::string_view four = take(4);
    for (unsigned k = 0; k < 4; ++k) bits |= std::uint32_t{static_cast<unsigned char>(four[k])} << 8 * k;
    return std::bit_cast<float>(bits);
  }
  std::string_view text(const char* what) {
    expect(text_type, what, "bytes");
    return take(number());
  }
  protobuf_message message(const char* what) {
    const std::string_view inner = text(what);
    return {inner, *name_, begin_ + at_ - inner.size()};
  }
  // An error of the field that was read last.
  [[noreturn]] void fail(const std::string& why) const { fail(field_begin_, why); }

 private:
  static constexpr int varint_type = 0, fixed64 = 1, text_type = 2, fixed32 = 5, read = -1;

  [[noreturn]] void fail(std::size_t at, const std::string& why) const {
    throw io_error("heddle: " + *name_ + ": at byte " + std::to_string(begin_ + at) + ": " + why);
  }
  void expect(int wire, const char* what, const char* type) {
    if (wire_ != wire)
      fail(field_begin_, std::string("expected ") + type + " for " + what + ", got type " + std::to_string(wire_));
    wire_ = read;
  }
  void skip() {
    const int wire = wire_;
    wire_ = read;
    if (wire == varint_type)
      number();
    else
      take(wire == fixed64 ? 8 : wire == fixed32 ? 4 : number());
  }
  std::uint64_t number() {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (unsigned k = 0; k < 10; ++k) {
      if (at_ == bytes_.size()) fail(begin, "expected a whole number, got the end of the message");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      if (k == 9 && byte > 1) break;
      value |= std::uint64_t{byte & 0x7fU} << 7 * k;
      if (byte < 0x80) return value;
    }
    fail(begin, "expected a number of at most 64 bits, got more");
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_)
      fail(field_begin_, "expected " + std::to_string(size) + " bytes for field " + std::to_string(field_) + ", got " +
                             std::to_string(bytes_.size() - at_) + " up to the end of the message");
    at_ += static_cast<std::size_t>(size);
    return bytes_.substr(at_ - static_cast<std::size_t>(size), static_cast<std::size_t>(size));
  }

  std::string_view bytes_;
  const std::string* name_;
  std::size_t begin_, at_ = 0, field_begin_ = 0;
  std::uint64_t field_ = 0;
  int wire_ = read;
};

}  // namespace heddle::inline v0::io::detail
