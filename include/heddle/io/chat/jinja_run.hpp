// heddle/io/chat/jinja_run.hpp: runs the statements of a chat template in bounded steps and memory.
#pragma once

#include <heddle/io/chat/jinja_filters.hpp>
#include <heddle/io/chat/jinja_parse.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// Names and values: of a loop's turn, of a macro, of the template.
struct jinja_scope {
  std::shared_ptr<jinja_scope> outer{};
  std::vector<std::pair<std::string, jinja_value>> names{};
};

class jinja_run : private jinja_library {
 public:
  jinja_run(std::time_t now, const chat_template_limits& limits)
      : jinja_library(limits.steps, limits.bytes), now_(now) {}
  jinja_run(const jinja_run&) = delete;
  jinja_run& operator=(const jinja_run&) = delete;
  ~jinja_run() override {  // namespaces and macros may hold each other
    for (const auto& o : spaces_) o->members.clear();
    for (const auto& s : closures_) s->names.clear();
  }

  // `generated`: gets begin and end of what statements `generation` have made of the text.
  std::string text_of(const jinja_node& root, const nlohmann::ordered_json& data,
                      std::vector<std::pair<std::size_t, std::size_t>>* generated = nullptr) {
    try {
      auto given = std::make_shared<jinja_scope>();
      for (const char* name : {"range", "namespace", "dict", "raise_exception", "strftime_now"})
        given->names.emplace_back(name, jinja_function(name));
      for (const auto& [name, value] : data.items()) assign(*given, name, to_jinja(value));
      scope_ = std::make_shared<jinja_scope>();
      scope_->outer = std::move(given);
      std::string out;
      generated_ = generated;
      whole_ = &out;
      run(root, out);
      return out;
    } catch (const io_error& e) {
      throw template_error(line_, e.what());
    }
  }

 private:
  enum class flow { on, leave, next };

  struct deeper {
    explicit deeper(jinja_run& r) : of(&r) {
      if (++r.depth_ > 600) throw io_error("calls and expressions in more than 600 levels");
    }
    deeper(const deeper&) = delete;
    deeper& operator=(const deeper&) = delete;
    ~deeper() { --of->depth_; }
    jinja_run* of;
  };
  // A scope within the present one, or within that of a macro.
  struct inner {
    inner(jinja_run& r, std::shared_ptr<jinja_scope> outer) : of(&r), before(r.scope_) {
      r.scope_ = std::make_shared<jinja_scope>();
      r.scope_->outer = std::move(outer);
    }
    explicit inner(jinja_run& r) : inner(r, r.scope_) {}
    inner(const inner&) = delete;
    inner& operator=(const inner&) = delete;
    ~inner() { of->scope_ = std::move(before); }
    jinja_run* of;
    std::shared_ptr<jinja_scope> before;
  };

  static void assign(jinja_scope& s, const std::string& name, jinja_value v) {
    for (auto& [n, old] : s.names)
      if (n == name) {
        old = std::move(v);
        return;
      }
    s.names.emplace_back(name, std::move(v));
  }
  const jinja_value* find(const std::string& name) {
    for (const jinja_scope* s = scope_.get(); s != nullptr; s = s->outer.get()) {
      step();
      for (const auto& [n, v] : s->names)
        if (n == name) return &v;
    }
    return nullptr;
  }

