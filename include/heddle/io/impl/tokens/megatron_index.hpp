// heddle/io/impl/tokens/megatron_index.hpp: bodies of heddle/io/tokens/megatron_index.hpp.
#pragma once

#include <heddle/io/tokens/megatron_index.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

inline constexpr std::string_view megatron_magic("MMIDIDX\0\0", 9);
inline constexpr std::int64_t megatron_head = 34;

inline std::filesystem::path named_beside(std::filesystem::path prefix, const char* suffix) {
  return prefix += suffix;
}
}  // namespace detail

HEDDLE_INLINE megatron_corpus::megatron_corpus(const std::filesystem::path& prefix)
    : file_(detail::named_beside(prefix, ".bin")), index_(detail::named_beside(prefix, ".idx")), tokens_(file_) {
  const std::string where = "heddle: '" + detail::named_beside(prefix, ".idx").string() + "': ";
  const auto bytes = index_.bytes();
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto fail = [&](const std::string& what) { throw io_error(where + what); };
  if (size < detail::megatron_head || std::memcmp(bytes.data(), detail::megatron_magic.data(), 9) != 0)
    fail("is no index of Megatron: it does not begin with MMIDIDX");
  if (const auto version = detail::number_at<std::uint64_t>(bytes, 9); version != 1)
    fail("is an index of version " + std::to_string(version) + "; version 1 is read");
  type_ = static_cast<detail::megatron_type>(bytes[17]);
  const std::int64_t element = detail::bytes_of(type_);
  if (element == 0)
    fail("byte 17, the type of elements, is " + std::to_string(static_cast<int>(bytes[17])) +
         "; tokens are 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)");
  const auto sequences = detail::number_at<std::uint64_t>(bytes, 18),
             marks = detail::number_at<std::uint64_t>(bytes, 26);
  constexpr std::uint64_t most = std::uint64_t{1} << 48;
  // Behind them may follow a byte for each sequence (of multimodal data), which is not looked at.
  const std::uint64_t needed = sequences > most || marks > most
                                   ? (std::numeric_limits<std::uint64_t>::max)()
                                   : static_cast<std::uint64_t>(detail::megatron_head) + 12 * sequences + 8 * marks;
  if (needed > bytes.size())
    fail("is cut off: " + std::to_string(sequences) + " sequences and " + std::to_string(marks) +
         " marks of documents do not fit in its " + std::to_string(size) + " bytes");
  sequences_ = static_cast<std::int64_t>(sequences);
  document_marks_ = static_cast<std::int64_t>(marks);
  const auto there = static_cast<std::int64_t>(tokens_.bytes().size());
  for (std::int64_t d = 0; d < sequences_; ++d) {
    const std::int64_t n = length(d), at = offset(d);
    if (n < 0 || at < 0 || at > there || n > (there - at) / element)
      fail("sequence " + std::to_string(d) + " has " + std::to_string(n) + " tokens of " + std::to_string(element) +
           " bytes at byte " + std::to_string(at) + "; the .bin file has " + std::to_string(there) + " bytes");
    total_ += n;
  }
  const std::vector<std::int64_t> begins = document_begins();
  for (std::size_t i = 0; i < begins.size(); ++i)
    if (begins[i] > sequences_ || begins[i] < (i == 0 ? 0 : begins[i - 1]))
      fail("document " + std::to_string(i) + " begins with sequence " + std::to_string(begins[i]) + ", behind " +
           std::to_string(i == 0 ? 0 : begins[i - 1]) + " of " + std::to_string(sequences_));
  fingerprint_ = detail::fingerprint_of(bytes, tokens_.bytes());
}

HEDDLE_INLINE std::int64_t megatron_corpus::length(std::int64_t d) const noexcept {
  return detail::number_at<std::int32_t>(index_.bytes(), static_cast<std::size_t>(detail::megatron_head + 4 * d));
}
HEDDLE_INLINE std::int64_t megatron_corpus::offset(std::int64_t d) const noexcept {
  return detail::number_at<std::int64_t>(index_.bytes(),
                                         static_cast<std::size_t>(detail::megatron_head + 4 * sequences_ + 8 * d));
}
HEDDLE_INLINE std::vector<std::int64_t> megatron_corpus::document_begins() const {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(document_marks_));
  for (std::size_t i = 0; i < begins.size(); ++i)
    begins[i] = detail::number_at<std::int64_t>(
        index_.bytes(), static_cast<std::size_t>(detail::megatron_head + 12 * sequences_) + 8 * i);
  return begins;
}

