// tests/train/save_test.cpp: a resumed run continues bit for bit; on another mesh it continues the same training.
#include "folder.hpp"
#include "io/failing_objects.hpp"
#include "runs.hpp"

#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/background_saves.hpp>
#include <heddle/train/save.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

using namespace train_test;
namespace fs = std::filesystem;
namespace io = heddle::io;

TEST_CASE("a run cut in two by a save equals the uninterrupted run bit for bit", "[train][save][ranks]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2", "dp=3,pp=3", "tp=3"})
    for (const int zero : {0, 1}) {
      if (!fits(mesh)) continue;
      INFO("mesh '" << mesh << "', zero " << zero);
      const folder saves("cut");
      setup s;
      s.mesh = mesh;
      s.zero = zero;
      s.steps = 5;
      const outcome whole = train_f64(s);
      setup first = s;
      first.steps = 2;
      first.save_to = saves.path.string();
      train_f64(first);
      setup second = s;
      second.resume_from = saves.path.string();
      const outcome resumed = train_f64(second);
      CHECK(resumed.first_step == 2);
      CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
      CHECK(resumed.norms == std::vector<double>(whole.norms.begin() + 2, whole.norms.end()));
      CHECK(resumed.weights == whole.weights);
    }
}

TEST_CASE("a save made on one mesh goes on, on any other", "[train][save][ranks]") {
  const folder saves("mesh");
  setup s;
  s.steps = 4;
  s.mesh = fits("dp=2,pp=3,tp=2") ? "dp=2,pp=3,tp=2" : "dp=2,pp=2";
  const outcome whole = train_f64(s);
  setup first = s;
  first.steps = 2;
  first.save_to = saves.path.string();
  train_f64(first);
  for (const char* mesh : {"", "dp=3", "tp=3,pp=2", "dp=2,pp=2,tp=2"}) {
    if (!fits(mesh)) continue;
    INFO("mesh '" << mesh << "'");
    setup second = s;
    second.mesh = mesh;
    second.resume_from = saves.path.string();
    const outcome resumed = train_f64(second);
    REQUIRE(resumed.losses.size() == 2);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(std::abs(resumed.losses[i] - whole.losses[i + 2]) <= 1e-10 * whole.losses[i + 2]);
    CHECK(largest_error(resumed.weights, whole.weights) <= 1e-10);
  }
}

TEST_CASE("a save made on any layout is what every other one reads, bit for bit, and the next step is the same",
          "[train][save][ranks]") {
  struct layout {
    const char* mesh;
    int zero;
  };
  const std::vector<layout> all{{"", 0},     {"dp=2", 0},           {"dp=3", 1},           {"dp=4", 0},
                                {"dp=6", 0}, {"dp=4,tp=2", 1},      {"tp=2", 1},           {"tp=3", 0},
                                {"pp=3", 1}, {"dp=2,pp=2,tp=2", 0}, {"dp=2,pp=2,tp=2", 3}, {"dp=3,pp=2", 3}};
  setup s;
  s.batch = 12;
  s.steps = 3;
  const auto on = [&](const layout& l) {
    setup here = s;
    here.mesh = l.mesh;
    here.zero = l.zero;
    return here;
  };
  const outcome whole = train_f64(s);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!fits(all[i].mesh)) continue;
    const folder saves("pairs");
    setup first = on(all[i]);
    first.steps = 2;
    first.save_to = saves.path.string();
    const outcome saved = train_f64(first);
    REQUIRE(saved.moments.size() == 2 * saved.weights.size());
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (!fits(all[j].mesh)) continue;
      INFO("saved on '" << all[i].mesh << "', zero " << all[i].zero << ", read on '" << all[j].mesh << "', zero "
                        << all[j].zero);
      setup second = on(all[j]);
      second.resume_from = saves.path.string();
      const bool trains = j == i || j == (i + 5) % all.size();
      if (!transport_test::on_threads && !trains) continue;  // processes take long to start
      if (!trains) second.steps = 2;
      const outcome read = train_f64(second);
      CHECK(read.first_step == 2);
      if (!trains) {
        CHECK(read.weights == saved.weights);
        CHECK(read.moments == saved.moments);
      } else {
        REQUIRE(read.losses.size() == 1);
        CHECK(std::abs(read.losses[0] - whole.losses[2]) <= 1e-10 * whole.losses[2]);
        CHECK(largest_error(read.weights, whole.weights) <= 1e-10);
        CHECK(largest_error(read.moments, whole.moments) <= 1e-10);
      }
    }
  }
}

