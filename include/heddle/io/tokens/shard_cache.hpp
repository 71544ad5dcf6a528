// heddle/io/tokens/shard_cache.hpp: keeps shards in a local folder of bounded size.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/tokens/byte_store.hpp>
#include <heddle/io/tokens/mapped_file.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// Where shards are kept, and how many bytes of them.
struct shard_cache_options {
  std::filesystem::path folder{};  ///< of this node; processes of it share what is there
  std::int64_t most_bytes = std::int64_t{16}
                            << 30;  ///< in the folder; of those that nobody has used for longest, files go
  int mapped = 8;                   ///< that stay mapped in this process
};

/// Shards of a `byte_store`, as files. A shard is read by whoever needs it first, while others on the node wait; it
/// stands in the folder under its name and `.heddle-shard` only when it is whole; other files there are left alone. What is mapped may be removed, and lives until it is
/// unmapped: the folder's file system has up to `mapped` shards of each process more than `most_bytes`. Any thread may
/// call. Errors: `io_error`, those of the store and of files. The store must outlive it.
class shard_cache {
 public:
  /// Makes the bytes of a shard of those that are stored, of which there will be `bytes`.
  using decoder = std::function<std::vector<std::byte>(std::span<const std::byte> stored, std::int64_t bytes)>;

  template <byte_store Store>
  shard_cache(const Store& store, shard_cache_options options)
      : size_([&store](const std::string& key) { return static_cast<std::uint64_t>(store.size(key)); }),
        read_([&store](const std::string& key, std::uint64_t offset, std::span<std::byte> to) {
          store.read(key, offset, to);
        }),
        options_(std::move(options)) {
    if constexpr (requires(const std::string& key) {
                    { store.local(key) } -> std::convertible_to<std::filesystem::path>;
                  })
      local_ = [&store](const std::string& key) { return std::filesystem::path(store.local(key)); };
    prepare();
  }

  /// A shard of so many bytes, from those stored as `key`, `decode`d if that is given. `name`: in the folder, of
  /// letters, digits, dots, dashes and underscores. A file of the store that needs no decoding is mapped where it is.
  std::shared_ptr<const mapped_file> get(const std::string& name, const std::string& key, std::int64_t bytes,
                                         const decoder& decode = {});
  /// All bytes of what is stored, past the cache. Errors: also if there are more than `most`.
  std::vector<std::byte> read_all(const std::string& key, std::int64_t most) const;
  /// How many shards this object has read from the store.
  std::int64_t shards_read() const noexcept;

 private:
  void prepare();
  void bring(const std::filesystem::path& to, const std::string& key, std::int64_t bytes, const decoder& decode);
  void shrink(const std::filesystem::path& but) const;
  std::shared_ptr<const mapped_file> keep(const std::string& name, mapped_file file);

  std::function<std::uint64_t(const std::string&)> size_;
  std::function<void(const std::string&, std::uint64_t, std::span<std::byte>)> read_;
  std::function<std::filesystem::path(const std::string&)> local_{};
  shard_cache_options options_;
  mutable std::mutex mutex_{};
  std::list<std::pair<std::string, std::shared_ptr<const mapped_file>>> recent_{};  // the last used first
  std::int64_t read_count_ = 0;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/shard_cache.hpp>
#endif
