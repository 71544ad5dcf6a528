// heddle/io/tokens/llm_c.hpp: shards of tokens as llm.c has them.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/tokens/mapped_file.hpp>
#include <heddle/io/tokens/provenance.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace heddle::inline v0::io {

/// Shards of llm.c, mapped: a `token_store` whose documents are the shards, in the order given. Tokens are of 16 bits
/// (magic 20240520, version 1) or of 32 (20240801, 7). Source: llm.c, dev/data/data_common.py and llmc/dataloader.h.
class llm_c_shards {
 public:
  /// Errors: `config_error` for no shard; `io_error` that names the shard, what was expected and what is there.
  explicit llm_c_shards(std::span<const std::filesystem::path> paths);

  std::int64_t documents() const noexcept { return static_cast<std::int64_t>(shards_.size()); }
  std::int64_t length(std::int64_t d) const noexcept { return shards_[static_cast<std::size_t>(d)].tokens; }
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const noexcept {
    const shard& s = shards_[static_cast<std::size_t>(d)];
    const std::byte* from = s.file.bytes().data() + head_bytes + first * s.element;
    if (s.element == 2)
      detail::copy_tokens<std::uint16_t>(from, to);
    else
      detail::copy_tokens<std::uint32_t>(from, to);
  }
  /// Where tokens [first, first + count) of a shard lie.
  file_range bytes_of(std::int64_t d, std::int64_t first, std::int64_t count) const {
    const shard& s = shards_[static_cast<std::size_t>(d)];
    return {s.path, head_bytes + first * s.element, count * s.element};
  }
  /// Of the headers, the sizes, and 64 pages of each shard.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  static constexpr std::int64_t head_bytes = 1024;
  struct shard {
    std::filesystem::path path;
    mapped_file file;
    std::int64_t tokens = 0, element = 2;
  };
  std::vector<shard> shards_{};
  std::uint64_t fingerprint_ = 0;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/llm_c.hpp>
#endif
