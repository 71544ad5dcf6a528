// heddle/comm/mpi/board.hpp: memory that MPI processes of one host share: calls and failures.
#pragma once

#include <heddle/comm/mpi/api.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::detail {

// What one rank shows to the others of its host. Written by that rank, read by all.
struct alignas(64) board_slot {
  enum : int { away, inside, returned, left };
  std::atomic<int> state{away};  // its body runs, has ended; the launch is over
  std::atomic<int> pid{0};
  std::atomic<std::uint64_t> entered{0};  // calls it has entered
  std::atomic<std::uint64_t> call{0};     // while it is in one: 1 + operation, root or other side; else 0
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::uint64_t> text_version{0};  // odd while `text` is written
  char text[176] = {};                         // where it waits in words, once it has waited for a while
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

struct board_head {
  std::atomic<int> first_failed{-1};  // the rank whose error ended the world; its text is complete when this is set
  std::atomic<int> claimed{0};        // whether somebody writes `failure`
  std::atomic<int> reporter{0};       // whether somebody prints why the job ends
  std::atomic<int> users{0};          // virtual ranks: the last one to go frees the board
  char failure[1000] = {};
};

// A board over all ranks of a launch; ranks on other hosts stay `away`. Without shared memory there is none.
class mpi_board {
 public:
  mpi_board() = default;
  mpi_board(const mpi_board&) = delete;
  mpi_board& operator=(const mpi_board&) = delete;
  ~mpi_board() { unmap(); }

  explicit operator bool() const noexcept { return head_ != nullptr; }
  int size() const noexcept { return size_; }
  board_head& head() const noexcept { return *head_; }
  board_slot& slot(int rank) const noexcept { return slots_[rank]; }

