// heddle/io/impl/background_save.hpp: bodies of heddle/io/background_save.hpp.
#pragma once

#include <heddle/io/background_save.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include <signal.h>

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE void put_text(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path part = with_suffix(path, ".part");
  durable_file file(part);
  file.write(text);
  file.close();
  rename_path(part, path);
}

inline std::string saved_text(const rank_file& f) {
  return std::to_string(f.bytes) + ' ' + to_hex(f.checksum) + '\n';
}
inline std::string attempt_object(const background_save& save, const std::string& name) {
  return object_name_in(save.step, save.run, save.attempt + '/' + name);
}

}  // namespace detail

HEDDLE_INLINE background_writer::background_writer() {
  // Signals are for the threads that were there before.
  ::sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HEDDLE_INLINE background_writer::~background_writer() {
  close();
  {
    const std::lock_guard lock(mutex_);
    next_ = task::end;
    changed_.notify_all();
  }
  thread_.join();
}

HEDDLE_INLINE void background_writer::close() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return next_ == task::none; });
}

HEDDLE_INLINE bool background_writer::is_busy() const {
  const std::lock_guard lock(mutex_);
  return next_ != task::none;
}
HEDDLE_INLINE void background_writer::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_ == task::none; });
}
HEDDLE_INLINE void background_writer::wait_for(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return next_ == task::none; });
}
HEDDLE_INLINE void background_writer::touch() {
  wait();
  const std::lock_guard lock(mutex_);
  next_ = task::touch;
  changed_.notify_all();
}
HEDDLE_INLINE void background_writer::start(background_save save) {
  wait();
  const std::lock_guard lock(mutex_);
  save_ = std::move(save);
  next_ = task::save;
  changed_.notify_all();
}
HEDDLE_INLINE std::vector<finished_save> background_writer::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

HEDDLE_INLINE void background_writer::run() {
  for (;;) {
    task mine;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return next_ != task::none; });
      mine = next_;
    }
    if (mine == task::end) return;
    finished_save done{.step = save_.step};
    if (mine == task::touch) {
      snapshot_.touch();
    } else {
      try {
        const std::int64_t begin = now_ns();
        write(save_, done);
        done.write_ns = now_ns() - begin;
        if (save_.rank == 0) complete(save_, done);
        done.there_ns = now_ns() - begin;
      } catch (const std::exception& e) {  // also what memory lacks
        done.fault = e.what();
      }
    }
    const std::lock_guard lock(mutex_);
    if (mine == task::save) finished_.push_back(std::move(done));
    next_ = task::none;
    changed_.notify_all();
  }
}

HEDDLE_INLINE void background_writer::write(const background_save& save, finished_save& done) const {
  const std::filesystem::path partial = save.to != nullptr ? std::filesystem::path() : detail::attempt_path(save);
  try {
    if (save.fault_of != nullptr)
      if (const std::string fault = save.fault_of(snapshot_); !fault.empty())
        throw io_error("heddle: step " + std::to_string(save.step) + " is not saved, older saves stay: " + fault +
                       " of the part of rank " + std::to_string(save.rank));
    if (save.to != nullptr) {
      write_to_store(save, done);
      return;
    }
    // An attempt that found no room for itself would leave none for this one.
    if (save.rank == 0) detail::clear_attempts(save.folder, save.step);
    checkpoint_writer file(save.folder, save.rank, partial);
    snapshot_.write(file);
    const rank_file mine = file.finish();
    const std::filesystem::path path = partial / detail::rank_file_name(save.rank);
    if (const file_digest d = digest(path, detail::links::refused);
        d.bytes != mine.bytes || d.checksum != mine.checksum)
      throw io_error("heddle: '" + path.string() + "' is damaged: its checksum is " + to_hex(d.checksum) + ", " +
                     to_hex(mine.checksum) + " was written");
    detail::put_text(partial / detail::saved_name(save.rank), detail::saved_text(mine));
    done.bytes = mine.bytes;
  } catch (const std::exception& e) {
    // So that rank 0 need not wait. What the file has taken of a full disk is room for the words.
    std::error_code none;
    if (save.to == nullptr) std::filesystem::remove(partial / detail::rank_file_name(save.rank), none);
    try {
      const std::string name = detail::failed_name(save.rank);
      if (save.to != nullptr) {
        save.to->put(detail::attempt_object(save, name),
                     std::as_bytes(std::span<const char>(std::string_view(e.what()))));
      } else {
        detail::make_partial(save.folder, partial);
        detail::put_text(partial / name, e.what());
      }
    } catch (const std::exception&) {
    }
    throw;
  }
}

