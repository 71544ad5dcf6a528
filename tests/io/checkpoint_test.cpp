// Saves come back as they were; damage of any kind is found, named, and passed over for an older save.
#include "catch.hpp"

#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/checkpoint.hpp>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {

// A save of `ranks` ranks whose contents follow from the step.
fs::path save(const fs::path& folder, std::int64_t step, int ranks = 2, io::commit_options options = {},
              const std::string& run = "") {
  io::manifest m;
  m.step = step;
  m.seed = 17;
  m.position = {step * 8};
  m.corpus = 0xfeedu;
  m.mesh = "dp=" + std::to_string(ranks);
  m.config = "layers=2\nwidth=8\npath=C:\\data\n";
  m.facts["dtype"] = "f32";
  if (!run.empty()) m.facts["run"] = run;
  for (int r = 0; r < ranks; ++r) {
    io::checkpoint_writer writer(folder, step, r);
    std::vector<float> rows(6);
    for (std::size_t i = 0; i < 6; ++i) rows[i] = static_cast<float>(step * 100 + r * 6) + static_cast<float>(i);
    const std::vector<double> moments{1.0 / static_cast<double>(step), std::numeric_limits<double>::quiet_NaN(), -0.0};
    const std::array<std::int64_t, 1> counter{step};
    writer.add<float>("h.0.weight", rows, {{ranks * 2, 3}, {r * 2, 0}, {2, 3}});
    writer.add<double>("moments of " + std::to_string(r), moments);
    writer.add<std::int64_t>("counter", counter, io::tensor_region::whole({}));
    writer.add<float>("nothing", std::span<const float>{}, {{0, 4}, {0, 0}, {0, 4}});
    m.files.insert(m.files.begin(), writer.finish());  // any order will do
  }
  return io::commit(folder, m, options);
}

void check_contents(const fs::path& path, std::int64_t step, int ranks = 2) {
  const io::checkpoint_reader reader(path);
  CHECK(reader.manifest().step == step);
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> rows(6);
    reader.read<float>(r, "h.0.weight", rows, {{ranks * 2, 3}, {r * 2, 0}, {2, 3}});
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(rows[i] == static_cast<float>(step * 100 + r * 6) + static_cast<float>(i));
    std::vector<double> moments(3);
    reader.read<double>(r, "moments of " + std::to_string(r), moments);
    CHECK(moments[0] == 1.0 / static_cast<double>(step));
    CHECK(moments[1] != moments[1]);
    CHECK(std::signbit(moments[2]));
  }
}

std::string message(const fs::path& path) {
  return message_of<heddle::io_error>([&] { io::require_save(path); });
}

}  // namespace

TEST_CASE("two runs that write into one folder do not cost the saves that were good", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  save(folder.path, 1);
  save(folder.path, 2);
  // This run's rank file is done; before it commits, another run writes a file of the same size over it.
  io::manifest m;
  m.step = 3;
  const std::vector<float> mine(8, 1.0f), theirs(8, 2.0f);
  io::checkpoint_writer first(folder.path, 3, 0);
  first.add<float>("w", mine);
  m.files.push_back(first.finish());
  io::checkpoint_writer second(folder.path, 3, 0);
  second.add<float>("w", theirs);
  second.finish();
  CHECK_THROWS_AS(io::commit(folder.path, m, {.keep = 1}), heddle::io_error);
  const auto found = io::latest(folder.path);
  REQUIRE(found.save);
  CHECK(found.save->manifest.step == 2);
  CHECK(found.skipped.size() == 1);
  check_contents(found.save->path, 2);
}

TEST_CASE("what cannot be removed does not stop a save", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  save(folder.path, 2);
  std::ofstream(folder / "step-00000001") << "not a save";  // a file with the name of one
  CHECK_NOTHROW(save(folder.path, 3, 2, {.keep = 1}));
  const auto found = io::latest(folder.path);
  REQUIRE(found.save);
  CHECK(found.save->manifest.step == 3);
  CHECK(fs::exists(folder / "step-00000001"));
}

