// heddle/collective/impl/rounds_text.hpp: bodies of heddle/collective/rounds_text.hpp.
#pragma once

#include <heddle/collective/rounds_text.hpp>
#include <heddle/collective/rounds.hpp>

#include <string>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE std::string items_text(round_view view, std::span<const int> items) {
  std::string text;
  const int parts = view.parts();
  const auto whole = [&](std::size_t i) {  // a block begins here, with all its parts in their order
    if (items[i] % parts != 0 || items.size() - i < static_cast<std::size_t>(parts)) return false;
    for (int k = 1; k < parts; ++k)
      if (items[i + static_cast<std::size_t>(k)] != items[i] + k) return false;
    return true;
  };
  const auto name = [&](int item, bool block) {
    text += std::to_string(item / parts);
    if (!block) {
      text += '.';
      text += std::to_string(item % parts);
    }
  };
  for (std::size_t i = 0; i < items.size();) {
    if (i > 0) text += ", ";
    const bool block = whole(i);
    const int first = items[i];
    int last = first;
    for (i += block ? static_cast<std::size_t>(parts) : 1; i < items.size();
         i += block ? static_cast<std::size_t>(parts) : 1) {
      if (items[i] != last + (block ? parts : 1) || whole(i) != block) break;
      last = items[i];
    }
    name(first, block);
    if (last != first) {
      text += '-';
      name(last, block);
    }
  }
  return text;
}

}  // namespace detail
}  // namespace heddle::inline v0

namespace heddle::inline v0 {

HEDDLE_INLINE std::string to_string(round_view view) {
  const auto counted = [](int n, const char* one, const char* many) {
    std::string text = std::to_string(n);
    text += n == 1 ? one : many;
    return text;
  };
  std::string text{to_string(view.what())};
  text += " on " + counted(view.ranks(), " rank", " ranks");
  if (view.root() != 0) text += " with root " + std::to_string(view.root());
  text += ": " + counted(view.blocks(), " block", " blocks");
  if (view.parts() > 1) text += " of " + std::to_string(view.parts()) + " parts";
  text += ", " + counted(view.rounds(), " round", " rounds");
  text += ", " + counted(static_cast<int>(view.transfers().size()), " message", " messages") + "\n";
  int round = -1;
  for (const round_transfer& t : view.transfers()) {
    if (t.round != round) {
      round = t.round;
      text += "round " + std::to_string(round) + "\n";
    }
    text += "  " + std::to_string(t.from) + " -> " + std::to_string(t.to) + "  ";
    if (t.how == arrival::fold_before) text += "received op own  ";
    if (t.how == arrival::fold_after) text += "own op received  ";
    text += detail::items_text(view, view.items_of(t)) + "\n";
  }
  return text;
}

}  // namespace heddle::inline v0
