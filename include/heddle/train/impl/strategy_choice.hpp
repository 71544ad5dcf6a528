// heddle/train/impl/strategy_choice.hpp: bodies of heddle/train/strategy_choice.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/key_lines.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/strategy_choice.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {
namespace detail {

inline constexpr std::array<std::string_view, 3> dtypes_of_choices{"f32", "f64", "bf16"};
inline constexpr int most_of_choices = 1 << 20;  // ranks, microbatches and layers

// Empty where the text is no mesh.
HEDDLE_INLINE std::vector<std::pair<std::string, int>> axes_in_text(std::string_view text) {
  std::vector<std::pair<std::string, int>> axes;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  double ranks = 1;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals > 64 ||
        (text.empty() && comma != std::string_view::npos))
      return {};
    const std::string_view name = one.substr(0, equals);
    for (const char c : name)
      if (!letter(c) && !(c >= '0' && c <= '9')) return {};
    int n = 0;
    const auto [end, problem] = std::from_chars(one.data() + equals + 1, one.data() + one.size(), n);
    ranks *= n;
    if (!letter(name.front()) || problem != std::errc{} || end != one.data() + one.size() || n < 1 ||
        ranks > most_of_choices)
      return {};
    for (const auto& [other, extent] : axes)
      if (other == name) return {};
    axes.emplace_back(name, n);
  }
  return axes;
}

// Whether `schedule::named` may take it, which says itself what numbers of microbatches and ranks it does not run.
HEDDLE_INLINE bool names_schedule(std::string_view text) {
  const std::size_t colon = text.find(':');
  for (std::size_t i = 0; i < schedule::named::names.size(); ++i) {
    if (schedule::named::names[i] != text.substr(0, colon)) continue;
    if (colon == std::string_view::npos) return true;
    int n = 0;
    const auto [end, problem] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), n);
    return schedule::detail::named_schedules::numbers[i] > 0 && problem == std::errc{} &&
           end == text.data() + text.size() && n >= 1 && n <= schedule::named::most_number;
  }
  return false;
}

HEDDLE_INLINE std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}
HEDDLE_INLINE std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

// The generator of a named schedule: its header, and its type.
struct schedule_in_cpp {
  std::string header, type;
};
HEDDLE_INLINE schedule_in_cpp schedule_in_cpp_of(std::string_view text, int microbatches) {
  const std::size_t colon = text.find(':');
  std::string name(text.substr(0, colon));
  const auto at = std::find(schedule::named::names.begin(), schedule::named::names.end(), name);
  const int number =
      at == schedule::named::names.end()
          ? 0
          : schedule::detail::named_schedules::numbers[static_cast<std::size_t>(at - schedule::named::names.begin())];
  std::replace(name.begin(), name.end(), '-', '_');
  if (name == "1f1b") name = "one_f_one_b";
  std::string type = "hd::schedule::" + name + "<hd::microbatches<" + std::to_string(microbatches) + ">";
  if (number > 0)
    type += ", " + (colon == std::string_view::npos ? std::to_string(number) : std::string(text.substr(colon + 1)));
  return {"heddle/schedule/generate/" + name + ".hpp", type + ">"};
}

// A string literal.
HEDDLE_INLINE std::string quoted(std::string_view text) {
  std::string all = "\"";
  for (const char c : text) (c == '"' || c == '\\' ? all += '\\' : all) += c;
  return all + '"';
}

}  // namespace detail

HEDDLE_INLINE std::vector<std::pair<std::string, int>> mesh_axes_of(const strategy_choice& choice) {
  auto axes = detail::axes_in_text(choice.mesh);
  if (axes.empty())
    throw config_error("heddle: expected a mesh such as dp=2,pp=4,tp=2 of at most 1048576 ranks, got \"" + choice.mesh +
                       "\"");
  return axes;
}

HEDDLE_INLINE std::string to_string(const strategy_choice& choice) {
  const strategy_choice plain;
  std::string text = "version 1\nmesh " + choice.mesh + "\n";
  const auto add = [&](const char* key, const std::string& value, bool is_plain) {
    if (!is_plain) ((text += key) += ' ' + value) += '\n';
  };
  add("schedule", choice.schedule, choice.schedule == plain.schedule);
  add("microbatches", std::to_string(choice.microbatches), choice.microbatches == plain.microbatches);
  add("zero", std::to_string(choice.zero), choice.zero == plain.zero);
  add("recompute", choice.recompute, choice.recompute == plain.recompute);
  add("layers", detail::joined(choice.layers), choice.layers.empty());
  add("order", detail::joined(choice.order), choice.order.empty());
  add("dtype", choice.dtype, choice.dtype == plain.dtype);
  return text;
}