TEST_CASE("only saves of the same run that can be read are removed", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& e : fs::directory_iterator(folder.path)) all.insert(e.path().filename().string());
    return all;
  };
  for (const std::int64_t step : {1, 2, 3}) save(folder.path, step, 1, {.keep = 0}, "a");
  for (const std::int64_t step : {4, 5}) save(folder.path, step, 1, {.keep = 0}, "b");
  save(folder.path, 6, 1, {.keep = 0});  // of before runs had names
  save(folder.path, 7, 1, {.keep = 0}, "a");
  save(folder.path, 8, 1, {.keep = 0}, "a");
  fs::resize_file(folder / "step-00000002" / "rank-00000.tensors", 100);
  fs::remove(folder / "step-00000003" / "manifest");
  put(folder / "step-00000000", "a file");
  put(folder / "step-00000001.mine" / "notes", "mine");
  put(folder / "step-1st.partial" / "notes", "mine");
  put(folder / "step-00000005.partial" / "rank-00000.tensors", "of an attempt that was killed");
  put(folder / "step-00000001.removed" / "rank-00000.tensors", "of a removal that was killed");
  save(folder.path, 9, 1, {.keep = 2}, "a");
  const std::set<std::string> kept{"step-00000000", "step-00000001.mine", "step-00000002", "step-00000003",
                                   "step-00000004", "step-00000005",      "step-00000006", "step-00000008",
                                   "step-00000009", "step-1st.partial"};
  CHECK(names() == kept);  // 1 and 7 are gone
  // A new save that needs the name of such a one takes it; that one stays.
  const auto check_aside = [&](const char* name, std::int64_t step, const char* run) {
    const io::manifest m = io::require_save(folder / name);
    CHECK(m.step == step);
    CHECK(m.facts.at("run") == run);
  };
  save(folder.path, 5, 1, {.keep = 1}, "a");
  check_aside("step-00000005.set-aside", 5, "b");
  check_aside("step-00000005", 5, "a");
  save(folder.path, 5, 1, {.keep = 1}, "c");
  check_aside("step-00000005.set-aside", 5, "b");
  check_aside("step-00000005.set-aside-2", 5, "a");
  check_aside("step-00000005", 5, "c");
  save(folder.path, 2, 1, {.keep = 1}, "a");
  CHECK(fs::file_size(folder / "step-00000002.set-aside" / "rank-00000.tensors") == 100);
  save(folder.path, 0, 1, {.keep = 1}, "a");
  CHECK(get(folder / "step-00000000.set-aside") == "a file");
}

TEST_CASE("a save that is damaged, its size as written, is not one of those that are kept", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  for (const std::int64_t step : {7, 8, 10}) save(folder.path, step, 1, {.keep = 0}, "a");
  const auto flip = [&](const char* name) {
    std::string bytes = get(folder / name / "rank-00000.tensors");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    put(folder / name / "rank-00000.tensors", bytes);
  };
  flip("step-00000010");
  save(folder.path, 108, 1, {.keep = 2}, "a");
  flip("step-00000108");
  REQUIRE(io::latest(folder.path).save.has_value());
  CHECK(io::latest(folder.path).save->manifest.step == 8);
  CHECK(fs::exists(folder / "step-00000010"));
  CHECK(!fs::exists(folder / "step-00000007"));
}

TEST_CASE("saves of which none can be read are not the same as no saves", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const auto unreadable = [&](io::verify how = io::verify::sizes) {
    return message_of<heddle::io_error>([&] { io::require_readable(io::latest(folder.path, how), folder.path); });
  };
  CHECK(unreadable().empty());
  for (const std::int64_t step : {1, 2, 3}) save(folder.path, step, 1, {.keep = 0});
  put(folder / "step-00000009.partial" / "rank-00000.tensors", "an attempt");
  fs::resize_file(folder / "step-00000003" / "rank-00000.tensors", 100);
  CHECK(unreadable().empty());
  fs::remove(folder / "step-00000002" / "rank-00000.tensors");
  fs::create_directory(folder / "step-00000002" / "rank-00000.tensors");
  fs::remove_all(folder / "step-00000001");
  put(folder / "step-00000001", "a file");
  const std::string what = unreadable();
  CAPTURE(what);
  for (const char* part :
       {"heddle: there are saves in '", "and none of them can be read: '",
        "step-00000003/rank-00000.tensors' has 100 bytes, ", "cannot read '",
        "step-00000002/rank-00000.tensors': it is a folder, not a file",
        "step-00000001': it is a regular file, not a folder", "repair them", "without resuming into another one"})
    CHECK(what.find(part) != std::string::npos);
  CHECK(what.find("heddle: ", 1) == std::string::npos);
  if (::geteuid() != 0) {  // permissions do not bind root
    const fs::path file = save(folder.path, 4, 1) / "rank-00000.tensors";
    fs::permissions(file, fs::perms::none);
    CHECK(unreadable(io::verify::contents).find("Permission denied") != std::string::npos);
    fs::permissions(file, fs::perms::owner_all);
  }
}