TEST_CASE("of four ranks with the same elements each writes a quarter, and reads one", "[train][save][ranks]") {
  if (!fits("dp=4")) return;
  const folder saves("quarters");
  setup s;
  s.mesh = "dp=4";
  s.zero = 0;
  s.batch = 8;
  s.layers = 2;
  s.width = 48;
  s.vocabulary = 320;
  s.steps = 1;
  s.save_to = saves.path.string();
  const outcome saved = train_f64(s);
  std::int64_t elements = 0, written = 0, most = 0;
  for (const auto& [name, values] : saved.weights) elements += std::ssize(values);
  for (int r = 0; r < 4; ++r) {
    const auto bytes = static_cast<std::int64_t>(
        fs::file_size(saves.path / "step-00000001" / ("rank-0000" + std::to_string(r) + ".tensors")));
    written += bytes;
    most = std::max(most, bytes);
  }
  const std::int64_t unique = 3 * 8 * elements;
  INFO(written << " bytes written, " << unique << " are there, " << most << " by one rank");
  CHECK(written >= unique);
  CHECK(100 * written <= 101 * unique);
  CHECK(100 * most <= 105 * written / 4);
  s.save_to = "";
  s.resume_from = saves.path.string();
  for (const char* mesh : {"dp=4", "dp=2", ""}) {
    s.mesh = mesh;
    const outcome read = train_f64(s);
    CHECK(read.weights == saved.weights);
    std::int64_t bytes = 0;
    for (const std::int64_t b : read.bytes_read) bytes += b;
    CHECK(bytes == unique);  // each once over all ranks
  }
}

TEST_CASE("a save whose elements are damaged is passed over, read whole or in parts", "[train][save][ranks]") {
  const folder saves("flipped");
  setup s;
  s.mesh = fits("dp=2") ? "dp=2" : "";
  s.zero = 0;
  s.steps = 3;
  s.save_every = 1;
  s.save_to = saves.path.string();
  const outcome whole = train_f64(s);
  if (transport_test::process() == 0) {
    const fs::path victim = saves.path / "step-00000003" / "rank-00000.tensors";
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(5000);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(5000);
    file.put(byte);
  }
  bool done = true;
  transport_test::tell(done, 0);
  setup again = s;
  again.save_to = "";
  again.resume_from = saves.path.string();
  for (const char* mesh : {"", "dp=2", "tp=2"}) {
    if (!fits(mesh)) continue;
    INFO("mesh '" << mesh << "'");
    again.mesh = mesh;
    const outcome resumed = train_f64(again);
    CHECK(resumed.first_step == 2);
    CHECK(largest_error(resumed.weights, whole.weights) <= 1e-10);
  }
}

