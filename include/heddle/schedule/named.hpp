// heddle/schedule/named.hpp: a schedule chosen by name at start-up, as a command line gives it.
#pragma once

#include <heddle/schedule/gpipe.hpp>
#include <heddle/schedule/one_f_one_b.hpp>

#include <array>
#include <string>
#include <string_view>

namespace heddle::inline v0::schedule {

/// One of the schedules, known by name at run time: "gpipe" or "1f1b". Elsewhere the same as the schedule it names.
/// Errors: `schedule_error` for another name, listing those there are, or for fewer than one microbatch.
class named {
 public:
  using kind = schedule_kind;
  static constexpr bool is_static = false;
  static constexpr std::array<std::string_view, 2> names{"gpipe", "1f1b"};

  constexpr named(std::string_view name, int microbatches_of_step)
      : which_(find(name)), microbatches_(microbatches_of_step) {}

  constexpr std::string_view name() const noexcept { return names[which_]; }
  constexpr int microbatch_count() const noexcept { return microbatches_.count(); }
  static constexpr int stages(int ranks) noexcept { return ranks; }
  static constexpr int rank_of(int stage, int) noexcept { return stage; }

  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    if (which_ == 0)
      gpipe<>{microbatches_}.generate(rank, ranks, emit);
    else
      one_f_one_b<>{microbatches_}.generate(rank, ranks, emit);
  }

 private:
  static constexpr std::size_t find(std::string_view name) {
    std::string known;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return i;
      known += (i ? ", " : "") + std::string(names[i]);
    }
    throw schedule_error("heddle: there is no schedule \"" + std::string(name) + "\" (known: " + known + ")");
  }

  std::size_t which_;
  microbatches<> microbatches_;
};

}  // namespace heddle::inline v0::schedule
