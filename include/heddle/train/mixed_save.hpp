// heddle/train/mixed_save.hpp: the saved state of a stage with mixed element types.
#pragma once

#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/mixed_optimizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::train::detail {

// Of save.hpp.
template <class Parameter, class F>
void for_each_region(const Parameter& p, std::int64_t first, std::int64_t count, F&& f);

// The element types of a save beside the model's scalar, in words: none of a trainer without a `precision`.
template <class Optimizer>
struct saved_types {
  static std::string words() { return {}; }
};
template <class T, class Zero, class Precision>
struct saved_types<mixed_optimizer<T, Zero, Precision>> {
  using optimizer_type = mixed_optimizer<T, Zero, Precision>;
  static std::string words() {
    std::string text = " weights=";
    text += io::dtype_name<typename optimizer_type::weight_type>();
    text += " masters=";
    text += io::dtype_name<typename optimizer_type::master_type>();
    text += " moments=";
    text += io::dtype_name<typename optimizer_type::moment_type>();
    return text;
  }
};

template <class Optimizer, int Buckets>
struct saved_types<bucketed_optimizer<Optimizer, Buckets>> : saved_types<Optimizer> {};

// What this rank keeps of the weights of a parameter: f(first of the parameter, elements).
template <class Parameter, class Stage, class T, class Zero, class Precision, class F>
void for_kept_weights(const Parameter& p, Stage& stage, mixed_optimizer<T, Zero, Precision>& optimizer, F&& f) {
  const std::span<T> kept = optimizer.weights_of(stage);
  const std::int64_t begin = optimizer.weights_begin(), end = begin + static_cast<std::int64_t>(kept.size());
  const std::int64_t first = (std::max)(std::int64_t{p.offset}, begin);
  const std::int64_t last = (std::min)(std::int64_t{p.offset} + p.count, end);
  if (first < last)
    f(first - p.offset, kept.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first)));
}

// What this rank writes of one stage: each logical element once over all ranks.
template <class Stage, class T, class Zero, class Precision>
void write_stage(io::checkpoint_writer& writer, Stage& stage, mixed_optimizer<T, Zero, Precision>& optimizer,
                 bool weights_here, bool state_here) {
  using W = typename mixed_optimizer<T, Zero, Precision>::weight_type;
  const auto part = [](auto all, std::int64_t at, std::int64_t n) {
    return all.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  };
  const auto add = [&](const std::string& name, auto values, const io::tensor_region& region) {
    writer.add(name, std::span<const typename decltype(values)::value_type>(values), region);
  };
  for (const auto& p : stage.parameters()) {
    if (!p.counted || p.count == 0) continue;  // another rank holds the same copy
    if (weights_here)
      for_kept_weights(p, stage, optimizer, [&](std::int64_t first, std::span<T> kept) {
        buffer<W> rounded(static_cast<std::int64_t>(kept.size()));
        const std::span<W> all(rounded.data(), rounded.size());
        convert(std::span<const T>(kept), all);
        for_each_region(p, first, static_cast<std::int64_t>(all.size()),
                        [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
                          add("weight/" + p.name, part(all, at - first, n), region);
                        });
      });
    if (!state_here) continue;
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const std::int64_t from = in_share + at - first;
        if constexpr (mixed_optimizer<T, Zero, Precision>::keeps_masters)
          add("master/" + p.name, part(optimizer.masters(), from, n), region);
        add("first_moment/" + p.name, part(optimizer.first_moment(), from, n), region);
        add("second_moment/" + p.name, part(optimizer.second_moment(), from, n), region);
      });
    });
  }
}

// Reads elements that were saved in type From.
template <class From, class To>
void read_as(const io::checkpoint_reader& reader, const std::string& name, std::span<To> to,
             const io::tensor_region& region) {
  if constexpr (std::is_same_v<From, To>) {
    reader.read(name, to, region);
  } else {
    buffer<From> saved(static_cast<std::int64_t>(to.size()));
    reader.read(name, std::span<From>(saved.data(), saved.size()), region);
    convert(std::span<const From>(saved.data(), saved.size()), to);
  }
}

// `Plain`: a save of a trainer without a `precision`, whose weights become the masters.
template <bool Plain, class Stage, class T, class Zero, class Precision>
void read_mixed_stage(const io::checkpoint_reader& reader, Stage& stage,
                      mixed_optimizer<T, Zero, Precision>& optimizer) {
  using optimizer_type = mixed_optimizer<T, Zero, Precision>;
  using W = std::conditional_t<Plain, T, typename optimizer_type::weight_type>;
  using V = std::conditional_t<Plain, T, typename optimizer_type::moment_type>;
  const auto part = [](auto all, std::int64_t at, std::int64_t n) {
    return all.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  };
  for (const auto& p : stage.parameters()) {
    if (p.count == 0) continue;
    for_kept_weights(p, stage, optimizer, [&](std::int64_t first, std::span<T> kept) {
      for_each_region(p, first, static_cast<std::int64_t>(kept.size()),
                      [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
                        read_as<W>(reader, "weight/" + p.name, part(kept, at - first, n), region);
                      });
    });
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const std::int64_t to = in_share + at - first;
        if constexpr (!Plain && optimizer_type::keeps_masters)
          read_as<typename optimizer_type::master_type>(reader, "master/" + p.name, part(optimizer.masters(), to, n),
                                                        region);
        read_as<V>(reader, "first_moment/" + p.name, part(optimizer.first_moment(), to, n), region);
        read_as<V>(reader, "second_moment/" + p.name, part(optimizer.second_moment(), to, n), region);
      });
    });
  }
}
template <class Stage, class T, class Zero, class Precision>
void read_stage(const io::checkpoint_reader& reader, Stage& stage, mixed_optimizer<T, Zero, Precision>& optimizer) {
  if (reader.manifest().config.ends_with(saved_types<mixed_optimizer<T, Zero, Precision>>::words())) {
    read_mixed_stage<false>(reader, stage, optimizer);
  } else {
    read_mixed_stage<true>(reader, stage, optimizer);
    optimizer.adopt(optimizer.weights_of(stage));
  }
}

}  // namespace heddle::inline v0::train::detail
