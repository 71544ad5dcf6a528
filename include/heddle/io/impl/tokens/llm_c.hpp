// heddle/io/impl/tokens/llm_c.hpp: bodies of heddle/io/tokens/llm_c.hpp.
#pragma once

#include <heddle/io/tokens/llm_c.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checksum.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::io {

HEDDLE_INLINE llm_c_shards::llm_c_shards(std::span<const std::filesystem::path> paths) {
  if (paths.empty()) throw config_error("heddle: a corpus of llm.c has one shard or more");
  checksum64 all;
  for (const std::filesystem::path& path : paths) {
    shard s{path, mapped_file(path)};
    const std::string where = "heddle: '" + path.string() + "': ";
    const auto bytes = s.file.bytes();
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (size < head_bytes)
      throw io_error(where + "is no shard of llm.c: it has " + std::to_string(size) + " bytes, the header alone " +
                     std::to_string(head_bytes));
    const auto magic = detail::number_at<std::int32_t>(bytes, 0), version = detail::number_at<std::int32_t>(bytes, 4);
    if (!(magic == 20240520 && version == 1) && !(magic == 20240801 && version == 7))
      throw io_error(where + "begins with " + std::to_string(magic) + ", version " + std::to_string(version) +
                     "; shards of llm.c with 20240520, 1 (16 bits) or 20240801, 7 (32 bits)");
    s.element = magic == 20240520 ? 2 : 4;
    s.tokens = detail::number_at<std::int32_t>(bytes, 8);
    if (s.tokens < 0 || size != head_bytes + s.tokens * s.element)
      throw io_error(where + "has " + std::to_string(size) + " bytes; its header says " + std::to_string(s.tokens) +
                     " tokens of " + std::to_string(s.element) + ", which are " +
                     std::to_string(head_bytes + s.tokens * s.element) + " with the header");
    const std::uint64_t one = detail::fingerprint_of(bytes.first(static_cast<std::size_t>(head_bytes)),
                                                     bytes.subspan(static_cast<std::size_t>(head_bytes)));
    all.update(std::as_bytes(std::span<const std::uint64_t>(&one, 1)));
    shards_.push_back(std::move(s));
  }
  fingerprint_ = all.value();
}

}  // namespace heddle::inline v0::io
