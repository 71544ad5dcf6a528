// heddle/train/optimizer_rule.hpp: rules of optimizers: options, state and update.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/learning_rate.hpp>

#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The kind of policies that are the rule of an optimizer: `strategy<mesh, optimizers::lion, zero<1>>`.
struct optimizer_kind {};

namespace train {

/// Learning rates of some parameters, an option of rules: that of the step times the factor of the first entry whose text the
/// parameter's name begins with. A trainer refuses an entry that no trained parameter's name begins with.
using parameter_rates = std::vector<std::pair<std::string, double>>;

/// A tensor as rules of whole tensors see it: a row-major matrix, or what has another number of dimensions, `columns` elements in one row. Of a
/// parameter that stands for several tensors (`experts.*.w1.weight`) each is one.
struct whole_tensor {
  std::string name;
  std::int64_t rows = 1, columns = 0;
  bool is_matrix = false;
  std::int64_t count() const noexcept { return rows * columns; }
};
/// What a rule of whole tensors keeps of one in a slot: nothing, or a number for each element, row or column.
enum class slot_shape { nothing, elements, rows, columns };

namespace detail {

[[noreturn]] inline void refuse_setting(const char* name, const std::string& got, const char* accepted) {
  throw config_error(text_of({"heddle: ", name, " must be ", accepted, ", got ", got}));
}
inline void require_fraction(const char* name, double x) {
  if (!(x >= 0 && x < 1)) refuse_setting(name, number_text(x), "in [0, 1)");
}
inline void require_finite_setting(const char* name, double x) {
  if (!(x >= 0 && std::isfinite(x))) refuse_setting(name, number_text(x), "at least 0 and finite");
}
// Errors: `config_error` for a factor that is negative or not finite.
HEDDLE_INLINE void require_rates(const parameter_rates& rates);
// " lr*name=factor" for each.
HEDDLE_INLINE std::string text_of_rates(const parameter_rates& rates);

template <class Rule>
concept rule_has_name = requires {
  { Rule::name } -> std::convertible_to<const char*>;
};
template <class Rule>
concept rule_has_moments = requires {
  { Rule::moments } -> std::convertible_to<int>;
  requires Rule::moments >= 0;
};
template <class Options>
concept options_of_rule = requires(const Options& o) {
  { to_string(o) } -> std::convertible_to<std::string>;
};
template <class Rule>
concept rule_has_options = options_of_rule<typename Rule::options>;
template <class Rule>
concept rule_has_scalars = requires(const typename Rule::options& o) {
  { Rule::template at<float>(o, 0.1, std::int64_t{1}, true) } -> std::same_as<typename Rule::template scalars<float>>;
  requires std::is_trivially_copyable_v<typename Rule::template scalars<float>>;
};
template <class Rule>
concept rule_has_update = requires(float& w, float g, float* m, const typename Rule::template scalars<float>& s) {
  Rule::template update<float>(w, g, m, s);
};
template <class Rule>
concept rule_has_undo = requires(float& w, float g, float* m, const typename Rule::template scalars<float>& s) {
  Rule::template undo<float>(w, g, m, s);
};
// Rules of whole tensors, which say `static constexpr bool whole_tensors = true`.
template <class Rule>
inline constexpr bool acts_on_whole_tensors = requires { requires Rule::whole_tensors; };
template <class Rule>
concept rule_has_slots = requires(const typename Rule::options& o, const whole_tensor& t) {
  { Rule::slot(o, t, 0) } -> std::same_as<slot_shape>;
  { Rule::template room<float>(o, t) } -> std::same_as<std::int64_t>;
};
template <class Rule>
concept rule_has_scalars_of_tensor = requires(const typename Rule::options& o, const whole_tensor& t) {
  {
    Rule::template at<float>(o, t, 0.1, std::int64_t{1}, true)
  } -> std::same_as<typename Rule::template scalars<float>>;
};
// Rules whose steps are kernels of the backend have them behind this: `rule_kernels`.
template <class Rule>
inline constexpr bool has_kernels_of_backend = false;

// These carry the rule into the compiler's message.
template <bool Ok, class Rule>
inline constexpr bool is_optimizer_rule = Ok;
// Whether it is one. Stops at the first mistake, so that one mistake gives one error.
template <class Rule>
constexpr bool rule_checked() {
  if constexpr (has_kernels_of_backend<Rule>) {
    return true;
  } else if constexpr (!rule_has_name<Rule>) {
    static_assert(
        is_optimizer_rule<rule_has_name<Rule>, Rule>,
        "heddle: an optimizer's rule needs `static constexpr const char* name = \"...\";`, one word that saves "
        "and errors say");
  } else if constexpr (!rule_has_moments<Rule>) {
    static_assert(
        is_optimizer_rule<rule_has_moments<Rule>, Rule>,
        "heddle: an optimizer's rule needs `static constexpr int moments = N;`, how many numbers it keeps for "
        "each element from step to step, 0 or more");
  } else if constexpr (!rule_has_options<Rule>) {
    static_assert(
        is_optimizer_rule<rule_has_options<Rule>, Rule>,
        "heddle: an optimizer's rule needs `struct options` with a friend `std::string to_string(const options&)`, "
        "which ranks compare before they start");
  } else if constexpr (acts_on_whole_tensors<Rule>) {
    static_assert(
        is_optimizer_rule<rule_has_slots<Rule>, Rule>,
        "heddle: a rule of whole tensors needs `static slot_shape slot(const options&, const whole_tensor&, int "
        "k)`, what it keeps of a tensor in slot k, and `template <class T> static std::int64_t room(const "
        "options&, const whole_tensor&)`, how many numbers of memory its step takes");
    if constexpr (rule_has_slots<Rule>)
      static_assert(is_optimizer_rule<rule_has_scalars_of_tensor<Rule>, Rule>,
                    "heddle: a rule of whole tensors needs `template <class T> struct scalars`, the plain numbers of a "
                    "step, and `template <class T> static scalars<T> at(const options&, const whole_tensor&, double "
                    "rate, std::int64_t step, bool decays)`, which makes them of the step counted from 1");
    return rule_has_slots<Rule> && rule_has_scalars_of_tensor<Rule>;
  } else if constexpr (!rule_has_scalars<Rule>) {
    static_assert(
        is_optimizer_rule<rule_has_scalars<Rule>, Rule>,
        "heddle: an optimizer's rule needs `template <class T> struct scalars`, the plain numbers of a step, and "
        "`template <class T> static scalars<T> at(const options&, double rate, std::int64_t step, bool "
        "decays)`, which makes them of the step counted from 1");
  } else if constexpr (!rule_has_update<Rule>) {
    static_assert(is_optimizer_rule<rule_has_update<Rule>, Rule>,
                  "heddle: an optimizer's rule needs `template <class T> HEDDLE_HD static void update(T& w, T g, T* m, "
                  "const scalars<T>&)`, the step of one element w with gradient g and moments m[0] to m[moments - 1]");
  } else {
    return true;
  }
  return false;
}

}  // namespace detail

/// A rule of an optimizer, which updates one element at a time:
/// - `using kind = optimizer_kind;`, `static constexpr const char* name`, `static constexpr int moments`: numbers of state for each
///   element, which begin as zeros and are saved with the weights; `slots[k]`, if it is there, is what saves call moment k (`moment0`).
/// - `struct options`: its settings, with a friend `to_string` that has all of them; `validate()`, if it is there, throws `config_error`; a
///   member `rates` is `parameter_rates`.
/// - `scalars<T>` and `at<T>(options, rate, step, decays)`: the numbers of a step, counted from 1, made on the host; `decays` is false for
///   tensors of one dimension.
/// - `HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>&)`: a step of one element; g is scaled and clipped.
/// - `undo` with the same arguments, if it is there, takes a step back, which `post_validation` needs.
/// - `is_square(k)`, if it is there, says that moment k is never negative: states where it is are refused.
/// A rule that acts on whole tensors, such as matrices, is as `heddle/train/whole_tensors.hpp` says.
template <class Rule>
concept optimizer_rule =
    std::same_as<typename Rule::kind, optimizer_kind> &&
    (detail::has_kernels_of_backend<Rule> ||
     (detail::rule_has_name<Rule> && detail::rule_has_moments<Rule> && detail::rule_has_options<Rule> &&
      ((detail::rule_has_scalars<Rule> && detail::rule_has_update<Rule>) ||
       (detail::acts_on_whole_tensors<Rule> && detail::rule_has_slots<Rule> &&
        detail::rule_has_scalars_of_tensor<Rule>))));

/// The options of a rule, or none: what `train::options::optimizer` holds until a trainer, which knows the rule, asks for them.
class any_optimizer_options {
 public:
  any_optimizer_options() = default;
  template <class Options>
    requires(!std::same_as<Options, any_optimizer_options>) && detail::options_of_rule<Options>
  any_optimizer_options(const Options& options)
      : options_(new Options(options)), validate_(&validate_as<Options>), text_(&text_as<Options>) {}

