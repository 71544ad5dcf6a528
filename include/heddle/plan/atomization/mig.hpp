// heddle/plan/atomization/mig.hpp: a GPU cut into instances: profiles, places.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// A profile of instances. A GPU has 7 compute and 8 memory slices; an instance takes memory slices from its position on.
struct mig_profile {
  std::string_view name;
  int compute = 0;
  int memory = 0;
  int most = 0;  ///< instances per GPU
  std::array<int, 7> positions{};
  int places = 0;  ///< how many of `positions` there are
};

/// Compute slices of one GPU.
inline constexpr int mig_compute_slices = 7;
/// The profiles there are, the smallest first. A memory slice has 5 GB on an A100 with 40 GB, 10 GB on one with 80 GB and on an
/// H100.
inline constexpr std::array<mig_profile, 5> mig_profiles{{{"1g", 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}, 7},
                                                          {"2g", 2, 2, 3, {0, 2, 4}, 3},
                                                          {"3g", 3, 4, 2, {0, 4}, 2},
                                                          {"4g", 4, 4, 1, {0}, 1},
                                                          {"7g", 7, 8, 1, {0}, 1}}};

/// The profile of this name: "1g", "2g", "3g", "4g" or "7g".
/// Errors: `config_error` naming the profiles there are.
constexpr const mig_profile& mig_profile_named(std::string_view name) {
  for (const mig_profile& p : mig_profiles)
    if (p.name == name) return p;
  throw config_error("heddle: no MIG profile is named '" + std::string(name) + "'; there are 1g, 2g, 3g, 4g and 7g");
}

/// One GPU and its instances. Fragmentation is about positions, not only sizes: with 1g at 1 and at 5 there is no place
/// for a 3g, though six memory slices are free.
class mig_gpu {
 public:
  struct instance {
    const mig_profile* profile = nullptr;
    int position = 0;
    double ready = 0;  ///< when it can be used: its making takes a while
  };

  /// `slice_bytes`: of one memory slice: 5 GB (40 GB GPUs), 10 GB (80 GB). `delay`: seconds that making one takes.
  constexpr explicit mig_gpu(double slice_bytes = 10e9, double delay = 0) : slice_bytes_(slice_bytes), delay_(delay) {}

  constexpr const std::vector<instance>& instances() const noexcept { return instances_; }
  constexpr double bytes(const instance& i) const noexcept { return slice_bytes_ * i.profile->memory; }

  /// Whether an instance can be made there without touching the others.
  constexpr bool is_free(const mig_profile& p, int position) const noexcept {
    bool legal = false;
    for (int k = 0; k < p.places; ++k) legal = legal || p.positions[static_cast<std::size_t>(k)] == position;
    if (!legal) return false;
    int compute = p.compute, of_kind = 1;
    for (const instance& i : instances_) {
      compute += i.profile->compute;
      of_kind += i.profile == &p ? 1 : 0;
      if (position < i.position + i.profile->memory && i.position < position + p.memory) return false;
    }
    return compute <= mig_compute_slices && of_kind <= p.most;
  }
  /// Legal positions that are free now, lowest first.
  constexpr std::vector<int> free_positions(const mig_profile& p) const {
    std::vector<int> free;
    for (int k = 0; k < p.places; ++k)
      if (is_free(p, p.positions[static_cast<std::size_t>(k)]))
        free.push_back(p.positions[static_cast<std::size_t>(k)]);
    return free;
  }
  /// Of the free positions the one that leaves the most places for other instances, all profiles counted by their
  /// memory; -1 if none is free.
  constexpr int best_position(const mig_profile& p) const {
    int best = -1, most = -1;
    for (const int position : free_positions(p)) {
      mig_gpu with = *this;
      with.instances_.push_back({&p, position, 0});
      int left = 0;
      for (const mig_profile& q : mig_profiles) left += static_cast<int>(with.free_positions(q).size()) * q.memory;
      if (left > most) {
        most = left;
        best = position;
      }
    }
    return best;
  }
  /// Makes an instance; it is ready `delay` seconds after `now`.
  /// Errors: `config_error` if the position is not legal or not free.
  constexpr const instance& make(std::string_view name, int position, double now = 0) {
    const mig_profile& p = mig_profile_named(name);
    if (!is_free(p, position))
      throw config_error("heddle: a MIG instance " + std::string(name) + " cannot be made at memory slice " +
                         std::to_string(position) + ": it is not a position of the profile, or not free");
    instances_.push_back({&p, position, now + delay_});
    return instances_.back();
  }
  /// Ends an idle instance. Errors: `config_error` if none begins there.
  constexpr void end(int position) {
    for (std::size_t i = 0; i < instances_.size(); ++i)
      if (instances_[i].position == position) {
        instances_.erase(instances_.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
    throw config_error("heddle: no MIG instance begins at memory slice " + std::to_string(position));
  }

 private:
  double slice_bytes_;
  double delay_;
  std::vector<instance> instances_;
};

}  // namespace heddle::inline v0::plan::sja
