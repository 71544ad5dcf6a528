// heddle/io/tokens/byte_store.hpp: the concept of stores of shards, and a folder as one.
#pragma once

#include <heddle/io/durable_file.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace heddle::inline v0::io {

/// Bytes by name. `size(key)`: how many; `read(key, offset, to)`: those [offset, offset + to.size()). Both throw
/// `io_error`, and are called from several threads. Optional: `local(key)`, the path of a file that is there already.
template <class S>
concept byte_store = requires(const S& s, const std::string& key, std::uint64_t offset, std::span<std::byte> to) {
  { s.size(key) } -> std::convertible_to<std::uint64_t>;
  s.read(key, offset, to);
};

/// The files of a folder as a `byte_store`. Errors: `io_error` naming the file.
class folder_bytes {
 public:
  explicit folder_bytes(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::uint64_t size(const std::string& key) const { return bytes_of(local(key)); }
  void read(const std::string& key, std::uint64_t offset, std::span<std::byte> to) const {
    detail::file_to_read(local(key), detail::links::followed).require(to, static_cast<std::int64_t>(offset));
  }
  std::filesystem::path local(const std::string& key) const { return folder_ / key; }

 private:
  static std::uint64_t bytes_of(const std::filesystem::path& path) {
    std::error_code ec;
    const auto n = std::filesystem::file_size(path, ec);
    if (ec) throw io_error("heddle: cannot read '" + path.string() + "': " + ec.message());
    return n;
  }
  std::filesystem::path folder_;
};
static_assert(byte_store<folder_bytes>);

}  // namespace heddle::inline v0::io
