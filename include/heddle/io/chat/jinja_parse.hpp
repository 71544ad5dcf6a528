// heddle/io/chat/jinja_parse.hpp: parses the source of a chat template.
#pragma once

#include <heddle/io/chat/jinja_lexer.hpp>
#include <heddle/io/chat/jinja_value.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

enum class jinja_op {
  // expressions
  constant,
  name,
  list,
  tuple,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  negate,
  plus,
  invert,
  choose,
  both,
  either,
  compare,
  binary,
  concatenate,
  keyword,
  spread,
  spread_names,
  absent,
  // statements
  data,
  output,
  block,
  condition,
  loop,
  assign,
  assign_block,
  macro,
  call_block,
  filter_block,
  with,
  leave,
  next,
  scoped,
};

// A node: `text` is a name, an operator or data; `parts` depend on the kind.
struct jinja_node {
  jinja_op op = jinja_op::absent;
  int line = 1, depth = 1;
  std::string text{};
  jinja_value value{};
  std::vector<jinja_node> parts{};
};

// Reads tokens into nodes.
class jinja_parser {
 public:
  explicit jinja_parser(std::string_view source) : tokens_(jinja_lexer(source).tokens()) {}

  jinja_node parse() {
    jinja_node root = body({});
    if (now().kind != jinja_token_kind::end) fail("an unexpected end of a block");
    return root;
  }

 private:
  static constexpr int most_depth = 120;
  using names = std::initializer_list<std::string_view>;

