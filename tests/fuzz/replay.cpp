// Runs every fuzz target over its seed corpus, tests/fuzz/corpus/<target>/*, and over cuts and changes of each seed.
#include "fuzz.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2) return std::fprintf(stderr, "usage: replay FOLDER\n"), 2;
  int failed = 0;
  for (const fuzz::target& t : fuzz::targets()) {
    std::vector<fs::path> seeds;
    std::error_code none;
    for (const auto& e : fs::directory_iterator(fs::path(argv[1]) / t.name, none)) seeds.push_back(e.path());
    std::sort(seeds.begin(), seeds.end());
    int runs = 0;
    const auto run = [&](const std::string& text) {
      t.run(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      ++runs;
    };
    for (const fs::path& path : seeds) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      run(text);
      const std::size_t step = text.size() / 16 + 1;
      for (std::size_t n = 0; n < text.size(); n += step) {
        run(text.substr(0, n));
        std::string changed = text;
        changed[n] = static_cast<char>(changed[n] ^ 5);
        run(changed);
      }
    }
    std::printf("%-16s %zu seeds, %d inputs\n", t.name, seeds.size(), runs);
    failed += seeds.empty();
  }
  if (failed > 0) std::fprintf(stderr, "%d targets have no seeds\n", failed);
  return failed == 0 ? 0 : 1;
}
