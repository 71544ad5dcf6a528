// Saves in the background: the copy of then is what is saved; whoever is killed, a save is complete or not there.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/background_save.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>

#if __has_include(<curl/curl.h>) && __has_include(<pugixml.hpp>) && defined(HEDDLE_TEST_CURL)
#include <heddle/io/s3/store.hpp>
#define HEDDLE_TEST_KILLS_IN_S3 1
#endif

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <malloc.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace background_save_test {

constexpr int ranks = 3;
constexpr std::int64_t rows = 400, columns = 7;

// What rank `rank` holds of a matrix after so many steps: rows of its own.
io::tensor_region box_of(int rank) {
  return {{ranks * rows, columns}, {rank * rows, 0}, {rows, columns}};
}
void fill(std::vector<double>& x, std::int64_t step, int rank) {
  x.resize(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<double>(step) + rank * 1e-3 + static_cast<double>(i) * 1e-9;
}
bool is_of(const io::detail::save_files& save, std::int64_t step) {
  const io::checkpoint_reader reader(save);
  std::vector<double> got(static_cast<std::size_t>(rows * columns)), expected;
  for (int r = 0; r < ranks; ++r) {
    reader.read<double>("w", got, box_of(r));
    fill(expected, step, r);
    if (got != expected) return false;
  }
  return true;
}
io::background_save job_of(const fs::path& folder, std::int64_t step, int rank, const std::string& attempt,
                           io::store* to = nullptr) {
  io::background_save job{.folder = folder,
                          .to = to,
                          .run = to == nullptr ? "" : "mine",
                          .step = step,
                          .rank = rank,
                          .ranks = ranks,
                          .attempt = attempt};
  job.about.step = step;
  job.about.facts["run"] = "mine";
  job.patience = std::chrono::seconds(20);
  return job;
}
// Copies, and changes the original at once.
void begin(io::background_writer& writer, std::vector<double>& x, io::background_save job) {
  writer.wait();
  fill(x, job.step, job.rank);
  writer.snapshot().clear();
  writer.snapshot().add<double>("w", x, box_of(job.rank));
  writer.start(std::move(job));
  x.assign(x.size(), -1.0);
}
std::string fault_of(io::background_writer& writer) {
  writer.wait();
  const auto all = writer.take_finished();
  return all.empty() ? "nothing has ended" : all.back().fault;
}

// Where saves go: a folder, or a store that each process opens for itself.
struct kill_place {
  fs::path folder{};
  std::function<std::unique_ptr<io::store>()> open{};
  int longest_ms = 60;  // of a rank's life
  int share = 1;        // of how many that have the rounds together

  std::unique_ptr<io::store> store() const { return open ? open() : nullptr; }
};
// The newest complete save that is found there.
std::optional<io::detail::save_files> newest_of(const kill_place& place, const io::store* store) {
  if (store != nullptr) {
    const auto found = io::latest(*store);
    return found ? std::optional(io::detail::files_in(*store, *found)) : std::nullopt;
  }
  const auto found = io::latest(place.folder);
  if (!found.save) return std::nullopt;
  io::detail::save_files files(found.save->path);
  files.about = found.save->manifest;
  return files;
}
// What no complete save has.
int leftovers_of(const kill_place& place, const io::store* store) {
  int count = 0;
  if (store == nullptr) {
    for (const auto& e : fs::directory_iterator(place.folder))
      count += e.path().filename().string().find(".partial-") != std::string::npos;
    return count;
  }
  std::vector<std::string> wanted;
  for (const std::int64_t step : io::detail::steps_in(*store)) {
    const io::manifest m = io::detail::read_manifest(*store, step);
    wanted.push_back(io::detail::manifest_object(step));
    for (const auto& o : io::detail::objects_of(m)) wanted.push_back(io::detail::object_name(m, o.file));
  }
  for (const std::string& name : store->list(""))
    count += std::find(wanted.begin(), wanted.end(), name) == wanted.end();
  return count;
}

// A rank that saves step after step until it is killed, and reports what it knows to be there.
[[noreturn]] void save_forever(const kill_place& place, std::int64_t first, int rank, const std::string& attempt,
                               int report) {
  try {
    const auto store = place.store();
    io::background_writer writer;
    std::vector<double> x;
    for (std::int64_t step = first;; ++step) {
      begin(writer, x, job_of(place.folder, step, rank, attempt, store.get()));
      writer.wait();
      for (const io::finished_save& done : writer.take_finished()) {
        if (!done.fault.empty()) ::_exit(4);
        if (rank == 0 && ::write(report, &done.step, sizeof done.step) != static_cast<::ssize_t>(sizeof done.step))
          ::_exit(3);
      }
      // A run's next save begins on all ranks together.
      while (rank != 0 && !(store ? store->size(io::detail::manifest_object(step)).has_value()
                                  : fs::exists(io::detail::save_path(place.folder, step))))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {
    ::_exit(2);
  }
}

::pid_t in_process(auto&& work) {
  const ::pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
#if defined(__linux__)
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is ended leaves nobody who saves for ever
#endif
    work();
    ::_exit(0);
  }
  return child;
}
void end_of(::pid_t child, int expected_signal) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (expected_signal != 0)
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == expected_signal));
  else
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("a save in the background is of the values that were there when it began", "[io][background_save]") {
  const scratch_folder folder("background");
  io::background_writer writers[ranks];
  std::vector<double> x;
  std::vector<const std::byte*> memory;
  for (std::int64_t step : {1, 2, 3}) {
    for (int r = 0; r < ranks; ++r) begin(writers[r], x, job_of(folder.path, step, r, "a" + std::to_string(step)));
    for (io::background_writer& w : writers) {
      w.wait();
      const auto done = w.take_finished();
      REQUIRE(done.size() == 1);
      CHECK(done[0].fault.empty());
      CHECK(done[0].step == step);
    }
    const auto found = io::latest(folder.path);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == step);
    CHECK(is_of(found.save->path, step));
    for (int r = 0; r < ranks; ++r) {
      const io::save_snapshot& copy = writers[r].snapshot();
      if (step == 1)
        memory.push_back(copy.memory());
      else
        CHECK(copy.memory() == memory[static_cast<std::size_t>(r)]);
    }
  }
  for (const auto& e : fs::directory_iterator(folder.path)) CHECK(e.path().extension().empty());
  CHECK_FALSE(fs::exists(folder / "step-00000001"));  // two are kept
}

