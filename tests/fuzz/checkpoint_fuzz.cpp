// Manifests, their checksum made to match: what is accepted, printed and read again is the same. And saves of one rank
// with any index: a region that is read has no element that was not written.
#include <heddle/io/checkpoint.hpp>

#include "fuzz.hpp"

#include <limits>
#include <span>

HEDDLE_FUZZ_TARGET(checkpoint) {
  namespace io = heddle::io;
  namespace fs = std::filesystem;
  fuzz::bytes in(data, size);
  const unsigned how = in.byte();
  if (how % 4 != 0) {
    std::string text(in.rest());
    if (how % 4 != 1) {
      text = "heddle checkpoint\nformat=1\n" + text + "\n";
      text += "checksum=" + io::to_hex(io::checksum(std::as_bytes(std::span<const char>(text)))) + "\n";
    }
    fuzz::accepted([&] {
      const io::manifest m = io::parse_manifest(text, "the input");
      fuzz::require(io::parse_manifest(io::to_text(m), "itself") == m, "a manifest reads back");
    });
    return;
  }
  static const fs::path folder = [] {
    const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    const fs::path mine = base / ("heddle-fuzz-" + std::to_string(::getpid()));
    fs::create_directories(mine / "step-00000001");
    static struct cleaner {
      fs::path path;
      ~cleaner() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
      }
    } at_the_end{mine};
    return mine / "step-00000001";
  }();
  // Elements 0, 1, 2, .. of type i8 behind the head; the index says which tensors they are.
  std::string file = "heddle tensors 1\n" + std::string(47, '\0');
  for (int i = 0; i < 64; ++i) file += static_cast<char>(i);
  const std::string ones = io::to_hex(io::checksum(std::as_bytes(std::span<const char>(file).subspan(64, 64))));
  std::string index;
  for (std::string_view rest = in.rest(); !rest.empty();) {  // the checksum of a line that ends in '!' is made to match
    std::string line(io::detail::next_field(rest, '\n'));
    if (line.size() > 1 && line.back() == '!') line.back() = '\t', line += ones;
    index += line + "\n";
  }
  std::string tail = "\nindex " + io::to_hex(static_cast<std::uint64_t>(file.size())) + " " +
                     io::to_hex(io::checksum(std::as_bytes(std::span<const char>(index))));
  tail.resize(63, ' ');
  file += index + tail + "\n";
  io::manifest m;
  m.step = 1;  // as the folder's name
  m.files = {{0, static_cast<std::int64_t>(file.size()), 0}};
  const auto put = [](const fs::path& path, const std::string& text) {
    std::FILE* out = std::fopen(path.c_str(), "wb");
    fuzz::require(out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size(), "files are written");
    std::fclose(out);
  };
  put(folder / "rank-00000.tensors", file);
  put(folder / "manifest", io::to_text(m));
  fuzz::accepted([&] {
    const io::checkpoint_reader reader(folder);
    for (const io::tensor_entry& e : reader.tensors(0)) {
      const auto all = io::tensor_region::whole(e.region.global);
      if (all.count() > 4096) continue;
      std::vector<std::int8_t> out(static_cast<std::size_t>(all.count()), std::int8_t{-1});
      if (fuzz::accepted([&] { reader.read<std::int8_t>(e.name, out, all); }))
        for (const std::int8_t x : out) fuzz::require(x >= 0, "every element was written");
    }
  });
}
