// heddle/io/tokens/megatron_index.hpp: reads and writes Megatron's .bin and .idx files.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/tokens/mapped_file.hpp>
#include <heddle/io/tokens/provenance.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {
// The numbers by which `.idx` names element types, of tokens.
enum class megatron_type : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
constexpr std::int64_t bytes_of(megatron_type t) noexcept {
  switch (t) {
    case megatron_type::u8:
    case megatron_type::i8:
      return 1;
    case megatron_type::i16:
    case megatron_type::u16:
      return 2;
    case megatron_type::i32:
      return 4;
    case megatron_type::i64:
      return 8;
  }
  return 0;
}
}  // namespace detail

/// The tokens of `PREFIX.bin` by `PREFIX.idx`, both mapped: nothing is read before it is asked for. A `token_store`
/// whose documents are the sequences of the index, as Megatron's orders number them. Source: Megatron-LM,
/// megatron/core/datasets/indexed_dataset.py.
class megatron_corpus {
 public:
  /// Errors: `io_error` that names file and place, what was expected and what is there: another magic or version,
  /// elements that are no tokens, a file that is cut off, sequences beyond the end of `.bin`, documents that are not in
  /// order.
  explicit megatron_corpus(const std::filesystem::path& prefix);

  std::int64_t documents() const noexcept { return sequences_; }
  std::int64_t length(std::int64_t d) const noexcept;
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const noexcept {
    const std::byte* from = tokens_.bytes().data() + offset(d) + first * detail::bytes_of(type_);
    using enum detail::megatron_type;
    switch (type_) {
      case u8:
        return detail::copy_tokens<std::uint8_t>(from, to);
      case i8:
        return detail::copy_tokens<std::int8_t>(from, to);
      case i16:
        return detail::copy_tokens<std::int16_t>(from, to);
      case u16:
        return detail::copy_tokens<std::uint16_t>(from, to);
      case i32:
        return detail::copy_tokens<std::int32_t>(from, to);
      case i64:
        return detail::copy_tokens<std::int64_t>(from, to);
    }
  }
  /// Where tokens [first, first + count) of a document lie.
  file_range bytes_of(std::int64_t d, std::int64_t first, std::int64_t count) const {
    const std::int64_t element = detail::bytes_of(type_);
    return {file_, offset(d) + first * element, count * element};
  }
  /// Of all sequences.
  std::int64_t tokens() const noexcept { return total_; }
  /// The sequence with which each document of several begins, and behind them the number of sequences.
  std::vector<std::int64_t> document_begins() const;
  /// Of the index, the size of `.bin`, and 64 of its pages: all of it may be more than a run reads.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  friend class megatron_writer;
  std::int64_t offset(std::int64_t d) const noexcept;

  std::filesystem::path file_;
  mapped_file index_, tokens_;
  detail::megatron_type type_ = detail::megatron_type::i32;
  std::int64_t sequences_ = 0, document_marks_ = 0, total_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// Writes `PREFIX.bin` and `PREFIX.idx`, as Megatron's preprocessing does: tokens of 16 bits where the vocabulary is
/// below 65,500, else of 32.
class megatron_writer {
 public:
  /// Errors: `io_error`, as all of its members; `config_error` for a vocabulary below 1.
  megatron_writer(std::filesystem::path prefix, std::int64_t vocabulary);
  /// One sequence. Errors: `config_error` naming a token that is not in the vocabulary.
  void add(std::span<const std::int32_t> tokens);
  /// Sequences [first, first + count) of a corpus that such a writer has made, of a vocabulary of the same width and in
  /// one piece of its `.bin`: each is a document. Errors: `config_error` if it is another's or has not so many.
  void add_documents(const megatron_corpus& from, std::int64_t first, std::int64_t count);
  /// The sequences since the last call are a document.
  void end_document() { documents_.push_back(static_cast<std::int64_t>(lengths_.size())); }
  /// Returns when both files are on the disk, the index last.
  void finish();

 private:
  void hold(std::span<const std::byte> bytes);

  std::filesystem::path prefix_;
  std::int64_t vocabulary_;
  durable_file tokens_;
  std::vector<std::byte> held_{};
  std::vector<std::uint16_t> narrow_{};
  std::vector<std::int32_t> lengths_{};
  std::vector<std::int64_t> documents_{0};
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/megatron_index.hpp>
#endif
