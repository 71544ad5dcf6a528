// refuse: heddle: the documents of a step, and who sends what of them, differ from step to step, and a graph repeats one step: leave the context split or captured_steps out
#include "captured_parts.hpp"

struct documents : captured_parts::stage {
  struct rows_type {
    static constexpr bool of_samples = false;
  };
};
bool captured = captured_parts::captured<captured_parts::strategy, documents>;
