// heddle/train/online/message.hpp: the messages in which simulations send what they have computed.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// A sample that a simulation has computed: numbers that go into the model, such as parameters and time, and those that
/// come out, such as a field.
struct online_sample {
  std::uint32_t simulation = 0, step = 0;
  std::vector<float> inputs{}, targets{};
};

/// Before the numbers of a message; little-endian, without padding: 24 bytes, then `inputs` and `targets` numbers of 32
/// bits. Solvers in other languages write the same.
struct online_header {
  std::uint32_t magic = 0x314f4448;  ///< "HDO1"
  std::uint32_t run = 0;             ///< of another run: refused
  std::uint32_t simulation = 0;
  std::uint32_t step = 0;  ///< `end_of_simulation`: no sample, there are no more
  std::uint32_t inputs = 0, targets = 0;
};
static_assert(sizeof(online_header) == 24);
/// The step of a message that ends a simulation.
inline constexpr std::uint32_t end_of_simulation = 0xffffffffu;

/// The bytes of a message.
inline std::vector<std::byte> message_of(online_header h, std::span<const float> inputs,
                                         std::span<const float> targets) {
  h.inputs = static_cast<std::uint32_t>(inputs.size());
  h.targets = static_cast<std::uint32_t>(targets.size());
  std::vector<std::byte> bytes(sizeof h + inputs.size_bytes() + targets.size_bytes());
  std::memcpy(bytes.data(), &h, sizeof h);
  if (!inputs.empty()) std::memcpy(bytes.data() + sizeof h, inputs.data(), inputs.size_bytes());
  if (!targets.empty())
    std::memcpy(bytes.data() + sizeof h + inputs.size_bytes(), targets.data(), targets.size_bytes());
  return bytes;
}

/// What is wrong with a message for a run whose samples have so many numbers, and which has so many simulations; empty:
/// nothing. Then `h` is its header.
inline std::string message_fault(std::span<const std::byte> bytes, std::uint32_t run, std::int64_t inputs,
                                 std::int64_t targets, online_header& h,
                                 std::int64_t simulations = std::int64_t{1} << 32) {
  if (bytes.size() < sizeof h) return "a message of " + std::to_string(bytes.size()) + " bytes; its header has 24";
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.magic != online_header{}.magic) return "a message that does not begin with HDO1";
  if (h.run != run) return "a message of run " + std::to_string(h.run) + "; this is run " + std::to_string(run);
  if (h.simulation >= simulations)
    return "a message of simulation " + std::to_string(h.simulation) + "; this run has those below " +
           std::to_string(simulations);
  if (h.step == end_of_simulation) return {};
  if (h.inputs != inputs || h.targets != targets)
    return "simulation " + std::to_string(h.simulation) + " sent samples of " + std::to_string(h.inputs) +
           " inputs and " + std::to_string(h.targets) + " targets; expected " + std::to_string(inputs) + " and " +
           std::to_string(targets);
  if (h.step >= (1u << 30))
    return "simulation " + std::to_string(h.simulation) + " sent step " + std::to_string(h.step);
  if (const std::size_t n = sizeof h + 4 * static_cast<std::size_t>(inputs + targets); bytes.size() != n)
    return "simulation " + std::to_string(h.simulation) + " sent " + std::to_string(bytes.size()) +
           " bytes; expected " + std::to_string(n);
  return {};
}

/// The sample of a message without fault.
inline online_sample sample_of(std::span<const std::byte> bytes, const online_header& h) {
  online_sample s{h.simulation, h.step, std::vector<float>(h.inputs), std::vector<float>(h.targets)};
  const std::byte* const from = bytes.data() + sizeof h;
  if (h.inputs > 0) std::memcpy(s.inputs.data(), from, 4 * s.inputs.size());
  if (h.targets > 0) std::memcpy(s.targets.data(), from + 4 * s.inputs.size(), 4 * s.targets.size());
  return s;
}

}  // namespace heddle::inline v0::train