  // ---- statements ----
  void add(std::string& out, std::string_view text) {
    made(text.size());
    out += text;
  }
  flow run(const jinja_node& n, std::string& out) {
    const deeper level(*this);
    step();
    if (n.op != jinja_op::block) line_ = n.line;
    switch (n.op) {
      case jinja_op::block:
        for (const jinja_node& one : n.parts)
          if (const flow f = run(one, out); f != flow::on) return f;
        return flow::on;
      case jinja_op::data:
        add(out, n.text);
        return flow::on;
      case jinja_op::output:
        add(out, text(value(n.parts[0])));
        return flow::on;
      case jinja_op::condition:
        return run_condition(n, out);
      case jinja_op::loop:
        return run_loop(n, out);
      case jinja_op::leave:
        return flow::leave;
      case jinja_op::next:
        return flow::next;
      default:
        run_other(n, out);
        return flow::on;
    }
  }
  flow run_condition(const jinja_node& n, std::string& out) {
    std::size_t i = 0;
    for (; i + 1 < n.parts.size(); i += 2)
      if (jinja_truth(value(n.parts[i]))) return run(n.parts[i + 1], out);
    return i < n.parts.size() ? run(n.parts[i], out) : flow::on;
  }
  flow run_loop(const jinja_node& n, std::string& out) {
    if (n.text == "recursive") throw io_error("recursive loops are not supported");
    std::vector<jinja_value> all = items(value(n.parts[1]));
    if (n.parts[2].op != jinja_op::absent) {
      std::vector<jinja_value> chosen;
      for (jinja_value& one : all) {
        const inner scope(*this);
        assign_to(n.parts[0], one);
        if (jinja_truth(value(n.parts[2]))) chosen.push_back(std::move(one));
      }
      all = std::move(chosen);
    }
    if (all.empty() && n.parts.size() > 4) {
      const inner scope(*this);
      return run(n.parts[4], out);
    }
    jinja_value loop;
    loop.kind = jinja_kind::space;
    loop.object = std::make_shared<jinja_object>();
    loop.object->name = "loop";
    loop.object->items = std::move(all);
    for (std::size_t i = 0; i < loop.object->items.size(); ++i) {
      step();
      loop.integer = static_cast<std::int64_t>(i);
      const inner scope(*this);
      scope_->names.emplace_back("loop", loop);
      assign_to(n.parts[0], loop.object->items[i]);
      if (run(n.parts[3], out) == flow::leave) break;
    }
    return flow::on;
  }
  std::string captured(const jinja_node& body) {
    const inner scope(*this);
    std::string out;
    run(body, out);
    return out;
  }
  void run_other(const jinja_node& n, std::string& out) {
    switch (n.op) {
      case jinja_op::assign:
        assign_to(n.parts[0], value(n.parts[1]));
        break;
      case jinja_op::assign_block: {
        jinja_value v = captured(n.parts[1]);
        assign_to(n.parts[0], n.parts[2].op == jinja_op::absent ? std::move(v) : filtered_block(n.parts[2], v));
        break;
      }
      case jinja_op::filter_block:
        add(out, text(filtered_block(n.parts[1], captured(n.parts[0]))));
        break;
      case jinja_op::macro:
        assign(*scope_, n.text, closure(n));
        break;
      case jinja_op::call_block: {
        const jinja_value caller = closure(n.parts[1]);
        jinja_arguments given = arguments(n.parts[0], 1);
        given.names.emplace_back("caller", caller);
        add(out, text(call(value(n.parts[0].parts[0]), given)));
        break;
      }
      case jinja_op::scoped: {
        const std::string body = captured(n.parts[0]);
        if (generated_ != nullptr) {
          if (&out != whole_)
            throw io_error("what 'generation' makes within a macro, a set or a filter has no place in the text yet");
          generated_->emplace_back(out.size(), out.size() + body.size());
        }
        add(out, body);
        break;
      }
      case jinja_op::with: {
        std::vector<jinja_value> values;
        for (std::size_t i = 0; i + 1 < n.parts.size(); ++i) values.push_back(value(n.parts[i].parts[1]));
        const inner scope(*this);
        for (std::size_t i = 0; i < values.size(); ++i) assign(*scope_, n.parts[i].parts[0].text, values[i]);
        run(n.parts.back(), out);
        break;
      }
      default:
        throw io_error("what is no statement");
    }
  }
  jinja_value closure(const jinja_node& macro) {
    jinja_value v = jinja_function(macro.text);
    v.object->macro = &macro;
    v.object->closure = scope_;
    closures_.push_back(scope_);
    return v;
  }
  void assign_to(const jinja_node& target, const jinja_value& v) {
    if (target.op == jinja_op::name) return assign(*scope_, target.text, v);
    if (target.op == jinja_op::attribute) {
      const jinja_value* space = find(target.parts[0].text);
      if (space == nullptr || !space->is(jinja_kind::space) || space->object->name == "loop")
        throw io_error("cannot assign attribute '" + target.text + "': '" + target.parts[0].text + "' is no namespace");
      return set_member(*space->object, target.text, v);
    }
    const std::vector<jinja_value> all = items(v);
    if (all.size() != target.parts.size())
      throw io_error("expected " + std::to_string(target.parts.size()) + " values to unpack, got " +
                     std::to_string(all.size()));
    for (std::size_t i = 0; i < all.size(); ++i) assign_to(target.parts[i], all[i]);
  }
  static void set_member(jinja_object& o, const std::string& name, const jinja_value& v) {
    if (name.starts_with('_')) throw io_error("a namespace takes no name that begins with '_': '" + name + "'");
    for (auto& [k, old] : o.members)
      if (k.str() == name) {
        old = v;
        return;
      }
    o.members.emplace_back(name, v);
  }

