// The index of a save: readers read of it, and of the boxes of elements, what they want and little more.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scratch.hpp"

namespace fs = std::filesystem;
namespace io = heddle::io;

namespace save_index_test {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

// Element i of a tensor in its row-major order is i.
std::vector<std::int32_t> elements(const io::tensor_region& box) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < box.count(); ++i) {
    std::int64_t rest = i, stride = 1, flat = 0;
    for (std::size_t d = box.global.size(); d-- > 0;) {
      flat += (box.offset[d] + rest % box.local[d]) * stride;
      rest /= box.local[d];
      stride *= box.global[d];
    }
    all.push_back(static_cast<std::int32_t>(flat));
  }
  return all;
}
// Runs of a box inside of another that are contiguous in both, by walking the elements; of the one that is left, the
// elements.
std::int64_t runs_in(const io::tensor_region& held, const io::tensor_region& wanted, std::int64_t& shared) {
  std::int64_t runs = 0, at_before = -2, to_before = -2;
  for (std::int64_t i = 0; i < held.count(); ++i) {
    std::int64_t rest = i, stride = 1, to = 0;
    bool inside = true;
    for (std::size_t d = held.global.size(); d-- > 0;) {
      const std::int64_t at = held.offset[d] + rest % held.local[d] - wanted.offset[d];
      inside = inside && at >= 0 && at < wanted.local[d];
      to += at * stride;
      stride *= wanted.local[d];
      rest /= held.local[d];
    }
    if (!inside) continue;
    ++shared;
    runs += i != at_before + 1 || to != to_before + 1;
    at_before = i;
    to_before = to;
  }
  return runs;
}
// A save of one tensor in these boxes, one of each rank.
fs::path save(const fs::path& folder, std::span<const io::tensor_region> boxes) {
  io::manifest m;
  m.step = 1;
  for (std::size_t r = 0; r < boxes.size(); ++r) {
    io::checkpoint_writer writer(folder, 1, static_cast<int>(r));
    writer.add<std::int32_t>("t", elements(boxes[r]), boxes[r]);
    m.files.push_back(writer.finish());
  }
  return io::commit(folder, m);
}

TEST_CASE("a reader of a region reads its bytes and no gap above 4 KiB", "[io][save_index][law]") {
  const scratch_folder folder("save-index");
  const std::vector<std::int64_t> shape{12, 40, 300};
  std::vector<io::tensor_region> boxes;
  for (const std::int64_t i : {0, 5})
    for (const std::int64_t j : {0, 16}) boxes.push_back({shape, {i, j, 0}, {i == 0 ? 5 : 7, j == 0 ? 16 : 24, 300}});
  const fs::path path = save(folder.path, boxes);
  const std::uint64_t seed = 4511;
  INFO("seed " << seed);
  const heddle::counter_random random(seed, 0);
  for (std::uint64_t round = 0; round < 24; ++round) {
    io::tensor_region box{shape, {0, 0, 0}, {0, 0, 0}};
    for (std::size_t d = 0; d < 3; ++d) {
      const auto bits = random.bits(round * 3 + d);
      box.offset[d] = static_cast<std::int64_t>(bits[0] % static_cast<std::uint32_t>(shape[d]));
      box.local[d] = 1 + static_cast<std::int64_t>(bits[1] % static_cast<std::uint32_t>(shape[d] - box.offset[d]));
    }
    if (round == 0) box = io::tensor_region::whole(shape);
    if (round == 1) box = boxes[2];
    const io::checkpoint_reader reader(path);
    std::vector<std::int32_t> out(static_cast<std::size_t>(box.count()), -1);
    reader.read<std::int32_t>("t", out, box);
    REQUIRE(out == elements(box));
    std::int64_t runs = 0, whole = 0;
    for (const io::tensor_region& held : boxes) {
      std::int64_t shared = 0;
      runs += runs_in(held, box, shared);
      if (shared == held.count()) whole += shared;
    }
    const std::int64_t needed = 4 * box.count();
    CAPTURE(round, runs, needed);
    CHECK(reader.bytes_read() >= needed);
    CHECK(reader.bytes_read() <= needed + 4096 * (runs - 1));
    CHECK(reader.bytes_read() - reader.bytes_unchecked() == 4 * whole);
    if (round < 2) CHECK(reader.bytes_read() == needed);
  }
}

