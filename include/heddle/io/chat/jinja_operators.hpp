// heddle/io/chat/jinja_operators.hpp: members, slices, arithmetic of chat templates.
#pragma once

#include <heddle/io/chat/jinja_value.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

struct jinja_arguments {
  std::vector<jinja_value> values{};
  std::vector<std::pair<std::string, jinja_value>> names{};

  const jinja_value* find(std::string_view name) const {
    for (const auto& [n, v] : names)
      if (n == name) return &v;
    return nullptr;
  }
  const jinja_value* find(std::size_t i, std::string_view name) const {
    return i < values.size() ? &values[i] : find(name);
  }
  const jinja_value& at(std::size_t i, std::string_view name) const {
    if (const jinja_value* v = find(i, name)) return *v;
    throw io_error("the argument '" + std::string(name) + "' is missing");
  }
  bool truth(std::size_t i, std::string_view name) const {
    const jinja_value* v = find(i, name);
    return v != nullptr && jinja_truth(*v);
  }
  jinja_arguments from(std::size_t i) const {
    jinja_arguments out;
    for (std::size_t k = i; k < values.size(); ++k) out.values.push_back(values[k]);
    return out;
  }
};

class jinja_operators {
 public:
  jinja_operators(std::int64_t steps, std::int64_t bytes) : steps_(steps), bytes_(bytes), left_(steps), room_(bytes) {}
  virtual ~jinja_operators() = default;

 protected:
  void step(std::int64_t n = 1) {
    if ((left_ -= n) < 0) throw io_error("it takes more than " + std::to_string(steps_) + " steps");
  }
  // Bytes that are looked through.
  void look(std::size_t bytes) { step(static_cast<std::int64_t>(bytes / 256) + 1); }
  void made(std::size_t bytes) {
    look(bytes);
    if ((room_ -= static_cast<std::int64_t>(bytes)) < 0)
      throw io_error("it makes more than " + std::to_string(bytes_) + " bytes");
  }
  virtual jinja_value call(const jinja_value& f, const jinja_arguments& a) = 0;

  static void require_defined(const jinja_value& v) {
    if (v.is(jinja_kind::undefined)) throw io_error(v.str().empty() ? "a value is undefined" : v.str());
  }
  static std::int64_t whole(const jinja_value& v, const char* what) {
    require_defined(v);
    if (!v.is_whole()) throw io_error(std::string(what) + " should be whole numbers, got " + jinja_type_name(v));
    return v.integer;
  }
  std::string text(const jinja_value& v) {
    if (v.is(jinja_kind::text)) {
      made(v.str().size());
      return v.str();
    }
    made(static_cast<std::size_t>(4 * jinja_weight(v)));
    std::string out;
    jinja_print(v, false, out);
    return out;
  }
  static void set_key(std::vector<std::pair<jinja_value, jinja_value>>& to, jinja_value k, jinja_value v) {
    if (k.is(jinja_kind::dict) || (k.is(jinja_kind::list) && !k.object->tuple))
      throw io_error("unhashable type: '" + std::string(jinja_type_name(k)) + "'");
    for (auto& [l, old] : to)
      if (jinja_equal(k, l)) {
        old = std::move(v);
        return;
      }
    to.emplace_back(std::move(k), std::move(v));
  }

  // What a loop goes over.
  std::vector<jinja_value> items(const jinja_value& v) {
    std::vector<jinja_value> out;
    switch (v.kind) {
      case jinja_kind::undefined:
        return out;
      case jinja_kind::list:
        made(32 * v.object->items.size());
        return v.object->items;
      case jinja_kind::dict:
        made(32 * v.object->members.size());
        for (const auto& [k, x] : v.object->members) out.push_back(k);
        return out;
      case jinja_kind::text: {
        const std::string& s = v.str();
        made(64 * s.size());
        for (std::size_t i = 0; i < s.size();) {
          const std::size_t n = (std::min)(sequence_length(s[i]), s.size() - i);
          out.emplace_back(s.substr(i, n));
          i += n;
        }
        return out;
      }
      default:
        throw io_error("'" + std::string(jinja_type_name(v)) + "' object is not iterable");
    }
  }
  std::int64_t length(const jinja_value& v) {
    switch (v.kind) {
      case jinja_kind::undefined:
        return 0;
      case jinja_kind::list:
        return std::ssize(v.object->items);
      case jinja_kind::dict:
        return std::ssize(v.object->members);
      case jinja_kind::text:
        look(v.str().size());
        return std::ranges::count_if(v.str(), [](char c) { return (c & '\xC0') != '\x80'; });
      default:
        throw io_error("object of type '" + std::string(jinja_type_name(v)) + "' has no len()");
    }
  }