  const jinja_token& now() const { return tokens_[at_]; }
  const jinja_token& ahead() const { return tokens_[(std::min)(at_ + 1, tokens_.size() - 1)]; }
  jinja_token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[noreturn]] void fail(const std::string& what) const { throw template_error(now().line, what); }
  std::string shown() const {
    switch (now().kind) {
      case jinja_token_kind::end:
        return "the end of the template";
      case jinja_token_kind::block_end:
        return "'%}'";
      case jinja_token_kind::output_end:
        return "'}}'";
      default:
        return jinja_repr(now().text.substr(0, 40));
    }
  }
  bool is_sign(std::string_view s) const { return now().kind == jinja_token_kind::sign && now().text == s; }
  bool is_name(std::string_view s) const { return now().kind == jinja_token_kind::name && now().text == s; }
  bool skip_sign(std::string_view s) { return is_sign(s) && (static_cast<void>(take()), true); }
  bool skip_name(std::string_view s) { return is_name(s) && (static_cast<void>(take()), true); }
  void expect_sign(std::string_view s) {
    if (!skip_sign(s)) fail("expected '" + std::string(s) + "', got " + shown());
  }
  void expect_name(std::string_view s) {
    if (!skip_name(s)) fail("expected '" + std::string(s) + "', got " + shown());
  }
  std::string some_name() {
    if (now().kind != jinja_token_kind::name) fail("expected a name, got " + shown());
    return take().text;
  }
  void expect(jinja_token_kind kind, const char* what) {
    if (now().kind != kind) fail("expected '" + std::string(what) + "', got " + shown());
    take();
  }

  jinja_node node(jinja_op op, std::string text = {}, std::vector<jinja_node> parts = {}) const {
    jinja_node n{op, now().line, 1, std::move(text), {}, std::move(parts)};
    for (const jinja_node& p : n.parts) n.depth = (std::max)(n.depth, p.depth + 1);
    if (n.depth > most_depth) fail("what is nested in more than " + std::to_string(most_depth) + " levels");
    return n;
  }
  jinja_node node(jinja_op op, std::string text, jinja_node a) const {
    std::vector<jinja_node> parts;
    parts.push_back(std::move(a));
    return node(op, std::move(text), std::move(parts));
  }
  jinja_node node(jinja_op op, std::string text, jinja_node a, jinja_node b) const {
    std::vector<jinja_node> parts;
    parts.push_back(std::move(a));
    parts.push_back(std::move(b));
    return node(op, std::move(text), std::move(parts));
  }
  jinja_node constant(jinja_value v) const {
    jinja_node n = node(jinja_op::constant);
    n.value = std::move(v);
    return n;
  }
  // Counts the levels of the parser's own calls.
  struct level {
    explicit level(jinja_parser& p) : of(&p) {
      if (++p.level_ > most_depth) p.fail("what is nested in more than " + std::to_string(most_depth) + " levels");
    }
    level(const level&) = delete;
    level& operator=(const level&) = delete;
    ~level() { --of->level_; }
    jinja_parser* of;
  };

  // ---- statements ----
  // Up to a block whose name is one of `ends`, of which the name is not taken.
  jinja_node body(names ends) {
    const level deeper(*this);
    std::vector<jinja_node> all;
    while (true) {
      switch (now().kind) {
        case jinja_token_kind::end:
          if (ends.size() > 0) fail("the template ends where '" + std::string(*(ends.end() - 1)) + "' is expected");
          return node(jinja_op::block, "", std::move(all));
        case jinja_token_kind::data:
          all.push_back(node(jinja_op::data, now().text));
          take();
          break;
        case jinja_token_kind::output_begin: {
          take();
          jinja_node e = tuple();
          all.push_back(node(jinja_op::output, "", std::move(e)));
          expect(jinja_token_kind::output_end, "}}");
          break;
        }
        case jinja_token_kind::block_begin:
          take();
          for (const std::string_view end : ends)
            if (is_name(end)) return node(jinja_op::block, "", std::move(all));
          all.push_back(statement());
          break;
        default:
          fail("unexpected " + shown());
      }
    }
  }
  void end_block() { expect(jinja_token_kind::block_end, "%}"); }
  // The body of a block up to its own end, which is taken.
  jinja_node body_until(std::string_view end) {
    end_block();
    jinja_node b = body({end});
    take();
    end_block();
    return b;
  }

  jinja_node statement() {
    const int line = now().line;
    jinja_node n = statement_of(some_name());
    n.line = line;
    return n;
  }
  jinja_node statement_of(const std::string& name) {
    if (name == "if") return condition();
    if (name == "for") return loop();
    if (name == "set") return assignment();
    if (name == "macro") {
      std::string called = some_name();
      std::vector<jinja_node> parts = signature();
      parts.insert(parts.begin(), body_until("endmacro"));
      return node(jinja_op::macro, std::move(called), std::move(parts));
    }
    if (name == "call") {
      std::vector<jinja_node> parts;
      if (is_sign("(")) parts = signature();
      jinja_node call = expression();
      if (call.op != jinja_op::call) fail("expected a call");
      jinja_node b = body_until("endcall");
      parts.insert(parts.begin(), std::move(b));
      jinja_node caller = node(jinja_op::macro, "caller", std::move(parts));
      return node(jinja_op::call_block, "", std::move(call), std::move(caller));
    }
    if (name == "filter") {
      jinja_node f = filters(node(jinja_op::absent), true);
      jinja_node b = body_until("endfilter");
      return node(jinja_op::filter_block, "", std::move(b), std::move(f));
    }
    if (name == "generation") {
      jinja_node b = body_until("endgeneration");
      return node(jinja_op::scoped, "", std::move(b));
    }
    if (name == "with") {
      std::vector<jinja_node> parts;
      while (now().kind != jinja_token_kind::block_end) {
        if (!parts.empty()) expect_sign(",");
        jinja_node target = node(jinja_op::name, some_name());
        expect_sign("=");
        parts.push_back(node(jinja_op::assign, "", std::move(target), expression()));
      }
      jinja_node b = body_until("endwith");
      parts.push_back(std::move(b));
      return node(jinja_op::with, "", std::move(parts));
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail("'" + name + "' outside of a loop");
      end_block();
      return node(name == "break" ? jinja_op::leave : jinja_op::next);
    }
    throw template_error(
        now().line, "there is no statement '" + name +
                        "'; there are if, for, set, macro, call, filter, with, generation, break, continue and raw");
  }
  jinja_node condition() {
    std::vector<jinja_node> parts;  // condition, body, condition, body, ..., else
    while (true) {
      parts.push_back(tuple(false));
      end_block();
      parts.push_back(body({"elif", "else", "endif"}));
      const std::string name = take().text;
      if (name == "elif") continue;
      end_block();
      if (name == "else") {
        parts.push_back(body({"endif"}));
        take();
        end_block();
      }
      return node(jinja_op::condition, "", std::move(parts));
    }
  }
  jinja_node loop() {
    jinja_node to = target();
    expect_name("in");
    std::vector<jinja_node> parts;
    parts.push_back(std::move(to));
    parts.push_back(tuple(false));
    parts.push_back(skip_name("if") ? expression() : node(jinja_op::absent));
    const bool again = skip_name("recursive");
    end_block();
    ++loops_;
    parts.push_back(body({"else", "endfor"}));
    --loops_;
    const bool other = take().text == "else";
    end_block();
    if (other) {
      parts.push_back(body({"endfor"}));
      take();
      end_block();
    }
    return node(jinja_op::loop, again ? "recursive" : "", std::move(parts));
  }
  // A name, a member of a namespace, or several in a tuple.
  jinja_node target() {
    std::vector<jinja_node> all;
    bool several = false;
    do {
      if (!all.empty() && now().kind != jinja_token_kind::name && !is_sign("(")) break;
      if (skip_sign("(")) {
        const level deeper(*this);
        all.push_back(target());
        expect_sign(")");
      } else {
        std::string name = some_name();
        if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None")
          fail("cannot assign to '" + name + "'");
        jinja_node n = node(jinja_op::name, std::move(name));
        all.push_back(skip_sign(".") ? node(jinja_op::attribute, some_name(), std::move(n)) : std::move(n));
      }
      several = is_sign(",") || several;
    } while (skip_sign(","));
    return several ? node(jinja_op::tuple, "", std::move(all)) : std::move(all.front());
  }
  jinja_node assignment() {
    jinja_node to = target();
    if (skip_sign("=")) {
      jinja_node v = tuple();
      end_block();
      return node(jinja_op::assign, "", std::move(to), std::move(v));
    }
    std::vector<jinja_node> parts;
    parts.push_back(std::move(to));
    jinja_node f = filters(node(jinja_op::absent), false);
    parts.push_back(body_until("endset"));
    parts.push_back(std::move(f));
    return node(jinja_op::assign_block, "", std::move(parts));
  }
  // Parameters: keywords whose part, if any, is the default.
  std::vector<jinja_node> signature() {
    std::vector<jinja_node> out;
    expect_sign("(");
    while (!is_sign(")")) {
      if (!out.empty()) expect_sign(",");
      if (is_sign(")")) break;
      std::string name = some_name();
      if (skip_sign("="))
        out.push_back(node(jinja_op::keyword, std::move(name), expression()));
      else if (!out.empty() && !out.back().parts.empty())
        fail("a parameter without a default follows one with a default");
      else
        out.push_back(node(jinja_op::keyword, std::move(name)));
    }
    expect_sign(")");
    return out;
  }

  // ---- expressions ----
  bool tuple_ends() const {
    return now().kind == jinja_token_kind::output_end || now().kind == jinja_token_kind::block_end || is_sign(")");
  }
  jinja_node tuple(bool conditions = true, bool parentheses = false) {
    std::vector<jinja_node> all;
    bool several = false;
    while (true) {
      if (!all.empty()) expect_sign(",");
      if (tuple_ends()) break;
      all.push_back(conditions ? expression() : either());
      if (!is_sign(",")) break;
      several = true;
    }
    if (!several && !all.empty()) return std::move(all.front());
    if (!several && !parentheses) fail("expected an expression, got " + shown());
    return node(jinja_op::tuple, "", std::move(all));
  }
  jinja_node expression() {
    const level deeper(*this);
    jinja_node e = either();
    while (skip_name("if")) {
      std::vector<jinja_node> parts;
      parts.push_back(either());
      parts.push_back(std::move(e));
      parts.push_back(skip_name("else") ? expression() : node(jinja_op::absent));
      e = node(jinja_op::choose, "", std::move(parts));
    }
    return e;
  }
  jinja_node either() {
    jinja_node e = both();
    while (skip_name("or")) e = node(jinja_op::either, "", std::move(e), both());
    return e;
  }
  jinja_node both() {
    jinja_node e = inverted();
    while (skip_name("and")) e = node(jinja_op::both, "", std::move(e), inverted());
    return e;
  }
  jinja_node inverted() {
    if (!is_name("not")) return comparison();
    const level deeper(*this);
    take();
    return node(jinja_op::invert, "", inverted());
  }
  jinja_node comparison() {
    jinja_node e = sum();
    std::vector<jinja_node> parts;  // keywords: operator and operand
    while (true) {
      std::string op;
      if (now().kind == jinja_token_kind::sign && (now().text == "==" || now().text == "!=" || now().text == "<" ||
                                                   now().text == "<=" || now().text == ">" || now().text == ">="))
        op = take().text;
      else if (skip_name("in"))
        op = "in";
      else if (is_name("not") && ahead().kind == jinja_token_kind::name && ahead().text == "in") {
        take();
        take();
        op = "not in";
      } else {
        break;
      }
      parts.push_back(node(jinja_op::keyword, std::move(op), sum()));
    }
    if (parts.empty()) return e;
    parts.insert(parts.begin(), std::move(e));
    return node(jinja_op::compare, "", std::move(parts));
  }
  jinja_node sum() {
    jinja_node e = joined();
    while (is_sign("+") || is_sign("-")) {
      std::string op = take().text;
      e = node(jinja_op::binary, std::move(op), std::move(e), joined());
    }
    return e;
  }
  jinja_node joined() {
    jinja_node e = product();
    if (!is_sign("~")) return e;
    std::vector<jinja_node> all;
    all.push_back(std::move(e));
    while (skip_sign("~")) all.push_back(product());
    return node(jinja_op::concatenate, "", std::move(all));
  }
  jinja_node product() {
    jinja_node e = power();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
      std::string op = take().text;
      e = node(jinja_op::binary, std::move(op), std::move(e), power());
    }
    return e;
  }
  jinja_node power() {
    jinja_node e = unary(true);
    while (skip_sign("**")) e = node(jinja_op::binary, "**", std::move(e), unary(true));
    return e;
  }
  jinja_node unary(bool with_filters) {
    const level deeper(*this);
    jinja_node e;
    if (skip_sign("-"))
      e = node(jinja_op::negate, "", unary(false));
    else if (skip_sign("+"))
      e = node(jinja_op::plus, "", unary(false));
    else
      e = primary();
    e = postfix(std::move(e));
    return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
  }
  jinja_node primary() {
    const jinja_token t = now();
    switch (t.kind) {
      case jinja_token_kind::name:
        take();
        if (t.text == "true" || t.text == "True") return constant(true);
        if (t.text == "false" || t.text == "False") return constant(false);
        if (t.text == "none" || t.text == "None") return constant(jinja_value::none());
        return node(jinja_op::name, t.text);
      case jinja_token_kind::text: {
        std::string text;
        while (now().kind == jinja_token_kind::text) text += take().text;
        return constant(std::move(text));
      }
      case jinja_token_kind::whole: {
        take();
        std::int64_t i = 0;
        const auto got = std::from_chars(t.text.data(), t.text.data() + t.text.size(), i);
        if (got.ec != std::errc() || got.ptr != t.text.data() + t.text.size())
          fail("a number beyond 64 bits: " + t.text);
        return constant(i);
      }
      case jinja_token_kind::real: {
        take();
        double d = 0;
        std::from_chars(t.text.data(), t.text.data() + t.text.size(), d);
        return constant(d);
      }
      default:
        break;
    }
    if (skip_sign("(")) {
      jinja_node e = tuple(true, true);
      expect_sign(")");
      return e;
    }
    if (skip_sign("[")) {
      std::vector<jinja_node> all;
      while (!is_sign("]")) {
        if (!all.empty()) expect_sign(",");
        if (is_sign("]")) break;
        all.push_back(expression());
      }
      expect_sign("]");
      return node(jinja_op::list, "", std::move(all));
    }
    if (skip_sign("{")) {
      std::vector<jinja_node> all;  // name, value, name, value
      while (!is_sign("}")) {
        if (!all.empty()) expect_sign(",");
        if (is_sign("}")) break;
        all.push_back(expression());
        expect_sign(":");
        all.push_back(expression());
      }
      expect_sign("}");
      return node(jinja_op::dict, "", std::move(all));
    }
    fail("unexpected " + shown());
  }
  jinja_node postfix(jinja_node e) {
    while (true) {
      if (skip_sign(".")) {
        if (now().kind == jinja_token_kind::whole) {
          jinja_node index = primary();
          e = node(jinja_op::item, "", std::move(e), std::move(index));
        } else {
          std::string name = some_name();
          e = node(jinja_op::attribute, std::move(name), std::move(e));
        }
      } else if (skip_sign("[")) {
        e = subscript(std::move(e));
      } else if (is_sign("(")) {
        e = called(std::move(e));
      } else {
        return e;
      }
    }
  }
  jinja_node subscript(jinja_node e) {
    const auto part = [&]() -> jinja_node {
      return is_sign(":") || is_sign("]") ? node(jinja_op::absent) : expression();
    };
    if (is_sign("]")) fail("expected an index");
    jinja_node first = part();
    if (skip_sign("]")) return node(jinja_op::item, "", std::move(e), std::move(first));
    std::vector<jinja_node> parts;
    parts.push_back(std::move(e));
    parts.push_back(std::move(first));
    expect_sign(":");
    parts.push_back(part());
    parts.push_back(skip_sign(":") ? part() : node(jinja_op::absent));
    expect_sign("]");
    return node(jinja_op::slice, "", std::move(parts));
  }
  // Arguments: expressions, keywords, and what is spread.
  std::vector<jinja_node> arguments() {
    std::vector<jinja_node> out;
    expect_sign("(");
    while (!is_sign(")")) {
      if (!out.empty()) expect_sign(",");
      if (is_sign(")")) break;
      if (skip_sign("*")) {
        out.push_back(node(jinja_op::spread, "", expression()));
      } else if (skip_sign("**")) {
        out.push_back(node(jinja_op::spread_names, "", expression()));
      } else if (now().kind == jinja_token_kind::name && ahead().kind == jinja_token_kind::sign &&
                 ahead().text == "=") {
        std::string name = take().text;
        take();
        out.push_back(node(jinja_op::keyword, std::move(name), expression()));
      } else {
        if (!out.empty() && out.back().op == jinja_op::keyword) fail("an argument follows one with a name");
        out.push_back(expression());
      }
    }
    expect_sign(")");
    return out;
  }
  jinja_node called(jinja_node e) {
    std::vector<jinja_node> parts = arguments();
    parts.insert(parts.begin(), std::move(e));
    return node(jinja_op::call, "", std::move(parts));
  }
  std::string dotted() {
    std::string name = some_name();
    while (skip_sign(".")) name += "." + some_name();
    return name;
  }
  jinja_node filters(jinja_node e, bool begun) {
    while (begun || skip_sign("|")) {
      begun = false;
      std::string name = dotted();
      std::vector<jinja_node> parts;
      if (is_sign("(")) parts = arguments();
      parts.insert(parts.begin(), std::move(e));
      e = node(jinja_op::filter, std::move(name), std::move(parts));
    }
    return e;
  }
  jinja_node filters_and_tests(jinja_node e) {
    while (true) {
      if (is_sign("|")) {
        e = filters(std::move(e), false);
      } else if (skip_name("is")) {
        const bool inverse = skip_name("not");
        std::string name = dotted();
        std::vector<jinja_node> parts;
        const jinja_token& t = now();
        if (is_sign("(")) {
          parts = arguments();
        } else if (t.kind == jinja_token_kind::text || t.kind == jinja_token_kind::whole ||
                   t.kind == jinja_token_kind::real || is_sign("[") || is_sign("{") ||
                   (t.kind == jinja_token_kind::name && t.text != "else" && t.text != "or" && t.text != "and")) {
          if (t.text == "is" && t.kind == jinja_token_kind::name) fail("tests with 'is' cannot be chained");
          parts.push_back(postfix(primary()));
        }
        parts.insert(parts.begin(), std::move(e));
        e = node(jinja_op::test, std::move(name), std::move(parts));
        if (inverse) e = node(jinja_op::invert, "", std::move(e));
      } else if (is_sign("(")) {
        e = called(std::move(e));
      } else {
        return e;
      }
    }
  }

  std::vector<jinja_token> tokens_{};
  std::size_t at_ = 0;
  int level_ = 0, loops_ = 0;
};

}  // namespace heddle::inline v0::io::detail
