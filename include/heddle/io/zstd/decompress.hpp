// heddle/io/zstd/decompress.hpp: decompresses zstd, of a whole file or piece after piece.
#pragma once

#if !__has_include(<zstd.h>)
#error "heddle/io/zstd/ needs zstd.h: link heddle::zstd (Debian: apt install libzstd-dev)"
#endif

#include <heddle/core/error.hpp>

#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {

/// A stream of zstd, of one frame or several.
class zstd_stream {
 public:
  zstd_stream() : stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw io_error("heddle: zstd has no memory for a stream");
  }
  zstd_stream(const zstd_stream&) = delete;
  zstd_stream& operator=(const zstd_stream&) = delete;
  ~zstd_stream() { ZSTD_freeDStream(stream_); }

  /// Takes from the front of `from`, writes to the front of `to`, and returns how much it wrote; more may come of nothing
  /// further while it writes all of `to`. Errors: `io_error` with zstd's text.
  std::size_t operator()(std::span<const std::byte>& from, std::span<std::byte> to) {
    ZSTD_inBuffer in{from.data(), from.size(), 0};
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    const std::size_t code = ZSTD_decompressStream(stream_, &out, &in);
    if (ZSTD_isError(code)) throw io_error(std::string("heddle: zstd: ") + ZSTD_getErrorName(code));
    if (in.pos > 0 || out.pos > 0) whole_ = code == 0;
    from = from.subspan(in.pos);
    return out.pos;
  }
  /// Whether the last frame has ended.
  bool whole() const noexcept { return whole_; }

 private:
  ZSTD_DStream* stream_;
  bool whole_ = true;
};

/// What was compressed, which has `bytes` bytes: the decoder of `io::shard_cache`. Errors: `io_error` with zstd's text, or
/// if there are more bytes or less.
inline std::vector<std::byte> zstd_decompressed(std::span<const std::byte> stored, std::int64_t bytes) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes) + 1);
  zstd_stream stream;
  std::size_t at = 0, wrote = 0;
  do at += wrote = stream(stored, std::span(all).subspan(at));
  while (at < all.size() && (wrote > 0 || !stored.empty()));
  if (at != static_cast<std::size_t>(bytes) || !stream.whole())
    throw io_error("heddle: zstd: " + std::string(at > static_cast<std::size_t>(bytes) ? "more than " : "") +
                   std::to_string(at) + " bytes, expected " + std::to_string(bytes));
  all.resize(at);
  return all;
}

}  // namespace heddle::inline v0::io
