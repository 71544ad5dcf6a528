// heddle/io/chat/jinja_value.hpp: values of chat templates, and their text.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A chat template that is no template, uses what is not there, raises an exception or takes too long. Names the line.
struct template_error : error {
  template_error(int line, const std::string& reason)
      : error("heddle: chat template, line " + std::to_string(line) + ": " + reason), line_(line) {}
  int line() const noexcept { return line_; }  ///< from 1

 private:
  int line_;
};

/// What a rendering may take. Beyond it, it ends with a `template_error`.
struct chat_template_limits {
  std::int64_t steps = 1'000'000;  ///< expressions, statements, turns of loops, and 256 bytes that are looked through
  std::int64_t bytes =
      std::int64_t{1} << 28;  ///< of all texts, lists and dictionaries that it makes, the answer among them
};

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io::detail {

struct jinja_node;
struct jinja_scope;
struct jinja_object;

enum class jinja_kind { undefined, none, boolean, integer, real, text, list, dict, space, function };

// A value. Texts, lists and dictionaries are shared and never change; a namespace does.
struct jinja_value {
  jinja_kind kind = jinja_kind::undefined;
  std::int64_t integer = 0;  // of a boolean, too
  double real = 0;
  std::shared_ptr<const std::string> text{};  // of an undefined value: its name
  std::shared_ptr<jinja_object> object{};

  jinja_value() = default;
  jinja_value(const char* s) : jinja_value(std::string(s)) {}
  jinja_value(bool b) : kind(jinja_kind::boolean), integer(b ? 1 : 0) {}
  jinja_value(std::int64_t i) : kind(jinja_kind::integer), integer(i) {}
  jinja_value(double d) : kind(jinja_kind::real), real(d) {}
  jinja_value(std::string s) : kind(jinja_kind::text), text(std::make_shared<const std::string>(std::move(s))) {}
  static jinja_value none() {
    jinja_value v;
    v.kind = jinja_kind::none;
    return v;
  }
  static jinja_value undefined(std::string name) {
    jinja_value v(std::move(name));
    v.kind = jinja_kind::undefined;
    return v;
  }
  bool is(jinja_kind k) const noexcept { return kind == k; }
  bool is_number() const noexcept {
    return kind == jinja_kind::boolean || kind == jinja_kind::integer || kind == jinja_kind::real;
  }
  bool is_whole() const noexcept { return kind == jinja_kind::boolean || kind == jinja_kind::integer; }
  double number() const noexcept { return kind == jinja_kind::real ? real : static_cast<double>(integer); }
  const std::string& str() const {
    static const std::string nothing;
    return text ? *text : nothing;
  }
};

// Values that hold values. `depth`: levels of lists and dictionaries; `weight`: bytes of texts and values within, each as often as
// it is reached.
struct jinja_object {
  std::vector<jinja_value> items{};                            // of a list, a tuple, and the values bound to a function
  std::vector<std::pair<jinja_value, jinja_value>> members{};  // of a dictionary, a namespace
  bool tuple = false;
  int depth = 1;
  std::int64_t weight = 1;
  std::string name{};                      // of a function
  const jinja_node* macro = nullptr;       // of a macro
  std::shared_ptr<jinja_scope> closure{};  // where the macro is
};

inline constexpr int most_jinja_levels = 100;
inline constexpr std::int64_t most_jinja_bytes = std::int64_t{1} << 26;  // of one value

inline std::int64_t jinja_weight(const jinja_value& v) {
  if (v.is(jinja_kind::text)) return 1 + std::ssize(v.str());
  return v.is(jinja_kind::list) || v.is(jinja_kind::dict) ? v.object->weight : 1;
}
inline void jinja_levels(jinja_object& o) {
  const auto count = [&](const jinja_value& v) {
    o.weight += jinja_weight(v);
    if (v.is(jinja_kind::list) || v.is(jinja_kind::dict)) o.depth = (std::max)(o.depth, v.object->depth + 1);
    if (o.weight > most_jinja_bytes)
      throw io_error("a value of more than " + std::to_string(most_jinja_bytes) + " bytes");
  };
  for (const jinja_value& v : o.items) count(v);
  for (const auto& [k, v] : o.members) {
    count(k);
    count(v);
  }
  if (o.depth > most_jinja_levels)
    throw io_error("lists and dictionaries in more than " + std::to_string(most_jinja_levels) + " levels");
}
inline jinja_value jinja_list(std::vector<jinja_value> items, bool tuple = false) {
  jinja_value v;
  v.kind = jinja_kind::list;
  v.object = std::make_shared<jinja_object>();
  v.object->items = std::move(items);
  v.object->tuple = tuple;
  jinja_levels(*v.object);
  return v;
}
inline jinja_value jinja_dict(std::vector<std::pair<jinja_value, jinja_value>> members) {
  jinja_value v;
  v.kind = jinja_kind::dict;
  v.object = std::make_shared<jinja_object>();
  v.object->members = std::move(members);
  jinja_levels(*v.object);
  return v;
}
// A function, and what it is bound to: a method's object.
inline jinja_value jinja_function(std::string name, std::vector<jinja_value> bound = {}) {
  jinja_value v;
  v.kind = jinja_kind::function;
  v.object = std::make_shared<jinja_object>();
  v.object->name = std::move(name);
  v.object->items = std::move(bound);
  return v;
}

inline jinja_value to_jinja(const nlohmann::ordered_json& j, int level = 0) {
  if (level > most_jinja_levels)
    throw io_error("objects and arrays in more than " + std::to_string(most_jinja_levels) + " levels");
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_unsigned() &&
      j.get<std::uint64_t>() > static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)()))
    throw io_error("a whole number beyond 64 bits: " + j.dump());
  if (j.is_number_integer()) return j.get<std::int64_t>();
  if (j.is_number_float()) return j.get<double>();
  if (j.is_string()) {
    const auto& s = j.get_ref<const std::string&>();
    if (valid_prefix(s) != s.size()) throw io_error("a text that is no UTF-8");
    return s;
  }
  if (j.is_array()) {
    std::vector<jinja_value> items;
    items.reserve(j.size());
    for (const auto& one : j) items.push_back(to_jinja(one, level + 1));
    return jinja_list(std::move(items));
  }
  if (j.is_object()) {
    std::vector<std::pair<jinja_value, jinja_value>> members;
    for (const auto& [name, one] : j.items())
      members.emplace_back(to_jinja(nlohmann::ordered_json(name)), to_jinja(one, level + 1));
    return jinja_dict(std::move(members));
  }
  return jinja_value::none();
}