TEST_CASE("a save comes back as it was", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  CHECK_FALSE(io::latest(folder / "not yet").save);
  CHECK_FALSE(io::latest(folder.path).save);
  const auto path = save(folder / "runs/a", 100);
  CHECK(path == folder / "runs/a/step-00000100");
  const auto found = io::latest(folder / "runs/a");
  REQUIRE(found.save);
  CHECK(found.skipped.empty());
  CHECK(found.save->path == path);
  const auto& m = found.save->manifest;
  CHECK(m.step == 100);
  CHECK(m.seed == 17);
  CHECK(m.position.consumed == 800);
  CHECK(m.corpus == 0xfeedu);
  CHECK(m.mesh == "dp=2");
  CHECK(m.config == "layers=2\nwidth=8\npath=C:\\data\n");
  CHECK(m.facts.at("dtype") == "f32");
  REQUIRE(m.files.size() == 2);
  CHECK(m.files[0].rank == 0);
  check_contents(path, 100);

  const io::checkpoint_reader reader(path);
  CHECK(reader.contains("counter"));
  CHECK_FALSE(reader.contains("h.1.weight"));
  REQUIRE(reader.tensors(1).size() == 4);
  CHECK(reader.tensors(1)[0].name == "h.0.weight");
  CHECK(reader.tensors(1)[0].dtype == "f32");
  CHECK(reader.tensors(1)[0].region.offset == std::vector<std::int64_t>{2, 0});
  CHECK(reader.tensors(1)[0].position % 64 == 0);
  std::int64_t counter = 0;
  reader.read<std::int64_t>("counter", std::span<std::int64_t>(&counter, 1), io::tensor_region::whole({}));
  CHECK(counter == 100);
}

TEST_CASE("a region is put together from what any mesh saved", "[io][checkpoint][law]") {
  // A 5 x 7 x 3 tensor in boxes, one per rank, some of them held twice; read back in random boxes.
  const scratch_folder folder("checkpoint");
  const std::vector<std::int64_t> shape{5, 7, 3};
  const auto value = [](std::int64_t i, std::int64_t j, std::int64_t k) {
    return static_cast<std::int32_t>(i * 100 + j * 10 + k);
  };
  const auto fill = [&](const io::tensor_region& r) {
    std::vector<std::int32_t> v;
    for (std::int64_t i = 0; i < r.local[0]; ++i)
      for (std::int64_t j = 0; j < r.local[1]; ++j)
        for (std::int64_t k = 0; k < r.local[2]; ++k)
          v.push_back(value(r.offset[0] + i, r.offset[1] + j, r.offset[2] + k));
    return v;
  };
  io::manifest m;
  m.step = 1;
  int rank = 0;
  for (const std::int64_t i : {0, 3})
    for (const std::int64_t j : {0, 4})
      for (int copy = 0; copy < 2; ++copy) {
        const io::tensor_region box{shape, {i, j, 0}, {i == 0 ? 3 : 2, j == 0 ? 4 : 3, 3}};
        io::checkpoint_writer writer(folder.path, 1, rank++);
        writer.add<std::int32_t>("t", fill(box), box);
        m.files.push_back(writer.finish());
      }
  const io::checkpoint_reader reader(io::commit(folder.path, m));
  const heddle::counter_random random(7, 7);
  INFO("seed 7");
  for (std::uint64_t round = 0; round < 200; ++round) {
    io::tensor_region box{shape, {0, 0, 0}, {0, 0, 0}};
    for (std::size_t d = 0; d < 3; ++d) {
      const auto bits = random.bits(round * 3 + d);
      box.offset[d] = static_cast<std::int64_t>(bits[0] % static_cast<std::uint32_t>(shape[d] + 1));
      box.local[d] = static_cast<std::int64_t>(bits[1] % static_cast<std::uint32_t>(shape[d] - box.offset[d] + 1));
    }
    std::vector<std::int32_t> out(static_cast<std::size_t>(box.count()), -1);
    reader.read<std::int32_t>("t", out, box);
    REQUIRE(out == fill(box));
  }
}

TEST_CASE("a rank may save a tensor in several parts", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  io::checkpoint_writer writer(folder.path, 1, 0);
  const std::vector<float> values{0, 1, 2, 3, 4};
  const std::span<const float> all(values);
  writer.add<float>("x", all.subspan(3), {{5}, {3}, {2}});
  writer.add<float>("x", all.first(3), {{5}, {0}, {3}});
  io::manifest m;
  m.step = 1;
  m.files = {writer.finish()};
  const io::checkpoint_reader reader(io::commit(folder.path, m));
  std::vector<float> out(5), part(3);
  reader.read<float>("x", out, io::tensor_region::whole({5}));
  CHECK(out == values);
  reader.read<float>(0, "x", part, {{5}, {0}, {3}});
  CHECK(part == std::vector<float>{0, 1, 2});
  CHECK_THROWS_AS(reader.read<float>(0, "x", out), heddle::io_error);
}

