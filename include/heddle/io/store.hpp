// heddle/io/store.hpp: holds whole objects by name: in a folder, or a bucket (io/s3/store.hpp).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/safetensors/input_file.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace heddle::inline v0::io {

/// Objects by name, "step-00000100/manifest" say, each of which is there whole or not at all. Any number of threads
/// and processes may use one at the same time.
/// Errors: `io_error` that names the object and says what the store says.
class store : public object_reader {
 public:
  store() = default;
  store(const store&) = delete;
  store& operator=(const store&) = delete;
  virtual ~store() = default;

  /// An object for messages: a path, or a URL.
  virtual std::string where(std::string_view name) const = 0;
  /// Bytes of an object; nothing where there is none.
  virtual std::optional<std::int64_t> size(const std::string& name) const = 0;
  /// Reads the bytes from `offset` on. Errors: also if the object is not as it was when `size` was asked for.
  void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const override = 0;
  /// Puts an object in the place of one that is there. Returns when the store has it for good.
  virtual void put(const std::string& name, std::span<const std::byte> bytes) = 0;
  /// Puts an object if there is none of this name. False if there is one: of several callers one gets true.
  virtual bool put_new(const std::string& name, std::span<const std::byte> bytes) = 0;
  /// Puts the contents of a file.
  virtual void put_file(const std::string& name, const std::filesystem::path& from) = 0;
  /// Puts an object front to back, in the place of one that is there. The store must outlive it. Memory: all of the
  /// object, where a store says nothing else.
  virtual std::unique_ptr<object_writer> writer(const std::string& name);
  /// Names of all objects that begin with `prefix`, sorted.
  virtual std::vector<std::string> list(const std::string& prefix) const = 0;
  /// No error if there is none.
  virtual void remove(const std::string& name) = 0;
  /// What puts that were killed, or are under way, have left: names that `remove` and `read` take, sorted, and `list`
  /// has not. None where the store itself clears it away.
  virtual std::vector<std::string> unfinished(const std::string& prefix) const {
    static_cast<void>(prefix);
    return {};
  }

  /// All bytes of an object. Errors: also if there is none, or if it has more than `most`.
  std::vector<std::byte> read_all(const std::string& name, std::int64_t most = std::int64_t{1} << 30) const {
    const auto bytes = size(name);
    if (!bytes) throw io_error("heddle: '" + where(name) + "' is not there");
    if (*bytes > most)
      throw io_error("heddle: '" + where(name) + "' has " + std::to_string(*bytes) + " bytes, at most " +
                     std::to_string(most) + " are read");
    std::vector<std::byte> out(static_cast<std::size_t>(*bytes));
    read(name, 0, out);
    return out;
  }
};

namespace detail {
class held_object final : public object_writer {
 public:
  held_object(store& to, std::string name) : to_(&to), name_(std::move(name)) {}
  void write(std::span<const std::byte> bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void finish() override { to_->put(name_, bytes_); }

 private:
  store* to_;
  std::string name_;
  std::vector<std::byte> bytes_;
};
}  // namespace detail
inline std::unique_ptr<object_writer> store::writer(const std::string& name) {
  return std::make_unique<detail::held_object>(*this, name);
}

/// The objects of a store, which must outlive it, as a `byte_store`: shards come from a bucket by it.
/// Errors: `io_error` if there is none of a name; those of the store.
class stored_bytes {
 public:
  explicit stored_bytes(const store& from) : from_(&from) {}
  std::uint64_t size(const std::string& name) const {
    const auto bytes = from_->size(name);
    if (!bytes) throw io_error("heddle: '" + from_->where(name) + "' is not there");
    return static_cast<std::uint64_t>(*bytes);
  }
  void read(const std::string& name, std::uint64_t offset, std::span<std::byte> to) const {
    from_->read(name, static_cast<std::int64_t>(offset), to);
  }

