// heddle/io/torch/pickle.hpp: takes a pickle apart into records; nothing in it is run.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::io {

/// What a place of a pickle holds. An `object` is what Python would make of a class, its arguments and a state; here
/// it stays these three.
enum class pickle_kind : std::uint8_t {
  none,
  boolean,
  integer,
  text,
  bytes,
  global,
  tuple,
  list,
  dict,
  object,
  stored,
  mark
};

/// A pickle as a table of records, of which those that Python would share are shared. The text stays the caller's:
/// numbers and names are read from it again when they are asked for, so that the table has at most about four times
/// its bytes.
/// Errors: `io_error` with the offset for an opcode that is not among those below, a class or function that `allowed`
/// does not name, a stack that does not fit, what is behind the end, and tables beyond that size.
/// Source: Python 3, Lib/pickletools.py, protocols 2 to 5.
class pickle {
 public:
  /// A record: its kind, and where it stands in the text or the table.
  class value {
   public:
    value() = default;
    pickle_kind kind() const noexcept { return static_cast<pickle_kind>(bits_ & 15); }

   private:
    friend class pickle;
    value(pickle_kind kind, std::uint32_t at) : bits_(static_cast<std::uint32_t>(kind) | at << 4) {}
    std::uint32_t at() const noexcept { return bits_ >> 4; }
    std::uint32_t bits_ = 0;
  };
  /// The greatest text, in bytes.
  static constexpr std::int64_t most_bytes = (std::int64_t{1} << 28) - 1;

  /// `allowed`: "module name" of each class and function that may be named; `what` names the file in errors.
  pickle(std::span<const std::byte> text, std::span<const std::string_view> allowed, std::string what)
      : text_(reinterpret_cast<const char*>(text.data()), text.size()), allowed_(allowed), what_(std::move(what)) {
    if (static_cast<std::int64_t>(text.size()) > most_bytes)
      throw io_error("heddle: " + what_ + ": a pickle of " + std::to_string(text.size()) + " bytes, at most " +
                     std::to_string(most_bytes) + " are read");
    most_words_ = text.size() + 4096;
    parse();
  }

  value root() const noexcept { return root_; }
  const std::string& what() const noexcept { return what_; }

  /// Bytes of the table.
  std::int64_t table_bytes() const noexcept {
    return static_cast<std::int64_t>(sizeof(std::uint32_t)) *
           static_cast<std::int64_t>(words_.size() + memo_.size() + stack_.size());
  }

