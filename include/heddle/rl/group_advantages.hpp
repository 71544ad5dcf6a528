// heddle/rl/group_advantages.hpp: sets the advantages of the answers of a group by their rewards.
#pragma once

#include <heddle/rl/advantage.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/rl/settings.hpp>

#include <vector>

namespace heddle::inline v0::rl {

/// Sets `advantage` of the answers of a group. Those without a reward are compared with nobody, and none of their
/// tokens counts; one that is left alone has nobody to be compared with, and no advantage.
inline void set_advantages(std::vector<sample>& group, advantage_of how) {
  std::vector<double> rewards;
  for (sample& s : group) {
    if (s.missing.empty())
      rewards.push_back(s.reward);
    else
      s.mask.assign(s.tokens.size(), false);
  }
  std::vector<double> found = rewards;
  if (how != advantage_of::reward && rewards.size() < 2)
    found.assign(rewards.size(), 0.0);
  else if (how == advantage_of::group_normalised)
    found = group_normalised(rewards, rewards.size());
  else if (how == advantage_of::leave_one_out)
    found = leave_one_out(rewards, rewards.size());
  auto at = found.begin();
  for (sample& s : group)
    if (s.missing.empty()) s.advantage = *at++;
}

}  // namespace heddle::inline v0::rl
