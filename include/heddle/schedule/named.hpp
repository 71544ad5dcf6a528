// heddle/schedule/named.hpp: a schedule chosen by name at start-up, as a command line gives it.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/schedule/generate/breadth_first.hpp>
#include <heddle/schedule/generate/chimera.hpp>
#include <heddle/schedule/generate/dual_pipe.hpp>
#include <heddle/schedule/generate/dual_pipe_v.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/hanayo.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/v_half.hpp>
#include <heddle/schedule/generate/v_min.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace heddle::inline v0::schedule {
namespace detail {

// A name and the schedule it stands for, made from microbatches only.
template <fixed_string Name, class When>
struct known_schedule {
  static constexpr std::string_view name = Name.view();
  static constexpr int number = 0;
  static constexpr When make(microbatches<> m, int /*number*/) { return When{m}; }
};
// The same for a schedule with a number behind a colon, of chunks or waves; `Number` if there is none.
template <fixed_string Name, class When, int Number>
struct numbered_schedule {
  static constexpr std::string_view name = Name.view();
  static constexpr int number = Number;
  static constexpr When make(microbatches<> m, int given) { return When{m, given}; }
};

template <class... Known>
struct schedule_list {
  static constexpr std::array<std::string_view, sizeof...(Known)> names{Known::name...};
  static constexpr std::array<int, sizeof...(Known)> numbers{Known::number...};

  // Calls `f` with the schedule of this index.
  template <class F>
  static constexpr void visit(std::size_t which, microbatches<> m, int number, F&& f) {
    std::size_t k = 0;
    ((k++ == which ? f(Known::make(m, number)) : void()), ...);
  }
};

// A schedule more is a line more.
using named_schedules = schedule_list<                                              //
    known_schedule<"gpipe", gpipe<>>,                                               //
    known_schedule<"1f1b", one_f_one_b<>>,                                          //
    numbered_schedule<"interleaved", interleaved<microbatches<>, dynamic>, 2>,      //
    numbered_schedule<"breadth-first", breadth_first<microbatches<>, dynamic>, 2>,  //
    numbered_schedule<"zb-h1", zb_h1<microbatches<>, dynamic>, 1>,                  //
    known_schedule<"zb-h2", zb_h2<>>,                                               //
    known_schedule<"zb-v", zb_v<>>,                                                 //
    known_schedule<"v-half", v_half<>>,                                             //
    known_schedule<"v-min", v_min<>>,                                               //
    known_schedule<"dual-pipe-v", dual_pipe_v<>>,                                   //
    known_schedule<"dual-pipe", dual_pipe<>>,                                       //
    known_schedule<"chimera", chimera<>>,                                           //
    numbered_schedule<"hanayo", hanayo<microbatches<>, dynamic>, 1>>;

}  // namespace detail

/// One of the schedules, known by name at run time: "gpipe", "1f1b", "zb-v", ..; `names` has all. Some take a number of
/// chunks per rank, or of waves, behind a colon, at most 32768: "interleaved:4" (2 if there is none; 1 for "zb-h1" and
/// "hanayo").
/// Elsewhere the same as the schedule it names.
/// Errors: `schedule_error` for another name, listing those there are, for a number where none belongs or that is none,
/// or for fewer than one microbatch.
class named : public detail::run_time_schedule {
  // What calls all generators is a template, so that those who include this header and name no schedule do not compile them.
 public:
  static constexpr auto names = detail::named_schedules::names;
  /// The largest number behind a colon.
  static constexpr int most_number = 32768;

  template <int = 0>
  constexpr named(std::string_view name, int microbatches_of_step) : microbatches_(microbatches_of_step) {
    read(name);
    visit([](const auto&) {});  // which refuses an illegal number
  }

  constexpr std::string_view name() const noexcept { return names[which_]; }
  /// The number behind the colon; 0 for a schedule without one.
  constexpr int number() const noexcept { return number_; }
  constexpr int microbatch_count() const noexcept { return microbatches_.count(); }
  template <int = 0>
  constexpr int stages(int ranks) const {
    int n = 0;
    visit([&](const auto& when) { n = when.stages(ranks); });
    return n;
  }
  template <int = 0>
  constexpr int rank_of(int stage, int ranks) const {
    int r = 0;
    visit([&](const auto& when) { r = when.rank_of(stage, ranks); });
    return r;
  }
  template <int = 0>
  constexpr table_form form() const {
    table_form form;
    visit([&](const auto& when) { form = detail::form_of(when); });
    return form;
  }
  template <int = 0>
  constexpr bool fits(int ranks) const {
    bool yes = false;
    visit([&](const auto& when) { yes = detail::fits(when, ranks); });
    return yes;
  }
  template <int = 0>
  constexpr bool fits_with(int microbatches, int ranks) const {
    bool yes = true;
    visit([&](const auto& when) {
      if constexpr (requires { when.fits_with(microbatches, ranks); }) yes = when.fits_with(microbatches, ranks);
    });
    return yes;
  }

  template <int = 0>
  constexpr rank_lists lists(int ranks) const {
    rank_lists all;
    visit([&](const auto& when) { all = detail::lists_of(when, ranks); });
    return all;
  }

 private:
  template <class F>
  constexpr void visit(F&& f) const {
    detail::named_schedules::visit(which_, microbatches_, number_, f);
  }

  constexpr void read(std::string_view text) {
    const std::size_t colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    while (which_ < names.size() && names[which_] != name) ++which_;
    if (which_ == names.size()) {
      std::string message = "heddle: there is no schedule \"";
      message += name;
      message += "\" (known: ";
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (i > 0) message += ", ";
        message += names[i];
        if (detail::named_schedules::numbers[i] > 0) message += "[:number]";
      }
      throw schedule_error(message + ")");
    }
    number_ = detail::named_schedules::numbers[which_];
    if (colon == std::string_view::npos) return;
    const std::string_view digits = text.substr(colon + 1);
    int n = 0;
    bool good = number_ > 0 && !digits.empty() && digits.size() < 6;
    for (const char c : digits) {
      good = good && c >= '0' && c <= '9';
      if (good) n = 10 * n + (c - '0');
    }
    if (!good || n == 0 || n > most_number) {
      std::string message = "heddle: the schedule \"";
      message += text;
      if (number_ > 0) {
        message += "\": behind the colon stands a number from 1 to ";
        message += std::to_string(most_number);
        message += ", as in \"";
      } else {
        message += "\": \"";
      }
      message += name;
      message += number_ > 0 ? ":2\"" : "\" takes no number";
      throw schedule_error(message);
    }
    number_ = n;
  }

  std::size_t which_ = 0;
  int number_ = 0;
  microbatches<> microbatches_;
};

}  // namespace heddle::inline v0::schedule
