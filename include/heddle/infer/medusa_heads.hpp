// heddle/infer/medusa_heads.hpp: heads that predict tokens further on, with their weights.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::infer {

/// `heads` heads of Medusa for `medusa_speculation`: with n = rms_norm(x) w of a row x of the residual stream, head k gives the logits (n + silu(n W_k')) V_k'. Weights are those
/// that `model::with_medusa_head` trains, one head at a time. They are on the rank that leads, whole, and in the memory of the host.
/// Shapes: w [width], W_k [width, width], V_k [vocabulary, width].
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.1.1.
template <class T, class Backend>
class medusa_heads {
 public:
  using scalar = T;

  /// Weights begin as zeros. The backend must outlive it. `epsilon`: of the norm.
  /// Errors: `config_error` for sizes that are not positive.
  medusa_heads(Backend& backend, std::int64_t heads, std::int64_t width, std::int64_t vocabulary, double epsilon)
      : backend_(&backend), heads_(heads), width_(width), vocabulary_(vocabulary), epsilon_(static_cast<T>(epsilon)) {
    if (heads < 1 || width < 1 || vocabulary < 1)
      throw config_error("heddle: medusa_heads: heads, width and vocabulary should be at least 1, got " +
                         std::to_string(heads) + ", " + std::to_string(width) + " and " + std::to_string(vocabulary));
    for (std::int64_t k = 0; k < heads; ++k) {
      weights_.emplace_back();
      for (std::size_t i = 0; i < kinds; ++i) weights_.back()[i].resize(static_cast<std::size_t>(elements(i)));
    }
  }

  std::int64_t heads() const noexcept { return heads_; }
  std::int64_t vocabulary() const noexcept { return vocabulary_; }
  std::int64_t width() const noexcept { return width_; }
  std::span<T> norm(std::int64_t head) { return weights_.at(static_cast<std::size_t>(head))[0]; }
  std::span<T> square(std::int64_t head) { return weights_.at(static_cast<std::size_t>(head))[1]; }
  std::span<T> words(std::int64_t head) { return weights_.at(static_cast<std::size_t>(head))[2]; }

