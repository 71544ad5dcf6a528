// Strategies as text: what is accepted, printed and read again is the same strategy, and is printed as C++.
#include <heddle/train/strategy_choice.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(strategy) {
  namespace tr = heddle::train;
  fuzz::accepted([&] {
    const tr::strategy_choice choice = tr::read_strategy({reinterpret_cast<const char*>(data), size});
    fuzz::require(tr::read_strategy(tr::to_string(choice)) == choice, "a strategy reads back");
    static_cast<void>(tr::to_cpp(choice)), static_cast<void>(tr::to_command_line(choice));
  });
}
