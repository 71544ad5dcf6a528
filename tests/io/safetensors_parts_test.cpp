// Folders of safetensors that several ranks write together: the bytes are those of one writer, and what is left out is found.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/safetensors/parts.hpp>
#include <heddle/io/safetensors/reader.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace hd = heddle;
namespace io = heddle::io;
using Catch::Matchers::Contains;

namespace {

std::string bytes_in(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("parts from several writers make the files of one", "[io][safetensors][parts]") {
  const auto seed = static_cast<std::uint32_t>(GENERATE(1u, 2u, 3u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
  };
  std::vector<io::safetensors_outline> outlines;
  std::vector<std::vector<float>> values;
  for (int i = 0; i < 9; ++i) {
    const std::vector<std::int64_t> shape{1 + below(7), below(6)};  // some are empty
    outlines.push_back({"tensor " + std::to_string(i), "F32", shape});
    values.emplace_back();
    for (std::int64_t k = 0; k < outlines.back().count(); ++k)
      values.back().push_back(static_cast<float>(below(1000)) / 8);
  }
  const std::int64_t most = 60 + below(100);
  const scratch_folder one("parts"), parts("parts");
  std::vector<io::safetensors_output> whole;
  for (std::size_t i = 0; i < outlines.size(); ++i)
    whole.push_back(io::safetensors_of(outlines[i].name, outlines[i].shape, std::span<const float>(values[i])));
  const int files = io::write_safetensors_folder(one.path, whole, most, {{{"format", "pt"}}});

  const io::safetensors_plan plan(outlines, most);
  REQUIRE(plan.files().size() == static_cast<std::size_t>(files));
  io::begin_safetensors(parts.path, plan);
  std::int64_t written = 0;
  for (const int writer : {2, 0, 1}) {
    io::safetensors_part_writer sink(parts.path, plan);
    for (std::size_t i = 0; i < outlines.size(); ++i)
      for (auto k = static_cast<std::size_t>(writer); k < values[i].size(); k += 3)
        sink.tensor(outlines[i].name).write(static_cast<std::int64_t>(k), std::span<const float>(&values[i][k], 1));
    sink.finish();
    written += sink.bytes_written();
    CHECK_FALSE(std::filesystem::exists(parts.path / plan.files()[0].name));
  }
  CHECK(written == plan.data_bytes());
  io::commit_safetensors(parts.path, plan, written);
  for (const auto& file : plan.files()) CHECK(bytes_in(parts.path / file.name) == bytes_in(one.path / file.name));
  CHECK(io::safetensors_folder(parts.path).names().size() == outlines.size());
}

TEST_CASE("elements are rounded once to the type of their tensor", "[io][safetensors][parts]") {
  const scratch_folder folder("parts");
  const io::safetensors_plan plan({{"b", "BF16", {3}}, {"d", "F64", {3}}, {"h", "F16", {3}}});
  const std::vector<double> values{1.0 / 3, -70000.0, 1e-9};
  io::begin_safetensors(folder.path, plan);
  io::safetensors_part_writer sink(folder.path, plan);
  for (const char* name : {"b", "d", "h"}) sink.tensor(name).write(0, std::span<const double>(values));
  sink.finish();
  io::commit_safetensors(folder.path, plan, sink.bytes_written());
  const io::safetensors_folder back(folder.path);
  std::vector<double> read(3);
  back.tensor("d").read(0, std::span(read));
  CHECK(read == values);
  back.tensor("b").read(0, std::span(read));
  CHECK(read == std::vector<double>{0.333984375, -70144.0, read[2]});
  CHECK(read[2] == Approx(1e-9).epsilon(0.004));
  back.tensor("h").read(0, std::span(read));
  CHECK(read[0] == 0.333251953125);
  CHECK(std::isinf(read[1]));
  CHECK(read[2] == 0.0);
}

TEST_CASE("a folder with something left out gets no model", "[io][safetensors][parts]") {
  const scratch_folder folder("parts");
  const io::safetensors_plan plan({{"a", "F32", {2, 2}}, {"n", "I32", {1}}});
  io::begin_safetensors(folder.path, plan);
  io::safetensors_part_writer sink(folder.path, plan);
  const std::vector<float> two{1, 2};
  sink.tensor("a").write(0, std::span<const float>(two));
  CHECK_THROWS_WITH(sink.tensor("a").write(3, std::span<const float>(two)),
                    Contains("tensor 'a'") && Contains("elements from 3 to 5") && Contains("there are 4"));
  CHECK_THROWS_WITH(sink.tensor("n").write(0, std::span<const float>(two).first(1)),
                    Contains("type I32 are not written"));
  CHECK_THROWS_WITH(sink.tensor("z"), Contains("no tensor 'z' is to be written, but 2 others"));
  sink.finish();
  CHECK_THROWS_WITH(io::commit_safetensors(folder.path, plan, sink.bytes_written()),
                    Contains("8 bytes of elements were written") && Contains("the tensors have 20"));
  CHECK_FALSE(std::filesystem::exists(folder.path / "model.safetensors"));
  CHECK_THROWS_AS(io::safetensors_plan({{"a", "F31", {2}}}), hd::io_error);
  CHECK_THROWS_WITH(io::safetensors_plan({{"a", "F32", {1}}, {"a", "F32", {1}}}), Contains("it comes twice"));
}
#endif
