// Safetensors: files of the reference package, what is written is what it writes, and everything malformed is an error that says where.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/core/random.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {

const fs::path golden = HEDDLE_SOURCE_DIR "/tests/golden/safetensors";

std::string length_of(std::uint64_t n) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(n >> (8 * i) & 0xff);
  return text;
}
// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data) {
  return length_of(header.size()) + header + std::string(data, '\1');
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}
// What a reader of these bytes says; empty if it takes them.
std::string refusal(const std::string& file) {
  const scratch_folder folder("safetensors");
  put(folder / "x.safetensors", file);
  const std::string text = message_of<heddle::io_error>([&] { io::safetensors_file{folder / "x.safetensors"}; });
  if (text.empty()) return text;
  CHECK(text.rfind("heddle: ", 0) == 0);
  CHECK(text.find("x.safetensors'") != std::string::npos);
  return text;
}

template <class T>
std::vector<T> all_of(const io::safetensors_file& file, const std::string& name) {
  const auto t = file.tensor(name);
  std::vector<T> out(static_cast<std::size_t>(t.entry().count()));
  t.read(0, std::span<T>(out));
  return out;
}

// The file's tensors as outputs; `data` holds their bytes.
std::vector<io::safetensors_output> outputs_of(const io::safetensors_file& file,
                                               std::vector<std::vector<std::byte>>& data) {
  std::vector<io::safetensors_output> out;
  for (const io::safetensors_entry& e : file.tensors())
    out.push_back({e.name, std::string(e.dtype.name), e.shape, data.emplace_back(file.tensor(e.name).bytes())});
  return out;
}

template <class T>
void check_converted(const io::safetensors_file& file, const std::string& name) {
  CAPTURE(name);
  const auto expected = all_of<float>(file, name + ".f32");
  const auto got = all_of<float>(file, name);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i, got[i], expected[i]);
    CHECK(((std::isnan(got[i]) && std::isnan(expected[i])) || std::memcmp(&got[i], &expected[i], 4) == 0));
  }
}

}  // namespace

TEST_CASE("a file of the reference package reads, with every element type", "[io][safetensors]") {
  const io::safetensors_file file(golden / "types.safetensors");
  CHECK(file.tensors().size() == 22);
  CHECK(file.header().metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
  CHECK(file.tensors().front().name == "t.uint64");
  CHECK(file.tensor("scalar").shape().empty());
  CHECK(file.tensor("scalar").entry().count() == 1);
  CHECK(file.tensor("none").entry().bytes() == 0);
  CHECK(all_of<float>(file, "none").empty());
  CHECK(file.contains("quoted \"\\\n\u00e9\x01"));
  CHECK(all_of<std::uint8_t>(file, "t.uint8") == std::vector<std::uint8_t>{7, 8});
  CHECK(all_of<std::uint8_t>(file, "t.bool") == std::vector<std::uint8_t>{0, 1});
  CHECK(all_of<std::int64_t>(file, "t.int64")[0] == 0x0605040302010077);
}

TEST_CASE("what is written has the bytes of the reference package", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  for (const char* name : {"types.safetensors", "conversions.safetensors", "sharded/model-00001-of-00002.safetensors",
                           "../models/gpt2/model.safetensors", "../models/llama3/model-00001-of-00004.safetensors"}) {
    CAPTURE(name);
    const io::safetensors_file file(golden / name);
    std::vector<std::vector<std::byte>> data;
    auto tensors = outputs_of(file, data);
    std::reverse(tensors.begin(), tensors.end());  // the reference's order comes back by itself
    io::write_safetensors(folder / "x.safetensors", tensors, {.metadata = file.header().metadata});
    CHECK(get(folder / "x.safetensors") == get(golden / name));
  }
}

TEST_CASE("truth values are 0 and 1, whatever bytes a file has for them", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  std::vector<std::byte> bytes(40000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 256);
  const std::vector<io::safetensors_output> tensors{{"t", "BOOL", {40000}, bytes}};
  io::write_safetensors(folder / "x", tensors);
  const io::safetensors_file file(folder / "x");
  for (const std::size_t count : {std::size_t{300}, bytes.size()}) {
    std::vector<std::uint8_t> out(count);
    file.tensor("t").read(0, std::span<std::uint8_t>(out));
    const auto flags = std::make_unique<bool[]>(count);
    file.tensor("t").read(0, std::span<bool>(flags.get(), count));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += out[i] != (i % 256 != 0 ? 1 : 0) || flags[i] != (i % 256 != 0);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a header of the specification, byte by byte", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const std::vector<float> a{1, 2};
  const std::vector<heddle::f16> b{heddle::f16(1), heddle::f16(2), heddle::f16(3)};
  const std::vector<io::safetensors_output> tensors{io::safetensors_of("a", {2}, std::span<const float>(a)),
                                                    io::safetensors_of("b", {1, 3}, std::span<const heddle::f16>(b))};
  io::write_safetensors(folder / "x", tensors);
  const std::string text = get(folder / "x");
  CHECK(text.size() == 134);
  CHECK(text.substr(0, 14) == std::string("\x70\0\0\0\0\0\0\0{\"a\":{", 14));
}

TEST_CASE("elements convert as torch converts them", "[io][safetensors]") {
  const io::safetensors_file file(golden / "conversions.safetensors");
  for (const char* name : {"e4m3", "e5m2", "x", "f16", "bf16"}) check_converted<float>(file, name);
  // From 64 bits to 16 in one rounding: torch's halves are those of the floats, and differ from these where floats are ties.
  const auto exact = all_of<double>(file, "x");
  const auto halves = all_of<heddle::f16>(file, "x");
  const auto brains = all_of<heddle::bf16>(file, "x");
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i, exact[i]);
    const auto nearest = [&](auto got) {
      using H = decltype(got);
      if (std::isinf(static_cast<float>(got)))
        return std::fabs(exact[i]) > static_cast<double>(static_cast<float>((std::numeric_limits<H>::max)()));
      const double error = std::fabs(static_cast<double>(static_cast<float>(got)) - exact[i]);
      for (const int step : {-1, 1}) {
        const auto bits = static_cast<std::uint16_t>(got.bits + step);
        if ((bits & 0x7fff) == 0x7fff || ((bits ^ got.bits) & 0x8000) != 0) continue;
        const auto next = static_cast<float>(H::from_bits(bits));
        if (std::isfinite(next) && std::fabs(static_cast<double>(next) - exact[i]) < error) return false;
      }
      return true;
    };
    CHECK(nearest(halves[i]));
    CHECK(nearest(brains[i]));
  }
  CHECK(heddle::converted<heddle::bf16>(1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)).bits == 0x3f81);
  CHECK(heddle::converted<heddle::bf16>(1 + std::ldexp(1.0, -8)).bits == 0x3f80);
  CHECK(heddle::converted<heddle::f16>(65519.999999).bits == 0x7bff);
  CHECK(heddle::converted<heddle::f16>(65520.0).bits == 0x7c00);
}

