// heddle/io/background_save.hpp: writes saves on a thread while a rank goes on, and completes them.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_snapshot.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace heddle::inline v0::io {

class store;

/// One save of one rank.
struct background_save {
  std::filesystem::path folder{};
  store* to = nullptr;  ///< instead of a folder
  std::string run{};    ///< as the manifest has it; of a save into a store
  std::int64_t step = 0;
  int rank = 0, ranks = 1;
  /// The same on all ranks, and of no other attempt to save, whichever run makes it: files of one that was killed are
  /// never taken for those of this one.
  std::string attempt{};
  manifest about{};  ///< of rank 0; without `files`
  int keep = 2;      ///< as in `commit_options`
  /// What is wrong with the copy, or nothing; then it is not written.
  std::string (*fault_of)(const save_snapshot&) = nullptr;
  /// How long rank 0 waits while no file of a rank that is not done grows.
  std::chrono::milliseconds patience{std::chrono::minutes(10)};
};

/// What became of a save.
struct finished_save {
  std::int64_t step = 0;
  std::int64_t bytes = 0;           ///< of all ranks on rank 0, of the rank's own file elsewhere
  std::int64_t write_ns = 0;        ///< until the rank's file was on the disk and had been read back
  std::int64_t there_ns = 0;        ///< of rank 0: until the save was there
  std::int64_t held_ns = 0;         ///< what the save cost the step, where somebody has measured it
  std::string fault{};              ///< empty: it is there, or, elsewhere than on rank 0, this rank's file
  std::vector<std::string> left{};  ///< as in `commit_options`
};

/// A thread that writes copies of a rank's state, reads them back and, on rank 0, waits for the files of all ranks and
/// commits. It sends and receives nothing: ranks find each other's files in the folder or store (`rank-N.saved` says
/// that one is done, `rank-N.failed` why it is not), so that a save is completed whatever the ranks do meanwhile.
class background_writer : uncopyable {
 public:
  background_writer();
  /// Waits for the save under way, but of ranks that do nothing any more no longer than half a minute.
  ~background_writer();

  bool is_busy() const;
  /// Until nothing is under way.
  void wait();
  /// The same, for so long at most.
  void wait_for(std::chrono::milliseconds most);
  /// The same, as the destructor does.
  void close();
  /// The copy; not to be touched while something is under way.
  save_snapshot& snapshot() noexcept { return snapshot_; }
  /// Gets the memory of the copy from the system, on the thread.
  void touch();
  /// Writes the copy, on the thread. Nothing else may be under way.
  void start(background_save save);
  /// The saves that have ended since the last call.
  std::vector<finished_save> take_finished();

 private:
  void run();
  void write(const background_save& save, finished_save& done) const;
  void complete(const background_save& save, finished_save& done) const;
  void write_to_store(const background_save& save, finished_save& done) const;
  void complete_in_store(const background_save& save, finished_save& done) const;
  std::vector<rank_file> wait_for_ranks(const background_save& save, std::int64_t write_ns) const;

  save_snapshot snapshot_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  enum class task : std::uint8_t { none, touch, save, end } next_ = task::none;
  bool closing_ = false;  // whoever waits hurries
  background_save save_{};
  std::vector<finished_save> finished_{};
  std::thread thread_{};
};

namespace detail {
inline std::filesystem::path attempt_path(const background_save& save) {
  return with_suffix(partial_path(save.folder, save.step), ("-" + save.attempt).c_str());
}
// A small file that is there whole or not at all.
HEDDLE_INLINE void put_text(const std::filesystem::path& path, std::string_view text);
}  // namespace detail

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/background_save.hpp>
#endif