  bool empty() const noexcept { return options_ == nullptr; }
  void validate() const {
    if (!empty()) validate_(options_.get());
  }
  /// Those of a rule; null if they are others.
  template <class Options>
  const Options* target() const noexcept {
    return text_ == &text_as<Options> ? static_cast<const Options*>(options_.get()) : nullptr;
  }
  friend std::string to_string(const any_optimizer_options& o) {
    return o.empty() ? std::string() : o.text_(o.options_.get());
  }

 private:
  template <class Options>
  static void validate_as([[maybe_unused]] const void* options) {
    if constexpr (requires(const Options& o) { o.validate(); }) static_cast<const Options*>(options)->validate();
  }
  template <class Options>
  static std::string text_as(const void* options) {
    return to_string(*static_cast<const Options*>(options));
  }

  std::shared_ptr<const void> options_;
  void (*validate_)(const void*) = nullptr;
  std::string (*text_)(const void*) = nullptr;
};

namespace detail {

// What a save calls moment k of a rule.
template <class Rule>
std::string slot_name(int k) {
  if constexpr (requires { Rule::slots[0]; })
    return Rule::slots[static_cast<std::size_t>(k)];
  else
    return "moment" + std::to_string(k);
}
template <class Rule>
constexpr bool slot_is_square(int k) {
  if constexpr (requires { Rule::is_square(k); })
    return Rule::is_square(k);
  else
    return false;
}
// f(moment) for each of an optimizer's, as an array.
template <class Optimizer, class F>
auto each_moment(Optimizer& optimizer, F&& f) {
  return [&]<int... K>(std::integer_sequence<int, K...>) {
    return std::array<decltype(f(optimizer.moment(0))), sizeof...(K)>{f(optimizer.moment(K))...};
  }(std::make_integer_sequence<int, Optimizer::moments>{});
}

// The factors of learning rates in a rule's options; none where it has no such option.
template <class Options>
const parameter_rates& rates_of(const Options& options) {
  if constexpr (requires { options.rates; }) {
    return options.rates;
  } else {
    static const parameter_rates none;
    return none;
  }
}

}  // namespace detail

}  // namespace train

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/optimizer_rule.hpp>
#endif
