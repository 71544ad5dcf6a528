// heddle/observe/impl/chrome_trace.hpp: bodies of heddle/observe/chrome_trace.hpp.
#pragma once

#include <heddle/observe/chrome_trace.hpp>
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
namespace detail {

HEDDLE_INLINE std::string microseconds(std::int64_t ns) {
  const bool negative = ns < 0;
  const std::uint64_t n = negative ? std::uint64_t{0} - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  const std::string fraction = std::to_string(n % 1000);
  return (negative ? "-" : "") + std::to_string(n / 1000) + "." + std::string(3 - fraction.size(), '0') + fraction;
}

HEDDLE_INLINE int perfetto_hue(std::u16string_view prefix, std::string_view name) {
  std::u16string kept(prefix);
  bool in_number = false;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !in_number && !kept.empty() && kept.back() == u' ') kept.pop_back();
    if (!digit) kept += static_cast<char16_t>(static_cast<unsigned char>(c));
    in_number = digit;
  }
  std::int64_t hash = 0x11c9dc5;
  for (const char16_t c : kept) {
    const auto mixed = static_cast<std::int32_t>(static_cast<std::uint32_t>(hash) ^ static_cast<std::uint32_t>(c));
    const auto product = static_cast<std::int64_t>(static_cast<double>(mixed) * 16777619.0);
    hash = static_cast<std::int32_t>(static_cast<std::uint32_t>(product));
  }
  return static_cast<int>((hash < 0 ? -hash : hash) % 360);
}

HEDDLE_INLINE std::string slice_name(activity kind, std::string_view name) {
  const auto first_with = [name](const auto& marks, auto&& fits) {
    for (const slice_mark& m : marks)
      if (fits(perfetto_hue(m.utf16, name))) return std::string(m.utf8) + std::string(name);
    return std::string(marks.front().utf8) + std::string(name);
  };
  if (is_compute(kind)) return first_with(compute_marks, is_compute_hue);
  if (is_communication(kind)) return first_with(communication_marks, is_communication_hue);
  return std::string(name);
}

HEDDLE_INLINE int track_assigner::place(std::int64_t begin, std::int64_t end) {
  for (std::size_t t = 0;; ++t) {
    if (t == open_.size()) open_.emplace_back();
    std::vector<std::int64_t>& ends = open_[t];
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (ends.empty() || end <= ends.back()) {
      ends.push_back(end);
      return static_cast<int>(t);
    }
  }
}

}  // namespace detail
}  // namespace heddle::inline v0::observe

