// heddle/train/impl/stage_parts.hpp: bodies of heddle/train/stage_parts.hpp.
#pragma once

#include <heddle/train/stage_parts.hpp>
#include <heddle/core/error.hpp>
#include <heddle/schedule/table.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

HEDDLE_INLINE void stage_parts::index(schedule::table_view t) {
  stages_of_.assign(at(parts_), {});
  replica_of_.assign(part_of_.size(), 0);
  for (int s = 0; s < t.stages(); ++s) {
    const int part = part_of_[at(s)];
    if (part < 0 || part >= parts_)
      refuse("stage " + std::to_string(s) + " is part " + std::to_string(part) + " of " + std::to_string(parts_));
    replica_of_[at(s)] = static_cast<int>(stages_of_[at(part)].size());
    stages_of_[at(part)].push_back(s);
  }
  for (int part = 0; part < parts_; ++part)
    if (stages_of_[at(part)].empty()) refuse("no stage is part " + std::to_string(part));
  if (with_layers_ < 1 || with_layers_ > parts_)
    refuse(std::to_string(with_layers_) + " of " + std::to_string(parts_) + " parts have layers");
  if (!t.has_paths()) return;
  std::vector<bool> visited(at(parts_), false);
  for (int i = 0; i < t.microbatches(); ++i)
    for (int s = 0; s < t.stages(); ++s) {
      if (!t.handles(s, i)) continue;
      const int part = part_of_[at(s)];
      visited[at(part)] = true;
      if ((part == 0) == (t.previous(s, i) < 0) && (part == parts_ - 1) == (t.next(s, i) < 0)) continue;
      std::string text = "the way of microbatch ";
      text += std::to_string(i);
      text += " does not begin with the first part of the model and end with the last: see stage ";
      text += std::to_string(s);
      refuse(text);
    }
  for (int part = 0; part < parts_; ++part)
    if (!visited[at(part)])
      refuse("no microbatch comes to part " + std::to_string(part) + ", which would learn nothing");
}

}  // namespace heddle::inline v0::train
