// tests/train/activation_store_test.cpp: stores of activations: what goes in comes out; files, threads, errors.
#include "activation_stores.hpp"
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/memory.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <unistd.h>
#if defined(HEDDLE_HAS_URING)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
using namespace activation_stores;

namespace {
std::atomic<int> interrupted{0}, too_full{0};  // how many of the next calls are
}
// Of the C library: what it says on some file systems, which give half of the room before they say that there is no more.
extern "C" int posix_fallocate(int file, off_t begin, off_t bytes) {
  if (interrupted > 0 && interrupted-- > 0) return EINTR;
  const bool full = too_full > 0 && too_full-- > 0;
  const int code = ::fallocate(file, 0, begin, full ? bytes / 2 : bytes) == 0 ? 0 : errno;
  return full ? ENOSPC : code;
}

namespace {
static_assert(act::activation_store<act::memory_store> && act::activation_store<act::file_store>);
static_assert(act::activation_store<instant_store> && act::activation_store<virtual_store>);
static_assert(!act::activation_store<act::file_device>);

// Random sizes, orders and re-uses of ids, compared with a copy.
template <class Store>
void goes_round(Store& store, std::uint64_t seed, bool aligned) {
  CAPTURE(seed, aligned);
  const hd::counter_random random(seed, 1);
  std::uint64_t at = 0;
  act::memory m;
  for (int round = 0; round < 6; ++round) {
    struct item {
      int id;
      act::memory::lease lease;
      std::vector<std::byte> copy;
    };
    std::vector<item> items;
    for (int i = 0; i < 10; ++i) {
      const auto n = static_cast<std::int64_t>(1 + random.integer(at++) % 40000);
      item it{i, m.take(n + 1), {}};
      const auto bytes = it.lease.bytes().subspan(aligned ? 0 : 1, static_cast<std::size_t>(n));
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.integer(at++) & 255);
      it.copy.assign(bytes.begin(), bytes.end());
      store.store(i, bytes);
      items.push_back(std::move(it));
    }
    for (item& it : items) {
      store.wait(it.id);
      it.lease = {};
    }
    while (!items.empty()) {
      const std::size_t k = random.integer(at++) % items.size();
      auto lease = m.take(static_cast<std::int64_t>(items[k].copy.size()) + 1);
      const auto bytes = lease.bytes().subspan(aligned ? 0 : 1, items[k].copy.size());
      store.load(items[k].id, bytes);
      store.wait(items[k].id);
      CHECK(std::equal(bytes.begin(), bytes.end(), items[k].copy.begin()));
      store.forget(items[k].id);
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
  const act::store_counters c = store.counters();
  CHECK(c.stores == 60);
  CHECK(c.loads == 60);
  CHECK(c.bytes_written == c.bytes_read);
  CHECK(c.write_seconds > 0);
  CHECK(c.read_seconds > 0);
}
}  // namespace

TEST_CASE("a store gives back what it was given", "[train][offload][property]") {
  for (const bool aligned : {true, false}) {
    act::memory_store memory;
    goes_round(memory, 1, aligned);
    act::file_store file;
    goes_round(file, 2, aligned);
    act::file_store cached(act::store_options{.direct = false});
    goes_round(cached, 3, aligned);
    CHECK(cached.counters().bytes_direct == 0);
    act::file_store several(act::store_options{.directories = {".", ".", "."}, .threads = 3});
    goes_round(several, 4, aligned);
    if (!several.device().files().direct() || !aligned) continue;
    CHECK(several.counters().bytes_direct > several.counters().bytes_written);  // of both ways; the ends are not
  }
}

TEST_CASE("parts of files are used again", "[train][offload]") {
  act::file_store store;
  std::vector<std::byte> bytes(10000, std::byte{5});
  for (int round = 0; round < 5; ++round)
    for (int id = 0; id < 3; ++id) {
      store.store(id, bytes);
      store.wait(id);
    }
  CHECK(store.device().files().size() == 3 * 12288);
  for (int id = 0; id < 3; ++id) store.forget(id);
  store.store(7, bytes);
  store.wait(7);
  CHECK(store.device().files().size() == 3 * 12288);
}

TEST_CASE("files have no names, and are gone with the store", "[train][offload]") {
  const auto folder = std::filesystem::path("heddle_activation_store_test");
  std::filesystem::create_directory(folder);
  {
    act::file_store store(act::store_options{.directories = {folder.string()}});
    const std::vector<std::byte> bytes(1 << 16);
    store.store(0, bytes);
    store.wait(0);
    CHECK(std::filesystem::is_empty(folder));
  }
  std::filesystem::remove(folder);
}

TEST_CASE("what a store cannot do has a name", "[train][offload]") {
  CHECK_THROWS_WITH(act::file_store(act::store_options{.directories = {"/no/such/folder"}}),
                    Catch::Contains("heddle: making a file for activations in /no/such/folder failed: "));
  CHECK_THROWS_AS(act::memory_store(act::store_options{.threads = 0}), hd::config_error);
  act::memory_store store;
  std::vector<std::byte> bytes(64);
  CHECK_THROWS_AS(store.wait(3), hd::io_error);
  CHECK_THROWS_WITH(store.load(0, bytes), Catch::Contains("asked for 64 bytes of id 0, of which it has 0"));
  store.store(0, bytes);
  store.wait(0);
  CHECK_THROWS_AS(store.load(0, std::span(bytes).first(3)), hd::io_error);
  slow_store<1000> slow;  // 64 ms
  slow.store(0, bytes);
  CHECK_FALSE(slow.finished(0));
  CHECK_THROWS_WITH(slow.store(0, bytes), Catch::Contains("under way"));
  slow.wait(0);
}

namespace {
// Writes that wait behind one that has begun.
template <class Device>
void takes_back() {
  gated_store<Device> store;
  std::vector<std::vector<std::byte>> all;
  for (int id = 0; id < 4; ++id) {
    all.emplace_back(8192, static_cast<std::byte>(id + 1));
    store.store(id, all.back());
  }
  store.device().wait_until_begun(1);
  CHECK_FALSE(store.cancel(0));
  CHECK(store.cancel(1));
  CHECK(store.cancel(3));
  CHECK_FALSE(store.cancel(3));  // once
  CHECK(store.finished(1));
  store.device().open_gate();
  for (int id = 0; id < 4; ++id) store.wait(id);
  CHECK_FALSE(store.cancel(2));  // has been written
  CHECK(store.device().begun == 2);
  const act::store_counters c = store.counters();
  CHECK(c.stores == 2);
  CHECK(c.cancelled == 2);
  CHECK(c.bytes_written == 2 * 8192);
  std::vector<std::byte> back(8192);
  CHECK_THROWS_WITH(store.load(3, back), Catch::Contains("asked for 8192 bytes of id 3, of which it has 0"));
  store.forget(1);  // has nothing to forget
  store.store(3, all[1]);
  store.wait(3);
  for (const int id : {0, 2, 3}) {
    store.load(id, back);
    store.wait(id);
    CHECK(back == all[static_cast<std::size_t>(id == 3 ? 1 : id)]);
  }
  CHECK_THROWS_AS(store.cancel(9), hd::io_error);
  if constexpr (requires { store.device().files(); }) CHECK(store.device().files().size() == 4 * 8192);
}
}  // namespace

TEST_CASE("a write that has not begun can be cancelled, and is never done", "[train][offload]") {
  takes_back<act::memory_device>();
  takes_back<act::file_device>();
}

TEST_CASE("what could not be written is not given back", "[train][offload]") {
  for (const bool asked : {true, false}) {
    failing_device::fail_after(9, 1, 9);
    patient_failing_store store;
    std::vector<std::byte> first(100, std::byte{1}), second(100, std::byte{2}), back(100);
    store.store(0, first);
    store.wait(0);
    store.store(0, second);
    if (asked) CHECK_THROWS_WITH(store.wait(0), Catch::Contains("writing failed"));
    const auto load_when_ended = [&] {
      for (;;) try {
          return store.load(0, back);
        } catch (const hd::io_error& e) {
          if (std::string(e.what()).find("under way") == std::string::npos) throw;
        }
    };
    CHECK_THROWS_WITH(load_when_ended(), Catch::Contains(asked ? "of which it has 0" : "writing failed"));
    CHECK_THROWS_WITH(store.load(0, back), Catch::Contains("of which it has 0"));
    failing_device::fail_after(9, 9, 9);
    store.store(0, second);
    store.wait(0);
    store.load(0, back);
    store.wait(0);
    CHECK(back == second);
  }
}

TEST_CASE("the time of writes is counted while the store is never idle", "[train][offload]") {
  act::threaded_store<slow_device<1'000'000>> store(act::store_options{.threads = 2});
  const std::vector<std::byte> bytes(5000);  // 5 ms
  for (int id = 0; id < 6; ++id) store.store(id, bytes);
  store.wait(0);
  store.wait(1);
  const act::store_counters c = store.counters();
  CHECK(c.write_seconds >= 0.004);
  CHECK(static_cast<double>(c.bytes_written) / c.write_seconds < 4e6);  // two threads, one megabyte per second each
  for (int id = 2; id < 6; ++id) store.wait(id);
}

namespace {
// The limit of this process stands for a full disk: the same call fails.
template <class Store>
void may_not_grow() {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  REQUIRE(std::signal(SIGXFSZ, SIG_DFL) == SIG_DFL);  // it does not come
  rlimit limit = before;
  limit.rlim_cur = 1 << 16;
  std::string text;
  {
    Store store;
    std::vector<std::byte> bytes(40000, std::byte{5}), back(40000);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    try {
      for (int id = 0; id < 3; ++id) {
        store.store(id, bytes);
        store.wait(id);
      }
    } catch (const hd::io_error& e) {
      text = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    store.load(0, back);  // the first one is there
    store.wait(0);
    CHECK(back == bytes);
  }
  CHECK_THAT(text, Catch::Contains("heddle: making room for 40960 bytes of activations behind 40960 in "));
  CHECK_THAT(text, Catch::Contains("failed: File too large (the file size limit of this process is 65536 bytes"));
}

// Room that is there may not be written: the first call writes less than it was asked for, the next one fails.
template <class Store>
void may_not_be_written() {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 16384;
  act::memory m;
  for (const bool direct : {true, false}) {
    Store store(act::store_options{.direct = direct});
    const act::memory::lease lease = m.take(40000);
    store.store(0, lease.bytes().first(40000));
    store.wait(0);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    store.store(0, lease.bytes().first(40000));
    std::string text;
    try {
      store.wait(0);
    } catch (const hd::io_error& e) {
      text = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_THAT(text, Catch::StartsWith("heddle: writing in ") && Catch::Contains(" failed: File too large"));
    CHECK(store.counters().stores == 1);
    store.store(0, lease.bytes().first(40000));
    store.wait(0);
    CHECK(store.counters().stores == 2);
  }
  std::signal(SIGXFSZ, handler);
}

// Bytes on disk of the files that stores have open.
std::int64_t bytes_on_disk() {
  std::int64_t n = 0;
  std::error_code gone;
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat s{};
    if (std::filesystem::read_symlink(open.path(), gone).string().find("/heddle-activations-") != std::string::npos &&
        ::stat(open.path().c_str(), &s) == 0)
      n += std::int64_t{512} * s.st_blocks;
  }
  return n;
}

// A disk that becomes full keeps what it gave for what did not fit; the next operation works if that does.
template <class Store>
void gives_back_what_is_too_little() {
  Store store(act::store_options{.directories = {"."}, .direct = false});
  const std::vector<std::byte> bytes(40960, std::byte{5}), large(1 << 20);
  std::vector<std::byte> back(40960);
  interrupted = 3;
  store.store(0, bytes);
  store.wait(0);
  CHECK(interrupted == 0);
  const std::int64_t before = bytes_on_disk();
  too_full = 1;
  CHECK_THROWS_WITH(store.store(1, large), Catch::Contains("failed: No space left on device"));
  CHECK(bytes_on_disk() == before);
  store.store(1, bytes);
  for (const int id : {0, 1}) {
    store.wait(id);
    store.load(id, back);
    store.wait(id);
    CHECK(back == bytes);
  }
}

// Whoever cuts a file short that the store has open.
template <class Store>
void lost_its_end() {
  Store store(act::store_options{.directories = {"."}});
  std::vector<std::byte> bytes(40000, std::byte{5}), back(40000);
  store.store(0, bytes);
  store.wait(0);
  int cut = 0;
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(open.path(), gone).string().find("/heddle-activations-") == std::string::npos)
      continue;
    cut += ::truncate(open.path().c_str(), 4096) == 0 ? 1 : 0;
  }
  REQUIRE(cut >= 1);
  store.load(0, back);
  CHECK_THROWS_WITH(store.wait(0), Catch::Equals("heddle: reading in . failed: Input/output error"));
  store.wait(0);  // once
  CHECK(store.counters().loads == 0);
}

// More bytes than a system call moves at a time.
template <class Store>
void moves_more_than_two_gibibytes() {
  constexpr std::int64_t n = (std::int64_t{1} << 31) + 12345;
  act::memory m;
  Store store(act::store_options{.directories = {"."}});
  {
    const act::memory::lease from = m.take(n);
    for (std::int64_t i = 0; i < n; i += 4093) from.bytes()[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
    store.store(0, from.bytes().first(n));
    store.wait(0);
    for (std::int64_t i = 0; i < n; i += 4093) from.bytes()[static_cast<std::size_t>(i)] = std::byte{0};
  }
  const act::memory::lease to = m.take(n);
  store.load(0, to.bytes().first(n));
  store.wait(0);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n; i += 4093)
    if (to.bytes()[static_cast<std::size_t>(i)] != static_cast<std::byte>(i)) ++wrong;
  CHECK(wrong == 0);
  CHECK(store.counters().bytes_read == n);
}
}  // namespace

