// examples/offload_option.hpp: the option --offload of programs that train: saved activations go to files between forward and backward.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/offload_if_told.hpp>
#include <heddle/train/activations/store_files.hpp>

#include "tool.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace offload_option {

namespace hd = heddle;

/// As many blocks as the drives take and give behind the computation; those that save less than 64 KiB of a microbatch stay.
using policy = hd::activations::offload_if_told<
    hd::activations::offload<hd::activations::found_file_store, hd::activations::amount::adaptive,
                             hd::activations::prefetch::ahead<2>, hd::activations::min_bytes<65536>>>;

inline void add(tool::command_line& app, std::vector<std::string>& folders) {
  app.add_option("--offload", folders,
                 "folders on fast drives, such as /nvme0,/nvme1: saved activations wait there for their backward, as "
                 "many as the drives "
                 "take without holding up a step")
      ->delimiter(',')
      ->take_all()
      ->otherwise("they stay in memory");
}

/// Errors: `io_error` for a folder that cannot be written, `usage_error` for one without a name.
inline void require_written(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (folder.empty())
      throw tool::usage_error("heddle: --offload needs folders such as /nvme0,/nvme1, got an empty one");
  if (!folders.empty()) hd::activations::store_files{{.directories = folders}};
}

/// Says what has left, over all ranks, if they have saved anything: every rank calls it.
template <class Trainer>
void say(Trainer& trainer, const std::vector<std::string>& folders) {
  if (folders.empty()) return;
  std::array<std::int64_t, 4> sums{};  // bytes written and read, blocks that leave, what blocks have saved
  for (int k = 0; k < trainer.stages(); ++k) {
    const hd::activations::offload_report r = trainer.stage(k).saved_layers().report();
    sums[0] += r.store.bytes_written;
    sums[1] += r.store.bytes_read;
    sums[2] += r.offloaded_layers;
    sums[3] += r.tensors.stored + r.tensors.kept;
  }
  trainer.ranks().control().all_reduce(std::span(sums), hd::plus{});
  if (trainer.ranks().rank() != 0 || sums[3] == 0) return;  // none: other trainers made the steps, as in windows
  std::string to;
  for (const std::string& folder : folders) to += (to.empty() ? "" : ", ") + folder;
  std::printf(
      "offload      %.1f MB of activations written to %s, %.1f MB read; %lld blocks of all ranks leave in a step\n",
      static_cast<double>(sums[0]) * 1e-6, to.c_str(), static_cast<double>(sums[1]) * 1e-6,
      static_cast<long long>(sums[2]));
}

}  // namespace offload_option
