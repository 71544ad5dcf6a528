// examples/online_heat/heat_equation.hpp: a rod whose ends are held at two temperatures, by finite differences.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace heat {

/// Points inside of the rod, samples of a simulation, and steps of time between two samples.
inline constexpr int points = 16, samples = 40, between = 4;
/// Temperatures of the left end, of the right end, and of all at the beginning.
using parameters = std::array<double, 3>;

/// One step of time: points of which neighbours are `before` and `after` the span. Source: forward Euler in time, central differences in
/// space, with dt k / dx^2 = 0.4.
inline void step(std::span<double> u, double before, double after) {
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double here = u[i], next = i + 1 < u.size() ? u[i + 1] : after;
    u[i] = here + 0.4 * (before - 2 * here + next);
    before = here;
  }
}
/// What goes into the model for sample t.
inline std::vector<float> inputs(const parameters& p, int t) {
  return {static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
          static_cast<float>(t + 1) / samples};
}
/// Calls f(t, inputs, field) for each sample of a simulation.
template <class F>
void simulate(const parameters& p, F&& f) {
  std::vector<double> u(points, p[2]);
  for (int t = 0; t < samples; ++t) {
    for (int k = 0; k < between; ++k) step(u, p[0], p[1]);
    f(t, inputs(p, t), std::vector<float>(u.begin(), u.end()));
  }
}

}  // namespace heat
