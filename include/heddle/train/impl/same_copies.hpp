// heddle/train/impl/same_copies.hpp: bodies of heddle/train/same_copies.hpp.
#pragma once

#include <heddle/train/same_copies.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE void copies_held::add(const char* kind, const saved_parameter& p, const kept_part& part,
                                    std::span<const std::byte> elements) {
  if (part.count == 0) return;
  std::string name = kind;
  (name += ' ') += p.name;
  io::checksum64 which;
  which.update(std::as_bytes(std::span(name)));
  for (const auto* extents : {&p.logical, &p.local, &p.start}) which.update(std::as_bytes(std::span(*extents)));
  const std::int64_t range[] = {part.first, static_cast<std::int64_t>(part.count)};
  which.update(std::as_bytes(std::span(range)));
  words_.push_back(static_cast<std::int64_t>(which.value()));
  words_.push_back(static_cast<std::int64_t>(io::checksum64().update(elements).value()));
  names_.push_back(std::move(name));
}

HEDDLE_INLINE std::string copies_held::first_that_differs(const gathered_words& all) const {
  struct copy {
    std::int64_t which, sum;
    std::size_t place;  // on its rank
    int rank;
  };
  std::vector<copy> copies;
  for (int r = 0; r < static_cast<int>(all.counts.size()); ++r) {
    const std::span<const std::int64_t> said = all.of(r);
    for (std::size_t i = 0; i + 1 < said.size(); i += 2) copies.push_back({said[i], said[i + 1], i / 2, r});
  }
  std::sort(copies.begin(), copies.end(), [](const copy& a, const copy& b) {
    return std::tie(a.which, a.sum, a.rank, a.place) < std::tie(b.which, b.sum, b.rank, b.place);
  });
  const auto end_of = [&](std::size_t first, auto same) {
    std::size_t end = first;
    while (end < copies.size() && same(copies[end])) ++end;
    return end;
  };
  const copy* first = nullptr;  // of the parameter that comes first on the first rank that has one which differs
  std::pair<std::size_t, std::size_t> range;
  for (std::size_t i = 0; i < copies.size();) {
    const std::size_t end = end_of(i, [&](const copy& c) { return c.which == copies[i].which; });
    if (copies[i].sum != copies[end - 1].sum) {
      const auto earliest = std::min_element(
          copies.begin() + static_cast<std::ptrdiff_t>(i), copies.begin() + static_cast<std::ptrdiff_t>(end),
          [](const copy& a, const copy& b) { return std::tie(a.rank, a.place) < std::tie(b.rank, b.place); });
      if (first == nullptr || std::tie(earliest->rank, earliest->place) < std::tie(first->rank, first->place)) {
        first = &*earliest;
        range = {i, end};
      }
    }
    i = end;
  }
  if (first == nullptr) return {};
  const auto mine = std::find(words_.begin(), words_.end(), first->which);
  const auto place = static_cast<std::size_t>(mine - words_.begin());
  if (mine == words_.end() || place % 2 != 0) return {};  // a rank that holds them says it
  // What most ranks hold, the lowest ranks' of those that are as many.
  std::pair<std::size_t, std::size_t> most;
  for (std::size_t i = range.first; i < range.second;) {
    const std::size_t end = end_of(i, [&](const copy& c) { return c.which == first->which && c.sum == copies[i].sum; });
    const std::size_t so_far = most.second - most.first;
    if (end - i > so_far || (end - i == so_far && copies[i].rank < copies[most.first].rank)) most = {i, end};
    i = end;
  }
  std::string others, equal;
  int differ = 0;
  for (std::size_t i = range.first; i < range.second; ++i) {
    const bool same = i >= most.first && i < most.second;
    differ += same ? 0 : 1;
    std::string& to = same ? equal : others;
    (to += to.empty() ? "" : ", ") += std::to_string(copies[i].rank);
  }
  const std::size_t held = most.second - most.first;
  return names_[place / 2] + " has other elements on rank" + (differ == 1 ? " " : "s ") + others + " than on rank" +
         (held == 1 ? " " : "s ") + equal + ", which should hold copies";
}

}  // namespace heddle::inline v0::train::detail