HEDDLE_INLINE void background_writer::write_to_store(const background_save& save, finished_save& done) const {
  detail::refuse_other_run(*save.to, save.step, save.run);  // on all ranks: none writes a file for nothing
  const std::string name = detail::attempt_object(save, detail::rank_file_name(save.rank));
  const auto object = save.to->writer(name);
  tensor_file_writer file(durable_file(*object, save.to->where(name)));
  snapshot_.write(file);
  const file_digest d = file.finish();
  const std::string text = detail::saved_text({save.rank, d.bytes, d.checksum});
  save.to->put(detail::attempt_object(save, detail::saved_name(save.rank)), std::as_bytes(std::span<const char>(text)));
  done.bytes = d.bytes;
}

HEDDLE_INLINE void background_writer::complete_in_store(const background_save& save, finished_save& done) const {
  manifest m = save.about;
  m.facts[detail::attempt_fact] = save.attempt;
  m.files = wait_for_ranks(save, done.write_ns);
  done.bytes = 0;
  for (const rank_file& f : m.files) done.bytes += f.bytes;
  commit_to_store(*save.to, std::move(m), save.keep);
}

HEDDLE_INLINE std::vector<rank_file> background_writer::wait_for_ranks(const background_save& save,
                                                                       std::int64_t write_ns) const {
  namespace fs = std::filesystem;
  using clock = std::chrono::steady_clock;
  const bool in_store = save.to != nullptr;
  const fs::path partial = in_store ? fs::path() : detail::attempt_path(save);
  std::vector<rank_file> files(static_cast<std::size_t>(save.ranks));
  std::vector<int> missing;
  for (int r = 0; r < save.ranks; ++r) missing.push_back(r);
  std::uintmax_t grown = 0;
  auto last = clock::now();
  for (std::chrono::milliseconds pause{10};; pause = (std::min)(2 * pause, std::chrono::milliseconds(1000))) {
    std::vector<std::string> there;  // of a store: what has been put
    if (in_store) there = save.to->list(detail::attempt_object(save, ""));
    const auto is_there = [&](const std::string& name) {
      if (!in_store)
        return !detail::kind_of_entry(partial / name).empty();  // where listings are old (NFS), this is not
      return std::binary_search(there.begin(), there.end(), detail::attempt_object(save, name));
    };
    const auto text_of = [&](const std::string& name) {
      if (in_store) {
        const auto bytes = save.to->read_all(detail::attempt_object(save, name));
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      const auto bytes = read_bytes(partial / name, 0, detail::bytes_of_file(partial / name), detail::links::refused);
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    std::uintmax_t bytes = 0;
    std::vector<int> still;
    for (const int r : missing) {
      if (is_there(detail::saved_name(r))) {
        const std::string text = text_of(detail::saved_name(r));
        std::string_view rest = text;
        const std::string what = "'" + (partial / detail::saved_name(r)).string() + "'";
        rank_file& f = files[static_cast<std::size_t>(r)];
        f.rank = r;
        f.bytes = detail::parse_number<std::int64_t>(detail::next_field(rest, ' '), 10, what);
        f.checksum = detail::parse_number<std::uint64_t>(detail::next_field(rest, '\n'), 16, what);
        continue;
      }
      if (is_there(detail::failed_name(r))) throw io_error(text_of(detail::failed_name(r)));
      std::error_code none;
      const std::uintmax_t so_far = in_store ? 0 : fs::file_size(partial / detail::rank_file_name(r), none);
      bytes += none ? 0 : so_far;
      still.push_back(r);
    }
    if (still.empty()) return files;
    const auto now = clock::now();
    if (still.size() < missing.size() || bytes != grown) last = now;
    missing = std::move(still);
    grown = bytes;
    std::unique_lock lock(mutex_);
    // A file that is flushed and read back does not grow: for as long as this rank's own took, twice, nobody is given up.
    const auto usual = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(2 * write_ns));
    const std::chrono::milliseconds patience =
        (std::max)(usual, closing_ ? (std::min)(save.patience, std::chrono::milliseconds(30000)) : save.patience);
    if (now - last > patience)
      throw io_error("heddle: the save of step " + std::to_string(save.step) + " in '" +
                     (in_store ? save.to->where("") : save.folder.string()) +
                     "' is not complete: " + std::to_string(missing.size()) + " of " + std::to_string(save.ranks) +
                     " ranks have not written theirs, the first rank " + std::to_string(missing[0]) +
                     ", and no file of theirs has grown for " + std::to_string(patience.count()) +
                     " ms; older saves stay");
    changed_.wait_for(lock, pause);
  }
}

HEDDLE_INLINE void background_writer::complete(const background_save& save, finished_save& done) const {
  if (save.to != nullptr) return complete_in_store(save, done);
  manifest m = save.about;
  m.files = wait_for_ranks(save, done.write_ns);
  const commit_options options{
      .keep = save.keep, .left = &done.left, .older = verify::sizes, .partial = detail::attempt_path(save)};
  const std::filesystem::path path = detail::publish(save.folder, m, options);
  require_save(path, verify::sizes);
  detail::retire(save.folder, m, options);
  done.bytes = 0;
  for (const rank_file& f : m.files) done.bytes += f.bytes;
}

}  // namespace heddle::inline v0::io