TEST_CASE("reads out of bounds and of other types are refused", "[io][safetensors]") {
  const io::safetensors_file file(golden / "types.safetensors");
  std::vector<float> two(2), three(3);
  std::vector<std::int32_t> ints(2);
  const auto t = file.tensor("t.float32");
  CHECK_THROWS_WITH(t.read(0, std::span<float>(three)),
                    Catch::Contains("tensor 't.float32' has 2 elements, not 3 from 0 on"));
  CHECK_THROWS_WITH(t.read(1, std::span<float>(two)), Catch::Contains("2 from 1 on"));
  CHECK_THROWS_WITH(t.read(-1, std::span<float>(two)), Catch::Contains("2 from -1 on"));
  CHECK_THROWS_WITH(t.read((std::numeric_limits<std::int64_t>::max)(), std::span<float>(two)),
                    Catch::Contains("not 2"));
  CHECK_THROWS_WITH(t.read(0, std::span<std::int32_t>(ints)), Catch::Contains("elements of F32 do not convert to I32"));
  CHECK_THROWS_WITH(file.tensor("t.int32").read(0, std::span<float>(two)),
                    Catch::Contains("I32 do not convert to F32"));
  CHECK_THROWS_WITH(file.tensor("t.complex64").read(0, std::span<float>(two)), Catch::Contains("C64"));
  CHECK_THROWS_WITH(file.tensor("other"), Catch::Contains("has no tensor 'other', but 22 others"));
  CHECK(file.bytes_read() == 0);
  t.read(0, std::span<float>(two));
  CHECK(file.bytes_read() == 8);
}

TEST_CASE("malformed files are refused, and say where", "[io][safetensors]") {
  struct damage {
    const char* what;
    std::string file;
    const char* says;
  };
  const auto one = [](const std::string& entry, std::size_t data = 8) {
    return file_of("{\"a\":{" + entry + "}}", data);
  };
  const std::string usual = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string b = R"("b":{"dtype":"U8","shape":[4],"data_offsets":)";
  REQUIRE(refusal(one(usual)).empty());
  REQUIRE(refusal(file_of("{}", 0)).empty());
  REQUIRE(refusal(file_of("{}      ", 0)).empty());
  const std::vector<damage> table{
      {"empty", "", "offset 0: a safetensors file begins with 8 bytes of header length, the file has 0"},
      {"7 bytes", "1234567", "the file has 7"},
      {"no header", length_of(0), "offset 8: the header should begin with '{'"},
      {"header too long for the file", length_of(100) + "{}",
       "a header of 100 bytes in a file of 10: the file is cut off"},
      {"greater than the limit", length_of(100000001) + std::string(100, ' '), "at most 100000000 are read"},
      {"all bits set", std::string(8, '\xff') + "{}", "a header of 18446744073709551615 bytes"},
      {"a space first", file_of(" {}", 0), "should begin with '{'"},
      {"an array", file_of("[]", 0), "should begin with '{'"},
      {"cut off JSON", file_of("{\"a\":{", 0), "offset 14: the header is no JSON"},
      {"garbage behind", file_of("{} x", 0), "offset 11: the header is no JSON"},
      {"zero byte", file_of(std::string("{}\0 ", 4), 0), "offset 10: a zero byte in the header"},
      {"no UTF-8", file_of("{\"\xff\":{" + usual + "}}", 8), "is no JSON"},
      {"a tensor that is a number", file_of("{\"a\":7}", 0), "tensor 'a': expected an object, got 7"},
      {"a tensor that is an array", file_of("{\"a\":[]}", 0), "tensor 'a': expected an object, got an array"},
      {"name twice", file_of("{\"a\":{" + usual + "},\"a\":{" + usual + "}}", 8), "the tensor 'a' comes twice"},
      {"key twice", one("\"dtype\":\"F32\"," + usual), "tensor 'a': the key 'dtype' comes twice"},
      {"unknown key", one(usual + ",\"more\":1"), "unknown key 'more'"},
      {"no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), "tensor 'a': it has no dtype"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), "it has no shape"},
      {"no offsets", one(R"("dtype":"F32","shape":[2])"), "it has no data_offsets"},
      {"unknown dtype", one(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), "unknown dtype 'F33'"},
      {"dtype in small letters", one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), "unknown dtype 'f32'"},
      {"dtype that is a number", one(R"("dtype":5,"shape":[2],"data_offsets":[0,8])"),
       "its dtype should be a text, got 5"},
      {"negative extent", one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
       "its shape should be numbers of 0 or more, got -2"},
      {"fraction", one(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"),
       "should be numbers of 0 or more, got 2.5"},
      {"extent beyond 64 bits", one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"),
       "got 99999999999999999999"},
      {"extent beyond 63 bits", one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"),
       "more than 63 bits count"},
      {"nested shape", one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"),
       "its shape should be numbers of 0 or more, got an array"},
      {"shape of texts", one(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), "got the text '2'"},
      {"shape null", one(R"("dtype":"F32","shape":null,"data_offsets":[0,8])"), "an array of numbers, got null"},
      {"product overflows", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       "more bytes than 64 bits count"},
      {"bytes overflow", one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,8])"),
       "more bytes than 64 bits count"},
      {"product overflows before a zero",
       one(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])", 0),
       "more bytes than 64 bits count"},
      {"half a byte", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2), "ends inside a byte"},
      {"one offset", one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"),
       "data_offsets should be two numbers, got 1"},
      {"three offsets", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"),
       "data_offsets should be two numbers, got more"},
      {"backwards", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
       "tensor 'a', offset 8 of the data: it ends at 0, before it begins"},
      {"other size", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
       "F32 [3] has 12 bytes, its offsets say 8"},
      {"a hole at the start", one(R"("dtype":"U8","shape":[4],"data_offsets":[4,8])"),
       "nothing fills the bytes before it; it was expected at 0"},
      {"a hole between", file_of("{\"a\":{" + usual + "}," + b + "[9,13]}}", 13),
       "tensor 'b', offset 9 of the data: nothing fills the bytes before it; it was expected at 8"},
      {"overlap", file_of("{\"a\":{" + usual + "}," + b + "[6,10]}}", 10),
       "tensor 'b', offset 6 of the data: it overlaps the tensor before it, which ends at 8"},
      {"the same bytes twice", file_of("{\"a\":{" + usual + "},\"b\":{" + usual + "}}", 8), "overlaps"},
      {"cut off data", one(usual, 7), "it ends at 8, the file's data at 7: the file is cut off"},
      {"data behind", one(usual, 9), "1 bytes behind the last tensor"},
      {"data without tensors", file_of("{}", 3), "offset 10: 3 bytes behind the last tensor"},
      {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__: 'a' should be a text, got 1"},
      {"metadata of objects", file_of(R"({"__metadata__":{"a":{}}})", 0),
       "__metadata__: 'a' should be a text, got an object"},
      {"metadata twice", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "__metadata__: the key 'a' comes twice"},
      {"metadata that is a text", file_of(R"({"__metadata__":"x"})", 0),
       "__metadata__: expected an object, got the text 'x'"},
  };
  CHECK(table.size() >= 25);
  for (const damage& d : table) {
    CAPTURE(d.what);
    CHECK_THAT(refusal(d.file), Catch::Contains(d.says));
  }
}

