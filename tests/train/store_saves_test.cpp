// Saves that ranks bring into a store together, and back: whole or not at all, whoever else is there.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/store_saves.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/failing_objects.hpp"
#include "io/scratch.hpp"

namespace hd = heddle;
namespace io = heddle::io;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

// A save of three ranks.
fs::path stored_save(const fs::path& folder, std::int64_t step, const std::string& run, double first = 0) {
  io::manifest m;
  m.step = step;
  m.facts["run"] = run;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    io::checkpoint_writer writer(folder, step, static_cast<int>(rank));
    std::vector<double> values(400);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = first + static_cast<double>(step) + 1e-3 * static_cast<double>(i);
    writer.add("w", std::span<const double>(values), {{1200}, {400 * rank}, {400}});
    m.files.push_back(writer.finish());
  }
  return io::commit(folder, m, {.keep = 0});
}
using ranks_of_stores = hd::world<hd::threads, hd::mesh<hd::axis<hd::dp>>>;
void with_ranks(int ranks, const std::function<void(ranks_of_stores&)>& work) {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>(ranks), [&](auto& world) { work(world); });
}
// The step that all ranks say; -1: none, -2: they differ.
std::int64_t step_of_ranks(int ranks, const std::function<std::optional<std::int64_t>(ranks_of_stores&)>& work) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(ranks));
  with_ranks(ranks, [&](auto& world) { steps[static_cast<std::size_t>(world.rank())] = work(world).value_or(-1); });
  for (const std::int64_t step : steps)
    if (step != steps[0]) return -2;
  return steps[0];
}
std::int64_t stored(int ranks, const fs::path& folder, io::store& s) {
  return step_of_ranks(ranks, [&](auto& world) { return hd::train::copy_to_store(world, folder, s); });
}
std::int64_t fetched(int ranks, const io::store& s, const fs::path& folder) {
  return step_of_ranks(ranks, [&](auto& world) { return hd::train::fetch_from_store(world, s, folder); });
}
double first_of(const fs::path& folder) {
  const io::search_result found = io::latest(folder);
  if (!found.save) return -1;
  double value = 0;
  io::checkpoint_reader(found.save->path).read("w", std::span<double>(&value, 1), {{1200}, {0}, {1}});
  return value;
}

}  // namespace

TEST_CASE("a save goes to a store and comes back, on any number of ranks", "[train][save][store]") {
  for (const int ranks : {1, 2, 5}) {
    CAPTURE(ranks);
    const scratch_folder at("store-saves");
    io::folder_store s(at / "bucket");
    CHECK(stored(ranks, at / "here", s) == -1);
    CHECK(fetched(ranks, s, at / "there") == -1);
    for (const std::int64_t step : {10, 20, 30}) {
      stored_save(at / "here", step, "a");
      CHECK(stored(ranks, at / "here", s) == step);
      CHECK(stored(ranks, at / "here", s) == step);
    }
    CHECK(io::detail::steps_in(s) == std::vector<std::int64_t>{30, 20});
    CHECK(s.list("step-00000010").empty());
    CHECK(fetched(ranks, s, at / "there") == 30);
    CHECK(fetched(ranks, s, at / "there") == -1);
    CHECK(first_of(at / "there") == 30);
    for (const char* file : {"manifest", "index", "rank-00000.tensors", "rank-00002.tensors"})
      CHECK(get(at / "there/step-00000030" / file) == get(at / "here/step-00000030" / file));
  }
}

TEST_CASE("of two runs one has its save in a store, and the other an error on all ranks", "[train][save][store]") {
  const scratch_folder at("store-runs");
  io::folder_store s(at / "bucket");
  stored_save(at / "one", 10, "a");
  stored_save(at / "two", 10, "b");
  with_ranks(2, [&](auto& world) { hd::train::copy_to_store(world, at / "one", s); });
  std::atomic<int> refused{0};
  with_ranks(2, [&](auto& world) {
    try {
      hd::train::copy_to_store(world, at / "two", s);
    } catch (const hd::io_error& e) {
      refused += std::string(e.what()).find("is there already, of another run") != std::string::npos;
    }
  });
  CHECK(refused == 2);
  CHECK(io::detail::run_of(*io::latest(s)) == "a");
}

TEST_CASE("a store that goes away at any moment has the last complete save", "[train][save][store]") {
  for (int calls = 0;; ++calls) {
    CAPTURE(calls);
    const scratch_folder at("store-gone");
    stored_save(at / "here", 10, "a");
    stored_save(at / "here", 20, "a");
    {
      io::folder_store whole(at / "bucket");
      const auto old = io::require_save(at / "here/step-00000010");
      io::put_save_files(whole, at / "here/step-00000010", old);
      io::put_save_manifest(whole, old);
    }
    failing_objects failing(at / "bucket", calls);
    bool failed = false;
    with_ranks(1, [&](auto& world) {
      try {
        hd::train::copy_to_store(world, at / "here", failing, 1);
      } catch (const hd::io_error&) {
        failed = true;
      }
    });
    io::folder_store s(at / "bucket");
    with_ranks(2, [&](auto& world) { hd::train::fetch_from_store(world, s, at / "back"); });
    CHECK(first_of(at / "back") == (calls < 5 ? 10 : 20));  // four files and a manifest
    if (!failed) {
      CHECK(calls == 10);  // and what is removed of the older one
      break;
    }
  }
}

