// Draws every pipeline schedule: the pictures and the table of docs/schedules.md. Or one, of any size:
// draw_schedules [folder [schedule [ranks [microbatches]]]]
// Or one derived from another by passes, in letters and compared with all named ones:
// draw_schedules --derive "gpipe | limit_live p-r | split_backward | delay_weights r" [ranks [microbatches]]
// run: images
// prints: | 1f1b | 33 | 27.3 % | 4 | 48 | 71.5 |
// prints: | zb-v | 25.5 | 5.9 % | 4 | 96 | 56.5 |
// prints: rank 3 ............F0--I0--F1--I1--F2--I2--F3--I3--W0--F4--I4--W1--F5--I5--W2--F6--I6--W3--F7--I7--W4--W5--W6--W7--
// prints: wrote images/schedule_dual_pipe.svg
// prints: the same as zb-h1, action by action
#include <heddle/schedule/generate/automatic.hpp>
#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/derive.hpp>
#include <heddle/sim/gantt.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace hd = heddle;
namespace schedule = hd::schedule;
namespace sim = hd::sim;

namespace {

// F, I and W are what a rank needs for all of its part of the model; a chunk of v takes a v-th of them.
sim::timeline run(schedule::table_view table, const sim::stage_times& t) {
  const double part = static_cast<double>(table.ranks()) / table.parts();
  return sim::simulate(table, sim::stage_times{t.forward * part, t.backward_input * part, t.backward_weight * part});
}

void draw(const std::filesystem::path& folder, const std::string& name, schedule::table_view table,
          const sim::timeline& line, const hd::gantt_options& options) {
  std::string file = "schedule_" + name.substr(0, name.find(':')) + ".svg";
  std::replace(file.begin(), file.end(), '-', '_');
  std::ofstream out(folder / file, std::ios::binary);
  out << sim::schedule_svg(table, line, name, options);
  if (!out.flush()) throw hd::io_error("cannot write " + (folder / file).string());
  std::printf("wrote %s\n", (folder / file).string().c_str());
}

// A row of the table: in units of F = I = W, and with F, I, W = 2, 3, 1.5.
void print_row(const std::string& name, schedule::table_view table) {
  const sim::timeline line = run(table, {});
  double most = 0;
  for (int r = 0; r < table.ranks(); ++r) most = (std::max)(most, sim::peak_microbatches(table, r));
  std::printf("| %s | %g | %.1f %% | %g | %lld | %g |\n", name.c_str(), line.makespan, 100 * line.bubble_ratio(), most,
              static_cast<long long>(schedule::sends(table)), run(table, {2, 3, 1.5}).makespan);
}

constexpr const char* names[] = {"gpipe",  "1f1b",  "interleaved", "breadth-first", "zb-h1",   "zb-h2",   "zb-v",
                                 "v-half", "v-min", "dual-pipe-v", "dual-pipe",     "chimera", "hanayo:2"};

// A derived schedule in letters, its row of the table, and the named one that it is.
void print_derived(const std::string& text, int ranks, int microbatches) {
  const auto table = schedule::derive(text, ranks, microbatches);
  std::printf("%s\n", sim::schedule_text(table, run(table, {}), text).c_str());
  print_row("derived", table);
  for (const std::string name : names) {
    const schedule::named when(name, microbatches);
    if (when.fits(ranks) && schedule::make_table(when, ranks).view() == table.view())
      std::printf("the same as %s, action by action\n", name.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 2 && std::string_view(argv[1]) == "--derive") {
    print_derived(argv[2], argc > 3 ? std::atoi(argv[3]) : 4, argc > 4 ? std::atoi(argv[4]) : 8);
    return 0;
  }
  if (argc > 1 && argv[1][0] == '-') {
    std::printf(
        "usage: draw_schedules [folder for pictures [schedule [ranks [microbatches]]]]\n"
        "       draw_schedules --derive \"schedule | pass | ..\" [ranks [microbatches]]\n");
    return 0;
  }
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  std::filesystem::create_directories(folder);
  const int ranks = argc > 3 ? std::atoi(argv[3]) : 4, microbatches = argc > 4 ? std::atoi(argv[4]) : 8;
  if (argc > 2) {
    const auto table = schedule::make_table(schedule::named(argv[2], microbatches), ranks);
    const sim::timeline line = run(table, {});
    std::printf("%s", sim::schedule_text(table, line, argv[2]).c_str());
    draw(folder, argv[2], table, line, {.unit = "F"});
    return 0;
  }

  for (const std::string name : names) {
    const auto table = schedule::make_table(schedule::named(name, microbatches), ranks);
    print_row(name, table);
    draw(folder, name, table, run(table, {}), {.unit = "F", .shown = 33});
  }

  // Planned for the unequal times, with room for five microbatches.
  const schedule::automatic planned(microbatches, std::vector<schedule::stage_cost>(4, {2, 3, 1.5}), 0, 5.0);
  const auto table = schedule::make_table(planned, ranks);
  print_row("automatic", table);
  draw(folder, "automatic", table, run(table, {2, 3, 1.5}), {.unit = ""});

  const auto prompts = schedule::make_table(schedule::prefill<>{microbatches}, ranks);
  draw(folder, "prefill", prompts, sim::simulate(prompts), {.unit = "F", .shown = 33});
  const auto tokens = schedule::make_table(schedule::decode<>{4, 5}, ranks);  // five tokens of four microbatches
  draw(folder, "decode", tokens, sim::simulate(tokens), {.note = "darker: later tokens", .unit = "F", .shown = 33});

  std::printf("\n");
  print_derived("gpipe | limit_live p-r | split_backward | delay_weights r", ranks, microbatches);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
