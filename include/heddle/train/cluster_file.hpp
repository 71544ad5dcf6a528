// heddle/train/cluster_file.hpp: reads the description of a cluster from a JSON file.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/train/cluster_file.hpp needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/model/hugging_face/config_object.hpp>
#include <heddle/model/paper/profile.hpp>
#include <heddle/train/cluster.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace heddle::inline v0::train {

/// A cluster from JSON: `devices`, `memory` (bytes), `flops` and `bytes_per_second` of a device, optionally its `efficiency`
/// and `launch_seconds`, and `levels`, the narrowest first: `name`, `devices` of a part (of the last: all), `bytes_per_second`
/// of a device and `latency_seconds`. Optionally `kernels`, a profile: `name`, `flops`, `bytes` and `seconds` of each, and the
/// `spread` of its calls. `what` names it in errors.
/// Errors: `config_error` naming key, expected and got, for keys that are missing, unknown or have other values.
inline cluster cluster_of_json(const nlohmann::json& all, const std::string& what) {
  model::detail::config_object of(all, what);
  cluster c;
  c.devices = of.integer("devices");
  const double memory = of.number("memory");
  if (memory >= 9e18) of.fail("memory", "bytes of a device, below 9e18");
  c.memory = static_cast<std::int64_t>(memory);
  c.device.flops = of.number("flops");
  c.device.bytes_per_second = of.number("bytes_per_second");
  c.device.efficiency = of.number("efficiency", 1.0);
  c.device.launch_seconds = of.at_least_zero_unless_null("launch_seconds", 0.0);
  const nlohmann::json* const levels = of.find("levels");
  if (levels == nullptr || !levels->is_array() || levels->empty()) of.fail("levels", "a list of objects");
  c.levels.clear();
  for (std::size_t i = 0; i < levels->size(); ++i) {
    model::detail::config_object level((*levels)[i], what + ", levels[" + std::to_string(i) + "]");
    cluster_level l;
    const nlohmann::json* const name = level.find("name");
    if (name == nullptr || !name->is_string() || name->get<std::string>().empty()) level.fail("name", "a name");
    l.name = name->get<std::string>();
    l.devices = i + 1 < levels->size() ? level.integer("devices") : level.integer("devices", c.devices);
    l.bytes_per_second = level.number("bytes_per_second");
    l.latency_seconds = level.at_least_zero_unless_null("latency_seconds", 0.0);
    level.only_known();
    c.levels.push_back(std::move(l));
  }
  if (const nlohmann::json* const kernels = of.find("kernels"); kernels != nullptr) {
    if (!kernels->is_array()) of.fail("kernels", "a list of objects");
    for (std::size_t i = 0; i < kernels->size(); ++i) {
      model::detail::config_object kernel((*kernels)[i], what + ", kernels[" + std::to_string(i) + "]");
      model::measured_kernel k;
      const nlohmann::json* const name = kernel.find("name");
      if (name == nullptr || !name->is_string() || name->get<std::string>().empty()) kernel.fail("name", "a name");
      k.name = name->get<std::string>();
      const auto whole = [&](const char* key) {
        const double n = kernel.at_least_zero_unless_null(key, 0.0);
        if (n >= 9e18) kernel.fail(key, "a number below 9e18");
        return static_cast<std::int64_t>(n);
      };
      k.flops = whole("flops");
      k.bytes = whole("bytes");
      k.seconds = kernel.number("seconds");
      k.spread = kernel.at_least_zero_unless_null("spread", 0.0);
      kernel.only_known();
      c.kernels.add(std::move(k));
    }
  }
  of.only_known();
  try {
    c.validate();
  } catch (const config_error& e) {
    throw config_error("heddle: " + what + ": " + std::string(without_prefix(e.what())));
  }
  return c;
}

/// What `cluster_of_json` reads back as this cluster.
inline nlohmann::json json_of_cluster(const cluster& c) {
  nlohmann::json levels = nlohmann::json::array(), kernels = levels;
  for (const cluster_level& l : c.levels)
    levels.push_back({{"name", l.name},
                      {"devices", l.devices},
                      {"bytes_per_second", l.bytes_per_second},
                      {"latency_seconds", l.latency_seconds}});
  for (const model::measured_kernel& k : c.kernels.kernels())
    kernels.push_back(
        {{"name", k.name}, {"flops", k.flops}, {"bytes", k.bytes}, {"seconds", k.seconds}, {"spread", k.spread}});
  return {{"devices", c.devices},
          {"memory", c.memory},
          {"flops", c.device.flops},
          {"bytes_per_second", c.device.bytes_per_second},
          {"efficiency", c.device.efficiency},
          {"launch_seconds", c.device.launch_seconds},
          {"levels", std::move(levels)},
          {"kernels", std::move(kernels)}};
}

/// `cluster_of_json` of a file. Errors: also `io_error` for what cannot be read or is no JSON.
inline cluster read_cluster(const std::filesystem::path& path) {
  return cluster_of_json(io::read_json(path), "'" + path.string() + "'");
}

}  // namespace heddle::inline v0::train
