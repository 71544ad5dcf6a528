// The trace is valid JSON of the trace-event format, and its slices and arrows hold together as viewers need.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/observe/chrome_trace.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace observe = heddle::observe;
using heddle::activity;
using heddle::event;
using nlohmann::json;

namespace {

event make(activity kind, int rank, std::int64_t begin, std::int64_t end, const char* name = "") {
  event e;
  e.kind = kind;
  e.name = name;
  e.rank = rank;
  e.begin_ns = begin;
  e.end_ns = end;
  return e;
}

std::int64_t nanoseconds(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000.0);
}

struct slice {
  std::int64_t begin, end;
  json about;
};

// Everything a viewer relies on. Returns the slices per track, outermost first.
std::map<int, std::vector<slice>> check_structure(const json& trace) {
  REQUIRE(trace.contains("traceEvents"));
  std::map<int, std::vector<slice>> tracks;
  std::map<std::int64_t, std::vector<json>> starts, finishes;
  std::set<int> named;
  for (const json& e : trace["traceEvents"]) {
    const std::string phase = e.at("ph");
    REQUIRE(e.at("pid") == 1);
    if (phase == "M") {
      if (e["name"] == "thread_name") named.insert(e.at("tid").get<int>());
      continue;
    }
    REQUIRE(e.at("ts").is_number());
    REQUIRE(e.at("tid").get<int>() >= 1);
    if (phase == "X") {
      REQUIRE(e.at("dur").get<double>() >= 0.0);
      const std::int64_t begin = nanoseconds(e["ts"]);
      tracks[e["tid"].get<int>()].push_back({begin, begin + nanoseconds(e["dur"]), e});
    } else if (phase == "s") {
      starts[e.at("id").get<std::int64_t>()].push_back(e);
    } else {
      REQUIRE(phase == "f");
      REQUIRE(e.at("bp") == "e");
      finishes[e.at("id").get<std::int64_t>()].push_back(e);
    }
  }
  for (auto& [tid, slices] : tracks) {
    CHECK(named.count(tid) == 1);
    std::vector<slice> open;
    std::int64_t last = slices.front().begin;
    for (const slice& s : slices) {
      REQUIRE(s.begin >= last);  // in order of time
      last = s.begin;
      while (!open.empty() && open.back().end <= s.begin) open.pop_back();
      if (!open.empty()) REQUIRE(s.end <= open.back().end);  // nested or disjoint
      open.push_back(s);
    }
  }
  // Exactly one start and one finish per arrow, each inside a slice of its kind.
  REQUIRE(starts.size() == finishes.size());
  const auto inside = [&tracks](const json& e, const char* activity) {
    const std::int64_t at = nanoseconds(e["ts"]);
    for (const slice& s : tracks[e["tid"].get<int>()])
      if (s.about["args"]["activity"] == activity && s.begin <= at && (at < s.end || s.begin == s.end)) return true;
    return false;
  };
  for (const auto& [id, list] : starts) {
    REQUIRE(list.size() == 1);
    REQUIRE(finishes[id].size() == 1);
    CHECK(list[0]["cat"] == finishes[id][0]["cat"]);
    CHECK(list[0]["name"] == finishes[id][0]["name"]);
    CHECK(inside(list[0], "send"));
    CHECK(inside(finishes[id][0], "recv"));
  }
  return tracks;
}

}  // namespace