TEST_CASE("errors are short and show no control characters, whatever a file holds", "[io][safetensors]") {
  const auto fine = [](const std::string& text) {
    CAPTURE(text);
    CHECK_FALSE(text.empty());
    CHECK(text.size() < 500);
    CHECK(std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }));
  };
  const std::string name = "a\\u001b[2J\\n\\u007f" + std::string(100000, 'n');
  std::string many = "[1";
  for (int i = 0; i < 100000; ++i) many += ",1";
  many += "]";
  const auto one = [&](const std::string& shape, const std::string& offsets, std::size_t data, const char* type) {
    return file_of(
        "{\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
        data);
  };
  for (const std::string& file :
       {one(many, "[0,8]", 8, "F32"), one("[1]", "[8,0]", 8, "F32"), one("[1]", "[4,8]", 8, "F32"),
        one("[1]", "[0,4]", 3, "F32"), one("[9223372036854775807," + many.substr(1), "[0,4]", 4, "F32"),
        one(many, "[0,1]", 1, "F4"), one(many, "[0,1]", 1, "F5")})
    fine(refusal(file));
  CHECK_THAT(refusal(one(many, "[0,8]", 8, "F32")), Catch::Contains("F32 [1,1,1,1,1,1,1,1,...] has 4 bytes"));
  const scratch_folder folder("safetensors");
  put(folder / "x", one("[1]", "[0,4]", 4, "F32"));
  const io::safetensors_file file(folder / "x");
  std::vector<float> two(2);
  std::vector<int> other(1);
  const auto tensor = file.tensor(file.tensors()[0].name);
  fine(tensor.where());
  fine(message_of<heddle::io_error>([&] { tensor.read(0, std::span<float>(two)); }));
  fine(message_of<heddle::io_error>([&] { tensor.read(0, std::span<int>(other)); }));
  const std::vector<std::byte> bytes(8);
  const std::vector<io::safetensors_output> wrong{
      {tensor.entry().name, "F32", std::vector<std::int64_t>(100000, 1), bytes}};
  fine(message_of<heddle::io_error>([&] { io::write_safetensors(folder / "y", wrong); }));
  const auto index = nlohmann::json{{"weight_map", {{tensor.entry().name, "a\nb"}}}};
  fine(message_of<heddle::io_error>([&] { io::parse_safetensors_index(index, "x"); }));
}

TEST_CASE("a file cut off anywhere, or with any byte of its header changed, is refused or the same in bounds",
          "[io][safetensors]") {
  const std::string file = get(golden / "types.safetensors");
  const scratch_folder folder("safetensors");
  for (std::size_t n = 0; n < file.size(); ++n)
    CHECK_THROWS_AS(io::parse_safetensors(bytes_of(file).first(n), "x"), heddle::io_error);
  for (std::size_t n = 0; n < 1544; n += 3)
    for (const int change : {1, 32}) {
      std::string changed = file;
      changed[n] = static_cast<char>(changed[n] ^ change);
      try {
        const auto h = io::parse_safetensors(bytes_of(changed), "x");
        for (const io::safetensors_entry& e : h.tensors) {
          CHECK(e.begin >= h.data_begin);
          CHECK(e.end <= static_cast<std::int64_t>(file.size()));
        }
      } catch (const heddle::io_error&) {
      }
    }
}