TEST_CASE("a damaged save in a store is refused, and one without all its files passed over", "[train][save][store]") {
  const scratch_folder at("store-damaged");
  io::folder_store s(at / "bucket");
  for (const std::int64_t step : {10, 20}) {
    stored_save(at / "here", step, "a");
    with_ranks(2, [&](auto& world) { hd::train::copy_to_store(world, at / "here", s); });
  }
  const std::string name = "step-00000020/a/rank-00001.tensors";
  std::string text = get(at / "bucket" / name);
  text[100] = static_cast<char>(text[100] ^ 1);
  put(at / "bucket" / name, text);
  CHECK(fetched(2, s, at / "there") == 10);  // the next older one
  CHECK(fetched(2, s, at / "there") == -1);
  CHECK(first_of(at / "there") == 10);
  CHECK_FALSE(fs::exists(at / "there/step-00000020.partial-fetched"));
  {
    const std::string older = "step-00000010/a/rank-00000.tensors";
    const std::string good = get(at / "bucket" / older);
    put(at / "bucket" / older, std::string(good.size(), 'x'));
    CHECK_THROWS_WITH(with_ranks(2, [&](auto& world) { hd::train::fetch_from_store(world, s, at / "none"); }),
                      Contains("step-00000020/a/rank-00001.tensors' is damaged: its checksum is"));
    CHECK(fs::is_empty(at / "none"));
    put(at / "bucket" / older, good);
  }
  s.remove(name);
  std::vector<std::string> skipped;
  CHECK(io::latest(s, &skipped)->step == 10);
  REQUIRE(skipped.size() == 1);
  CHECK_THAT(skipped[0], Contains("rank-00001.tensors' is missing"));
}

TEST_CASE("a save in a store stays when its run saves the step again with other bytes", "[train][save][store]") {
  for (const char* run : {"a", ""}) {
    CAPTURE(run);
    const scratch_folder at("store-again");
    io::folder_store s(at / "bucket");
    stored_save(at / "here", 10, run);
    CHECK(stored(2, at / "here", s) == 10);
    stored_save(at / "again", 10, run, 0.5);
    CHECK_THROWS_WITH(with_ranks(2, [&](auto& world) { hd::train::copy_to_store(world, at / "again", s); }),
                      Contains("is there already, of this run"));
    const io::manifest other = io::require_save(at / "again/step-00000010");
    CHECK_THROWS_WITH(io::put_save_files(s, at / "again/step-00000010", other), Contains("is there already"));
    CHECK(fetched(2, s, at / "there") == 10);
    CHECK(first_of(at / "there") == 10);
  }
}

TEST_CASE("a save that is written into a store replaces that of its run, not another run's", "[train][save][store]") {
  const scratch_folder at("store-straight");
  io::folder_store s(at / "bucket");
  const auto put_save = [&](const std::string& run, const std::string& attempt, double value) {
    io::manifest m;
    m.step = 10;
    m.facts = {{"run", run}, {io::detail::attempt_fact, attempt}};
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const std::string name = io::detail::object_name(m, io::detail::rank_file_name(rank));
      const auto object = s.writer(name);
      io::tensor_file_writer writer(io::durable_file(*object, s.where(name)));
      const std::vector<double> values(3, value);
      writer.add("w", std::span<const double>(values), {{6}, {3 * rank}, {3}});
      const io::file_digest d = writer.finish();
      m.files.push_back({rank, d.bytes, d.checksum});
    }
    io::commit_to_store(s, m);
  };
  const auto value = [&] {
    double x = 0;
    const io::checkpoint_reader reader(io::detail::files_in(s, *io::latest(s)));
    reader.read("w", std::span<double>(&x, 1), {{6}, {4}, {1}});
    return x;
  };
  put_save("a", "one", 1.5);
  CHECK(value() == 1.5);
  put_save("a", "two", 2.5);
  CHECK(value() == 2.5);
  CHECK(s.list("").size() == 4);  // the first attempt's files are gone
  CHECK_THROWS_WITH(put_save("b", "three", 3.5), Contains("is there already, of another run"));
  CHECK(value() == 2.5);
  // Not all elements: it is no save.
  io::manifest half;
  half.step = 11;
  half.facts = {{"run", "a"}, {io::detail::attempt_fact, "half"}};
  {
    const auto object = s.writer(io::detail::object_name(half, "rank-00000.tensors"));
    io::tensor_file_writer writer(io::durable_file(*object, "half"));
    writer.add("w", std::span<const double>(std::vector<double>(3)), {{6}, {0}, {3}});
    const io::file_digest d = writer.finish();
    half.files = {{0, d.bytes, d.checksum}};
  }
  CHECK_THROWS_WITH(io::commit_to_store(s, half), Contains("the ranks saved 3 of the 6 elements"));
  CHECK(value() == 2.5);
}

