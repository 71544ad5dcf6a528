// heddle/compute/host/merge_partials.hpp: merges partial attention; runs bodies on rows.
#pragma once

#include <heddle/compute/ops/on_rows.hpp>
#include <heddle/compute/host/host.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

template <class Work>
void body(ops::on_rows<Work>, team& workers, const Work& work, std::int64_t n, std::int64_t size) {
  constexpr std::int64_t grain = 1 << 14;  // elements that are worth a thread
  workers.split(n, grain / (std::max)(std::int64_t{1}, size) + 1, 1, [&](std::int64_t begin, std::int64_t end) {
    [[maybe_unused]] in_groups::lone_thread alone;
    for (std::int64_t i = begin; i < end; ++i)
      if constexpr (requires { work.by_one_thread(i); })
        work.by_one_thread(i);
      else
        work(alone, i);
  });
}

}  // namespace heddle::inline v0::compute::detail