inline bool jinja_truth(const jinja_value& v) {
  switch (v.kind) {
    case jinja_kind::undefined:
    case jinja_kind::none:
      return false;
    case jinja_kind::boolean:
    case jinja_kind::integer:
      return v.integer != 0;
    case jinja_kind::real:
      return v.real != 0;
    case jinja_kind::text:
      return !v.str().empty();
    case jinja_kind::list:
      return !v.object->items.empty();
    case jinja_kind::dict:
      return !v.object->members.empty();
    default:
      return true;
  }
}

inline bool jinja_equal(const jinja_value& a, const jinja_value& b) {
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.integer == b.integer : a.number() == b.number();
  if (a.kind != b.kind) return false;
  if (a.is(jinja_kind::text)) return a.str() == b.str();
  if (a.is(jinja_kind::undefined) || a.is(jinja_kind::none)) return true;
  if (a.object == b.object) return true;
  if (a.is(jinja_kind::list)) {
    const auto &x = a.object->items, &y = b.object->items;
    if (x.size() != y.size() || a.object->tuple != b.object->tuple) return false;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!jinja_equal(x[i], y[i])) return false;
    return true;
  }
  if (a.is(jinja_kind::dict)) {
    if (a.object->members.size() != b.object->members.size()) return false;
    for (const auto& [k, v] : a.object->members) {
      bool found = false;
      for (const auto& [l, w] : b.object->members)
        if (jinja_equal(k, l)) found = jinja_equal(v, w);
      if (!found) return false;
    }
    return true;
  }
  return false;
}

