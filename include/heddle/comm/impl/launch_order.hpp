// heddle/comm/impl/launch_order.hpp: bodies of heddle/comm/launch_order.hpp.
#pragma once

#include <heddle/comm/launch_order.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE void refuse_launch(const char* what, int got, const char* why, int number) {
  throw comm_error(text_of({"heddle: launch_program: ", what, ' ', got, why, number}));
}

}  // namespace detail
}  // namespace heddle::inline v0

namespace heddle::inline v0 {

HEDDLE_INLINE std::string to_string(const launch_fault& fault) {
  const auto number = [](int n) { return std::to_string(n); };
  std::string text;
  const auto rank = [&](int r) {
    text += "rank ";
    text += number(r);
  };
  const auto call = [&](const launch_call& c, std::string_view group) {
    text += group;
    text += " (call ";
    text += number(c.number);
    text += ')';
  };
  switch (fault.what) {
    case launch_fault::kind::none:
      text = "the launch orders agree";
      break;
    case launch_fault::kind::stranger:
      rank(fault.rank);
      text += " calls ";
      text += fault.name;
      text += ", of which it is not a member";
      break;
    case launch_fault::kind::count:
      rank(fault.rank);
      text += " makes ";
      text += number(fault.calls);
      text += " calls on ";
      text += fault.name;
      text += ", ";
      rank(fault.other);
      text += " makes ";
      text += number(fault.other_calls);
      break;
    case launch_fault::kind::operation:
      rank(fault.rank);
      text += " and ";
      rank(fault.other);
      text += " make different calls on ";
      text += fault.name;
      text += ": call ";
      text += number(fault.calls);
      break;
    case launch_fault::kind::circle:
      text = "the launch orders cross: ";
      for (int i = 0; i < fault.length && i < launch_fault::most; ++i) {
        const launch_fault::crossing& c = fault.crossings[static_cast<std::size_t>(i)];
        if (i > 0) text += ", ";
        rank(c.rank);
        text += " calls ";
        call(c.first, c.first_name);
        text += " before ";
        call(c.then, c.then_name);
      }
      if (fault.length > launch_fault::most) text += ", and so on";
      break;
  }
  return text;
}

HEDDLE_INLINE launch_queue::launch_queue(const launch_program& program, const launch_plan& plan, int rank)
    : rank_(rank) {
  if (!plan.ok()) {
    std::string text = "heddle: ";
    text += to_string(plan.fault);
    throw comm_error(text);
  }
  detail::expect_launch("rank", rank, static_cast<int>(plan.by_rank.size()));
  for (const launch_call& c : plan.calls(rank)) turns_.push_back({c, nullptr});
  for (int g = 0; g < program.groups(); ++g) names_.emplace_back(program.name(g));
  submitted_.assign(names_.size(), 0);
}

HEDDLE_INLINE void launch_queue::finish() {
  make_waiting();
  if (done()) return;
  const launch_call& missing = turns_[next_].what;
  throw comm_error(text_of({"heddle: rank ", rank_, ": ", waiting(), " submitted calls wait for call ", missing.number,
                            " on ", names_[static_cast<std::size_t>(missing.group)], ", which was not submitted"}));
}

HEDDLE_INLINE void launch_queue::make_waiting() {
  if (running_) return;
  running_ = true;
  const stop guard{*this};
  while (next_ < turns_.size() && turns_[next_].waiting != nullptr) {
    const std::unique_ptr<job> now = std::move(turns_[next_].waiting);
    ++next_;
    now->run();
  }
}

}  // namespace heddle::inline v0
