// heddle/train/activations/memory.hpp: pooled memory of activations, lent and counted.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/tensor/huge_pages.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::activations {

/// Lends blocks of whole pages, aligned to pages (large ones to huge pages, for `prefer_huge_pages`), and uses them
/// again. Every loan has a stamp of its own, so that two
/// loans of one address are two: a stamp, unlike an address, says which tensor it was.
/// One thread; what leaves it must outlive the leases.
class memory {
 public:
  class lease;
  /// Remembers a loan without holding it.
  struct mark {
    std::size_t index = 0;
    std::uint64_t stamp = 0;  ///< 0: of none
  };

  memory() = default;
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  /// Memory for so many bytes; what it holds is undefined. Errors: `std::bad_alloc`.
  lease take(std::int64_t bytes);
  /// The loan again, if somebody still holds it; else an empty lease.
  lease again(mark m) noexcept;

  std::int64_t bytes() const noexcept { return now_; }        ///< lent out now
  std::int64_t peak_bytes() const noexcept { return peak_; }  ///< the most that were lent out at a time
  std::int64_t allocated_bytes() const noexcept { return allocated_; }
  void reset_peak() noexcept { peak_ = now_; }

 private:
  struct release {
    std::align_val_t alignment;
    void operator()(std::byte* p) const noexcept { ::operator delete(p, alignment); }
  };
  struct block {
    std::unique_ptr<std::byte, release> pages;
    std::int64_t size;
    std::uint64_t stamp = 0;
    int holders = 0;
    std::int64_t lent = 0;  // bytes that were asked for

    explicit block(std::int64_t bytes) : block(bytes, bytes < most_small ? 4096 : huge_page) {}

   private:
    static constexpr auto most_small = static_cast<std::int64_t>(2 * huge_page);
    block(std::int64_t bytes, std::size_t alignment)
        : pages(static_cast<std::byte*>(
                    ::operator new(static_cast<std::size_t>(bytes), static_cast<std::align_val_t>(alignment))),
                release{static_cast<std::align_val_t>(alignment)}),
          size(bytes) {
      prefer_huge_pages(pages.get(), static_cast<std::size_t>(bytes));
    }
  };

  std::deque<block> blocks_;
  std::uint64_t stamps_ = 0;
  std::int64_t now_ = 0, peak_ = 0, allocated_ = 0;
};

/// Holds a loan; the memory is free again when the last copy is gone.
class memory::lease {
 public:
  lease() = default;
  lease(const lease& other) noexcept : lease(other.of_, other.index_, other.bytes_) {}
  lease(lease&& other) noexcept
      : of_(std::exchange(other.of_, nullptr)), index_(other.index_), bytes_(std::exchange(other.bytes_, 0)) {}
  lease& operator=(lease other) noexcept {
    std::swap(of_, other.of_);
    std::swap(index_, other.index_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~lease() {
    if (of_ == nullptr) return;
    block& b = of_->blocks_[index_];
    if (--b.holders == 0) of_->now_ -= b.size;
  }

  explicit operator bool() const noexcept { return of_ != nullptr; }
  std::span<std::byte> bytes() const noexcept {
    return of_ == nullptr ? std::span<std::byte>()
                          : std::span<std::byte>(of_->blocks_[index_].pages.get(), static_cast<std::size_t>(bytes_));
  }
  memory::mark mark() const noexcept {
    return of_ == nullptr ? memory::mark{} : memory::mark{index_, of_->blocks_[index_].stamp};
  }

 private:
  friend class memory;
  lease(memory* of, std::size_t index, std::int64_t bytes) noexcept : of_(of), index_(index), bytes_(bytes) {
    if (of_ != nullptr) ++of_->blocks_[index_].holders;
  }
  memory* of_ = nullptr;
  std::size_t index_ = 0;
  std::int64_t bytes_ = 0;
};

inline memory::lease memory::take(std::int64_t bytes) {
  const std::int64_t size = ((std::max)(bytes, std::int64_t{1}) + 4095) / 4096 * 4096;
  std::size_t i = 0;
  while (i < blocks_.size() && (blocks_[i].holders > 0 || blocks_[i].size != size)) ++i;
  if (i == blocks_.size()) {
    blocks_.emplace_back(size);
    allocated_ += size;
  }
  blocks_[i].stamp = ++stamps_;
  blocks_[i].lent = bytes;
  now_ += size;
  peak_ = (std::max)(peak_, now_);
  return lease(this, i, bytes);
}

inline memory::lease memory::again(struct mark m) noexcept {
  if (m.stamp == 0 || blocks_[m.index].stamp != m.stamp || blocks_[m.index].holders == 0) return {};
  return lease(this, m.index, blocks_[m.index].lent);
}

}  // namespace heddle::inline v0::activations
