// heddle/train/named_context.hpp: a loss's parameters, backend and world.
#pragma once

#include <heddle/compute/einsum.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/named_parameters.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train {

/// What a loss function returns for one micro-batch: the sum over the tokens (or examples) that this rank saw, and how
/// many count. Sums, not means: ranks and micro-batches hold different numbers of valid tokens. What kernels have added to
/// `context.loss_sum()` counts too.
struct token_loss {
  double sum = 0;
  std::int64_t tokens = 0;
};

namespace detail {
// Carries the parameter's name and both numbers of dimensions into the compiler's message.
template <class Parameter, std::size_t Given, std::size_t Wanted>
inline constexpr bool gradient_has_the_rank_of = Given == Wanted;
// Without the class that keeps it in a flat buffer.
template <class T, std::size_t Rank, layout_like L, class Space>
const sharded<T, Rank, L, Space>& as_sharded(const sharded<T, Rank, L, Space>& x) noexcept {
  return x;
}
// In facets' errors.
struct named_context_of_functions;
}  // namespace detail

/// What loss and predict compute with: the parameters, a backend and the world. `training()` tells the two uses apart.
///
/// Tensors lie where the backend computes (`space`). A program that makes, moves and copies them with the context and computes
/// with the backend's kernels (`compute()`, on `local()` and `elements_of(x)`) and with `einsum` runs in every memory: what a kernel
/// cannot do, such as a loop over elements, compiles for the host's only. `copied_in` and `on_host` lead there and back.
template <class T, named_model Model, class World, class Rules, class Backend>
class named_context {
 public:
  using value_type = T;
  using space = space_of<Backend>;
  using mesh_type = typename World::mesh_type;
  using parameters = named_parameters<T, Model, mesh_type, Rules, tp, space>;
  /// Activations between layers, [rows, width]: rows split over dp, one value along tp.
  using activations = layout_if<mesh_type, shard<0, dp>, identical<tp>>;
  /// A tensor of the functions.
  template <std::size_t Rank, layout_like L>
  using tensor = sharded<T, Rank, L, space>;

  named_context(Backend& backend, World& world, parameters& all) : backend_(backend), world_(world), all_(all) {}

  Backend& compute() noexcept { return backend_; }
  World& world() noexcept { return world_; }
  bool training() const noexcept { return training_; }
  void set_training(bool on) noexcept { training_ = on; }
  /// What contributions to gradients are multiplied with; with 0 they are dropped.
  void set_gradient_scale(T scale) noexcept { gradient_scale_ = scale; }

  /// Random numbers of this step, a pure function of (seed, step, use), the same on every rank. Give each use (each
  /// dropout) a number of its own, below 2^20, and address elements by their place in the batch, which no mesh changes:
  /// this rank's examples of the micro-batch are `first_example()`, `first_example() + 1`, ... of it.
  counter_random random(std::uint64_t use = 0) const noexcept {
    return {seed_, std::uint64_t{1} << 63 | static_cast<std::uint64_t>(step_) << 20 | use};
  }
  std::int64_t first_example() const noexcept { return first_example_; }
  void set_place(std::uint64_t seed, std::int64_t step, std::int64_t first_example) noexcept {
    seed_ = seed;
    step_ = step;
    first_example_ = first_example;
  }

  template <fixed_string Path>
  const auto& weight() {
    return detail::as_sharded(all_.template of<Path>().weight);
  }

  /// Adds to a parameter's gradient, whatever layout the contribution has: a missing sum or gather along an axis is in
  /// the types and is done here. Sums over dp stay open until the step.
  /// Errors: `layout_error` naming the parameter if the contribution has another shape; a compile error for another
  /// number of dimensions.
  template <fixed_string Path, std::size_t Rank, layout_like L>
  void add_gradient(tensor<Rank, L>&& g) {
    auto& target = all_.template of<Path>().gradient;
    using target_type = std::remove_cvref_t<decltype(target)>;
    constexpr bool fits = Rank == target_type::dimensions;
    static_assert(
        detail::gradient_has_the_rank_of<heddle::v0::detail::parameter_named<Path>, Rank, target_type::dimensions>,
        "heddle: add_gradient: the contribution has another number of dimensions than the parameter; a "
        "gradient has the shape of its parameter");
    if constexpr (fits) {
      if (!(g.shape() == target.shape())) {
        throw layout_error(text_of({"heddle: add_gradient: the parameter ", Path.view(), " is of shape ",
                                    to_string(target.shape()), ", its gradient was given as ", to_string(g.shape())}));
      }
      heddle::v0::detail::require_held(detail::as_sharded(target));
      if (gradient_scale_ == T(0)) return;  // the same on all ranks
      auto settled = convert<typename target_type::layout_type>(std::move(g));
      if constexpr (compute::elementwise_facet::offered<Backend, T>) {
        const auto sum = heddle::v0::elements_of(target.memory());
        const auto more = heddle::v0::elements_of(settled.memory());
        compute::run<compute::ops::scale>(backend_, more, gradient_scale_);
        compute::run<compute::ops::add>(backend_, row_view<const T, space>(sum), row_view<const T, space>(more), sum);
      } else if constexpr (host_accessible_space<space>) {
        const std::span<T> sum = target.elements();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient_scale_ * settled.elements()[i];
      } else {
        compute::require_facet<detail::named_context_of_functions, compute::elementwise_facet, Backend, T>();
      }
    }
  }