HEDDLE_INLINE megatron_writer::megatron_writer(std::filesystem::path prefix, std::int64_t vocabulary)
    : prefix_(std::move(prefix)), vocabulary_(vocabulary), tokens_(detail::named_beside(prefix_, ".bin")) {
  if (vocabulary < 1)
    throw config_error("heddle: a vocabulary has 1 or more tokens, not " + std::to_string(vocabulary));
}

HEDDLE_INLINE void megatron_writer::add(std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary_)
      throw config_error("heddle: '" + tokens_.path().string() + "': token " + std::to_string(i) + " of sequence " +
                         std::to_string(lengths_.size()) + " is " + std::to_string(tokens[i]) +
                         "; the vocabulary has " + std::to_string(vocabulary_));
  if (vocabulary_ < 65500) {
    narrow_.assign(tokens.begin(), tokens.end());
    hold(std::as_bytes(std::span(narrow_)));
  } else {
    hold(std::as_bytes(tokens));
  }
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
}

HEDDLE_INLINE void megatron_writer::hold(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{1} << 20;  // a call of the system for each sequence costs more than its copy
  if (held_.size() + bytes.size() >= most) {
    tokens_.write(held_);
    held_.clear();
  }
  if (bytes.size() >= most)
    tokens_.write(bytes);  // of a corpus that is copied: as large as its file
  else
    held_.insert(held_.end(), bytes.begin(), bytes.end());
}

HEDDLE_INLINE void megatron_writer::add_documents(const megatron_corpus& from, std::int64_t first, std::int64_t count) {
  const auto type = vocabulary_ < 65500 ? detail::megatron_type::u16 : detail::megatron_type::i32;
  if (from.type_ != type || first < 0 || count < 0 || count > from.documents() - first)
    throw config_error("heddle: '" + tokens_.path().string() + "': sequences " + std::to_string(first) + " to " +
                       std::to_string(first + count) + " of '" + from.file_.string() + "', which has " +
                       std::to_string(from.documents()) + " of " + std::to_string(detail::bytes_of(from.type_)) +
                       " bytes a token; expected " + std::to_string(detail::bytes_of(type)));
  std::int64_t tokens = 0;
  for (std::int64_t d = first; d < first + count; ++d) {
    lengths_.push_back(static_cast<std::int32_t>(from.length(d)));
    end_document();
    tokens += from.length(d);
  }
  if (count > 0)
    hold(from.tokens_.bytes().subspan(static_cast<std::size_t>(from.offset(first)),
                                      static_cast<std::size_t>(tokens * detail::bytes_of(type))));
}

HEDDLE_INLINE void megatron_writer::finish() {
  tokens_.write(held_);
  held_.clear();
  tokens_.close();
  durable_file index(detail::named_beside(prefix_, ".idx"));
  const auto put = [&](auto value) { index.write(std::as_bytes(std::span(&value, 1))); };
  const auto type = vocabulary_ < 65500 ? detail::megatron_type::u16 : detail::megatron_type::i32;
  index.write(detail::megatron_magic);
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(type));
  put(static_cast<std::uint64_t>(lengths_.size()));
  put(static_cast<std::uint64_t>(documents_.size()));
  index.write(std::as_bytes(std::span(lengths_)));
  std::vector<std::int64_t> offsets;
  std::int64_t at = 0;
  for (const std::int32_t n : lengths_) {
    offsets.push_back(at);
    at += n * detail::bytes_of(type);
  }
  index.write(std::as_bytes(std::span(offsets)));
  index.write(std::as_bytes(std::span(documents_)));
  index.close();
}

}  // namespace heddle::inline v0::io