TEST_CASE("what comes from a store takes the place of a save that cannot be read", "[train][save][store]") {
  const scratch_folder at("store-local");
  io::folder_store s(at / "bucket");
  stored_save(at / "here", 10, "a");
  CHECK(stored(2, at / "here", s) == 10);
  fs::remove(at / "here/step-00000010/rank-00001.tensors");
  CHECK(fetched(2, s, at / "here") == 10);
  CHECK(first_of(at / "here") == 10);
  CHECK(fs::exists(at / "here/step-00000010.set-aside/rank-00000.tensors"));
}

TEST_CASE("a store keeps nothing of attempts that failed", "[train][save][store]") {
  const scratch_folder at("store-attempts");
  io::folder_store s(at / "bucket");
  CHECK_THROWS_AS(s.put_file("step-00000010/a/x", at / "nothing"), hd::io_error);
  fs::create_directories(at / "bucket/step-00000010/a/taken/y");
  CHECK_THROWS_AS(s.put("step-00000010/a/taken", {}), hd::io_error);
  for (const auto& entry : fs::recursive_directory_iterator(at / "bucket"))
    CHECK(entry.path().extension() != ".partial");
  for (const char* of : {"a", "b"}) s.put("step-00000010/" + std::string(of) + "/rank-00000.tensors", {});
  stored_save(at / "here", 20, "a");
  CHECK(stored(2, at / "here", s) == 20);
  CHECK(s.list("step-00000010") == std::vector<std::string>{"step-00000010/b/rank-00000.tensors"});
}

TEST_CASE("a bucket that gives nothing for a while hides no save: nothing older is taken", "[train][save][store]") {
  const scratch_folder at("store-outage");
  failing_objects s(at / "bucket");
  for (const std::int64_t step : {10, 20}) {
    stored_save(at / "here", step, "a");
    CHECK(stored(2, at / "here", s) == step);
  }
  const std::string manifest = "step-00000020/manifest", file = "step-00000020/a/rank-00001.tensors";
  for (const auto& [size_of, bytes_of] : {std::pair(manifest, std::string()), std::pair(std::string(), manifest),
                                          std::pair(file, std::string()), std::pair(std::string(), file)}) {
    CAPTURE(size_of, bytes_of);
    s.no_size_of = size_of;
    s.no_bytes_of = bytes_of;
    if (bytes_of != file) CHECK_THROWS_WITH(io::latest(s), Contains("HTTP status 503"));
    std::atomic<int> told{0};
    with_ranks(2, [&](auto& world) {
      try {
        hd::train::fetch_from_store(world, s, at / "there");
      } catch (const hd::io_error& e) {
        told += std::string(e.what()).find("HTTP status 503") != std::string::npos;
      }
    });
    CHECK(told == 2);
    CHECK((!fs::exists(at / "there") || fs::is_empty(at / "there")));
  }
  s.no_size_of = s.no_bytes_of = "";
  CHECK(fetched(2, s, at / "there") == 20);
}

TEST_CASE("a damaged manifest in a store is put aside by the next save of its step", "[train][save][store]") {
  const std::string later = "heddle checkpoint\nformat=99\nwhatever=1\n";
  const scratch_folder at("store-manifest");
  io::folder_store s(at / "bucket");
  stored_save(at / "here", 10, "a");
  CHECK(stored(2, at / "here", s) == 10);
  const std::string good = get(at / "bucket/step-00000010/manifest");
  for (const std::string& bad : {std::string("x\n"), std::string(), good.substr(0, good.size() / 2)}) {
    CAPTURE(bad);
    put(at / "bucket/step-00000010/manifest", bad);
    std::vector<std::string> skipped;
    CHECK_FALSE(io::latest(s, &skipped));
    CHECK(skipped.size() == 1);
    CHECK(stored(2, at / "here", s) == 10);
    CHECK(get(at / "bucket/step-00000010/manifest") == good);
    if (!bad.empty()) CHECK(get(at / "bucket/step-00000010/manifest.set-aside") == bad);
    CHECK(io::latest(s)->step == 10);
  }
  put(at / "bucket/step-00000010/manifest", later);
  CHECK_THROWS_WITH(stored(2, at / "here", s), Contains("format version 99"));
  CHECK_THROWS_WITH(io::detail::refuse_other_run(s, 10, "a"), Contains("format version 99"));
  CHECK(get(at / "bucket/step-00000010/manifest") == later);
}