  // ---- expressions ----
  jinja_value value(const jinja_node& n) {
    const deeper level(*this);
    step();
    switch (n.op) {
      case jinja_op::constant:
        return n.value;
      case jinja_op::name: {
        const jinja_value* v = find(n.text);
        return v != nullptr ? *v : jinja_value::undefined("'" + n.text + "' is undefined");
      }
      case jinja_op::attribute:
        return attribute(value(n.parts[0]), n.text);
      case jinja_op::item: {
        const jinja_value of = value(n.parts[0]);
        return item(of, value(n.parts[1]));
      }
      case jinja_op::choose:
        if (jinja_truth(value(n.parts[0]))) return value(n.parts[1]);
        if (n.parts[2].op == jinja_op::absent)
          return jinja_value::undefined("the inline if-expression evaluated to false and no else section was defined");
        return value(n.parts[2]);
      case jinja_op::both: {
        jinja_value a = value(n.parts[0]);
        return jinja_truth(a) ? value(n.parts[1]) : a;
      }
      case jinja_op::either: {
        jinja_value a = value(n.parts[0]);
        return jinja_truth(a) ? a : value(n.parts[1]);
      }
      case jinja_op::invert:
        return !jinja_truth(value(n.parts[0]));
      case jinja_op::filter:
        return filtered(n, value(n.parts[0]));
      case jinja_op::test: {
        const jinja_value of = value(n.parts[0]);
        return test(n.text, of, arguments(n, 1));
      }
      case jinja_op::call: {
        const jinja_value f = value(n.parts[0]);
        const jinja_arguments given = arguments(n, 1);
        line_ = n.line;
        return call(f, given);
      }
      default:
        return other_value(n);
    }
  }
  jinja_value other_value(const jinja_node& n) {
    switch (n.op) {
      case jinja_op::list:
      case jinja_op::tuple: {
        std::vector<jinja_value> all;
        for (const jinja_node& one : n.parts) all.push_back(value(one));
        made(64 * all.size());
        return jinja_list(std::move(all), n.op == jinja_op::tuple);
      }
      case jinja_op::dict: {
        std::vector<std::pair<jinja_value, jinja_value>> all;
        for (std::size_t i = 0; i + 1 < n.parts.size(); i += 2) {
          jinja_value k = value(n.parts[i]);
          set_key(all, std::move(k), value(n.parts[i + 1]));
        }
        made(128 * all.size());
        return jinja_dict(std::move(all));
      }
      case jinja_op::slice: {
        const jinja_value of = value(n.parts[0]);
        std::optional<std::int64_t> at[3];
        for (std::size_t i = 0; i < 3; ++i)
          if (n.parts[i + 1].op != jinja_op::absent) {
            const jinja_value v = value(n.parts[i + 1]);
            if (!v.is(jinja_kind::none)) at[i] = whole(v, "slice indices");
          }
        return slice(of, at[0], at[1], at[2].value_or(1));
      }
      case jinja_op::negate:
      case jinja_op::plus: {
        const jinja_value v = value(n.parts[0]);
        require_defined(v);
        if (!v.is_number()) throw io_error("bad operand type for unary -: '" + std::string(jinja_type_name(v)) + "'");
        if (n.op == jinja_op::plus) return v.is_whole() ? jinja_value(v.integer) : v;
        if (v.is_whole() && v.integer == (std::numeric_limits<std::int64_t>::min)())
          throw io_error("a number beyond 64 bits");
        return v.is_whole() ? jinja_value(-v.integer) : jinja_value(-v.real);
      }
      case jinja_op::compare: {
        jinja_value a = value(n.parts[0]);
        for (std::size_t i = 1; i < n.parts.size(); ++i) {
          jinja_value b = value(n.parts[i].parts[0]);
          if (!compare(n.parts[i].text, a, b)) return false;
          a = std::move(b);
        }
        return true;
      }
      case jinja_op::binary: {
        const jinja_value a = value(n.parts[0]);
        const jinja_value b = value(n.parts[1]);
        line_ = n.line;
        return binary(n.text, a, b);
      }
      case jinja_op::concatenate: {
        std::string out;
        for (const jinja_node& one : n.parts) out += text(value(one));
        made(out.size());
        return out;
      }
      default:
        throw io_error("what is no expression");
    }
  }
  // A chain of filters of a block has nothing in the innermost one's place.
  jinja_value filtered_block(const jinja_node& n, const jinja_value& v) {
    return filtered(n, n.parts[0].op == jinja_op::filter ? filtered_block(n.parts[0], v) : v);
  }
  jinja_value filtered(const jinja_node& n, const jinja_value& v) {
    const jinja_arguments given = arguments(n, 1);
    line_ = n.line;
    return filter(n.text, v, given);
  }
  jinja_arguments arguments(const jinja_node& n, std::size_t from) {
    jinja_arguments out;
    for (std::size_t i = from; i < n.parts.size(); ++i) {
      const jinja_node& p = n.parts[i];
      if (p.op == jinja_op::keyword) {
        out.names.emplace_back(p.text, value(p.parts[0]));
      } else if (p.op == jinja_op::spread) {
        for (jinja_value& one : items(value(p.parts[0]))) out.values.push_back(std::move(one));
      } else if (p.op == jinja_op::spread_names) {
        const jinja_value v = value(p.parts[0]);
        if (!v.is(jinja_kind::dict)) throw io_error("what follows ** should be a dictionary");
        for (const auto& [k, one] : v.object->members) out.names.emplace_back(text(k), one);
      } else {
        out.values.push_back(value(p));
      }
    }
    return out;
  }

