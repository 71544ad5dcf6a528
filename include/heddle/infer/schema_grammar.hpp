// heddle/infer/schema_grammar.hpp: compiles JSON Schema, in part, to an automaton.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/infer/byte_dfa.hpp>
#include <heddle/infer/byte_grammar.hpp>
#include <heddle/infer/regex.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A JSON schema whose objects keep the order of their members, which is the order in which answers have them.
using ordered_schema = nlohmann::ordered_json;

namespace detail {

// Appends the values of schemas to a grammar.
class schema_grammar {
 public:
  // `recursion`: how often a reference may be followed within itself; where it is deeper, no value is.
  schema_grammar(const ordered_schema& root, byte_grammar& g, int recursion)
      : root_(root), g_(g), recursion_(recursion) {}

  std::int32_t append(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const std::int64_t before = g_.states();
    try {
      g_.count();
      if (++levels_ > most_levels) wrong(at, "schemas in more than " + std::to_string(most_levels) + " levels");
      if (!s.is_object()) wrong(at, "a schema should be an object, got " + std::string(s.type_name()));
      const std::int32_t end = s.contains("$ref")                          ? reference(from, s, at)
                               : s.contains("anyOf")                       ? any_of(from, s, at)
                               : s.contains("enum") || s.contains("const") ? listed(from, s, at)
                               : says_nothing(s)                           ? any_value(from, most_any_levels)
                                                                           : typed(from, s, at);
      --levels_;
      if (const std::int64_t size = g_.states() - before; size >= large) large_.emplace_back(size, at);
      return end;
    } catch (const placed_error&) {
      throw;
    } catch (const grammar_error& e) {  // the grammar's own, which knows no place: that of what is most of it
      if (2 * (g_.states() - before) < g_.states() && at != "#") throw;
      wrong(at, std::string(without_prefix(e.what())));
    }
  }
  // Whether a reference is within itself.
  bool recursive() const noexcept { return recursive_; }
  // The smallest part that has at least half of the states: what a grammar that is too large is to repeat less.
  std::string largest() const {
    std::pair<std::int64_t, std::string> out(g_.states() + 1, "#");
    for (const auto& one : large_)
      if (2 * one.first >= g_.states()) out = (std::min)(out, one);
    return out.second;
  }

 private:
  static constexpr int most_levels = 64, most_any_levels = 3;
  static constexpr std::int64_t most_repeats = 100'000, most_integer = 999'999'999'999'999'999, large = 500;

  // One that says where it is.
  struct placed_error : grammar_error {
    using grammar_error::grammar_error;
  };
  [[noreturn]] static void wrong(const std::string& at, const std::string& what) {
    throw placed_error("heddle: a JSON schema, at '" + at + "': " + what);
  }
  // A name without what people write differently: min_length and minlength are minLength.
  static std::string plain(std::string_view name) {
    std::string out;
    for (const char c : name)
      if (c != '_' && c != '-' && c != ' ') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return out;
  }
  // Whether a member restricts values in some version of JSON Schema, or OpenAPI's. Others are annotations, which JSON Schema passes over.
  static bool restricts(std::string_view name) {
    static const std::set<std::string, std::less<>> words{"type",
                                                          "enum",
                                                          "const",
                                                          "anyof",
                                                          "allof",
                                                          "oneof",
                                                          "not",
                                                          "if",
                                                          "then",
                                                          "else",
                                                          "$ref",
                                                          "$dynamicref",
                                                          "$recursiveref",
                                                          "$anchor",
                                                          "$dynamicanchor",
                                                          "$vocabulary",
                                                          "properties",
                                                          "required",
                                                          "additionalproperties",
                                                          "patternproperties",
                                                          "propertynames",
                                                          "unevaluatedproperties",
                                                          "minproperties",
                                                          "maxproperties",
                                                          "dependencies",
                                                          "dependentschemas",
                                                          "dependentrequired",
                                                          "items",
                                                          "prefixitems",
                                                          "additionalitems",
                                                          "contains",
                                                          "mincontains",
                                                          "maxcontains",
                                                          "minitems",
                                                          "maxitems",
                                                          "uniqueitems",
                                                          "unevaluateditems",
                                                          "minlength",
                                                          "maxlength",
                                                          "pattern",
                                                          "minimum",
                                                          "maximum",
                                                          "exclusiveminimum",
                                                          "exclusivemaximum",
                                                          "multipleof",
                                                          "divisibleby",
                                                          "disallow",
                                                          "extends",
                                                          "nullable"};
    return words.count(plain(name)) > 0;
  }
  // Whether every value is valid.
  static bool says_nothing(const ordered_schema& s) {
    return std::none_of(s.items().begin(), s.items().end(), [](const auto& m) { return restricts(m.key()); });
  }
  // Refuses members that restrict values and would be passed over.
  static void only(const ordered_schema& s, const std::string& at, std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : s.items())
      if (std::count(known.begin(), known.end(), name) == 0 && restricts(name))
        wrong(at, "'" + shown_name(name) + "' is not supported here");
  }

