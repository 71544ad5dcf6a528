// heddle/train/activations/memory_store.hpp: a store in other memory of this machine.
#pragma once

#include <heddle/tensor/buffer.hpp>
#include <heddle/train/activations/threaded_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::activations {

/// A device of a store that keeps copies in memory. Its buffers are allocated once and used again. For host memory next
/// to a device's; on a machine that has only one kind of memory it is for tests and comparisons.
class memory_device {
 public:
  struct place {
    std::byte* data = nullptr;
    std::size_t index = 0;
  };

  explicit memory_device(const store_options& /*options*/) {}

  place prepare(std::int64_t bytes) {
    std::size_t i = 0;
    while (i < copies_.size() && (copies_[i].taken || static_cast<std::int64_t>(copies_[i].memory.size()) != bytes))
      ++i;
    if (i == copies_.size()) copies_.push_back({buffer<std::byte>(bytes), false});
    copies_[i].taken = true;
    return {copies_[i].memory.data(), i};
  }
  void release(place p) noexcept { copies_[p.index].taken = false; }
  std::int64_t write(place p, std::span<const std::byte> bytes) noexcept {
    std::copy(bytes.begin(), bytes.end(), p.data);
    return 0;
  }
  std::int64_t read(place p, std::span<std::byte> bytes) noexcept {
    std::copy_n(p.data, bytes.size(), bytes.begin());
    return 0;
  }

 private:
  struct copy {
    buffer<std::byte> memory;
    bool taken;
  };
  std::vector<copy> copies_;
};

/// A store for activations in other memory of this machine.
using memory_store = threaded_store<memory_device>;

}  // namespace heddle::inline v0::activations
