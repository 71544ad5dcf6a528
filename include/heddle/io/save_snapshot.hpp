// heddle/io/save_snapshot.hpp: a copy in memory of what a rank saves.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/io/tensor_file.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::io {

/// Counts what it is given: how much room a `save_snapshot` needs.
class part_sizes final : public part_writer {
 public:
  void add_part(std::string_view, std::string_view, std::span<const std::byte> bytes, const tensor_region&) override {
    bytes_ += padded(static_cast<std::int64_t>(bytes.size()));
  }
  std::int64_t bytes() const noexcept { return bytes_; }
  static constexpr std::int64_t padded(std::int64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

 private:
  std::int64_t bytes_ = 0;
};

/// Parts of tensors, one behind the other in memory of its own, which stays from one copy to the next: the second one
/// of the same parts allocates nothing. Pages are large ones where the system has some.
class save_snapshot final : public part_writer, uncopyable {
 public:
  save_snapshot() = default;
  ~save_snapshot();

  /// Room for so many bytes in all. What is there stays. Errors: `memory_error`.
  void reserve(std::int64_t bytes);
  /// Asks the system for the pages now, so that no copy waits for them: the first touch of a page is ten times as slow
  /// as the copy into it.
  void touch() noexcept;

  /// Forgets the parts; their memory stays.
  void clear() noexcept { parts_ = 0, bytes_ = 0; }
  /// Copies a part. Errors: `memory_error`.
  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                const tensor_region& region) override;

  /// Calls f(name, dtype, bytes, region) for each part, in their order.
  template <class F>
  void each(F&& f) const {
    for (std::size_t i = 0; i < parts_; ++i) {
      const part& p = all_[i];
      f(std::string_view(p.name), std::string_view(p.dtype),
        std::span<const std::byte>(memory_ + p.at, static_cast<std::size_t>(p.bytes)), p.region);
    }
  }
  /// Adds all of them to another writer.
  void write(part_writer& to) const;

  /// Of the parts, and of the memory.
  std::int64_t bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return capacity_; }
  const std::byte* memory() const noexcept { return memory_; }

 private:
  struct part {
    std::string name, dtype;
    tensor_region region;
    std::int64_t at = 0, bytes = 0;
  };

  std::vector<part> all_;  // of the largest copy so far
  std::size_t parts_ = 0;
  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = 0, capacity_ = 0;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/save_snapshot.hpp>
#endif
