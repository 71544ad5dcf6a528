// tests/examples/tool_test.cpp: what all tools' command lines share: mistyped options, defaults, statuses, output that fails, progress.
#include "catch.hpp"
#include "run_program.hpp"

#include "tool.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace fs = std::filesystem;

namespace {

const std::string models = HEDDLE_SOURCE_DIR "/tests/golden/models/";

struct values {
  int width = 128;
  std::int64_t steps = 10;
  std::uint64_t seed = 1;
  double lr = 1e-3, temperature = 0.7;
  std::string mesh = "dp=1", dtype = "f32", save;
  fs::path tokenizer;
  std::optional<std::int64_t> answer;
  std::vector<int> nodes;
  std::vector<std::string> data{"docs"};
  bool json = false, resume = false;
};

tool::command_line declared(values& v) {
  tool::command_line line("Does what it is told.", "75 there is more to do");
  line.add_option("--mesh", v.mesh, "ranks along each axis");
  line.add_option("--width", v.width, "elements")->range(1, 1024);
  line.add_option("--steps", v.steps, "steps in all")->at_least(0);
  line.add_option("--seed", v.seed, "seed of weights");
  line.add_option("--lr", v.lr, "learning rate")->more_than(0);
  line.add_option("--temperature", v.temperature, "of the text")->range(0.0, 2.0);
  tool::option* const dtype = line.add_option("--dtype", v.dtype, "type of elements")->one_of({"f32", "f64", "bf16"});
  line.add_option("--tokenizer", v.tokenizer, "its folder")->otherwise("the model's");
  line.add_option("--answer", v.answer, "tokens")->range(1, 100);
  line.add_option("--nodes", v.nodes, "of each stage")->delimiter(',')->take_all()->excludes(dtype);
  line.add_option("--data", v.data, "files")->take_all();
  tool::option* const save = line.add_option("--save", v.save, "folder");
  line.add_flag("--resume", v.resume, "go on")->needs(save);
  line.add_flag("--json", v.json, "print JSON");
  return line;
}

values parsed(std::vector<const char*> words) {
  words.insert(words.begin(), "/some/where/tool");
  values v;
  tool::command_line line = declared(v);
  const bool work = line.parse(static_cast<int>(words.size()), words.data());  // what it throws is for `refused`
  CHECK(work);
  return v;
}

std::string refused(const std::vector<const char*>& words) {
  try {
    parsed(words);
  } catch (const tool::usage_error& e) {
    return e.what();
  }
  return "accepted";
}

using examples_test::answer;
answer run(const std::string& tool, const std::string& arguments, const std::string& output = "") {
  return examples_test::shell(HEDDLE_EXAMPLES_DIR "/" + tool + " " + arguments + " 2>&1 " + output);
}

// Those that were built.
std::vector<std::string> tools() {
  std::vector<std::string> found;
  for (const char* name : {"gpt2_train", "generate", "serve", "evaluate", "convert", "finetune", "train_heads"}) {
    if (fs::exists(fs::path(HEDDLE_EXAMPLES_DIR) / name))
      found.emplace_back(name);
    else
      WARN("examples/" << name << " was not built");
  }
  return found;
}

}  // namespace

TEST_CASE("options of each type are read, the last of several counts", "[examples][tool]") {
  const values v =
      parsed({"--width",  "64", "--width=32",  "--seed", "18446744073709551615", "--lr",    "1e-2", "--mesh=",
              "--data",   "a",  "b",           "--json", "--data=--c",           "--nodes", "1,2",  "--nodes=3",
              "--answer", "7",  "--tokenizer", "x/y",    "--temperature",        "2"});
  CHECK(v.width == 32);
  CHECK(v.seed == (std::numeric_limits<std::uint64_t>::max)());
  CHECK(v.lr == 1e-2);
  CHECK(v.temperature == 2);
  CHECK(v.mesh.empty());
  CHECK(v.data == std::vector<std::string>{"a", "b", "--c"});
  CHECK(v.nodes == std::vector<int>{1, 2, 3});
  CHECK(v.answer == 7);
  CHECK(v.tokenizer == "x/y");
  CHECK(v.json);
  CHECK_FALSE(v.resume);
  CHECK(v.steps == 10);
  CHECK(parsed({}).data == std::vector<std::string>{"docs"});
}

