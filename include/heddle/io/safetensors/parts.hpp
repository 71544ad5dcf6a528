// heddle/io/safetensors/parts.hpp: writes shared safetensors files, each rank its part.
#pragma once

#include <heddle/io/safetensors/writer.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {

/// A tensor that is to be written: all but its elements.
struct safetensors_outline {
  std::string name, dtype;  ///< the type as in "F32", see `safetensors_dtypes`
  std::vector<std::int64_t> shape;
  std::string unit{};  ///< neighbours of the same unit are not cut apart; empty: a tensor by itself

  /// Elements.
  std::int64_t count() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t e : shape) n *= e;
    return n;
  }
  /// Bytes of the elements; negative where 64 bits do not count them, or the type is unknown.
  std::int64_t byte_count() const noexcept {
    const safetensors_dtype* const type = find_safetensors_dtype(dtype);
    return type == nullptr ? -1 : detail::safetensors_bytes(*type, shape);
  }
};

namespace detail {

// Elements as the bytes of `dtype`, rounded once to the nearest. Errors: false if the type is none of those that are written.
template <class T>
bool store_elements(std::string_view dtype, std::span<const T> values, std::vector<std::byte>& out) {
  const auto as = [&]<class U>(U) {
    out.resize(values.size() * sizeof(U));
    for (std::size_t i = 0; i < values.size(); ++i) {
      U u;
      if constexpr (is_half_precision<T>)
        u = converted<U>(static_cast<float>(values[i]));
      else
        u = converted<U>(values[i]);
      std::memcpy(out.data() + i * sizeof(U), &u, sizeof(U));
    }
    return true;
  };
  if (dtype == "F64") return as(double{});
  if (dtype == "F32") return as(float{});
  if (dtype == "F16") return as(f16{});
  if (dtype == "BF16") return as(bf16{});
  return false;
}
}  // namespace detail

/// The files of a folder before anything is written: names, headers, and where each tensor begins. The same arguments give the
/// same plan, so ranks that make it themselves agree.
class safetensors_plan {
 public:
  /// A file: its name in the folder, the bytes of its header, and its size in bytes.
  struct file {
    std::string name;
    std::string head;
    std::int64_t bytes = 0;
    std::vector<std::size_t> tensors;  ///< which of `tensors()`, in the order of their data
  };
  /// Where a tensor is: the number of the file, and the offset of its first byte there.
  struct place {
    std::size_t file = 0;
    std::int64_t begin = 0;
  };

  safetensors_plan() = default;
  /// Files of at most `most_bytes` of data, as `write_safetensors_folder` makes them; their names begin with `stem`.
  /// Errors: `io_error` for what the format cannot hold.
  explicit safetensors_plan(std::vector<safetensors_outline> tensors, std::int64_t most_bytes = 5000000000,
                            const safetensors_options& options = {{{"format", "pt"}}}, std::string stem = "model")
      : tensors_(std::move(tensors)), places_(tensors_.size()), stem_(std::move(stem)) {
    const std::string where = "heddle: the files of a model: ";
    const std::span<const safetensors_outline> all(tensors_);
    static_cast<void>(detail::ordered_outputs(all, safetensors_order::given, where));
    const auto split = detail::split_into_files(all, most_bytes, where);
    for (std::size_t f = 0; f < split.size(); ++f) {
      const auto ordered = detail::ordered_outputs(split[f], options.order, where);
      file& one = files_.emplace_back(file{detail::model_file_name(f, split.size(), stem_),
                                           detail::safetensors_head(ordered, options.metadata, where),
                                           0,
                                           {}});
      one.bytes = static_cast<std::int64_t>(one.head.size());
      for (const safetensors_outline* t : ordered) {
        const auto i = static_cast<std::size_t>(t - tensors_.data());
        one.tensors.push_back(i);
        places_[i] = {f, one.bytes};
        by_name_.emplace(t->name, i);
        one.bytes += t->byte_count();
      }
    }
  }

