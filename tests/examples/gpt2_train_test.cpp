// tests/examples/gpt2_train_test.cpp: the training program as its user meets it: files, errors, kill and resume.
#include "catch.hpp"

#include <heddle/core/random.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct folder {
  fs::path path = fs::temp_directory_path() / ("heddle-demo-" + std::to_string(::getpid()));
  folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~folder() { fs::remove_all(path); }
};

std::string read(const fs::path& p) {
  std::ifstream in(p);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Starts the program in `where`; its output goes to out.txt there.
pid_t start(const fs::path& where, const std::vector<std::string>& arguments) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (::chdir(where.c_str()) != 0) ::_exit(126);
  const int out = ::open("out.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  std::vector<char*> argv{const_cast<char*>("gpt2_train")};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(HEDDLE_EXAMPLES_DIR "/gpt2_train", argv.data());
  ::_exit(127);
}

struct finished {
  int status;
  std::string output;
};
finished run(const fs::path& where, const std::vector<std::string>& arguments) {
  int status = 0;
  ::waitpid(start(where, arguments), &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(where / "out.txt")};
}

std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> all{"--layers",       "2",  "--width",  "32", "--heads", "2",
                               "--context",      "32", "--batch",  "8",  "--data",  HEDDLE_SOURCE_DIR "/include",
                               "--microbatches", "2",  "--sample", "20", "--trace", "",
                               "--timeline",     ""};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The part of a progress line that does not depend on time.
std::string line_of_step(const std::string& output, int step, int steps) {
  const std::string mark = std::to_string(step) + "/" + std::to_string(steps) + " ";
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("step", 0) == 0 && line.find(" " + mark) != std::string::npos)
      return line.substr(0, line.find("tok/s") - 9);
  return "no line of step " + mark;
}

}  // namespace

TEST_CASE("the program prints what it trains and writes a trace and a picture", "[examples][gpt2_train]") {
  const folder f;
  const auto r =
      run(f.path, small({"--steps", "6", "--validate-every", "3", "--trace", "t.json", "--timeline", "t.svg"}));
  INFO(r.output);
  REQUIRE(r.status == 0);
  for (const char* part :
       {"mesh         dp=2 x pp=2 x tp=2", "strategy     1f1b", "gemm         ", "GFLOP/s", "step     1/6", "val ",
        "MFU          ", "bubble       predicted 33.3 % for equal stages", "sample       namespace heddle"})
    CHECK_THAT(r.output, Contains(part));
  const auto trace = nlohmann::json::parse(read(f.path / "t.json"));
  std::set<int> tracks;
  int starts = 0, ends = 0;
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") == "X") tracks.insert(e.at("tid").get<int>());
    starts += e.at("ph") == "s";
    ends += e.at("ph") == "f";
  }
  CHECK(tracks.size() == 8);
  CHECK(starts == ends);
  CHECK(starts == 4 * 4 * 2 * 2);  // steps, pipelines, microbatches, directions
  const std::string picture = read(f.path / "t.svg");
  CHECK_THAT(picture, Contains("<svg") && Contains("measured") && Contains("predicted") && Contains("</svg>"));
}

TEST_CASE("every schedule trains the same model", "[examples][gpt2_train]") {
  const folder f;
  const auto steps = [&](const std::string& schedule, std::vector<std::string> more, const std::string& name = "") {
    std::vector<std::string> all{"--mesh",   "pp=4", "--microbatches",       "8", "--dtype", "f64", "--steps", "3",
                                 "--sample", "0",    "--validation-samples", "8"};
    if (name.empty()) all.insert(all.end(), {"--schedule", schedule});
    all.insert(all.end(), more.begin(), more.end());
    const auto r = run(f.path, small(std::move(all)));
    INFO(schedule << ": " << r.output);
    CHECK(r.status == 0);
    CHECK_THAT(r.output,
               Contains("strategy     " + (name.empty() ? schedule : name)) && Contains("bubble       predicted"));
    return line_of_step(r.output, 1, 3) + line_of_step(r.output, 3, 3);
  };
  const std::string same = steps("1f1b", {});
  for (const char* schedule : {"interleaved:2", "zb-v", "dual-pipe"}) CHECK(steps(schedule, {}) == same);
  CHECK(steps("hanayo:1", {"--layers-by-cost"}) == same);
  CHECK(steps("zb-h1", {"--recompute", "every 2,mlp.hidden,head.logits"}) == same);
  // All stages in order, two nodes each.
  CHECK(steps("", {"--nodes", "2,2"}, "ways of 2 of 2 stages") == same);
}