TEST_CASE("a small trace says what happened", "[observe][trace]") {
  std::vector<event> events;
  event f = make(activity::forward, 0, 1000000, 1500250);
  f.step = 3;
  f.stage = 0;
  f.microbatch = 2;
  events.push_back(f);
  event c = make(activity::collective, 0, 1100000, 1200000, "tp all_reduce");
  c.bytes = 4096;
  events.push_back(c);
  event s = make(activity::send, 0, 1500300, 1500400);
  s.peer = 1;
  s.flow = (std::uint64_t{1} << 63) + 5;
  events.push_back(s);
  event r = make(activity::recv, 1, 900000, 1500500);
  r.peer = 0;
  r.flow = s.flow;
  events.push_back(r);
  const json trace = json::parse(observe::chrome_trace(events, {.rank_names = {"rank 0 (\"a\")", "rank 1 \\ b\n"},
                                                                .about = {{"mesh", "pp=2"}, {"say", "\"x\"\t\x01"}}}));
  const auto tracks = check_structure(trace);
  CHECK(trace["otherData"]["mesh"] == "pp=2");
  CHECK(trace["otherData"]["say"] == "\"x\"\t\x01");
  REQUIRE(tracks.size() == 2);
  const auto& first = tracks.at(1);
  REQUIRE(first.size() == 3);
  CHECK(first[0].begin == 100000);  // from the first event of all
  CHECK(first[0].end == 600250);
  CHECK(first[0].about["name"] == "forward 2");
  CHECK(first[0].about["cat"] == "compute");
  CHECK(first[0].about["args"]["step"] == 3);
  CHECK(first[0].about["args"]["stage"] == 0);
  CHECK(first[0].about["args"]["microbatch"] == 2);
  CHECK_FALSE(first[0].about["args"].contains("peer"));
  CHECK(first[1].about["cat"] == "communication");
  CHECK(first[1].about["args"]["bytes"] == 4096);
  CHECK(first[1].about["cname"] != first[0].about["cname"]);
  CHECK(first[1].about["name"].get<std::string>().find("tp all_reduce") != std::string::npos);
  CHECK(first[2].about["args"]["peer"] == 1);
  int arrows = 0, sort_indices = 0;
  std::set<std::string> names;
  for (const json& e : trace["traceEvents"]) {
    arrows += e["ph"] == "s" || e["ph"] == "f";
    sort_indices += e["name"] == "thread_sort_index";
    if (e["name"] == "thread_name") names.insert(e["args"]["name"].get<std::string>());
    if (e["name"] == "process_name") CHECK(e["args"]["name"] == "heddle");
  }
  CHECK(arrows == 2);
  CHECK(sort_indices == 2);
  CHECK(names == std::set<std::string>{"rank 0 (\"a\")", "rank 1 \\ b\n"});
}

TEST_CASE("arrows join only what is there on both sides, one to one", "[observe][trace]") {
  std::vector<event> events;
  const auto add = [&events](activity kind, int rank, std::int64_t at, std::uint64_t flow) {
    event e = make(kind, rank, at, at + 10);
    e.flow = flow;
    events.push_back(e);
  };
  add(activity::send, 0, 0, 7);   // no receive
  add(activity::recv, 1, 0, 8);   // no send
  add(activity::send, 0, 20, 9);  // a number used three times: two sends, three receives
  add(activity::send, 0, 40, 9);
  add(activity::recv, 1, 25, 9);
  add(activity::recv, 1, 45, 9);
  add(activity::recv, 1, 65, 9);
  add(activity::send, 0, 60, 0);  // 0 joins nothing
  add(activity::recv, 1, 85, 0);
  const json trace = json::parse(observe::chrome_trace(events));
  check_structure(trace);
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> arrows;
  for (const json& e : trace["traceEvents"]) {
    if (e["ph"] == "s") arrows[e["id"].get<std::int64_t>()].first = nanoseconds(e["ts"]);
    if (e["ph"] == "f") arrows[e["id"].get<std::int64_t>()].second = nanoseconds(e["ts"]);
  }
  REQUIRE(arrows.size() == 2);
  CHECK(arrows[1] == std::pair<std::int64_t, std::int64_t>{20, 34});
  CHECK(arrows[2] == std::pair<std::int64_t, std::int64_t>{40, 54});
}

TEST_CASE("overlapping events of a rank go to further tracks, none is lost", "[observe][trace]") {
  const heddle::counter_random random(2024, 1);
  INFO("seed 2024");
  for (std::uint64_t round = 0; round < 30; ++round) {
    std::vector<event> events;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const auto b = random.bits(round * 1000 + i);
      const auto begin = static_cast<std::int64_t>(b[0] % 500);
      event e = make(static_cast<activity>(b[2] % 11), static_cast<int>(b[3] % 3), begin, begin + b[1] % 80);
      e.flow = b[2] % 7;
      events.push_back(e);
    }
    const auto tracks = check_structure(json::parse(observe::chrome_trace(events)));
    std::size_t n = 0;
    for (const auto& [tid, slices] : tracks) n += slices.size();
    CHECK(n == events.size());
  }
}

