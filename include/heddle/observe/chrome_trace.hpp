// heddle/observe/chrome_trace.hpp: recorded events as a Chrome trace, for ui.perfetto.dev.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/text_file.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// What a trace says besides the events.
struct trace_metadata {
  std::string process = "heddle";
  std::vector<std::string> rank_names = {};  ///< name of each rank's track; "rank 3" where none is given
  std::vector<std::pair<std::string, std::string>> about = {};  ///< shown by viewers as the trace's own information
  std::optional<std::int64_t> base_ns = {};                     ///< time zero; the first begin if not given
  std::vector<event> device =
      {};  ///< what devices did, on tracks `rank 3, device` and `rank 3, device messages` below that of each rank (`cuda_device_times`)
};

namespace detail {

// Viewers want microseconds; three decimals keep every nanosecond.
HEDDLE_INLINE std::string microseconds(std::int64_t ns);

// The hue, 0 to 359, that Perfetto gives to slices of a name: it drops numbers and hashes the rest. The hash multiplies
// in floating point, as JavaScript does. A viewer that chooses otherwise shows other colours and loses nothing else.
HEDDLE_INLINE int perfetto_hue(std::u16string_view prefix, std::string_view name);

struct slice_mark {
  std::u16string_view utf16;
  std::string_view utf8;
};
// Computation goes by its plain name if its hash is a green or blue, else behind a triangle; communication always
// behind arrows, whichever make it a purple, red or orange.
inline constexpr std::array<slice_mark, 7> compute_marks{{{u"", ""},
                                                          {u"\u25b8 ", "\u25b8 "},
                                                          {u"\u25b9 ", "\u25b9 "},
                                                          {u"\u25b6 ", "\u25b6 "},
                                                          {u"\u25b7 ", "\u25b7 "},
                                                          {u"\u25ba ", "\u25ba "},
                                                          {u"\u25bb ", "\u25bb "}}};
inline constexpr std::array<slice_mark, 10> communication_marks{{{u"\u21c4 ", "\u21c4 "},
                                                                 {u"\u21c6 ", "\u21c6 "},
                                                                 {u"\u2194 ", "\u2194 "},
                                                                 {u"\u21cc ", "\u21cc "},
                                                                 {u"\u21cb ", "\u21cb "},
                                                                 {u"\u21d4 ", "\u21d4 "},
                                                                 {u"\u27f7 ", "\u27f7 "},
                                                                 {u"\u27fa ", "\u27fa "},
                                                                 {u"\u21ff ", "\u21ff "},
                                                                 {u"\u21f9 ", "\u21f9 "}}};
inline bool is_compute_hue(int hue) {
  return hue >= 100 && hue <= 255;
}
inline bool is_communication_hue(int hue) {
  return hue >= 285 || hue <= 55;
}

// What a slice is called, so that computation and communication differ in colour.
HEDDLE_INLINE std::string slice_name(activity kind, std::string_view name);

constexpr const char* slice_category(activity kind) noexcept {
  return is_compute(kind) ? "compute" : is_communication(kind) ? "communication" : "host";
}
// Reserved colour names, which chrome://tracing follows.
constexpr const char* slice_colour(activity kind) noexcept {
  if (is_communication(kind)) return "thread_state_iowait";
  switch (kind) {
    case activity::forward:
      return "thread_state_running";
    case activity::backward:
    case activity::backward_input:
      return "thread_state_runnable";
    case activity::backward_weight:
      return "rail_load";
    case activity::optimizer:
      return "rail_response";
    default:
      return "generic_work";
  }
}

// Slices of one track must nest or be disjoint. Puts each event (sorted by `earlier`) on the first of a rank's tracks
// where it does; the first track takes everything that one thread can do, further ones what overlapped it.
class track_assigner {
 public:
  int place(std::int64_t begin, std::int64_t end);

 private:
  std::vector<std::vector<std::int64_t>> open_;  // ends of the slices that enclose the present, outermost first
};

}  // namespace detail

/// The trace as text (JSON object form). One track per rank, complete events with `step`, `stage`, `microbatch`,
/// `bytes` and `peer` where they apply, and an arrow from each send to the receive with the same `flow`, when both are
/// there. Events of `metadata.device` are on tracks of their own. If a flow number is used again, its sends and receives are joined in order of time.
/// Units: microseconds with three decimals, from the first event or `metadata.base_ns`.
HEDDLE_INLINE std::string chrome_trace(std::span<const event> events, const trace_metadata& metadata = {});

/// Writes the trace to a file. Errors: `io_error` with the path and the system's text.
inline void write_chrome_trace(const std::string& path, std::span<const event> events,
                               const trace_metadata& metadata = {}) {
  write_text_file(path, chrome_trace(events, metadata));
}

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/chrome_trace.hpp>
#endif
