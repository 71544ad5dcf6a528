// heddle/train/saved_stage.hpp: the saved state of a stage: weights, masters and moments.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/cast_backend.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/saved_boxes.hpp>
#include <heddle/train/saved_parameter.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/split_copies.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::train::detail {

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
      return text_of({" optimizer=", Rule::name});
  }
  static std::string types() {
    if constexpr (optimizer_type::is_plain)
      return {};
    else
      return text_of({" weights=", io::dtype_name<typename optimizer_type::weight_type>(),
                      " masters=", io::dtype_name<typename optimizer_type::master_type>(),
                      " moments=", io::dtype_name<typename optimizer_type::moment_type>()});
  }
};
template <class Optimizer, int Buckets>
struct saved_optimizer<bucketed_optimizer<Optimizer, Buckets>> : saved_optimizer<Optimizer> {};

// What this rank keeps of tensor `kind`/`p.name`, in a buffer that begins at element `begin` of the flat one.
template <class T>
void write_parts(io::part_writer& writer, std::string_view kind, const saved_parameter& p, std::span<const T> kept,
                 std::int64_t begin) {
  const std::string name = std::string(kind) + p.name;
  for (const saved_box& b : saved_boxes(p, part_in(p.offset, p.count, begin, kept.size())))
    writer.add(name, kept.subspan(b.at, b.count), b.region);
}
template <class T, class Reader>
void read_parts(const Reader& reader, std::string_view kind, const saved_parameter& p, std::span<T> kept,
                std::int64_t begin) {
  const std::string name = std::string(kind) + p.name;
  for (const saved_box& b : saved_boxes(p, part_in(p.offset, p.count, begin, kept.size())))
    reader.read(name, kept.subspan(b.at, b.count), b.region);
}

// The same of elements that are saved in another type.
template <class Saved, class T>
void write_parts_as(io::part_writer& writer, std::string_view kind, const saved_parameter& p, std::span<const T> kept,
                    std::int64_t begin) {
  if constexpr (std::is_same_v<Saved, T>) {
    write_parts(writer, kind, p, kept, begin);
  } else {
    const kept_part mine = part_in(p.offset, p.count, begin, kept.size());
    buffer<Saved> saved(static_cast<std::int64_t>(mine.count));
    const std::span<Saved> all(saved.data(), saved.size());
    convert(kept.subspan(mine.at, mine.count), all);
    write_parts(writer, kind, p, std::span<const Saved>(all), p.offset + mine.first);
  }
}
template <class Saved, class T, class Reader>
void read_parts_as(const Reader& reader, std::string_view kind, const saved_parameter& p, std::span<T> kept,
                   std::int64_t begin) {
  if constexpr (std::is_same_v<Saved, T>) {
    read_parts(reader, kind, p, kept, begin);
  } else {
    const kept_part mine = part_in(p.offset, p.count, begin, kept.size());
    buffer<Saved> saved(static_cast<std::int64_t>(mine.count));
    const std::span<Saved> all(saved.data(), saved.size());
    read_parts(reader, kind, p, all, p.offset + mine.first);
    convert(std::span<const Saved>(all), kept.subspan(mine.at, mine.count));
  }
}
// What a save calls moment k of parameters.
template <class Optimizer>
std::string kind_of_moment(std::size_t k) {
  return slot_name<typename Optimizer::rule>(static_cast<int>(k)) + "/";
}

// What this rank writes of one stage: each logical element once over all ranks, of `group` those that hold the same
// bucket. `counted`: of parameters that several ranks along other axes hold, too, one of them writes; else each does.
template <class Stage, class Optimizer, class Group>
void write_stage(io::part_writer& writer, Stage& stage, Optimizer& optimizer, const Group& group, bool counted = true) {
  const auto weights = read_of_stage(stage, optimizer.weights_of(stage));
  [[maybe_unused]] const auto masters = read_masters(stage, optimizer);
  const auto moments = each_moment(optimizer, [&](auto row) { return read_of_stage(stage, row); });
  const place_in_group of_weights = copies_of_weights<Optimizer>(group), of_state = copies_of_state<Optimizer>(group);
  const auto mine = share_of_copies(weights.elements(), of_weights);
  for (const saved_parameter& p : parameters_to_save(stage)) {
    if ((counted && !p.counted) || p.count == 0) continue;  // another rank holds the same copy
    write_parts_as<typename Optimizer::weight_type>(writer, "weight/", p, mine.elements,
                                                    optimizer.weights_begin() + mine.begin);
    if constexpr (Optimizer::keeps_masters) {
      const auto share = share_of_copies(masters.elements(), of_state);
      write_parts(writer, "master/", p, share.elements, optimizer.owned_begin() + share.begin);
    }
    for (std::size_t k = 0; k < moments.size(); ++k)
      with_moment(optimizer, p, static_cast<int>(k), [&](const saved_parameter& slot, std::int64_t first) {
        const auto share = share_of_copies(moments[k].elements(), of_state);
        write_parts(writer, kind_of_moment<Optimizer>(k), slot, share.elements, first + share.begin);
      });
  }
}

