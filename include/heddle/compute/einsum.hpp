// heddle/compute/einsum.hpp: products of sharded tensors, from the parts that ranks hold.
#pragma once

#include <heddle/compute/arrange.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/operand_here.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/formula.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {
namespace detail {

// How a product of two operands becomes a batch of matrix products: the left operand arranged as [batch, rows, inner]
// or, `left_turned`, [batch, inner, rows]; the right one as [batch, inner, columns] or, `right_turned`, [batch, columns,
// inner]; the result comes out as [batch, rows, columns]. An operand that lies so already is not copied.
struct product_form {
  bool swapped = false;  // the left operand is the second one
  letter_list batch{}, rows{}, columns{}, inner{};
  letter_list left{}, right{}, result{};
  bool left_turned = false, right_turned = false;
};

constexpr product_form form_of(const letter_list& left, const letter_list& right, const letter_list& output,
                               bool swapped) {
  product_form f;
  f.swapped = swapped;
  for (int i = 0; i < output.count; ++i) {
    const char c = output[i];
    const bool in_left = left.has(c), in_right = right.has(c);
    (in_left && in_right ? f.batch : in_left ? f.rows : f.columns).add(c);
  }
  // The order of what is summed is free: the left operand's own.
  for (int i = 0; i < left.count; ++i)
    if (right.has(left[i]) && !output.has(left[i])) f.inner.add(left[i]);
  f.result = joined_letters(f.batch, f.rows, f.columns);
  f.left = joined_letters(f.batch, f.rows, f.inner);
  f.right = joined_letters(f.batch, f.inner, f.columns);
  if (const auto turned = joined_letters(f.batch, f.inner, f.rows); left == turned && !(left == f.left)) {
    f.left = turned;
    f.left_turned = true;
  }
  if (const auto turned = joined_letters(f.batch, f.columns, f.inner); right == turned && !(right == f.right)) {
    f.right = turned;
    f.right_turned = true;
  }
  return f;
}
constexpr int copies_of(const product_form& f, const letter_list& left, const letter_list& right,
                        const letter_list& out) {
  return (left == f.left ? 0 : 1) + (right == f.right ? 0 : 1) + (out == f.result ? 0 : 1);
}
constexpr product_form best_form(const letter_list& a, const letter_list& b, const letter_list& output) {
  const product_form as_given = form_of(a, b, output, false), swapped = form_of(b, a, output, true);
  return copies_of(swapped, b, a, output) < copies_of(as_given, a, b, output) ? swapped : as_given;
}

template <fixed_string Formula>
struct einsum_form {
  static constexpr const auto& text = heddle::v0::detail::checked_formula<Formula>::value;
  static constexpr letter_list output = letters_of(text.output);
  // An operand without the letters that only it has, which are summed before all else.
  static constexpr letter_list needed(int operand) {
    const letter_list all = letters_of(text.operands[operand]);
    letter_list list;
    for (int i = 0; i < all.count; ++i) {
      bool wanted = output.has(all[i]);
      for (int o = 0; o < text.operand_count; ++o) wanted = wanted || (o != operand && text.operands[o].has(all[i]));
      if (wanted) list.add(all[i]);
    }
    return list;
  }
  static constexpr product_form product = best_form(needed(0), needed(text.operand_count > 1 ? 1 : 0), output);
};

template <class T>
struct multiply_each {
  const T *left, *right;
  T* result;
  HEDDLE_HD void operator()(std::int64_t i) const { result[i] = left[i] * right[i]; }
};
template <class Space, class T>
void multiply_elements(typename Space::queue& q, const T* left, const T* right, T* result, std::int64_t n) {
  using queue = typename Space::queue;
  if constexpr (heddle::v0::detail::runs_at_once<queue>) {
    for (std::int64_t i = 0; i < n; ++i) result[i] = left[i] * right[i];
  } else if constexpr (launches_kernels<queue>) {
    launch_each(q, n, multiply_each<T>{left, right, result});
  } else if constexpr (heddle::v0::detail::can_run<queue>()) {
    const auto row = heddle::v0::detail::row_shape(n);
    q.run(
        [](const auto& a, const auto& b, const auto& y) {
          const multiply_each<T> each{a.address(), b.address(), y.address()};
          for (std::int64_t i = 0; i < y.size(); ++i) each(i);
        },
        vector_view<const T, Space>(left, row), vector_view<const T, Space>(right, row),
        vector_view<T, Space>(result, row));
  }
}

// An operand's or the result's memory.
template <class T>
struct placed {
  T* data;
  std::int64_t elements;
  letter_places places;
};

// An operand in the order the product wants: its own memory, or an arranged copy.
template <class T, class Space>
struct arranged {
  buffer<T, Space> copy{};
  const T* data;