TEST_CASE("a file that may not grow is an error with the system's reason", "[train][offload]") {
  may_not_grow<act::file_store>();
  may_not_be_written<act::file_store>();
}

TEST_CASE("what a full disk gave is given back", "[train][offload]") {
  gives_back_what_is_too_little<act::file_store>();
}

TEST_CASE("no directory for temporary files is an error", "[train][offload]") {
  const char* const now = std::getenv("TMPDIR");
  const std::string before = now == nullptr ? "" : now;
  ::setenv("TMPDIR", "/no/such/folder", 1);
  CHECK_THROWS_WITH(act::file_store(), Catch::StartsWith("heddle: there is no directory for temporary files") &&
                                           Catch::Contains("; name one in store_options::directories"));
  if (now == nullptr)
    ::unsetenv("TMPDIR");
  else
    ::setenv("TMPDIR", before.c_str(), 1);
}

TEST_CASE("a file that has lost its end is an error", "[train][offload]") {
  lost_its_end<act::file_store>();
}

TEST_CASE("a tensor of more than 2 GiB goes to files and back", "[train][offload][slow]") {
  moves_more_than_two_gibibytes<act::file_store>();
}

TEST_CASE("the store in files that was found says what moves the bytes", "[train][offload]") {
  act::found_file_store store;
  static_assert(act::activation_store<act::found_file_store>);
#if defined(HEDDLE_HAS_URING)
  static_assert(std::is_same_v<act::found_file_store, act::uring_store>);
  if (act::uring_store::available()) CHECK(store.counters().moved_by == "io_uring");
#else
  static_assert(std::is_same_v<act::found_file_store, act::file_store>);
  CHECK(store.counters().moved_by == "threads");
#endif
  CHECK(act::file_store().counters().moved_by == "threads");
}