TEMPLATE_TEST_CASE("16-bit floats come back bit for bit, and not as the other type", "[io][checkpoint]", heddle::bf16,
                   heddle::f16) {
  using other = std::conditional_t<std::is_same_v<TestType, heddle::bf16>, heddle::f16, heddle::bf16>;
  const scratch_folder folder("checkpoint");
  io::checkpoint_writer writer(folder.path, 1, 0);
  std::vector<TestType> values;
  for (std::uint32_t u = 0; u < 0x10000u; u += 7) values.push_back(TestType::from_bits(static_cast<std::uint16_t>(u)));
  writer.add<TestType>("x", values);
  io::manifest m;
  m.step = 1;
  m.files = {writer.finish()};
  const io::checkpoint_reader reader(io::commit(folder.path, m));
  CHECK(reader.tensors(0)[0].dtype == (std::is_same_v<TestType, heddle::bf16> ? "bf16" : "f16"));
  std::vector<TestType> out(values.size());
  std::vector<other> wrong(values.size());
  reader.read<TestType>(0, "x", out);
  bool same = true;
  for (std::size_t i = 0; i < out.size(); ++i) same = same && out[i].bits == values[i].bits;
  CHECK(same);
  CHECK_THROWS_AS(reader.read<other>(0, "x", wrong), heddle::io_error);
}

TEST_CASE("a region that no rank saved is an error", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  io::checkpoint_writer writer(folder.path, 1, 0);
  const std::vector<float> half{1, 2};
  writer.add<float>("x", half, {{4}, {0}, {2}});
  io::manifest m;
  m.step = 1;
  m.files = {writer.finish()};
  CHECK(message_of<heddle::io_error>([&] { io::commit(folder.path, m); }) ==
        "heddle: '" + (folder / "step-00000001.partial").string() +
            "', tensor 'x': the ranks saved 2 of the 4 elements of [4]; a save has all of each tensor");
  // A save of format 1, of a program that did not look.
  const fs::path made = folder / "step-00000001";
  fs::rename(folder / "step-00000001.partial", made);
  put(made / "manifest", io::to_text(m));
  const io::checkpoint_reader reader(made);
  std::vector<float> out(4);
  CHECK(message_of<heddle::io_error>([&] { reader.read<float>("x", out, io::tensor_region::whole({4})); }) ==
        "heddle: '" + reader.path().string() +
            "', tensor 'x': the ranks saved 2 of the 4 elements of [4] at [0] of [4]");
}

TEST_CASE("parts of a tensor that overlap are refused by writer, commit and reader", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const std::vector<float> three{1, 2, 3};
  io::checkpoint_writer first(folder.path, 1, 0), second(folder.path, 1, 1);
  first.add<float>("x", three, {{6}, {0}, {3}});
  CHECK(message_of<heddle::io_error>([&] {
          first.add<float>("x", three, {{6}, {2}, {3}});
        }).find("tensor 'x': the part [3] at [2] of [6] overlaps [3] at [0] of [6], which was added before") !=
        std::string::npos);
  second.add<float>("x", three, {{6}, {1}, {3}});
  io::manifest m;
  m.step = 1;
  m.files = {first.finish(), second.finish()};
  const std::string expected =
      "tensor 'x': rank 1 saved [3] at [1] of [6], which overlaps [3] at [0] of [6] of rank 0; parts of a tensor must "
      "be apart, or the same";
  CHECK(message_of<heddle::io_error>([&] { io::commit(folder.path, m); }).find(expected) != std::string::npos);
  CHECK_FALSE(io::latest(folder.path).save);
  // A save made by somebody who did not look: together 6 of 6 elements, and two are in none of them.
  const fs::path made = folder / "step-00000001";
  fs::rename(folder / "step-00000001.partial", made);
  put(made / "manifest", io::to_text(m));
  CHECK(message(made).empty());
  CHECK(message_of<heddle::io_error>([&] { io::checkpoint_reader reader(made); }).find(expected) != std::string::npos);
}

TEST_CASE("overlaps among boxes are those that walking all elements finds", "[io][checkpoint][law]") {
  const heddle::counter_random random(11, 7);
  INFO("seed 11");
  std::uint64_t drawn = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.bits(drawn++)[0] % static_cast<std::uint32_t>(n));
  };
  int overlapping = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto dims = static_cast<std::size_t>(below(4));
    io::tensor_region whole;
    for (std::size_t d = 0; d < dims; ++d) whole.global.push_back(1 + below(5));
    std::vector<io::tensor_region> boxes;
    for (std::int64_t n = 1 + below(5); n > 0; --n) {
      io::tensor_region box = whole;
      for (const std::int64_t e : whole.global) {
        box.offset.push_back(below(e + 1));
        box.local.push_back(below(e - box.offset.back() + 1));
      }
      boxes.push_back(below(4) == 0 && !boxes.empty() ? boxes.back() : box);
    }
    // The first box that holds an element must be the only one, but for its likes.
    bool expected = false;
    std::int64_t elements = 1;
    for (const std::int64_t e : whole.global) elements *= e;
    for (std::int64_t i = 0; i < elements; ++i) {
      const io::tensor_region* holder = nullptr;
      for (const io::tensor_region& box : boxes) {
        bool inside = true;
        std::int64_t rest = i;
        for (std::size_t d = dims; d-- > 0; rest /= whole.global[d]) {
          const std::int64_t at = rest % whole.global[d] - box.offset[d];
          inside = inside && at >= 0 && at < box.local[d];
        }
        if (!inside) continue;
        expected = expected || (holder != nullptr && !(*holder == box));
        holder = &box;
      }
    }
    std::vector<const io::tensor_region*> parts;
    for (const io::tensor_region& box : boxes) parts.push_back(&box);
    const auto found = io::detail::partial_overlap(parts);
    REQUIRE(found.has_value() == expected);
    overlapping += expected;
  }
  CHECK(overlapping > 80);
  CHECK(overlapping < 1800);
}

