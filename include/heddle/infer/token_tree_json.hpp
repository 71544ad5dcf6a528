// heddle/infer/token_tree_json.hpp: trees of tokens and settings as JSON files.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/token_tree.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer::detail {

/// What a file of settings holds, read strictly. Each error is a `config_error` that names the file, the member, what was expected and what was got.
class strict_settings {
 public:
  /// Errors: what `io::read_json` throws; `config_error` for what is no object, a member of another name, and one that is not there.
  strict_settings(std::filesystem::path path, std::initializer_list<std::string_view> members)
      : path_(std::move(path)), object_(io::read_json(path_)) {
    if (!object_.is_object()) throw wrong("should be an object, got " + shown(object_));
    std::string known;
    for (const std::string_view m : members) (known += known.empty() ? "'" : ", '").append(m) += "'";
    for (const auto& [name, value] : object_.items())
      if (std::find(members.begin(), members.end(), name) == members.end())
        throw wrong("should have the members " + known + ", got '" + shown_name(name) + "'");
    for (const std::string_view m : members)
      if (!object_.contains(m))
        throw wrong("should have the members " + known + ", '" + std::string(m) + "' is not there");
  }

  std::int64_t whole(const char* member, std::int64_t low, std::int64_t high) const {
    const nlohmann::json& x = object_.at(member);
    if (!is_whole(x, low, high))
      throw wrong("'" + std::string(member) + "' should be a whole number from " + std::to_string(low) + " to " +
                  std::to_string(high) + ", got " + shown(x));
    return x.get<std::int64_t>();
  }
  /// A number above 0.
  double positive(const char* member) const {
    const nlohmann::json& x = object_.at(member);
    if (!x.is_number() || !(x.get<double>() > 0))
      throw wrong("'" + std::string(member) + "' should be a number above 0, got " + shown(x));
    return x.get<double>();
  }
  /// The member `tree`: for each node the ranks on its path, at most `deepest` of them. Errors: also those of `token_tree`.
  token_tree tree(std::int64_t deepest) const {
    constexpr std::int64_t most_nodes = 4096, most_rank = 1'000'000'000;
    const nlohmann::json& all = object_.at("tree");
    if (!all.is_array() || all.empty() || std::ssize(all) > most_nodes)
      throw wrong("'tree' should be an array of 1 to " + std::to_string(most_nodes) + " paths, got " + shown(all));
    std::vector<std::vector<std::int64_t>> paths;
    for (const nlohmann::json& p : all) {
      if (!p.is_array() || std::ssize(p) > deepest ||
          !std::all_of(p.begin(), p.end(), [&](const nlohmann::json& r) { return is_whole(r, 0, most_rank); }))
        throw wrong("a path of 'tree' should be an array of at most " + std::to_string(deepest) + " ranks, got " +
                    shown(p));
      paths.push_back(p.get<std::vector<std::int64_t>>());
    }
    try {
      return token_tree(std::move(paths));
    } catch (const config_error& e) {
      std::string_view why = e.what();
      if (why.starts_with("heddle: ")) why.remove_prefix(8);
      throw wrong("'tree': " + std::string(why));
    }
  }
  config_error wrong(const std::string& what) const {
    return config_error("heddle: '" + path_.string() + "': " + what);
  }

 private:
  static bool is_whole(const nlohmann::json& x, std::int64_t low, std::int64_t high) {
    return x.is_number_integer() && x >= low && x <= high;
  }
  static std::string shown(const nlohmann::json& x) {
    constexpr std::size_t most = 80;
    const std::string text = x.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return text.size() > most ? text.substr(0, most) + "..." : text;
  }

  std::filesystem::path path_;
  nlohmann::json object_;
};

/// For each node of a tree the ranks on its path.
inline nlohmann::json paths_of(const token_tree& tree) {
  nlohmann::json paths = nlohmann::json::array();
  for (const token_tree::node& n : tree.nodes()) {
    nlohmann::json path = n.parent < 0 ? nlohmann::json::array() : paths[static_cast<std::size_t>(n.parent)];
    path.push_back(n.rank);
    paths.push_back(std::move(path));
  }
  return paths;
}

inline void write_settings(const std::filesystem::path& to, const nlohmann::json& settings) {
  std::ofstream file(to);
  file << settings.dump() << "\n";
  if (!file.flush()) throw io_error("heddle: '" + to.string() + "' cannot be written");
}

}  // namespace heddle::inline v0::infer::detail