  // ---- members ----
  static bool is_method(const jinja_value& v, std::string_view name) {
    constexpr std::string_view of_text[] = {
        "strip",   "lstrip",       "rstrip",       "split",      "rsplit",     "startswith", "endswith", "replace",
        "upper",   "lower",        "title",        "capitalize", "find",       "rfind",      "index",    "count",
        "join",    "splitlines",   "isdigit",      "isnumeric",  "isalpha",    "isspace",    "isupper",  "islower",
        "isalnum", "removeprefix", "removesuffix", "partition",  "rpartition", "zfill"};
    constexpr std::string_view of_dict[] = {"items", "keys", "values", "get", "copy"};
    constexpr std::string_view of_list[] = {"index", "count", "copy"};
    if (v.is(jinja_kind::text)) return std::ranges::count(of_text, name) > 0;
    if (v.is(jinja_kind::dict)) return std::ranges::count(of_dict, name) > 0;
    return v.is(jinja_kind::list) && std::ranges::count(of_list, name) > 0;
  }
  const jinja_value* member(const jinja_value& v, const jinja_value& key) {
    look(16 * v.object->members.size());
    for (const auto& [k, x] : v.object->members)
      if (jinja_equal(k, key)) return &x;
    return nullptr;
  }
  jinja_value attribute(const jinja_value& v, const std::string& name) {
    require_defined(v);
    if (is_method(v, name)) return jinja_function(name, {v});
    if (v.is(jinja_kind::space) && v.object->name == "loop") return loop_member(v, name);
    if (v.is(jinja_kind::dict) || v.is(jinja_kind::space))
      if (const jinja_value* x = member(v, name)) return *x;
    return jinja_value::undefined("'" + std::string(v.is(jinja_kind::dict) ? "dict" : jinja_type_name(v)) +
                                  " object' has no attribute '" + name + "'");
  }
  jinja_value item(const jinja_value& v, const jinja_value& key) {
    require_defined(v);
    require_defined(key);
    if (v.is(jinja_kind::dict)) {
      if (const jinja_value* x = member(v, key)) return *x;
    } else if (key.is_whole() && (v.is(jinja_kind::list) || v.is(jinja_kind::text))) {
      const std::int64_t n = length(v), i = key.integer < 0 ? key.integer + n : key.integer;
      if (i < 0 || i >= n)
        return jinja_value::undefined("'" + std::string(jinja_type_name(v)) + " object' has no element " +
                                      std::to_string(key.integer));
      if (v.is(jinja_kind::list)) return v.object->items[static_cast<std::size_t>(i)];
      return slice(v, i, i + 1, 1);
    }
    if (key.is(jinja_kind::text)) return attribute(v, key.str());
    return jinja_value::undefined("'" + std::string(jinja_type_name(v)) + " object' has no element " + text(key));
  }
  jinja_value loop_member(const jinja_value& v, const std::string& name) {
    const auto& all = v.object->items;
    const std::int64_t i = v.integer, n = std::ssize(all);
    const auto at = [&](std::int64_t k) { return all[static_cast<std::size_t>(k)]; };
    if (name == "index") return i + 1;
    if (name == "index0") return i;
    if (name == "revindex") return n - i;
    if (name == "revindex0") return n - i - 1;
    if (name == "first") return i == 0;
    if (name == "last") return i + 1 == n;
    if (name == "length") return n;
    if (name == "depth") return std::int64_t{1};
    if (name == "depth0") return std::int64_t{0};
    if (name == "previtem") return i > 0 ? at(i - 1) : jinja_value::undefined("there is no previous item");
    if (name == "nextitem") return i + 1 < n ? at(i + 1) : jinja_value::undefined("there is no next item");
    if (name == "cycle" || name == "changed") return jinja_function(name, {v});
    return jinja_value::undefined("'LoopContext object' has no attribute '" + name + "'");
  }
  jinja_value slice(const jinja_value& v, std::optional<std::int64_t> from, std::optional<std::int64_t> to,
                    std::int64_t by) {
    require_defined(v);
    if (!v.is(jinja_kind::list) && !v.is(jinja_kind::text))
      throw io_error("'" + std::string(jinja_type_name(v)) + "' object cannot be sliced");
    if (by == 0) throw io_error("slice step cannot be zero");
    const std::int64_t n = length(v), low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    const auto cut = [&](std::int64_t i) { return std::clamp(i < 0 ? i + n : i, low, high); };
    const std::int64_t first = from ? cut(*from) : by > 0 ? low : high, last = to ? cut(*to) : by > 0 ? high : low;
    if (v.is(jinja_kind::text) && by == 1) {
      const std::string& s = v.str();
      if (first >= last) return "";
      const auto byte_at = [&](std::int64_t k) {
        if (std::ssize(s) == n) return static_cast<std::size_t>(k);  // ASCII
        std::size_t at = 0;
        for (; k > 0 && at < s.size(); --k) at += sequence_length(s[at]);
        return (std::min)(at, s.size());
      };
      const std::size_t a = byte_at(first);
      made(byte_at(last) - a);
      return s.substr(a, byte_at(last) - a);
    }
    const std::vector<jinja_value> all = items(v);
    std::vector<jinja_value> out;
    by = std::clamp(by, -n - 1, n + 1);
    for (std::int64_t i = first; by > 0 ? i < last : i > last; i += by) out.push_back(all[static_cast<std::size_t>(i)]);
    if (v.is(jinja_kind::list)) return jinja_list(std::move(out), v.object->tuple);
    std::string joined;
    for (const jinja_value& one : out) joined += one.str();
    return joined;
  }