TEST_CASE("files that are no files, and files that change, are errors", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  CHECK_THROWS_AS(io::safetensors_file(folder / "none"), heddle::io_error);
  CHECK_THROWS_AS(io::safetensors_file(folder.path), heddle::io_error);
  CHECK_THROWS_WITH(io::safetensors_file("/dev/null"), Catch::Contains("no file with a size"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);  // nobody writes to it: waiting would never end
  CHECK_THROWS_WITH(io::safetensors_file(folder / "pipe"), Catch::Contains("pipe' is no file with a size"));
  fs::copy(golden / "conversions.safetensors", folder / "x");
  const io::safetensors_file file(folder / "x");
  fs::resize_file(folder / "x", 100);
  std::vector<double> out(4);
  CHECK_THROWS_WITH(file.tensor("x").read(0, std::span<double>(out)),
                    Catch::Contains("had 4856 bytes when it was opened, now 100"));
}

TEST_CASE("short runs of a file that is cut shorter or written again are errors, not signals", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const std::int64_t n = 300000;
  const std::vector<float> values(static_cast<std::size_t>(n), 1.5f);
  const std::vector<io::safetensors_output> tensors{io::safetensors_of("a", {n}, std::span<const float>(values)),
                                                    io::safetensors_of("b", {n}, std::span<const float>(values))};
  io::write_safetensors(folder / "x", tensors);
  std::vector<float> some(100);
  std::vector<double> wide(100);
  {
    const io::safetensors_file file(folder / "x");
    const auto a = file.tensor("a"), b = file.tensor("b");
    fs::resize_file(folder / "x", 4096);
    CHECK_THROWS_WITH(a.read(200000, std::span<float>(some)),
                      Catch::Contains("x', offset") && Catch::Contains("ends early"));
    CHECK_THROWS_WITH(b.read(0, std::span<double>(wide)), Catch::Contains("the file ends early"));
    CHECK_THROWS_WITH(b.bytes(), Catch::Contains("had 2400144 bytes when it was opened, now 4096"));
    CHECK_THROWS_AS(b.read(7, std::span<float>(some)), heddle::io_error);  // and again, after an error
  }
  // Of the same size, but another time: found when the tensor is asked for, and after a MiB of short runs.
  io::write_safetensors(folder / "x", tensors);
  const io::safetensors_file file(folder / "x");
  const auto a = file.tensor("a");
  fs::last_write_time(folder / "x", fs::last_write_time(folder / "x") + std::chrono::seconds(2));
  CHECK_THROWS_WITH(file.tensor("b"), Catch::Contains("another time of modification"));
  CHECK_THROWS_WITH(
      [&] {
        for (std::int64_t at = 0; at + 100 <= n; at += 100) a.read(at, std::span<float>(some));
      }(),
      Catch::Contains("it was written to while it was read"));
  CHECK(file.bytes_read() == 400 * 2622);  // the run that passes 1 MiB
}

TEST_CASE("runs in any order, and of several threads from one tensor, are the elements of the file",
          "[io][safetensors]") {
  const std::uint64_t seed = 71;
  CAPTURE(seed);
  const scratch_folder folder("safetensors");
  const std::int64_t n = 50000;
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<std::int32_t>(i * 7));
  const std::vector<io::safetensors_output> tensors{
      io::safetensors_of("a", {n}, std::span<const std::int32_t>(values)),
      io::safetensors_of("b", {n}, std::span<const std::int32_t>(values))};
  io::write_safetensors(folder / "x", tensors);
  const io::safetensors_file file(folder / "x");
  const auto tensor = file.tensor("a");
  // Runs of up to 600 elements: behind each other, with small gaps, with large ones, and backwards.
  const auto wrong_of = [&](std::uint64_t stream, std::int64_t& asked) {
    const heddle::counter_random random(seed, stream);
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t m) { return static_cast<std::int64_t>(random.integer(draw++) % m); };
    std::int64_t wrong = 0, at = 0;
    for (int run = 0; run < 2000; ++run) {
      const std::int64_t count = 1 + below(600);
      const std::int64_t kind = below(8);
      at = kind == 0 ? below(static_cast<std::uint64_t>(n)) : kind < 4 ? at + below(900) : at;
      if (at + count > n) at = n - count;
      std::vector<std::int32_t> out(static_cast<std::size_t>(count));
      tensor.read(at, std::span<std::int32_t>(out));
      wrong += !std::equal(out.begin(), out.end(), values.begin() + at);
      at += count;
      asked += 4 * count;
    }
    return wrong;
  };
  std::array<std::int64_t, 4> wrong{}, asked{};
  CHECK(wrong_of(9, asked[0]) == 0);
  CHECK(file.bytes_read() == asked[0]);  // what was asked for, not what was read ahead
  {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) threads.emplace_back([&, t] { wrong[t] = wrong_of(t, asked[t]); });
    for (auto& t : threads) t.join();
  }
  CHECK(wrong == std::array<std::int64_t, 4>{});
  CHECK(file.bytes_read() == asked[0] + asked[1] + asked[2] + asked[3]);
}

TEST_CASE("long runs and short ones read the same elements", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const std::int64_t n = 60000;
  std::vector<float> values;
  std::vector<heddle::bf16> rounded;
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<float>(i) * 0.37f);
    rounded.push_back(heddle::bf16(values.back()));
  }
  const std::vector<io::safetensors_output> tensors{
      io::safetensors_of("f32", {n}, std::span<const float>(values)),
      io::safetensors_of("bf16", {n}, std::span<const heddle::bf16>(rounded))};
  io::write_safetensors(folder / "x", tensors);
  const io::safetensors_file file(folder / "x");
  const auto plain = file.tensor("f32"), half = file.tensor("bf16");
  for (const std::int64_t count : {1, 8191, 8192, 16383, 16384, 16385, 49152, 59983})
    for (const std::int64_t first : {0, 17}) {
      CAPTURE(count, first);
      std::vector<float> same(static_cast<std::size_t>(count)), wide(same.size());
      plain.read(first, std::span<float>(same));
      half.read(first, std::span<float>(wide));
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i), from = static_cast<std::size_t>(first + i);
        wrong += same[at] != values[from] || wide[at] != static_cast<float>(rounded[from]);
      }
      CHECK(wrong == 0);
    }
  // Cut shorter behind the back of a tensor that was found before.
  fs::resize_file(folder / "x", 200000);
  std::vector<float> all(static_cast<std::size_t>(n));
  CHECK_THROWS_WITH(plain.read(0, std::span<float>(all)), Catch::Contains("it was written to while it was read") ||
                                                              Catch::Contains("offset 200000: the file ends early"));
  CHECK_THROWS_AS(half.read(0, std::span<float>(all)), heddle::io_error);
}

