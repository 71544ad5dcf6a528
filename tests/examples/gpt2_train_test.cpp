// tests/examples/gpt2_train_test.cpp: the training program as its user meets it: files, errors, kill and resume.
#include "catch.hpp"

#include <heddle/core/random.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

rlim_t limit_of_files = RLIM_INFINITY;  // of the programs started next

// Starts a program in `where`; its output goes to out.txt there.
pid_t start(const fs::path& where, const std::vector<std::string>& arguments,
            const std::string& program = HEDDLE_EXAMPLES_DIR "/gpt2_train") {
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (::chdir(where.c_str()) != 0) ::_exit(126);
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);  // whatever started the tests ignores
  const int out = ::open("out.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  if (limit_of_files != RLIM_INFINITY) {
    const rlimit limit{limit_of_files, limit_of_files};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
  }
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

struct finished {
  int status;
  std::string output;
};
finished run(const fs::path& where, const std::vector<std::string>& arguments,
             const std::string& program = HEDDLE_EXAMPLES_DIR "/gpt2_train") {
  int status = 0;
  ::waitpid(start(where, arguments, program), &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(where / "out.txt")};
}

std::vector<std::string> small_model(std::vector<std::string> more) {
  std::vector<std::string> all{"--layers", "2",   "--width", "32",     "--heads",
                               "2",        "--context", "32", "--batch", "8",
                               "--data",   HEDDLE_SOURCE_DIR "/include", "--sample", "20",     "--trace",
                               "",         "--timeline", ""};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
std::vector<std::string> small(std::vector<std::string> more) {
  more.insert(more.begin(), {"--microbatches", "2"});
  return small_model(std::move(more));
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

#if defined(HEDDLE_EXAMPLES_KOKKOS)
TEST_CASE("compiled for Kokkos the program trains the same model", "[examples][gpt2_train][kokkos]") {
  const folder f;
  const auto losses = [&](const char* program) {
    const auto r = run(f.path, small({"--steps", "6", "--print-every", "1", "--validate-every", "3"}),
                       HEDDLE_EXAMPLES_DIR + std::string(program));
    INFO(r.output);
    REQUIRE(r.status == 0);
    std::vector<double> found;
    std::istringstream words(r.output);
    for (std::string word; words >> word;)
      if (double x = 0; (word == "loss" || word == "val" || word == "norm") && words >> x) found.push_back(x);
    return std::pair(found, r.output);
  };
  const auto [host, nothing] = losses("/gpt2_train");
  const auto [kokkos, text] = losses("/gpt2_train_kokkos");
  CHECK_THAT(text, Contains("backend      Kokkos ") && Contains("an instance for each rank; products by "));
  REQUIRE(host.size() == 6 + 6 + 2);
  REQUIRE(kokkos.size() == host.size());
  CHECK(host.front() > 5);
  for (std::size_t i = 0; i < host.size(); ++i) CHECK(std::abs(kokkos[i] - host[i]) < 3e-4);  // printed to 1e-4
}
#endif

TEST_CASE("the demo's script names backends that it does not have, before it builds anything", "[examples]") {
  const folder f;
  const auto demo = [&](std::vector<std::string> words) {
    words.insert(words.begin(), HEDDLE_SOURCE_DIR "/scripts/demo");
    return run(f.path, words, "/bin/bash");
  };
  if (!fs::exists("/dev/nvidia0")) {  // where there is a GPU it is built, and runs
    const auto cuda = demo({"--backend", "cuda", "--steps", "1"});
    CHECK(cuda.status == 3);
    CHECK(cuda.output.rfind("heddle: --backend cuda: this machine lacks ", 0) == 0);
    CHECK_THAT(cuda.output, Contains("a GPU (no /dev/nvidia0"));
    CHECK(std::count(cuda.output.begin(), cuda.output.end(), '\n') == 1);
  }
  const auto unknown = demo({"--backend=rocm"});
  CHECK(unknown.status == 2);
  CHECK(unknown.output == "heddle: there is no backend 'rocm' (known: host, kokkos, cuda)\n");
  CHECK(demo({"--backend"}).status == 2);
}

TEST_CASE("with products in bf16 losses stay within 2 % of those in float", "[examples][gpt2_train]") {
  const folder f;
  const auto losses = [&](const char* dtype) {
    const auto r = run(f.path, small({"--dtype", dtype, "--steps", "30", "--print-every", "1", "--validate-every", "30",
                                      "--sample", "0"}));
    INFO(r.output);
    REQUIRE(r.status == 0);
    CHECK_THAT(r.output, Contains(std::string("parameters, ") + dtype));
    std::vector<double> found;
    std::istringstream words(r.output);
    for (std::string word; words >> word;)
      if (double x = 0; (word == "loss" || word == "val") && words >> x) found.push_back(x);
    return found;
  };
  const auto in_float = losses("f32"), in_bf16 = losses("bf16");
  REQUIRE(in_float.size() == 30 + 1);
  REQUIRE(in_bf16.size() == in_float.size());
  CHECK(in_float.back() < 0.8 * in_float.front());  // it learns
  CHECK(in_bf16 != in_float);                       // other products
  for (std::size_t i = 0; i < in_float.size(); ++i) CHECK(std::abs(in_bf16[i] / in_float[i] - 1) < 0.02);
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
  // One node each, so that a way that swaps neighbours is planned where it may be: it is another model.
  const std::vector<std::string> four{"--layers", "4", "--nodes", "1,1,1,1"};
  const std::string plain = steps("1f1b", {"--layers", "4"});
  CHECK(steps("", four, "ways of 4 of 4 stages (neighbours may be swapped)") != plain);
  CHECK(steps("", {"--layers", "4", "--nodes", "1,1,1,1", "--in-order"}, "ways of 4 of 4 stages (in order)") == plain);
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
  for (const char* part : {"strategy     ways of 2 of 3 stages (neighbours may be swapped), 8 microbatches",
                           "step    30/30", "val ", "bubble       predicted", "sample       namespace heddle"})
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
  refused({"--batch", "0"}, "--batch: must be a whole number from 1 to 1048576, got 0");
  refused({"--dtype", "f16"}, "f16");
  refused({"--recompute", "attention"}, "recompute \"attention\" names no saved activation; there are none, full");
  refused({"--lr", "-1"}, "learning rate");
  refused({"--microbatches", "-2"}, "microbatches");
  refused({"--resume"}, "--resume needs --save");
  refused({"--save-in-background"}, "--save-in-background needs --save");
  refused({"--save-in-background", "--save", "s", "--window", "0-9"}, "--save-in-background does not go with --window");
  refused({"--in-order"}, "--in-order requires --nodes");
  for (const std::string& same :
       {std::string("t.svg"), std::string("./t.svg"), "../" + f.path.filename().string() + "/t.svg"})
    refused({"--trace", "t.svg", "--timeline", same}, "--trace and --timeline are one file, 't.svg'");
  CHECK_FALSE(fs::exists(f.path / "t.svg"));
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
  refused({"--wdith", "3"}, "there is no option --wdith, the nearest is --width");
  refused({"--timeout", "nan"}, "must be at least 0, got nan");
  refused({"--timeout", "5s"}, "must be at least 0, got 5s");
  for (const char* option : {"--timeout", "--temperature"}) refused({option, "-1"}, "must be at least 0, got -1");
  for (const char* option : {"--save-every", "--sample", "--seed"}) refused({option, "-1"}, "number from 0 to ");
  CHECK_THAT(run(f.path, {"--help"}).output, Contains("--microbatches") && Contains("--timeline"));
}

TEST_CASE("a strategy from a file trains what the same options do", "[examples][gpt2_train]") {
  const folder f;
  std::ofstream(f.path / "plan.txt") << "version 1\nmesh dp=2,pp=2\nschedule interleaved:2\nmicrobatches 4\n"
                                        "recompute first 1\nlayers 0,1,1,0\ndtype f64\n";
  const std::vector<std::string> both{"--steps", "3", "--sample", "0", "--validation-samples", "8"};
  const auto losses = [&](std::vector<std::string> more) {
    more.insert(more.end(), both.begin(), both.end());
    const auto r = run(f.path, small_model(std::move(more)));
    INFO(r.output);
    CHECK(r.status == 0);
    CHECK_THAT(r.output, Contains("mesh         dp=2 x pp=2 x tp=1") && Contains("strategy     interleaved:2, 4 micro") &&
                             Contains("recompute first 1"));
    return line_of_step(r.output, 1, 3) + line_of_step(r.output, 3, 3);
  };
  CHECK(losses({"--plan", "plan.txt"}) ==
        losses({"--mesh", "dp=2,pp=2", "--schedule", "interleaved:2", "--microbatches", "4", "--recompute", "first 1",
                "--layers-per-stage", "0,1,1,0", "--dtype", "f64"}));
  const auto refused = [&](const std::string& text, const char* says) {
    std::ofstream(f.path / "other.txt") << text;
    const auto r = run(f.path, small_model({"--plan", "other.txt"}));
    CHECK(r.status == 1);
    CHECK_THAT(r.output, Contains(says));
    CHECK(r.output.find('\n') == r.output.size() - 1);
  };
  refused("version 1\nmesh dp=2\nzero 3\n", "'other.txt' asks for ZeRO-3; this program was compiled for ZeRO-1");
  refused("version 1\nmesh cp=2\n", "asks for a mesh with the axis cp; this program was compiled for the axes dp, pp, tp");
  refused("version 1\nmesh dp=2\nzeor 3\n", "other.txt, line 3: there is no key \"zeor\"; there are mesh, schedule");
  refused("version 1\nmesh dp=2\nrecompute attention\n", "recompute \"attention\" names no saved activation");
  CHECK_THAT(run(f.path, {"--plan", "plan.txt", "--mesh", "dp=1"}).output, Contains("--plan excludes --mesh"));
  CHECK_THAT(run(f.path, {"--plan", "none.txt"}).output, Contains("cannot read the strategy in 'none.txt'"));
}

TEST_CASE("activations that wait on a drive train the same model", "[examples][gpt2_train]") {
  const folder here;
  std::vector<std::string> words = small({"--mesh", "dp=1,pp=2,tp=1", "--steps", "4", "--print-every", "1"});
  const finished kept = run(here.path, words);
  REQUIRE(kept.status == 0);
  words.insert(words.end(), {"--offload", here.path.string()});
  const finished away = run(here.path, words);
  CAPTURE(away.output);
  REQUIRE(away.status == 0);
  for (int step = 1; step <= 4; ++step) CHECK(line_of_step(away.output, step, 4) == line_of_step(kept.output, step, 4));
  CHECK_THAT(away.output, Contains("MB of activations written to " + here.path.string()));
  CHECK_THAT(away.output, !Contains("offload      0.0 MB"));
  words.back() += ",/dev/null/none";
  const finished refused = run(here.path, words);
  CHECK(refused.status == 1);
  CHECK_THAT(refused.output, Contains("making a file for activations in /dev/null/none failed: Not a directory"));
  CHECK_THAT(refused.output, !Contains("step "));
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

TEST_CASE("settings out of all proportion are one sentence with what is allowed, at once and in little memory",
          "[examples][gpt2_train]") {
  const folder f;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit small_space = before;
  small_space.rlim_cur = rlim_t{4} << 30;
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(::setrlimit(RLIMIT_AS, &small_space) == 0);
    const auto r = run(f.path, small(std::move(arguments)));
    REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(r.status > 0);
    CHECK_THAT(r.output, Contains(text));
    CHECK(r.output.find("bad_alloc") == std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  };
  refused({"--width", "2147483646"}, "--width: must be a whole number from 1 to 1048576, got 2147483646");
  refused({"--layers", "2147483647"}, "--layers: must be a whole number from 0 to 65536, got 2147483647");
  refused({"--context", "2147483647"}, "--context: must be a whole number from 1 to 16777216");
  refused({"--batch", "9223372036854775807"}, "--batch: must be a whole number from 1 to 1048576");
  refused({"--steps", "9223372036854775807"}, "--steps: must be a whole number from 0 to 1000000000000");
  refused({"--microbatches", "2147483647"}, "--microbatches: must be a whole number from 1 to 65536");
  refused({"--seed", "18446744073709551616"},
          "--seed: must be a whole number from 0 to 18446744073709551615, got 18446744073709551616");
  refused({"--layers", "2x"}, "--layers: must be a whole number from 0 to 65536, got 2x");
  refused(
      {"--schedule", "hanayo:5000"},
      "heddle: --schedule hanayo:5000 has 20000 stages on 2 pipeline ranks; with --layers 2 there may be at most 32");
  refused({"--schedule", "hanayo:100000"}, "behind the colon stands a number from 1 to 32768");
  refused({"--mesh", "pp=4096", "--nodes", "4096,4096"}, "--nodes are 8192 pipeline ranks; there may be at most 4096");
  // What the machine may have and these need: 65536 (12 W^2 + 13 W) and so on, 4 bytes each, for dp = 2 six times.
  refused({"--width", "1048576", "--layers", "65536"}, "need at least 2.075e+10 GB for weights, gradients and moments");
  refused({"--batch", "1048576", "--context", "1024", "--data", HEDDLE_SOURCE_DIR "/include"},
          "for activations; this process can have 4.295 GB");
}

TEST_CASE("an empty value behind an equals sign is empty, not the next word", "[examples][gpt2_train]") {
  const folder f;
  const std::vector<std::string> one{"--mesh", "dp=1", "--steps", "1", "--sample", "0", "--validate-every", "0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), one.begin(), one.end());
    return run(f.path, small(std::move(more)));
  };
  const auto r = with({"--trace=", "--timeline="});
  INFO(r.output);
  CHECK(r.status == 0);
  CHECK_THAT(r.output, !Contains("trace        ") && !Contains("timeline     "));
  CHECK_FALSE(fs::exists(f.path / "--timeline="));
  CHECK_THAT(with({"--layers=", "--heads", "2"}).output, Contains("--layers: must be a whole number from 0 to 65536"));
  CHECK_THAT(with({"--data=", "--heads", "2"}).output, Contains("no such file or folder: ''"));
  CHECK_THAT(with({"--timeline=t.svg"}).output, Contains("timeline     t.svg"));
}

TEST_CASE("a run writes no file that nobody asked for", "[examples][gpt2_train]") {
  const folder f;
  const auto r = run(f.path, {"--layers",         "1",
                              "--width",          "8",
                              "--heads",          "1",
                              "--context",        "8",
                              "--batch",          "4",
                              "--microbatches",   "1",
                              "--data",           HEDDLE_SOURCE_DIR "/README.md",
                              "--mesh",           "dp=1",
                              "--steps",          "2",
                              "--sample",         "0",
                              "--validate-every", "0"});
  INFO(r.output);
  CHECK(r.status == 0);
  for (const auto& entry : fs::directory_iterator(f.path)) CHECK(entry.path().filename() == "out.txt");
  CHECK_THAT(read(HEDDLE_SOURCE_DIR "/scripts/demo"), Contains("--trace=trace.json --timeline=timeline.svg"));
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
  CHECK(none.status == 75);  // nothing has failed, and there is more to do
  CHECK_THAT(none.output, Contains("--resume goes on in further windows"));
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
  const auto odd =
      run(f.path, steps({"--save", "none", "--schedule", "chimera", "--window", "0-100", "--window", "100-200@pp=3"}));
  CHECK(odd.status == 1);
  CHECK_THAT(odd.output,
             Contains("\"chimera\" cannot run 2 microbatches on 3 pipeline ranks; it can run them on 2 or 4") &&
                 !Contains("profile"));
}

TEST_CASE("a run that saves in the background says what became of each save, and is gone on from",
          "[examples][gpt2_train]") {
  const folder f;
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=2", "--sample", "0", "--validate-every", "0", "--save", "saves"});
    return small(std::move(more));
  };
  const finished first = run(f.path, with({"--steps", "6", "--save-every", "2", "--save-in-background"}));
  INFO(first.output);
  CHECK(first.status == 0);
  for (const char* step : {"step 2: ", "step 4: ", "step 6: "})
    CHECK_THAT(first.output, Contains("save         " + std::string(step)));
  CHECK_THAT(first.output, Contains(" MB, held the step ") && Contains(" ms, there after "));
  CHECK_FALSE(fs::exists(f.path / "saves/step-00000002"));
  CHECK(fs::exists(f.path / "saves/step-00000006/index"));
  CHECK_THAT(run(f.path, with({"--steps", "7", "--resume"})).output, Contains("resume       after step 6"));
}

TEST_CASE("saves that cannot be read are never trained over", "[examples][gpt2_train]") {
  const folder f;
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=2", "--sample", "0", "--validate-every", "0", "--save", "saves"});
    return small(std::move(more));
  };
  REQUIRE(run(f.path, with({"--steps", "20", "--save-every", "10"})).status == 0);
  const std::vector<fs::path> saves{f.path / "saves/step-00000010", f.path / "saves/step-00000020"};
  for (const fs::path& s : saves) fs::resize_file(s / "rank-00000.tensors", 100);
  const auto check = [&](const finished& r) {
    INFO(r.output);
    CHECK(r.status == 1);
    CHECK_THAT(r.output, Contains("none of them can be read") &&
                             Contains("step-00000010/rank-00000.tensors' has 100 bytes") &&
                             Contains("step-00000020/rank-00000.tensors' has 100 bytes") && Contains("repair them"));
    for (const fs::path& s : saves) CHECK(fs::file_size(s / "rank-00000.tensors") == 100);
    CHECK(std::distance(fs::directory_iterator(f.path / "saves"), fs::directory_iterator()) == 3);  // and the lock
  };
  check(run(f.path, with({"--steps", "23", "--save-every", "1", "--resume"})));
  check(run(f.path, with({"--steps", "23", "--save-every", "1"})));
  check(run(f.path, with({"--steps", "23", "--resume", "--window", "0-60"})));
  for (const fs::path& s : saves) {
    fs::remove(s / "manifest");
    fs::create_directory(s / "manifest");
  }
  const auto r = run(f.path, with({"--steps", "23", "--resume"}));
  CHECK(r.status == 1);
  CHECK_THAT(r.output, Contains("step-00000020/manifest': it is a folder, not a file"));
  // No saves are none to lose.
  fs::remove_all(f.path / "saves");
  const auto anew = run(f.path, with({"--steps", "1", "--resume"}));
  CHECK(anew.status == 0);
  CHECK_THAT(anew.output, Contains("resume       nothing saved yet"));
}

TEST_CASE("a folder that cannot be written, a limit of file sizes and weights that overflow end with status 1",
          "[examples][gpt2_train]") {
  const folder f;
  std::ofstream(f.path / "file") << "x";
  const auto refused = [&](std::vector<std::string> more, const std::vector<const char*>& texts) {
    more.insert(more.end(), {"--mesh", "dp=2", "--sample", "0", "--validate-every", "0"});
    const auto r = run(f.path, small(std::move(more)));
    INFO(r.output);
    CHECK(r.status == 1);
    for (const char* text : texts) CHECK_THAT(r.output, Contains(text));
    return r.output;
  };
  const std::string before = refused({"--steps", "2", "--save", "file"}, {"heddle: ", "file'"});
  CHECK(before.find("step ") == std::string::npos);
  refused({"--steps", "1", "--lr", "1e39", "--save", "inf"},
          {"heddle: step 1 is not saved", "weight wte.weight has ", "inf"});
  CHECK_FALSE(fs::exists(f.path / "inf/step-00000001"));
  refused({"--steps", "1", "--lr", "1e39"}, {"heddle: step 1 cannot be gone on from: weight wte.weight has "});
  limit_of_files = 100'000;
  refused({"--steps", "1", "--save", "limited"},
          {"File too large (the file size limit of this process is 100000 bytes"});
  limit_of_files = 2000;
  const std::string probed =
      refused({"--steps", "1", "--save", "probed"}, {"nothing can be saved in 'probed'", "2000 bytes"});
  limit_of_files = RLIM_INFINITY;
  CHECK(probed.find("step ") == std::string::npos);
}

TEST_CASE("the first signal saves after the running step, the second ends the program; a folder has one run at a time",
          "[examples][gpt2_train]") {
  const folder f;
  const auto started = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=2", "--steps", "100000", "--save", "saves", "--print-every", "1",
                             "--validate-every", "0"});
    fs::remove(f.path / "out.txt");
    const pid_t child = start(f.path, small(std::move(more)));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (read(f.path / "out.txt").find("step ") == std::string::npos && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return child;
  };
  const auto end_of = [&](pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  };
  // Another run in the folder.
  const pid_t first = started({});
  fs::create_directories(f.path / "other");
  const auto second =
      run(f.path / "other", small({"--mesh", "dp=2", "--steps", "3", "--save", "../saves", "--resume"}));
  CHECK(second.status == 1);
  CHECK_THAT(second.output, Contains("another run is saving here (process " + std::to_string(first) + " on "));
  // The first signal.
  ::kill(first, SIGINT);
  int status = end_of(first);
  std::string output = read(f.path / "out.txt");
  INFO(output);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + SIGINT);
  const std::string mark = "stopped      SIGINT: after step ";
  REQUIRE(output.find(mark) != std::string::npos);
  const long long step = std::stoll(output.substr(output.find(mark) + mark.size()));
  CHECK_THAT(output, Contains("--resume goes on"));
  std::string name = std::to_string(step);
  name = "step-" + std::string(8 - name.size(), '0') + name;
  CHECK(fs::exists(f.path / "saves" / name / "manifest"));
  CHECK(line_of_step(output, static_cast<int>(step), 100000).rfind("step", 0) == 0);
  CHECK(line_of_step(output, static_cast<int>(step) + 1, 100000).rfind("no line", 0) == 0);
  // Two signals while a long step runs.
  const pid_t third = started({"--resume", "--batch", "2048"});
  ::kill(third, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(third, SIGTERM);
  status = end_of(third);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
  CHECK(read(f.path / "out.txt").find("stopped") == std::string::npos);
  // Steps that are done already.
  std::ofstream(f.path / "t.json") << "mine";
  const auto time = fs::last_write_time(f.path / "saves");
  const auto none =
      run(f.path, small({"--mesh", "dp=2", "--steps", "1", "--save", "saves", "--resume", "--trace", "t.json"}));
  CHECK(none.status == 0);
  CHECK_THAT(none.output, Contains("nothing to do: the save in 'saves' is of step " + std::to_string(step) +
                                   ", --steps asks for 1; nothing is trained or written") &&
                              !Contains("tok/s"));
  CHECK(read(f.path / "t.json") == "mine");
  CHECK(fs::last_write_time(f.path / "saves") == time);
}