  const std::vector<safetensors_outline>& tensors() const noexcept { return tensors_; }
  const std::vector<file>& files() const noexcept { return files_; }
  const place& place_of(std::size_t tensor) const noexcept { return places_[tensor]; }
  /// What the names of the files begin with, as in "model".
  const std::string& stem() const noexcept { return stem_; }
  /// Bytes of all elements.
  std::int64_t data_bytes() const noexcept {
    std::int64_t n = 0;
    for (const safetensors_outline& t : tensors_) n += t.byte_count();
    return n;
  }
  /// Which of `tensors()` has this name. Errors: `io_error` if none has.
  std::size_t find(std::string_view name) const {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw io_error("heddle: no tensor '" + shown_name(std::string(name)) + "' is to be written, but " +
                     std::to_string(by_name_.size()) + " others");
    return at->second;
  }
  /// The text of model.safetensors.index.json, as transformers writes it. Empty for one file.
  std::string index() const {
    if (files_.size() < 2) return {};
    std::int64_t elements = 0;
    for (const safetensors_outline& t : tensors_) elements += t.count();
    nlohmann::json about = {{"metadata", {{"total_parameters", elements}, {"total_size", data_bytes()}}},
                            {"weight_map", nlohmann::json::object()}};
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      about["weight_map"][tensors_[i].name] = files_[places_[i].file].name;
    return about.dump(2) + "\n";
  }