TEST_CASE("microbatches that skip stages train the model, and a plain pipeline goes on with it",
          "[examples][gpt2_train]") {
  const folder f;
  {
    std::ofstream links(f.path / "links.txt");
    links << "# two cities\n";
    for (int a = 0; a < 6; ++a)
      for (int b = a + 1; b < 6; ++b) links << a << ' ' << b << (a % 2 == b % 2 ? " 1 1000\n" : " 50 10\n");
  }
  const auto r = run(f.path, small({"--mesh", "pp=6", "--nodes", "2,2,2", "--skip", "1", "--links", "links.txt",
                                    "--microbatches", "8", "--batch", "16", "--steps", "30", "--save", "saves"}));
  INFO(r.output);
  REQUIRE(r.status == 0);
  for (const char* part : {"strategy     ways of 2 of 3 stages, 8 microbatches", "step    30/30", "val ",
                           "bubble       predicted", "sample       namespace heddle"})
    CHECK_THAT(r.output, Contains(part));
  const auto on =
      run(f.path, small({"--mesh", "pp=2", "--batch", "16", "--steps", "31", "--save", "saves", "--resume"}));
  CHECK(on.status == 0);
  CHECK_THAT(on.output, Contains("resume       after step 30"));
}

TEST_CASE("mistakes on the command line end with a sentence that names them", "[examples][gpt2_train]") {
  const folder f;
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const auto r = run(f.path, small(std::move(arguments)));
    CHECK(r.status != 0);
    CHECK(r.status != -1);
    CHECK_THAT(r.output, Contains(text));
  };
  refused({"--mesh", "dp=2,qq=2"}, "names no axis of this program (known: dp, pp, tp)");
  refused({"--mesh", "dp=0"}, "needs a positive whole number after dp=");
  refused({"--schedule", "zigzag"}, "there is no schedule \"zigzag\" (known: gpipe, 1f1b, interleaved");
  refused({"--data", "/nowhere/at/all"}, "no such file or folder: '/nowhere/at/all'");
  refused({"--heads", "5"}, "not a multiple of heads = 5");
  refused({"--batch", "0"}, "batch must be at least 1, got 0");
  refused({"--dtype", "f16"}, "f16");
  refused({"--recompute", "attention"}, "recompute \"attention\" names no saved activation; there are none, full");
  refused({"--lr", "-1"}, "learning rate");
  refused({"--microbatches", "-2"}, "microbatches");
  refused({"--resume"}, "--resume needs --save");
  refused({"--skip", "1"}, "--skip and --links need --nodes");
  refused({"--nodes", "1,1", "--schedule", "zb-v"}, "--schedule excludes --nodes");
  refused({"--forward-ms", "5"}, "--forward-ms requires --nodes");
  refused({"--nodes", "1,1", "--forward-ms", "0"}, "must be more than 0, got 0");
  refused({"--nodes", "2,2"}, "--nodes are 4 pipeline ranks, --mesh has pp=2");
  refused({"--nodes", "1,1", "--skip", "2"}, "--skip must be less than the 2 stages of --nodes");
  refused({"--nodes", "2", "--microbatches", "3"}, "--microbatches 3 do not divide over the 2 nodes");
  refused({"--nodes", "1,1", "--links", "none.txt"}, "cannot read the links in 'none.txt'");
  std::ofstream(f.path / "links.txt") << "# node node ms MB/s\n0 1 5 100  # near\n1 0 5 100 20\n";
  refused({"--nodes", "1,1", "--mesh", "pp=2", "--links", "links.txt"}, "line 3 of 'links.txt' is no link of two of 2");
  refused({"--trace", "/nowhere/at/all/t.json"}, "/nowhere/at/all/t.json");
  refused({"--wdith", "3"}, "--wdith");
  refused({"--timeout", "nan"}, "must be at least 0, got nan");
  for (const char* option : {"--timeout", "--save-every", "--sample", "--temperature", "--seed"})
    refused({option, "-1"}, "must be at least 0, got -1");
  CHECK_THAT(run(f.path, {"--help"}).output, Contains("--microbatches") && Contains("--timeline"));
}

TEST_CASE("what cannot run is said before anything starts", "[examples][gpt2_train]") {
  const folder f;
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--schedule", "zbv"},
                                                {"--schedule", "dual-pipe", "--microbatches", "3"},
                                                {"--recompute", "every 0"}}) {
    const auto r = run(f.path, small(wrong));
    CHECK(r.status == 1);
    CHECK(r.output.rfind("heddle: ", 0) == 0);  // no rank, no line about a run
    CHECK(r.output.find('\n') == r.output.size() - 1);
  }
}

TEST_CASE("progress has a line for every few steps", "[examples][gpt2_train]") {
  const folder f;
  const auto printed = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"--steps", "12", "--validate-every", "5", "--sample", "0"};
    all.insert(all.end(), more.begin(), more.end());
    const auto r = run(f.path, small(std::move(all)));
    std::string steps;
    for (int s = 1; s <= 12; ++s)
      if (line_of_step(r.output, s, 12).rfind("step", 0) == 0) steps += std::to_string(s) + " ";
    return steps;
  };
  CHECK(printed({}) == "1 5 10 12 ");
  CHECK(printed({"--print-every", "4", "--validate-every", "0"}) == "1 4 8 12 ");
}

