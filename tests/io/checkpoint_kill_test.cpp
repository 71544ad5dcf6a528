// Killed at any moment while saving: the last complete save loads; it is the last one reported or the one in flight.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store_saves.hpp>

#include <chrono>
#include <cstdint>
#include <csignal>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {

constexpr int ranks = 3;

std::vector<double> contents(std::int64_t step, int rank) {
  std::vector<double> v(3000);
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>(step) + static_cast<double>(rank) * 1e-3 + static_cast<double>(i) * 1e-9;
  return v;
}

void save(const fs::path& folder, std::int64_t step) {
  io::manifest m;
  m.step = step;
  for (int r = 0; r < ranks; ++r) {
    io::checkpoint_writer writer(folder, step, r);
    writer.add<double>("x", contents(step, r));
    m.files.push_back(writer.finish());
  }
  io::commit(folder, m, {.keep = 2});
}

// The same into a store, as `train::save` does it.
void save_in_store(const fs::path& folder, std::int64_t step) {
  io::folder_store to(folder);
  io::manifest m;
  m.step = step;
  m.facts = {{"run", "a"}, {io::detail::attempt_fact, std::to_string(::getpid())}};
  for (int r = 0; r < ranks; ++r) {
    const std::string name = io::detail::object_name(m, io::detail::rank_file_name(r));
    const auto object = to.writer(name);
    io::tensor_file_writer writer(io::durable_file(*object, to.where(name)));
    writer.add<double>("x" + std::to_string(r), contents(step, r));
    const io::file_digest d = writer.finish();
    m.files.push_back({r, d.bytes, d.checksum});
  }
  io::commit_to_store(to, m);
}

// Saves until killed; writes each step that is done to `report`.
[[noreturn]] void save_forever(const fs::path& folder, std::int64_t first, bool same_step, int report,
                               void (*save_one)(const fs::path&, std::int64_t) = save) {
  try {
    for (std::int64_t step = first;; step += same_step ? 0 : 1) {
      save_one(folder, step);
      if (::write(report, &step, sizeof step) != static_cast<::ssize_t>(sizeof step)) ::_exit(3);
    }
  } catch (const std::exception&) {
    ::_exit(2);
  }
}

}  // namespace

TEST_CASE("a run killed at any moment leaves the last complete save readable", "[io][checkpoint][kill]") {
  const std::uint64_t seed = 20240607;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  const scratch_folder folder("kill");
  std::int64_t last = 0;  // newest save known to be complete
  int in_flight = 0, attempts_left_over = 0;
  // How long a save takes here decides when to kill: some runs die in their first save, some in their third.
  const auto start = std::chrono::steady_clock::now();
  save(folder / "once", 1);
  const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto longest = 1000 + static_cast<std::uint64_t>(one_save.count()) * 5 / 2;
  fs::remove_all(folder / "once");
  for (std::uint64_t round = 0; round < 50; ++round) {
    // Every fifth run saves the same step over and over, so that replacing is interrupted as well.
    const bool same_step = round % 5 == 4 && last > 0;
    const std::int64_t first = same_step ? last : last + 1;
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::close(pipe[0]);
      save_forever(folder.path, first, same_step, pipe[1]);
    }
    ::close(pipe[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(round) % longest));
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    std::int64_t reported = last, step = 0;
    while (::read(pipe[0], &step, sizeof step) == static_cast<::ssize_t>(sizeof step)) reported = step;
    ::close(pipe[0]);

    CAPTURE(round, same_step, first, reported);
    for (const auto& e : fs::directory_iterator(folder.path)) attempts_left_over += e.path().extension() == ".partial";
    const auto found = io::latest(folder.path);
    if (reported > 0) REQUIRE(found.save);
    if (!found.save) continue;
    const std::int64_t newest = found.save->manifest.step;
    const std::int64_t flying = same_step ? first : reported + 1;
    REQUIRE((newest == reported || newest == flying));
    in_flight += newest != reported;
    const io::checkpoint_reader reader(found.save->path);
    for (int r = 0; r < ranks; ++r) {
      std::vector<double> x(3000);
      reader.read<double>(r, "x", x);
      REQUIRE(x == contents(newest, r));
    }
    last = newest;
  }
  CAPTURE(in_flight, attempts_left_over);
  CHECK(last > 0);
  CHECK(attempts_left_over > 0);  // else nothing was interrupted, and the test proved nothing
  save(folder.path, last + 1);
  CHECK(io::latest(folder.path).save->manifest.step == last + 1);
  for (const auto& e : fs::directory_iterator(folder.path)) CHECK(e.path().extension().empty());
}

TEST_CASE("a run killed while it saves into a folder of objects leaves nothing there for good",
          "[io][checkpoint][store][kill]") {
  const std::uint64_t seed = 20240608;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  const scratch_folder folder("kill-store");
  const io::folder_store objects(folder.path);
  const auto start = std::chrono::steady_clock::now();
  save_in_store(folder.path, 1);
  const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto longest = 1000 + static_cast<std::uint64_t>(one_save.count()) * 5 / 2;
  std::int64_t last = 1;
  std::size_t left = 0;
  for (std::uint64_t round = 0; round < 20; ++round) {
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) save_forever(folder.path, last + 1, false, ::open("/dev/null", O_WRONLY), save_in_store);
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(round) % longest));
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CAPTURE(round, last);
    const auto found = io::latest(objects);
    REQUIRE(found);
    REQUIRE(found->step >= last);
    last = found->step;
    left += objects.unfinished("").size();
  }
  CHECK(left > 0);
  for (const char* name :
       {"step-00000000/b/x.7-7.partial", "step-00000000/a/x.7-7.partial", "step-00000000/manifest.7-7.partial"}) {
    fs::create_directories((folder / name).parent_path());
    put(folder / name, "x");
  }
  const std::string manifest = get(folder / io::detail::manifest_object(last));
  put(folder / "step-00000000/manifest.8-8.partial", manifest);
  save_in_store(folder.path, last + 2);  // the one in flight was of the step between
  // Those of other runs stay, and what cannot be read.
  std::vector<std::string> unfinished;
  for (const std::string& name : objects.unfinished(""))
    if (name.find("/manifest.") == name.npos || name.starts_with("step-00000000/")) unfinished.push_back(name);
  CHECK(unfinished == std::vector<std::string>{"step-00000000/b/x.7-7.partial", "step-00000000/manifest.7-7.partial"});
  CHECK(io::latest(objects)->step == last + 2);
}