TEST_CASE("the second copy of the same parts takes no memory", "[io][background_save]") {
  io::save_snapshot copy;
  const std::vector<float> x(100000, 1.0f);
  io::part_sizes sizes;
  const auto add_all = [&](io::part_writer& to) {
    for (int i = 0; i < 30; ++i)
      to.add<float>("first_moment/a.tensor.with.a.long.name." + std::to_string(i), x,
                    {{10, 50000}, {2, 0}, {2, 50000}});
  };
  add_all(sizes);
  copy.reserve(sizes.bytes());
  copy.touch();
  const std::int64_t room = copy.capacity();
  add_all(copy);
  CHECK(copy.bytes() == sizes.bytes());
  CHECK(copy.capacity() == room);
  const std::byte* const memory = copy.memory();
  ::rusage before{}, after{};
  const auto held = ::mallinfo2();
  ::getrusage(RUSAGE_SELF, &before);
  copy.clear();
  add_all(copy);
  ::getrusage(RUSAGE_SELF, &after);
  const auto holds = ::mallinfo2();
  CHECK(holds.uordblks == held.uordblks);
  CHECK(holds.hblkhd == held.hblkhd);
  CHECK(copy.memory() == memory);
  CHECK(copy.capacity() == room);
  CHECK(after.ru_minflt - before.ru_minflt < 100);  // of 2,930 pages of 4 KiB
  // More than was asked for: what is there stays.
  copy.add<float>("more", std::vector<float>(2000000, 2.0f));
  std::size_t parts = 0;
  copy.each([&](std::string_view, std::string_view, std::span<const std::byte> bytes, const io::tensor_region&) {
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    CHECK(*first == (parts++ < 30 ? 1.0f : 2.0f));
  });
  CHECK(parts == 31);
}

