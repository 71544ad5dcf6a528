// heddle/model/impl/recompute_plan.hpp: bodies of heddle/model/recompute_plan.hpp.
#pragma once

#include <heddle/model/recompute_plan.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

namespace heddle::inline v0::model {

namespace detail {
[[noreturn]] HEDDLE_INLINE void refuse_activation_name(std::string_view name) {
  std::string message = "heddle: there is no activation \"";
  message += name;
  message += "\"; there are";
  for (const std::string_view known : activation_names) (message += ' ') += known;
  message += "; an activation of a layer of your own is called by its tag, derived from by_tag";
  throw config_error(message);
}
}  // namespace detail

HEDDLE_INLINE recompute_plan parse_recompute(std::string_view text, const own_activations& own) {
  recompute_plan plan;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    if (one == "none") continue;
    constexpr std::string_view every = "every ", first = "first ", keep_tail = "keep-tail ";
    if (one == "full") {
      plan.every = 1;
    } else if (one.substr(0, every.size()) == every) {
      const char* const end = one.data() + one.size();
      const auto [last, error] = std::from_chars(one.data() + every.size(), end, plan.every);
      if (error != std::errc{} || last != end || plan.every < 1) {
        throw config_error(text_of({"heddle: recompute \"", one, "\": every how many blocks? Write \"every 2\""}));
      }
    } else if (one.substr(0, first.size()) == first) {
      const char* const end = one.data() + one.size();
      const auto [last, error] = std::from_chars(one.data() + first.size(), end, plan.first);
      if (error != std::errc{} || last != end || plan.first < 1) {
        throw config_error(text_of({"heddle: recompute \"", one, "\": the first how many blocks? Write \"first 20\""}));
      }
    } else if (one.substr(0, keep_tail.size()) == keep_tail) {
      const char* const end = one.data() + one.size();
      const auto [slash, error] = std::from_chars(one.data() + keep_tail.size(), end, plan.tail.part);
      const bool cut = error == std::errc{} && slash != end && *slash == '/';
      const auto [last, wrong] = std::from_chars(cut ? slash + 1 : end, end, plan.tail.of);
      if (!cut || wrong != std::errc{} || last != end || plan.tail.part < 1 || plan.tail.of < plan.tail.part) {
        throw config_error(
            text_of({"heddle: recompute \"", one, "\": which share of the rows is kept? Write \"keep-tail 1/2\""}));
      }
    } else {
      const activation_set known = detail::activation_if_named(one) | own.find(one);
      if (!known.any()) {
        std::string message = "heddle: recompute \"";
        message += one;
        message += "\" names no saved activation; there are none, full, every <k>, first <n>, keep-tail <part>/<of>";
        for (const std::string_view name : activation_names) (message += ", ") += name;
        for (unsigned i = 0; i < own.count; ++i) (message += ", ") += own.names[i];
        if (own.count == 0)
          message += "; an activation of a layer of your own is called by its tag, derived from by_tag";
        throw config_error(message);
      }
      plan.named = plan.named | known;
    }
  }
  if (plan.tail.any() && !plan.drops_attention())
    throw config_error(
        "heddle: recompute \"keep-tail\" keeps rows of attn.out where it is dropped; say \"full\", \"every <k>\", "
        "\"first <n>\" or \"attn.out\", too");
  return plan;
}

HEDDLE_INLINE std::string to_string(const recompute_plan& plan, const own_activations& own) {
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!text.empty()) text += ',';
    text += part;
  };
  if (plan.every == 1) add("full");
  if (plan.every > 1) add("every " + std::to_string(plan.every));
  if (plan.first > 0) add("first " + std::to_string(plan.first));
  if (plan.tail.any()) add("keep-tail " + std::to_string(plan.tail.part) + '/' + std::to_string(plan.tail.of));
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (plan.named.has(static_cast<activation>(i))) add(activation_names[i]);
  for (unsigned i = 0; i < own.count; ++i)
    if ((plan.named & own.find(own.names[i])).any()) add(own.names[i]);
  return text.empty() ? "none" : text;
}

}  // namespace heddle::inline v0::model