TEST_CASE("a mistyped option names the nearest one", "[examples][tool]") {
  const auto nearest = [](const char* word) {
    const std::string said = refused({word, "3"}), mark = ", the nearest is ";
    const std::size_t at = said.find(mark);
    return at == said.npos ? "" : said.substr(at + mark.size(), said.find(';') - at - mark.size());
  };
  for (const auto& [word, option] : std::vector<std::pair<const char*, const char*>>{{"--wdith", "--width"},
                                                                                     {"--widht=3", "--width"},
                                                                                     {"-width", "--width"},
                                                                                     {"--temp", "--temperature"},
                                                                                     {"--step", "--steps"},
                                                                                     {"--tokeniser", "--tokenizer"},
                                                                                     {"--Mesh", "--mesh"},
                                                                                     {"--hepl", "--help"},
                                                                                     {"--zigzagging", ""}})
    CHECK(nearest(word) == option);
  CHECK(refused({"--wdith", "3"}) ==
        "heddle: there is no option --wdith, the nearest is --width; --help lists all options");
  CHECK(refused({"--zigzagging"}) == "heddle: there is no option --zigzagging; --help lists all options");
}

TEST_CASE("values out of range and words that do not go together are named", "[examples][tool]") {
  CHECK(refused({"--width", "0"}) == "heddle: --width: must be a whole number from 1 to 1024, got 0");
  CHECK_THAT(refused({"--width", "2x"}), Contains("got 2x"));
  CHECK_THAT(refused({"--width="}), Contains("whole number"));
  CHECK_THAT(refused({"--width", "99999999999"}), Contains("from 1 to 1024, got 99999999999"));
  CHECK_THAT(refused({"--seed", "18446744073709551616"}), Contains("from 0 to 18446744073709551615"));
  CHECK_THAT(refused({"--seed", "-1"}), Contains("from 0 to 18446744073709551615, got -1"));
  CHECK_THAT(refused({"--steps", "-1"}), Contains("from 0 to 9223372036854775807, got -1"));
  CHECK_THAT(refused({"--lr", "0"}), Contains("--lr: must be more than 0, got 0"));
  for (const char* lr : {"nan", "1e-3x", "", "-1"}) CHECK_THAT(refused({"--lr", lr}), Contains("must be more than 0"));
  CHECK_THAT(refused({"--temperature", "2.1"}), Contains("must be a number from 0 to 2, got 2.1"));
  CHECK_THAT(refused({"--dtype", "f16"}), Contains("must be f32, f64 or bf16, got f16"));
  CHECK_THAT(refused({"--nodes", "1,,2"}), Contains("whole number"));
  CHECK_THAT(refused({"--answer", "0"}), Contains("from 1 to 100, got 0"));
  CHECK_THAT(refused({"--width"}), Contains("--width: 1 required N missing"));
  CHECK_THAT(refused({"--mesh", "--json"}), Contains("--mesh needs a value") && Contains("--mesh=--json"));
  CHECK_THAT(refused({"--json=yes"}), Contains("json was given a disallowed flag override"));
  CHECK_THAT(refused({"width"}), Contains("'width' is the value of no option"));
  CHECK_THAT(refused({"--resume"}), StartsWith("heddle: --resume requires --save"));
  CHECK_THAT(refused({"--nodes", "1", "--dtype", "f64"}), StartsWith("heddle: --dtype excludes --nodes"));
}

TEST_CASE("help has every option with its sentence and its default", "[examples][tool]") {
  values v;
  const std::string help = declared(v).help("tool");
  for (const char* part :
       {"Usage: tool [OPTIONS]", "--width N ", "elements (default: 128)", "--lr X ", "(default: 0.001)",
        "--dtype f32|f64|bf16 ", "--tokenizer PATH ", "its folder (default: the model's)", "--version",
        "2 wrong options", "75 there is more to do"})
    CHECK_THAT(help, Contains(part));
}