  /// The weights with these names, as a tuple of references.
  template <fixed_string... Paths>
  auto weights() {
    return std::tie(weight<Paths>()...);
  }

  /// The loss as one expression, and nothing else: `f(weights..., constants...)` returns the sum over a batch, made by `apply`,
  /// `einsum`, `sum` and their like of placeholders for the named weights and for `constants`, tensors that need no gradient.
  /// Its gradients are added to the weights'; with `auto_redistribute` in its operators it names no layout and runs with any.
  /// `tokens` of the result is this rank's part of the first dimension of the first constant: set it where fewer count.
  ///
  /// ```
  /// return c.template loss<"in/kernel", "out/kernel">([](auto w, auto v, auto x, auto t) { return hd::sum(...); }, b.x, b.t);
  /// ```
  ///
  /// Errors: as `value_and_gradient`, and as `add_gradient`.
  template <fixed_string... Paths, class F, class First, class... Constants>
  token_loss loss(const F& f, const First& first, const Constants&... more) {
    auto [value, pull] = vjp(backend_, world_, f, weight<Paths>()..., constant(first), constant(more)...);
    if (gradient_scale_ != T(0)) {  // the same on all ranks
      using pulled = std::remove_cvref_t<decltype(pull)>;
      auto gradients = pull(compute::one_of<pulled>(world_));
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        (add_gradient<Paths>(std::move(std::get<K>(gradients))), ...);
      }(std::make_index_sequence<sizeof...(Paths)>{});
    }
    // What each tp rank has of it is added for the host, over the control plane.
    constexpr bool open = std::remove_cvref_t<decltype(value)>::layout_type::template is_partial_on<tp>;
    using sum = layout_if<mesh_type, partial<plus, dp>, std::conditional_t<open, partial<plus, tp>, identical<tp>>>;
    const auto mine = convert<sum>(std::move(value));
    double number = static_cast<double>(mine.elements()[0]);
    if constexpr (open) world_.template control_along_if<tp>().all_reduce(std::span<double>(&number, 1), plus{});
    constexpr bool split = First::layout_type::template is_sharded_on<dp>;
    const bool counts = split || !mesh_type::template has<dp> || world_.template coordinate<dp>() == 0;
    return {number, counts ? first.valid_shape().extent(0) : 0};
  }

  /// The order in which everything happens; the caller waits for it (`wait()`) before the host reads what came out.
  typename space::queue& queue() noexcept { return compute::queue_of(backend_); }
  /// A tensor of zeros.
  template <layout_like L, std::int64_t... E>
  tensor<sizeof...(E), L> zeros(const shape<E...>& whole) {
    return {queue(), L{world_.mesh()}, whole, world_.rank()};
  }
  /// A second tensor with the same elements.
  template <std::size_t Rank, layout_like L>
  tensor<Rank, L> copy_of(const tensor<Rank, L>& x) {
    return heddle::v0::copy_of(queue(), x);
  }
  /// Numbers of the host, such as ids and targets of a batch, where kernels read them. The host's may go afterwards.
  template <class U>
  buffer<std::remove_const_t<U>, space> copied_in(std::span<U> numbers) {
    buffer<std::remove_const_t<U>, space> there(queue(), static_cast<std::int64_t>(numbers.size()),
                                                "numbers of a batch");
    queue().copy(std::span<const U>(numbers), there);
    queue().wait();
    return there;
  }
  /// Numbers of the host into this rank's part of a tensor, as many as it holds. Errors: `layout_error` for another count.
  template <std::size_t Rank, layout_like L>
  void copy_in(std::type_identity_t<std::span<const T>> numbers, tensor<Rank, L>& to) {
    queue().copy(numbers, to.memory());
    queue().wait();
  }
  /// This rank's part on the host, when all that makes it is done: what `predict` answers with.
  template <std::size_t Rank, layout_like L>
  sharded<T, Rank, L> on_host(const tensor<Rank, L>& x) {
    return copy_to<host_memory>(queue(), x);
  }
  /// The number that kernels of sums add this microbatch's loss to (`squared_error`, `cross_entropy_loss`): it counts beside
  /// `token_loss::sum`, and the host waits for it once a step. Errors: `config_error` in `predict`, which has no loss.
  compute::number_in<space> loss_sum() const {
    if (loss_sum_ == nullptr) throw config_error("heddle: loss_sum: predict has no loss to add to");
    if constexpr (std::is_same_v<space, host_memory>)
      return loss_sum_;
    else
      return {loss_sum_, {}};
  }
  void set_loss_sum(double* at) noexcept { loss_sum_ = at; }

  /// This rank's rows of an activation: `local` rows of `width` values, all dp ranks together `local * dp` rows.
  tensor<2, activations> make_activations(std::int64_t local_rows, std::int64_t width) {
    return zeros<activations>(shape{local_rows * world_.mesh().template extent_or_one<dp>(), width});
  }
  /// The same tensor in another layout, by as many collectives as it takes.
  template <layout_like To, std::size_t Rank, layout_like From>
  tensor<Rank, To> convert(tensor<Rank, From>&& x) {
    return redistribute<To>(std::move(x), world_, queue());
  }

 private:
  Backend& backend_;
  World& world_;
  parameters& all_;
  bool training_ = true;
  T gradient_scale_ = T(1);
  std::uint64_t seed_ = 0;
  std::int64_t step_ = 0, first_example_ = 0;
  double* loss_sum_ = nullptr;  // in `space`
};