#if defined(HEDDLE_HAS_URING)
namespace {
// What the system refuses is refused to one thread, and to those that it starts, by a filter of its calls.
void forbid(unsigned call, int code, unsigned at_least_submitted = 0) {
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 8),  // of io_uring_enter: how many requests
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, at_least_submitted, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw std::runtime_error("no filter");
}
}  // namespace

TEST_CASE("a store through io_uring gives back what it was given", "[train][offload][property]") {
  if (!act::uring_store::available()) {
    WARN("io_uring cannot be used here: threads were tested instead");
    CHECK_FALSE(act::uring_store().refused().empty());
  }
  for (const bool aligned : {true, false}) {
    act::uring_store direct;
    goes_round(direct, 5, aligned);
    act::uring_store cached(act::store_options{.directories = {".", "."}, .direct = false, .threads = 3});
    goes_round(cached, 6, aligned);
    CHECK(cached.counters().bytes_direct == 0);
    if (direct.device().files().direct() && aligned)
      CHECK(direct.counters().bytes_direct > direct.counters().bytes_written);
  }
}

TEST_CASE("errors of files through io_uring are those of threads", "[train][offload]") {
  may_not_grow<act::uring_store>();
  may_not_be_written<act::uring_store>();
  lost_its_end<act::uring_store>();
  gives_back_what_is_too_little<act::uring_store>();
  CHECK_THROWS_AS(act::uring_store(act::store_options{.threads = 0}), hd::config_error);
}

