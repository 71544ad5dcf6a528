// Reads the flight files of a launch and says who is missing, stuck or gone: diagnose FOLDER [--json] [--svg FILE] [--pytorch FOLDER]
#include <heddle/observe/flight_report.hpp>
#include <heddle/observe/text_file.hpp>

#include <nlohmann/json.hpp>

#include "diagnose/pytorch.hpp"

#include <cstdio>
#include <exception>
#include <string>

namespace observe = heddle::observe;

namespace {

nlohmann::json as_json(const observe::flights& all, const observe::flight_report& report) {
  nlohmann::json ranks = nlohmann::json::array(), unread = nlohmann::json::array();
  for (const auto& f : all.ranks) {
    nlohmann::json calls = nlohmann::json::array();
    for (const auto& c : f.calls)
      calls.push_back({{"number", c.number},
                       {"operation", c.operation},
                       {"group", f.groups[c.group].name},
                       {"members", f.groups[c.group].members},
                       {"call", c.call},
                       {"inside", c.inside}});
    ranks.push_back({{"rank", f.rank}, {"host", f.host}, {"problem", f.problem}, {"calls", calls}});
  }
  for (const auto& u : all.unread) unread.push_back({{"file", u.file}, {"why", u.why}});
  return {
      {"kind", to_string(report.what)}, {"group", report.group}, {"call", report.number}, {"culprits", report.culprits},
      {"victims", report.victims},      {"text", report.text},   {"ranks", ranks},        {"unread", unread}};
}

}  // namespace

// 0: nobody waits. 1: something has happened. 2: a file could not be read.
int main(int argc, char** argv) try {
  std::string folder, picture, dumps;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json")
      json = true;
    else if (word == "--svg" && i + 1 < argc)
      picture = argv[++i];
    else if (word == "--pytorch" && i + 1 < argc)
      dumps = argv[++i];
    else if (word.starts_with('-') || !folder.empty())
      folder = "";
    else
      folder = word;
  }
  if (folder.empty()) {
    std::fprintf(stderr, "usage: diagnose FOLDER [--json] [--svg FILE] [--pytorch FOLDER]\n");
    return 2;
  }
  const observe::flights all = observe::read_flights(folder);
  const observe::flight_report report = observe::report_of(all);
  if (json)
    std::printf("%s\n", as_json(all, report).dump(1).c_str());
  else
    std::printf("%s\n", report.text.c_str());
  for (const auto& u : all.unread) std::fprintf(stderr, "%s\n", u.why.c_str());
  if (!picture.empty()) observe::write_text_file(picture, observe::hang_svg(all, report));
  if (!dumps.empty()) diagnose::write_pytorch(all, dumps);
  return !all.unread.empty() ? 2 : report.what == observe::flight_report::kind::agreed ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
