// heddle/train/online/online_pairs.hpp: samples that a buffer draws, as training data of pairs.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/train/online/message.hpp>
#include <heddle/train/online/reservoir.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// Where draws are written down.
struct online_options {
  /// A file of the rank's own: inputs and targets of every sample drawn, numbers of 32 bits, in the order of
  /// training. `io::pairs` without shuffling trains on them again with the same bits. Empty: none.
  std::filesystem::path record{};
};

/// The samples of a rank's buffer, each as its step needs it (`sample_source`): which number a sample has in the
/// order of training decides nothing. `held_out`: what is validated on, such as `io::pairs` with all of it held out;
/// both must outlive it. Sizes of samples are those of `held_out`. One thread at a time may draw.
template <sample_buffer Buffer, class HeldOut>
  requires std::same_as<typename Buffer::sample, online_sample>
class online_pairs {
 public:
  /// Errors: `io_error` if draws are to be recorded and the file cannot be made.
  online_pairs(Buffer& buffer, const HeldOut& held_out, const online_options& options = {})
      : buffer_(&buffer), held_out_(&held_out) {
    if (!options.record.empty()) record_ = std::make_unique<io::durable_file>(options.record);
  }

  std::int64_t inputs() const { return held_out_->inputs(); }
  std::int64_t targets() const { return held_out_->targets(); }
  std::int64_t validation_samples() const { return held_out_->validation_samples(); }
  Buffer& buffer() const noexcept { return *buffer_; }
  /// Waits until samples can be drawn; false: there are no more.
  bool wait_ready() const { return buffer_->wait_ready(); }
  /// How many samples were taken a second time, since the buffer ended within a step.
  std::int64_t repeated() const noexcept { return repeated_; }
  /// Returns when all draws are on the disk. Errors: `io_error`.
  void close_record() {
    if (record_) record_->close();
    record_.reset();
  }

  /// Draws `block.count` samples; where the buffer ends within them, samples of the last draw come again. Errors:
  /// `config_error` if there never was one, or a sample has other sizes.
  template <class X, class Y>
  void fill_train(io::sample_block block, std::span<X> x, std::span<Y> y) const {
    if (block.count <= 0) return;
    std::vector<online_sample> drawn(static_cast<std::size_t>(block.count));
    const std::int64_t n = buffer_->get(std::span(drawn));
    drawn.resize(static_cast<std::size_t>(n));
    if (n > 0) last_ = std::move(drawn);
    if (last_.empty()) throw config_error("heddle: online training: the buffer was closed before a sample arrived");
    repeated_ += block.count - n;
    const auto in = static_cast<std::size_t>(inputs()), out = static_cast<std::size_t>(targets());
    for (std::size_t i = 0; i < static_cast<std::size_t>(block.count); ++i) {
      const online_sample& s = last_[i % last_.size()];
      if (s.inputs.size() != in || s.targets.size() != out)
        throw config_error("heddle: online training: a sample of " + std::to_string(s.inputs.size()) + " inputs and " +
                           std::to_string(s.targets.size()) + " targets; expected " + std::to_string(in) + " and " +
                           std::to_string(out));
      std::transform(s.inputs.begin(), s.inputs.end(), x.begin() + static_cast<std::ptrdiff_t>(i * in),
                     [](float v) { return static_cast<X>(v); });
      std::transform(s.targets.begin(), s.targets.end(), y.begin() + static_cast<std::ptrdiff_t>(i * out),
                     [](float v) { return static_cast<Y>(v); });
      if (!record_) continue;
      record_->write(std::as_bytes(std::span(s.inputs)));
      record_->write(std::as_bytes(std::span(s.targets)));
    }
  }
  template <class X, class Y>
  void fill_validation(io::sample_block block, std::span<X> x, std::span<Y> y) const {
    held_out_->fill_validation(block, x, y);
  }

 private:
  Buffer* buffer_;
  const HeldOut* held_out_;
  std::unique_ptr<io::durable_file> record_{};
  mutable std::vector<online_sample> last_{};
  mutable std::int64_t repeated_ = 0;
};

}  // namespace heddle::inline v0::train
