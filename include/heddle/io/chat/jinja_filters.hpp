// heddle/io/chat/jinja_filters.hpp: the filters and tests of chat templates, as jinja2 has them.
#pragma once

#include <heddle/io/chat/jinja_texts.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

class jinja_library : public jinja_texts {
 public:
  using jinja_texts::jinja_texts;

 protected:
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
};

}  // namespace heddle::inline v0::io::detail