  bool is_none(value v) const noexcept { return v.kind() == pickle_kind::none; }
  bool truth(value v) const {
    require(v, pickle_kind::boolean, "a truth value");
    return v.at() != 0;
  }
  std::int64_t integer(value v) const;
  /// Text, or the bytes of a string of bytes; of a global "module name".
  std::string_view text(value v) const {
    if (v.kind() != pickle_kind::bytes) require(v, pickle_kind::text, "a text");
    return string_at(v.at());
  }
  std::string global(value v) const {
    require(v, pickle_kind::global, "a class");
    return std::string(allowed_[v.at()]);
  }
  /// Items of a tuple, a list or a dict (a key, its value, the next key ...), in order.
  std::vector<value> items(value v) const {
    std::vector<value> all;
    if (v.kind() != pickle_kind::list && v.kind() != pickle_kind::dict) {
      require(v, pickle_kind::tuple, "a tuple");
      for (std::uint32_t i = 0; i < words_[v.at()]; ++i) all.push_back(of_bits(words_[v.at() + 1 + i]));
      return all;
    }
    for (std::uint32_t segment = words_[v.at()]; segment != 0; segment = words_[segment + 1])
      for (std::uint32_t i = 0; i < words_[segment]; ++i) all.push_back(of_bits(words_[segment + 2 + i]));
    return all;
  }
  /// What an object is made of: its class or function, its arguments, and the state given to it afterwards (none:
  /// none).
  value object_class(value v) const { return part(v, 0); }
  value object_arguments(value v) const { return part(v, 1); }
  value object_state(value v) const { return part(v, 2); }
  /// What stands for data kept beside the pickle (a persistent id).
  value stored_id(value v) const {
    require(v, pickle_kind::stored, "a reference to stored data");
    return of_bits(words_[v.at()]);
  }
  /// The value of a text key in a dict, the last where it comes twice; none without.
  value find(value dict, std::string_view key) const {
    require(dict, pickle_kind::dict, "a dict");
    value found;
    const auto all = items(dict);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2)
      if (all[i].kind() == pickle_kind::text && string_at(all[i].at()) == key) found = all[i + 1];
    return found;
  }
  /// Errors: `io_error`, always: what was expected, and what is there.
  [[noreturn]] void refuse(value v, const std::string& expected) const {
    throw io_error("heddle: " + what_ + ": expected " + expected + ", got " + describe(v));
  }

 private:
  static value of_bits(std::uint32_t bits) {
    value v;
    v.bits_ = bits;
    return v;
  }
  void require(value v, pickle_kind kind, const char* expected) const {
    if (v.kind() != kind) refuse(v, expected);
  }
  value part(value v, std::uint32_t which) const {
    require(v, pickle_kind::object, "an object");
    return of_bits(words_[v.at() + which]);
  }
  std::string describe(value v) const;
  std::string_view string_at(std::uint32_t at) const;

  // ---- parsing
  [[noreturn]] void fail(const std::string& what) const {
    throw io_error("heddle: " + what_ + ", offset " + std::to_string(opcode_) + ": " + what);
  }
  std::uint64_t number(std::size_t at, std::size_t bytes) const noexcept {
    std::uint64_t n = 0;
    for (std::size_t i = bytes; i-- > 0;) n = n << 8 | static_cast<unsigned char>(text_[at + i]);
    return n;
  }
  std::uint64_t take(std::size_t bytes) {
    if (bytes > text_.size() - at_) fail("the file ends early");
    at_ += bytes;
    return number(at_ - bytes, bytes < 8 ? bytes : 8);
  }
  void skip(std::uint64_t bytes) {
    if (bytes > text_.size() - at_) fail("the file ends early");
    at_ += static_cast<std::size_t>(bytes);
  }
  std::string_view line() {
    const auto end = text_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line without an end");
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }
  void require_room(std::size_t more) const {
    if (words_.size() + memo_.size() + stack_.size() + more > most_words_)
      fail("more records than a pickle of " + std::to_string(text_.size()) + " bytes that Python wrote has");
  }
  void push(value v) {
    require_room(1);
    stack_.push_back(v.bits_);
  }
  value pop() {
    if (stack_.empty()) fail("an empty stack");
    const value v = of_bits(stack_.back());
    if (v.kind() == pickle_kind::mark) fail("a mark in the place of a value");
    stack_.pop_back();
    return v;
  }
  value top() const {
    if (stack_.empty()) fail("an empty stack");
    const value v = of_bits(stack_.back());
    if (v.kind() == pickle_kind::mark) fail("a mark in the place of a value");
    return v;
  }
  std::size_t last_mark() const {
    for (std::size_t i = stack_.size(); i-- > 0;)
      if (of_bits(stack_[i]).kind() == pickle_kind::mark) return i;
    fail("no mark on the stack");
  }
  std::uint32_t add(std::initializer_list<std::uint32_t> words) {
    require_room(words.size());
    const auto at = static_cast<std::uint32_t>(words_.size());
    words_.insert(words_.end(), words);
    return at;
  }
  // Puts values [first, end of the stack) behind what a container has, and takes them from the stack.
  void append(value to, std::size_t first) {
    const auto count = static_cast<std::uint32_t>(stack_.size() - first);
    if (count == 0) return;
    const std::uint32_t segment = add({count, 0});
    require_room(count);
    for (std::size_t i = first; i < stack_.size(); ++i) words_.push_back(stack_[i]);
    stack_.resize(first);
    std::uint32_t& last = words_[to.at() + 1];
    (last == 0 ? words_[to.at()] : words_[last + 1]) = segment;
    last = segment;
  }
  void make_tuple(std::size_t first) {
    if (first > stack_.size()) fail("an empty stack");
    for (std::size_t i = first; i < stack_.size(); ++i)
      if (of_bits(stack_[i]).kind() == pickle_kind::mark) fail("a mark in the place of a value");
    const auto count = static_cast<std::uint32_t>(stack_.size() - first);
    require_room(count + 1);
    const std::uint32_t at = add({count});
    for (std::size_t i = first; i < stack_.size(); ++i) words_.push_back(stack_[i]);
    stack_.resize(first);
    push(value(pickle_kind::tuple, at));
  }
  void make_tuple_of(std::size_t count) {
    if (count > stack_.size()) fail("an empty stack");
    make_tuple(stack_.size() - count);
  }
  void append_behind_mark(pickle_kind kind) {
    const std::size_t mark = last_mark();
    if (mark == 0) fail("an empty stack");
    const value to = of_bits(stack_[mark - 1]);
    const bool is_object = kind == pickle_kind::dict && to.kind() == pickle_kind::object;  // as at SETITEM
    if (to.kind() != kind && !is_object) fail("items for what takes none");
    if (kind == pickle_kind::dict && (stack_.size() - mark) % 2 == 0) fail("a key without a value");
    if (is_object) return stack_.resize(mark);
    append(to, mark + 1);
    stack_.pop_back();
  }
  void push_global(std::string_view module, std::string_view name) {
    for (std::size_t i = 0; i < allowed_.size(); ++i) {
      const std::string_view a = allowed_[i];
      if (a.size() == module.size() + 1 + name.size() && a.starts_with(module) && a[module.size()] == ' ' &&
          a.ends_with(name))
        return push(value(pickle_kind::global, static_cast<std::uint32_t>(i)));
    }
    fail("it names " + shown_name(std::string(module) + "." + std::string(name)) +
         ", which no file of this kind needs: nothing of a pickle is run here, but it is not read either");
  }
  void make_object() {
    const value arguments = pop(), of = pop();
    if (of.kind() != pickle_kind::global) fail("an object of what is no class");
    if (arguments.kind() != pickle_kind::tuple) fail("arguments that are no tuple");
    push(value(pickle_kind::object, add({of.bits_, arguments.bits_, 0})));
  }
  void remember(std::uint64_t number) {
    const value v = top();
    if (number > memo_.size()) fail("memo " + std::to_string(number) + " comes before those below it");
    require_room(1);
    if (number == memo_.size())
      memo_.push_back(v.bits_);
    else
      memo_[static_cast<std::size_t>(number)] = v.bits_;
  }
  void recall(std::uint64_t number) {
    if (number >= memo_.size()) fail("memo " + std::to_string(number) + " of " + std::to_string(memo_.size()));
    push(of_bits(memo_[static_cast<std::size_t>(number)]));
  }
  void parse();
  bool step(unsigned char opcode);

  std::string_view text_;
  std::span<const std::string_view> allowed_;
  std::string what_;
  std::size_t at_ = 0, opcode_ = 0, most_words_ = 0;
  std::vector<std::uint32_t> words_, stack_, memo_;
  value root_;
};