  /// Heads that know nothing: norms of ones and normal weights of this deviation.
  void initialize(std::uint64_t seed, double deviation) {
    for (std::int64_t k = 0; k < heads_; ++k) {
      std::fill(norm(k).begin(), norm(k).end(), T(1));
      const counter_random random(seed, static_cast<std::uint64_t>(k));
      std::uint64_t n = 0;
      for (const std::span<T> w : {square(k), words(k)})
        for (T& x : w) x = static_cast<T>(deviation * random.normal(n++));
    }
  }
  /// Takes what a rank has of head `head` from its last stage of a `model::with_medusa_head`; where ranks have parts, one after the other is to be taken from.
  /// Returns the number of elements; those of all parts are `elements()`. `norm_name`: the parameter that is the final norm.
  template <class Stage>
  std::int64_t take(std::int64_t head, Stage& stage, std::string_view norm_name = "model.norm.weight") {
    return take_named(head, stage, {norm_name, "medusa_head.0.linear.weight", "medusa_head.1.weight"});
  }
  /// The same of all heads from a stage of a `model::with_medusa_heads`, which was trained with them. Returns the number of elements; those of all parts are `heads() * elements()`.
  template <class Stage>
  std::int64_t take_joint(Stage& stage, std::string_view norm_name = "model.norm.weight") {
    std::int64_t taken = 0;
    for (std::int64_t k = 0; k < heads_; ++k) {
      const std::string square = name(k, 1), words = name(k, 2);
      taken += take_named(k, stage, {norm_name, square, words});
    }
    return taken;
  }
  /// Puts heads that were trained alone into a stage of a `model::with_medusa_heads`, before it is trained with them: its squares and words; the norm is the model's. Returns the number of
  /// elements. Where weights are kept twice (`masters_in<float>`), call `train::adopt_weights(trainer)` after it.
  template <class Stage>
  std::int64_t put_joint(Stage& stage) const {
    model::detail::require_weights_here(stage, "medusa_heads::put_joint");
    std::int64_t put = 0;
    for (const model::parameter& p : stage.parameters())
      for (std::int64_t k = 0; k < heads_; ++k)
        for (const std::size_t i : {std::size_t{1}, std::size_t{2}})
          if (p.name == name(k, i)) {
            if (p.global_count() != elements(i))
              throw config_error("heddle: medusa_heads: '" + p.name + "' should have " + std::to_string(elements(i)) +
                                 " elements, got " + std::to_string(p.global_count()));
            const std::vector<T>& from = weights_[static_cast<std::size_t>(k)][i];
            model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
              std::copy_n(from.data() + global, length, stage.weights().data() + p.offset + local);
              put += length;
            });
          }
    return put;
  }
  /// Elements of one head.
  std::int64_t elements() const noexcept { return elements(0) + elements(1) + elements(2); }

  /// Writes all heads to a file. Errors: `io_error`.
  void save(const std::filesystem::path& path) const {
    io::tensor_file_writer file(path);
    for (std::int64_t k = 0; k < heads_; ++k)
      for (std::size_t i = 0; i < kinds; ++i)
        file.add(name(k, i), std::span<const T>(weights_[static_cast<std::size_t>(k)][i]),
                 io::tensor_region::whole(shape(i)));
    file.finish();
  }
  /// Reads what `save` wrote. Errors: `config_error` for a file without these heads, `io_error` for a damaged one.
  void load(const std::filesystem::path& path) {
    const std::vector<io::tensor_entry> index = io::read_tensor_index(path);
    for (std::int64_t k = 0; k < heads_; ++k)
      for (std::size_t i = 0; i < kinds; ++i) {
        const std::string wanted = name(k, i);
        const auto at =
            std::find_if(index.begin(), index.end(), [&](const io::tensor_entry& e) { return e.name == wanted; });
        if (at == index.end() || at->region != io::tensor_region::whole(shape(i)) || at->dtype != io::dtype_name<T>())
          throw config_error("heddle: medusa_heads: '" + path.string() + "' should have '" + wanted + "' with " +
                             std::to_string(elements(i)) + " elements of " + std::string(io::dtype_name<T>()) +
                             (at == index.end()
                                  ? ", it does not have it"
                                  : ", it has " + std::to_string(at->region.count()) + " of " + at->dtype));
        const std::vector<std::byte> bytes = io::read_tensor_bytes(path, *at);
        std::memcpy(weights_[static_cast<std::size_t>(k)][i].data(), bytes.data(), bytes.size());
      }
  }

  /// Logits of all heads. Shapes: streams [rows, width], logits [rows, heads, vocabulary]. Errors: `layout_error` for other sizes.
  void run(std::span<const T> streams, std::int64_t rows, std::span<T> logits) {
    if (std::ssize(streams) != rows * width_ || std::ssize(logits) != rows * heads_ * vocabulary_) [[unlikely]]
      throw layout_error("heddle: medusa_heads: " + std::to_string(rows) + " rows should have streams of " +
                         std::to_string(rows * width_) + " elements and logits of " +
                         std::to_string(rows * heads_ * vocabulary_) + ", got " + std::to_string(streams.size()) +
                         " and " + std::to_string(logits.size()));
    const auto n = static_cast<std::size_t>(rows * width_);
    for (std::vector<T>* v : {&normed_, &gate_, &ones_}) v->resize(n);
    std::fill(ones_.begin(), ones_.end(), T(1));
    deviations_.resize(static_cast<std::size_t>(rows));
    found_.resize(static_cast<std::size_t>(rows * vocabulary_));
    for (std::int64_t k = 0; k < heads_; ++k) {
      compute::run<compute::ops::rms_norm>(*backend_, in(streams.data(), rows, width_), std::span<const T>(norm(k)),
                                           epsilon_, out(normed_, rows, width_), std::span<T>(deviations_));
      compute::matmul<compute::transpose::no, compute::transpose::yes>(*backend_, in(normed_.data(), rows, width_),
                                                                       in(square(k).data(), width_, width_),
                                                                       out(gate_, rows, width_), T(0));
      compute::run<compute::ops::gated<compute::silu>>(*backend_, std::span<const T>(gate_), std::span<const T>(ones_),
                                                       std::span<T>(gate_));
      compute::run<compute::ops::add>(*backend_, std::span<const T>(normed_), std::span<const T>(gate_),
                                      std::span<T>(gate_));
      compute::matmul<compute::transpose::no, compute::transpose::yes>(*backend_, in(gate_.data(), rows, width_),
                                                                       in(words(k).data(), vocabulary_, width_),
                                                                       out(found_, rows, vocabulary_), T(0));
      for (std::int64_t r = 0; r < rows; ++r)
        std::copy_n(found_.begin() + r * vocabulary_, vocabulary_, logits.begin() + (r * heads_ + k) * vocabulary_);
    }
  }

 private:
  static constexpr std::size_t kinds = 3;  // norm, square, words

  template <class Stage>
  std::int64_t take_named(std::int64_t head, Stage& stage, const std::array<std::string_view, kinds>& names) {
    model::detail::require_weights_here(stage, "medusa_heads::take");
    std::int64_t taken = 0;
    const auto from = [&](const std::vector<model::parameter>& table, auto weights) {
      for (const model::parameter& p : table)
        for (std::size_t i = 0; i < kinds; ++i)
          if (p.name == names[i]) {
            if (p.global_count() != elements(i))
              throw config_error("heddle: medusa_heads: '" + p.name + "' should have " + std::to_string(elements(i)) +
                                 " elements, got " + std::to_string(p.global_count()));
            std::vector<T>& to = weights_.at(static_cast<std::size_t>(head))[i];
            model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
              std::copy_n(weights.data() + p.offset + local, length, to.data() + global);
              taken += length;
            });
          }
    };
    from(stage.parameters(), stage.weights());
    from(stage.frozen_parameters(), stage.frozen_weights());
    return taken;
  }

  std::vector<std::int64_t> shape(std::size_t kind) const {
    if (kind == 0) return {width_};
    return {kind == 1 ? width_ : vocabulary_, width_};
  }
  std::int64_t elements(std::size_t kind) const noexcept {
    return kind == 0 ? width_ : (kind == 1 ? width_ : vocabulary_) * width_;
  }
  // As the reference implementation names them.
  static std::string name(std::int64_t head, std::size_t kind) {
    constexpr const char* ends[] = {".norm.weight", ".0.linear.weight", ".1.weight"};
    return "medusa_head." + std::to_string(head) + ends[kind];
  }
  static matrix_view<const T> in(const T* at, std::int64_t rows, std::int64_t columns) {
    return {at, dynamic_shape<2>(rows, columns)};
  }
  static matrix_view<T> out(std::vector<T>& v, std::int64_t rows, std::int64_t columns) {
    return {v.data(), dynamic_shape<2>(rows, columns)};
  }

  Backend* backend_;
  std::int64_t heads_, width_, vocabulary_;
  T epsilon_;
  std::vector<std::array<std::vector<T>, kinds>> weights_{};
  std::vector<T> normed_{}, gate_{}, ones_{}, deviations_{}, found_{};
};

}  // namespace heddle::inline v0::infer