// Reads this rank's share of it, from a save or what else has `read(name, elements, region)`. `Plain`: of a trainer
// without a `precision`, whose weights become the masters.
template <bool Plain, class Reader, class Stage, class Optimizer, class Group>
void read_state(const Reader& reader, Stage& stage, Optimizer& optimizer, const Group& group) {
  using T = typename Stage::scalar;
  using W = std::conditional_t<Plain, T, typename Optimizer::weight_type>;
  using V = std::conditional_t<Plain, T, typename Optimizer::moment_type>;
  const place_in_group of_weights = copies_of_weights<Optimizer>(group), of_state = copies_of_state<Optimizer>(group);
  const auto each = [&](auto&& read) {
    for (const saved_parameter& p : parameters_to_save(stage))
      if (p.count != 0) read(p);
  };
  auto weights = written_of_stage(stage, optimizer.weights_of(stage));
  auto moments = each_moment(optimizer, [&](auto row) { return written_of_stage(stage, row); });
  const auto mine = share_of_copies(weights.elements(), of_weights);
  each([&](const saved_parameter& p) {
    read_parts_as<W>(reader, "weight/", p, mine.elements, optimizer.weights_begin() + mine.begin);
    for (std::size_t k = 0; k < moments.size(); ++k)
      with_moment(optimizer, p, static_cast<int>(k), [&](const saved_parameter& slot, std::int64_t first) {
        const auto share = share_of_copies(moments[k].elements(), of_state);
        read_parts_as<V>(reader, kind_of_moment<Optimizer>(k), slot, share.elements, first + share.begin);
      });
  });
  weights.finish();
  for (auto& m : moments) m.finish();
  if constexpr (!Plain && Optimizer::keeps_masters) {
    auto masters = written_of_stage(stage, optimizer.masters());
    const auto share = share_of_copies(masters.elements(), of_state);
    each([&](const saved_parameter& p) {
      read_parts(reader, "master/", p, share.elements, optimizer.owned_begin() + share.begin);
    });
    masters.finish();
  }
}
// Whether a save has the element types of an optimizer with a `precision`; else it is one of a trainer without.
template <class Optimizer, class Reader>
bool has_types_of([[maybe_unused]] const Reader& reader) {
  if constexpr (requires { reader.manifest(); })
    return !Optimizer::is_plain && reader.manifest().config.ends_with(saved_optimizer<Optimizer>::types());
  else
    return !Optimizer::is_plain;  // it converts
}
template <class Reader, class Stage, class Optimizer, class Group>
void read_stage(const Reader& reader, Stage& stage, Optimizer& optimizer, const Group& group) {
  if constexpr (!Optimizer::is_plain)
    if (has_types_of<Optimizer>(reader)) return read_state<false>(reader, stage, optimizer, group);
  read_state<true>(reader, stage, optimizer, group);
}
// Puts the shares of all ranks of the group together. Called on all of them, when all have read theirs.
template <class Reader, class Stage, class Optimizer, class Group>
void gather_stage(const Reader& reader, Stage& stage, Optimizer& optimizer, Group& group) {
  [[maybe_unused]] const bool typed = has_types_of<Optimizer>(reader);
  if constexpr (Optimizer::zero_stage < 3) gather_copies(stage, group, optimizer.weights_of(stage));
  if constexpr (Optimizer::zero_stage < 1) {
    for (int k = 0; k < Optimizer::moments; ++k) gather_copies(stage, group, optimizer.moment(k));
    if constexpr (Optimizer::keeps_masters)
      if (typed) gather_copies(stage, group, optimizer.masters());
  }
  if constexpr (!Optimizer::is_plain)
    if (!typed) optimizer.adopt(optimizer.weights_of(stage));
}

}  // namespace heddle::inline v0::train::detail