inline std::int64_t pickle::integer(value v) const {
  require(v, pickle_kind::integer, "a whole number");
  const std::size_t at = v.at();
  switch (text_[at]) {
    case 'K':
      return static_cast<std::int64_t>(number(at + 1, 1));
    case 'M':
      return static_cast<std::int64_t>(number(at + 1, 2));
    case 'J':
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(number(at + 1, 4)));
    default: {  // LONG1, of at most 8 bytes
      const auto bytes = static_cast<std::size_t>(static_cast<unsigned char>(text_[at + 1]));
      if (bytes == 0) return 0;
      const std::uint64_t n = number(at + 2, bytes);
      const auto unused = static_cast<int>(64 - 8 * bytes);
      return static_cast<std::int64_t>(n << unused) >> unused;
    }
  }
}

inline std::string_view pickle::string_at(std::uint32_t at) const {
  std::size_t width = 4;
  const char opcode = text_[at];
  if (opcode == '\x8c' || opcode == 'C' || opcode == 'U') width = 1;
  if (opcode == '\x8d' || opcode == '\x8e') width = 8;
  return text_.substr(at + 1 + width, static_cast<std::size_t>(number(at + 1, width)));
}

inline std::string pickle::describe(value v) const {
  switch (v.kind()) {
    case pickle_kind::none:
      return "None";
    case pickle_kind::boolean:
      return v.at() != 0 ? "True" : "False";
    case pickle_kind::integer:
      return std::to_string(integer(v));
    case pickle_kind::text:
      return "the text '" + shown_name(std::string(string_at(v.at()))) + "'";
    case pickle_kind::bytes:
      return "bytes";
    case pickle_kind::global:
      return "the name " + global(v);
    case pickle_kind::tuple:
      return "a tuple";
    case pickle_kind::list:
      return "a list";
    case pickle_kind::dict:
      return "a dict";
    case pickle_kind::object:
      return "an object of " + global(object_class(v));
    case pickle_kind::stored:
      return "stored data";
    case pickle_kind::mark:
      break;
  }
  return "a mark";
}

