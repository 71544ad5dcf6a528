// heddle/compute/watched_choices.hpp: a host backend that reports the experts its routers choose.
#pragma once

#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <tuple>

namespace heddle::inline v0::compute {

/// `Backend`, a `compute::host`, with a call of `chosen` for each choice of experts: row i of its argument, [rows, chosen], has the experts
/// of row i of the batch. Layers choose in their order, once for each forward of a microbatch; what is computed again is told again.
///
///     compute::watched_choices<compute::host<>> kernels{1};
///     kernels.chosen = [&](matrix_view<const std::int32_t> ids) { ... };
template <class Backend>
  requires std::same_as<space_of<Backend>, host_memory>
class watched_choices : public Backend {
 public:
  using Backend::Backend;

  std::function<void(matrix_view<const std::int32_t> ids)> chosen;

  template <class Op, class T, class... V>
    requires offered<Op, Backend, T>
  void run(const V&... v) {
    compute::run<Op>(static_cast<Backend&>(*this), v...);
    if constexpr (requires { Op::chosen_argument; })
      if (chosen) chosen(std::get<Op::chosen_argument>(std::tie(v...)));
  }
};

}  // namespace heddle::inline v0::compute
