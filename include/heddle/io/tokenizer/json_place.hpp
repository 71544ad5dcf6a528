// heddle/io/tokenizer/json_place.hpp: a value of a JSON file with the way to it, for messages.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error \
    "heddle/io/tokenizer/json_place.hpp needs nlohmann/json.hpp: link heddle::tokenizer (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/byte_pair_encoding.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace heddle::inline v0::io::detail {

using json = nlohmann::json;

// A value of a JSON file and the way to it, for messages.
class json_place {
 public:
  json_place(const json& value, const std::string& file, std::string path = {})
      : value_(&value), file_(&file), path_(std::move(path)) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("heddle: " + *file_ + ": " + (path_.empty() ? "" : "at " + path_ + ": ") + why);
  }
  [[noreturn]] void expected(const std::string& what) const { fail("expected " + what + ", got " + shown()); }

  const json& raw() const noexcept { return *value_; }
  bool null() const noexcept { return value_->is_null(); }
  // A member that may be left out, or be null.
  std::optional<json_place> find(const std::string& name) const {
    if (!value_->is_object()) expected("an object");
    const auto found = value_->find(name);
    if (found == value_->end() || found->is_null()) return std::nullopt;
    return json_place(*found, *file_, path_ + "/" + name.substr(0, 60));
  }
  json_place at(const std::string& name) const {
    if (auto found = find(name)) return *std::move(found);
    fail("expected a member '" + name.substr(0, 60) + "', got none");
  }
  json_place at(std::size_t i) const { return json_place((*value_)[i], *file_, path_ + "/" + std::to_string(i)); }
  json_place member(const std::string& name, const json& value) const {
    return json_place(value, *file_, path_ + "/" + name.substr(0, 60));
  }
  const std::string& text() const {
    if (!value_->is_string()) expected("a string");
    return value_->get_ref<const std::string&>();
  }
  bool flag(const char* name, bool otherwise) const {
    const auto found = find(name);
    if (!found) return otherwise;
    if (!found->value_->is_boolean()) found->expected("true or false");
    return found->value_->get<bool>();
  }
  std::size_t elements() const {
    if (!value_->is_array()) expected("an array");
    return value_->size();
  }
  const json::object_t& members() const {
    if (!value_->is_object()) expected("an object");
    return value_->get_ref<const json::object_t&>();
  }
  token_id id() const {
    if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() > 0x7ffffffe) expected("a token id");
    return static_cast<token_id>(value_->get<std::uint64_t>());
  }
  const std::string& type() const { return at("type").text(); }

 private:
  std::string shown() const {
    if (value_->is_string()) return "'" + value_->get_ref<const std::string&>().substr(0, 60) + "'";
    if (value_->is_number() || value_->is_boolean()) return value_->dump();
    return value_->is_null() ? "null" : value_->is_array() ? "an array" : "an object";
  }
  const json* value_;
  const std::string* file_;
  std::string path_;
};

}  // namespace heddle::inline v0::io::detail