inline void pickle::parse() {
  words_.push_back(0);  // no segment begins at 0
  for (;;) {
    opcode_ = at_;
    if (at_ == text_.size()) fail("the pickle has no end");
    if (!step(static_cast<unsigned char>(text_[at_++]))) break;
  }
  if (stack_.size() != 1) fail("the pickle ends with " + std::to_string(stack_.size()) + " values, one was expected");
  root_ = pop();
  if (at_ != text_.size()) fail(std::to_string(text_.size() - at_) + " bytes behind the end of the pickle");
}

// One opcode. False at the end.
inline bool pickle::step(unsigned char opcode) {
  const auto here = static_cast<std::uint32_t>(opcode_);
  switch (opcode) {
    case 0x80:  // PROTO
      if (const auto version = take(1); version < 2 || version > 5)
        fail("protocol " + std::to_string(version) + ", 2 to 5 are read");
      return true;
    case 0x95:  // FRAME
      if (take(8) > text_.size() - at_) fail("a frame beyond the end of the file");
      return true;
    case '.':
      return false;
    case 'N':
      push({});
      return true;
    case 0x88:
    case 0x89:  // NEWTRUE, NEWFALSE
      push(value(pickle_kind::boolean, opcode == 0x88));
      return true;
    case 'K':
    case 'M':
    case 'J':
      take(opcode == 'K' ? 1 : opcode == 'M' ? 2 : 4);
      push(value(pickle_kind::integer, here));
      return true;
    case 0x8a: {  // LONG1
      const auto bytes = take(1);
      if (bytes > 8) fail("a number of " + std::to_string(bytes) + " bytes, at most 8 are read");
      skip(bytes);
      push(value(pickle_kind::integer, here));
      return true;
    }
    case 0x8c:
    case 'X':
    case 0x8d:  // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
      skip(take(opcode == 0x8c ? 1 : opcode == 'X' ? 4 : 8));
      push(value(pickle_kind::text, here));
      return true;
    case 'C':
    case 'U':
    case 'B':
    case 0x8e:  // SHORT_BINBYTES, SHORT_BINSTRING, BINBYTES, BINBYTES8
      skip(take(opcode == 'B' ? 4 : opcode == 0x8e ? 8 : 1));
      push(value(pickle_kind::bytes, here));
      return true;
    case 'c': {  // GLOBAL
      const auto module = line();
      push_global(module, line());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const value name = pop(), module = pop();
      if (name.kind() != pickle_kind::text || module.kind() != pickle_kind::text) fail("a class whose name is no text");
      push_global(string_at(module.at()), string_at(name.at()));
      return true;
    }
    case 'R':
    case 0x81:  // REDUCE, NEWOBJ
      make_object();
      return true;
    case 'b': {  // BUILD
      const value state = pop(), to = top();
      if (to.kind() != pickle_kind::object) fail("a state for what is no object");
      words_[to.at() + 2] = state.bits_;
      return true;
    }
    case 'Q':  // BINPERSID
      push(value(pickle_kind::stored, add({pop().bits_})));
      return true;
    case '(':
      push(value(pickle_kind::mark, 0));
      return true;
    case ')':
      make_tuple_of(0);
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      make_tuple_of(static_cast<std::size_t>(opcode - 0x84));
      return true;
    case 't': {
      const std::size_t mark = last_mark();
      stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(mark));
      make_tuple(mark);
      return true;
    }
    case ']':
    case '}':
      push(value(opcode == ']' ? pickle_kind::list : pickle_kind::dict, add({0, 0})));
      return true;
    case 'a': {  // APPEND
      const value item = pop(), to = top();
      if (to.kind() != pickle_kind::list) fail("items for what takes none");
      push(item);
      append(to, stack_.size() - 1);
      return true;
    }
    case 's': {  // SETITEM
      const value item = pop(), key = pop(), to = top();
      if (to.kind() != pickle_kind::dict && to.kind() != pickle_kind::object) fail("items for what takes none");
      if (to.kind() == pickle_kind::object) return true;  // of an OrderedDict, of which nothing is read
      push(key);
      push(item);
      append(to, stack_.size() - 2);
      return true;
    }
    case 'e':
      append_behind_mark(pickle_kind::list);
      return true;
    case 'u':
      append_behind_mark(pickle_kind::dict);
      return true;
    case 0x94:
      remember(memo_.size());
      return true;
    case 'q':
    case 'r':
      remember(take(opcode == 'q' ? 1 : 4));
      return true;
    case 'h':
    case 'j':
      recall(take(opcode == 'h' ? 1 : 4));
      return true;
    case '0':
      pop();
      return true;
    default:
      fail("the opcode " + std::to_string(static_cast<int>(opcode)) + " is not read");
  }
}

}  // namespace heddle::inline v0::io