// Python's repr of a float: the shortest digits that mean it.
inline std::string jinja_real(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  const std::string s(buffer, end);
  const std::size_t e = s.find('e');
  const int exponent = std::stoi(s.substr(e + 1));
  std::string digits;
  for (const char c : s.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  const std::string sign = s[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(exponent < 0 ? -exponent : exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

// A byte in hexadecimal digits.
inline std::string jinja_hex(unsigned value, int digits) {
  std::string out;
  for (int i = digits - 1; i >= 0; --i) out += "0123456789abcdef"[(value >> (4 * i)) & 15u];
  return out;
}

// Python's repr of a str, but that only control characters and separators of ASCII and Latin-1 are escaped.
inline std::string jinja_repr(std::string_view s) {
  const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (s[i] == quote || s[i] == '\\')
      out += {'\\', s[i]};
    else if (s[i] == '\n')
      out += "\\n";
    else if (s[i] == '\r')
      out += "\\r";
    else if (s[i] == '\t')
      out += "\\t";
    else if (c < 0x20 || c == 0x7f)
      out += "\\x" + jinja_hex(c, 2);
    else if (c == 0xc2 && i + 1 < s.size() && (static_cast<unsigned char>(s[i + 1]) <= 0xa0 || s[i + 1] == '\xad'))
      out += "\\x" + jinja_hex(static_cast<unsigned char>(s[++i]), 2);
    else
      out += s[i];
  }
  return out + quote;
}

// Python's str of a value, and repr of those within.
inline void jinja_print(const jinja_value& v, bool repr, std::string& out) {
  const auto several = [&](const char* open, const char* close, const auto& of, auto one) {
    out += open;
    bool first = true;
    for (const auto& x : of) {
      if (!std::exchange(first, false)) out += ", ";
      one(x);
    }
    out += close;
  };
  switch (v.kind) {
    case jinja_kind::undefined:
      if (repr) out += "Undefined";
      break;
    case jinja_kind::none:
      out += "None";
      break;
    case jinja_kind::boolean:
      out += v.integer != 0 ? "True" : "False";
      break;
    case jinja_kind::integer:
      out += std::to_string(v.integer);
      break;
    case jinja_kind::real:
      out += jinja_real(v.real);
      break;
    case jinja_kind::text:
      out += repr ? jinja_repr(v.str()) : v.str();
      break;
    case jinja_kind::list: {
      const bool tuple = v.object->tuple;
      several(tuple ? "(" : "[", tuple ? (v.object->items.size() == 1 ? ",)" : ")") : "]", v.object->items,
              [&](const jinja_value& x) { jinja_print(x, true, out); });
      break;
    }
    case jinja_kind::dict:
      several("{", "}", v.object->members, [&](const auto& m) {
        jinja_print(m.first, true, out);
        out += ": ";
        jinja_print(m.second, true, out);
      });
      break;
    case jinja_kind::space:
      out += "<Namespace>";
      break;
    case jinja_kind::function:
      out += "<function " + v.object->name + ">";
      break;
  }
}

// How json.dumps writes.
struct jinja_json_style {
  bool ascii = false, sorted = false;
  std::string indent{};  // of a level; lines only if `lines`
  bool lines = false;
  std::string comma = ", ", colon = ": ";
};

inline void jinja_json_text(std::string_view s, bool ascii, std::string& out) {
  out += '"';
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (s[i] == '"' || s[i] == '\\')
      out += {'\\', s[i]};
    else if (c < 0x20) {
      const std::size_t at = std::string_view("\n\r\t\b\f").find(s[i]);
      out += at == std::string_view::npos ? "\\u" + jinja_hex(c, 4) : std::string{'\\', "nrtbf"[at]};
    } else if (ascii && c >= 0x7f) {
      if (c == 0x7f) {
        out += s[i];
        continue;
      }
      std::uint32_t p = code_point_at(s, i);
      i += sequence_length(s[i]) - 1;
      if (p >= 0x10000) {
        p -= 0x10000;
        out += "\\u" + jinja_hex(0xd800 + (p >> 10), 4);
        p = 0xdc00 + (p & 0x3ff);
      }
      out += "\\u" + jinja_hex(p, 4);
    } else {
      out += s[i];
    }
  }
  out += '"';
}

// Python's json.dumps. Errors: `io_error` for what JSON has not.
inline void jinja_dumps(const jinja_value& v, const jinja_json_style& style, std::string& out, int level = 0) {
  if (std::ssize(out) > most_jinja_bytes)
    throw io_error("JSON of more than " + std::to_string(most_jinja_bytes) + " bytes");
  const auto line = [&](int at) {
    if (!style.lines) return;
    out += '\n';
    for (int i = 0; i < at; ++i) out += style.indent;
  };
  switch (v.kind) {
    case jinja_kind::none:
      out += "null";
      break;
    case jinja_kind::boolean:
      out += v.integer != 0 ? "true" : "false";
      break;
    case jinja_kind::integer:
      out += std::to_string(v.integer);
      break;
    case jinja_kind::real:
      out += std::isnan(v.real)   ? "NaN"
             : std::isinf(v.real) ? (v.real < 0 ? "-Infinity" : "Infinity")
                                  : jinja_real(v.real);
      break;
    case jinja_kind::text:
      jinja_json_text(v.str(), style.ascii, out);
      break;
    case jinja_kind::list: {
      out += '[';
      bool first = true;
      for (const jinja_value& x : v.object->items) {
        if (!std::exchange(first, false)) out += style.comma;
        line(level + 1);
        jinja_dumps(x, style, out, level + 1);
      }
      if (!first) line(level);
      out += ']';
      break;
    }
    case jinja_kind::dict: {
      std::vector<std::pair<std::string, const jinja_value*>> named;
      for (const auto& [k, x] : v.object->members) {
        std::string name;
        if (k.is(jinja_kind::text))
          name = k.str();
        else
          jinja_dumps(k, {}, name);
        named.emplace_back(std::move(name), &x);
      }
      if (style.sorted)
        std::sort(named.begin(), named.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      out += '{';
      bool first = true;
      for (const auto& [name, x] : named) {
        if (!std::exchange(first, false)) out += style.comma;
        line(level + 1);
        jinja_json_text(name, style.ascii, out);
        out += style.colon;
        jinja_dumps(*x, style, out, level + 1);
      }
      if (!first) line(level);
      out += '}';
      break;
    }
    default:
      throw io_error(v.is(jinja_kind::undefined)
                         ? "Object of type Undefined is not JSON serializable: '" + v.str() + "'"
                         : "a namespace or function is not JSON serializable");
  }
}

inline const char* jinja_type_name(const jinja_value& v) {
  switch (v.kind) {
    case jinja_kind::undefined:
      return "Undefined";
    case jinja_kind::none:
      return "NoneType";
    case jinja_kind::boolean:
      return "bool";
    case jinja_kind::integer:
      return "int";
    case jinja_kind::real:
      return "float";
    case jinja_kind::text:
      return "str";
    case jinja_kind::list:
      return v.object->tuple ? "tuple" : "list";
    case jinja_kind::dict:
      return "dict";
    case jinja_kind::space:
      return "Namespace";
    default:
      return "function";
  }
}

}  // namespace heddle::inline v0::io::detail