  jinja_value call(const jinja_value& f, const jinja_arguments& a) override {
    const deeper level(*this);
    require_defined(f);
    if (!f.is(jinja_kind::function)) throw io_error("'" + std::string(jinja_type_name(f)) + "' object is not callable");
    const jinja_object& o = *f.object;
    if (o.macro != nullptr) return call_macro(o, a);
    if (!o.items.empty()) return method(o.name, o.items[0], a);
    if (o.name == "range") return range(a);
    if (o.name == "raise_exception") throw io_error("the template refuses: " + text(a.at(0, "message")));
    if (o.name == "strftime_now") return date(text(a.at(0, "format")));
    return space(o.name, a);
  }
  jinja_value call_macro(const jinja_object& o, const jinja_arguments& a) {
    const jinja_node& m = *o.macro;
    const inner scope(*this, o.closure);
    std::vector<jinja_value> more;
    std::vector<std::pair<jinja_value, jinja_value>> named;
    for (const auto& [name, v] : a.names) {
      bool known = name == "caller";
      for (std::size_t i = 1; i < m.parts.size(); ++i) known = known || m.parts[i].text == name;
      if (known)
        scope_->names.emplace_back(name, v);
      else
        named.emplace_back(name, v);
    }
    for (std::size_t i = 1; i < m.parts.size(); ++i) {
      const jinja_node& p = m.parts[i];
      if (i - 1 < a.values.size())
        assign(*scope_, p.text, a.values[i - 1]);
      else if (a.find(p.text) == nullptr)
        assign(*scope_, p.text,
               p.parts.empty() ? jinja_value::undefined("parameter '" + p.text + "' was not provided")
                               : value(p.parts[0]));
    }
    for (std::size_t i = m.parts.size() - 1; i < a.values.size(); ++i) more.push_back(a.values[i]);
    assign(*scope_, "varargs", jinja_list(std::move(more), true));
    assign(*scope_, "kwargs", jinja_dict(std::move(named)));
    std::string out;
    run(m.parts[0], out);
    return out;
  }
  jinja_value space(const std::string& kind, const jinja_arguments& a) {
    std::vector<std::pair<jinja_value, jinja_value>> members;
    if (!a.values.empty()) {
      if (!a.values[0].is(jinja_kind::dict)) throw io_error(kind + "() takes a dictionary");
      members = a.values[0].object->members;
    }
    for (const auto& [name, v] : a.names) set_key(members, name, v);
    made(128 * members.size() + 64);
    if (kind == "dict") return jinja_dict(std::move(members));
    jinja_value v;
    v.kind = jinja_kind::space;
    v.object = std::make_shared<jinja_object>();
    for (const auto& [k, one] : members) set_member(*v.object, text(k), one);
    spaces_.push_back(v.object);
    return v;
  }
  jinja_value date(const std::string& format) const {
    std::tm day{};
    ::localtime_r(&now_, &day);
    if (format.size() > 200) throw io_error("strftime_now takes at most 200 characters");
    char out[8192];
    // What strftime writes may be empty: a sign in front tells that from what has no room.
    const std::size_t n = std::strftime(out, sizeof out, (" " + format).c_str(), &day);
    return std::string(out + (n > 0 ? 1 : 0), n > 0 ? n - 1 : 0);
  }

  std::time_t now_;
  std::shared_ptr<jinja_scope> scope_{};
  std::vector<std::shared_ptr<jinja_object>> spaces_{};
  std::vector<std::shared_ptr<jinja_scope>> closures_{};
  std::vector<std::pair<std::size_t, std::size_t>>* generated_ = nullptr;
  const std::string* whole_ = nullptr;
  int depth_ = 0, line_ = 1;
};

}  // namespace heddle::inline v0::io::detail