  arranged(typename Space::queue& q, const placed<const T>& x, const letter_list& to, const letter_sizes& sizes)
      : data(x.data) {
    if (x.places.letters == to && x.places.is_dense(sizes)) return;
    const std::int64_t n = sizes.of(to);
    copy = buffer<T, Space>(q, n, "an operand of an einsum");
    arrange_in<Space>(q, x.data, x.elements, x.places, copy.address(), n, letter_places(to, sizes), sizes);
    data = copy.address();
  }
};

template <bool LeftTurned, bool RightTurned, class Backend, class T>
void multiply_batches(Backend& backend, const T* left, const T* right, T* result, std::int64_t batches,
                      std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  constexpr auto tl = LeftTurned ? transpose::yes : transpose::no;
  constexpr auto tr = RightTurned ? transpose::yes : transpose::no;
  using space = space_of<Backend>;
  for (std::int64_t b = 0; b < batches; ++b)
    compute::matmul<tl, tr>(
        backend,
        matrix_view<const T, space>(left + b * rows * inner, {LeftTurned ? inner : rows, LeftTurned ? rows : inner}),
        matrix_view<const T, space>(right + b * inner * columns,
                                    {RightTurned ? columns : inner, RightTurned ? inner : columns}),
        matrix_view<T, space>(result + b * rows * columns, {rows, columns}), T(0));
}

template <fixed_string Formula, class Backend, class T>
void multiply_parts(Backend& backend, const placed<const T>& first, const placed<const T>& second, const placed<T>& out,
                    const letter_sizes& sizes) {
  using form = einsum_form<Formula>;
  using space = space_of<Backend>;
  constexpr product_form f = form::product;
  auto& queue = queue_of(backend);
  const arranged<T, space> left(queue, f.swapped ? second : first, f.left, sizes),
      right(queue, f.swapped ? first : second, f.right, sizes);
  const std::int64_t batches = sizes.of(f.batch), rows = sizes.of(f.rows), columns = sizes.of(f.columns);
  const bool in_place = f.result == form::output && out.places.is_dense(sizes);
  const std::int64_t results = sizes.of(f.result);
  buffer<T, space> room;
  if (!in_place) room = buffer<T, space>(queue, results, "the result of an einsum");
  T* const result = in_place ? out.data : room.address();
  if constexpr (f.rows.count == 0 && f.columns.count == 0 && f.inner.count == 0)
    multiply_elements<space>(queue, left.data, right.data, result, batches);
  else
    multiply_batches<f.left_turned, f.right_turned>(backend, left.data, right.data, result, batches, rows,
                                                    sizes.of(f.inner), columns);
  if (!in_place)
    arrange_in<space, T>(queue, result, results, letter_places(f.result, sizes), out.data, out.elements, out.places,
                         sizes);
}

template <std::size_t Operands>
inline constexpr bool einsum_takes = Operands == 1 || Operands == 2;

// "bi,io->bo" and operand 0 become "bo,io->bi": the operand trades places with the result.
template <fixed_string Formula, int Which>
constexpr auto turned_formula() {
  constexpr auto f = heddle::v0::detail::checked_formula<Formula>::value;
  auto text = Formula;
  std::size_t at = 0;
  const auto put = [&](char c) { text.text[at++] = c; };
  for (int o = 0; o < f.operand_count; ++o) {
    if (o > 0) put(',');
    const auto& term = o == Which ? f.output : f.operands[o];
    for (int i = 0; i < term.count; ++i) put(term.letters[i]);
  }
  put('-');
  put('>');
  for (int i = 0; i < f.operands[Which].count; ++i) put(f.operands[Which].letters[i]);
  while (at < text.size()) put(' ');
  return text;
}
// Carries both layouts into the compiler's message.
template <bool Ok, class Given, class Wanted>
inline constexpr bool gradient_fits = Ok;
template <fixed_string Formula, int Which>
struct gradient_has_all_letters {
  static constexpr bool value = [] {
    constexpr auto f = heddle::v0::detail::checked_formula<Formula>::value;
    for (int i = 0; i < f.operands[Which].count; ++i) {
      bool found = f.output.has(f.operands[Which].letters[i]);
      for (int o = 0; o < f.operand_count; ++o)
        found = found || (o != Which && f.operands[o].has(f.operands[Which].letters[i]));
      if (!found) return false;
    }
    return true;
  }();
};

inline std::string name_of_einsum() {
  return "heddle: einsum";
}

// Carries both memories into the compiler's message.
template <bool Ok, class Operands, class Backend>
inline constexpr bool operands_where_the_backend_computes = Ok;
// Of a backend that names no memory: the host's.
template <class Space, class Backend>
constexpr bool computes_in() {
  constexpr bool same = std::is_same_v<Space, space_of<Backend>>;
  static_assert(
      operands_where_the_backend_computes<same, Space, Backend>,
      "heddle: einsum: the operands lie in another memory than the backend computes in; copy them there first, "
      "copy_to<space_of<backend>>(queue, x), or take a backend of their memory");
  return same;
}

}  // namespace detail

