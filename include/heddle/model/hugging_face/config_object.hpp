// heddle/model/hugging_face/config_object.hpp: reads known keys, refuses others.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/model/hugging_face/config_object.hpp needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/model/hugging_face/config_keys.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::model {

namespace detail {

// Reads keys of one object, each with what is accepted, and then refuses those that nobody asked for and that may have an effect. `ignored`:
// names of unknown keys that the user says have none; it must stay.
class config_object {
 public:
  config_object(const nlohmann::json& all, std::string what, std::span<const std::string> ignored = {},
                std::string prefix = {})
      : all_(&all), what_(std::move(what)), ignored_(ignored), prefix_(std::move(prefix)) {
    if (!all.is_object()) throw config_error("heddle: " + what_ + " should be an object, got " + shown(all));
  }
  // The object of a key that is there. Names of ignored keys in it begin with the key and a dot.
  config_object inside(const std::string& key) const {
    return {all_->at(key), what_ + ", " + key, ignored_, prefix_ + key + "."};
  }

  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    const auto at = all_->find(key);
    throw config_error("heddle: " + what_ + ", key '" + key + "': expected " + expected + ", got " +
                       (at == all_->end() ? std::string("nothing") : shown(*at)));
  }
  // The value, or null where the key is missing.
  const nlohmann::json* find(const std::string& key) {
    seen_.insert(key);
    const auto at = all_->find(key);
    return at == all_->end() ? nullptr : &*at;
  }
  // As `find`, for keys that transformers lets be null, which then says the same as a missing key.
  const nlohmann::json* find_unless_null(const std::string& key) {
    const nlohmann::json* const at = find(key);
    return at == nullptr || at->is_null() ? nullptr : at;
  }
  int integer_unless_null(const std::string& key, int otherwise) {
    return find_unless_null(key) == nullptr ? otherwise : integer(key);
  }
  int integer(const std::string& key, std::optional<int> otherwise = {}) {
    const nlohmann::json* at = find(key);
    if (at == nullptr && otherwise) return *otherwise;
    constexpr std::int64_t most = (std::numeric_limits<int>::max)();
    const auto fits = [&] {
      if (at->is_number_unsigned()) return at->get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
      return at->is_number_integer() && at->get<std::int64_t>() >= 0 && at->get<std::int64_t>() <= most;
    };
    if (at == nullptr || !fits()) fail(key, "a whole number of 0 to " + std::to_string(most));
    return static_cast<int>(at->get<std::int64_t>());
  }
  double number(const std::string& key, std::optional<double> otherwise = {}) {
    const nlohmann::json* at = find(key);
    if (at == nullptr && otherwise) return *otherwise;
    if (at == nullptr || !at->is_number() || !(at->get<double>() > 0)) fail(key, "a positive number");
    return at->get<double>();
  }
  double at_least_zero_unless_null(const std::string& key, double otherwise) {
    const nlohmann::json* at = find_unless_null(key);
    if (at == nullptr) return otherwise;
    if (!at->is_number() || !(at->get<double>() >= 0)) fail(key, "a number of 0 or more");
    return at->get<double>();
  }
  bool flag(const std::string& key, bool otherwise) {
    const nlohmann::json* at = find(key);
    if (at == nullptr) return otherwise;
    if (!at->is_boolean()) fail(key, "true or false");
    return at->get<bool>();
  }
  std::string text(const std::string& key, const std::string& otherwise, std::initializer_list<const char*> accepted) {
    const nlohmann::json* at = find(key);
    std::string names;
    for (const char* one : accepted) {
      if (at == nullptr ? otherwise == one : *at == one) return one;
      names += (names.empty() ? "\"" : " or \"") + std::string(one) + "\"";
    }
    fail(key, names);
  }
  // What may be missing, but has one value only.
  void only(const std::string& key, const nlohmann::json& value) {
    if (const nlohmann::json* at = find(key); at != nullptr && *at != value) fail(key, shown(value));
  }
  void only_unless_null(const std::string& key, const nlohmann::json& value) {
    if (find_unless_null(key) != nullptr) only(key, value);
  }
  void no_others() const {
    for (const auto& [key, value] : all_->items()) {
      const std::string name = prefix_ + key;
      const bool ignored = std::find(ignored_.begin(), ignored_.end(), name) != ignored_.end();
      if (seen_.count(key) != 0) {
        if (ignored)
          throw config_error("heddle: " + what_ + ": the key '" + key +
                             "' is known, and has its effect: it cannot be ignored (--ignore-key " + name + ")");
      } else if (!ignored && !says_nothing(value) && !is_without_effect(key, *all_)) {
        const std::string safe = shown_name(key);
        throw config_error("heddle: " + what_ + ": unknown key '" + safe + "', which is " + shown(value) +
                           " and may change what the model computes; if it changes nothing, give --ignore-key " +
                           prefix_ + safe);
      }
    }
  }
  // Refuses every key that nobody asked for.
  void only_known() const {
    std::string known;
    for (const std::string& key : seen_) known += (known.empty() ? "" : ", ") + key;
    for (const auto& [key, value] : all_->items())
      if (seen_.count(key) == 0)
        throw config_error("heddle: " + what_ + ", key '" + shown_name(key) + "': expected one of " + known + ", got " +
                           shown(value));
  }

 private:
  static std::string shown(const nlohmann::json& value) {
    constexpr std::size_t most = 80;
    const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return text.size() > most ? text.substr(0, most) + "..." : text;
  }

  const nlohmann::json* all_;
  std::string what_;
  std::span<const std::string> ignored_;
  std::string prefix_;
  std::set<std::string> seen_;
};

}  // namespace detail
}  // namespace heddle::inline v0::model