TEST_CASE("random files come back as they were", "[io][safetensors]") {
  const std::uint64_t seed = 20240917;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 1);
  std::uint64_t at = 0;
  const auto below = [&](std::uint64_t n) { return random.integer(at++) % n; };
  const scratch_folder folder("safetensors");
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    std::vector<std::vector<std::byte>> data;
    std::vector<io::safetensors_output> tensors;
    const auto count = below(9);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto& dtype = io::safetensors_dtypes[below(io::safetensors_dtypes.size())];
      std::vector<std::int64_t> shape;
      for (std::uint64_t d = below(4); d > 0; --d) shape.push_back(static_cast<std::int64_t>(below(6)));
      if (dtype.bits < 8) shape.push_back(4);
      auto& bytes = data.emplace_back(static_cast<std::size_t>(io::detail::safetensors_bytes(dtype, shape)));
      for (std::byte& b : bytes) b = static_cast<std::byte>(below(256));
      std::string name = std::to_string(i);
      for (std::uint64_t c = below(5); c > 0; --c) name += static_cast<char>(1 + below(126));
      tensors.push_back({name, std::string(dtype.name), shape, bytes});
    }
    io::safetensors_options options;
    if (below(2) == 0) options.metadata = {{"z", "1\n\"\\\x7f"}, {"", ""}, {"a", "\u20ac"}};
    options.order = below(2) == 0 ? io::safetensors_order::given : io::safetensors_order::reference;
    fs::remove_all(folder / "model");
    const auto most = static_cast<std::int64_t>(1 + below(300));
    const int files = io::write_safetensors_folder(folder / "model", tensors, most, options);
    const io::safetensors_folder read(folder / "model");
    CHECK(static_cast<int>(read.files().size()) == files);
    CHECK(read.names().size() == tensors.size());
    for (const io::safetensors_output& t : tensors) {
      const auto got = read.tensor(t.name);
      CHECK(got.dtype() == t.dtype);
      CHECK(got.entry().shape == t.shape);
      const auto bytes = got.bytes();
      CHECK(std::equal(bytes.begin(), bytes.end(), t.bytes.begin(), t.bytes.end()));
    }
    for (const io::safetensors_file& f : read.files()) {
      CHECK(f.header().metadata == options.metadata);
      std::int64_t bytes = 0;
      for (const auto& e : f.tensors()) bytes += e.bytes();
      CHECK((bytes <= most || f.tensors().size() == 1 || files == 1));
      std::vector<std::vector<std::byte>> copies;
      io::write_safetensors(folder / "again", outputs_of(f, copies), options);
      if (options.order == io::safetensors_order::reference) CHECK(get(folder / "again") == get(f.path()));
    }
  }
}

TEST_CASE("a folder of files with an index", "[io][safetensors]") {
  const io::safetensors_folder read(golden / "sharded");
  CHECK(read.names() == std::vector<std::string>{"a", "b"});
  std::vector<float> two(2);
  read.tensor("a").read(3, std::span<float>(two));
  CHECK(two == std::vector<float>{3, 4});
  CHECK(read.bytes_read() == 8);
  CHECK(read.files()[1].bytes_read() == 0);
  CHECK(io::safetensors_folder(golden / "types.safetensors").contains("scalar"));

  // Written again from the same tensors: the same files and the same index.
  const scratch_folder folder("safetensors");
  std::vector<io::safetensors_output> tensors;
  std::vector<std::vector<std::byte>> data;
  for (const auto& f : read.files())
    for (const auto& t : outputs_of(f, data)) tensors.push_back(t);
  CHECK(io::write_safetensors_folder(folder / "m", tensors, 60, {.metadata = {{"format", "pt"}}}) == 2);
  for (const auto& e : fs::directory_iterator(golden / "sharded"))
    CHECK(get(folder / "m" / e.path().filename()) == get(e.path()));
  CHECK_THROWS_WITH(io::write_safetensors_folder(folder / "m", tensors), Catch::Contains("is there already"));
}