TEST_CASE("numbers of an index that go beyond 64 bits are refused, whatever its checksum", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const fs::path file = folder / "rank-00000.tensors";
  const auto read = [&](const std::string& fields) {
    const std::string head = "heddle tensors 1\n" + std::string(64, '\0');
    const std::string index = "x\tf32\t" + fields + "\t0000000000000000\n";
    std::string tail = "\nindex " + io::to_hex(static_cast<std::uint64_t>(head.size())) + " " +
                       io::to_hex(io::checksum(std::as_bytes(std::span<const char>(index))));
    tail.resize(63, ' ');
    put(file, head + index + tail + "\n");
    return message_of<heddle::io_error>([&] { io::read_tensor_index(file); });
  };
  const std::string most = "9223372036854775807", half = "4611686018427387904";
  CHECK(read("4\t0\t4\t64\t16").empty());
  CHECK(read("4\t" + most + "\t" + half + "\t64\t16").find("has no " + half + " elements from index " + most) !=
        std::string::npos);
  CHECK(read("-9223372036854775808\t1\t0\t64\t0").find("dimension 0 of extent -9223372036854775808") !=
        std::string::npos);
  for (const std::string& shape : {half + ",4", most, std::string("4294967296,4294967296,4294967296")}) {
    std::string zeros = "0";
    for (const char c : shape) zeros += c == ',' ? ",0" : "";
    CHECK(read(shape + "\t" + zeros + "\t" + shape + "\t64\t0").find("has more than 576460752303423487 elements") !=
          std::string::npos);
  }
  CHECK(read("0," + half + ",4\t0,0,0\t0," + half + ",4\t64\t0").empty());  // no elements at all
  CHECK(read("4\t0\t4\t" + most + "\t16").find("do not fit") != std::string::npos);
  CHECK(read("4\t0\t4\t64\t" + most).find("do not fit") != std::string::npos);
  CHECK(io::tensor_region{{}, {}, {std::int64_t{1} << 62, 4}}.count() == (std::numeric_limits<std::int64_t>::max)());
}

TEST_CASE("what is asked must be what was saved", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const io::checkpoint_reader reader(save(folder.path, 1));
  const std::string file = "heddle: '" + (reader.path() / "rank-00000.tensors").string() + "'";
  std::vector<float> six(6);
  std::vector<double> wide(6);
  const io::tensor_region right{{4, 3}, {0, 0}, {2, 3}};
  CHECK(message_of<heddle::io_error>([&] { reader.read<double>(0, "h.0.weight", wide, right); }) ==
        file + ", tensor 'h.0.weight': expected dtype f64, the file has f32");
  CHECK(message_of<heddle::io_error>([&] { reader.read<float>(0, "h.0.weight", six, {{4, 3}, {2, 0}, {2, 3}}); }) ==
        file + ", tensor 'h.0.weight': expected [2,3] at [2,0] of [4,3], the file has [2,3] at [0,0] of [4,3]");
  CHECK(message_of<heddle::io_error>([&] { reader.read<float>(0, "h.0.bias", six, right); }) ==
        file + " has no tensor 'h.0.bias'");
  CHECK(message_of<heddle::io_error>([&] { reader.read<float>("h.0.weight", six, {{6, 3}, {0, 0}, {2, 3}}); }) ==
        file + ", tensor 'h.0.weight': expected global shape [6,3], the file has [4,3]");
  CHECK(message_of<heddle::io_error>([&] {
          reader.read<float>(0, "h.0.weight", std::span<float>(six).first(5), right);
        }) == file + ", tensor 'h.0.weight': expected room for 6 elements, got 5");
  CHECK(message_of<heddle::io_error>([&] { reader.read<float>("none", six, right); }).find("no rank saved it") !=
        std::string::npos);
  io::checkpoint_writer writer(folder.path, 2, 0);
  const auto add = [&](const char* name, const io::tensor_region& r) {
    return message_of<heddle::io_error>([&] { writer.add<float>(name, six, r); });
  };
  CHECK(add("w", right).empty());
  const std::string again = add("w", right);
  CAPTURE(again);
  CHECK(again.find("tensor 'w': the part at [0,0] was added before") != std::string::npos);
  CHECK(add("w", {{4, 3}, {2, 0}, {2, 3}}).empty());  // another part of the same tensor
  CHECK(add("v", {{4, 3}, {0, 0}, {2, 2}}).find("the local shape [2,2] has 4 elements, got 6") != std::string::npos);
  CHECK(add("v", {{4, 3}, {3, 0}, {2, 3}}).find("dimension 0 of extent 4 has no 2 elements from index 3 on") !=
        std::string::npos);
  CHECK(add("v", {{4, 3}, {0}, {2, 3}}).find("have 2, 1 and 2 dimensions") != std::string::npos);
  CHECK(add("a\tb", right).find("no tab") != std::string::npos);
}

