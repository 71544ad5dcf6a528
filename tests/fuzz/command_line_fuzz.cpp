// The command line of gpt2_train, its windows and its files of links: numbers that are accepted are in their ranges.
#if __has_include(<CLI/CLI.hpp>)
#define HEDDLE_EXAMPLE_ONE_UNIT
#include <heddle/io.hpp>
#include <heddle/model.hpp>
#include <heddle/train.hpp>

#include "../../examples/gpt2_train/memory.hpp"
#include "../../examples/gpt2_train/settings.hpp"
#include "../../examples/gpt2_train/ways.hpp"
#include "../../examples/gpt2_train/windows.hpp"

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(command_line) {
  namespace hd = heddle;
  static const fuzz::memory_file file;
  fuzz::bytes in(data, size);
  const int how = in.below(4);
  if (how == 0) {
    fuzz::accepted([&] {
      const windows::free_time w = windows::parse(in.rest(), "dp=2");
      fuzz::require(w.start >= 0 && w.start < w.end && w.bytes >= 0, "a window has a length");
    });
    return;
  }
  if (how == 1) {
    const int nodes = 1 + in.below(9);
    file.fill(in.rest());
    fuzz::accepted([&] {
      for (const double s : ways::message_seconds(file.path(), nodes, 1e6))
        fuzz::require(s >= 0, "time passes forwards");
    });
    return;
  }
  // A word of the command line per line.
  std::vector<std::string> lines{"gpt2_train"};
  std::string_view rest = in.rest().substr(0, in.rest().find('\0'));
  while (!rest.empty()) lines.emplace_back(hd::io::detail::next_field(rest, '\n'));
  std::vector<const char*> argv;
  for (const std::string& line : lines) {
    if (line == "--help" || line == "--version" || line == "-h") return;  // which print
    argv.push_back(line.c_str());
  }
  settings s;
  tool::command_line app("fuzz");
  declare(app, s);
  try {
    fuzz::require(app.parse(static_cast<int>(argv.size()), argv.data()), "there is work");
    require_together(s);
  } catch (const tool::usage_error& e) {
    fuzz::require(std::string_view(e.what()).rfind("heddle: ", 0) == 0, "a sentence of ours");
    return;
  }
  fuzz::require(s.layers >= 0 && s.layers <= 65536 && s.width >= 1 && s.width <= 1048576, "sizes are in their ranges");
  fuzz::require(s.batch >= 1 && s.batch <= 1048576 && s.steps >= 0 && s.microbatches >= 1,
                "and so are numbers of steps");
  fuzz::require(s.timeout >= 0 && s.temperature >= 0 && s.forward_ms > 0, "and times");
  const hd::model::gpt2_config c{.layers = s.layers, .heads = s.heads, .width = s.width, .context = s.context};
  fuzz::accepted([&] {
    c.validate();
    fuzz::require(c.parameters() >= 0, "a model's parameters are counted by 64 bits");
  });
  fuzz::accepted([&] { memory::check(s, c, 2, 8, 2, 2); });
  if (s.microbatches <= 16)
    fuzz::accepted(
        [&] { fuzz::require(ways::named(s, 2).stages(2) <= std::max(s.layers + 2, 32), "stages are bounded"); });
}
#endif
