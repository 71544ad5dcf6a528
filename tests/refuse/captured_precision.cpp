// refuse: heddle: captured_steps has steps of the optimizer in the model's element type, by a backend that reads their scalars from its memory (compute::ops::adamw_at); leave precision<...> of weights, gradients or moments, or captured_steps, out
#include "captured_parts.hpp"

struct mixed_optimizer {};
bool captured = captured_parts::captured<captured_parts::strategy, captured_parts::stage, mixed_optimizer>;