TEST_CASE("a step that does not end after a signal is given up after a while", "[examples][gpt2_train]") {
  const folder f;
  // Its only step takes minutes.
  const pid_t child = start(f.path, small({"--mesh", "dp=1", "--steps", "1", "--batch", "65536", "--microbatches",
                                           "4096", "--save", "saves", "--grace", "0.5", "--validate-every", "0"}));
  const auto wait = [&](const auto& until) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!until() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  // The handler of the first signal is there as soon as the step may begin; before exec there are those of the tests.
  const auto caught = [&] {
    std::error_code gone;
    if (fs::read_symlink("/proc/" + std::to_string(child) + "/exe", gone).filename() != "gpt2_train") return false;
    std::istringstream lines(read("/proc/" + std::to_string(child) + "/status"));
    for (std::string line; std::getline(lines, line);)
      if (line.rfind("SigCgt:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) == 1;
    return false;
  };
  wait(caught);
  ::kill(child, SIGTERM);
  int status = 0;
  const auto begin = std::chrono::steady_clock::now();
  wait([&] { return ::waitpid(child, &status, WNOHANG) != 0; });
  INFO(read(f.path / "out.txt"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
  CHECK_THAT(read(f.path / "out.txt"), Contains("heddle: the step did not end after the signal"));
  CHECK_FALSE(fs::exists(f.path / "saves/step-00000001"));
}

TEST_CASE("saves, traces and timelines below the data are not trained on, and a run goes on",
          "[examples][gpt2_train]") {
  const folder f;
  fs::create_directories(f.path / "data");
  std::ofstream(f.path / "data/text.md") << read(HEDDLE_SOURCE_DIR "/docs/tutorial/mesh.md");
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=1", "--validate-every", "0", "--save-every", "1", "--trace", "trace.json",
                             "--timeline", "timeline.svg", "--data", "."});
    std::vector<std::string> all = small(std::move(more));
    const auto other = std::find(all.begin(), all.end(), "--data");  // texts of all --data are read
    all.erase(other, other + 2);
    return all;
  };
  const auto line_of_data = [](const std::string& output) {
    const auto at = output.find("data         .: ");
    return at == output.npos ? "no data" : output.substr(at, output.find('\n', at) - at);
  };
  const fs::path where = f.path / "data";
  const auto goes_on = [&](const char* saves, const char* said) {
    fs::remove(where / "out.txt");
    const auto first = run(where, with({"--steps", "2", "--save", saves}));
    fs::remove(where / "out.txt");  // text that grows
    const auto second = run(where, with({"--steps", "4", "--save", saves, "--resume"}));
    INFO(first.output << second.output);
    CHECK(first.status == 0);
    CHECK(second.status == 0);
    CHECK_THAT(second.output, Contains("resume       after step 2") && Contains(said));
    CHECK(line_of_data(first.output) == line_of_data(second.output));
    CHECK_THAT(line_of_data(first.output), Contains(" in 1 files"));
  };
  goes_on("saves", "data         'saves', the folder of the saves, lies below '.': nothing in it is trained on");
  goes_on(".", "data         '.' is also the folder of the saves, which are not trained on");
  goes_on("..", "data         '.' lies below '..', the folder of the saves");
  // Something else of the user's in the folder of the saves is not trained on either.
  std::ofstream(where / "saves/log.txt") << "grows";
  fs::remove(where / "out.txt");
  const auto third = run(where, with({"--steps", "5", "--save", "saves", "--resume"}));
  CHECK(third.status == 0);
}

TEST_CASE("a run gives up links and FIFOs by name, and keeps what is the user's", "[examples][gpt2_train]") {
  const folder f;
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--mesh", "dp=1", "--sample", "0", "--validate-every", "0", "--save-every", "1", "--save",
                             "saves", "--resume"});
    return small(std::move(more));
  };
  fs::create_directories(f.path / "saves");
  fs::create_directories(f.path / "mine");
  std::ofstream(f.path / "mine/thesis.tex") << "keep";
  const auto refused = [&](const char* text) {
    const auto r = run(f.path, with({"--steps", "1"}));
    CHECK(r.status == 1);
    CHECK_THAT(r.output, Contains(text) && !Contains("step "));
  };
  fs::create_symlink("../mine/thesis.tex", f.path / "saves/.lock");
  refused("saves/.lock': it is a symbolic link, not a file");
  fs::remove(f.path / "saves/.lock");
  fs::create_directory_symlink("../mine", f.path / "saves/step-00000001.partial");
  refused("saves/step-00000001.partial': it is a symbolic link, not a folder");
  fs::remove(f.path / "saves/step-00000001.partial");
  REQUIRE(::mkfifo((f.path / "saves/step-00000001.partial").c_str(), 0600) == 0);
  refused("saves/step-00000001.partial': it is a FIFO, not a folder");
  fs::remove(f.path / "saves/step-00000001.partial");
  CHECK(read(f.path / "mine/thesis.tex") == "keep");
  REQUIRE(run(f.path, with({"--steps", "1"})).status == 0);
  std::ofstream(f.path / "saves/step-00000001/notes.txt") << "keep";
  const auto r = run(f.path, with({"--steps", "4"}));
  INFO(r.output);
  CHECK(r.status == 0);
  CHECK_THAT(r.output, Contains("kept         'saves/step-00000001': the save was removed; what no save wrote stays "
                                "there: 'notes.txt'"));
  CHECK(read(f.path / "saves/step-00000001/notes.txt") == "keep");
  CHECK_FALSE(fs::exists(f.path / "saves/step-00000002"));
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