  std::int32_t reference(std::int32_t from, const ordered_schema& s, const std::string& at) {
    only(s, at, {"$ref"});
    const ordered_schema& name = s["$ref"];
    if (!name.is_string() || !name.get_ref<const std::string&>().starts_with("#"))
      wrong(at, "'$ref' should be a pointer into the schema, such as \"#/$defs/name\"");
    const auto& text = name.get_ref<const std::string&>();
    g_.count(std::ssize(text));
    const auto within = std::count(open_.begin(), open_.end(), text);
    recursive_ = recursive_ || within > 0;
    if (within >= recursion_) return g_.add();  // nothing leads there
    const auto [known, is_new] = found_.try_emplace(text, nullptr);
    const ordered_schema*& to = known->second;
    try {
      if (is_new) to = &root_.at(ordered_schema::json_pointer(text.substr(1)));
    } catch (const ordered_schema::exception&) {
      wrong(at, "'$ref' \"" + shown_name(text) + "\" is not there");
    }
    open_.push_back(text);
    const std::int32_t end = append(from, *to, shown_name(text));
    open_.pop_back();
    return end;
  }

  std::int32_t any_of(std::int32_t from, const ordered_schema& s, const std::string& at) {
    only(s, at, {"anyOf"});
    const ordered_schema& of = s["anyOf"];
    if (!of.is_array() || of.empty()) wrong(at, "'anyOf' should be an array of schemas");
    const std::int32_t end = g_.add();
    for (std::size_t i = 0; i < of.size(); ++i) g_.jump(append(from, of[i], at + "/anyOf/" + std::to_string(i)), end);
    return end;
  }

  static bool has_type(const ordered_schema& v, std::string_view type) {
    return (type == "object" && v.is_object()) || (type == "array" && v.is_array()) ||
           (type == "string" && v.is_string()) || (type == "boolean" && v.is_boolean()) ||
           (type == "null" && v.is_null()) || (type == "number" && v.is_number()) ||
           (type == "integer" &&
            (v.is_number_integer() || (v.is_number_float() && std::trunc(v.get<double>()) == v.get<double>())));
  }
  std::int32_t listed(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const auto [known, is_new] = listed_.try_emplace(&s);
    if (is_new) known->second = texts_of(s, at);
    const std::int32_t end = g_.add();
    for (const std::string& text : known->second) g_.jump(g_.literal(from, text), end);
    return end;
  }
  // The values that are possible, as JSON.
  std::vector<std::string> texts_of(const ordered_schema& s, const std::string& at) {
    only(s, at, {"enum", "const", "type"});
    for (const char* name : {"enum", "const"})
      if (s.contains(name)) g_.count(std::ssize(s[name].dump()));
    std::vector<ordered_schema> values;
    if (s.contains("enum")) {
      if (!s["enum"].is_array()) wrong(at, "'enum' should be an array");
      values.assign(s["enum"].begin(), s["enum"].end());
      if (s.contains("const") && std::count(values.begin(), values.end(), s["const"]) == 0) values.clear();
    }
    if (s.contains("const") && (!s.contains("enum") || !values.empty())) values = {s["const"]};
    if (s.contains("type")) {
      const std::vector<std::string> types = types_of(s, at);
      std::erase_if(values, [&](const ordered_schema& v) {
        return std::none_of(types.begin(), types.end(), [&](const std::string& t) { return has_type(v, t); });
      });
    }
    if (values.empty()) wrong(at, "no value is possible");
    std::vector<std::string> texts;
    for (const ordered_schema& v : values) texts.push_back(v.dump());
    return texts;
  }