 private:
  const store* from_;
};

/// Objects as files below a folder.
class folder_store final : public store {
 public:
  explicit folder_store(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::string where(std::string_view name) const override { return (folder_ / name).string(); }
  std::optional<std::int64_t> size(const std::string& name) const override {
    std::error_code ec;
    const auto bytes = std::filesystem::file_size(folder_ / name, ec);
    if (ec == std::errc::no_such_file_or_directory || ec == std::errc::not_a_directory) return std::nullopt;
    if (ec) throw io_error("heddle: cannot read '" + where(name) + "': " + ec.message());
    return static_cast<std::int64_t>(bytes);
  }
  void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const override {
    input_file(folder_ / name).read(offset, out);
  }
  void put(const std::string& name, std::span<const std::byte> bytes) override {
    put_by(name, [&](durable_file& file) { file.write(bytes); });
  }
  bool put_new(const std::string& name, std::span<const std::byte> bytes) override {
    const auto to = folder_ / name, partial = write_partial(to, [&](durable_file& file) { file.write(bytes); });
    const bool made = ::link(partial.c_str(), to.c_str()) == 0;
    const int code = errno;
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    if (!made && code != EEXIST) detail::throw_file_error("write", to, code);
    if (made) sync_folder(to.parent_path());
    return made;
  }
  void put_file(const std::string& name, const std::filesystem::path& from) override {
    const input_file in(from);
    put_by(name, [&](durable_file& out) {
      std::vector<std::byte> piece(static_cast<std::size_t>((std::min)(in.size(), std::int64_t{1} << 20)));
      for (std::int64_t at = 0; at < in.size();) {
        const auto some = std::span(piece).first(
            static_cast<std::size_t>((std::min)(in.size() - at, static_cast<std::int64_t>(piece.size()))));
        in.read(at, some);
        out.write(some);
        at += std::ssize(some);
      }
    });
  }
  /// Memory: none of the object.
  std::unique_ptr<object_writer> writer(const std::string& name) override {
    return std::make_unique<file_object>(folder_ / name);
  }
  std::vector<std::string> list(const std::string& prefix) const override { return names_of(prefix, false); }
  std::vector<std::string> unfinished(const std::string& prefix) const override { return names_of(prefix, true); }
  void remove(const std::string& name) override {
    std::error_code ec;
    std::filesystem::remove(folder_ / name, ec);
    if (ec) throw io_error("heddle: cannot remove '" + where(name) + "': " + ec.message());
  }

 private:
  std::vector<std::string> names_of(const std::string& prefix, bool partial) const {
    std::vector<std::string> names;
    std::error_code ec;
    for (std::filesystem::recursive_directory_iterator at(folder_, ec), end; !ec && at != end; at.increment(ec)) {
      if (!at->is_regular_file(ec)) continue;
      std::string name = at->path().lexically_relative(folder_).generic_string();
      if (name.starts_with(prefix) && name.ends_with(".partial") == partial) names.push_back(std::move(name));
    }
    if (ec && ec != std::errc::no_such_file_or_directory)
      throw io_error("heddle: cannot read the folder '" + folder_.string() + "': " + ec.message());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::filesystem::path partial_of(const std::filesystem::path& to) {
    detail::make_folder(to.parent_path());
    static std::atomic<int> number{0};
    return to.string() + "." + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".partial";
  }
  // What cannot be written to its end is removed.
  template <class Fill>
  static std::filesystem::path write_partial(const std::filesystem::path& to, Fill&& fill) {
    auto partial = partial_of(to);
    try {
      durable_file file(partial);
      fill(file);
      file.close();
    } catch (...) {
      std::error_code ignored;
      std::filesystem::remove(partial, ignored);
      throw;
    }
    return partial;
  }
  template <class Fill>
  void put_by(const std::string& name, Fill&& fill) {
    const auto to = folder_ / name;
    give_name(write_partial(to, fill), to);
  }
  static void give_name(const std::filesystem::path& partial, const std::filesystem::path& to) {
    std::error_code ec, ignored;
    std::filesystem::rename(partial, to, ec);
    if (ec) {
      std::filesystem::remove(partial, ignored);
      throw io_error("heddle: cannot rename '" + partial.string() + "' to '" + to.string() + "': " + ec.message());
    }
    sync_folder(to.parent_path());
  }
  class file_object final : public object_writer {
   public:
    explicit file_object(const std::filesystem::path& to) : to_(to), file_(partial_of(to)) {}
    ~file_object() override {
      std::error_code ignored;
      if (!done_) std::filesystem::remove(file_.path(), ignored);
    }
    void write(std::span<const std::byte> bytes) override { file_.write(bytes); }
    void finish() override {
      file_.close();
      give_name(file_.path(), to_);
      done_ = true;
    }

   private:
    std::filesystem::path to_;
    durable_file file_;
    bool done_ = false;
  };

  std::filesystem::path folder_;
};

}  // namespace heddle::inline v0::io
