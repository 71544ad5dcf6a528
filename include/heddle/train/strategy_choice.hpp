// heddle/train/strategy_choice.hpp: a strategy as data: read, written, applied, printed as C++.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// What a planner chooses and a program runs. What is a type of the program (ZeRO stage, element type, axes) it names,
/// too: `require_compiled` says whether the program has it.
struct strategy_choice {
  std::string mesh{};             ///< as `parse_mesh` reads it: `dp=2,pp=4,tp=2`
  std::string schedule = "1f1b";  ///< as `schedule::named` reads it
  int microbatches = 1;           ///< of a rank along dp
  int zero = 1;
  std::string recompute = "none";  ///< as `model::parse_recompute` reads it
  std::vector<int> layers{};       ///< blocks of each stage, in order; empty: as even as can be
  std::vector<int> order{};        ///< for `world.renumbered`; empty: as the ranks are
  std::string dtype = "f32";       ///< f32, f64, or bf16: float with products of operands in bf16

  /// Sets what options say of it: microbatches, recompute and layers_per_stage; and `schedule`, where `named` (the
  /// strategy's schedule is `schedule::named`).
  template <class Options>
  void apply(Options& options, bool named = true) const {
    options.microbatches = microbatches;
    options.recompute = recompute == "none" ? std::string() : recompute;
    options.layers_per_stage = layers;
    if (named) options.schedule = schedule;
  }
  friend bool operator==(const strategy_choice&, const strategy_choice&) = default;
};

/// Axes and extents of the choice's mesh. Errors: `config_error` for what is no mesh.
HEDDLE_INLINE std::vector<std::pair<std::string, int>> mesh_axes_of(const strategy_choice& choice);

/// A `key value` per line behind `version 1`; what is as by default is left out, but for the mesh. `read_strategy`
/// reads it back.
HEDDLE_INLINE std::string to_string(const strategy_choice& choice);
/// The strategy that a text says. Errors: `config_error` naming source, line, key, what was expected and what came.
HEDDLE_INLINE strategy_choice read_strategy(std::string_view text, std::string_view source = "strategy");
/// The strategy in a file. Errors: as above, with the file's name; `config_error` if it cannot be read.
HEDDLE_INLINE strategy_choice read_strategy_file(const std::string& path);

/// Types `mesh`, `strategy`, `scalar` and a function `apply(options)` in a namespace `planned`, with what they include.
HEDDLE_INLINE std::string to_cpp(const strategy_choice& choice);
/// The options of `examples/gpt2_train` that say the same. What has none there (ZeRO stage, order) is a comment of the
/// shell behind them.
HEDDLE_INLINE std::string to_command_line(const strategy_choice& choice);

/// The strategies that a program was compiled for.
struct compiled_strategies {
  std::vector<int> zero{1};
  std::vector<std::string> dtypes{"f32"};
  std::vector<std::string> axes{"dp", "pp", "tp"};
  bool recomputes = true;  ///< has the policy `activations::recompute`
  bool renumbers = false;  ///< takes an order of ranks
};
/// Checks that a program can run a choice. Errors: `config_error` that names what the choice asks for and what the
/// program has.
HEDDLE_INLINE void require_compiled(const strategy_choice& choice, const compiled_strategies& program,
                                    std::string_view source = "the strategy");

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/strategy_choice.hpp>
#endif