TEST_CASE("matrices in 8 bits: numbers times the scales of their blocks, in every type, from any thread",
          "[io][safetensors][float8]") {
  const std::uint64_t seed = 8128;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 1);
  std::uint64_t at = 0;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.integer(at++) % n); };
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const scratch_folder folder("safetensors");
    const std::int64_t rows = 1 + below(40),
                       columns = 1 + below(round == 0 ? 40000 : 300);  // longer than what is read at once
    const heddle::scale_blocks blocks{1 + below(50), 1 + below(round == 1 ? 1000 : 200)};
    const std::int64_t down = (rows + blocks.rows - 1) / blocks.rows;
    const std::int64_t across = (columns + blocks.columns - 1) / blocks.columns;
    CAPTURE(rows, columns, blocks.rows, blocks.columns);
    std::vector<std::byte> codes(static_cast<std::size_t>(rows * columns));
    std::vector<float> scales;
    for (std::byte& c : codes) c = static_cast<std::byte>(below(127) + 128 * below(2));
    for (std::int64_t i = 0; i < down * across; ++i)
      scales.push_back(static_cast<float>((random.uniform(at++) - 0.25) * 1e-3));
    const std::vector<io::safetensors_output> tensors{
        {"w", "F8_E4M3", {rows, columns}, codes},
        io::safetensors_of("w_scale_inv", {down, across}, std::span<const float>(scales))};
    io::write_safetensors_folder(folder / "m", tensors, 1);  // a file each
    const io::safetensors_folder read(folder / "m", blocks);
    // By the definition of E4M3, in double, where the product is exact.
    const auto exact = [&](std::int64_t i) {
      const auto code = std::to_integer<int>(codes[static_cast<std::size_t>(i)]);
      const int e = code >> 3 & 15, m = code & 7;
      const double size = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
      const std::int64_t block = i / columns / blocks.rows * across + i % columns / blocks.columns;
      return (code >= 128 ? -size : size) * static_cast<double>(scales[static_cast<std::size_t>(block)]);
    };
    const auto shared = read.tensor("w");
    std::array<std::int64_t, 3> wrong{};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        const heddle::counter_random mine(seed, 2 + t);
        for (std::uint64_t k = 0; k < 10; ++k) {
          const auto first =
              static_cast<std::int64_t>(mine.integer(2 * k) % static_cast<std::uint64_t>(rows * columns));
          const auto left = static_cast<std::uint64_t>(rows * columns - first + 1);
          const auto n = static_cast<std::size_t>(mine.integer(2 * k + 1) % left);
          const auto compare = [&](auto zero, auto&& nearest) {
            std::vector<decltype(zero)> out(n);
            shared.read(first, std::span(out));
            for (std::size_t i = 0; i < n; ++i)
              wrong[t] += out[i] != nearest(exact(first + static_cast<std::int64_t>(i)));
          };
          if (t == 0) compare(0.0f, [](double x) { return static_cast<float>(x); });
          if (t == 1) compare(0.0, [](double x) { return x; });
          // Rounded once: the float between is odd where it is not exact.
          if (t == 2)
            compare(heddle::bf16(0.0f), [](double x) { return heddle::bf16(heddle::detail::rounded_to_odd(x)); });
        }
      });
    for (auto& t : threads) t.join();
    CHECK(wrong == std::array<std::int64_t, 3>{});
    // In order, each scale once, by whoever reads.
    const io::safetensors_reader one(read);
    std::vector<float> row(static_cast<std::size_t>(columns));
    const auto part = one.tensor("w");
    for (std::int64_t i = 0; i < rows; ++i) part.read(i * columns, std::span(row));
    CHECK(one.bytes_read() == rows * columns + 4 * down * across);
    // Of the last column the scales of its blocks alone.
    const io::safetensors_reader two(read);
    const auto column = two.tensor("w");
    for (std::int64_t i = 1; i <= rows; ++i) column.read(i * columns - 1, std::span(row).first(1));
    CHECK(two.bytes_read() == rows + 4 * down);
  }
}

TEST_CASE("matrices in 8 bits without their scales, or with others, are errors", "[io][safetensors][float8]") {
  std::vector<std::byte> codes(15, std::byte{0x38});
  std::vector<float> scales{1, 2};
  const auto error_of = [&](heddle::scale_blocks blocks, std::vector<std::int64_t> shape,
                            const std::string& scales_name, std::vector<std::int64_t> scales_shape,
                            const char* type = "F8_E4M3") {
    const scratch_folder folder("safetensors");
    const std::vector<io::safetensors_output> tensors{
        {"w", type, shape, codes}, io::safetensors_of(scales_name, scales_shape, std::span<const float>(scales))};
    io::write_safetensors_folder(folder / "m", tensors);
    return message_of<heddle::error>([&] {
      const io::safetensors_folder read(folder / "m", blocks);
      std::vector<float> out(15);
      read.tensor("w").read(0, std::span<float>(out));
      CHECK(out[14] == scales.back());
    });
  };
  using Catch::Contains;
  CHECK(error_of({2, 5}, {3, 5}, "w_scale_inv", {2, 1}).empty());
  CHECK(error_of({2, 5}, {3, 5}, "w_scale", {2, 1}).empty());
  CHECK_THAT(error_of({2, 5}, {3, 5}, "w_scales", {2, 1}),
             Contains("tensor 'w' is in 8 bits, and its scales 'w_scale_inv' are missing"));
  CHECK_THAT(
      error_of({2, 5}, {3, 5}, "w_scale_inv", {1, 2}),
      Contains(
          "tensor 'w_scale_inv': the scales of blocks of 2 x 5 elements of a matrix of shape [3,5] should have the "
          "shape [2,1], they have [1,2]"));
  CHECK_THAT(error_of({2, 5}, {15}, "w_scale_inv", {2, 1}), Contains("should be a matrix, it has the shape [15]"));
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, heddle::scale_blocks::most + 1}) {
    CHECK_THAT(error_of({size, 5}, {3, 5}, "w_scale_inv", {2, 1}),
               Contains("should have 1 to 1048576 rows and columns, got " + std::to_string(size) + " and 5"));
    CHECK_THAT(error_of({5, size}, {3, 5}, "w_scale_inv", {2, 1}), Contains("got 5 and " + std::to_string(size)));
  }
  codes[13] = std::byte{0xff};
  CHECK_THAT(error_of({2, 5}, {3, 5}, "w_scale_inv", {2, 1}), Contains("tensor 'w': row 2, column 3 is NaN"));
  codes[13] = std::byte{0x38};
  scales[1] = INFINITY;
  CHECK_THAT(error_of({2, 5}, {3, 5}, "w_scale_inv", {2, 1}),
             Contains("tensor 'w_scale_inv': row 1, column 0: a scale should be finite, got inf"));
  scales[1] = 2;

  const scratch_folder folder("safetensors");
  const std::vector<io::safetensors_output> tensors{
      {"alone", "F8_E4M3", {3, 5}, codes},
      io::safetensors_of("other_scale_inv", {2, 1}, std::span<const float>(scales)),
      {"w", "F8_E4M3", {3, 5}, codes},
      io::safetensors_of("w_scale_inv", {2, 1}, std::span<const float>(scales)),
      {"x", "F8_E4M3", {0, 5}, {}},
      {"x_scale_inv", "F8_E4M3", {0, 1}, {}},
  };
  io::write_safetensors_folder(folder / "m", tensors);
  const io::safetensors_folder plain(folder / "m"), scaled(folder / "m", heddle::scale_blocks{2, 5});
  // Nobody takes the codes for numbers where the file has scales for them.
  std::vector<float> out(15);
  CHECK_THROWS_WITH(
      plain.tensor("w").read(0, std::span<float>(out)),
      Contains("tensor 'w' has scales beside it, 'w_scale_inv': open the folder with the size of their blocks"));
  plain.tensor("alone").read(0, std::span<float>(out));
  CHECK(out == std::vector<float>(15, 1.0f));
  CHECK_THROWS_WITH(scaled.tensor("x"),
                    Contains("tensor 'x_scale_inv': scales should be F32, BF16 or F16, they are F8_E4M3"));
  std::vector<std::uint8_t> bytes(15);
  CHECK_THROWS_WITH(scaled.tensor("w").read(0, std::span(bytes)), Contains("elements of F8_E4M3 do not convert to U8"));
  for (const char* name : {"alone", "other_scale_inv", "w", "_scale_inv", "scale_inv", ""})
    CHECK_FALSE(scaled.is_scales(name));
  CHECK(scaled.is_scales("w_scale_inv"));
  CHECK_FALSE(plain.is_scales("w_scale_inv"));
}

