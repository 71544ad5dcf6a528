// tests/context/device_trials.hpp: context tables run in the memory of a device, and in the host's.
#pragma once

#include "context/context_cases.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/context/check.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace device_trials {

using namespace context_cases;
using hd::context_pass;
using line = hd::mesh<hd::axis<hd::cp>>;

/// The rows of a rank in the memory of a backend.
template <class T, class Backend>
class rows_there {
 public:
  using space = typename Backend::space;
  using sum = hd::sum_of_type<T>;
  rows_there(Backend& backend, rows<T>& here) : queue_(hd::compute::queue_of(backend)), here_(here) {
    for (std::vector<T>* x : {&here.q, &here.k, &here.v, &here.dout, &here.out, &here.dq, &here.dk, &here.dv}) {
      tensors_.emplace_back(queue_, std::ssize(*x) + 1, "a tensor");
      queue_.copy(std::span<const T>(*x), row(tensors_.back(), *x));
    }
    lse_ = hd::buffer<sum, space>(queue_, std::ssize(here.lse) + 1, "numbers");
  }
  template <class Executor>
  void attend(Executor& executor, const hd::context_program& to) {
    executor.attend(to, queries(0), keys(1), values(2), here_.scale(), outputs(4), row(lse_, here_.lse));
  }
  template <class Executor>
  void attend_backward(Executor& executor, const hd::context_program& back) {
    executor.attend_backward(back, outputs(3), queries(0), keys(1), values(2), outputs(4), row(lse_, here_.lse),
                             here_.scale(), queries(5), keys(6), values(7));
  }
  /// The results, as they are on the device when all is done.
  void fetch() {
    std::size_t i = 4;
    for (std::vector<T>* x : {&here_.out, &here_.dq, &here_.dk, &here_.dv}) {
      queue_.copy(row(tensors_[i++], *x), std::span<T>(*x));
    }
    queue_.copy(row(lse_, here_.lse), std::span<sum>(here_.lse));
    queue_.wait();
  }

 private:
  hc::head_rows<T, space> heads(std::size_t i, std::int64_t n, std::int64_t d) {
    return {tensors_[i].address(), here_.count, n, d, n * d};
  }
  hc::head_rows<T, space> queries(std::size_t i) { return heads(i, here_.z.query_heads, here_.z.head_dim); }
  hc::head_rows<T, space> outputs(std::size_t i) { return heads(i, here_.z.query_heads, here_.z.value_dim); }
  hc::head_rows<T, space> keys(std::size_t i) { return heads(i, here_.z.key_heads, here_.z.head_dim); }
  hc::head_rows<T, space> values(std::size_t i) { return heads(i, here_.z.key_heads, here_.z.value_dim); }
  template <class U>
  static hd::row_view<U, space> row(hd::buffer<U, space>& x, const std::vector<U>& like) {
    return hd::row_at<space>(x.address(), std::ssize(like));
  }
  typename space::queue& queue_;
  rows<T>& here_;
  std::vector<hd::buffer<T, space>> tensors_{};
  hd::buffer<sum, space> lse_{};
};

/// Of all ranks: the largest difference to the host's results relative to numbers above 1, and whether bytes and messages were those of
/// the tables.
struct outcome {
  double difference = 0;
  bool bytes_as_said = true, messages_as_said = true;
};