  // Each once.
  const std::vector<std::string>& types_of(const ordered_schema& s, const std::string& at) {
    const auto [known, is_new] = types_.try_emplace(&s);
    if (is_new) known->second = read_types(s, at);
    return known->second;
  }
  std::vector<std::string> read_types(const ordered_schema& s, const std::string& at) {
    if (!s.contains("type")) {
      if (s.contains("properties")) return {"object"};
      if (s.contains("items")) return {"array"};
      for (const auto& [name, value] : s.items())
        if (restricts(name)) wrong(at, "'" + shown_name(name) + "' is not supported without 'type'");
    }
    const ordered_schema& type = s["type"];
    if (type.is_array()) g_.count(static_cast<std::int64_t>(type.size()));
    std::vector<std::string> out;
    for (const ordered_schema& t : type.is_array() ? type : ordered_schema::array({type})) {
      constexpr std::string_view all[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
      if (!t.is_string() || std::count(std::begin(all), std::end(all), t.get_ref<const std::string&>()) == 0)
        wrong(at, "'type' should be object, array, string, integer, number, boolean, null or an array of them");
      const auto& word = t.get_ref<const std::string&>();
      if (std::count(out.begin(), out.end(), word) == 0) out.push_back(word);
    }
    if (out.empty()) wrong(at, "no value is possible");
    return out;
  }

  std::int32_t typed(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const std::vector<std::string>& types = types_of(s, at);
    const auto has = [&](std::string_view t) { return std::count(types.begin(), types.end(), t) > 0; };
    for (const auto& [name, value] : s.items()) {  // those of other types would be passed over
      const bool of_object = name == "properties" || name == "required" || name == "additionalProperties";
      const bool of_array = name == "items" || name == "minItems" || name == "maxItems";
      const bool of_string = name == "minLength" || name == "maxLength" || name == "pattern";
      const bool of_number = name.ends_with("imum") || name == "exclusiveMaximum" || name == "exclusiveMinimum";
      if ((of_object && !has("object")) || (of_array && !has("array")) || (of_string && !has("string")) ||
          (of_number && !has("integer") && !has("number")))
        wrong(at, "'" + name + "' has no meaning for this type");
    }
    only(s, at,
         {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength",
          "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
    const std::int32_t end = g_.add();
    for (const std::string& t : types) {
      const std::int32_t last = t == "object"    ? object(from, s, at)
                                : t == "array"   ? array(from, s, at)
                                : t == "string"  ? string(from, s, at)
                                : t == "integer" ? integer(from, s, at)
                                : t == "number"  ? number(from, s, at)
                                : t == "null"    ? g_.literal(from, "null")
                                                 : boolean(from);
      g_.jump(last, end);
    }
    return end;
  }
  // Any value with objects and arrays in at most so many levels.
  std::int32_t any_value(std::int32_t from, int levels) {
    const ordered_schema all = ordered_schema::object();
    const std::int32_t end = g_.add();
    g_.jump(string(from, all, ""), end);
    g_.jump(number(from, all, ""), end);
    g_.jump(boolean(from), end);
    g_.jump(g_.literal(from, "null"), end);
    for (const std::string_view marks : {"[]", "{}"}) {
      if (levels == 0) break;
      const std::int32_t begin = g_.literal(from, marks.substr(0, 1)), each = g_.add(), last = g_.add();
      g_.jump(begin, last);
      g_.jump(begin, each);
      const std::int32_t value = marks[0] == '[' ? each : mark(string(each, all, ""), ':');
      const std::int32_t after = any_value(value, levels - 1);
      g_.jump(mark(after, ','), each);
      g_.jump(after, last);
      g_.jump(g_.literal(last, marks.substr(1)), end);
    }
    return end;
  }
  std::int32_t boolean(std::int32_t from) {
    const std::int32_t end = g_.add();
    for (const char* word : {"true", "false"}) g_.jump(g_.literal(from, word), end);
    return end;
  }
  // A byte that a space may follow.
  std::int32_t mark(std::int32_t from, char c) {
    return g_.repeat(g_.literal(from, std::string_view(&c, 1)), 0, 1,
                     [&](std::int32_t at) { return g_.literal(at, " "); });
  }

  // Members in the order of `properties`; those that are not required may be left out.
  std::int32_t object(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const ordered_schema none = ordered_schema::object();
    const ordered_schema& properties = s.contains("properties") ? s["properties"] : none;
    if (!properties.is_object()) wrong(at, "'properties' should be an object");
    if (s.contains("additionalProperties") && !s["additionalProperties"].is_boolean())
      wrong(at, "'additionalProperties' can only be true or false: answers have the properties that are listed");
    std::set<std::string> names, required;
    for (const auto& [name, value] : properties.items()) names.insert(name);
    if (s.contains("required")) {
      if (!s["required"].is_array()) wrong(at, "'required' should be an array of names");
      for (const ordered_schema& name : s["required"]) {
        if (!name.is_string() || names.count(name.get<std::string>()) == 0)
          wrong(at, "'required' should have names of 'properties'");
        required.insert(name.get<std::string>());
        g_.count(1 + std::ssize(name.get_ref<const std::string&>()));
      }
    }
    std::int32_t first = g_.literal(from, "{"), later = g_.add();  // before a member: none came yet, or some
    for (const auto& [name, value] : properties.items()) {
      const std::int32_t begin = g_.add(), next_first = g_.add(), next_later = g_.add();
      g_.jump(first, begin);
      g_.jump(mark(later, ','), begin);
      const std::string key = ordered_schema(name).dump();
      g_.jump(append(mark(g_.literal(begin, key), ':'), value, at + "/properties/" + shown_name(name)), next_later);
      if (required.count(name) == 0) {
        g_.jump(first, next_first);
        g_.jump(later, next_later);
      }
      first = next_first;
      later = next_later;
    }
    const std::int32_t last = g_.add();
    g_.jump(first, last);
    g_.jump(later, last);
    return g_.literal(last, "}");
  }

  static std::int64_t count_of(const ordered_schema& s, const char* name, std::int64_t otherwise,
                               const std::string& at) {
    if (!s.contains(name)) return otherwise;
    const ordered_schema& v = s[name];
    if (!has_type(v, "integer") || v.get<double>() < 0 || v.get<double>() > static_cast<double>(most_repeats))
      wrong(at, "'" + std::string(name) + "' should be a whole number from 0 to " + std::to_string(most_repeats));
    return static_cast<std::int64_t>(v.get<double>());
  }
  static void require_order(std::int64_t least, std::int64_t most, const std::string& at) {
    if (most >= 0 && most < least) wrong(at, "no value is possible");
  }

  std::int32_t array(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const std::int64_t least = count_of(s, "minItems", 0, at), most = count_of(s, "maxItems", -1, at);
    require_order(least, most, at);
    const auto item = [&](std::int32_t begin) {
      return s.contains("items") ? append(begin, s["items"], at + "/items") : any_value(begin, most_any_levels - 1);
    };
    const std::int32_t begin = g_.literal(from, "[");
    if (most == 0) return g_.literal(begin, "]");
    const std::int32_t last = g_.add();
    if (least == 0) g_.jump(begin, last);
    if (least <= 1 && most < 0) {  // items once, where recursion would double them at each level
      const std::int32_t each = g_.add(), after = item(each);
      g_.jump(begin, each);
      g_.jump(mark(after, ','), each);
      g_.jump(after, last);
      return g_.literal(last, "]");
    }
    const std::int64_t further = (std::max)(least - 1, std::int64_t{0});
    g_.jump(g_.repeat(item(begin), further, most < 0 ? -1 : most - 1,
                      [&](std::int32_t before) { return item(mark(before, ',')); }),
            last);
    return g_.literal(last, "]");
  }

  std::int32_t string(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const std::int64_t least = count_of(s, "minLength", 0, at), most = count_of(s, "maxLength", -1, at);
    require_order(least, most, at);
    const std::vector<code_points> all{{0, last_code_point}};
    const auto any = [&](std::int32_t begin) { return g_.one_of_in_json(begin, all); };
    std::int32_t end = g_.literal(from, "\"");
    if (s.contains("pattern")) {
      if (s.contains("minLength") || s.contains("maxLength"))
        wrong(at, "'pattern' beside 'minLength' or 'maxLength' is not supported");
      if (!s["pattern"].is_string()) wrong(at, "'pattern' should be a string");
      try {
        const regex& pattern = pattern_of(s["pattern"]);
        if (!pattern.begins()) end = g_.repeat(end, 0, -1, any);
        end = pattern.append(g_, end, true);
        if (!pattern.ends()) end = g_.repeat(end, 0, -1, any);
      } catch (const grammar_error& e) {
        wrong(at + "/pattern", std::string(without_prefix(e.what())));
      }
    } else if (const std::string form = least == 0 && most < 0 ? form_of(s) : ""; !form.empty()) {
      end = regex(form).append(g_, end, true);
    } else {
      end = g_.repeat(end, least, most, any);
    }
    return g_.literal(end, "\"");
  }

  // The expression of a `format` that has a simple one, by RFC 3339, 4122 and 2673; empty: it is an annotation.
  static std::string form_of(const ordered_schema& s) {
    const std::string name = s.contains("format") && s["format"].is_string() ? s["format"].get<std::string>() : "";
    const std::string date =
        "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
        "02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)";
    const std::string clock = "([01][0-9]|2[0-3]):[0-5][0-9]";
    const std::string time = clock + ":[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]" + clock + ")";
    const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])", hex = "[0-9a-fA-F]";
    return name == "date"        ? date
           : name == "time"      ? time
           : name == "date-time" ? date + "T" + time
           : name == "uuid"      ? hex + "{8}(-" + hex + "{4}){3}-" + hex + "{12}"
           : name == "ipv4"      ? byte + "(\\." + byte + "){3}"
                                 : "";
  }
  // Read once, wherever it is repeated.
  const regex& pattern_of(const ordered_schema& s) {
    const auto known = patterns_.find(&s);
    if (known != patterns_.end()) return known->second;
    const auto& text = s.get_ref<const std::string&>();
    g_.count(std::ssize(text));
    return patterns_.try_emplace(&s, text).first->second;
  }

  // A bound of whole numbers, as the least or greatest one within it; beyond 18 digits the first one there.
  static std::int64_t whole_bound(const ordered_schema& v, bool lower) {
    constexpr std::int64_t beyond = most_integer + 1;
    if (v.is_number_unsigned())
      return static_cast<std::int64_t>((std::min)(v.get<std::uint64_t>(), static_cast<std::uint64_t>(beyond)));
    if (v.is_number_integer()) return std::clamp(v.get<std::int64_t>(), -beyond, beyond);
    const double x = lower ? std::ceil(v.get<double>()) : std::floor(v.get<double>());
    constexpr auto edge = static_cast<double>(beyond);  // a double, so what is below it is of 18 digits
    return x >= edge ? beyond : x <= -edge ? -beyond : static_cast<std::int64_t>(x);
  }
  // Bounds of whole numbers, cut to those of 18 digits.
  static std::pair<std::int64_t, std::int64_t> bounds(const ordered_schema& s, const std::string& at) {
    std::int64_t low = -most_integer, high = most_integer;
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      if (!s.contains(name)) continue;
      if (!s[name].is_number() || std::isnan(s[name].get<double>()))
        wrong(at, "'" + std::string(name) + "' should be a number");
      const bool lower = std::string_view(name).ends_with("inimum"), strict = name[0] == 'e';
      std::int64_t bound = whole_bound(s[name], lower);
      if (strict && has_type(s[name], "integer")) bound += lower ? 1 : -1;
      if (lower ? bound > most_integer : bound < -most_integer) wrong(at, "no value is possible");
      if (lower)
        low = (std::max)(low, bound);
      else
        high = (std::min)(high, bound);
    }
    if (low > high) wrong(at, "no value is possible");
    return {low, high};
  }
  std::int32_t integer(std::int32_t from, const ordered_schema& s, const std::string& at) {
    const auto [low, high] = bounds(s, at);
    const std::int32_t end = g_.add();
    if (low < 0) naturals(g_.literal(from, "-"), (std::max)(-high, std::int64_t{1}), -low, end);
    if (high >= 0) naturals(from, (std::max)(low, std::int64_t{0}), high, end);
    return end;
  }
  void naturals(std::int32_t from, std::int64_t low, std::int64_t high, std::int32_t end) {
    std::int64_t least = 0;  // of so many digits
    for (std::int64_t most = 9;; least = most + 1, most = most * 10 + 9) {
      const std::int64_t a = (std::max)(low, least), b = (std::min)(high, most);
      if (a <= b) same_length(from, std::to_string(a), std::to_string(b), 0, end);
      if (most >= high) break;  // nines of 18 digits are the most: no longer ones are asked for
    }
  }
  void same_length(std::int32_t from, const std::string& low, const std::string& high, std::size_t i,
                   std::int32_t end) {
    if (i == low.size()) return g_.jump(from, end);
    const auto digit = [&](char a, char b, const std::string& l, const std::string& h) {
      if (a > b) return;
      const std::int32_t to = g_.add();
      g_.on(from, static_cast<unsigned char>(a), static_cast<unsigned char>(b), to);
      same_length(to, l, h, i + 1, end);
    };
    const std::string zeros(low.size(), '0'), nines(low.size(), '9');
    const bool all_low = low.compare(i, low.size(), zeros, i, low.size()) == 0;
    const bool all_high = high.compare(i, high.size(), nines, i, high.size()) == 0;
    if (low[i] == high[i] || (all_low && all_high)) return digit(low[i], high[i], low, high);
    digit(low[i], low[i], low, nines);
    digit(static_cast<char>(low[i] + 1), static_cast<char>(high[i] - 1), zeros, nines);
    digit(high[i], high[i], zeros, high);
  }