  // ---- operators ----
  bool contains(const jinja_value& in, const jinja_value& what) {
    if (in.is(jinja_kind::text)) {
      require_defined(what);
      if (!what.is(jinja_kind::text))
        throw io_error("'in <string>' requires string as left operand, not " + std::string(jinja_type_name(what)));
      return find(in.str(), what.str()) != std::string::npos;
    }
    if (in.is(jinja_kind::dict)) return member(in, what) != nullptr;
    for (const jinja_value& one : items(in)) {
      look(static_cast<std::size_t>((std::min)(jinja_weight(one), jinja_weight(what))));
      if (jinja_equal(one, what)) return true;
    }
    return false;
  }
  std::size_t find(const std::string& in, const std::string& what, std::size_t from = 0) {
    look((in.size() - (std::min)(from, in.size())) * (1 + what.size() / 64));
    return in.find(what, from);
  }
  static int order(const std::string& op, const jinja_value& a, const jinja_value& b) {
    if (a.is_number() && b.is_number()) {
      if (a.is_whole() && b.is_whole()) return a.integer < b.integer ? -1 : a.integer > b.integer ? 1 : 0;
      return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
    }
    if (a.is(jinja_kind::text) && b.is(jinja_kind::text)) return a.str().compare(b.str());
    if (a.is(jinja_kind::list) && b.is(jinja_kind::list)) {
      const auto &x = a.object->items, &y = b.object->items;
      for (std::size_t i = 0; i < (std::min)(x.size(), y.size()); ++i)
        if (!jinja_equal(x[i], y[i])) return order(op, x[i], y[i]);
      return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
    }
    require_defined(a);
    require_defined(b);
    throw io_error("'" + op + "' not supported between instances of '" + jinja_type_name(a) + "' and '" +
                   jinja_type_name(b) + "'");
  }
  bool compare(const std::string& op, const jinja_value& a, const jinja_value& b) {
    if (op == "in") return contains(b, a);
    if (op == "not in") return !contains(b, a);
    look(static_cast<std::size_t>((std::min)(jinja_weight(a), jinja_weight(b))));
    if (op == "==") return jinja_equal(a, b);
    if (op == "!=") return !jinja_equal(a, b);
    const int o = order(op, a, b);
    return op == "<" ? o < 0 : op == "<=" ? o <= 0 : op == ">" ? o > 0 : o >= 0;
  }
  [[noreturn]] static void too_great() { throw io_error("a number beyond 64 bits"); }
  static std::int64_t power_of(std::int64_t a, std::int64_t n) {
    std::int64_t out = 1;
    if (n > 64 && a != 0 && a != 1 && a != -1) too_great();
    for (n = n > 64 ? 64 + n % 2 : n; n > 0; --n)
      if (__builtin_mul_overflow(out, a, &out)) too_great();
    return out;
  }
  jinja_value binary(const std::string& op, const jinja_value& a, const jinja_value& b) {
    require_defined(a);
    require_defined(b);
    if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
    if (op == "+" && a.is(jinja_kind::text) && b.is(jinja_kind::text)) {
      made(a.str().size() + b.str().size());
      return a.str() + b.str();
    }
    if (op == "+" && a.is(jinja_kind::list) && b.is(jinja_kind::list) && a.object->tuple == b.object->tuple) {
      std::vector<jinja_value> all = items(a);
      for (jinja_value& one : items(b)) all.push_back(std::move(one));
      return jinja_list(std::move(all), a.object->tuple);
    }
    if (op == "*" && (a.is_whole() || b.is_whole())) {
      const jinja_value& of = a.is_whole() ? b : a;
      const std::int64_t times = (std::max)(std::int64_t{0}, a.is_whole() ? a.integer : b.integer);
      const std::int64_t each = of.is(jinja_kind::list) ? 32 * length(of) : jinja_weight(of);
      if (times > 0 && each > most_jinja_bytes / times) throw io_error("it makes too much by '*'");
      made(static_cast<std::size_t>(each * times));
      if (of.is(jinja_kind::text)) {
        std::string out;
        for (std::int64_t i = 0; i < times && !of.str().empty(); ++i) out += of.str();
        return out;
      }
      if (of.is(jinja_kind::list)) {
        std::vector<jinja_value> all;
        for (std::int64_t i = 0; i < times && !of.object->items.empty(); ++i)
          all.insert(all.end(), of.object->items.begin(), of.object->items.end());
        return jinja_list(std::move(all), of.object->tuple);
      }
    }
    throw io_error("unsupported operand types for " + op + ": '" + jinja_type_name(a) + "' and '" + jinja_type_name(b) +
                   "'");
  }
  static jinja_value arithmetic(const std::string& op, const jinja_value& a, const jinja_value& b) {
    const bool zero = b.number() == 0;
    if (zero && (op == "/" || op == "//" || op == "%")) throw io_error("division by zero");
    if (op == "/") return a.number() / b.number();
    if (a.is_whole() && b.is_whole() && !(op == "**" && b.integer < 0)) {
      const std::int64_t x = a.integer, y = b.integer;
      std::int64_t out = 0;
      if (op == "**") return power_of(x, y);
      if (op == "+"   ? __builtin_add_overflow(x, y, &out)
          : op == "-" ? __builtin_sub_overflow(x, y, &out)
                      : op == "*" && __builtin_mul_overflow(x, y, &out))
        too_great();
      if (op == "+" || op == "-" || op == "*") return out;
      if (y == -1) {
        if (x == (std::numeric_limits<std::int64_t>::min)()) too_great();
        return op == "//" ? -x : std::int64_t{0};
      }
      const std::int64_t rest = x % y, moved = rest != 0 && (rest < 0) != (y < 0) ? 1 : 0;
      return op == "//" ? x / y - moved : rest + moved * y;
    }
    const double x = a.number(), y = b.number();
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (op == "**") return std::pow(x, y);
    if (op == "//") return std::floor(x / y);
    const double rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  }
  jinja_value range(const jinja_arguments& a) {
    std::int64_t at[3] = {0, 0, 1};
    if (a.values.empty() || a.values.size() > 3) throw io_error("range() takes one to three numbers");
    for (std::size_t i = 0; i < a.values.size(); ++i) at[i] = whole(a.values[i], "range()'s arguments");
    if (a.values.size() == 1) std::swap(at[0], at[1]);
    if (at[2] == 0) throw io_error("range()'s step should not be zero");
    std::vector<jinja_value> out;
    for (std::int64_t i = at[0]; at[2] > 0 ? i < at[1] : i > at[1];) {
      if (out.size() >= 100000) throw io_error("range() makes at most 100000 numbers");
      out.emplace_back(i);
      if (__builtin_add_overflow(i, at[2], &i)) break;
    }
    made(64 * out.size());
    return jinja_list(std::move(out));
  }

 private:
  std::int64_t steps_, bytes_, left_, room_;
};

}  // namespace heddle::inline v0::io::detail
