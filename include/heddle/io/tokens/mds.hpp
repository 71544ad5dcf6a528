// heddle/io/tokens/mds.hpp: reads shards of MosaicML Streaming (MDS) as documents of tokens.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokens/provenance.hpp>
#include <heddle/io/tokens/shard_cache.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// Which column of samples has the tokens.
struct mds_options {
  std::string column = "tokens";
  std::string bytes_are = "int64";  ///< the type of elements where the column is `bytes`: uint16, int32, ...
  shard_cache::decoder zstd{};      ///< for compressed shards: `io::zstd_decompressed`
};

/// The samples of a data set of MosaicML Streaming, each a document of tokens. Columns of tokens are `ndarray` of
/// whole numbers, or `bytes`. A sample's shard is brought into the cache when the sample is read first; `length` of
/// samples needs shards, too, except where all have one shape (`ndarray:uint16:2049`). The cache must outlive it. Any
/// thread may call.
/// Source: mosaicml-streaming, streaming/base/format/mds, version 2 of index.json.
class mds_shards {
 public:
  /// Errors: `io_error` that names index.json and what is wrong: no JSON, another version or format, a column that is
  /// missing or holds no tokens, hashes of shards that no decoder is there for; those of the cache.
  explicit mds_shards(shard_cache& cache, mds_options options = {})
      : cache_(&cache), options_(std::move(options)), begins_{0} {
    const std::vector<std::byte> text = cache.read_all("index.json", std::int64_t{1} << 30);
    fingerprint_ = checksum64().update(text).value();
    const auto index = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, "index.json");
    try {
      if (index.at("version").template get<int>() != 2)
        fail("is of version " + index.at("version").dump() + "; 2 is read");
      for (const auto& s : index.at("shards")) add(s);
    } catch (const nlohmann::json::exception& e) {
      fail(detail::json_fault(e));
    }
    if (shards_.empty()) fail("has no shards");
  }

  std::int64_t documents() const noexcept { return begins_.back(); }
  std::int64_t length(std::int64_t d) const {
    if (fixed_ >= 0) return fixed_;
    const tokens_of_sample t = tokens(d);
    return std::ssize(t.bytes) / t.element.size;
  }
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const {
    const tokens_of_sample t = tokens(d);
    if (first < 0 || (first + std::ssize(to)) * t.element.size > std::ssize(t.bytes))
      throw config_error("heddle: tokens " + std::to_string(first) + " to " + std::to_string(first + std::ssize(to)) +
                         " of sample " + std::to_string(d) + ", which has " +
                         std::to_string(std::ssize(t.bytes) / t.element.size));
    const std::byte* const from = t.bytes.data() + first * t.element.size;
    switch (t.element.code) {
      case 8:
        return detail::copy_tokens<std::uint8_t>(from, to);
      case 9:
        return detail::copy_tokens<std::int8_t>(from, to);
      case 16:
        return detail::copy_tokens<std::uint16_t>(from, to);
      case 17:
        return detail::copy_tokens<std::int16_t>(from, to);
      case 32:
        return detail::copy_tokens<std::uint32_t>(from, to);
      case 33:
        return detail::copy_tokens<std::int32_t>(from, to);
      case 64:
        return detail::copy_tokens<std::uint64_t>(from, to);
      case 65:
        return detail::copy_tokens<std::int64_t>(from, to);
      default:
        return;
    }
  }
  /// Of index.json, which has the sizes of all shards, and hashes if they were made.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  /// The sample with which each shard begins, for `shard_order`.
  std::span<const std::int64_t> shard_begins() const noexcept { return std::span(begins_).first(begins_.size() - 1); }
  /// Where tokens lie in a shard, not compressed.
  file_range bytes_of(std::int64_t d, std::int64_t first, std::int64_t count) const {
    const tokens_of_sample t = tokens(d);
    return {shards_[shard_of(d)].raw, t.bytes.data() - t.file->bytes().data() + first * t.element.size,
            count * t.element.size};
  }
  /// The bytes of a column of a sample, as they are stored. Errors: `io_error` if there is no such column.
  std::vector<std::byte> column(std::int64_t d, std::string_view name) const {
    const std::size_t s = shard_of(d);
    for (std::size_t c = 0; c < shards_[s].columns.size(); ++c)
      if (shards_[s].columns[c].name == name) {
        const auto file = open(s);
        const auto bytes = column_of(file->bytes(), s, d - begins_[s], c);
        return {bytes.begin(), bytes.end()};
      }
    throw io_error("heddle: '" + shards_[s].raw + "' has no column '" + shown_name(name) + "'");
  }

 private:
  struct number_type {
    std::string_view name;
    int code, size;
  };
  static constexpr std::array<number_type, 8> types{{{"uint8", 8, 1},
                                                     {"int8", 9, 1},
                                                     {"uint16", 16, 2},
                                                     {"int16", 17, 2},
                                                     {"uint32", 32, 4},
                                                     {"int32", 33, 4},
                                                     {"uint64", 64, 8},
                                                     {"int64", 65, 8}}};
  struct column_info {
    std::string name;
    std::int64_t size = 0;  // of each sample; 0: written in the sample
  };
  struct shard {
    std::string raw, stored;
    std::int64_t bytes = 0;
    bool compressed = false;
    std::vector<column_info> columns{};
    std::size_t tokens = 0;                    // the column
    bool is_bytes = false, has_shape = false;  // its encoding; the shape before the elements
    std::optional<number_type> element{};      // none: in the sample
  };
  struct tokens_of_sample {
    std::shared_ptr<const mapped_file> file;
    std::span<const std::byte> bytes;
    number_type element;
  };

  [[noreturn]] static void fail(const std::string& what) { throw io_error("heddle: index.json: " + what); }
  static std::optional<number_type> type_of(std::string_view name) {
    for (const number_type& t : types)
      if (t.name == name) return t;
    return {};
  }
  void add(const nlohmann::json& s) {
    shard one;
    const std::string which = "shard " + std::to_string(shards_.size());
    if (s.at("format") != "mds" || s.at("version") != 2)
      fail(which + " is of format " + s.at("format").dump() + ", version " + s.at("version").dump() +
           "; mds, 2 is read");
    one.raw = s.at("raw_data").at("basename").template get<std::string>();
    one.bytes = s.at("raw_data").at("bytes").template get<std::int64_t>();
    one.stored = one.raw;
    if (const auto& compression = s.at("compression"); !compression.is_null()) {
      const auto name = compression.template get<std::string>();
      if (name.substr(0, name.find(':')) != "zstd" || !options_.zstd)
        fail(which + " is compressed by '" + shown_name(name) +
             "'; zstd is read, if options.zstd is io::zstd_decompressed");
      one.compressed = true;
      one.stored = s.at("zip_data").at("basename").template get<std::string>();
    }
    for (const std::string* name : {&one.raw, &one.stored})
      if (name->empty() || name->find('/') != std::string::npos || (*name)[0] == '.')
        fail(which + " has the name '" + shown_name(*name) + "'; expected one of a file beside it");
    if (one.bytes < 0 || one.bytes > (std::numeric_limits<std::uint32_t>::max)())
      fail(which + " has " + std::to_string(one.bytes) + " bytes; offsets in it are of 32 bits");
    const auto& names = s.at("column_names");
    std::optional<std::string> encoding;
    for (std::size_t c = 0; c < names.size(); ++c) {
      const auto& size = s.at("column_sizes").at(c);
      one.columns.push_back(
          {names[c].template get<std::string>(), size.is_null() ? 0 : size.template get<std::int64_t>()});
      if (one.columns.back().size < 0 || one.columns.back().size > one.bytes)
        fail(which + ": column " + std::to_string(c) + " has " + std::to_string(one.columns.back().size) + " bytes");
      if (one.columns.back().name != options_.column) continue;
      one.tokens = c;
      encoding = s.at("column_encodings").at(c).template get<std::string>();
    }
    if (!encoding) fail(which + " has no column '" + shown_name(options_.column) + "'");
    understand(one, *encoding, which);
    const auto samples = s.at("samples").template get<std::int64_t>();
    if (samples < 0 || samples > one.bytes / 4 - 2)
      fail(which + " has " + std::to_string(samples) + " samples in " + std::to_string(one.bytes) + " bytes");
    begins_.push_back(begins_.back() + samples);
    const std::int64_t fixed =
        one.columns[one.tokens].size > 0 && one.element ? one.columns[one.tokens].size / one.element->size : -1;
    fixed_ = shards_.empty() || fixed == fixed_ ? fixed : -1;
    shards_.push_back(std::move(one));
  }
  void understand(shard& one, const std::string& encoding, const std::string& which) const {
    const std::size_t colon = encoding.find(':');
    const std::string kind = encoding.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : encoding.substr(colon + 1);
    const std::string type = kind == "bytes" ? options_.bytes_are : rest.substr(0, rest.find(':'));
    one.is_bytes = kind == "bytes";
    one.has_shape = !one.is_bytes && rest.find(':') == std::string::npos;
    one.element = type_of(type);
    if ((kind != "bytes" && kind != "ndarray") || (!one.element && (one.is_bytes || !type.empty())))
      fail(which + ": the column '" + shown_name(options_.column) + "' is '" + shown_name(encoding) + "'" +
           (one.is_bytes ? " of " + type : std::string()) + "; tokens are bytes, or ndarray of whole numbers");
  }
  std::size_t shard_of(std::int64_t d) const {
    if (d < 0 || d >= documents())
      throw config_error("heddle: sample " + std::to_string(d) + " of " + std::to_string(documents()));
    return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), d) - begins_.begin() - 1);
  }
  std::shared_ptr<const mapped_file> open(std::size_t s) const {
    // Data sets whose shards have the same names do not take each other's.
    std::array<char, 20> of_set{};
    std::snprintf(of_set.data(), of_set.size(), "%016llx-", static_cast<unsigned long long>(fingerprint_));
    return cache_->get(of_set.data() + shards_[s].raw, shards_[s].stored, shards_[s].bytes,
                       shards_[s].compressed ? options_.zstd : shard_cache::decoder{});
  }
  std::span<const std::byte> column_of(std::span<const std::byte> file, std::size_t s, std::int64_t sample,
                                       std::size_t column) const {
    const shard& of = shards_[s];
    const auto broken = [&](const std::string& what) {
      throw io_error("heddle: '" + of.raw + "': sample " + std::to_string(sample) + " " + what);
    };
    const auto samples = static_cast<std::uint64_t>(begins_[s + 1] - begins_[s]);
    if (detail::number_at<std::uint32_t>(file, 0) != samples)
      broken("of a shard of " + std::to_string(detail::number_at<std::uint32_t>(file, 0)) +
             " samples; index.json has " + std::to_string(samples));
    const auto at = static_cast<std::size_t>(4 * (1 + sample));
    const std::uint64_t begin = detail::number_at<std::uint32_t>(file, at),
                        end = detail::number_at<std::uint32_t>(file, at + 4);
    if (begin > end || end > file.size())
      broken("has bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
             std::to_string(file.size()));
    const auto bytes = file.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    std::uint64_t heads = 0, first = 0, size = 0;
    for (const column_info& c : of.columns) heads += c.size == 0 ? 4 : 0;
    if (heads > bytes.size()) broken("is cut off");
    first = heads;
    heads = 0;
    for (std::size_t c = 0; c <= column; ++c) {
      first += size;
      size = static_cast<std::uint64_t>(of.columns[c].size);
      if (size == 0) {
        size = detail::number_at<std::uint32_t>(bytes, static_cast<std::size_t>(heads));
        heads += 4;
      }
    }
    if (first + size > bytes.size())
      broken("has " + std::to_string(bytes.size()) + " bytes; its columns need " + std::to_string(first + size));
    return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
  }
  tokens_of_sample tokens(std::int64_t d) const {
    const std::size_t s = shard_of(d);
    const shard& of = shards_[s];
    tokens_of_sample t{open(s), {}, of.element.value_or(number_type{})};
    t.bytes = column_of(t.file->bytes(), s, d - begins_[s], of.tokens);
    const auto broken = [&](const std::string& what) {
      throw io_error("heddle: '" + of.raw + "': sample " + std::to_string(d - begins_[s]) + ": " + what);
    };
    const auto take = [&](std::size_t n) {
      if (n > t.bytes.size()) broken("its array is cut off");
      const auto front = t.bytes.first(n);
      t.bytes = t.bytes.subspan(n);
      return front;
    };
    if (!of.is_bytes && !of.element) {
      const int code = static_cast<int>(take(1)[0]);
      const auto type = std::find_if(types.begin(), types.end(), [&](const number_type& n) { return n.code == code; });
      if (type == types.end()) broken("elements of type " + std::to_string(code) + " are no whole numbers");
      t.element = *type;
    }
    if (of.has_shape) {
      const auto head = static_cast<unsigned>(take(1)[0]);
      take((head >> 2) << (head & 3));
    }
    if (std::ssize(t.bytes) % t.element.size != 0)
      broken(std::to_string(t.bytes.size()) + " bytes are no " + std::string(t.element.name));
    return t;
  }

  shard_cache* cache_;
  mds_options options_;
  std::vector<shard> shards_{};
  std::vector<std::int64_t> begins_;
  std::int64_t fixed_ = -1;  // tokens of every sample, where that is known
  std::uint64_t fingerprint_ = 0;
};

}  // namespace heddle::inline v0::io