  std::int32_t number(std::int32_t from, const ordered_schema& s, const std::string& at) {
    bool negative = true;
    for (const char* name : {"maximum", "exclusiveMinimum", "exclusiveMaximum"})
      if (s.contains(name)) wrong(at, "'" + std::string(name) + "' is only supported for the type integer");
    if (s.contains("minimum")) {
      if (s["minimum"] != 0) wrong(at, "'minimum' of the type number can only be 0");
      negative = false;
    }
    const auto digit = [&](std::int32_t begin) {
      const std::int32_t to = g_.add();
      g_.on(begin, '0', '9', to);
      return to;
    };
    const auto optional = [&](std::int32_t begin, auto part) { return g_.repeat(begin, 0, 1, part); };
    if (negative) from = optional(from, [&](std::int32_t b) { return g_.literal(b, "-"); });
    std::int32_t end = g_.add();
    g_.on(from, '0', '0', end);
    const std::int32_t first = g_.add();
    g_.on(from, '1', '9', first);
    g_.jump(g_.repeat(first, 0, 14, digit), end);
    end = optional(end, [&](std::int32_t b) { return g_.repeat(g_.literal(b, "."), 1, 15, digit); });
    return optional(end, [&](std::int32_t b) {
      const std::int32_t e = g_.add();
      for (const char c : {'e', 'E'}) g_.jump(g_.literal(b, std::string_view(&c, 1)), e);
      const std::int32_t sign = g_.add();
      g_.jump(e, sign);
      for (const char c : {'+', '-'}) g_.jump(g_.literal(e, std::string_view(&c, 1)), sign);
      return g_.repeat(sign, 1, 2, digit);
    });
  }