TEST_CASE("readers of a folder share its descriptors, and each counts its own bytes", "[io][safetensors]") {
  const auto descriptors = [] {
    const fs::directory_iterator all("/proc/self/fd");
    return std::distance(fs::begin(all), fs::end(all));
  };
  const scratch_folder folder("safetensors");
  const std::vector<float> values{1, 2, 3, 4};
  std::vector<io::safetensors_output> tensors;
  for (int i = 0; i < 40; ++i)
    tensors.push_back(io::safetensors_of("t" + std::to_string(i), {4}, std::span<const float>(values)));
  REQUIRE(io::write_safetensors_folder(folder / "m", tensors, 16) == 40);
  const auto before = descriptors();
  {
    const io::safetensors_folder read(folder / "m");
    const io::safetensors_reader one(read), two(read);
    CHECK_FALSE(one.contains("t40"));
    std::vector<float> out(3);
    for (const auto& t : tensors) one.tensor(t.name).read(1, std::span<float>(out));
    CHECK(out == std::vector<float>{2, 3, 4});
    std::array<std::int64_t, 3> counted{};
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < 3; ++n)
      threads.emplace_back([&, n] {
        const io::safetensors_reader mine(read);
        std::vector<float> some(n + 1);
        for (const auto& t : tensors) mine.tensor(t.name).read(0, std::span<float>(some));
        counted[n] = mine.bytes_read();
      });
    for (auto& t : threads) t.join();
    CHECK(counted == std::array<std::int64_t, 3>{160, 320, 480});
    CHECK(one.bytes_read() == 480);
    CHECK(two.bytes_read() == 0);
    CHECK(read.bytes_read() == 480 + 160 + 320 + 480);
    CHECK(descriptors() == before + 40);
  }
  CHECK(descriptors() == before);
}

TEST_CASE("folders that lie are refused", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const auto open = [&] { return message_of<heddle::io_error>([&] { io::safetensors_folder{folder.path}; }); };
  const fs::path index = folder / "model.safetensors.index.json";
  CHECK_THAT(open(), Catch::Contains("has neither model.safetensors nor"));
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    fs::copy(golden / "sharded" / name, folder / name);
  const auto map = [&](const std::string& entries) {
    put(index, "{\"metadata\":{},\"weight_map\":{" + entries + "}}");
    return open();
  };
  const std::string a = R"("a":"model-00001-of-00002.safetensors")", b = R"("b":"model-00002-of-00002.safetensors")";
  CHECK(map(a + "," + b).empty());
  CHECK_THAT(map(a + "," + b + R"(,"c":"model-00003.safetensors")"),
             Catch::Contains("tensor 'c': the file 'model-00003.safetensors' is not there"));
  CHECK_THAT(map(a + "," + b + R"(,"c":"model-00001-of-00002.safetensors")"),
             Catch::Contains("tensor 'c': the file 'model-00001-of-00002.safetensors' has no such tensor"));
  CHECK_THAT(map(a + R"(,"b":"model-00001-of-00002.safetensors")"),
             Catch::Contains("tensor 'b': the file 'model-00001-of-00002.safetensors' has no such tensor"));
  CHECK_THAT(map(a + "," + a), Catch::Contains("the name 'a' comes twice"));
  CHECK_THAT(map(R"("a":5)"), Catch::Contains("tensor 'a': expected the name of a file"));
  for (const char* path : {"../x", "/etc/passwd", "..", "", "a\\\\b"})
    CHECK_THAT(map(R"("a":")" + std::string(path) + "\""), Catch::Contains("is no name of a file in the same folder"));
  CHECK_THAT(map(""), Catch::Contains("names no tensor"));
  put(index, "{}");
  CHECK_THAT(open(), Catch::Contains("expected an object with a weight_map"));
  put(index, "[");
  CHECK_THAT(open(), Catch::Contains("offset 1: is no JSON"));
  put(index, std::string(40, '[') + std::string(40, ']'));
  CHECK_THAT(open(), Catch::Contains("more than 32 levels"));
  // A tensor in two files, and one that the index leaves out.
  put(folder / "model-00002-of-00002.safetensors", get(folder / "model-00001-of-00002.safetensors"));
  CHECK_THAT(map(a), Catch::Equals(""));
  CHECK_THAT(map(a + "," + b), Catch::Contains("tensor 'b': the file"));
  fs::remove(folder / "model-00002-of-00002.safetensors");
  fs::copy(golden / "types.safetensors", folder / "model-00002-of-00002.safetensors");
  CHECK_THAT(map(a + R"(,"scalar":"model-00002-of-00002.safetensors")"),
             Catch::Contains("the index says nothing of it"));
}

