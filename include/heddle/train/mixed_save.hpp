// heddle/train/mixed_save.hpp: the saved state of a stage with mixed element types.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/saved_boxes.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::train::detail {

// The part of tensor `p` at [first, first + count) of the rank's part, as boxes of the whole tensor: f(region, at, elements).
template <class F>
void for_each_region(const saved_parameter& p, std::int64_t first, std::int64_t count, F&& f) {
  for (const saved_box& b : saved_boxes(p, {first, static_cast<std::size_t>(first), static_cast<std::size_t>(count)}))
    f(b.region, static_cast<std::int64_t>(b.at), static_cast<std::int64_t>(b.count));
}

// What a save says of its optimizer beside the model and its scalar: the rule that is not the default, and element types under a `precision`.
template <class Optimizer>
struct saved_optimizer;
template <class T, class Rule, class Precision, class Zero, class Space>
struct saved_optimizer<sharded_optimizer<T, Rule, Precision, Zero, Space>> {
  using optimizer_type = sharded_optimizer<T, Rule, Precision, Zero, Space>;
  static std::string rule() {
    if constexpr (has_kernels_of_backend<Rule>)
      return {};
    else
      return heddle::detail::text_of({" optimizer=", Rule::name});
  }
  static std::string types() {
    if constexpr (optimizer_type::is_plain)
      return {};
    else
      return heddle::detail::text_of({" weights=", io::dtype_name<typename optimizer_type::weight_type>(),
                                      " masters=", io::dtype_name<typename optimizer_type::master_type>(),
                                      " moments=", io::dtype_name<typename optimizer_type::moment_type>()});
  }
};
template <class Optimizer, int Buckets>
struct saved_optimizer<bucketed_optimizer<Optimizer, Buckets>> : saved_optimizer<Optimizer> {};

// What a save calls moment k of a parameter.
template <class Optimizer>
std::string tensor_of_moment(std::size_t k, const std::string& parameter) {
  return slot_name<typename Optimizer::rule>(static_cast<int>(k)) + "/" + parameter;
}

// What this rank keeps of the weights of a parameter, in `kept`, all that it keeps: f(first of the parameter, elements).
template <class Parameter, class Optimizer, class T, class F>
void for_kept_weights(const Parameter& p, const Optimizer& optimizer, std::span<T> kept, F&& f) {
  for_kept_part(p, optimizer.weights_begin(), kept.size(),
                [&](std::int64_t first, std::int64_t count, std::int64_t at) {
                  f(first, kept.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
                });
}

// What this rank writes of one stage: each logical element once over all ranks.
template <class Stage, class Optimizer>
void write_mixed_stage(io::checkpoint_writer& writer, Stage& stage, Optimizer& optimizer, bool weights_here,
                       bool state_here) {
  using optimizer_type = Optimizer;
  using T = typename Stage::scalar;
  using W = typename optimizer_type::weight_type;
  const auto part = [](auto all, std::int64_t at, std::int64_t n) {
    return all.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  };
  const auto add = [&](const std::string& name, auto values, const io::tensor_region& region) {
    writer.add(name, std::span<const typename decltype(values)::value_type>(values), region);
  };
  const auto weights = read_of_stage(stage, optimizer.weights_of(stage));
  const auto masters = read_masters(stage, optimizer);
  const auto moments = each_moment(optimizer, [&](auto row) { return read_of_stage(stage, row); });
  for (const saved_parameter& p : parameters_to_save(stage)) {
    if (!p.counted || p.count == 0) continue;  // another rank holds the same copy
    if (weights_here)
      for_kept_weights(p, optimizer, weights.elements(), [&](std::int64_t first, std::span<const T> kept) {
        buffer<W> rounded(static_cast<std::int64_t>(kept.size()));
        const std::span<W> all(rounded.data(), rounded.size());
        convert(kept, all);
        for_each_region(p, first, static_cast<std::int64_t>(all.size()),
                        [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
                          add("weight/" + p.name, part(all, at - first, n), region);
                        });
      });
    if (!state_here) continue;
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const std::int64_t from = in_share + at - first;
        if constexpr (optimizer_type::keeps_masters) add("master/" + p.name, part(masters.elements(), from, n), region);
        for (std::size_t k = 0; k < moments.size(); ++k)
          add(tensor_of_moment<optimizer_type>(k, p.name), part(moments[k].elements(), from, n), region);
      });
    });
  }
}

// Room on the host for the masters, to be written; nothing where none are.
template <bool There, class Stage, class Optimizer>
auto written_masters([[maybe_unused]] Stage& stage, [[maybe_unused]] Optimizer& optimizer) {
  if constexpr (There)
    return written_of_stage(stage, optimizer.masters());
  else
    return 0;
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
template <bool Plain, class Stage, class Optimizer>
void read_mixed_stage(const io::checkpoint_reader& reader, Stage& stage, Optimizer& optimizer) {
  using optimizer_type = Optimizer;
  using T = typename Stage::scalar;
  using W = std::conditional_t<Plain, T, typename optimizer_type::weight_type>;
  using V = std::conditional_t<Plain, T, typename optimizer_type::moment_type>;
  constexpr bool reads_masters = !Plain && optimizer_type::keeps_masters;
  const auto part = [](auto all, std::int64_t at, std::int64_t n) {
    return all.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  };
  auto weights = written_of_stage(stage, optimizer.weights_of(stage));
  auto masters = written_masters<reads_masters>(stage, optimizer);
  auto moments = each_moment(optimizer, [&](auto row) { return written_of_stage(stage, row); });
  for (const saved_parameter& p : parameters_to_save(stage)) {
    if (p.count == 0) continue;
    for_kept_weights(p, optimizer, weights.elements(), [&](std::int64_t first, std::span<T> kept) {
      for_each_region(p, first, static_cast<std::int64_t>(kept.size()),
                      [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
                        read_as<W>(reader, "weight/" + p.name, part(kept, at - first, n), region);
                      });
    });
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const std::int64_t to = in_share + at - first;
        if constexpr (reads_masters)
          read_as<typename optimizer_type::master_type>(reader, "master/" + p.name, part(masters.elements(), to, n),
                                                        region);
        for (std::size_t k = 0; k < moments.size(); ++k)
          read_as<V>(reader, tensor_of_moment<optimizer_type>(k, p.name), part(moments[k].elements(), to, n), region);
      });
    });
  }
  weights.finish();
  if constexpr (reads_masters) masters.finish();
  for (auto& m : moments) m.finish();
}
}  // namespace heddle::inline v0::train::detail