namespace detail {
// What a product with this weight wants of its input along tp: all of it for a split of the outputs, the matching part
// for a split of the inputs, the one value for a copy.
template <class Mesh, class Weight>
struct input_of_product {
  using type =
      std::conditional_t<Weight::template is_sharded_on<tp>,
                         std::conditional_t<Weight::template dim_of<tp> == 0,
                                            layout_if<Mesh, shard<0, dp>, shard<1, tp>>, layout_if<Mesh, shard<0, dp>>>,
                         layout_if<Mesh, shard<0, dp>, identical<tp>>>;
};
}  // namespace detail

/// y = x W for the parameter `Path` [in, out], whatever its layout: the input is brought to what the split of W needs
/// (nothing is sent where it fits), the product is local. A column layer leaves y split, a row layer leaves it a sum.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <fixed_string Path>
struct named_linear {
  static_assert(!heddle::v0::detail::same_text(heddle::v0::detail::path_part(Path.view(), 0), "weight"),
                "heddle: named_linear<path>: multiplies by a kernel [in, out], and what PyTorch calls weight is [out, "
                "in]; list the "
                "parameter as a kernel, or use einsum<\"bi,oi->bo\">");
  /// The product's input as the product saw it. A layer object holds one for each forward that awaits its backward.
  template <class Context, layout_like From>
  struct saved {
    using input = typename detail::input_of_product<
        typename Context::mesh_type,
        typename std::remove_cvref_t<decltype(std::declval<Context&>().template weight<Path>())>::layout_type>::type;
    using source = From;
    typename Context::template tensor<2, input> x;
  };

  /// The result, and what backward needs.
  template <class Context, class T, layout_like From, memory_space Space>
  static auto forward(Context& c, sharded<T, 2, From, Space>&& x) {
    using kept = saved<Context, From>;
    kept s{c.template convert<typename kept::input>(std::move(x))};
    auto y = compute::einsum<"bi,io->bo">(c.compute(), c.world(), s.x, c.template weight<Path>());
    return std::pair<decltype(y), kept>(std::move(y), std::move(s));
  }
  /// The input's gradient, in the dual of its layout; adds the weight's. `dy` may have any layout.
  template <class Context, class Saved, class T, layout_like From, memory_space Space>
  static auto backward(Context& c, const Saved& s, sharded<T, 2, From, Space>&& dy) {
    const auto& w = c.template weight<Path>();
    using weight_layout = typename std::remove_cvref_t<decltype(w)>::layout_type;
    using result = dual<propagate<"bi,io->bo", typename Saved::input, weight_layout>>;
    const auto g = c.template convert<result>(std::move(dy));
    c.template add_gradient<Path>(compute::einsum_gradient<"bi,io->bo", 1>(c.compute(), c.world(), g, s.x, w));
    return c.template convert<dual<typename Saved::source>>(
        compute::einsum_gradient<"bi,io->bo", 0>(c.compute(), c.world(), g, s.x, w));
  }
};

}  // namespace heddle::inline v0::train