TEST_CASE("saves in the background are those that a run makes which waits for them", "[train][save][ranks]") {
  const auto bytes_of = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (const int zero : {0, 1, 3}) {
    setup s;
    s.mesh = fits("dp=2,pp=2,tp=2") ? "dp=2,pp=2,tp=2" : fits("dp=2") ? "dp=2" : "";
    s.zero = zero;
    s.steps = 4;
    s.save_every = 1;
    s.beside = true;
    INFO("mesh '" << s.mesh << "', zero " << zero);
    const folder waited("waited"), passed("passed");
    s.save_to = waited.path.string();
    const outcome first = train_f64(s);
    s.save_to = passed.path.string();
    s.in_background = "ends";
    const outcome second = train_f64(s);  // changes its weights as soon as they are copied
    CHECK(second.weights == first.weights);
    CHECK(second.faults == std::vector<std::string>(second.faults.size()));
    CHECK(second.saves_failed == 0);
    if (transport_test::process() != 0) continue;
    int files = 0;
    for (const char* step : {"step-00000003", "step-00000004"})
      for (std::size_t r = 0; r < second.faults.size(); ++r, ++files) {
        const std::string name = "rank-0000" + std::to_string(r) + ".tensors";
        const std::string there = bytes_of(passed.path / step / name);
        CHECK(there.size() > 1000);
        CHECK(there == bytes_of(waited.path / step / name));
      }
    CHECK(files == 2 * static_cast<int>(second.faults.size()));
    for (const char* step : {"step-00000003", "step-00000004"})
      CHECK(bytes_of(passed.path / step / "index") == bytes_of(waited.path / step / "index"));
    CHECK(std::distance(fs::directory_iterator(passed.path), fs::directory_iterator{}) == 2);
  }
}

TEST_CASE("saves go straight into a store, and a run on any mesh goes on from there", "[train][save][store][ranks]") {
  const std::string mesh = fits("dp=2,pp=2,tp=2") ? "dp=2,pp=2,tp=2" : fits("dp=2") ? "dp=2" : "";
  setup s;
  s.steps = 5;
  s.mesh = mesh;
  s.beside = true;
  const outcome whole = train_f64(s);
  for (const char* how : {"", "ends"}) {
    INFO("mesh '" << mesh << "', in the background '" << how << "'");
    const folder bucket("bucket"), kept("kept");
    io::folder_store store(bucket.path);
    setup first = s;
    first.steps = 3;
    first.save_every = 1;
    first.in_background = how;
    first.save_to = kept.path.string();
    train_f64(first);
    first.store = &store;
    first.save_to = "store";
    const outcome saved = train_f64(first);
    CHECK(saved.faults == std::vector<std::string>(saved.faults.size()));
    if (transport_test::process() == 0) {
      const auto names = store.list("");
      CHECK(names.size() == 2 * (saved.faults.size() + 2));  // two saves, each with manifest and index
      for (const std::string& name : names) {
        if (name.ends_with("manifest")) continue;
        const auto bytes = store.read_all(name);
        CHECK(bytes ==
              io::read_bytes(kept.path / name.substr(0, 13) / fs::path(name).filename(), 0, std::ssize(bytes)));
      }
    }
    // A bucket that gives nothing for a while is no reason to go on from step 2.
    for (const bool sizes : {true, false}) {
      failing_objects out(bucket.path);
      (sizes ? out.no_size_of : out.no_bytes_of) = sizes ? "step-00000003/manifest" : "rank-00000.tensors";
      setup second = s;
      second.store = &out;
      second.resume_from = "store";
      CHECK_THROWS_WITH(train_f64(second), Catch::Matchers::Contains("HTTP status 503"));
    }
    for (const char* on : {mesh.c_str(), "dp=3", "tp=3,pp=2", ""}) {
      if (!fits(on)) continue;
      INFO("resumed on '" << on << "'");
      setup second = s;
      second.mesh = on;
      second.store = &store;
      second.resume_from = "store";
      const outcome resumed = train_f64(second);
      CHECK(resumed.first_step == 3);
      if (on == mesh) {
        CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
        CHECK(resumed.weights == whole.weights);
      }
      CHECK(largest_error(resumed.weights, whole.weights) <= 1e-10);
    }
    // Another run that saves the same steps: none of its saves takes the place of those that are there.
    const auto before = store.list("");
    if (*how == '\0') {
      CHECK_THROWS_WITH(train_f64(first), Catch::Matchers::Contains("is there already, of another run"));
    } else {
      const outcome other = train_f64(first);
      CHECK(other.saves_failed == 1);  // at step 2; step 3 is then not tried
      for (const std::string& fault : other.faults)
        CHECK(fault.find("is there already, of another run") != std::string::npos);
      for (const std::string& name : store.list("step-00000002"))  // no rank has written its state
        CHECK((name.ends_with(".failed") || std::find(before.begin(), before.end(), name) != before.end()));
    }
    for (const std::string& name : before) CHECK(store.size(name));
  }
}