/// Both passes of a batch, some times over, with the device's messages over `Transport`.
template <class T, class Backend, class Transport>
outcome compare_with_host(const hd::context_carrier& carrier, const hd::context_cut& cut, std::vector<rows<T>>& whole,
                          const sizes& z, int repeats) {
  const hd::context_table forward = make_context_table(carrier, cut, context_pass::forward);
  const hd::context_table backward = make_context_table(carrier, cut, context_pass::backward);
  std::vector<rows<T>> of_host(static_cast<std::size_t>(cut.ranks), rows<T>(0, z));
  hd::launch<hd::threads>(line{cut.ranks}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    rows<T>& own = of_host[static_cast<std::size_t>(me)] = rows_of(cut, me, whole, z);
    hc::host<> host(1);
    hd::context_executor<T, hc::host<>, std::remove_reference_t<decltype(ranks)>> executor(host, ranks);
    attend(executor, hd::lower_context(forward, me), own);
    attend_backward(executor, hd::lower_context(backward, me), own);
  });
  std::vector<outcome> all(static_cast<std::size_t>(cut.ranks));
  hd::launch<Transport>(line{cut.ranks}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    const hd::context_program to = hd::lower_context(forward, me), back = hd::lower_context(backward, me);
    outcome& mine = all[static_cast<std::size_t>(me)];
    rows<T>& expected = of_host[static_cast<std::size_t>(me)];
    Backend backend;
    hd::context_executor<T, Backend, std::remove_reference_t<decltype(ranks)>> executor(backend, ranks);
    std::vector<rows<T>> got(static_cast<std::size_t>(repeats), rows_of(cut, me, whole, z));
    std::vector<std::unique_ptr<rows_there<T, Backend>>> there;
    // The host gives all of them to the queue before it waits for the first.
    for (rows<T>& own : got) {
      there.push_back(std::make_unique<rows_there<T, Backend>>(backend, own));
      there.back()->attend(executor, to);
      there.back()->attend_backward(executor, back);
    }
    for (auto& t : there) t->fetch();
    for (rows<T>& own : got) {
      const auto compare = [&](auto& x, auto& y) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
          if (a == b) continue;
          mine.difference =
              (std::max)(mine.difference,
                         std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) / (std::max)(1.0, std::abs(b)) : 1e300);
        }
      };
      own.each_result(expected, [&](auto& x, auto& y, std::int64_t) { compare(x, y); });
      compare(own.lse, expected.lse);
    }
    const hd::comm_counters sent = executor.counters();
    const hd::context_shape shape = shape_of<T>(z);
    mine.bytes_as_said = sent.bytes_sent() ==
                         repeats * (bytes_sent(forward, shape, me).total() + bytes_sent(backward, shape, me).total());
    mine.messages_as_said = sent.messages_sent() == repeats * (messages_sent(forward.rounds.view(), me) +
                                                               messages_sent(backward.rounds.view(), me));
  });
  outcome worst;
  for (const outcome& o : all) {
    worst.difference = (std::max)(worst.difference, o.difference);
    worst.bytes_as_said &= o.bytes_as_said;
    worst.messages_as_said &= o.messages_as_said;
  }
  return worst;
}

/// A line for each carrier, mesh or type whose results on the device are not the host's within `tolerance`, or whose messages are not those of
/// the tables.
template <class T, class Backend, class Transport = hd::threads>
std::string differences(int ranks, const sizes& z, unsigned seed, double tolerance, int repeats = 1) {
  std::string wrong;
  std::mt19937 random(seed);
  batch<T> b(z, random);
  std::size_t turn = 0;
  for (const hd::context_carrier& carrier : hd::context_carriers()) {
    if (z.query_heads % carrier.parts != 0) continue;
    const hd::context_order& order = hd::context_orders()[turn++ % hd::context_orders().size()];
    const outcome o =
        compare_with_host<T, Backend, Transport>(carrier, b.cut(carrier, order, ranks, random), b.whole, z, repeats);
    if (o.difference <= tolerance && o.bytes_as_said && o.messages_as_said) continue;
    wrong += std::string(carrier.name) + ", " + std::string(order.name) + " on " + std::to_string(ranks) +
             " ranks, seed " + std::to_string(seed) + ": " + std::to_string(o.difference) +
             (o.bytes_as_said ? "" : ", other bytes") + (o.messages_as_said ? "" : ", other messages") + "\n";
  }
  return wrong;
}
}  // namespace device_trials
