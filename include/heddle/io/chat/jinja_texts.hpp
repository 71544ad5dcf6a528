// heddle/io/chat/jinja_texts.hpp: methods of str, dict and list in chat templates.
#pragma once

#include <heddle/io/chat/chat.hpp>
#include <heddle/io/chat/jinja_operators.hpp>

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

class jinja_texts : public jinja_operators {
 public:
  using jinja_operators::jinja_operators;

 protected:
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
};

}  // namespace heddle::inline v0::io::detail
