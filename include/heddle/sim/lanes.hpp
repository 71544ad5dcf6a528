// heddle/sim/lanes.hpp: simulates the compute, memory and network lanes of a device.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/gantt.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::sim {

/// What a piece of work is bound by.
enum class lane : std::uint8_t { compute, memory, network };
/// How many lanes there are.
inline constexpr std::size_t lanes = 3;
/// Their names, in the order of `lane`.
inline constexpr std::array<std::string_view, lanes> lane_names{"compute", "memory", "network"};
/// The name of a lane: `"compute"`.
constexpr std::string_view to_string(lane l) noexcept {
  return lane_names[static_cast<std::size_t>(l)];
}

/// The speed of work on a lane that has this share of the device, from 0 to 1: 1 with all of it. A measured table or a formula.
using lane_speed = std::function<double(lane, double share)>;

/// Points of such a table, straight lines between them.
struct share_table {
  struct point {
    double share = 0;
    double speed = 0;
    friend bool operator==(const point&, const point&) = default;
  };
  std::array<std::vector<point>, lanes> points;  ///< of each lane, shares rising from 0 to 1

  HEDDLE_INLINE double operator()(lane l, double share) const;
  friend bool operator==(const share_table&, const share_table&) = default;
};

/// The table measured on an A100. Source: Zhu et al. 2024, arXiv:2408.12757 (NanoFlow), table 3, and decode attention at 0.4 from its text.
HEDDLE_INLINE share_table nanoflow_shares();

/// The table as text, which `parse_share_table` reads back to the same value.
HEDDLE_INLINE std::string to_text(const share_table& table);
/// Reads it: of each lane, shares that rise from 0 to 1 and speeds that do not fall, to 1. Errors: `config_error` naming `source`, line and what
/// was expected.
HEDDLE_INLINE share_table parse_share_table(std::string_view text, std::string_view source = "the text of shares");

/// Work on a lane.
struct lane_work {
  std::string name{};
  lane where = lane::compute;
  double seconds = 0;        ///< with all of the device
  std::vector<int> after{};  ///< works that must end before it begins
  /// Of the device; 0: what works with a share leave. Where shares add up to more than 1, later lanes get what is left.
  double share = 0;
};

/// A time in which a work had one share.
struct lane_span {
  int work = 0;
  double begin = 0, end = 0, share = 0;
};

/// When works ran. Units: seconds.
struct lane_timeline {
  std::vector<lane_span> spans;  ///< by begin
  double seconds = 0;            ///< when the last ended
};

/// How works are taken.
struct lane_options {
  std::vector<int> order{};  ///< which of those that are ready is taken first; empty: in the order of the list
  bool fill = true;          ///< what no work asks for goes to the first lane that runs; else it is left idle
};

/// Runs each lane's works one at a time: as soon as a lane is free it takes the first of its order that is ready (a list schedule).
/// Errors: `config_error` for seconds and shares that make no sense, an order that does not list each work once, works after
/// works that are not there or that wait for each other, and shares with which nothing moves.
HEDDLE_INLINE lane_timeline simulate_lanes(std::span<const lane_work> works, const lane_speed& speed,
                                           const lane_options& options = {});

/// The first thing that is wrong with a timeline, as a sentence.
struct lane_report {
  std::string wrong{};
  bool ok() const noexcept { return wrong.empty(); }
};
/// "the timeline is right", or what is wrong.
inline std::string to_string(const lane_report& r) {
  return r.ok() ? "the timeline is right" : r.wrong;
}

/// Whether shares never add up to more than 1, no lane has two works at a time, each work begins when those before it have ended, and
/// has run, at the speeds of its shares, for as long as it is.
HEDDLE_INLINE lane_report check_lanes(std::span<const lane_work> works, const lane_timeline& line,
                                      const lane_speed& speed);

/// A row for each lane; boxes are spans of works, labelled by their share in per cent. `scale`: units of the chart in a second.
HEDDLE_INLINE gantt_chart lanes_chart(std::span<const lane_work> works, const lane_timeline& line,
                                      const std::string& title = {}, double scale = 1000);

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/lanes.hpp>
#endif
