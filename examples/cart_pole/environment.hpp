// examples/cart_pole/environment.hpp: a pole on a cart that is pushed left or right.
#pragma once

#include <array>
#include <cmath>
#include <numbers>

namespace cart_pole {

/// Position in metres, velocity, angle in radians from upright, angular velocity.
using state = std::array<double, 4>;
/// Steps after which an episode is cut off.
inline constexpr int longest = 500;

/// The state 0.02 seconds later, pushed by 10 newtons. Source: Barto, Sutton, Anderson 1983, without friction, by Euler's method: a cart of
/// 1 kg, a pole of 0.1 kg and of half length 0.5 m, as gymnasium's CartPole-v1 has them.
inline state pushed(const state& s, bool right) {
  const auto [x, speed, angle, turning] = s;
  constexpr double gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, seconds = 0.02;
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const double push = ((right ? 10.0 : -10.0) + pole * half * turning * turning * sine) / total;
  const double turns = (gravity * sine - cosine * push) / (half * (4.0 / 3.0 - pole * cosine * cosine / total));
  const double speeds_up = push - pole * half * turns * cosine / total;
  return {x + seconds * speed, speed + seconds * speeds_up, angle + seconds * turning, turning + seconds * turns};
}
/// Whether the pole leans by more than 12 degrees or the cart is more than 2.4 metres from the middle.
inline bool fallen(const state& s) {
  return std::abs(s[0]) > 2.4 || std::abs(s[2]) > 12 * std::numbers::pi / 180;
}

}  // namespace cart_pole