  const ordered_schema& root_;
  byte_grammar& g_;
  std::map<std::string, const ordered_schema*> found_{};
  std::map<const ordered_schema*, regex> patterns_{};                             // of `pattern`
  std::map<const ordered_schema*, std::vector<std::string>> listed_{}, types_{};  // of schemas
  std::vector<std::string> open_{};                                               // references that are being followed
  std::vector<std::pair<std::int64_t, std::string>> large_{};                     // parts, by states and place
  int levels_ = 0, recursion_;
  bool recursive_ = false;
};

}  // namespace detail

/// The automaton of JSON texts that are valid by a schema, of the part of JSON Schema (draft 2020-12) that follows. `bytes`: those that are tokens of a vocabulary.
/// Types object, array, string, integer, number, boolean, null, or an array of them; `enum`, `const`, `anyOf`, `$ref` into the schema, within itself up to five times, or three or one where that is too large. Objects have the members of `properties` in
/// their order, those of `required` always, and no others. Arrays: `items`, `minItems`, `maxItems`; strings: `minLength`, `maxLength`, `pattern` (`regex`), `format` date, time, date-time, uuid and ipv4 where there is none of these (other formats are annotations); integers: `minimum`, `maximum`,
/// `exclusiveMinimum`, `exclusiveMaximum`, at most 18 digits; numbers: `minimum` 0, at most 15 digits before and after the point and an exponent of two. A space may follow commas and colons, and is
/// nowhere else. A schema that says nothing, and `items` that are not there, take any value with objects and arrays in at most three levels. Members that JSON Schema does not define, and `title`,
/// `description`, `default`, `examples` and the like, are passed over. Errors: `grammar_error` that names any
/// other member of JSON Schema, also where it is spelt otherwise (min_length), with where it is, and for what is too large its place.
inline std::shared_ptr<const byte_dfa> compile_schema(const ordered_schema& schema,
                                                      const std::bitset<256>& bytes = std::bitset<256>().set(),
                                                      grammar_limits limits = {}) {
  for (int recursion = 5;; recursion -= 2) {  // a reference within itself, where that is too large less deep
    byte_grammar g(limits);
    detail::schema_grammar values(schema, g, recursion);
    try {
      const std::int32_t end = values.append(0, schema, "#");
      try {
        return g.compile(end, bytes);
      } catch (const grammar_error& e) {  // the whole one is too large, or no text fits it
        throw grammar_error("heddle: a JSON schema, at '" + values.largest() +
                            "': " + std::string(without_prefix(e.what())));
      }
    } catch (const grammar_error&) {
      if (!values.recursive() || recursion == 1) throw;
    } catch (const ordered_schema::exception& e) {  // bytes of a string that are no UTF-8
      throw grammar_error("heddle: a JSON schema: " + io::detail::json_fault(e));
    }
  }
}

}  // namespace heddle::inline v0::infer