TEST_CASE("one file is the model, whatever an index beside it names", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  fs::copy(golden / "types.safetensors", folder / "model.safetensors");
  for (const char* index : {R"({"weight_map":{"a":"model-00001-of-00002.safetensors"}})", "[", ""}) {
    put(folder / "model.safetensors.index.json", index);
    const io::safetensors_folder read(folder.path);
    CHECK(read.files().size() == 1);
    CHECK(read.contains("scalar"));
    CHECK_FALSE(read.contains("a"));
  }
}

TEST_CASE("a folder without safetensors says what it has in their place, and what to do", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const auto error = [&] { return message_of<heddle::io_error>([&] { io::safetensors_folder{folder.path}; }); };
  CHECK_THAT(error(), Catch::EndsWith("has neither model.safetensors nor model.safetensors.index.json"));
  for (const char* name : {"config.json", "training_args.bin", "optimizer.pt", "tokenizer.json"})  // say nothing
    put(folder / name, "{}");
  CHECK_THAT(error(), Catch::EndsWith("has neither model.safetensors nor model.safetensors.index.json"));
  // Each beside those before it: the name that says more comes first.
  for (const auto& [name, says] : std::vector<std::pair<std::string, std::string>>{
           {"consolidated.00.pth", "which is not read: convert it to a folder of transformers, with safetensors"},
           {"model-q4.gguf", "which is not read: take the safetensors that it was made from"},
           {"model-00001-of-00002.safetensors", "several by their index"},
           {"model.fp16.safetensors.index.json", "an index is read under the name model.safetensors.index.json"},
           {"tf_model.h5",
            "which is not read: save the model as safetensors, by from_pretrained() and save_pretrained"},
           {"pytorch_model.bin.index.json", "which is not read: save the model as safetensors"},
           {"pytorch_model-00002-of-00002.bin", "which is not read: save the model as safetensors"},
           {"pytorch_model-00001-of-00002.bin", "which is not read: save the model as safetensors"},
           {"adapter_model.safetensors", "of an adapter, which is no model: merge it into its model"},
           {"adapter_config.json",
            "of an adapter, which is no model: merge it into its model, by merge_and_unload()"}}) {
    put(folder / name, "{}");
    CHECK_THAT(error(),
               Catch::Contains("model.safetensors.index.json; it has '" + name + "'") && Catch::Contains(says));
  }
}

TEST_CASE("what the format cannot hold is not written", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const std::vector<std::byte> eight(8);
  const auto write = [&](const io::safetensors_output& t, const io::safetensors_options& options = {}) {
    const std::vector<io::safetensors_output> one{t};
    const std::string text = message_of<heddle::io_error>([&] { io::write_safetensors(folder / "x", one, options); });
    CHECK(fs::is_empty(folder.path));
    return text;
  };
  CHECK_THAT(write({"a", "F32", {3}, eight}), Catch::Contains("tensor 'a': F32 [3] has 12 bytes, got 8"));
  CHECK_THAT(write({"a", "f32", {2}, eight}), Catch::Contains("unknown dtype 'f32'"));
  CHECK_THAT(write({"a", "F32", {-2}, eight}), Catch::Contains("an extent of -2"));
  CHECK_THAT(write({"__metadata__", "F32", {2}, eight}), Catch::Contains("keeps this name"));
  CHECK_THAT(write({"\xff", "F32", {2}, eight}), Catch::Contains("is no UTF-8"));
  CHECK_THAT(write({"a", "F32", {2}, eight}, {.metadata = {{"x", "1"}, {"x", "2"}}}),
             Catch::Contains("metadata 'x' comes twice"));
  const std::vector<io::safetensors_output> twice(2, {"a", "F32", {2}, eight});
  CHECK_THROWS_WITH(io::write_safetensors(folder / "x", twice), Catch::Contains("tensor 'a': it comes twice"));
  CHECK_THROWS_WITH(io::write_safetensors_folder(folder / "m", twice, 8),
                    Catch::Contains("tensor 'a': it comes twice"));
  CHECK(fs::is_empty(folder / "m"));
  // Nothing is written, not even the files before the one that cannot be.
  const std::vector<io::safetensors_output> last{{"a", "F32", {2}, eight}, {"b\xff", "F32", {2}, eight}};
  CHECK_THROWS_WITH(io::write_safetensors_folder(folder / "m", last, 8), Catch::Contains("is no UTF-8"));
  CHECK(fs::is_empty(folder / "m"));
}

TEST_CASE("a disk that refuses leaves the file that was there", "[io][safetensors]") {
  const scratch_folder folder("safetensors");
  const std::vector<std::byte> small(8), large(100000);
  const std::vector<io::safetensors_output> before{{"a", "U8", {8}, small}}, after{{"a", "U8", {100000}, large}};
  io::write_safetensors(folder / "x", before);
  const std::string kept = get(folder / "x");
  ::rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  ::rlimit less = old;
  less.rlim_cur = 50000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &less) == 0);
  const std::string text = message_of<heddle::io_error>([&] { io::write_safetensors(folder / "x", after); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  CHECK_THAT(text, Catch::Contains("cannot write"));
  CHECK(get(folder / "x") == kept);
  CHECK_FALSE(fs::exists(folder / "x.partial"));
}

TEST_CASE("threads read one file at once", "[io][safetensors]") {
  const io::safetensors_file file(golden / "conversions.safetensors");
  const auto expected = all_of<double>(file, "x");
  std::array<bool, 4> same{};
  {
    std::vector<std::thread> threads;
    for (bool& s : same) threads.emplace_back([&file, &expected, &s] { s = all_of<double>(file, "x") == expected; });
    for (auto& t : threads) t.join();
  }
  for (const bool s : same) CHECK(s);
  CHECK(file.bytes_read() == 5 * static_cast<std::int64_t>(expected.size()) * 8);
}
#endif
