// heddle/io/tokenizer/jinja_filters.hpp: the operators, filters, tests and methods of chat templates, as jinja2 and Python have them.
#pragma once

#include <heddle/io/tokenizer/chat.hpp>
#include <heddle/io/tokenizer/jinja_value.hpp>

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
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

class jinja_library {
 public:
  jinja_library(std::int64_t steps, std::int64_t bytes) : steps_(steps), bytes_(bytes), left_(steps), room_(bytes) {}
  virtual ~jinja_library() = default;

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

  // ---- texts ----
  static std::uint32_t as_case(std::uint32_t c, bool up) {
    const auto p = static_cast<utf8proc_int32_t>(c);
    return static_cast<std::uint32_t>(up ? utf8proc_toupper(p) : utf8proc_tolower(p));
  }
  // Upper or lower case by `up(whether a letter was before, whether it is the first)`.
  template <class Up>
  std::string cased(const std::string& s, Up up) {
    made(s.size());
    std::string out;
    bool letter = false;
    for (std::size_t i = 0; i < s.size();) {
      if (!first_sequence(std::string_view(s).substr(i)).whole) {
        out += s[i++];
        continue;
      }
      const std::uint32_t c = code_point_at(s, i);
      append_code_point(out, as_case(c, up(letter, i == 0)));
      letter = as_case(c, true) != as_case(c, false);
      i += sequence_length(s[i]);
    }
    return out;
  }
  std::string upper(const std::string& s) {
    return cased(s, [](bool, bool) { return true; });
  }
  std::string lower(const std::string& s) {
    return cased(s, [](bool, bool) { return false; });
  }
  static std::string_view strip(std::string_view s, const jinja_value* chars, bool front, bool back) {
    if (chars == nullptr || chars->is(jinja_kind::none)) {
      const std::string_view all = stripped(s);
      if (front && back) return all;
      if (all.empty()) return all;
      const auto at = static_cast<std::size_t>(all.data() - s.data());
      return front ? s.substr(at) : s.substr(0, at + all.size());
    }
    if (!chars->is(jinja_kind::text)) throw io_error("strip takes a string");
    const std::string_view set = chars->str();
    while (front && !s.empty()) {
      const std::size_t n = (std::min)(sequence_length(s[0]), s.size());
      if (set.find(s.substr(0, n)) == std::string_view::npos) break;
      s.remove_prefix(n);
    }
    while (back && !s.empty()) {
      const std::size_t at = before(s, s.size());
      if (set.find(s.substr(at)) == std::string_view::npos) break;
      s.remove_suffix(s.size() - at);
    }
    return s;
  }
  jinja_value texts(const std::vector<std::string>& all, bool tuple = false) {
    std::vector<jinja_value> out;
    std::size_t bytes = 0;
    for (const std::string& s : all) {
      out.emplace_back(s);
      bytes += s.size() + 64;
    }
    made(bytes);
    return jinja_list(std::move(out), tuple);
  }
  jinja_value split(const std::string& s, const jinja_value* by, std::int64_t most, bool from_back) {
    std::vector<std::string> out;
    look(s.size());
    if (by == nullptr || by->is(jinja_kind::none)) {
      std::string_view rest = stripped(s);
      while (!rest.empty() && (most < 0 || std::ssize(out) < most)) {
        std::size_t end = 0;
        while (end < rest.size() && stripped(rest.substr(end, sequence_length(rest[end]))).size() > 0)
          end += sequence_length(rest[end]);
        end = (std::min)(end, rest.size());
        out.emplace_back(rest.substr(0, end));
        rest = strip(rest.substr(end), nullptr, true, false);
      }
      if (!rest.empty()) out.emplace_back(rest);
      return texts(out);
    }
    if (!by->is(jinja_kind::text) || by->str().empty()) throw io_error("split takes a separator that is not empty");
    const std::string& mark = by->str();
    look(s.size() * (1 + mark.size() / 64));
    std::vector<std::size_t> at;
    if (from_back)
      for (std::size_t end = s.size(); (most < 0 || std::ssize(at) < most) && end >= mark.size();) {
        const std::size_t i = s.rfind(mark, end - mark.size());
        if (i == std::string::npos) break;
        at.insert(at.begin(), i);
        end = i;
      }
    else
      for (std::size_t i = 0; (most < 0 || std::ssize(at) < most) && (i = s.find(mark, i)) != std::string::npos;
           i += mark.size())
        at.push_back(i);
    std::size_t begin = 0;
    for (const std::size_t i : at) {
      out.push_back(s.substr(begin, i - begin));
      begin = i + mark.size();
    }
    out.push_back(s.substr(begin));
    return texts(out);
  }
  static std::vector<std::string> lines(const std::string& s, bool keep = false) {
    std::vector<std::string> out;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < s.size();) {
      std::size_t n = 0;
      const std::string_view rest = std::string_view(s).substr(i);
      if (rest.starts_with("\r\n") || rest.starts_with("\xc2\x85"))
        n = 2;
      else if (rest.starts_with("\xe2\x80\xa8") || rest.starts_with("\xe2\x80\xa9"))
        n = 3;
      else if ((s[i] >= '\n' && s[i] <= '\r') || (s[i] >= '\x1c' && s[i] <= '\x1e'))
        n = 1;
      if (n > 0) {
        out.push_back(s.substr(begin, i - begin + (keep ? n : 0)));
        begin = i + n;
      }
      i += n > 0 ? n : 1;
    }
    if (begin < s.size()) out.push_back(s.substr(begin));
    return out;
  }
  std::string replaced(const std::string& s, const std::string& from, const std::string& to, std::int64_t most) {
    look(s.size() * (1 + from.size() / 64));
    std::string out;
    std::size_t begin = 0;
    const auto put = [&](std::string_view t) {
      if (std::ssize(out) + std::ssize(t) > most_jinja_bytes) throw io_error("it makes too long a text by replace");
      out += t;
    };
    if (from.empty()) {
      for (std::size_t i = 0; i <= s.size() && most != 0; --most) {
        put(to);
        const std::size_t n = i < s.size() ? (std::min)(sequence_length(s[i]), s.size() - i) : 1;
        put(std::string_view(s).substr((std::min)(i, s.size()), n));
        i += n;
        begin = (std::min)(i, s.size());
      }
    } else {
      for (std::size_t i = 0; most != 0 && (i = s.find(from, begin)) != std::string::npos; --most) {
        put(std::string_view(s).substr(begin, i - begin));
        put(to);
        begin = i + from.size();
      }
    }
    put(std::string_view(s).substr((std::min)(begin, s.size())));
    made(out.size());
    return out;
  }
  const std::string& text_argument(const jinja_arguments& a, std::size_t i, std::string_view name) {
    const jinja_value& v = a.at(i, name);
    require_defined(v);
    if (!v.is(jinja_kind::text))
      throw io_error("'" + std::string(name) + "' should be a str, got " + jinja_type_name(v));
    return v.str();
  }
  static std::int64_t number_argument(const jinja_arguments& a, std::size_t i, std::string_view name,
                                      std::int64_t other) {
    const jinja_value* v = a.find(i, name);
    return v == nullptr ? other : whole(*v, "arguments");
  }

  // ---- methods ----
  jinja_value method(const std::string& name, const jinja_value& of, const jinja_arguments& a) {
    if (of.is(jinja_kind::dict)) return dict_method(name, of, a);
    if (of.is(jinja_kind::space)) return loop_method(name, of, a);
    if (of.is(jinja_kind::list)) {
      if (name == "copy") return of;
      std::int64_t i = 0, n = 0;
      for (const jinja_value& one : items(of)) {
        if (jinja_equal(one, a.at(0, "value"))) {
          if (name == "index") return i;
          ++n;
        }
        ++i;
      }
      if (name == "index") throw io_error("index(): the value is not in the list");
      return n;
    }
    return text_method(name, of.str(), a);
  }
  jinja_value dict_method(const std::string& name, const jinja_value& of, const jinja_arguments& a) {
    if (name == "copy") return of;
    if (name == "get") {
      const jinja_value* v = member(of, a.at(0, "key"));
      if (v != nullptr) return *v;
      v = a.find(1, "default");
      return v != nullptr ? *v : jinja_value::none();
    }
    std::vector<jinja_value> out;
    made(128 * of.object->members.size());
    for (const auto& [k, v] : of.object->members)
      out.push_back(name == "items" ? jinja_list({k, v}, true) : name == "keys" ? k : v);
    return jinja_list(std::move(out));
  }
  jinja_value loop_method(const std::string& name, const jinja_value& of, const jinja_arguments& a) {
    if (name == "cycle") {
      if (a.values.empty()) throw io_error("no items for cycling given");
      return a.values[static_cast<std::size_t>(of.integer % std::ssize(a.values))];
    }
    jinja_value now = jinja_list(a.values, true);  // changed
    auto& held = of.object->members;
    const bool same = !held.empty() && jinja_equal(held[0].second, now);
    held.clear();
    held.emplace_back("last", std::move(now));
    return !same;
  }
  jinja_value text_method(const std::string& name, const std::string& s, const jinja_arguments& a) {
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
      made(s.size());
      return std::string(strip(s, a.find(0, "chars"), name != "rstrip", name != "lstrip"));
    }
    if (name == "split" || name == "rsplit")
      return split(s, a.find(0, "sep"), number_argument(a, 1, "maxsplit", -1), name == "rsplit");
    if (name == "startswith" || name == "endswith") {
      const jinja_value& what = a.at(0, "prefix");
      require_defined(what);
      const auto is = [&](const jinja_value& one) {
        if (!one.is(jinja_kind::text)) throw io_error(name + " takes a str, got " + jinja_type_name(one));
        return name == "startswith" ? s.starts_with(one.str()) : s.ends_with(one.str());
      };
      if (!what.is(jinja_kind::list)) return is(what);
      return std::ranges::any_of(what.object->items, is);
    }
    if (name == "replace")
      return replaced(s, text_argument(a, 0, "old"), text_argument(a, 1, "new"), number_argument(a, 2, "count", -1));
    if (name == "upper") return upper(s);
    if (name == "lower") return lower(s);
    if (name == "title") return cased(s, [](bool letter, bool) { return !letter; });
    if (name == "capitalize") return cased(s, [](bool, bool first) { return first; });
    if (name == "find" || name == "rfind" || name == "index") {
      const std::string& what = text_argument(a, 0, "sub");
      look(s.size() * (1 + what.size() / 64));
      const std::size_t at = name == "rfind" ? s.rfind(what) : s.find(what);
      if (at == std::string::npos && name == "index") throw io_error("substring not found");
      return at == std::string::npos ? std::int64_t{-1} : length(jinja_value(s.substr(0, at)));
    }
    if (name == "count") {
      const std::string& what = text_argument(a, 0, "sub");
      if (what.empty()) return length(jinja_value(s)) + 1;
      std::int64_t n = 0;
      look(s.size() * (1 + what.size() / 64));
      for (std::size_t i = 0; (i = s.find(what, i)) != std::string::npos; i += what.size()) ++n;
      return n;
    }
    if (name == "join") return joined(a.at(0, "iterable"), s, true);
    if (name == "splitlines") return texts(lines(s, a.truth(0, "keepends")));
    if (name == "removeprefix" || name == "removesuffix") {
      const std::string& what = text_argument(a, 0, "prefix");
      made(s.size());
      if (name == "removeprefix") return s.starts_with(what) ? s.substr(what.size()) : s;
      return s.ends_with(what) ? s.substr(0, s.size() - what.size()) : s;
    }
    if (name == "partition" || name == "rpartition") {
      const std::string& mark = text_argument(a, 0, "sep");
      if (mark.empty()) throw io_error("empty separator");
      look(s.size() * (1 + mark.size() / 64));
      const std::size_t at = name == "partition" ? s.find(mark) : s.rfind(mark);
      if (at == std::string::npos) return name == "partition" ? texts({s, "", ""}, true) : texts({"", "", s}, true);
      return texts({s.substr(0, at), mark, s.substr(at + mark.size())}, true);
    }
    if (name == "zfill") {
      const std::int64_t width = number_argument(a, 0, "width", 0) - length(jinja_value(s));
      if (width > 1000) throw io_error("zfill makes at most 1000 characters");
      const std::size_t sign = s.starts_with('-') || s.starts_with('+') ? 1 : 0;
      return s.substr(0, sign) + std::string(static_cast<std::size_t>((std::max)(width, std::int64_t{0})), '0') +
             s.substr(sign);
    }
    return text_is(name, s);
  }
  // isdigit and the like, of ASCII's and of letters with case.
  jinja_value text_is(const std::string& name, const std::string& s) {
    look(s.size());
    bool all = !s.empty(), some = false;
    for (std::size_t i = 0; i < s.size(); i += sequence_length(s[i])) {
      const std::uint32_t c = code_point_at(s, i);
      const auto kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
      const bool digit = kind == UTF8PROC_CATEGORY_ND,
                 letter = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
      const bool up = kind == UTF8PROC_CATEGORY_LU, low = kind == UTF8PROC_CATEGORY_LL;
      some = some || (name == "isupper" ? up : low);
      if (name == "isdigit" || name == "isnumeric") all = all && digit;
      if (name == "isalpha") all = all && letter;
      if (name == "isalnum") all = all && (letter || digit);
      if (name == "isspace") all = all && stripped(std::string_view(s).substr(i, sequence_length(s[i]))).empty();
      if (name == "isupper") all = all && !low;
      if (name == "islower") all = all && !up;
    }
    return all && (some || (name != "isupper" && name != "islower"));
  }
  jinja_value joined(const jinja_value& of, const std::string& by, bool only_texts) {
    std::string out;
    bool first = true;
    for (const jinja_value& one : items(of)) {
      if (only_texts && !one.is(jinja_kind::text))
        throw io_error("join(): expected str, got " + std::string(jinja_type_name(one)));
      if (!std::exchange(first, false)) {
        made(by.size());
        out += by;
      }
      out += text(one);
    }
    return out;
  }

  // ---- tests ----
  bool test(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    step();
    if (name == "defined") return !v.is(jinja_kind::undefined);
    if (name == "undefined") return v.is(jinja_kind::undefined);
    if (name == "none") return v.is(jinja_kind::none);
    if (name == "string") return v.is(jinja_kind::text);
    if (name == "mapping") return v.is(jinja_kind::dict);
    if (name == "sequence") return v.is(jinja_kind::text) || v.is(jinja_kind::list) || v.is(jinja_kind::dict);
    if (name == "iterable")
      return v.is(jinja_kind::text) || v.is(jinja_kind::list) || v.is(jinja_kind::dict) || v.is(jinja_kind::undefined);
    if (name == "number") return v.is_number();
    if (name == "integer") return v.is(jinja_kind::integer);
    if (name == "float") return v.is(jinja_kind::real);
    if (name == "boolean") return v.is(jinja_kind::boolean);
    if (name == "true") return v.is(jinja_kind::boolean) && v.integer != 0;
    if (name == "false") return v.is(jinja_kind::boolean) && v.integer == 0;
    if (name == "callable") return v.is(jinja_kind::function);
    if (name == "odd" || name == "even") return (whole(v, "odd and even numbers") % 2 == 0) == (name == "even");
    if (name == "divisibleby") {
      const std::int64_t by = whole(a.at(0, "num"), "divisors");
      if (by == 0) throw io_error("division by zero");
      return by == -1 || whole(v, "numbers that are divided") % by == 0;
    }
    if (name == "upper" || name == "lower")
      return jinja_truth(text_is(name == "upper" ? "isupper" : "islower", text(v)));
    if (name == "in") return contains(a.at(0, "seq"), v);
    if (name == "sameas")
      return v.object || a.at(0, "other").object ? v.object == a.at(0, "other").object
                                                 : v.kind == a.at(0, "other").kind && jinja_equal(v, a.at(0, "other"));
    constexpr std::pair<std::string_view, const char*> same[] = {
        {"eq", "=="}, {"==", "=="},      {"equalto", "=="}, {"ne", "!="}, {"!=", "!="},
        {"lt", "<"},  {"lessthan", "<"}, {"le", "<="},      {"gt", ">"},  {"greaterthan", ">"},
        {"ge", ">="}, {"<", "<"},        {">", ">"},        {"<=", "<="}, {">=", ">="}};
    for (const auto& [n, op] : same)
      if (n == name) return compare(op, v, a.at(0, "other"));
    throw io_error("there is no test '" + name + "'");
  }

  // ---- filters ----
  // A member by a path, as in "function.name".
  jinja_value by_path(const jinja_value& v, const jinja_value& path) {
    if (!path.is(jinja_kind::text)) return item(v, path);
    jinja_value at = v;
    for (std::size_t i = 0; i <= path.str().size();) {
      const std::size_t end = (std::min)(path.str().find('.', i), path.str().size());
      const std::string part = path.str().substr(i, end - i);
      const bool index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
      at = item(at, index ? jinja_value(std::int64_t{std::stoi(part)}) : jinja_value(part));
      i = end + 1;
    }
    return at;
  }
  jinja_value chosen(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    const bool of_member = name.ends_with("attr"), keep = name.starts_with("select");
    const std::size_t at = of_member ? 1 : 0;
    std::vector<jinja_value> out;
    for (const jinja_value& one : items(v)) {
      const jinja_value what = of_member ? by_path(one, a.at(0, "attribute")) : one;
      const bool is =
          a.values.size() > at ? test(text_argument(a, at, "test"), what, a.from(at + 1)) : jinja_truth(what);
      if (is == keep) out.push_back(one);
    }
    return jinja_list(std::move(out));
  }
  jinja_value mapped(const jinja_value& v, const jinja_arguments& a) {
    std::vector<jinja_value> out;
    const jinja_value *path = a.find("attribute"), *other = a.find("default");
    for (const jinja_value& one : items(v)) {
      if (path != nullptr) {
        jinja_value x = by_path(one, *path);
        out.push_back(x.is(jinja_kind::undefined) && other != nullptr ? *other : std::move(x));
      } else {
        jinja_arguments more = a.from(1);
        more.names = a.names;
        out.push_back(filter(text_argument(a, 0, "filter"), one, more));
      }
    }
    return jinja_list(std::move(out));
  }
  // Places of values in order; equal ones stay as they are.
  std::vector<std::size_t> sorted(const std::vector<jinja_value>& keys, bool cased_order, bool reverse) {
    std::vector<jinja_value> by;
    for (const jinja_value& k : keys)
      by.push_back(k.is(jinja_kind::text) && !cased_order ? jinja_value(lower(k.str())) : k);
    std::vector<std::size_t> at(keys.size());
    std::iota(at.begin(), at.end(), std::size_t{0});
    // Checked beforehand, as a comparison must not throw half way: all of one kind.
    for (const jinja_value& k : by) {
      if (!k.is_number() && !k.is(jinja_kind::text))
        throw io_error("sort takes numbers or texts, got " + std::string(jinja_type_name(k)));
      if (k.is_number() != by[0].is_number()) static_cast<void>(order("<", by[0], k));
      look(static_cast<std::size_t>(16 * jinja_weight(k)));
    }
    std::sort(at.begin(), at.end(), [&](std::size_t i, std::size_t j) {
      const int o = order("<", by[i], by[j]);
      return o != 0 ? (reverse ? o > 0 : o < 0) : i < j;
    });
    return at;
  }
  jinja_value in_order(const jinja_value& v, const jinja_arguments& a) {
    const std::vector<jinja_value> all = items(v);
    const jinja_value* path = a.find(2, "attribute");
    std::vector<jinja_value> keys, out;
    for (const jinja_value& one : all)
      keys.push_back(path == nullptr || path->is(jinja_kind::none) ? one : by_path(one, *path));
    for (const std::size_t i : sorted(keys, a.truth(1, "case_sensitive"), a.truth(0, "reverse"))) out.push_back(all[i]);
    return jinja_list(std::move(out));
  }
  jinja_value dict_in_order(const jinja_value& v, const jinja_arguments& a) {
    if (!v.is(jinja_kind::dict)) throw io_error("dictsort takes a dictionary, got " + std::string(jinja_type_name(v)));
    const jinja_value* by = a.find(1, "by");
    const bool of_value = by != nullptr && by->is(jinja_kind::text) && by->str() == "value";
    std::vector<jinja_value> keys, out;
    for (const auto& [k, x] : v.object->members) keys.push_back(of_value ? x : k);
    for (const std::size_t i : sorted(keys, a.truth(0, "case_sensitive"), a.truth(2, "reverse")))
      out.push_back(jinja_list({v.object->members[i].first, v.object->members[i].second}, true));
    made(128 * out.size());
    return jinja_list(std::move(out));
  }
  jinja_value unique(const jinja_value& v, const jinja_arguments& a) {
    std::vector<jinja_value> out, seen;
    const jinja_value* path = a.find(1, "attribute");
    for (const jinja_value& one : items(v)) {
      jinja_value k = path == nullptr ? one : by_path(one, *path);
      if (k.is(jinja_kind::text) && !a.truth(0, "case_sensitive")) k = lower(k.str());
      step(std::ssize(seen) / 8 + 1);
      if (std::ranges::any_of(seen, [&](const jinja_value& s) { return jinja_equal(s, k); })) continue;
      seen.push_back(std::move(k));
      out.push_back(one);
    }
    return jinja_list(std::move(out));
  }
  jinja_value extreme(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    const std::vector<jinja_value> all = items(v);
    if (all.empty()) return jinja_value::undefined("no aggregated item, the sequence was empty");
    const jinja_value* path = a.find(1, "attribute");
    std::vector<jinja_value> keys;
    for (const jinja_value& one : all) keys.push_back(path == nullptr ? one : by_path(one, *path));
    return all[sorted(keys, a.truth(0, "case_sensitive"), name == "max").front()];
  }
  jinja_value indented(const std::string& s, const jinja_arguments& a) {
    const jinja_value* width = a.find(0, "width");
    std::string by;
    if (width != nullptr && width->is(jinja_kind::text))
      by = width->str();
    else
      by = std::string(
          static_cast<std::size_t>(std::clamp(number_argument(a, 0, "width", 4), std::int64_t{0}, std::int64_t{100})),
          ' ');
    const bool blank = a.truth(2, "blank");
    std::string out = a.truth(1, "first") ? by : "";
    bool begun = false;
    for (const std::string& line : lines(s + "\n")) {
      made(by.size() + line.size() + 1);
      if (begun) out += "\n" + (blank || !line.empty() ? by : "");
      begun = true;
      out += line;
    }
    return out;
  }
  jinja_value json_of(const jinja_value& v, const jinja_arguments& a) {
    jinja_json_style style;
    const jinja_value* ascii = a.find(0, "ensure_ascii");
    style.ascii = ascii != nullptr && jinja_truth(*ascii);
    if (const jinja_value* indent = a.find(1, "indent"); indent != nullptr && !indent->is(jinja_kind::none)) {
      style.lines = true;
      style.comma = ",";
      style.indent =
          indent->is(jinja_kind::text)
              ? indent->str()
              : std::string(
                    static_cast<std::size_t>(std::clamp(whole(*indent, "indents"), std::int64_t{0}, std::int64_t{64})),
                    ' ');
    }
    if (const jinja_value* marks = a.find(2, "separators"); marks != nullptr && !marks->is(jinja_kind::none)) {
      const std::vector<jinja_value> two = items(*marks);
      if (two.size() != 2) throw io_error("separators should be two texts");
      style.comma = text(two[0]);
      style.colon = text(two[1]);
    }
    style.sorted = a.truth(3, "sort_keys");
    made(static_cast<std::size_t>(2 * jinja_weight(v)));
    std::string out;
    jinja_dumps(v, style, out);
    made(out.size());
    return out;
  }
  static std::optional<double> number_in(std::string_view s) {
    s = stripped(s);
    if (s.starts_with('+')) s.remove_prefix(1);
    double d = 0;
    const auto got = std::from_chars(s.data(), s.data() + s.size(), d);
    return got.ec == std::errc() && got.ptr == s.data() + s.size() ? std::optional(d) : std::nullopt;
  }
  jinja_value as_number(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    require_defined(v);
    const jinja_value* other = a.find(0, "default");
    const auto fallback = [&] {
      return other != nullptr ? *other : name == "int" ? jinja_value(std::int64_t{0}) : jinja_value(0.0);
    };
    std::optional<double> d = v.is_number() ? std::optional(v.number()) : std::nullopt;
    if (v.is(jinja_kind::text)) d = number_in(v.str());
    if (!d) return fallback();
    if (name == "float") return *d;
    if (v.is_whole()) return v.integer;
    if (v.is(jinja_kind::text)) {
      std::string_view s = stripped(v.str());
      std::int64_t i = 0;
      if (const auto got = std::from_chars(s.data(), s.data() + s.size(), i);
          got.ec == std::errc() && got.ptr == s.data() + s.size())
        return i;
    }
    if (!std::isfinite(*d)) return fallback();
    if (!(std::abs(*d) < 0x1p63)) too_great();
    return static_cast<std::int64_t>(*d);
  }

  jinja_value filter(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    step();
    if (name == "tojson") return json_of(v, a);
    if (name == "trim") {
      const std::string s = text(v);
      return std::string(strip(s, a.find(0, "chars"), true, true));
    }
    if (name == "length" || name == "count") return length(v);
    if (name == "default" || name == "d") {
      const jinja_value* other = a.find(0, "default_value");
      const bool use = v.is(jinja_kind::undefined) || (a.truth(1, "boolean") && !jinja_truth(v));
      return !use ? v : other != nullptr ? *other : jinja_value("");
    }
    if (name == "join") {
      const jinja_value *by = a.find(0, "d"), *path = a.find(1, "attribute");
      const std::string mark = by != nullptr ? text(*by) : "";
      if (path == nullptr) return joined(v, mark, false);
      std::vector<jinja_value> all;
      for (const jinja_value& one : items(v)) all.push_back(by_path(one, *path));
      return joined(jinja_list(std::move(all)), mark, false);
    }
    if (name == "list") return jinja_list(items(v));
    if (name == "items") {
      if (v.is(jinja_kind::undefined)) return jinja_list({});
      if (!v.is(jinja_kind::dict)) throw io_error("can only get item pairs from a mapping");
      return dict_method("items", v, {});
    }
    if (name == "first" || name == "last") {
      const std::vector<jinja_value> all = items(v);
      if (all.empty()) return jinja_value::undefined("no " + name + " item, the sequence was empty");
      return name == "first" ? all.front() : all.back();
    }
    if (name == "map") return mapped(v, a);
    if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") return chosen(name, v, a);
    if (name == "string") return text(v);
    if (name == "safe") return v;
    if (name == "upper") return upper(text(v));
    if (name == "lower") return lower(text(v));
    if (name == "capitalize") return cased(text(v), [](bool, bool first) { return first; });
    return rare_filter(name, v, a);
  }
  jinja_value rare_filter(const std::string& name, const jinja_value& v, const jinja_arguments& a) {
    if (name == "replace")
      return replaced(text(v), text(a.at(0, "old")), text(a.at(1, "new")), number_argument(a, 2, "count", -1));
    if (name == "title") {
      const std::string s = text(v);
      std::string out;
      for (std::size_t i = 0; i < s.size();) {  // words, and what is between them
        const bool mark = std::string_view("-({[< \t\n\r\f\v").find(s[i]) != std::string_view::npos;
        std::size_t end = i;
        while (end < s.size() && (std::string_view("-({[< \t\n\r\f\v").find(s[end]) != std::string_view::npos) == mark)
          ++end;
        out += cased(s.substr(i, end - i), [](bool, bool first) { return first; });
        i = end;
      }
      return out;
    }
    if (name == "indent") return indented(text(v), a);
    if (name == "sort") return in_order(v, a);
    if (name == "dictsort") return dict_in_order(v, a);
    if (name == "unique") return unique(v, a);
    if (name == "min" || name == "max") return extreme(name, v, a);
    if (name == "reverse") {
      if (v.is(jinja_kind::text)) return slice(v, std::nullopt, std::nullopt, -1);
      std::vector<jinja_value> all = items(v);
      std::ranges::reverse(all);
      return jinja_list(std::move(all));
    }
    if (name == "sum") {
      const jinja_value *path = a.find(0, "attribute"), *start = a.find(1, "start");
      jinja_value out = start != nullptr ? *start : jinja_value(std::int64_t{0});
      for (const jinja_value& one : items(v)) out = binary("+", out, path == nullptr ? one : by_path(one, *path));
      return out;
    }
    if (name == "int" || name == "float") return as_number(name, v, a);
    if (name == "abs") {
      require_defined(v);
      if (!v.is_number()) throw io_error("abs takes a number, got " + std::string(jinja_type_name(v)));
      if (v.is_whole()) return v.integer < 0 ? binary("*", v, std::int64_t{-1}) : jinja_value(v.integer);
      return std::abs(v.real);
    }
    if (name == "round") {
      require_defined(v);
      if (!v.is_number()) throw io_error("round takes a number, got " + std::string(jinja_type_name(v)));
      const double scale = std::pow(10.0, static_cast<double>(std::clamp(number_argument(a, 0, "precision", 0),
                                                                         std::int64_t{-15}, std::int64_t{15})));
      const jinja_value* how = a.find(1, "method");
      const std::string by = how != nullptr ? text(*how) : "common";
      const double x = v.number() * scale;
      return (by == "ceil" ? std::ceil(x) : by == "floor" ? std::floor(x) : std::nearbyint(x)) / scale;
    }
    if (name == "escape" || name == "e") {
      std::string out;
      for (const char c : text(v))
        out += c == '&'    ? "&amp;"
               : c == '<'  ? "&lt;"
               : c == '>'  ? "&gt;"
               : c == '\'' ? "&#39;"
               : c == '"'  ? "&#34;"
                           : std::string(1, c);
      made(out.size());
      return out;
    }
    if (name == "attr") return attribute(v, text_argument(a, 0, "name"));
    if (name == "wordcount") return length(split(text(v), nullptr, -1, false));
    throw io_error("there is no filter '" + name + "'");
  }

 private:
  std::int64_t steps_, bytes_, left_, room_;
};

}  // namespace heddle::inline v0::io::detail
