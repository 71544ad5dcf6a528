// examples/diagnose/pytorch.hpp: writes flight files as dumps of PyTorch's flight recorder, for its analyzer (`fr_trace`).
#pragma once

#include <heddle/observe/flight_report.hpp>
#include <heddle/observe/text_file.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace diagnose {

namespace observe = heddle::observe;
using json = nlohmann::json;

/// What Python's pickle calls a value of JSON: its oldest protocol, with texts of the second.
inline std::string pickled(const json& x) {
  std::string out;
  const auto put = [&out](auto& self, const json& v) -> void {
    if (v.is_object()) {
      out += "}(";
      for (const auto& [key, value] : v.items()) {
        self(self, json(key));
        self(self, value);
      }
      out += 'u';
    } else if (v.is_array()) {
      out += "](";
      for (const auto& value : v) self(self, value);
      out += 'e';
    } else if (v.is_string()) {
      const auto& text = v.get_ref<const std::string&>();
      out += 'X';
      for (int k = 0; k < 4; ++k) out += static_cast<char>(text.size() >> 8 * k & 0xff);
      out += text;
    } else if (v.is_boolean()) {
      out += v.get<bool>() ? "I01\n" : "I00\n";
    } else {
      out += "L" + v.dump() + "L\n";
    }
  };
  out = "\x80\x02";
  put(put, x);
  return out + '.';
}

/// A rank's file as the dump that PyTorch would write: collectives, without messages. Its operator and root have no place there.
inline json dump_of(const observe::rank_flight& rank) {
  std::vector<std::string> names;  // unlike in the flight file, groups of a rank have names of their own
  json groups = json::object(), entries = json::array();
  for (std::size_t g = 0; g < rank.groups.size(); ++g) {
    std::string name = rank.groups[g].name;
    if (groups.contains(name)) name += "#" + std::to_string(g);
    groups[name] = {{"name", name}, {"desc", rank.groups[g].name}, {"ranks", json(rank.groups[g].members).dump()}};
    names.push_back(name);
  }
  for (const auto& c : rank.calls) {
    if (c.peer >= 0 || rank.groups[c.group].members.empty()) continue;
    const auto size = static_cast<std::int64_t>(rank.groups[c.group].members.size());
    std::string name = c.name;
    std::int64_t in = c.count, out = c.count;
    if (name == "all_gather" || name == "gather") out *= size;
    if (name == "scatter") in *= size;
    if (name == "reduce_scatter") out /= size;
    if (name == "all_to_all") in = out = c.count * size;
    if (name == "all_to_all_v" || name == "gather_v" || name == "scatter_v") {
      name.resize(name.size() - 2);
      in = out = 1;  // sizes that every rank has of its own are not kept
    }
    entries.push_back({{"record_id", c.number - 1},
                       {"pg_id", c.group},
                       {"process_group", {names[c.group], rank.groups[c.group].name}},
                       {"collective_seq_id", c.call},
                       {"p2p_seq_id", 0},
                       {"op_id", c.call},
                       {"profiling_name", "c10d:" + name},
                       {"time_created_ns", 0},
                       {"input_sizes", {{in}}},
                       {"output_sizes", {{out}}},
                       {"input_dtypes", {c.element}},
                       {"output_dtypes", {c.element}},
                       {"state", c.inside ? "started" : "completed"},
                       {"retired", !c.inside},
                       {"is_p2p", false},
                       {"frames", json::array()}});
  }
  return {{"version", "2.10"}, {"pg_config", groups}, {"entries", entries}};
}

/// Files "heddle_3" in a folder, for `python -m torch.distributed.flight_recorder.fr_trace FOLDER`.
inline void write_pytorch(const observe::flights& all, const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& rank : all.ranks)
    observe::write_text_file(folder + "/heddle_" + std::to_string(rank.rank), pickled(dump_of(rank)));
}

}  // namespace diagnose
