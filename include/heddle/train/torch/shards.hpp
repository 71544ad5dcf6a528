// heddle/train/torch/shards.hpp: writes tensors as PyTorch's ranks do, by boxes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/safetensors/parts.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Boxes of one tensor that do not overlap, as few as there are when neighbours become one.
inline std::vector<flat_box> put_together(std::vector<flat_box> boxes) {
  std::sort(boxes.begin(), boxes.end(), [](const flat_box& a, const flat_box& b) { return a.start < b.start; });
  for (std::size_t d = boxes.empty() ? 0 : boxes.front().start.size(); d-- > 0;) {
    std::map<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>, std::size_t> last;
    std::vector<flat_box> fewer;
    for (flat_box& b : boxes) {
      auto key = std::pair(b.start, b.extents);
      key.first[d] = key.second[d] = 0;
      const auto [at, is_first] = last.try_emplace(std::move(key), fewer.size());
      if (!is_first) {
        flat_box& before = fewer[at->second];
        if (before.start[d] + before.extents[d] == b.start[d]) {
          before.extents[d] += b.extents[d];
          before.count += b.count;
          continue;
        }
        at->second = fewer.size();
      }
      fewer.push_back(std::move(b));
    }
    boxes = std::move(fewer);
  }
  return boxes;
}

// A `tensor_sink` that writes nothing: which elements of each tensor of a plan it is given.
class asked_elements {
 public:
  struct output {
    asked_elements* of;
    std::size_t at;
    const io::safetensors_outline& outline() const noexcept { return of->plan_->tensors()[at]; }
    std::span<const std::int64_t> shape() const noexcept { return outline().shape; }
    std::string where() const { return "tensor '" + shown_name(outline().name) + "'"; }
    template <class T>
    void write(std::int64_t first, std::span<const T> values) {
      const auto count = std::ssize(values);
      if (count == 0) return;
      if (first < 0 || count > outline().count() - first)
        throw io_error("heddle: " + where() + ": elements from " + std::to_string(first) + " to " +
                       std::to_string(first + count) + " are to be written, there are " +
                       std::to_string(outline().count()));
      auto& runs = of->runs_[at];
      if (!runs.empty() && runs.back().second == first)
        runs.back().second += count;
      else
        runs.emplace_back(first, first + count);
    }
  };

  explicit asked_elements(const io::safetensors_plan& plan) : plan_(&plan), runs_(plan.tensors().size()) {}
  output tensor(std::string_view name) { return {this, plan_->find(name)}; }
  std::vector<flat_box> boxes(std::size_t tensor) const {
    std::vector<flat_box> all;
    for (const auto& [begin, end] : runs_[tensor])
      for (flat_box& b : boxes_of(plan_->tensors()[tensor].shape, begin, end)) all.push_back(std::move(b));
    return put_together(std::move(all));
  }

 private:
  const io::safetensors_plan* plan_;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> runs_;
};

// The files of one rank: a file has at most one box of a tensor, as PyTorch reads one by its name.
class shard_files {
 public:
  shard_files(const io::safetensors_plan& whole, const asked_elements& asked, std::int64_t most_bytes)
      : whole_(&whole), places_(whole.tensors().size()) {
    std::vector<std::vector<io::safetensors_outline>> layers;  // the k-th boxes of all tensors
    for (std::size_t t = 0; t < places_.size(); ++t) {
      std::vector<flat_box> boxes = asked.boxes(t);
      if (layers.size() < boxes.size()) layers.resize(boxes.size());
      for (std::size_t k = 0; k < boxes.size(); ++k) {
        layers[k].push_back({whole.tensors()[t].name, whole.tensors()[t].dtype, boxes[k].extents});
        places_[t].push_back({std::move(boxes[k]), 0});
      }
    }
    for (std::size_t k = 0; k < layers.size(); ++k)
      for (const auto& file : io::detail::split_into_files(std::span<const io::safetensors_outline>(layers[k]),
                                                           most_bytes, "heddle: the files of a rank: ")) {
        auto& one = files_.emplace_back();
        for (const io::safetensors_outline* t : file) {
          places_[whole.find(t->name)][k].file = files_.size() - 1;
          one.push_back(*t);
        }
      }
  }

  std::int64_t files() const noexcept { return std::ssize(files_); }
  // Begins the files: `number_of_last` is the greatest number that a file of any rank has.
  void begin(const std::filesystem::path& folder, int rank, std::int64_t number_of_last) {
    const auto padded = [](std::int64_t n) {
      const std::string digits = std::to_string(n);
      return digits.size() < 5 ? std::string(5 - digits.size(), '0') + digits : digits;
    };
    for (std::size_t f = 0; f < files_.size(); ++f) {
      nlohmann::json info = nlohmann::json::object();
      for (const io::safetensors_outline& t : files_[f])
        for (const place& p : places_[whole_->find(t.name)])
          if (p.file == f) info[t.name] = {{"saved_offsets", p.box.start}};
      plans_.push_back(std::make_unique<io::safetensors_plan>(
          std::move(files_[f]), (std::numeric_limits<std::int64_t>::max)(),
          io::safetensors_options{{{"DCP_SHARDING_INFO", info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}}},
          "shard-" + padded(rank + 1) + "-model-" + padded(static_cast<std::int64_t>(f) + 1) + "-of-" +
              padded(number_of_last)));
      io::begin_safetensors(folder, *plans_.back());
      writers_.push_back(std::make_unique<io::safetensors_part_writer>(folder, *plans_.back()));
    }
    folder_ = folder;
  }