TEST_CASE("a tensor of more than 2 GiB goes through io_uring and back", "[train][offload][slow]") {
  moves_more_than_two_gibibytes<act::uring_store>();
}

TEST_CASE("io_uring goes on while nobody calls the store", "[train][offload]") {
  act::uring_store store;
  std::vector<std::vector<std::byte>> all(100);
  for (int id = 0; id < 100; ++id) {
    all[static_cast<std::size_t>(id)].assign(static_cast<std::size_t>(300'000 + id), static_cast<std::byte>(id));
    store.store(id, all[static_cast<std::size_t>(id)]);
  }
  // More than the system is given at a time. Asking for the counters moves nothing.
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (store.counters().stores < 100 && std::chrono::steady_clock::now() < late)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(store.counters().stores == 100);
  for (int id = 0; id < 100; ++id) CHECK(store.finished(id));
}

TEST_CASE("where io_uring is refused threads do the work", "[train][offload]") {
  struct seen {
    bool available = true, same = false;
    std::string refused, by, error;
  };
  const auto with = [](unsigned call, int code) {
    seen s;
    std::thread([&] {
      try {
        forbid(call, code);
        s.available = act::uring_store::available();
        act::uring_store store(act::store_options{.threads = 2});
        std::vector<std::byte> bytes(50000, std::byte{5}), back(50000);
        store.store(0, bytes);
        store.wait(0);
        store.load(0, back);
        store.wait(0);
        s.same = back == bytes;
        s.refused = store.refused();
        s.by = store.counters().moved_by;
      } catch (const std::exception& e) {
        s.error = e.what();
      }
    }).join();
    return s;
  };
  for (const auto& [call, code] : {std::pair{__NR_io_uring_setup, EPERM},
                                   {__NR_io_uring_setup, ENOSYS},
                                   {__NR_io_uring_setup, ENOMEM},
                                   {__NR_io_uring_enter, EPERM}}) {
    const seen s = with(static_cast<unsigned>(call), code);
    CAPTURE(call, code);
    CHECK(s.error == "");
    CHECK_FALSE(s.available);
    CHECK(s.same);
    CHECK(s.by == "threads, as io_uring was refused");
    if (act::uring_store::available()) CHECK(s.refused == std::generic_category().message(code));
  }
}

TEST_CASE("io_uring that is refused later is an error of what waits and of what comes", "[train][offload]") {
  if (!act::uring_store::available()) return;
  std::vector<std::string> texts;
  std::thread([&] {
    forbid(__NR_io_uring_enter, EPERM, 2);  // what wakes, and a request
    act::uring_store store(act::store_options{.directories = {"."}});
    std::vector<std::byte> bytes(50000, std::byte{5});
    for (int id = 0; id < 3; ++id) store.store(id, bytes);
    store.store(3, bytes);
    for (int id = 0; id < 4; ++id) try {
        store.wait(id);
      } catch (const hd::io_error& e) {
        texts.emplace_back(e.what());
      }
    store.store(0, bytes);  // left behind
  }).join();
  CHECK(texts == std::vector<std::string>(4, "heddle: writing in . failed: Operation not permitted"));
}

TEST_CASE("more requests than io_uring has room for, large ones, and what it cannot do", "[train][offload]") {
  act::uring_store store;
  std::vector<std::vector<std::byte>> all(150), back(150);
  for (int id = 0; id < 150; ++id) {
    auto& bytes = all[static_cast<std::size_t>(id)];
    bytes.assign(static_cast<std::size_t>(id == 7 ? (65 << 20) + 5 : 5000 + id), static_cast<std::byte>(id));
    store.store(id, bytes);
  }
  for (int id = 150; id-- > 0;) store.wait(id);
  for (int id = 0; id < 150; ++id) {
    back[static_cast<std::size_t>(id)].resize(all[static_cast<std::size_t>(id)].size());
    store.load(id, back[static_cast<std::size_t>(id)]);
  }
  for (int id = 0; id < 150; ++id) store.wait(id);
  CHECK(back == all);
  CHECK(store.counters().stores == 150);
  CHECK(store.counters().loads == 150);
  CHECK(store.counters().bytes_read == store.counters().bytes_written);
  CHECK_THROWS_AS(store.load(3, std::span<std::byte>(back[3]).first(9)), hd::io_error);
  CHECK_THROWS_AS(store.wait(999), hd::io_error);
  store.store(20, std::span<const std::byte>());
  store.wait(20);
  store.load(20, std::span<std::byte>());
  store.wait(20);
  // What is behind two requests of 64 MiB waits, and need not be written.
  const act::store_counters before = store.counters();
  for (int id = 10; id < 14; ++id) store.store(id, all[7]);
  const std::int64_t taken = store.cancel(13);  // 0 only if this thread was not let run until it had begun
  for (int id = 10; id < 14; ++id) store.wait(id);
  CHECK_FALSE(store.cancel(12));
  CHECK(store.counters().cancelled == taken);
  CHECK(store.counters().stores == before.stores + 4 - taken);
  CHECK(store.counters().bytes_written ==
        before.bytes_written + (4 - taken) * static_cast<std::int64_t>(all[7].size()));
  if (taken > 0) CHECK_THROWS_AS(store.load(13, back[7]), hd::io_error);
  // Left behind while under way: the destructor waits.
  store.store(0, all[7]);
}
#endif