TEST_CASE("a reader of one tensor reads one block of the index", "[io][save_index]") {
  const scratch_folder folder("save-index");
  std::vector<io::detail::saved_part> parts;
  constexpr std::int64_t tensors = 40, ranks = 1024;
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t t = tensors; t-- > 0;)
      parts.push_back({r,
                       {"second_moment/h." + std::to_string(t) + ".mlp.c_fc.weight",
                        "f32",
                        {{4096, 4096}, {r * 4, 0}, {4, 4096}},
                        64 + t * 65536,
                        65536,
                        0x1234567890abcdefu}});
  io::detail::require_parts_fit(folder.path, parts, io::detail::coverage::whole);
  io::manifest m;
  const io::file_digest d = io::detail::write_index(io::durable_file(folder / "index"), parts);
  m.index_bytes = d.bytes;
  m.index_checksum = d.checksum;
  CHECK(d.bytes > 3 * (1 << 20));
  io::detail::save_index index(folder.path, m);
  CHECK(index.parts("second_moment/h.7.mlp.c_fc").empty());
  CHECK(index.parts("a").empty());
  const auto found = index.parts("second_moment/h.7.mlp.c_fc.weight");
  REQUIRE(found.size() == ranks);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const io::detail::saved_part& p = found[static_cast<std::size_t>(r)];
    REQUIRE(p.rank == r);
    REQUIRE(p.entry.region == io::tensor_region{{4096, 4096}, {r * 4, 0}, {4, 4096}});
    REQUIRE(p.entry.position == 64 + 7 * 65536);
    REQUIRE(p.entry.checksum == 0x1234567890abcdefu);
  }
  CHECK(index.index_bytes_read < (1 << 20));
  for (std::int64_t t = 0; t < tensors; ++t)
    CHECK(index.parts("second_moment/h." + std::to_string(t) + ".mlp.c_fc.weight").size() == ranks);
  CHECK(index.index_bytes_read <= d.bytes);
  // A block that is damaged is named when it is read, not before.
  std::string bytes = get(folder / "index");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  put(folder / "index", bytes);
  io::detail::save_index damaged(folder.path, m);
  const std::string what = message_of<heddle::io_error>([&] {
    for (std::int64_t t = 0; t < tensors; ++t)
      damaged.parts("second_moment/h." + std::to_string(t) + ".mlp.c_fc.weight");
  });
  CHECK(what.find("index': is damaged: the checksum of the block of tensor 'second_moment/h.") != std::string::npos);
}

// Overlaps and missing elements are looked for in a second of the processor's, by optimized code; a reader of one tensor
// reads less than 1 MiB.
void check_index_of(const std::int64_t tensors, const std::int64_t ranks) {
  const scratch_folder folder("save-index");
  const std::int64_t rows = 4096 / ranks, bytes = rows * 4096 * 4;
  const auto name = [](std::int64_t t) { return "weight/model.layers." + std::to_string(t) + ".mlp.up_proj.weight"; };
  std::vector<io::detail::saved_part> parts;
  parts.reserve(static_cast<std::size_t>(tensors * ranks));
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t t = 0; t < tensors; ++t)
      parts.push_back({r, {name(t), "f32", {{4096, 4096}, {r * rows, 0}, {rows, 4096}}, 64 + t * bytes, bytes, 17}});
  const auto check = [&] { io::detail::require_parts_fit(folder.path, parts, io::detail::coverage::whole); };
  const std::clock_t began = std::clock();
  check();
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  CAPTURE(seconds);
#if defined(__OPTIMIZE__)
  CHECK(seconds < 1);
#endif
  io::manifest m;
  const io::file_digest d = io::detail::write_index(io::durable_file(folder / "index"), parts);
  m.index_bytes = d.bytes;
  m.index_checksum = d.checksum;
  CHECK(d.bytes > 80 * tensors * ranks);
  for (const std::int64_t t : {std::int64_t{0}, std::int64_t{517}, tensors - 1}) {
    io::detail::save_index index(folder.path, m);
    const auto found = index.parts(name(t));
    REQUIRE(std::ssize(found) == ranks);
    CHECK(found.back().entry.region.offset[0] == 4096 - rows);
    CHECK(index.index_bytes_read < (1 << 20));
  }
  // A row too many, in the last part of the tensor that is last by name.
  parts.back().entry.region.offset[0] -= 1;
  const std::string what = "heddle: '" + folder.path.string() + "', tensor '" + parts.back().entry.name + "': ";
  CHECK_THAT(message_of<heddle::io_error>(check),
             StartsWith(what + "rank " + std::to_string(ranks - 1) + " saved ") && Contains(", which overlaps "));
}

TEST_CASE("an index of 1,024 tensors in 64 parts is checked at once and read in small blocks", "[io][save_index]") {
  check_index_of(1024, 64);
}
// Writes 110 MB.
TEST_CASE("an index of 1,024 tensors in 1,024 parts is checked in a second and read in blocks below 1 MiB",
          "[io][save_index][slow]") {
  check_index_of(1024, 1024);
}