TEST_CASE("times keep every nanosecond", "[observe][trace]") {
  CHECK(observe::detail::microseconds(0) == "0.000");
  CHECK(observe::detail::microseconds(7) == "0.007");
  CHECK(observe::detail::microseconds(1234567) == "1234.567");
  CHECK(observe::detail::microseconds(-1002) == "-1.002");
  const std::vector<event> events{make(activity::forward, 0, 5'000'000'000'000'001, 5'000'000'000'000'002)};
  const json trace = json::parse(observe::chrome_trace(events, {.base_ns = 5'000'000'000'000'000}));
  const auto tracks = check_structure(trace);
  CHECK(tracks.at(1)[0].begin == 1);
  CHECK(tracks.at(1)[0].end == 2);
}

TEST_CASE("computation and communication have names of different colours", "[observe][trace]") {
  // Hues that the viewer's own code gives, run in a JavaScript engine's arithmetic.
  CHECK(observe::detail::perfetto_hue(u"", "forward") == 126);
  CHECK(observe::detail::perfetto_hue(u"", "forward 12") == 126);
  CHECK(observe::detail::perfetto_hue(u"", "backward") == 208);
  CHECK(observe::detail::perfetto_hue(u"", "send") == 276);
  CHECK(observe::detail::perfetto_hue(u"", "all_reduce") == 184);
  const auto hue_of = [](activity kind, const char* name) {
    const auto choose = [name](const auto& marks, const std::string& full) {
      for (const auto& m : marks)
        if (full == std::string(m.utf8) + name) return observe::detail::perfetto_hue(m.utf16, name);
      return -1;
    };
    const std::string full = observe::detail::slice_name(kind, name);
    return observe::is_compute(kind) ? choose(observe::detail::compute_marks, full)
                                     : choose(observe::detail::communication_marks, full);
  };
  for (const char* name : {"forward", "backward", "backward input", "backward weight", "optimizer", "adamw", "clip"}) {
    CAPTURE(name);
    CHECK(observe::detail::is_compute_hue(hue_of(activity::forward, name)));
  }
  for (const char* name : {"send",
                           "recv",
                           "collective",
                           "all_reduce",
                           "all_gather",
                           "reduce_scatter",
                           "broadcast",
                           "all_to_all",
                           "barrier",
                           "tp all_reduce",
                           "dp reduce_scatter",
                           "dp all_gather",
                           "reduce gradients",
                           "send forward",
                           "recv forward",
                           "send backward",
                           "recv backward",
                           "send activations",
                           "recv gradients",
                           "tied gradient",
                           "gradient norm",
                           "loss"}) {
    CAPTURE(name);
    CHECK(observe::detail::is_communication_hue(hue_of(activity::collective, name)));
  }
}

TEST_CASE("names that are no UTF-8 leave a trace readable", "[observe][trace]") {
  CHECK(observe::json_escape("caf\xe9 \"\xc3\xbc\" \n\x02") == "caf\xef\xbf\xbd \\\"\xc3\xbc\\\" \\n\\u0002");
  CHECK(observe::json_escape("\xe2\x82") == "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("an empty trace is a trace, and a file that cannot be written is an error", "[observe][trace]") {
  check_structure(json::parse(observe::chrome_trace({})));
  const std::string path = (std::filesystem::temp_directory_path() / "heddle-trace-test.json").string();
  const std::vector<event> events{make(activity::forward, 0, 0, 5)};
  observe::write_chrome_trace(path, events);
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  CHECK(text == observe::chrome_trace(events));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(observe::write_chrome_trace("/nowhere/at/all.json", events), heddle::io_error);
  if (std::filesystem::exists("/dev/full")) {
    try {
      observe::write_chrome_trace("/dev/full", events);
      FAIL("no error");
    } catch (const heddle::io_error& e) {
      CHECK(std::string(e.what()).find("'/dev/full': No space left") != std::string::npos);
    }
  }
}

#endif
