// What saves cost a training run: a step held by a save in the background against one copy of the rank's bytes, and a
// save that is waited for against writing and flushing the same bytes, on ranks that are threads, in turn. Then the
// index of a save of 1,024 tensors in 1,024 parts.
// Usage: save_bench [folder = .] [rounds = 3] [layers = 12] [ranks = 2]
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/background_saves.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace {

namespace hd = heddle;
namespace fs = std::filesystem;
using mesh = hd::mesh<hd::axis<hd::dp>>;
using strategy =
    hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<1>>, hd::zero<0>, hd::compute::host<HEDDLE_GEMM>>;

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Writes as much as plain calls can, and returns when it is on the disk.
void write_and_flush(const fs::path& path, std::span<const char> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (std::size_t at = 0; at < bytes.size();) {
    const ::ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (n <= 0) throw hd::io_error("save_bench: cannot write " + path.string());
    at += static_cast<std::size_t>(n);
  }
  if (fd < 0 || ::fsync(fd) != 0 || ::close(fd) != 0) throw hd::io_error("save_bench: cannot flush " + path.string());
}

void saves(const fs::path& folder, int rounds, int layers, int ranks) {
  hd::train::options<hd::model::gpt2_config> options;
  options.model = {.layers = layers, .heads = 8, .width = 512, .context = 16, .vocabulary = 8192};
  options.batch = ranks;
  options.steps = 1000000;
  options.threads_per_rank = 1;
  hd::launch<hd::threads>(mesh{ranks}, [&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, strategy, std::remove_reference_t<decltype(world)>> trainer(world,
                                                                                                           options);
    auto& all = world.control();
    const auto timed = [&](auto&& work) {  // of the slowest rank
      all.barrier();
      const std::int64_t begin = hd::now_ns();
      work();
      double seconds = static_cast<double>(hd::now_ns() - begin) * 1e-9;
      all.all_reduce(std::span<double>(&seconds, 1), hd::maximum{});
      return seconds;
    };
    const bool speaks = world.rank() == 0;
    std::vector<double> held, snapshot, copied, waited, written, there;
    {
      hd::train::background_saves background(trainer, folder / "background", {});
      std::int64_t step = 0;
      const auto next = [&] {  // saves of one step would replace each other
        all.barrier();
        ++step;
        trainer.set_position(step, ranks * step);
      };
      next();
      background(trainer);
      background.wait();
      const auto bytes = static_cast<std::size_t>(background.stats().copy_bytes);
      std::vector<char> from(bytes);
      for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(i * 2654435761u >> 13);
      std::vector<char> to(bytes, 2);
      // From everywhere to everywhere, as a save does.
      for (int round = 0; round < rounds; ++round) {
        copied.push_back(timed([&] { std::memcpy(to.data(), from.data(), bytes); }));
        next();
        held.push_back(timed([&] { background(trainer); }));
        snapshot.push_back(1e-9 * static_cast<double>(background.stats().last_copy_ns));
        there.push_back(timed([&] { background.wait(); }));
        // What a disk takes in at once may depend on what it has had: each comes first in turn.
        for (const bool plainly : {round % 2 == 0, round % 2 != 0}) {
          const fs::path plain = folder / ("plain-" + std::to_string(world.rank()));
          fs::remove(plain);
          if (plainly) {
            written.push_back(timed([&] { write_and_flush(plain, std::span(to)); }));
          } else {
            next();
            waited.push_back(timed([&] { hd::train::save(trainer, folder / "waited"); }));
          }
        }
      }
      if (speaks) {
        const double all_bytes = static_cast<double>(bytes) * ranks;
        const auto line = [&](const char* name, const std::vector<double>& seconds, const char* text, double with) {
          std::printf("%-44s%8.1f ms   %7.0f MB/s   ", name, 1e3 * median(seconds), all_bytes * 1e-6 / median(seconds));
          std::printf(text, with);
        };
        std::printf("ranks, bytes of one                         %8d %14zu\n", ranks, bytes);
        line("one copy of a rank's bytes", copied, "\n", 0);
        line("step held by a save in the background", held, "%.2f x the copy\n", median(held) / median(copied));
        line("  of it the copy, on rank 0", snapshot, "\n", 0);
        line("write and fsync of the same bytes", written, "\n", 0);
        line("save that is waited for", waited, "%.2f x write and fsync\n", median(waited) / median(written));
        line("save in the background there after", there, "\n", 0);
        std::printf("held / waited for                           %8.2f %%\n", 100 * median(held) / median(waited));
        std::printf("held / writing as much at 500 MB/s          %8.2f %%\n", 100 * median(held) * 500e6 / all_bytes);
      }
    }
  });
}

void index_of_many(const fs::path& folder) {
  namespace io = hd::io;
  constexpr std::int64_t tensors = 1024, ranks = 1024;
  std::vector<io::detail::saved_part> parts;
  parts.reserve(tensors * ranks);
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t t = 0; t < tensors; ++t)
      parts.push_back({r,
                       {"weight/model.layers." + std::to_string(t) + ".mlp.up_proj.weight",
                        "f32",
                        {{4096, 4096}, {r * 4, 0}, {4, 4096}},
                        64 + t * 65536,
                        65536,
                        0x1234567890abcdefu}});
  // The processor's seconds, which other programs change less.
  const auto timed = [](auto&& work) {
    const std::clock_t begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  std::printf("1,024 tensors in 1,024 parts: sorted, overlaps and holes looked for  %.2f s\n",
              timed([&] { io::detail::require_parts_fit(folder, parts, io::detail::coverage::whole); }));
  io::file_digest d;
  const double wrote = timed([&] { d = io::detail::write_index(io::durable_file(folder / "index"), parts); });
  std::printf("index written, %.1f MB                                               %.2f s\n",
              static_cast<double>(d.bytes) * 1e-6, wrote);
  io::manifest m;
  m.index_bytes = d.bytes;
  m.index_checksum = d.checksum;
  const double read = timed([&] {
    io::detail::save_index index(folder, m);
    const std::size_t found = index.parts("weight/model.layers.7.mlp.up_proj.weight").size();
    std::printf("%zu parts of one tensor found, %.0f kB read ", found,
                static_cast<double>(index.index_bytes_read.load()) * 1e-3);
  });
  std::printf("                         %.4f s\n", read);
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder =
      fs::path(argc > 1 ? argv[1] : ".") / ("save_bench-" + std::to_string(static_cast<int>(::getpid())));
  fs::create_directories(folder);
  int status = 0;
  try {
    const auto number = [&](int i, int otherwise) { return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise; };
    saves(folder, number(2, 3), number(3, 12), number(4, 2));
    index_of_many(folder);
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    status = 1;
  }
  fs::remove_all(folder);
  return status;
}