  // A collective over `all`. False on all ranks of a host where its memory cannot be shared.
  bool open(MPI_Comm all) {
#if defined(SMPI_H)
    int rank = 0;  // all ranks are one process
    mpi_check(MPI_Comm_rank(all, &rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(all, &size_), "MPI_Comm_size");
    bytes_ = board_bytes(size_);
    void* at = nullptr;
    if (rank == 0) {
      at = ::operator new(bytes_, std::align_val_t{alignof(board_slot)});
      place_at(at);
      construct();
      head_->users.store(size_, std::memory_order_relaxed);
    }
    mpi_check(MPI_Bcast(&at, sizeof at, MPI_BYTE, 0, all), "MPI_Bcast");
    place_at(at);
    slot(rank).state.store(board_slot::inside, std::memory_order_release);
    mpi_check(MPI_Barrier(all), "MPI_Barrier");
    return true;
#elif defined(__linux__)
    int rank = 0, ok = 1;
    mpi_check(MPI_Comm_rank(all, &rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(all, &size_), "MPI_Comm_size");
    // Not MPI_COMM_TYPE_SHARED: some MPIs (Debian's MPICH 5.0.2) put each process on a host of its own there.
    std::vector<std::uint64_t> hosts(static_cast<std::size_t>(size_));
    const std::uint64_t mine = host_number();
    mpi_check(MPI_Allgather(&mine, 1, MPI_UINT64_T, hosts.data(), 1, MPI_UINT64_T, all), "MPI_Allgather");
    int first = 0;
    while (hosts[static_cast<std::size_t>(first)] != mine) ++first;
    MPI_Comm host = MPI_COMM_NULL;
    mpi_check(MPI_Comm_split(all, first, rank, &host), "MPI_Comm_split");
    int place = 0;
    mpi_check(MPI_Comm_rank(host, &place), "MPI_Comm_rank");
    char name[64] = "/dev/shm/heddle-XXXXXX";
    bytes_ = board_bytes(size_);
    int file = -1;
    if (place == 0) {
      file = ::mkstemp(name);
      ok = file >= 0 && ::posix_fallocate(file, 0, static_cast<::off_t>(bytes_)) == 0 && map(file) ? 1 : 0;
      if (ok != 0) construct();
    }
    mpi_check(MPI_Bcast(name, sizeof name, MPI_CHAR, 0, host), "MPI_Bcast");
    mpi_check(MPI_Bcast(&ok, 1, MPI_INT, 0, host), "MPI_Bcast");
    if (place != 0 && ok != 0) {
      file = ::open(name, O_RDWR | O_CLOEXEC);
      ok = file >= 0 && map(file) ? 1 : 0;
    }
    if (file >= 0) ::close(file);
    if (ok != 0) {
      slot(rank).pid.store(static_cast<int>(::getpid()), std::memory_order_relaxed);
      slot(rank).state.store(board_slot::inside, std::memory_order_release);
    }
    int all_ok = 0;
    mpi_check(MPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
    if (place == 0) ::unlink(name);
    MPI_Comm_free(&host);
    if (all_ok == 0) unmap();
    return all_ok != 0;
#else
    (void)all;
    return false;
#endif
  }

  // The first error of the host ends the world.
  void fail(int rank, const std::string& text) const noexcept {
    int nobody = 0;
    if (head_ == nullptr || !head_->claimed.compare_exchange_strong(nobody, 1)) return;
    std::snprintf(head_->failure, sizeof head_->failure, "%s", text.c_str());
    head_->first_failed.store(rank, std::memory_order_release);
  }
  int first_failed() const noexcept {
    return head_ == nullptr ? -1 : head_->first_failed.load(std::memory_order_acquire);
  }
  // Whether the caller is the one who prints why the job ends.
  bool claim_report() const noexcept { return head_->reporter.exchange(1) == 0; }

  static void write_text(board_slot& slot, const std::string& text) noexcept {
    slot.text_version.fetch_add(1, std::memory_order_acq_rel);
    std::snprintf(slot.text, sizeof slot.text, "%s", text.c_str());
    slot.text_version.fetch_add(1, std::memory_order_acq_rel);
  }
  static std::string read_text(const board_slot& slot) {
    char copy[sizeof slot.text];
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t before = slot.text_version.load(std::memory_order_acquire);
      std::memcpy(copy, slot.text, sizeof copy);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (before % 2 == 0 && slot.text_version.load(std::memory_order_relaxed) == before) break;
    }
    copy[sizeof copy - 1] = 0;
    return copy;
  }

 private:
  static std::size_t board_bytes(int ranks) noexcept {
    return sizeof(board_head) + 64 + sizeof(board_slot) * static_cast<std::size_t>(ranks);
  }
  void place_at(void* at) noexcept {
    head_ = static_cast<board_head*>(at);
    slots_ = reinterpret_cast<board_slot*>(static_cast<char*>(at) + (sizeof(board_head) + 63) / 64 * 64);
  }
  void construct() noexcept {
    new (head_) board_head;
    for (int r = 0; r < size_; ++r) new (slots_ + r) board_slot;
  }
#if defined(__linux__) && !defined(SMPI_H)
  // The same number where processes can share memory by name and see each other by their process numbers.
  static std::uint64_t host_number() noexcept {
    std::uint64_t number = 0xcbf29ce484222325u;
    const auto mix = [&](const void* bytes, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        number = (number ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3u;
    };
    char text[256] = {};
    if (const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); file >= 0) {
      const auto got = ::read(file, text, sizeof text);
      if (got > 0) mix(text, static_cast<std::size_t>(got));
      ::close(file);
    }
    if (::gethostname(text, sizeof text - 1) == 0) mix(text, std::strlen(text));
    for (const char* const path : {"/dev/shm", "/proc/self/ns/pid"}) {
      struct ::stat about;
      if (::stat(path, &about) != 0) continue;
      mix(&about.st_dev, sizeof about.st_dev);
      mix(&about.st_ino, sizeof about.st_ino);
    }
    return number;
  }
#endif
#if defined(__linux__) && !defined(SMPI_H)
  bool map(int file) {
    void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return false;
    place_at(at);
    return true;
  }
#endif
  void unmap() noexcept {
#if defined(SMPI_H)
    if (head_ != nullptr && head_->users.fetch_sub(1, std::memory_order_acq_rel) == 1)
      ::operator delete(head_, std::align_val_t{alignof(board_slot)});
#elif defined(__linux__)
    if (head_ != nullptr) ::munmap(head_, bytes_);
#endif
    head_ = nullptr;
    slots_ = nullptr;
  }

  board_head* head_ = nullptr;
  board_slot* slots_ = nullptr;
  std::size_t bytes_ = 0;
  int size_ = 0;
};

}  // namespace heddle::inline v0::detail