/// The product of sharded tensors: each rank computes with the parts it holds and sends nothing; the result's layout is
/// `propagate<Formula, ...>`. One or two operands; the products go through the backend's `matmul`, operands are copied
/// only where their dimensions have to change order, or where their memory is padded. Letters that only one operand has are
/// summed in double for floats. The operands lie where the backend computes; where that is not the host, the products and the
/// changes of order happen in the order of the backend's queue.
/// `auto h = compute::einsum<"bi,io->bo">(backend, world, x, w);`
/// Shapes: one dimension per letter; a letter has one size. What is in the padding of an operand does not matter; that of
/// the result is zero.
/// Errors: `layout_error` if a letter has two sizes, parts are of different ranks or meshes, or were moved away; compile errors as
/// `propagate`, whose text names the redistribution that repairs a combination that would have to send something.
template <fixed_string Formula, class Backend, class World, class T, std::size_t... Ranks, layout_like... Layouts,
          memory_space... Spaces>
auto einsum(Backend& backend, World& world, const sharded<T, Ranks, Layouts, Spaces>&... operands) {
  using space = type_at<0, Spaces...>;
  static_assert(
      detail::einsum_takes<sizeof...(Layouts)>,
      "heddle: einsum multiplies two tensors, or sums and permutes one; write a longer product as several, in the "
      "order that is cheapest");
  using result_layout = propagate<Formula, Layouts...>;
  const auto whole = propagate_shape<Formula>(operands.shape()...);
  (detail::require_operand_here(detail::name_of_einsum, operands, world), ...);

  using result_type = sharded<T, decltype(whole)::rank(), result_layout, space>;
  if constexpr (!(detail::computes_in<Spaces, Backend>() && ...)) {
    return detail::refused_already<result_type>();
  } else {
    using form = detail::einsum_form<Formula>;
    detail::letter_sizes sizes;
    int at = 0;
    ((sizes.read(form::text.operands[at], operands.valid_shape()), ++at), ...);
    auto& queue = queue_of(backend);
    result_type result(queue, result_layout{world.mesh()}, whole, world.rank());
    at = 0;
    const auto place = [&](const auto& x) {
      return detail::placed<const T>{
          x.memory().address(), x.memory().size(),
          detail::letter_places(detail::letters_of(form::text.operands[at++]), x.local_shape())};
    };
    // Braces keep the order of the operands.
    const detail::placed<const T> parts[]{place(operands)...};
    const detail::placed<T> out{result.memory().address(), result.memory().size(),
                                detail::letter_places(form::output, result.local_shape())};
    if constexpr (sizeof...(Layouts) == 1)
      detail::arrange_in<space, T>(queue, parts[0].data, parts[0].elements, parts[0].places, out.data, out.elements,
                                   out.places, sizes);
    else if (sizes.of(form::output) > 0)
      detail::multiply_parts<Formula>(backend, parts[0], parts[1], out, sizes);
    return result;
  }
}