TEST_CASE("a save has all elements of each tensor, each once", "[io][save_index][law]") {
  const std::uint64_t seed = 4512;
  INFO("seed " << seed);
  const heddle::counter_random random(seed, 0);
  std::uint64_t drawn = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random.integer(drawn++) % n); };
  int holes = 0, twice = 0;
  for (int round = 0; round < 300; ++round) {
    // A random cut of a box into boxes: each is cut in two, or stays.
    std::vector<io::tensor_region> boxes{io::tensor_region::whole({6, 7, 5})};
    for (int cut = 0; cut < 8; ++cut) {
      io::tensor_region& box = boxes[below(boxes.size())];
      const std::size_t d = below(3);
      if (box.local[d] < 2) continue;
      io::tensor_region rest = box;
      const auto at = static_cast<std::int64_t>(1 + below(static_cast<std::size_t>(box.local[d] - 1)));
      box.local[d] = at;
      rest.offset[d] += at;
      rest.local[d] -= at;
      boxes.push_back(rest);
    }
    std::vector<io::detail::saved_part> parts;
    const auto add = [&](const io::tensor_region& box) {
      parts.push_back({static_cast<std::int64_t>(parts.size()), {"t", "i8", box, 0, box.count(), 0}});
    };
    const std::size_t dropped = round % 3 == 1 ? below(boxes.size()) : boxes.size();
    for (std::size_t i = 0; i < boxes.size(); ++i)
      if (i != dropped) add(boxes[i]);
    if (round % 3 == 2) add(boxes[below(boxes.size())]);  // a replica is no second element
    const std::string what = message_of<heddle::io_error>(
        [&] { io::detail::require_parts_fit("save", parts, io::detail::coverage::whole); });
    CAPTURE(round, what);
    if (dropped == boxes.size() || boxes.size() == 1) {
      CHECK(what.empty());
      twice += round % 3 == 2;
      continue;
    }
    const std::int64_t left = 210 - boxes[dropped].count();
    REQUIRE(what == "heddle: 'save', tensor 't': the ranks saved " + std::to_string(left) +
                        " of the 210 elements of [6,7,5]; a save has all of each tensor");
    ++holes;
  }
  CHECK(holes > 50);
  CHECK(twice == 100);
  std::vector<io::detail::saved_part> shapes{{0, {"t", "i8", io::tensor_region::whole({4}), 0, 4, 0}},
                                             {3, {"t", "i8", io::tensor_region::whole({2, 2}), 0, 4, 0}}};
  CHECK(message_of<heddle::io_error>([&] {
          io::detail::require_parts_fit("save", shapes, io::detail::coverage::whole);
        }) == "heddle: 'save', tensor 't': rank 3 saved a part of shape [2,2], rank 0 of [4]");
}

TEST_CASE("a save of format 1 reads as one with an index", "[io][save_index]") {
  const scratch_folder folder("save-index");
  const std::vector<std::int64_t> shape{9, 4};
  const std::vector<io::tensor_region> boxes{{shape, {0, 0}, {4, 4}}, {shape, {4, 0}, {5, 4}}};
  const fs::path path = save(folder.path, boxes);
  const io::checkpoint_reader now(path);
  CHECK(now.index_bytes_read() > 0);
  io::manifest m = io::require_save(path);
  CHECK(now.contains("t"));  // an index is read when it is needed
  m.index_bytes = 0;
  m.index_checksum = 0;
  CHECK(io::to_text(m).find("\nformat=1\n") != std::string::npos);
  put(path / "manifest", io::to_text(m));
  fs::remove(path / "index");
  const io::checkpoint_reader before(path);
  CHECK(before.manifest() == m);
  for (const io::checkpoint_reader* reader : {&now, &before}) {
    const io::tensor_region middle{shape, {2, 1}, {5, 2}};
    std::vector<std::int32_t> out(10);
    reader->read<std::int32_t>("t", out, middle);
    CHECK(out == elements(middle));
    CHECK(reader->tensors(1).size() == 1);
  }
  CHECK(now.bytes_read() == before.bytes_read());
}

TEST_CASE("a save of a newer format is refused, and says what is known", "[io][save_index]") {
  const scratch_folder folder("save-index");
  const std::vector<io::tensor_region> boxes{io::tensor_region::whole({9, 4})};
  const fs::path path = save(folder.path, boxes), manifest = path / "manifest";
  std::string text = get(manifest);
  const std::size_t at = text.find("\nformat=");
  REQUIRE(at != std::string::npos);
  // Whatever else a later program writes: no checksum of ours, other lines.
  text.replace(at, text.find('\n', at + 1) - at, "\nformat=4\nnews=1");
  put(manifest, text);
  const std::string what = "heddle: '" + manifest.string() + "': format version 4; this program reads versions 1 to 3";
  CHECK(message_of<heddle::io_error>([&] { io::checkpoint_reader{path}; }) == what);
  CHECK(message_of<heddle::io_error>([&] { io::require_save(path); }) == what);
  // A search says so, and whoever was told to go on does not begin anew beside it.
  const io::search_result found = io::latest(folder.path);
  CHECK_FALSE(found.save.has_value());
  REQUIRE(found.skipped.size() == 1);
  CHECK_THAT(found.skipped[0], Contains("format version 4; this program reads versions 1 to 3"));
  CHECK_THAT(message_of<heddle::io_error>([&] { io::require_readable(found, folder.path); }),
             Contains("format version 4; this program reads versions 1 to 3"));
  CHECK(get(manifest) == text);
}

}  // namespace save_index_test