TEST_CASE("the newest complete save is found, and why others were not", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  for (const std::int64_t step : {10, 20, 30, 40}) save(folder.path, step, 2, {.keep = 0});
  const auto damage = [&](const char* what) {
    const auto found = io::latest(folder.path);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == 30);
    check_contents(found.save->path, 30);
    REQUIRE(found.skipped.size() == 1);
    CAPTURE(found.skipped[0]);
    CHECK(found.skipped[0].find(what) != std::string::npos);
    CHECK(found.skipped[0].find("step-00000040") != std::string::npos);
  };
  const fs::path last = folder / "step-00000040";
  const std::string manifest = get(last / "manifest"), rank1 = get(last / "rank-00001.tensors");

  fs::remove(last / "manifest");
  damage("has no manifest: the save was not finished");
  put(last / "manifest", manifest.substr(0, manifest.size() - 5));
  damage("is cut off");
  put(last / "manifest", "");
  damage("is not a heddle checkpoint manifest");
  std::string other = manifest;
  other.replace(other.find("format=2"), 8, "format=9");
  put(last / "manifest", other);
  damage("format version 9; this program reads versions 1 to 3");
  other = manifest;
  other.replace(other.find("seed=17"), 7, "seed=18");
  put(last / "manifest", other);
  damage("is damaged: its checksum is");
  put(last / "manifest", manifest);

  put(last / "rank-00001.tensors", rank1.substr(0, rank1.size() - 1));
  damage("bytes, ");
  fs::remove(last / "rank-00001.tensors");
  damage("rank-00001.tensors' is missing");
  std::string flipped = rank1;
  flipped[70] = static_cast<char>(flipped[70] ^ 4);
  put(last / "rank-00001.tensors", flipped);
  damage("is damaged: its checksum is");
  CHECK(io::latest(folder.path, io::verify::sizes).save->manifest.step == 40);  // sizes alone do not see it
  put(last / "rank-00001.tensors", rank1);
  CHECK(io::latest(folder.path).save->manifest.step == 40);

  // What is not a save is no candidate.
  fs::create_directories(folder / "step-00000050.partial");
  fs::create_directories(folder / "step-x");
  put(folder / "notes.txt", "mine");
  CHECK(io::latest(folder.path).skipped.empty());
}

TEST_CASE("any flipped bit and any truncation is found", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const fs::path path = save(folder.path, 5, 1);
  CHECK(message(path).empty());
  for (const char* name : {"manifest", "index", "rank-00000.tensors"}) {
    const std::string good = get(path / name);
    // Every byte of the manifest; of the tensors a byte in seven, in every bit position.
    const bool text = std::string(name) != "rank-00000.tensors";
    for (std::size_t at = 0; at < good.size(); at += text ? 1 : 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      put(path / name, bad);
      if (message(path).empty()) FAIL_CHECK(name << ": flipped bit in byte " << at << " was not found");
    }
    for (std::size_t n = 0; n < good.size(); n += 11) {
      put(path / name, good.substr(0, n));
      if (message(path).empty()) FAIL_CHECK(name << ": cut to " << n << " bytes was not found");
      if (!text) CHECK_THROWS_AS(io::read_tensor_index(path / name), heddle::io_error);
    }
    put(path / name, good);
  }
  CHECK(message(path).empty());
}

TEST_CASE("a tensor damaged after the save was found is noticed when it is read", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const fs::path path = save(folder.path, 5, 1);
  const io::checkpoint_reader reader(path);
  std::string bytes = get(path / "rank-00000.tensors");
  const auto at = static_cast<std::size_t>(reader.tensors(0)[0].position);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  put(path / "rank-00000.tensors", bytes);
  std::vector<float> out(6);
  const std::string what =
      message_of<heddle::io_error>([&] { reader.read<float>("h.0.weight", out, io::tensor_region::whole({2, 3})); });
  CHECK(what.find("rank-00000.tensors', tensor 'h.0.weight': is damaged") != std::string::npos);
}

