// Folders of torch.distributed.checkpoint, of both formats, against what PyTorch wrote (golden/torch_golden.py); pickles that are damaged.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/torch/folder.hpp>
#include <heddle/tensor/tensor_source.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace hd = heddle;
namespace io = heddle::io;
using Catch::Matchers::Contains;

static_assert(hd::tensor_source<io::torch_folder, float>);
static_assert(hd::tensor_source<io::torch_folder, double>);

namespace {

const std::filesystem::path torch_goldens = std::filesystem::path(HEDDLE_SOURCE_DIR) / "tests/golden/torch";

// Element i of the tensor of this number, as torch_golden.py makes it.
double torch_element(int number, std::int64_t i) {
  return static_cast<double>((i * 37 + 11 * number) % 251 - 125) / 8;
}

struct torch_case {
  const char* name;
  const char* dtype;
  std::vector<std::int64_t> shape;
};
const std::vector<torch_case> torch_cases{{"layer.weight", "F32", {9, 6}},
                                          {"layer.bias", "BF16", {7}},
                                          {"optim.state.layer.weight.exp_avg", "F64", {9, 6}},
                                          {"cube", "F16", {3, 4, 5}},
                                          {"plain", "F32", {2, 3}}};

template <class T>
std::vector<T> torch_run(const io::torch_folder& from, const char* name, std::int64_t first, std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  from.tensor(name).read(first, std::span<T>(out));
  return out;
}

std::span<const std::byte> torch_bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}

void check_torch_folder(const io::torch_folder& from) {
  for (int number = 0; number < static_cast<int>(torch_cases.size()); ++number) {
    const torch_case& c = torch_cases[static_cast<std::size_t>(number)];
    CAPTURE(c.name);
    REQUIRE(from.contains(c.name));
    const auto tensor = from.tensor(c.name);
    CHECK(tensor.dtype() == c.dtype);
    CHECK(std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end()) == c.shape);
    std::int64_t count = 1;
    for (const std::int64_t e : c.shape) count *= e;
    std::vector<double> expected;
    for (std::int64_t i = 0; i < count; ++i) expected.push_back(torch_element(number, i));
    for (std::int64_t first = 0; first < count; ++first)  // every run there is
      for (const std::int64_t n : {std::int64_t{1}, std::int64_t{5}, count - first}) {
        if (first + n > count) continue;
        const std::vector<double> wanted(expected.begin() + first, expected.begin() + first + n);
        REQUIRE(torch_run<double>(from, c.name, first, n) == wanted);
        const auto narrow = torch_run<float>(from, c.name, first, n);
        REQUIRE(std::vector<double>(narrow.begin(), narrow.end()) == wanted);
      }
    CHECK_THROWS_WITH(torch_run<float>(from, c.name, 1, count), Contains("has " + std::to_string(count) + " elements"));
    CHECK_THROWS_WITH(torch_run<int>(from, c.name, 0, 1), Contains("do not convert to I32"));
  }
  CHECK_THROWS_WITH(from.tensor("none"), Contains("has no tensor 'none'"));
}

// Bytes of a pickle of a list of these opcodes.
std::string torch_pickle(std::string_view body) {
  return "\x80\x02" + std::string(body) + ".";
}

}  // namespace

TEST_CASE("what torch.distributed.checkpoint wrote from four ranks reads back", "[io][torch]") {
  SECTION("pickles and archives") {
    const io::torch_folder from(torch_goldens / "stored");
    check_torch_folder(from);
    CHECK(from.others() == std::vector<std::string>{"param_groups.0.lr"});
    CHECK(torch_run<float>(from, "step", 0, 1) == std::vector<float>{3});
    CHECK(from.tensor("step").shape().empty());
    CHECK(from.names().size() == 6);
  }
  SECTION("safetensors of each rank") {
    const io::torch_folder from(torch_goldens / "shards");
    check_torch_folder(from);
    CHECK(from.names().size() == 5);
    CHECK(io::torch_folder::is_one(torch_goldens / "shards"));
  }
}

