// The task at the size of the paper's: fixed sets of 2 to 16 numbers of 8 bits, asked of sets of 32.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "network.hpp"

namespace second_minimum {

struct full_task {
  int bits = 8;
  std::int64_t width = 128, count = 65536, epochs = 2, batch = 128;
  std::int64_t stop = std::int64_t{1} << 30;  // after so many of the epochs that the rate is planned for
  double rate = 1e-3, associativity = 0;
  std::uint64_t seed = 5;
  std::string save{}, load{};
};

/// `--bits 8 --width 128 --sets 65536 --epochs N --stop N --batch 128 --rate 1e-3 --associativity 0 --seed 5 --save FILE --load
/// FILE`. Errors: `config_error` that names the option.
inline full_task read_options(int argc, const char* const* argv) {
  full_task t;
  const auto number = [](std::string_view option, std::string_view text, auto& value, auto least, auto most) {
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most))
      throw hd::config_error("heddle: second_minimum: " + std::string(option) + " must be a number from " +
                             std::to_string(least) + " to " + std::to_string(most) + ", got '" + std::string(text) +
                             "'");
  };
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) throw hd::config_error("heddle: second_minimum: " + std::string(option) + " needs a value");
    const std::string_view value = argv[i + 1];
    const std::int64_t most = std::int64_t{1} << 30;
    if (option == "--bits")
      number(option, value, t.bits, 1, 16);
    else if (option == "--width")
      number(option, value, t.width, std::int64_t{1}, std::int64_t{4096});
    else if (option == "--sets")
      number(option, value, t.count, std::int64_t{1}, most);
    else if (option == "--epochs")
      number(option, value, t.epochs, std::int64_t{0}, most);
    else if (option == "--stop")
      number(option, value, t.stop, std::int64_t{0}, most);
    else if (option == "--batch")
      number(option, value, t.batch, std::int64_t{1}, most);
    else if (option == "--rate")
      number(option, value, t.rate, 0.0, 1.0);
    else if (option == "--associativity")
      number(option, value, t.associativity, 0.0, 1e3);
    else if (option == "--seed")
      number(option, value, t.seed, std::uint64_t{0}, ~std::uint64_t{0});
    else if (option == "--save")
      t.save = value;
    else if (option == "--load")
      t.load = value;
    else
      throw hd::config_error("heddle: second_minimum: unknown option '" + std::string(option) + "'");
  }
  return t;
}

/// Each epoch takes all sets in another order, and their elements too. The rate falls as half a cosine after a warm-up
/// of 200 steps. Returns the mean loss of each epoch.
template <class Network, class Report>
std::vector<double> train_epochs(Network& net, const full_task& t, Report&& report) {
  const sets all = draw(t.bits, t.count, 2, 16, t.seed, 0);
  std::vector<std::int64_t> order(static_cast<std::size_t>(t.count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const std::int64_t per_epoch = (t.count + t.batch - 1) / t.batch;
  const auto steps = static_cast<double>(per_epoch * t.epochs);
  std::vector<double> losses;
  std::int64_t step = 0;
  for (std::int64_t e = 0; e < (std::min)(t.epochs, t.stop); ++e) {
    const hd::counter_random random(t.seed + 1, static_cast<std::uint64_t>(e));
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.integer(i) % i]);
    double sum = 0;
    for (std::int64_t b = 0; b < per_epoch; ++b, ++step) {
      const std::int64_t first = b * t.batch, n = (std::min)(t.batch, t.count - first);
      const auto chosen =
          std::span<const std::int64_t>(order).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
      const double rate = t.rate * (std::min)(1.0, static_cast<double>(step + 1) / 200) *
                          (1 + std::cos(std::numbers::pi * static_cast<double>(step) / steps)) / 2;
      sum += net.train(pick(all, chosen, t.seed + 2, static_cast<std::uint64_t>(step)),
                       static_cast<float>(t.associativity), rate) *
             static_cast<double>(n);
    }
    losses.push_back(sum / static_cast<double>(t.count));
    report(e, losses.back());
  }
  return losses;
}

/// The part of 1,024 sets of 32 that are not among the training sets whose bits are all right.
template <class Network>
double exact_on_sets_of_32(Network& net, const full_task& t) {
  return net.accuracy(draw(t.bits, 1024, 32, 32, t.seed + 3, 0));
}

}  // namespace second_minimum