TEST_CASE("a damaged piece of a large part is named by tensor and elements, and the others are read",
          "[io][checkpoint]") {
  constexpr std::int64_t rows = 2500, columns = 1000, piece = 1048576;  // elements of 4 MiB
  const scratch_folder folder("pieces");
  std::vector<float> x(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const auto whole = io::tensor_region::whole({rows, columns});
  io::manifest m;
  m.step = 1;
  {
    io::checkpoint_writer writer(folder.path, 1, 0);
    writer.add<float>("w", x, whole);
    m.files.push_back(writer.finish());
  }
  const fs::path save = io::commit(folder.path, m), file = save / "rank-00000.tensors";
  CHECK(get(save / "manifest").find("heddle checkpoint\nformat=3\n") == 0);
  CHECK(io::require_save(save).facts.at("pieces") == "4194304");
  std::vector<float> got(x.size());
  const auto part = [&](std::int64_t first, std::int64_t count) {
    const io::checkpoint_reader reader(save);
    reader.read<float>("w", std::span(got).first(static_cast<std::size_t>(count * columns)),
                       {{rows, columns}, {first, 0}, {count, columns}});
    return reader.bytes_unchecked();
  };
  CHECK(part(0, rows) == 0);
  CHECK(got == x);
  CHECK(part(0, 2100) == 4 * (2100 * columns - 2 * piece));  // two whole pieces, and a part of the third
  const io::tensor_entry e = io::read_tensor_index(file).at(0);
  REQUIRE(e.pieces.size() == 3);
  std::string text = get(file);
  const auto at = static_cast<std::size_t>(e.position + 4 * piece + 12345);
  text[at] = static_cast<char>(text[at] ^ 4);
  put(file, text);
  const std::string named = "heddle: '" + file.string() +
                            "', tensor 'w': elements 1048576 to 2097152 of [2500,1000] at [0,0] of [2500,1000] are "
                            "damaged: their checksum is ";
  CHECK(message_of<heddle::io_error>([&] { part(0, rows); }).find(named) == 0);
  CHECK(message_of<heddle::io_error>([&] { part(1000, 1500); }).find(named) == 0);
  CHECK(message_of<heddle::io_error>([&] { io::read_tensor_bytes(file, e); }).find(named) == 0);
  CHECK(part(0, 1049) == 4 * (1049 * columns - piece));
  CHECK(part(2000, 500) == 4 * (rows * columns - 2000 * columns - (rows * columns - 2 * piece)));
}

TEST_CASE("a save of format 2 whose large part has one checksum is read, and its damage is found", "[io][checkpoint]") {
  constexpr std::int64_t count = 1100000;  // elements: more than a piece
  const scratch_folder folder("one-checksum");
  std::vector<float> x(count);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const fs::path save = folder / "step-00000001", file = save / "rank-00000.tensors";
  fs::create_directories(save);
  const auto bytes = std::as_bytes(std::span<const float>(x));
  // As it was written before there were pieces.
  io::detail::saved_part p{0, {"w", "f32", io::tensor_region::whole({count}), 64, 4 * count, io::checksum(bytes), {}}};
  const std::string line = io::detail::to_line(p.entry);
  CHECK(std::count(line.begin(), line.end(), '\t') == 7);
  std::string text(io::detail::tensor_file_head);
  text.resize(64, '\0');
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  put(file, text + line + io::detail::file_tail("index", 64 + 4 * count, line));
  io::manifest m;
  m.step = 1;
  const io::file_digest d = io::digest(file);
  m.files = {{0, d.bytes, d.checksum}};
  const io::file_digest index = io::detail::write_index(io::durable_file(save / "index"), {&p, 1});
  m.index_bytes = index.bytes;
  m.index_checksum = index.checksum;
  put(save / "manifest", io::to_text(m));
  CHECK(get(save / "manifest").find("heddle checkpoint\nformat=2\n") == 0);
  REQUIRE(io::latest(folder.path).save);
  std::vector<float> got(x.size());
  {
    const io::checkpoint_reader reader(save);
    reader.read<float>("w", got, io::tensor_region::whole({count}));
    CHECK(got == x);
    CHECK(reader.bytes_unchecked() == 0);
    reader.read<float>("w", std::span(got).first(1050000), {{count}, {0}, {1050000}});
    CHECK(reader.bytes_unchecked() == 4 * 1050000);
  }
  CHECK(io::parse_manifest(io::to_text(m), "m") == m);
  m.facts[io::detail::attempt_fact] = "one";
  CHECK(io::to_text(m).find("\nformat=3\n") != std::string::npos);
  CHECK(io::parse_manifest(io::to_text(m), "m") == m);
  text[5000000 % text.size()] ^= 1;
  put(file, text + line + io::detail::file_tail("index", 64 + 4 * count, line));
  const io::checkpoint_reader reader(save);
  CHECK(message_of<heddle::io_error>([&] {
          reader.read<float>("w", got, io::tensor_region::whole({count}));
        }).find("tensor 'w': is damaged: its checksum") != std::string::npos);
}

TEST_CASE("the last saves are kept, older ones go after the new one is complete", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  const auto steps = [&] {
    std::set<std::string> names;
    for (const auto& e : fs::directory_iterator(folder.path)) names.insert(e.path().filename().string());
    return names;
  };
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save(folder.path, step, 1, {.keep = 3});
  CHECK(steps() == std::set<std::string>{"step-00000003", "step-00000004", "step-00000005"});
  // A damaged save does not count as kept, and stays: it may be repaired.
  fs::remove(folder / "step-00000005/manifest");
  save(folder.path, 6, 1, {.keep = 2});
  CHECK(steps() == std::set<std::string>{"step-00000004", "step-00000005", "step-00000006"});
  save(folder.path, 7, 1, {.keep = 2});
  CHECK(steps() == std::set<std::string>{"step-00000005", "step-00000006", "step-00000007"});
  fs::remove_all(folder / "step-00000005");
  // Going back: saves of later steps stay, so does the one just made.
  save(folder.path, 2, 1, {.keep = 1});
  CHECK(steps() == std::set<std::string>{"step-00000002", "step-00000006", "step-00000007"});
  // Attempts that were killed are cleared away by the next save.
  io::checkpoint_writer unfinished(folder.path, 8, 0);
  save(folder.path, 9, 1, {.keep = 1});
  CHECK(steps() == std::set<std::string>{"step-00000009"});
}

TEST_CASE("a save of a step that is there replaces it", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  save(folder.path, 3, 4);
  const fs::path path = save(folder.path, 3, 2);
  check_contents(path, 3, 2);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}) == 1);
  CHECK_FALSE(fs::exists(path / "rank-00002.tensors"));
  // Killed between setting the old one aside and naming the new one: the old one is still found.
  fs::rename(path, folder / "step-00000003.replaced");
  CHECK(io::latest(folder.path).save->path == folder / "step-00000003.replaced");
  check_contents(save(folder.path, 3, 1), 3, 1);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}) == 1);
  // Files of ranks that an earlier, killed attempt on a larger mesh left behind do not get into the save.
  io::checkpoint_writer(folder.path, 4, 5).finish();
  CHECK_FALSE(fs::exists(save(folder.path, 4, 1) / "rank-00005.tensors"));
}