namespace heddle::inline v0::observe {

HEDDLE_INLINE std::string chrome_trace(std::span<const event> events, const trace_metadata& metadata) {
  std::vector<event> sorted(events.begin(), events.end());
  for (event& e : sorted) e.end_ns = (std::max)(e.end_ns, e.begin_ns);
  std::sort(sorted.begin(), sorted.end(), earlier);
  std::vector<event> on_device = metadata.device;
  for (event& e : on_device) e.end_ns = (std::max)(e.end_ns, e.begin_ns);
  std::sort(on_device.begin(), on_device.end(), earlier);
  std::int64_t base = sorted.empty() ? std::int64_t{0} : sorted.front().begin_ns;
  if (!on_device.empty())
    base = sorted.empty() ? on_device.front().begin_ns : (std::min)(base, on_device.front().begin_ns);
  if (metadata.base_ns) base = *metadata.base_ns;

  // Flows: the n-th send of a number belongs to its n-th receive; on devices, too.
  std::int64_t arrows = 0;
  const auto arrows_of = [&arrows](const std::vector<event>& all) {
    std::map<std::uint64_t, std::pair<std::vector<std::size_t>, std::vector<std::size_t>>> ends;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].flow == 0) continue;
      if (all[i].kind == activity::send) ends[all[i].flow].first.push_back(i);
      if (all[i].kind == activity::recv) ends[all[i].flow].second.push_back(i);
    }
    std::vector<std::int64_t> arrow(all.size(), 0);
    for (const auto& [flow, pair] : ends)
      for (std::size_t n = 0; n < (std::min)(pair.first.size(), pair.second.size()); ++n)
        arrow[pair.first[n]] = arrow[pair.second[n]] = ++arrows;
    return arrow;
  };
  const std::vector<std::int64_t> arrow = arrows_of(sorted), arrow_on_device = arrows_of(on_device);

  std::string out = "{\"displayTimeUnit\":\"ns\",\"otherData\":{";
  for (std::size_t i = 0; i < metadata.about.size(); ++i)
    out += (i > 0 ? "," : "") + ("\"" + json_escape(metadata.about[i].first)) + "\":\"" +
           json_escape(metadata.about[i].second) + "\"";
  out += "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"" +
         json_escape(metadata.process) + "\"}}";

  // Thread numbers start at 1, because viewers take thread 0 for the idle one.
  const int spread = 1 << 16;
  struct rank_tracks {
    detail::track_assigner assigner;
    int named = 0;  // a rank's tracks come into use one after the other
  };
  enum place : int { on_host = 0, in_stream = 1, in_messages = 2 };  // of the device: the streams between stages
  std::map<std::pair<int, place>, rank_tracks> tracks;
  const auto thread_of = [&](int rank, place where, int track) {
    return std::to_string(rank + 1 + (track + (static_cast<int>(where) << 12)) * spread);
  };
  const auto name_track = [&](int rank, place where, int track) {
    int& named = tracks[{rank, where}].named;
    if (track < named) return;
    named = track + 1;
    const auto r = static_cast<std::size_t>(rank);
    std::string name =
        rank >= 0 && r < metadata.rank_names.size() ? metadata.rank_names[r] : "rank " + std::to_string(rank);
    if (where != on_host) name += where == in_stream ? ", device" : ", device messages";
    if (track > 0) name += ", overlapping " + std::to_string(track);
    const std::string head = ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + thread_of(rank, where, track);
    out += head + ",\"name\":\"thread_name\",\"args\":{\"name\":\"" + json_escape(name) + "\"}}";
    out += head + ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" +
           std::to_string(rank * 64 + track +
                          (where == in_messages ? 48
                           : where == in_stream ? 32
                                                : 0)) +
           "}}";
  };
  for (std::size_t r = 0; r < metadata.rank_names.size(); ++r) name_track(static_cast<int>(r), on_host, 0);

  std::map<std::pair<activity, std::string_view>, std::string> names;
  const auto write = [&](const event& e, bool device, std::int64_t arrow_of) {
    const bool message = e.kind == activity::send || e.kind == activity::recv;
    const place where = !device ? on_host : message ? in_messages : in_stream;
    const int track = tracks[{e.rank, where}].assigner.place(e.begin_ns, e.end_ns);
    name_track(e.rank, where, track);
    const std::string_view given = e.name != nullptr && *e.name != '\0' ? e.name : activity_name(e.kind);
    std::string& name = names[{e.kind, given}];
    if (name.empty()) name = json_escape(detail::slice_name(e.kind, given));
    const std::string at_track = ",\"pid\":1,\"tid\":" + thread_of(e.rank, where, track) + ",\"ts\":";
    out += ",\n{\"ph\":\"X\",\"name\":\"" + name;
    if (e.microbatch >= 0) out += " " + std::to_string(e.microbatch);
    out += std::string("\",\"cat\":\"") + detail::slice_category(e.kind) + "\",\"cname\":\"" +
           detail::slice_colour(e.kind) + "\"" + at_track + detail::microseconds(e.begin_ns - base) +
           ",\"dur\":" + detail::microseconds(e.end_ns - e.begin_ns) + ",\"args\":{\"activity\":\"" +
           activity_name(e.kind) + "\"";
    const auto argument = [&out](const char* key, std::int64_t value) {
      if (value >= 0) out += std::string(",\"") + key + "\":" + std::to_string(value);
    };
    argument("step", e.step);
    argument("stage", e.stage);
    argument("microbatch", e.microbatch);
    argument("bytes", e.bytes);
    argument("peer", e.peer);
    out += "}}";
    if (arrow_of == 0) return;
    // An arrow leaves when the send begins and lands when the receive ends, inside both slices.
    const bool leaves = e.kind == activity::send;
    const std::int64_t at = leaves ? e.begin_ns : (std::max)(e.begin_ns, e.end_ns - 1);
    out += std::string(",\n{\"ph\":\"") + (leaves ? "s" : "f") + "\"" + (leaves ? "" : ",\"bp\":\"e\"") +
           ",\"id\":" + std::to_string(arrow_of) + ",\"name\":\"message\",\"cat\":\"communication\"" + at_track +
           detail::microseconds(at - base) + "}";
  };
  for (std::size_t i = 0; i < sorted.size(); ++i) write(sorted[i], false, arrow[i]);
  for (std::size_t i = 0; i < on_device.size(); ++i) write(on_device[i], true, arrow_on_device[i]);
  return out + "\n]}\n";
}

}  // namespace heddle::inline v0::observe
