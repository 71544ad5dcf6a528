// heddle/compute/cuda/merge_partials.hpp: merge of attention on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/ops/on_rows.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

template <launcher L, class Work>
void body(ops::on_rows<Work>, const L& on, const Work& work, std::int64_t n, std::int64_t size) {
  on.each_row(n, size, work);
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