  struct output {
    shard_files* of;
    std::size_t at;
    const io::safetensors_outline& outline() const noexcept { return of->whole_->tensors()[at]; }
    std::span<const std::int64_t> shape() const noexcept { return outline().shape; }
    std::string where() const { return "'" + of->folder_.string() + "', tensor '" + shown_name(outline().name) + "'"; }
    template <class T>
    void write(std::int64_t first, std::span<const T> values) {
      for (const flat_box& b : boxes_of(outline().shape, first, first + std::ssize(values))) {
        const place& to = of->place_of(at, b);
        std::int64_t local = 0;
        for (std::size_t d = 0; d < b.start.size(); ++d)
          local = local * to.box.extents[d] + b.start[d] - to.box.start[d];
        of->writers_[to.file]
            ->tensor(outline().name)
            .write(local, values.subspan(static_cast<std::size_t>(b.first - first), static_cast<std::size_t>(b.count)));
      }
    }
  };
  output tensor(std::string_view name) { return {this, whole_->find(name)}; }
  // Bytes of elements that were written, which are on the disk then.
  std::int64_t finish() {
    std::int64_t bytes = 0;
    for (auto& w : writers_) {
      w->finish();
      bytes += w->bytes_written();
    }
    return bytes;
  }
  void commit() {
    for (std::size_t f = 0; f < plans_.size(); ++f)
      io::commit_safetensors(folder_, *plans_[f], writers_[f]->bytes_written());
  }

 private:
  struct place {
    flat_box box;
    std::size_t file = 0;
  };
  const place& place_of(std::size_t tensor, const flat_box& part) const {
    for (const place& p : places_[tensor]) {
      bool is_in = true;
      for (std::size_t d = 0; d < part.start.size(); ++d)
        is_in = is_in && part.start[d] >= p.box.start[d] &&
                part.start[d] + part.extents[d] <= p.box.start[d] + p.box.extents[d];
      if (is_in) return p;
    }
    throw io_error("heddle: tensor '" + shown_name(whole_->tensors()[tensor].name) +
                   "': other elements are written than were asked for");
  }

  const io::safetensors_plan* whole_;
  std::vector<std::vector<place>> places_;
  std::vector<std::vector<io::safetensors_outline>> files_;
  std::vector<std::unique_ptr<io::safetensors_plan>> plans_;
  std::vector<std::unique_ptr<io::safetensors_part_writer>> writers_;
  std::filesystem::path folder_;
};

}  // namespace detail

/// What `write_torch_shards` has written: bytes of elements by this rank, and files by all.
struct torch_shards {
  std::int64_t bytes = 0;
  std::int64_t files = 0;
};

/// Writes the tensors of `plan` as PyTorch's ranks write theirs (`HuggingFaceStorageWriter`): each rank files of its
/// own, shard-RANK-model-K-of-N.safetensors, with boxes of tensors whose places DCP_SHARDING_INFO has.
/// `torch.distributed.checkpoint.load` reads the folder with `HuggingFaceStorageReader` into any layout, and
/// `io::torch_folder` reads it. `write(sink, is_dry)` writes what this rank has, twice: first nothing is kept but which
/// elements they are. Called on all ranks of `world` together. Files have at most `most_bytes` of elements.
/// Errors: as `write_together`.
template <class World, class Write>
torch_shards write_torch_shards(World& world, const std::filesystem::path& folder, const io::safetensors_plan& plan,
                                Write&& write, std::int64_t most_bytes = 5000000000) {
  auto& all = world.control();
  detail::asked_elements asked(plan);
  std::unique_ptr<detail::shard_files> files;
  io_together(world, [&] {
    write(asked, true);
    files = std::make_unique<detail::shard_files>(plan, asked, most_bytes);
  });
  torch_shards written{0, files->files()};
  std::int64_t last = files->files();
  all.all_reduce(std::span(&last, 1), maximum{});
  all.all_reduce(std::span(&written.files, 1), plus{});
  io_together(world, [&] {
    files->begin(folder, all.rank(), last);
    write(*files, false);
    written.bytes = files->finish();
  });
  std::int64_t sum = written.bytes;
  all.all_reduce(std::span(&sum, 1), plus{});
  io_together(world, [&] {
    if (sum != plan.data_bytes())
      throw io_error("heddle: '" + folder.string() + "': " + std::to_string(sum) +
                     " bytes of elements were written by all ranks together, the tensors have " +
                     std::to_string(plan.data_bytes()) + ": some were left out, or written twice");
    files->commit();
  });
  return written;
}

}  // namespace heddle::inline v0::train
