// tests/io/failing_objects.hpp: a folder of objects that fails when it is told to.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/store.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A folder that fails at the n-th call that changes it, as a process that is killed there does; and that gives no
/// sizes, or no bytes, of objects whose names end so, as a bucket that is not there for a while.
class failing_objects final : public heddle::io::store {
 public:
  explicit failing_objects(std::filesystem::path folder, int left = (std::numeric_limits<int>::max)())
      : to_(std::move(folder)), left_(left) {}
  std::string no_size_of{}, no_bytes_of{};

  std::string where(std::string_view name) const override { return to_.where(name); }
  std::optional<std::int64_t> size(const std::string& name) const override {
    answer("HEAD", name, no_size_of);
    return to_.size(name);
  }
  void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const override {
    answer("GET", name, no_bytes_of);
    to_.read(name, offset, out);
  }
  void put(const std::string& name, std::span<const std::byte> bytes) override { spend(), to_.put(name, bytes); }
  bool put_new(const std::string& name, std::span<const std::byte> bytes) override {
    spend();
    return to_.put_new(name, bytes);
  }
  void put_file(const std::string& name, const std::filesystem::path& from) override {
    spend(), to_.put_file(name, from);
  }
  std::vector<std::string> list(const std::string& prefix) const override { return to_.list(prefix); }
  void remove(const std::string& name) override { spend(), to_.remove(name); }

 private:
  void answer(const char* method, const std::string& name, const std::string& end) const {
    if (!end.empty() && name.ends_with(end))
      throw heddle::io_error("heddle: " + std::string(method) + " '" + where(name) + "': HTTP status 503");
  }
  void spend() {
    if (left_-- <= 0) throw heddle::io_error("heddle: the store is gone");
  }
  heddle::io::folder_store to_;
  std::atomic<int> left_;
};