TEST_CASE("damaged folders of PyTorch are refused by name", "[io][torch]") {
  const scratch_folder at("torch-damaged");
  const auto fresh = [&](const char* kind) {
    std::filesystem::remove_all(at / "f");
    std::filesystem::copy(torch_goldens / kind, at / "f");
    return at / "f";
  };
  {
    const auto folder = fresh("stored");
    std::filesystem::remove(folder / "__2_0.distcp");
    const io::torch_folder from(folder);
    CHECK_THROWS_AS(torch_run<float>(from, "layer.weight", 0, 54), hd::io_error);
  }
  {
    const auto folder = fresh("stored");
    std::filesystem::resize_file(folder / "__3_0.distcp", 4000);
    const io::torch_folder from(folder);
    CHECK_THROWS_WITH(torch_run<float>(from, "cube", 0, 60), Contains("no archive of torch.save"));
  }
  {
    const auto folder = fresh("shards");
    std::filesystem::remove(folder / "shard-00004-model-00001-of-00001.safetensors");
    CHECK_THROWS_AS(io::torch_folder(folder), hd::io_error);
  }
  {  // a file of a number that no rank has
    const auto folder = fresh("shards");
    for (int rank = 1; rank <= 4; ++rank) {
      const std::string name = "shard-0000" + std::to_string(rank) + "-model-0000";
      std::filesystem::rename(folder / (name + "1-of-00001.safetensors"),
                              folder / (name + (rank < 3 ? "1" : "3") + "-of-00003.safetensors"));
    }
    CHECK_THROWS_WITH(io::torch_folder(folder),
                      Contains("has 2 of the 3 files 'model-") && Contains("number 2 is missing"));
  }
  {  // a tensor that was asked for before
    const auto folder = fresh("shards");
    const io::torch_folder from(folder);
    REQUIRE(torch_run<float>(from, "plain", 0, 6).size() == 6);
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      std::filesystem::last_write_time(entry.path(),
                                       std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    CHECK_THROWS_WITH(from.tensor("plain"), Contains("written to while it was read"));
  }
  {  // an archive of another type than .metadata says, and types that are not read
    const auto folder = fresh("stored");
    const auto retype = [&](const char* file, std::string_view of, std::string_view to) {
      std::string text = get(folder / file);
      const auto k = text.find(of);
      REQUIRE(k != text.npos);
      put(folder / file, text.replace(k, of.size(), to));
    };
    retype("__0_0.distcp", "FloatStorage", "ShortStorage");  // as long
    CHECK_THROWS_WITH(torch_run<float>(io::torch_folder(folder), "layer.weight", 0, 1),
                      Contains("elements of torch ShortStorage (I16), F32 in .metadata"));
    retype(".metadata",
           "\x07"
           "float64",
           "\x09"
           "complex64");
    const io::torch_folder from(folder);
    CHECK(from.others() == std::vector<std::string>{"optim.state.layer.weight.exp_avg", "param_groups.0.lr"});
    CHECK(torch_run<float>(from, "plain", 0, 6).size() == 6);
    CHECK_THROWS_WITH(from.tensor("optim.state.layer.weight.exp_avg"), Contains("of a type that is not read"));
  }
  CHECK_THROWS_WITH(io::torch_folder(at / "nothing"), Contains("cannot read the folder"));
  std::filesystem::create_directories(at / "empty");
  CHECK_THROWS_WITH(io::torch_folder(at / "empty"), Contains("neither a .metadata nor a file of safetensors"));
}

TEST_CASE("pickles name nothing but records of checkpoints", "[io][torch]") {
  const auto message = [](const std::string& text) {
    return message_of<hd::io_error>([&] { static_cast<void>(io::parse_torch_metadata(torch_bytes(text), "'m'")); });
  };
  CHECK_THAT(message(torch_pickle("cos\nsystem\n(X\x04\0\0\0exittR")), Contains("it names os.system"));
  CHECK_THAT(message(torch_pickle("cbuiltins\neval\n)R")), Contains("offset 2: it names builtins.eval"));
  CHECK_THAT(message(torch_pickle("N")),
             Contains("expected an object of torch.distributed.checkpoint.metadata Metadata, got None"));
  CHECK_THAT(message(""), Contains("the pickle has no end"));
  CHECK_THAT(message(torch_pickle("(((")), Contains("the pickle ends with 3 values"));
  CHECK_THAT(message(torch_pickle("ccollections\nOrderedDict\n)R(K\x01K\x02u")), Contains("expected an object of"));
  CHECK_THAT(message(torch_pickle("ccollections\nOrderedDict\n)R(K\x01u")), Contains("a key without a value"));
  CHECK_THAT(message(torch_pickle("h\x07")), Contains("memo 7 of 0"));
  CHECK_THAT(message(torch_pickle("N") + "x"), Contains("1 bytes behind the end"));
  CHECK_THAT(message(torch_pickle("P7\n")), Contains("the opcode 80 is not read"));
  CHECK_THAT(message(std::string(1 << 20, ')')), Contains("more records than a pickle of 1048576 bytes"));
}

TEST_CASE("ten thousand changed metadata files are errors or records", "[io][torch]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string good = get(torch_goldens / "stored/.metadata");
  const io::torch_metadata whole = io::parse_torch_metadata(torch_bytes(good), "'m'");
  REQUIRE(whole.tensors.size() == 6);
  int refused = 0;
  for (int n = 0; n < 10000; ++n) {
    std::string text = good;
    const auto below = [&](std::size_t most) { return static_cast<std::size_t>(random() % most); };
    for (std::size_t k = below(3) + 1; k-- > 0;) switch (below(4)) {
        case 0:
          text[below(text.size())] = static_cast<char>(random());
          break;
        case 1:
          text.resize(below(text.size()) + 1);
          break;
        case 2:
          text.erase(below(text.size()), below(8));
          if (text.empty()) text = "N";
          break;
        default: {
          const std::size_t from = below(text.size());
          text.insert(below(text.size()), text.substr(from, below(64)));
        }
      }
    try {
      const io::torch_metadata found = io::parse_torch_metadata(torch_bytes(text), "'m'");
      std::size_t chunks = 0;
      for (const auto& t : found.tensors) chunks += t.chunks.size();
      REQUIRE(chunks < text.size());
    } catch (const hd::io_error&) {
      ++refused;
    }
  }
  CHECK(refused > 5000);
}

TEST_CASE("changed archives of tensors are errors or places in their file", "[io][torch]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const scratch_folder at("torch-archives");
  const std::string good = get(torch_goldens / "stored/__0_0.distcp");
  const auto place = [&](const std::string& text) {
    put(at / "t", text);
    const io::input_file file(at / "t");
    return io::detail::position_of_stored(file, 0, file.size(), {5, 3}, *io::find_safetensors_dtype("F32"), "'t'");
  };
  REQUIRE(place(good) > 0);
  int refused = 0;
  for (int n = 0; n < 2000; ++n) {
    std::string text = good;
    for (std::size_t k = random() % 3 + 1; k-- > 0;)
      if (random() % 3 != 0)
        text[random() % text.size()] = static_cast<char>(random());
      else
        text.resize(random() % text.size() + 1);
    try {
      const std::int64_t begin = place(text);
      REQUIRE((begin >= 0 && begin + 60 <= static_cast<std::int64_t>(text.size())));
    } catch (const hd::io_error&) {
      ++refused;
    }
  }
  CHECK(refused > 200);
}

TEST_CASE("the table of a pickle stays below four times its bytes", "[io][torch]") {
  const std::string text = get(torch_goldens / "stored/.metadata");
  const io::pickle real(torch_bytes(text), io::detail::torch_metadata_reader::allowed(), "'m'");
  CHECK(real.table_bytes() <= 4 * static_cast<std::int64_t>(text.size()));
  std::string many = "\x80\x04]";
  for (int i = 0; i < 20000; ++i)
    many +=
        "K\x03K\x04K\x05\x87\x94"
        "a";
  many += ".";
  const io::pickle p(torch_bytes(many), {}, "'m'");
  CHECK(p.items(p.root()).size() == 20000);
  CHECK(p.table_bytes() <= 4 * static_cast<std::int64_t>(many.size()) + 16384);
}
#endif