#if !defined(HEDDLE_TEST_KILL_ROUNDS)
#define HEDDLE_TEST_KILL_ROUNDS 10
#endif
void check_kills(const kill_place& place) {
  const std::uint64_t seed = 20261129;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  const char* const asked = std::getenv("HEDDLE_KILL_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : HEDDLE_TEST_KILL_ROUNDS / place.share;
  std::int64_t last = 0;
  int attempts_left_over = 0, in_flight = 0;
  // More rounds, each longer, where a slow machine has completed no save yet.
  for (int round = 0; round < rounds || (last == 0 && round < rounds + 20); ++round) {
    const auto longer = static_cast<std::uint64_t>((std::max)(1, round - rounds + 2));
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    std::vector<::pid_t> children;
    for (int r = 0; r < ranks; ++r)
      children.push_back(
          in_process([&] { save_forever(place, last + 1, r, "round" + std::to_string(round), pipe[1]); }));
    ::close(pipe[1]);
    // One rank, or all of them; those that are left go on for a while, and must not complete what is not whole.
    const auto at = static_cast<std::uint64_t>(round) * 3;
    std::this_thread::sleep_for(
        std::chrono::microseconds(random.integer(at) % static_cast<std::uint64_t>(place.longest_ms * 1000) * longer));
    const auto victim = static_cast<std::size_t>(random.integer(at + 1) % (ranks + 1));
    for (std::size_t r = 0; r < ranks; ++r)
      if (victim == ranks || victim == r) REQUIRE(::kill(children[r], SIGKILL) == 0);
    if (victim != ranks) std::this_thread::sleep_for(std::chrono::microseconds(random.integer(at + 2) % 20000));
    for (std::size_t r = 0; r < ranks; ++r)
      if (victim != ranks && victim != r) REQUIRE(::kill(children[r], SIGKILL) == 0);
    for (const ::pid_t child : children) end_of(child, SIGKILL);
    std::int64_t reported = last, step = 0;
    while (::read(pipe[0], &step, sizeof step) == static_cast<::ssize_t>(sizeof step)) reported = step;
    ::close(pipe[0]);
    CAPTURE(round, victim, reported);
    const auto store = place.store();
    attempts_left_over += leftovers_of(place, store.get());
    const auto found = newest_of(place, store.get());
    if (reported > 0) REQUIRE(found);
    if (!found) continue;
    const std::int64_t newest = found->about.step;
    REQUIRE((newest == reported || newest == reported + 1));
    in_flight += newest != reported;
    REQUIRE(is_of(*found, newest));
    last = newest;
  }
  CAPTURE(in_flight, attempts_left_over, last);
  CHECK(last > 0);
  CHECK(attempts_left_over > 0);
  // What is left of attempts goes with the next saves.
  io::background_writer writers[ranks];
  std::vector<double> x;
  const auto store = place.store();
  for (const std::int64_t step : {last + 3, last + 4, last + 5}) {
    for (int r = 0; r < ranks; ++r) begin(writers[r], x, job_of(place.folder, step, r, "last", store.get()));
    for (io::background_writer& w : writers) CHECK(fault_of(w).empty());
  }
  CHECK(newest_of(place, store.get())->about.step == last + 5);
  CHECK(leftovers_of(place, store.get()) == 0);
}
#undef HEDDLE_TEST_KILL_ROUNDS

TEST_CASE("ranks killed at any moment leave the last complete save", "[io][background_save][kill]") {
  const scratch_folder folder("background-kill");
  check_kills({folder.path});
  for (const auto& e : fs::directory_iterator(folder.path)) CHECK(e.path().extension().empty());
}

TEST_CASE("ranks killed at any moment leave the last complete save in a store", "[io][background_save][kill][store]") {
  const scratch_folder folder("store-kill");
  check_kills({{}, [&] { return std::make_unique<io::folder_store>(folder.path); }});
}

#if defined(HEDDLE_TEST_KILLS_IN_S3)
TEST_CASE("ranks killed at any moment leave the last complete save in a bucket", "[io][background_save][kill][s3]") {
  const char* given = std::getenv("HEDDLE_TEST_S3_DIRECT");
  std::istringstream words(given == nullptr ? "" : given);
  std::vector<std::string> endpoints;
  for (std::string word; words >> word;) endpoints.push_back(word);
  for (const std::string& endpoint : endpoints) {
    CAPTURE(endpoint);
    const std::string url = "s3://heddle/kill-" + std::to_string(::getpid());
    const auto open = [&] {
      auto options = io::s3_options::from_environment();
      options.endpoint = endpoint;
      return std::make_unique<io::s3_store>(url, options);
    };
    check_kills({{}, open, 250, static_cast<int>(endpoints.size())});
  }
}
#undef HEDDLE_TEST_KILLS_IN_S3
#endif

TEST_CASE("a rank that is killed when its file is there does not stop the save", "[io][background_save][kill]") {
  const scratch_folder folder("background-done");
  for (int r = 1; r < ranks; ++r)
    end_of(in_process([&] {
             io::background_writer writer;
             std::vector<double> x;
             begin(writer, x, job_of(folder.path, 5, r, "a"));
             if (!fault_of(writer).empty()) ::_exit(1);
             ::kill(::getpid(), SIGKILL);
           }),
           SIGKILL);
  CHECK_FALSE(io::latest(folder.path).save);
  io::background_writer writer;
  std::vector<double> x;
  begin(writer, x, job_of(folder.path, 5, 0, "a"));
  CHECK(fault_of(writer).empty());
  CHECK(is_of(io::latest(folder.path).save->path, 5));
}

TEST_CASE("a rank that does not come is named, and its files of another attempt are not taken",
          "[io][background_save]") {
  const scratch_folder folder("background-gone");
  std::vector<double> x;
  {
    io::background_writer writers[ranks];
    for (int r = 0; r < ranks; ++r) begin(writers[r], x, job_of(folder.path, 4, r, "a"));
    for (io::background_writer& w : writers) CHECK(fault_of(w).empty());
    begin(writers[2], x, job_of(folder.path, 5, 2, "killed"));
    CHECK(fault_of(writers[2]).empty());
  }
  io::background_writer first, second;
  begin(second, x, job_of(folder.path, 5, 1, "a"));
  io::background_save job = job_of(folder.path, 5, 0, "a");
  job.patience = std::chrono::milliseconds(200);
  begin(first, x, job);
  CHECK(fault_of(first) == "heddle: the save of step 5 in '" + folder.path.string() +
                               "' is not complete: 1 of 3 ranks have not written theirs, the first rank 2, and no file "
                               "of theirs has grown for 200 ms; older saves stay");
  CHECK(is_of(io::latest(folder.path).save->path, 4));
}

TEST_CASE("a full disk fails the save on the rank and on the one that completes it", "[io][background_save]") {
  const scratch_folder folder("background-full");
  std::vector<double> x;
  io::background_writer writers[ranks];
  for (int r = 0; r < ranks; ++r) begin(writers[r], x, job_of(folder.path, 1, r, "a"));
  for (io::background_writer& w : writers) CHECK(fault_of(w).empty());
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  ::rlimit small = before;
  small.rlim_cur = 1000;
  begin(writers[1], x, job_of(folder.path, 2, 1, "b"));
  CHECK(fault_of(writers[1]).empty());
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  begin(writers[2], x, job_of(folder.path, 2, 2, "b"));
  const std::string why = fault_of(writers[2]);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(why.find("heddle: cannot write '" + folder.path.string()) == 0);
  CHECK(why.find("rank-00002.tensors") != std::string::npos);
  CHECK(why.find("file size limit of this process is 1000 bytes") != std::string::npos);
  begin(writers[0], x, job_of(folder.path, 2, 0, "b"));
  CHECK(fault_of(writers[0]) == why);
  CHECK(is_of(io::latest(folder.path).save->path, 1));
  for (int r = 0; r < ranks; ++r) begin(writers[r], x, job_of(folder.path, 2, r, "c"));
  for (io::background_writer& w : writers) CHECK(fault_of(w).empty());
  CHECK(is_of(io::latest(folder.path).save->path, 2));
}

}  // namespace background_save_test
