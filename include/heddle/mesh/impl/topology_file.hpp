// heddle/mesh/impl/topology_file.hpp: bodies of heddle/mesh/topology_file.hpp.
#pragma once

#include <heddle/mesh/topology_file.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/topology.hpp>

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE topology topology_reader::read() {
  bool began = false;
  while (next()) {
    if (!began && (words_.size() != 3 || words_[0] != "heddle" || words_[1] != "topology" || words_[2] != "1"))
      fail("the first line of a topology is \"heddle topology 1\"");
    if (began) checked_directive();
    began = true;
  }
  if (!began) fail("the text is empty; the first line of a topology is \"heddle topology 1\"");
  if (!counted_) fail("the number of ranks is missing: ranks <number>");
  return std::move(result_);
}

HEDDLE_INLINE void topology_reader::checked_directive() {
  try {
    directive();
  } catch (const mesh_error& refused) {
    if (failed()) throw;
    std::string_view why = refused.what();  // what the topology itself says
    why.remove_prefix(std::string_view("heddle: ").size());
    fail(why);
  }
}

HEDDLE_INLINE void topology_reader::directive() {
  const std::string_view what = words_[0];
  if (what == "ranks") {
    expect(2, "ranks <number>");
    if (counted_) fail("the number of ranks is given twice");
    const int ranks = integer(1);
    if (ranks > most_ranks_in_text) {
      fail(text_of({ranks, " ranks are too many: a topology's text has at most ", most_ranks_in_text}));
    }
    result_ = topology(ranks);
    counted_ = true;
  } else if (!counted_) {
    fail("the number of ranks comes first: ranks <number>");
  } else if (what == "forward") {
    expect(3, "forward ranks yes|no");
    if (words_[1] != "ranks" || (words_[2] != "yes" && words_[2] != "no")) fail("expected forward ranks yes|no");
    result_.ranks_forward(words_[2] == "yes");
  } else if (what == "place") {
    expect(12, "place <rank> gpu <n> node <n> rail <n> pod <n> nic <kind>");
    constexpr std::string_view names[] = {"gpu", "node", "rail", "pod", "nic"};
    for (std::size_t i = 0; i < 5; ++i)
      if (words_[2 + 2 * i] != names[i]) fail("expected place <rank> gpu <n> node <n> rail <n> pod <n> nic <kind>");
    result_.place(integer(1), {integer(3), integer(5), integer(7), integer(9), link_kind_of(11)});
  } else if (what == "vertex") {
    expect(3, "vertex <number> nic|switch|cpu");
    if (integer(1) != result_.vertices()) {
      std::string text = "the next vertex is number ";
      text += std::to_string(result_.vertices());
      fail(text);
    }
    result_.add_vertex(static_cast<vertex_kind>(position(2, vertex_kind_names, "kind of vertex")));
  } else if (what == "link" || what == "both") {
    expect(8, "link|both <from> <to> seconds <latency> bytes_per_second <bandwidth> <kind>");
    if (words_[3] != "seconds" || words_[5] != "bytes_per_second")
      fail("expected link|both <from> <to> seconds <latency> bytes_per_second <bandwidth> <kind>");
    const link l{integer(1), integer(2), number(4), number(6), link_kind_of(7)};
    if (what == "both")
      result_.add_both(l);
    else
      result_.add_link(l);
  } else {
    fail(text_of({"\"", what, "\" is none of ranks, forward, place, vertex, link, both"}));
  }
}

}  // namespace detail
}  // namespace heddle::inline v0

namespace heddle::inline v0 {

HEDDLE_INLINE std::string to_text(const topology& t) {
  std::string text = "heddle topology 1\nranks ";
  text += std::to_string(t.ranks());
  text += t.ranks_forward() ? "\nforward ranks yes\n" : "\nforward ranks no\n";
  for (int r = 0; r < t.ranks(); ++r) {
    const rank_place& p = t.place(r);
    text.append("place ").append(std::to_string(r));
    text.append(" gpu ").append(std::to_string(p.gpu)).append(" node ").append(std::to_string(p.node));
    text.append(" rail ").append(std::to_string(p.rail)).append(" pod ").append(std::to_string(p.pod));
    text.append(" nic ").append(to_string(p.nic)).append("\n");
  }
  for (int v = t.ranks(); v < t.vertices(); ++v)
    text.append("vertex ").append(std::to_string(v)).append(" ").append(to_string(t.kind(v))).append("\n");
  for (std::size_t i = 0; i < t.links().size(); ++i) {
    const link& l = t.links()[i];
    const bool both =
        i + 1 < t.links().size() && t.links()[i + 1] == link{l.to, l.from, l.seconds, l.bytes_per_second, l.kind};
    text.append(both ? "both " : "link ").append(std::to_string(l.from)).append(" ").append(std::to_string(l.to));
    text.append(" seconds ");
    detail::append_number(text, l.seconds);
    text.append(" bytes_per_second ");
    detail::append_number(text, l.bytes_per_second);
    text.append(" ").append(to_string(l.kind)).append("\n");
    if (both) ++i;
  }
  return text;
}

HEDDLE_INLINE void save_topology(const topology& t, const std::string& path) {
  const std::string text = to_text(t);
  const file_size_signal_off no_signal;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) good = std::fclose(file) == 0 && good;
  if (!good) throw io_error("heddle: cannot write the topology to " + path);
}

HEDDLE_INLINE topology load_topology(const std::string& path) {
  struct close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, close> file(std::fopen(path.c_str(), "rb"));
  std::string text;
  char part[4096];
  while (file) {
    const std::size_t got = std::fread(part, 1, sizeof part, file.get());
    text.append(part, got);
    if (got < sizeof part) break;
  }
  if (!file || std::ferror(file.get()) != 0) throw io_error("heddle: cannot read a topology from " + path);
  return parse_topology(text, path);
}

}  // namespace heddle::inline v0
