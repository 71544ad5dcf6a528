// heddle/observe/heat_map.hpp: compute times of ranks and steps, and which ranks are slow.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/observe/step_times.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// A rank, or a slice of the mesh, that computes longer than its peers.
struct slow_part {
  std::string name;              ///< "rank 3", "rank 3 (dp=0, pp=1, tp=1)", "dp=1"
  int rank = -1;                 ///< -1 for a slice
  double excess = 0;             ///< 0.1: 10 % longer
  std::int64_t since_step = -1;  ///< from which step of those in the map
};
/// "rank 3 computes 10 % longer than its peers since step 20"
HEDDLE_INLINE std::string to_string(const slow_part& slow);

/// When a rank counts as slow. Of each step a rank's compute time is divided by the median of its peers; `excess` is that minus 1.
/// A rank is slow when the median of its excess over `over` steps is above `least`, and above `deviations` standard errors of that
/// median, in each of `windows` windows that end with the newest step, each one step later than the last. The standard error is
/// 1.25 s/sqrt(over), s being 1.4826 times the median distance of all ranks' excess from their own medians.
struct slow_rule {
  int over = 15;
  int windows = 3;
  double least = 0.03;
  double deviations = 5;
};

/// Compute times of the ranks of a mesh over their last steps. Which ranks are peers is said by `roles`, a number for each rank:
/// stages of a pipeline do different work, so ranks of one stage are compared with each other (`roles_along<pp>(mesh)`); where
/// nothing is said all are peers. With `expected`, seconds (or any unit) that each role should take, all ranks are compared, each
/// by its time over what it should take, so that a slow stage is found as well.
/// Errors: `config_error` for numbers of ranks, steps or roles that do not fit, and expected times that are not positive.
class heat_map {
 public:
  /// A collective over `all`, the control plane of all ranks of the map, between two steps: each rank brings what `times` has of it.
  template <class Communicator>
  heat_map(const step_times& times, Communicator& all, std::vector<int> roles = {}, std::vector<double> expected = {},
           slow_rule rule = {})
      : heat_map(gathered(times, all), std::move(roles), std::move(expected), rule) {}
  /// From numbers: seconds of rank r in step `first_step + i` are `seconds[r][i]`.
  HEDDLE_INLINE heat_map(std::vector<std::vector<double>> seconds, std::int64_t first_step, std::vector<int> roles = {},
                         std::vector<double> expected = {}, slow_rule rule = {});

  int ranks() const noexcept { return static_cast<int>(seconds_.size()); }
  int steps() const noexcept { return seconds_.empty() ? 0 : static_cast<int>(seconds_[0].size()); }
  std::int64_t first_step() const noexcept { return first_step_; }
  double seconds(int rank, int i) const { return at(seconds_, rank, i); }
  /// How much longer than its peers a rank took in a step: 0.1 is 10 %.
  double excess(int rank, int i) const { return at(excess_, rank, i); }

  /// The ranks that are slow now, the slowest first; none before `over + windows - 1` steps.
  HEDDLE_INLINE std::vector<slow_part> slow() const;
  /// The same, where a slice of the mesh of which all ranks are slow stands in place of these ranks: a node, a stage, a replica.
  template <class Mesh>
  std::vector<slow_part> slow(const Mesh& mesh) const {
    return slow_on(places_on(mesh));
  }

  /// A line per rank: the medians of its times and of its excess, and whether it is slow.
  HEDDLE_INLINE std::string to_text() const;
  /// rank,step,seconds,excess
  HEDDLE_INLINE std::string to_csv() const;
  /// A row per rank, a column per step, red where a rank took longer than its peers.
  HEDDLE_INLINE std::string to_svg(std::string_view title = "compute time by rank and step") const;

 private:
  struct kept_steps {
    std::vector<std::vector<double>> seconds;
    std::int64_t first_step = 0;
  };
  // Where ranks are on a mesh: names of the axes, of each rank its coordinates.
  struct places {
    std::vector<std::string> axes;
    std::vector<std::vector<int>> of;
  };
  heat_map(kept_steps kept, std::vector<int> roles, std::vector<double> expected, slow_rule rule)
      : heat_map(std::move(kept.seconds), kept.first_step, std::move(roles), std::move(expected), rule) {}

  template <class Communicator>
  static kept_steps gathered(const step_times& times, Communicator& all) {
    require_same_ranks(times.ranks(), all.size());
    // The window may differ from rank to rank: the smallest counts.
    std::int64_t window = times.window();
    all.all_reduce(std::span<std::int64_t>(&window, 1), minimum{});
    const auto n = static_cast<std::size_t>(2 * window);
    const std::vector<std::int64_t> mine = packed(times.last(all.rank()), window);
    std::vector<std::int64_t> every(n * static_cast<std::size_t>(all.size()));
    all.all_gather(std::span<const std::int64_t>(mine), std::span<std::int64_t>(every));
    return unpacked(every, n, all.size());
  }
  template <class Mesh>
  places places_on(const Mesh& mesh) const {
    places p{axis_names<Mesh>(), {}};
    require_same_ranks(ranks(), mesh.size());
    for (int r = 0; r < mesh.size(); ++r) {
      const auto at = mesh.coordinates(r);
      p.of.emplace_back(at.begin(), at.end());
    }
    return p;
  }
  static double at(const std::vector<std::vector<double>>& x, int rank, int i) {
    return x.at(static_cast<std::size_t>(rank)).at(static_cast<std::size_t>(i));
  }
  HEDDLE_INLINE static void require_same_ranks(int have, int want);
  HEDDLE_INLINE static std::vector<std::int64_t> packed(const std::vector<step_time>& steps, std::int64_t window);
  HEDDLE_INLINE static kept_steps unpacked(const std::vector<std::int64_t>& all, std::size_t each, int ranks);
  HEDDLE_INLINE std::vector<slow_part> slow_on(const places& where) const;
  HEDDLE_INLINE std::vector<slow_part> slow_rows(const std::vector<std::vector<double>>& excess) const;

  std::vector<std::vector<double>> seconds_, relative_, excess_;
  std::int64_t first_step_ = 0;
  slow_rule rule_;
};

/// Of each rank its coordinate along an axis: ranks of one stage are peers.
template <class Axis, class Mesh>
std::vector<int> roles_along(const Mesh& mesh) {
  std::vector<int> roles;
  for (int r = 0; r < mesh.size(); ++r) roles.push_back(mesh.template coordinate<Axis>(r));
  return roles;
}

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/heat_map.hpp>
#endif