TEST_CASE("all tools end with 2 for wrong options, and have help and version", "[examples][tool]") {
  for (const std::string& name : tools()) {
    CAPTURE(name);
    const answer unknown = run(name, "--mdoel x");
    CHECK(unknown.status == tool::wrong_options);
    CHECK_THAT(unknown.text, StartsWith("heddle: there is no option --mdoel"));
    if (name != "gpt2_train" && name != "convert") CHECK_THAT(unknown.text, Contains("the nearest is --model"));
    CHECK(run(name, "--mesh").status == tool::wrong_options);
    if (name != "gpt2_train") CHECK(run(name, "").status == tool::wrong_options);  // what is required is not there
    const answer version = run(name, "--version");
    CHECK(version.status == 0);
    CHECK(version.text == tool::command_line::version(name));
    const answer help = run(name, "--help");
    CHECK(help.status == 0);
    CHECK_THAT(help.text, Contains("Usage: " + name) && Contains("--mesh TEXT ") && Contains("(default: "));
    const answer full = run(name, "--help", ">/dev/full");
    CHECK(full.status == tool::failed);
  }
}

TEST_CASE("a folder that is not there is one sentence in all tools", "[examples][tool]") {
  const auto says = [](const std::string& name, const std::string& folder) {
    const bool from = name == "convert";
    const std::string more = name == "generate"      ? " --prompt x"
                             : name == "evaluate"    ? " --tokens 1,2"
                             : name == "convert"     ? " --to out"
                             : name == "finetune"    ? " --text x --out out"
                             : name == "train_heads" ? " --text x --out out"
                                                     : "";
    answer a = run(name, (from ? "--from " : "--model ") + folder + more);
    CHECK(a.status == tool::failed);
    if (const std::size_t at = a.text.find("--from"); at != a.text.npos) a.text.replace(at, 6, "--model");
    return a.text;
  };
  const std::string readme = HEDDLE_SOURCE_DIR "/README.md", docs = HEDDLE_SOURCE_DIR "/docs";
  for (const std::string& name : tools()) {
    if (name == "gpt2_train") continue;
    CAPTURE(name);
    CHECK(says(name, "/nope") == "heddle: --model '/nope': there is no such folder\n");
    CHECK(says(name, readme) ==
          "heddle: --model '" + readme + "' is a file; give the folder that holds config.json and the weights\n");
    CHECK(says(name, docs) ==
          "heddle: --model '" + docs + "' has no config.json; give the folder that holds it and the weights\n");
  }
}

TEST_CASE("output that cannot be written is an error", "[examples][tool]") {
  const std::string evaluate = HEDDLE_EXAMPLES_DIR "/evaluate";
  if (!fs::exists(evaluate)) return;
  // Its standard error is ours here, its output the full device.
  const answer a = run("evaluate", "--model " + models + "llama3 --tokens 1,2,3", "1>/dev/full");
  CHECK(a.status == tool::failed);
  CHECK_THAT(a.text, Contains("heddle: the output cannot be written: No space left on device"));
}

// The terminal's other side.
TEST_CASE("long work shows how far it is where somebody looks", "[examples][tool]") {
  const std::string work = "evaluate --model " + models + "llama3 --tokens 1,2,3 --tokens 1,2";
  if (!fs::exists(HEDDLE_EXAMPLES_DIR "/evaluate")) return;
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string side = ::ptsname(terminal);
  const int open = ::open(side.c_str(), O_RDWR | O_NOCTTY);  // so that what was written stays
  const auto shown = [&](const std::string& before) {
    const std::string line = before + " " HEDDLE_EXAMPLES_DIR "/" + work + " >/dev/null 2>" + side;
    CHECK(std::system(line.c_str()) == 0);
    REQUIRE(::write(open, "end", 3) == 3);
    std::string all;
    std::array<char, 4096> piece{};
    while (all.find("end") == all.npos) {
      const ssize_t n = ::read(terminal, piece.data(), piece.size());
      REQUIRE(n > 0);
      all.append(piece.data(), static_cast<std::size_t>(n));
    }
    return all;
  };
  const std::string said = shown("TERM=xterm");
  CHECK_THAT(said, Contains("loading: 0 of 30 tensors") && Contains("evaluating: 0 of 2 samples") && Contains("\r"));
  CHECK(said.rfind("\r\033[K") == said.size() - 7);  // the line is gone at the end
  CHECK(shown("TERM=dumb") == "end");
  ::close(open);
  ::close(terminal);
  CHECK_THAT(run("evaluate", work.substr(9)).text, !Contains("loading") && !Contains("\033"));
}