TEST_CASE("eight ranks of four nodes go on, bit for bit, from copies of peers, or from the store's save",
          "[train][save][peers][ranks]") {
  if (!fits("dp=4,tp=2")) return;
  const folder at("peer-ranks");
  io::folder_store store(at.path / "store");
  const fs::path nodes = at.path / "nodes";
  setup s;
  s.batch = 12;
  s.mesh = "dp=4,tp=2";
  s.peers = nodes.string();
  s.store = &store;
  s.steps = 1;
  s.save_to = "store";
  train_f64(s);
  s.save_to = "";
  s.resume_from = "store";
  s.steps = 3;
  const outcome before = train_f64(s);
  CHECK(before.from_peers);
  s.beside = true;
  CHECK_THROWS_WITH(train_f64(s),
                    Catch::Matchers::Contains("resume_from_peers: copies of peers hold a trainer's state"));
  s.resume_from = "";
  CHECK_THROWS_WITH(train_f64(s),
                    Catch::Matchers::Contains("peer_saves: copies of peers hold a trainer's state alone"));
  s.resume_from = "store";
  s.beside = false;
  // One message of its own state, and what that is.
  for (int r = 0; r < 8; ++r) {
    INFO("rank " << r);
    const auto rank = static_cast<std::size_t>(r);
    std::int64_t file = 0;
    if (transport_test::process() == 0)
      file = static_cast<std::int64_t>(fs::file_size(nodes / std::to_string(r / 2) / "step-00000003" /
                                                     ("rank-0000" + std::to_string(r) + ".tensors")));
    transport_test::tell(file, 0);
    CHECK(before.peer_bytes[rank] == file);
    CHECK(before.message_bytes[rank] >= file);
    CHECK(before.message_bytes[rank] <= file + 4096);
  }
  s.peers = "";
  s.store = nullptr;
  s.resume_from = "";
  s.steps = 4;
  const outcome whole = train_f64(s);
  s.peers = nodes.string();
  s.store = &store;
  s.resume_from = "store";
  const auto lose = [&](const char* node) {
    if (transport_test::process() == 0) fs::remove_all(nodes / node);
    bool done = true;
    transport_test::tell(done, 0);
  };
  lose("2");
  const outcome one_lost = train_f64(s);
  CHECK(one_lost.from_peers);
  CHECK(one_lost.first_step == 3);
  CHECK(one_lost.files_moved == 2);
  CHECK(one_lost.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  CHECK(one_lost.weights == whole.weights);
  lose("2");
  lose("3");
  const outcome pair_lost = train_f64(s);
  CHECK_FALSE(pair_lost.from_peers);
  CHECK(pair_lost.first_step == 1);
  CHECK(pair_lost.why_not_peers.find("no node has a copy of rank 4 of step 4") == 0);
  CHECK(pair_lost.losses == std::vector<double>(whole.losses.begin() + 1, whole.losses.end()));
  CHECK(pair_lost.weights == whole.weights);
}

TEST_CASE("steps between saves follow from what the first two have cost", "[train][save]") {
  namespace tr = heddle::train;
  using std::chrono::seconds;
  tr::save_clock fixed(100);
  CHECK((fixed.due(100, 250) && fixed.due(250, 250) && !fixed.due(150, 250) && !fixed.chooses()));
  CHECK_FALSE(tr::save_clock(0).due(100, 250));
  CHECK_THROWS_WITH(tr::save_clock(-1), Catch::Matchers::Contains("0 for the last, not -1"));
  CHECK_THROWS_AS(tr::save_clock(tr::daly_interval{seconds(0)}), heddle::config_error);
  // Saves hold a step of 1 s for 1 s, failures are 100 s apart: every 13.5 s.
  constexpr std::int64_t second = 1000000000;
  tr::save_clock chosen(tr::daly_interval{seconds(100)});
  CHECK((chosen.due(10, 250) && !chosen.due(11, 250) && chosen.chooses()));
  chosen.take(chosen.choose(10, 5 * second, second, 0));
  CHECK((chosen.steps() == 10 && chosen.chooses()));
  chosen.take(chosen.choose(20, 15 * second, second, 3 * second));
  CHECK((chosen.steps() == 13 && !chosen.chooses()));
  // Never more often than a save takes to be there.
  tr::save_clock slow(tr::daly_interval{seconds(100)});
  slow.choose(10, 0, second, 0);
  CHECK(slow.choose(20, 10 * second, second, 40 * second) == 40);
}

TEST_CASE("a copy that is not finite, or a negative second moment, is named", "[train][save]") {
  io::save_snapshot copy;
  const std::vector<std::string> squares{"second_moment"};
  const auto fault = [&](const char* name, auto value) {
    std::vector<decltype(value)> x(6, decltype(value)(1));
    x[4] = value;
    copy.clear();
    copy.add<std::int64_t>("words", std::vector<std::int64_t>{-1});
    copy.add<decltype(value)>(name, x, {{4, 3}, {2, 0}, {2, 3}});
    return heddle::train::detail::fault_of_parts(copy, squares);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(fault("weight/w", nan) == "weight w has nan in element 4 of [2,3] at [2,0] of [4,3]");
  CHECK(fault("master/w", -std::numeric_limits<double>::infinity()) ==
        "master weight w has -inf in element 4 of [2,3] at [2,0] of [4,3]");
  CHECK(fault("first_moment/w", heddle::bf16(nan)) ==
        "first moment of w has nan in element 4 of [2,3] at [2,0] of [4,3]");
  CHECK(fault("second_moment/w", -1.0) == "second moment of w has -1 in element 4 of [2,3] at [2,0] of [4,3]");
  CHECK(fault("second_moment/w", -0.0).empty());
  CHECK(fault("first_moment/w", -1.0).empty());
}

TEST_CASE("a save in the background that has no room is named on all ranks, and older ones stay",
          "[train][save][ranks]") {
  const folder saves("no-room");
  setup s;
  s.mesh = fits("dp=3") ? "dp=3" : "";
  s.zero = 0;
  s.steps = 2;
  s.save_to = saves.path.string();
  train_f64(s);
  s.resume_from = s.save_to;
  s.steps = 5;
  s.save_every = 1;
  const outcome whole = train_f64([&] {
    setup other = s;
    other.save_to = "";
    return other;
  }());
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  ::rlimit small = before;
  small.rlim_cur = 4000;
  for (const char* how : {"ends", "reports"}) {
    INFO(how);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    s.in_background = how;
    const outcome run = train_f64(s);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(run.weights == whole.weights);  // training goes on
    for (const std::string& fault : run.faults) {
      CHECK(fault == run.faults[0]);
      if (std::string(how) == "ends")
        CHECK_THAT(fault, Catch::Matchers::StartsWith("heddle: cannot write '" + saves.path.string()) &&
                              Catch::Matchers::Contains("rank-0000") && Catch::Matchers::Contains("4000 bytes"));
      else
        CHECK(fault.empty());
    }
    CHECK(run.saves_failed >= 2);
    if (transport_test::process() != 0) continue;
    const auto found = io::latest(saves.path);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == 2);
  }
  s.in_background = "ends";
  train_f64(s);
  if (transport_test::process() != 0) return;  // which removes the folder
  CHECK(io::latest(saves.path).save->manifest.step == 5);
}

TEST_CASE("a store that is gone while a save is written in the background is named on all ranks, and older ones stay",
          "[train][save][store][ranks]") {
  const folder bucket("store-away");
  io::folder_store store(bucket.path);
  setup s;
  s.mesh = fits("dp=3") ? "dp=3" : "";
  s.zero = 0;
  s.steps = 2;
  s.store = &store;
  s.save_to = "store";
  train_f64(s);
  s.resume_from = s.save_to;
  s.steps = 5;
  const outcome whole = train_f64([&] {
    setup other = s;
    other.save_to = "";
    return other;
  }());
  s.save_every = 1;
  for (const char* how : {"ends", "reports"}) {
    INFO(how);
    failing_objects gone(bucket.path, 0);
    s.store = &gone;
    s.in_background = how;
    const outcome run = train_f64(s);
    CHECK(run.weights == whole.weights);  // training goes on
    for (const std::string& fault : run.faults) {
      CHECK(fault == run.faults[0]);
      CHECK((std::string(how) == "ends" ? fault.find("the store is gone") != std::string::npos : fault.empty()));
    }
    CHECK(run.saves_failed >= 2);
    if (transport_test::process() == 0) CHECK(io::latest(store)->step == 2);
  }
  s.store = &store;
  s.in_background = "ends";
  train_f64(s);
  if (transport_test::process() == 0) CHECK(io::latest(store)->step == 5);
}

TEST_CASE("a damaged newest save is passed over for the one before", "[train][save][ranks]") {
  const folder saves("damaged");
  setup s;
  s.mesh = "dp=2";
  s.steps = 4;
  s.save_every = 1;
  s.save_to = saves.path.string();
  const outcome whole = train_f64(s);
  // Two saves stay; cut the newer one's second file short.
  const fs::path victim = saves.path / "step-00000004" / "rank-00001.tensors";
  REQUIRE(fs::exists(victim));
  if (transport_test::process() == 0) fs::resize_file(victim, fs::file_size(victim) / 2);
  setup again = s;
  again.save_to = "";
  again.resume_from = saves.path.string();
  const outcome resumed = train_f64(again);
  CHECK(resumed.first_step == 3);
  CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("a run that was told to go on, and finds saves that it cannot read, does not start anew",
          "[train][save][ranks]") {
  const folder saves("unreadable");
  setup s;
  s.mesh = fits("dp=2,pp=2") ? "dp=2,pp=2" : "";
  s.save_every = 1;
  s.save_to = saves.path.string();
  train_f64(s);
  if (transport_test::process() == 0)
    for (const char* save : {"step-00000001", "step-00000002"})
      fs::resize_file(saves.path / save / "rank-00000.tensors", 100);
  bool done = true;
  transport_test::tell(done, 0);
  s.resume_from = s.save_to;
  s.steps = 5;
  CHECK_THROWS_AS(train_f64(s), heddle::io_error);
  CHECK_THROWS_WITH(train_f64(s), Catch::Matchers::Contains("none of them can be read") &&
                                      Catch::Matchers::Contains("step-00000001/rank-00000.tensors' has 100 bytes") &&
                                      Catch::Matchers::Contains("step-00000002/rank-00000.tensors' has 100 bytes"));
  if (transport_test::process() != 0) return;  // which removes the folder
  for (const char* save : {"step-00000001", "step-00000002"})
    CHECK(fs::file_size(saves.path / save / "rank-00000.tensors") == 100);
  CHECK_FALSE(fs::exists(saves.path / "step-00000003"));
}

TEST_CASE("saves of another run in the same folder stay", "[train][save]") {
  const folder saves("others");
  setup s;
  s.steps = 2;
  s.save_every = 1;
  s.save_to = saves.path.string();
  train_f64(s);
  setup other = s;  // starts anew
  other.steps = 5;
  train_f64(other);
  const auto there = [&](const char* name) { return fs::exists(saves.path / name / "manifest"); };
  for (const char* name : {"step-00000001.set-aside", "step-00000002.set-aside", "step-00000004", "step-00000005"})
    CHECK(there(name));
  CHECK_FALSE(there("step-00000003"));
  // A run that goes on from a save is the same run.
  other.resume_from = other.save_to;
  other.steps = 7;
  train_f64(other);
  for (const char* name : {"step-00000001.set-aside", "step-00000006", "step-00000007"}) CHECK(there(name));
  CHECK_FALSE(there("step-00000005"));
}

TEST_CASE("weights and moments that are not finite are not saved", "[train][save][ranks]") {
  const folder saves("infinite");
  setup s;
  s.mesh = fits("dp=2,pp=2") ? "dp=2,pp=2" : "";
  s.steps = 1;
  s.save_to = saves.path.string();
  train_f32(s);
  s.resume_from = s.save_to;
  s.steps = 2;
  s.learning_rate = 1e39;
  CHECK_THROWS_AS(train_f32(s), heddle::numeric_error);
  CHECK_THROWS_WITH(train_f32(s), Catch::Matchers::Contains("heddle: step 2 is not saved, older saves stay: weight ") &&
                                      Catch::Matchers::Contains("inf in element ") &&
                                      Catch::Matchers::Contains(" of the part of rank "));
  if (transport_test::process() != 0) return;  // which removes the folder
  CHECK(fs::exists(saves.path / "step-00000001" / "manifest"));
  CHECK_FALSE(fs::exists(saves.path / "step-00000002"));
  CHECK_FALSE(fs::exists(saves.path / "step-00000002.partial"));
}

TEST_CASE("a save that nobody could go on from is named when it is read", "[train][save]") {
  namespace io = heddle::io;
  setup s;
  const folder good("good");
  s.save_to = good.path.string();
  train_f64(s);
  s.save_to = "";
  const io::checkpoint_reader from(io::latest(good.path).save->path);
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  struct {
    const char *tensor, *says;
    double value;
  } const wrong[]{
      {"weight/h.1.mlp.c_fc.bias", "weight h.1.mlp.c_fc.bias has nan in element 5", nan},
      {"first_moment/h.1.mlp.c_fc.bias", "first moment of h.1.mlp.c_fc.bias has -inf in element 5", -infinite},
      {"second_moment/h.1.mlp.c_fc.bias", "second moment of h.1.mlp.c_fc.bias has nan in element 5", nan},
      {"second_moment/h.1.mlp.c_fc.bias", "second moment of h.1.mlp.c_fc.bias has -1e-30 in element 5", -1e-30},
      {"second_moment/h.1.mlp.c_fc.bias", "", -0.0}};
  for (const auto& w : wrong) {
    const folder bad("bad");
    io::manifest m = from.manifest();
    io::checkpoint_writer writer(bad.path, m.step, 0);
    for (const io::tensor_entry& e : from.tensors(0)) {
      std::vector<double> values(static_cast<std::size_t>(e.region.count()));
      from.read<double>(0, e.name, values, e.region);
      if (e.name == w.tensor) values[5] = w.value;
      writer.add<double>(e.name, values, e.region);
    }
    m.files = {writer.finish()};
    io::commit(bad.path, m);
    s.resume_from = bad.path.string();
    s.steps = 3;
    INFO(w.says);
    if (*w.says == 0) {
      CHECK(train_f64(s).first_step == 2);
      continue;
    }
    CHECK_THROWS_AS(train_f64(s), heddle::numeric_error);
    CHECK_THROWS_WITH(train_f64(s), Catch::Matchers::Contains("step-00000002' is no save to go on from: ") &&
                                        Catch::Matchers::Contains(w.says));
  }
}

TEST_CASE("a position that so many steps cannot lead to is refused", "[train][save]") {
  const folder saves("position");
  setup s;
  s.mesh = "";
  s.steps = 2;
  s.save_to = saves.path.string();
  train_f64(s);
  const io::found_save found = *io::latest(saves.path).save;
  const std::int64_t batch = found.manifest.position.consumed / 2;
  heddle::train::save_facts facts{.most_batch = batch};
  const auto refused = [&](std::int64_t step, std::int64_t consumed) {
    fs::remove_all(saves.path);
    io::manifest m = found.manifest;
    m.step = step;
    m.position.consumed = consumed;
    io::checkpoint_writer writer(saves.path, step, 0);
    m.files = {writer.finish()};
    const io::checkpoint_reader reader(io::commit(saves.path, m));
    try {
      heddle::train::detail::require_same_training(reader, m.config, m.config, facts);
    } catch (const heddle::io_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused(2, 2 * batch).empty());
  CHECK(refused(2, 2).empty());
  CHECK(refused(0, 0).empty());
  for (const auto& [step, consumed] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {2, 2 * batch + 1}, {2, 1}, {2, 0}, {0, 1}, {2, io::manifest::most_samples}})
    CHECK_THAT(refused(step, consumed), Catch::Matchers::Contains("says " + std::to_string(consumed) +
                                                                  " samples after " + std::to_string(step) + " steps"));
  facts.most_batch = 0;
  CHECK(refused(2, io::manifest::most_samples).empty());
}

TEST_CASE("a claim is one for all ranks of a run, and its refusal reaches all of them", "[train][save][ranks]") {
  const folder saves("claim");
  using mesh_type = heddle::mesh<heddle::axis<heddle::dp>>;
  const int ranks = fits("dp=4") ? 4 : 1;
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  transport_test::launch(mesh_type(ranks), [&](auto& world) {
    const auto held = heddle::train::claim_saves(world, saves.path);
    std::string& mine = told[static_cast<std::size_t>(world.rank())];
    if (held.is_held() != (world.rank() == 0)) mine = "a claim where none should be, or none; ";
    try {
      heddle::train::claim_saves(world, saves.path);
    } catch (const heddle::io_error& e) {
      mine += e.what();
    }
  });
  transport_test::share(told);
  for (const std::string& text : told) {
    CHECK(text == told[0]);
    CHECK_THAT(text,
               Catch::Matchers::StartsWith("heddle: '" + saves.path.string() + "': another run is saving here ("));
  }
}

TEST_CASE("no save is no error; the save of another model or type is one, and says so", "[train][save]") {
  const folder saves("other");
  setup s;
  s.resume_from = (saves.path / "nothing").string();
  CHECK(train_f64(s).first_step == 0);
  s.resume_from = "";
  s.save_to = saves.path.string();
  train_f64(s);
  s.save_to = "";
  s.resume_from = saves.path.string();
  s.steps = 3;
  setup wider = s;
  wider.width = 32;
  CHECK_THROWS_WITH(train_f64(wider), Catch::Matchers::Contains("is a save of gpt2 layers=3 heads=4 width=24") &&
                                          Catch::Matchers::Contains("this run trains gpt2 layers=3 heads=4 width=32"));
  CHECK_THROWS_AS(train_f64(wider), heddle::config_error);
  CHECK_THROWS_WITH(train_f32(s),
                    Catch::Matchers::Contains("vocabulary=61 f64") && Catch::Matchers::Contains("vocabulary=61 f32"));
}

TEST_CASE("any range of a box is cut into boxes that hold each element once, in order", "[train][save]") {
  const std::uint64_t seed = 20261120;
  INFO("seed " << seed);
  const heddle::counter_random random(seed, 0);
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.integer(draw++) % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> extents;
    std::int64_t total = 1;
    for (std::int64_t d = below(5); d > 0; --d) extents.push_back(1 + below(5)), total *= extents.back();
    const std::int64_t begin = below(total + 1), end = begin + below(total - begin + 1);
    std::vector<std::int64_t> seen;
    std::size_t boxes = 0;
    for (const auto& [start, size, first, count] : heddle::train::detail::boxes_of(extents, begin, end)) {
      ++boxes;
      REQUIRE(first == begin + static_cast<std::int64_t>(seen.size()));
      std::int64_t inside = 1;
      for (const std::int64_t e : size) inside *= e;
      REQUIRE(inside == count);
      for (std::int64_t i = 0; i < count; ++i) {  // walk the box row-major, flat index in the whole
        std::int64_t rest = i, stride = 1, flat = 0;
        for (std::size_t d = extents.size(); d-- > 0;) {
          flat += (start[d] + rest % size[d]) * stride;
          REQUIRE(start[d] + size[d] <= extents[d]);
          rest /= size[d];
          stride *= extents[d];
        }
        seen.push_back(flat);
      }
    }
    REQUIRE(seen.size() == static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == begin + static_cast<std::int64_t>(i));
    REQUIRE(boxes <= 2 * extents.size() + 1);
  }
}