HEDDLE_INLINE strategy_choice read_strategy(std::string_view text, std::string_view source) {
  constexpr std::array<std::string_view, 8> keys{"mesh",      "schedule", "microbatches", "zero",
                                                 "recompute", "layers",   "order",        "dtype"};
  strategy_choice choice;
  int ranks = 0;
  key_line order;
  for (const key_line& line : read_key_lines(text, source, 1, keys)) {
    if (line.key == "mesh") {
      choice.mesh = line.value;
      ranks = 1;
      const auto axes = detail::axes_in_text(line.value);
      if (axes.empty()) refuse_key_line(line, source, "a mesh such as dp=2,pp=4,tp=2 of at most 1048576 ranks");
      for (const auto& [name, extent] : axes) ranks *= extent;
    } else if (line.key == "schedule") {
      choice.schedule = line.value;
      if (!detail::names_schedule(line.value)) {
        std::string names;
        for (const auto name : schedule::named::names) (names += names.empty() ? "" : ", ") += name;
        refuse_key_line(line, source, "a schedule, " + names + ", some with a number as in interleaved:2");
      }
    } else if (line.key == "microbatches") {
      choice.microbatches = number_of(line, source, 1, detail::most_of_choices);
    } else if (line.key == "zero") {
      choice.zero = number_of(line, source, 0, 3);
    } else if (line.key == "recompute") {
      choice.recompute = line.value;
    } else if (line.key == "layers") {
      choice.layers = numbers_of(line, source, 0, detail::most_of_choices);
    } else if (line.key == "order") {
      choice.order = numbers_of(line, source, 0, detail::most_of_choices);
      order = line;
    } else {
      choice.dtype = line.value;
      if (std::find(detail::dtypes_of_choices.begin(), detail::dtypes_of_choices.end(), line.value) ==
          detail::dtypes_of_choices.end())
        refuse_key_line(line, source, "f32, f64 or bf16");
    }
  }
  if (ranks == 0) throw config_error(text_of({"heddle: ", source, " has no mesh"}));
  std::vector<int> sorted = choice.order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<int>(i) || std::ssize(sorted) != ranks)
      refuse_key_line(order, source, "each of the mesh's " + std::to_string(ranks) + " ranks once");
  return choice;
}

HEDDLE_INLINE strategy_choice read_strategy_file(const std::string& path) {
  std::error_code none;
  std::ifstream in(path, std::ios::binary);
  const bool opened = in && !std::filesystem::is_directory(path, none);
  const std::string text = opened ? std::string{std::istreambuf_iterator<char>(in), {}} : std::string();
  if (!opened || in.bad()) throw config_error("heddle: cannot read the strategy in '" + path + "'");
  return read_strategy(text, path);
}

HEDDLE_INLINE std::string to_cpp(const strategy_choice& choice) {
  const detail::schedule_in_cpp when = detail::schedule_in_cpp_of(choice.schedule, choice.microbatches);
  std::string own, axes;
  for (const auto& [name, extent] : mesh_axes_of(choice)) {
    const bool known = name == "dp" || name == "pp" || name == "tp" || name == "cp" || name == "ep";
    if (!known) own += "struct " + name + " {};\n";
    axes += (axes.empty() ? "" : ", ") + std::string("hd::axis<") + (known ? "hd::" : "") + name + ", " +
            std::to_string(extent) + ">";
  }
  std::string text =
      "#include <heddle/mesh/mesh.hpp>\n#include <" + when.header +
      ">\n#include <heddle/train/activations/recompute.hpp>\n#include <heddle/train/options.hpp>\n" +
      std::string(choice.dtype == "bf16" ? "#include <heddle/train/products.hpp>\n" : "") +
      "#include <heddle/train/strategy.hpp>\n\n#include <vector>\n\nnamespace planned {\nnamespace hd = heddle;\n" +
      own + "using scalar = " + (choice.dtype == "f64" ? "double" : "float") + ";\nusing mesh = hd::mesh<" + axes +
      ">;\nusing strategy = hd::strategy<mesh, " + when.type + ", hd::zero<" + std::to_string(choice.zero) +
      ">, hd::activations::recompute<>";
  if (choice.dtype == "bf16") text += ", hd::precision<hd::products_in<hd::bf16>>";
  text +=
      ">;\n\n/// What is no type.\ntemplate <class Options>\nvoid apply(Options& options) {\n  options.microbatches "
      "= " +
      std::to_string(choice.microbatches) + ";\n";
  if (choice.recompute != "none") text += "  options.recompute = " + detail::quoted(choice.recompute) + ";\n";
  if (!choice.layers.empty()) text += "  options.layers_per_stage = {" + detail::joined(choice.layers) + "};\n";
  text += "}\n";
  if (!choice.order.empty())
    text += "/// For `world.renumbered`.\ninline const std::vector<int> order{" + detail::joined(choice.order) + "};\n";
  return text + "}  // namespace planned\n";
}

HEDDLE_INLINE std::string to_command_line(const strategy_choice& choice) {
  std::string text = "--mesh " + choice.mesh + " --schedule " + choice.schedule + " --microbatches " +
                     std::to_string(choice.microbatches) + " --dtype " + choice.dtype;
  if (choice.recompute != "none") text += " --recompute \"" + choice.recompute + '"';
  if (!choice.layers.empty()) text += " --layers-per-stage " + detail::joined(choice.layers);
  std::string others;
  if (choice.zero != 1) others += " zero " + std::to_string(choice.zero);
  if (!choice.order.empty()) others += " order " + detail::joined(choice.order);
  return others.empty() ? text : text + "  #" + others;
}

HEDDLE_INLINE void require_compiled(const strategy_choice& choice, const compiled_strategies& program,
                                    std::string_view source) {
  const auto refuse = [&](const std::string& asks, const std::string& has) {
    throw config_error("heddle: " + std::string(source) + " asks for " + asks + "; this program was compiled for " +
                       has);
  };
  const auto has = [](const auto& all, const auto& one) { return std::find(all.begin(), all.end(), one) != all.end(); };
  for (const auto& [name, extent] : mesh_axes_of(choice))
    if (!has(program.axes, name)) refuse("a mesh with the axis " + name, "the axes " + detail::joined(program.axes));
  if (!has(program.zero, choice.zero))
    refuse("ZeRO-" + std::to_string(choice.zero), "ZeRO-" + detail::joined(program.zero));
  if (!has(program.dtypes, choice.dtype)) refuse("dtype " + choice.dtype, detail::joined(program.dtypes));
  if (!program.recomputes && choice.recompute != "none")
    refuse("recompute \"" + choice.recompute + '"', "a strategy without activations::recompute<>");
  if (!program.renumbers && !choice.order.empty()) refuse("an order of its ranks", "that of its launch");
}

}  // namespace heddle::inline v0::train
