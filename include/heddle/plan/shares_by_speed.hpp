// heddle/plan/shares_by_speed.hpp: layers of pipeline stages in proportion to measured speed.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

namespace heddle::inline v0::plan {

/// Consecutive pipeline stages of equal speed: those on one cluster. Only ratios of speeds matter, say TFLOP/s of a device.
struct stages_of_speed {
  double speed = 1;
  int stages = 1;
};

/// Layers of each stage, by Holmes' rule: a cluster has floor(layers times its share of all speed), the last the rest; inside of a cluster
/// stages are even, earlier ones longer. `partition_layers` with speeds is never slower and takes layers that differ.
/// Errors: `config_error` for speeds that are not positive and finite, no stage, or fewer layers than stages.
/// Source: Yang et al. 2024, arXiv:2312.03549 (Holmes); the rule is inferred from its published partitions, 16/14 and 26/22.
inline std::vector<int> shares_by_speed(int layers, std::span<const stages_of_speed> clusters) {
  double all = 0;
  int stages = 0;
  for (const stages_of_speed& c : clusters) {
    if (!(c.speed > 0) || !(c.speed < std::numeric_limits<double>::infinity()) || c.stages < 1)
      throw config_error(text_of({"heddle: a cluster has a positive, finite speed and at least one stage, not ",
                                  number_text(c.speed), " and ", c.stages}));
    all += c.speed * c.stages;
    stages += c.stages;
  }
  if (clusters.empty() || layers < stages)
    throw config_error(text_of({"heddle: ", layers, " layers on ", stages, " stages: each stage has at least one"}));
  std::vector<int> counts;
  int left = layers, stages_left = stages;
  for (std::size_t k = 0; k < clusters.size(); ++k) {
    const stages_of_speed& c = clusters[k];
    stages_left -= c.stages;
    // The small number keeps products of binary fractions that are whole in decimal ones: 30 * 0.6.
    int mine = k + 1 == clusters.size() ? left : static_cast<int>(layers * (c.speed * c.stages / all) + 1e-9);
    mine = mine < c.stages ? c.stages : mine;  // no stage is empty
    mine = mine > left - stages_left ? left - stages_left : mine;
    for (int s = 0; s < c.stages; ++s) counts.push_back(mine / c.stages + (s < mine % c.stages));
    left -= mine;
  }
  return counts;
}
inline std::vector<int> shares_by_speed(int layers, std::initializer_list<stages_of_speed> clusters) {
  return shares_by_speed(layers, std::span<const stages_of_speed>(clusters.begin(), clusters.size()));
}

}  // namespace heddle::inline v0::plan