namespace detail {
// The operand as it is, or redistributed.
template <layout_like To, class Backend, class T, std::size_t Rank, layout_like From, class Space, class World>
decltype(auto) in_layout(Backend& backend, const sharded<T, Rank, From, Space>& x, World& world) {
  if constexpr (std::is_same_v<To, From>)
    return (x);
  else
    return redistribute<To>(x, world, queue_of(backend));
}
template <fixed_string Formula, class... To, class Backend, class World, class... Operands>
auto einsum_in(type_list<To...>, Backend& backend, World& world, const Operands&... operands) {
  // Braces keep the order of the operands, which is the order of the communication.
  const std::tuple<decltype(in_layout<To>(backend, operands, world))...> ready{
      in_layout<To>(backend, operands, world)...};
  return std::apply([&](const auto&... x) { return einsum<Formula>(backend, world, x...); }, ready);
}
}  // namespace detail

/// The same for operands whose layouts do not fit: redistributes them first, by the cheapest repair there is, as
/// `repaired<op::einsum<Formula>, ...>` says at compile time. Without a misfit nothing is sent.
/// `auto y = compute::einsum<"bi,io->bo">(backend, world, auto_redistribute{}, x, w);`
template <fixed_string Formula, class Backend, class World, class T, std::size_t... Ranks, layout_like... Layouts,
          memory_space... Spaces>
auto einsum(Backend& backend, World& world, auto_redistribute, const sharded<T, Ranks, Layouts, Spaces>&... operands) {
  using how = repaired<op::einsum<Formula>, Layouts...>;
  return detail::einsum_in<Formula>(typename how::operands{}, backend, world, operands...);
}

/// The gradient of operand `Which` of `einsum<Formula>(first, second)`, from the result's gradient `dy`: again an einsum,
/// in which the operand and the result trade places, and again without communication. With the result's gradient in
/// the dual of the result's layout, it comes out in the dual of the operand's: what is missing (a sum over the axes
/// along which the operand is a copy, say) is in its type.
/// Errors: as `einsum`, for both operands; `layout_error` if `dy` has another shape than the result; compile errors for a
/// gradient `dy` in another layout than the dual of the result's, and for an
/// operand with a letter that only it has.
template <fixed_string Formula, int Which, class Backend, class World, class T, std::size_t RankY, layout_like LayoutY,
          std::size_t Rank0, layout_like Layout0, std::size_t Rank1, layout_like Layout1, memory_space Space>
auto einsum_gradient(Backend& backend, World& world, const sharded<T, RankY, LayoutY, Space>& dy,
                     const sharded<T, Rank0, Layout0, Space>& first, const sharded<T, Rank1, Layout1, Space>& second) {
  static_assert(Which == 0 || Which == 1,
                "heddle: einsum_gradient<formula, which>: which is 0 or 1, an operand's place");
  static_assert(
      detail::gradient_has_all_letters<Formula, Which>::value,
      "heddle: einsum_gradient: the operand has a letter that neither the result nor the other operand has, so its "
      "gradient would have to be repeated along it; sum the operand over that letter before the product");
  using wanted = dual<propagate<Formula, Layout0, Layout1>>;
  constexpr bool one_result = can_propagate_through<op::einsum<Formula>, Layout0, Layout1>;  // else refused already
  static_assert(
      detail::gradient_fits<(!one_result || std::is_same_v<LayoutY, wanted>), LayoutY, wanted>,
      "heddle: einsum_gradient: the gradient of a result has the dual of the result's layout, and this one has "
      "another; redistribute it to dual<propagate<formula, layouts...>> first");
  detail::require_operand_here(detail::name_of_einsum, first, world);
  detail::require_operand_here(detail::name_of_einsum, second, world);
  const auto of_result = propagate_shape<Formula>(first.shape(), second.shape());
  if constexpr (of_result.rank() == RankY) {
    if (!(make_shape(of_result.extents()) == dy.shape())) {
      throw layout_error(text_of({"heddle: einsum_gradient: the result is of shape ", to_string(of_result),
                                  ", its gradient was given as ", to_string(dy.shape())}));
    }
  }
  constexpr auto turned = detail::turned_formula<Formula, Which>();
  if constexpr (!one_result || !std::is_same_v<LayoutY, wanted> ||
                !detail::gradient_has_all_letters<Formula, Which>::value)
    return detail::refused_already<std::conditional_t<Which == 0, sharded<T, Rank0, dual<Layout0>, Space>,
                                                      sharded<T, Rank1, dual<Layout1>, Space>>>();
  else if constexpr (Which == 0)
    return einsum<turned>(backend, world, dy, second);
  else
    return einsum<turned>(backend, world, first, dy);
}

}  // namespace heddle::inline v0::compute