TEST_CASE("a folder with saves is not trained over, and other data order not resumed", "[examples][gpt2_train]") {
  const folder f;
  REQUIRE(run(f.path, small({"--steps", "2", "--save", "saves"})).status == 0);
  const auto again = run(f.path, small({"--steps", "2", "--save", "saves"}));
  CHECK(again.status != 0);
  CHECK_THAT(again.output, Contains("holds a save of step 2; give --resume"));
  const auto other = run(f.path, small({"--steps", "4", "--save", "saves", "--resume", "--seed", "7"}));
  CHECK(other.status != 0);
  CHECK_THAT(other.output, Contains("drew its samples by seed 1, context 32") && Contains("seed 7"));
}

TEST_CASE("training in windows only, cut to fit, is the same training", "[examples][gpt2_train]") {
  const folder f;
  const auto steps = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=2,pp=2", "--steps", "12", "--validate-every", "6", "--print-every", "1"});
    return small(std::move(more));
  };
  const auto whole = run(f.path, steps({}));
  const auto cut = run(f.path, steps({"--save", "saves", "--window", "0-0.15", "--window", "0.3-0.4:1000", "--window",
                                      "0.5-60:0.01", "--window", "0.6-100@dp=2,pp=2"}));
  INFO(whole.output << cut.output);
  REQUIRE(whole.status == 0);
  REQUIRE(cut.status == 0);
  for (int k = 1; k <= 12; ++k) CHECK(line_of_step(cut.output, k, 12) == line_of_step(whole.output, k, 12));
  CHECK_THAT(cut.output, Contains("profile      ") && Contains("windows      12 of 12 steps done"));
  CHECK(cut.output.substr(cut.output.find("sample ")) == whole.output.substr(whole.output.find("sample ")));
  // Nothing fits; the rest is done another day, on other ranks.
  const auto none = run(f.path, steps({"--save", "other", "--window", "0-60:0.01"}));
  CHECK(none.status == 0);
  CHECK_THAT(none.output, Contains("not enough time or memory for a step") && Contains("windows      0 of 12 steps"));
  const auto rest = run(f.path, steps({"--save", "other", "--resume", "--window", "0-100@pp=2,tp=2"}));
  INFO(rest.output);
  CHECK(rest.status == 0);
  CHECK_THAT(rest.output, Contains("windows      12 of 12 steps done"));
  for (const char* wrong : {"5-3", "3", "0-1:x", "0-1 ", "1e300-inf"}) {
    const auto refused = run(f.path, steps({"--save", "none", "--window", wrong}));
    CHECK(refused.status == 1);
    CHECK_THAT(refused.output, Contains("--window is START-END"));
  }
  CHECK_THAT(run(f.path, steps({"--window", "0-1"})).output, Contains("--window needs --save"));
  const auto odd = run(f.path, steps({"--save", "none", "--schedule", "chimera", "--window", "0-100", "--window",
                                      "100-200@pp=3"}));
  CHECK(odd.status == 1);
  CHECK_THAT(odd.output, Contains("\"chimera\" cannot run 2 microbatches on 3") && !Contains("profile"));
}

TEST_CASE("a prompt may be any text", "[examples][gpt2_train]") {
  const folder f;
  const auto r = run(f.path, small({"--steps", "1", "--prompt", "f\xc3\xbcr"}));
  CHECK(r.status == 0);
  CHECK_THAT(r.output, Contains("sample       f\xc3\xbcr"));
}

TEST_CASE("killed at any moment, the program goes on where its last complete save was", "[examples][gpt2_train]") {
  const folder f;
  const auto begin = std::chrono::steady_clock::now();
  const auto whole = run(f.path, small({"--steps", "60", "--validate-every", "0"}));
  const std::chrono::duration<double> whole_run = std::chrono::steady_clock::now() - begin;
  INFO(whole.output);
  REQUIRE(whole.status == 0);
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  const auto arguments =
      small({"--steps", "60", "--validate-every", "0", "--save", "saves", "--save-every", "1", "--resume"});
  int kills = 0;
  for (std::uint64_t attempt = 0; attempt < 12 && kills < 6; ++attempt) {
    const pid_t child = start(f.path, arguments);
    // After start-up and before the end; a save is always either under way or just made.
    std::this_thread::sleep_for(whole_run * (0.3 + 0.4 * random.uniform(attempt)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    kills += WIFSIGNALED(status);
  }
  CAPTURE(kills);
  const auto last = run(f.path, arguments);
  INFO(last.output);
  REQUIRE(last.status == 0);
  CHECK(kills >= 2);  // or nothing was tried
  // Whatever was trained last, the last step and the text are those of the run that was never killed.
  const std::string end = last.output.substr(last.output.find("sample "));
  CHECK(end == whole.output.substr(whole.output.find("sample ")));
  if (last.output.find("60/60") != std::string::npos)  // unless the save of the last step was complete already
    CHECK(line_of_step(last.output, 60, 60) == line_of_step(whole.output, 60, 60));
}