TEST_CASE("commit refuses what is not all there", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  save(folder.path, 1);
  io::checkpoint_writer writer(folder.path, 2, 0);
  io::manifest m;
  m.step = 2;
  m.files = {writer.finish(), {1, 100, 0}};
  CHECK(message_of<heddle::io_error>([&] { io::commit(folder.path, m); }).find("rank-00001.tensors' is missing") !=
        std::string::npos);
  m.files[1] = m.files[0];
  CHECK(message_of<heddle::io_error>([&] { io::commit(folder.path, m); }).find("lists rank 0 twice") !=
        std::string::npos);
  m.files.resize(1);
  m.files[0].bytes += 1;
  CHECK(message_of<heddle::io_error>([&] { io::commit(folder.path, m); }).find("bytes, rank 0 says") !=
        std::string::npos);
  m.files[0].bytes -= 1;
  m.facts["a=b"] = "";
  CHECK_THROWS_AS(io::commit(folder.path, m), heddle::io_error);
  CHECK(io::latest(folder.path).save->manifest.step == 1);
}

TEST_CASE("a full disk is an error and leaves the save before it", "[io][checkpoint]") {
  const scratch_folder folder("checkpoint");
  save(folder.path, 1);
  // A limit on the size of files stands in for a full disk: writing fails the same way, after some bytes.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  // The signal that comes with it is kept from ending the process, here and in any other thread, and does not stay.
  REQUIRE(std::signal(SIGXFSZ, SIG_DFL) == SIG_DFL);
  rlimit small = before;
  std::string what;
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{10}, rlim_t{100}, rlim_t{700}}) {
    small.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    what = message_of<heddle::io_error>([&] { save(folder.path, 2); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CAPTURE(bytes, what);
    if (bytes < 700) CHECK(what.find("heddle: cannot write '" + folder.path.string()) == 0);
    if (bytes < 700)
      CHECK(what.find("file size limit of this process is " + std::to_string(bytes) + " bytes") != std::string::npos);
    ::sigset_t pending, blocked;
    REQUIRE(::sigpending(&pending) == 0);
    REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
    CHECK(::sigismember(&pending, SIGXFSZ) == 0);
    CHECK(::sigismember(&blocked, SIGXFSZ) == 0);
    const auto found = io::latest(folder.path);
    REQUIRE(found.save);
    CHECK(found.save->manifest.step == (what.empty() ? 2 : 1));
    check_contents(found.save->path, found.save->manifest.step);
    fs::remove_all(folder / "step-00000002");
    if (!fs::exists(folder / "step-00000001")) save(folder.path, 1);
  }
  check_contents(save(folder.path, 2), 2);  // and with room again it works
  // A folder that cannot be made is named.
  put(folder / "file", "x");
  CHECK(message_of<heddle::io_error>([&] { save(folder / "file/runs", 1); }).find("cannot create the folder") !=
        std::string::npos);
  CHECK_THROWS_AS(io::latest(folder / "file"), heddle::io_error);
}