 private:
  std::vector<safetensors_outline> tensors_;
  std::vector<place> places_;
  std::string stem_ = "model";
  std::vector<file> files_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

namespace detail {

inline std::filesystem::path unfinished(const std::filesystem::path& folder, const std::string& name) {
  return folder / (name + ".partial");
}

// A file that is there already, written to at any offset.
class shared_file {
 public:
  explicit shared_file(std::filesystem::path path) : path_(std::move(path)) {
    do fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) throw_file_error("write", path_, errno);
  }
  shared_file(const shared_file&) = delete;
  shared_file& operator=(const shared_file&) = delete;
  ~shared_file() {
    if (fd_ >= 0) ::close(fd_);
  }
  void write(std::int64_t offset, std::span<const std::byte> bytes) {
    const file_size_signal_off no_signal;
    while (!bytes.empty()) {
      const ::ssize_t n = ::pwrite(fd_, bytes.data(), (std::min)(bytes.size(), std::size_t{1} << 30), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_file_error("write", path_, errno);
      offset += n;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void close() {
    if (fd_ < 0) return;
    int result = 0;
    do result = ::fsync(fd_);
    while (result != 0 && errno == EINTR);
    if (result != 0) throw_file_error("flush", path_, errno);
    if (::close(std::exchange(fd_, -1)) != 0) throw_file_error("close", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace detail

/// Begins a folder of safetensors, on one rank, before any writes its part: every file of the plan with its header and its size, under
/// another name. Errors: `io_error` if the folder has a model already, or the disk refuses.
inline void begin_safetensors(const std::filesystem::path& folder, const safetensors_plan& plan) {
  detail::make_folder(folder);
  detail::require_no_model(folder, plan.stem());
  for (const safetensors_plan::file& f : plan.files()) {
    const auto path = detail::unfinished(folder, f.name);
    durable_file file(path);
    file.write(f.head);
    file.close();
    std::error_code ec;
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(f.bytes), ec);
    if (ec)
      throw io_error("heddle: cannot make '" + path.string() + "' " + std::to_string(f.bytes) +
                     " bytes: " + ec.message());
  }
}

/// Writes one rank's elements into the files that `begin_safetensors` has made: a `tensor_sink`. Ranks write at the same time, each
/// where its elements belong, so no rank holds a tensor of another. The plan must stay.
class safetensors_part_writer {
 public:
  /// A tensor of the files.
  class output {
   public:
    std::span<const std::int64_t> shape() const noexcept { return outline().shape; }
    std::string where() const {
      return "'" + (writer_->folder_ / writer_->plan_->files()[writer_->plan_->place_of(at_).file].name).string() +
             "', tensor '" + shown_name(outline().name) + "'";
    }
    /// Writes elements [first, first + values.size()), rounded once to the tensor's type.
    /// Errors: `io_error` for elements that the tensor does not have, a type that is not written, and what the disk refuses.
    template <class T>
    void write(std::int64_t first, std::span<const T> values) {
      const auto count = static_cast<std::int64_t>(values.size());
      if (first < 0 || count > outline().count() - first)
        throw io_error("heddle: " + where() + ": elements from " + std::to_string(first) + " to " +
                       std::to_string(first + count) + " are to be written, there are " +
                       std::to_string(outline().count()));
      if (count == 0) return;
      std::span<const std::byte> bytes = std::as_bytes(values);
      if (outline().dtype != safetensors_dtype_name<T>()) {
        if (!detail::store_elements(outline().dtype, values, writer_->converted_))
          throw io_error("heddle: " + where() + ": elements of type " + outline().dtype + " are not written");
        bytes = writer_->converted_;
      }
      const auto place = writer_->plan_->place_of(at_);
      const auto width = static_cast<std::int64_t>(bytes.size() / values.size());
      writer_->file(place.file).write(place.begin + first * width, bytes);
      writer_->written_ += static_cast<std::int64_t>(bytes.size());
    }

   private:
    friend class safetensors_part_writer;
    output(safetensors_part_writer& writer, std::size_t at) : writer_(&writer), at_(at) {}
    const safetensors_outline& outline() const noexcept { return writer_->plan_->tensors()[at_]; }
    safetensors_part_writer* writer_;
    std::size_t at_;
  };

  safetensors_part_writer(std::filesystem::path folder, const safetensors_plan& plan)
      : folder_(std::move(folder)), plan_(&plan), files_(plan.files().size()) {}
  safetensors_part_writer(const safetensors_part_writer&) = delete;
  safetensors_part_writer& operator=(const safetensors_part_writer&) = delete;

  /// Errors: `io_error` if the plan has none of this name.
  output tensor(std::string_view name) { return {*this, plan_->find(name)}; }
  /// Bytes of elements that this rank has written.
  std::int64_t bytes_written() const noexcept { return written_; }
  /// Returns when what this rank wrote is on the disk.
  void finish() {
    for (auto& f : files_)
      if (f != nullptr) f->close();
  }

 private:
  detail::shared_file& file(std::size_t k) {
    if (files_[k] == nullptr)
      files_[k] = std::make_unique<detail::shared_file>(detail::unfinished(folder_, plan_->files()[k].name));
    return *files_[k];
  }

  std::filesystem::path folder_;
  const safetensors_plan* plan_;
  std::vector<std::unique_ptr<detail::shared_file>> files_;
  std::vector<std::byte> converted_;
  std::int64_t written_ = 0;
};

/// Completes the folder, on one rank, when all have finished: the files get their names, the index comes last. `written`: the bytes of
/// elements of all ranks together.
/// Errors: `io_error` if that is not what the plan has: a tensor was left out, or written twice. Then nothing gets its name.
inline void commit_safetensors(const std::filesystem::path& folder, const safetensors_plan& plan,
                               std::int64_t written) {
  if (written != plan.data_bytes())
    throw io_error("heddle: '" + folder.string() + "': " + std::to_string(written) +
                   " bytes of elements were written by all ranks together, the tensors have " +
                   std::to_string(plan.data_bytes()) + ": some were left out, or written twice");
  for (const safetensors_plan::file& f : plan.files()) {
    const auto from = detail::unfinished(folder, f.name), to = folder / f.name;
    std::error_code ec;
    std::filesystem::rename(from, to, ec);
    if (ec) throw io_error("heddle: cannot rename '" + from.string() + "' to '" + to.string() + "': " + ec.message());
  }
  sync_folder(folder);
  if (const std::string index = plan.index(); !index.empty())
    detail::write_whole_file(folder / (plan.stem() + ".safetensors.index.json"),
                             [&](durable_file& file) { file.write(index); });
}

}  // namespace heddle::inline v0::io
