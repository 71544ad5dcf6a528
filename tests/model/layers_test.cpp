// Every layer on one rank: forward against formulas, both halves of backward against central differences, and the same bits
// when activations are computed again, in double. Memory that is dead by the lifetimes that a layer states is filled with NaN.
#include "catch.hpp"
#include "reference.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/model/layers/cached_traits.hpp>
#include <heddle/model/layers/chunked_head.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/layers/gated_linear_attention.hpp>
#include <heddle/model/layers/normed_after.hpp>
#include <heddle/model/llama.hpp>

#include <cmath>
#include <limits>

using namespace model_test;
namespace ly = heddle::model::layers;
namespace dim = heddle::dim;

namespace {

using backend = hd::compute::host<>;
using layouts = md::layouts<md::stage_mesh<hd::mesh<>, hd::pp, md::megatron<>>, md::megatron<>>;
using run_type = ly::layer_run<double, layouts, backend, alone_world>;
using numbers = std::vector<double>;
constexpr double tolerance = 1e-6;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class Layer>
inline constexpr bool is_head = requires { Layer::tied; };
template <class Layer>
inline constexpr bool is_embedding = requires { typename Layer::table; } && !is_head<Layer>;
template <class Layer>
inline constexpr bool is_tied = false;
template <class Norm>
inline constexpr bool is_tied<ly::language_head<Norm, true>> = true;
template <class Norm, int Words>
inline constexpr bool is_tied<ly::chunked_head<Norm, true, Words>> = true;

// Whether backward_input can add to a gradient.
template <class Layer>
inline constexpr bool adds =
    requires(const Layer& l, const ly::call<Layer, run_type>& b, hd::matrix_view<const double> x,
             hd::matrix_view<double> dx) { l.backward_input(b, x, x, dx, true); };

// One layer with its memory, of which nothing has a value before a verb writes it.
template <class Layer>
class rig {
 public:
  using call = ly::call<Layer, run_type>;

  // `again`: what is computed again; `keeps`: which of the three ways of dropping.
  rig(const Layer& layer, md::extent_of_batch e, std::int64_t in, std::int64_t out, md::activation_set again = {},
      ly::dropping drops = ly::dropping::named)
      : at(layer),
        x(random_vector(e.rows() * in, 1)),
        y(static_cast<std::size_t>(e.rows() * out), nan),
        dy(random_vector(e.rows() * out, 2)),
        dx(static_cast<std::size_t>(e.rows() * in), nan),
        run{kernels, world} {
    const ly::placer<double, layouts> place({}, 0);
    int id = 0;
    place.add_parameters(at, store, "", id, true);
    store.allocate();
    for (const md::parameter& p : store.table()) {
      const numbers values = random_vector(p.count, static_cast<std::uint64_t>(10 + p.id), 0.5, p.initial_mean);
      std::copy(values.begin(), values.end(), store.weights().begin() + p.offset);
    }
    const auto v = static_cast<std::size_t>(drops == ly::dropping::all);
    ly::arena_sizes sizes;
    md::own_activations own;
    place.place_activations(at, sizes, e.rows(), again, drops != ly::dropping::named, own);
    saved = empty(drops == ly::dropping::transient ? 0 : sizes.saved[v]);
    waiting = empty(sizes.waiting[v]);
    shared = empty(sizes.shared);
    deferred = empty(sizes.deferred);
    scratch = empty(sizes.scratch);
    constants = empty(sizes.constants);
    words = random_vector(7 * in, 5);
    d_words = numbers(words.size());
    tokens = random_ids(e.rows(), 7, 3);
    targets = random_ids(e.rows(), 7, 4);
    targets[1] = -1;
    sequences.prepare(e.samples, e.sequence, ly::window_of(layer));
    run.extent = e;
    run.weights[0] = store.weights().data();
    run.gradients[0] = store.gradients().data();
    run.saved = saved.data();
    run.waiting = waiting.data();
    run.shared = shared.data();
    run.deferred = deferred.data();
    run.scratch = scratch.data();
    run.constants = constants.data();
    run.drops = drops;
    run.positions = sequences.rows(e);
    run.sequences = sequences.slices(e);
    run.windowed = sequences.windowed(e);
    run.routing = &routing;
    run.tied = md::as_matrix(std::span<const double>(words), 7, in);
    run.tied_gradient = md::as_matrix(std::span(d_words), 7, in);
    if constexpr (ly::uses_constants<Layer>) ly::prepare_all(bound());
  }
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;

  call bound() { return call(at, run); }
  auto matrix(numbers& v) { return md::as_matrix(std::span(v), rows(), columns(v)); }
  auto const_matrix(const numbers& v) { return md::as_matrix(std::span(v), rows(), columns(v)); }

  // What is differentiated: the loss, or the output along dy.
  double forward() {
    wipe(scratch);
    if constexpr (is_head<Layer>) {
      return bound().forward(const_matrix(x), hd::compute::token_ids(targets));
    } else {
      if constexpr (is_embedding<Layer>)
        bound().forward(hd::compute::token_ids(tokens), matrix(y));
      else
        bound().forward(const_matrix(x), matrix(y));
      return dot(y, dy);
    }
  }
  // Forward once more, for what was dropped only.
  void replay() {
    wipe(scratch);
    run.replays = true;
    if constexpr (is_head<Layer>)
      at.layer.project(bound(), const_matrix(x));
    else if constexpr (!is_embedding<Layer>)
      bound().forward(const_matrix(x), hd::matrix_view<double>{});
    run.replays = false;
  }
  void backward_input(bool add = false) {
    wipe(scratch);
    if constexpr (is_head<Layer>)
      bound().backward_input(const_matrix(x), hd::compute::token_ids(targets), 1.0, matrix(dx));
    else if constexpr (adds<Layer>)
      bound().backward_input(const_matrix(x), const_matrix(dy), matrix(dx), add);
    else if constexpr (!is_embedding<Layer>)
      bound().backward_input(const_matrix(x), const_matrix(dy), matrix(dx));
  }
  void backward_weight() {
    wipe(scratch);
    if constexpr (is_head<Layer>)
      bound().backward_weight(const_matrix(x));
    else if constexpr (is_embedding<Layer>)
      bound().backward_weight(hd::compute::token_ids(tokens), const_matrix(dy));
    else
      bound().backward_weight(const_matrix(x), const_matrix(dy));
  }

  static void wipe(numbers& memory) { std::fill(memory.begin(), memory.end(), nan); }
  // After backward_input: what only that was to read. What was computed again lies in `waiting`, if it waits.
  void wipe_after_input() {
    wipe_inputs(at);
    if (run.waits) wipe(shared);
  }

  ly::placed<Layer> at;
  backend kernels{1};
  alone_world world;
  md::parameter_store<double> store;
  numbers x, y, dy, dx, words, d_words;
  std::vector<std::int32_t> tokens, targets;
  numbers saved, waiting, shared, deferred, scratch, constants;
  md::token_positions sequences;
  ly::routing_memory<hd::host_memory> routing;
  run_type run;

 private:
  static numbers empty(std::int64_t n) { return numbers(static_cast<std::size_t>(n), nan); }
  std::int64_t rows() const { return run.extent.rows(); }
  std::int64_t columns(const numbers& v) const { return static_cast<std::int64_t>(v.size()) / rows(); }
  template <class L>
  void wipe_inputs(const ly::placed<L>& p) {
    p.layer.activations().each([&](auto index, const auto& described) {
      const auto& place = p.activations[index];
      const auto v = static_cast<std::size_t>(run.drops);
      if (std::remove_cvref_t<decltype(described)>::lives != ly::life::until_input || place.dropped[v]) return;
      std::fill_n(saved.begin() + place.saved[v], (place.rows >= 0 ? place.rows : rows()) * place.columns, nan);
    });
    p.children.each([&](auto, const auto& child) { wipe_inputs(child); });
  }
};

template <class L>
void add_roles(const L& layer, md::activation_set& all) {
  layer.activations().each([&](auto, const auto& a) { all = all | a.role; });
  layer.children().each([&](auto, const auto& child) { add_roles(child, all); });
}

constexpr md::extent_of_batch usual{2, 3};

// The worst error of all gradients against central differences; NaN if a verb reads what is dead.
template <class Layer>
double gradients_error(const Layer& layer, std::int64_t in, std::int64_t out) {
  rig<Layer> r(layer, usual, in, out);
  double worst = 0;
  const auto compare = [&](std::span<double> values, std::span<const double> gradient) {
    const double error = difference_error(values, gradient, [&] { return r.forward(); });
    if (std::isnan(error) || error > worst) worst = error;
  };
  r.forward();
  r.wipe(r.y);
  r.backward_input();
  const numbers dx = r.dx;
  if constexpr (adds<Layer>) {  // into a gradient that has something, twice
    const numbers before = random_vector(static_cast<std::int64_t>(dx.size()), 6);
    r.dx = before;
    r.backward_input(true);
    r.backward_input(true);
    for (std::size_t i = 0; i < dx.size(); ++i)
      CHECK(r.dx[i] == Approx(before[i] + 2 * dx[i]).epsilon(1e-12).margin(1e-12));
  }
  r.wipe(r.dx);
  r.wipe_after_input();
  r.wipe(r.shared);
  r.backward_weight();
  const numbers gradients(r.store.gradients().begin(), r.store.gradients().end());
  for (const md::parameter& p : r.store.table()) {
    const auto at = static_cast<std::size_t>(p.offset), n = static_cast<std::size_t>(p.count);
    compare(r.store.weights().subspan(at, n), std::span(gradients).subspan(at, n));
  }
  if constexpr (!is_embedding<Layer>) compare(r.x, dx);
  if constexpr (is_tied<Layer>) {
    compare(r.words, r.d_words);
    // Gradients are added: a second pass doubles them.
    const numbers once = r.d_words;
    r.forward();
    r.backward_input();
    r.backward_weight();
    for (std::size_t i = 0; i < once.size(); ++i)
      CHECK(r.d_words[i] == Approx(2 * once[i]).epsilon(1e-12).margin(1e-12));
  }
  return worst;
}

// Forward, what was dropped is wiped, forward once more, both halves of backward: the bits of one that keeps everything.
template <class Layer>
void same_bits_again(const Layer& layer, std::int64_t in, std::int64_t out) {
  rig<Layer> kept(layer, usual, in, out);
  const double loss = kept.forward();
  const numbers y = kept.y;
  kept.backward_input();
  kept.backward_weight();
  const numbers gradients(kept.store.gradients().begin(), kept.store.gradients().end());
  const auto run_again = [&](md::activation_set again, ly::dropping drops, bool waits, bool there) {
    CAPTURE(md::to_string(md::recompute_plan{again, drops == ly::dropping::all}), waits, there);
    rig<Layer> r(layer, usual, in, out, again, drops);
    CHECK(r.forward() == loss);
    if constexpr (!is_head<Layer>) CHECK(r.y == y);
    r.wipe(r.y);
    r.run.waits = waits;
    if (!there) {
      r.wipe(r.shared);
      r.replay();
    } else if (waits) {
      ly::move_to_waiting(r.at, r.run);
    }
    r.backward_input();
    if constexpr (!is_embedding<Layer>) CHECK(r.dx == kept.dx);
    r.wipe(r.dx);
    if (waits) r.wipe_after_input();
    r.backward_weight();
    CHECK(numbers(r.store.gradients().begin(), r.store.gradients().end()) == gradients);
    CHECK(r.d_words == kept.d_words);
  };
  md::activation_set roles;
  add_roles(layer, roles);
  for (const bool waits : {false, true})
    for (const bool there : {false, true}) {
      for (const auto name : md::activation_names)
        if ((roles & md::activation_named(name)).any())
          run_again(md::activation_named(name), ly::dropping::named, waits, there);
      run_again(roles, ly::dropping::named, waits, there);
      run_again({}, ly::dropping::all, waits, there);
    }
  rig<Layer> brief(layer, usual, in, out, {}, ly::dropping::transient);  // without memory that outlives the call
  CHECK(brief.forward() == loss);
}

template <class Layer>
void check(const char* name, const Layer& layer, std::int64_t in, std::int64_t out) {
  CAPTURE(name);
  CHECK(gradients_error(layer, in, out) < tolerance);
  same_bits_again(layer, in, out);
}

using rows_in = md::dims<dim::width>;
using units = md::dims<dim::ffn>;
template <bool Bias, ly::storage Stored>
using to_heads = ly::linear<rows_in, md::dims<dim::heads, dim::head_size>, Bias, Stored>;
using up_layer = ly::linear<rows_in, units>;
using down_layer = ly::linear<units, rows_in>;

ly::layer_norm<> norm(std::int64_t width, const char* role = "ln_1.out") {
  return {"ln", width, 1e-5, md::activation_named(role)};
}
ly::rms_norm<> rms(std::int64_t width, const char* role = "ln_2.out") {
  return {"rms", width, 1e-5, md::activation_named(role)};
}
ly::gelu_mlp<up_layer, down_layer> mlp(std::int64_t width, std::int64_t ffn) {
  return {"mlp", up_layer("up", {width}, {ffn}), down_layer("down", {ffn}, {width})};
}
template <class Activation>
auto gated_mlp(std::int64_t width, std::int64_t ffn) {
  using in = ly::linear<rows_in, units, false, ly::storage::out_in>;
  using out = ly::linear<units, rows_in, false, ly::storage::out_in>;
  return ly::gated<Activation>("mlp", in("gate", {width}, {ffn}), in("up", {width}, {ffn}),
                               out("down", {ffn}, {width}));
}
ly::fused_attention<> fused(std::int64_t heads, std::int64_t head) {
  using f = ly::fused_attention<>;
  return {"attn", f::in_layer("in", {heads * head}, {3, heads, head}),
          f::out_layer("out", {heads, head}, {heads * head})};
}
template <class G = ly::grouped_attention<>>
G grouped(std::int64_t heads, std::int64_t group, std::int64_t head, std::int64_t width = 0) {
  const std::int64_t d = width > 0 ? width : heads * group * head;
  G all{"attn",
        typename G::q_layer("q", {d}, {heads, group, head}),
        typename G::kv_layer("k", {d}, {heads, head}),
        typename G::kv_layer("v", {d}, {heads, head}),
        typename G::out_layer("o", {heads, group, head}, {d}),
        50,
        {},
        5};
  if constexpr (G::norms_heads) {
    all.q_norm = {"q_norm", {heads, group}, head, 1e-5, ly::detail::kept_qkv};
    all.k_norm = {"k_norm", {heads}, head, 1e-5, ly::detail::kept_qkv};
  }
  return all;
}

// y = x w + (x w)^2 / 2 with the product kept for the backward, until `Kept`. It needs it in both halves.
struct product {};
template <ly::life Kept>
struct curved : ly::leaf {
  const char* name = "curved";
  std::int64_t width;
  explicit constexpr curved(std::int64_t elements) : width(elements) {}
  constexpr auto parameters() const { return ly::list(ly::parameter<ly::weight, rows_in>{"weight", {width}}); }
  constexpr auto activations() const { return ly::list(ly::activation<product, Kept, rows_in>{{width}}); }
  template <class B>
  void forward(const B& b, typename B::const_view x, typename B::view y) const {
    const auto w = b.vector(ly::weight{});
    b.make(product{}, [&](auto p) {
      for (std::int64_t r = 0; r < b.rows(); ++r)
        for (std::int64_t c = 0; c < width; ++c) p(r, c) = x(r, c) * w[static_cast<std::size_t>(c)];
    });
    b.give(y, [&](auto out) {
      const auto p = b.vector(product{});
      for (std::size_t i = 0; i < p.size(); ++i) out.elements()[i] = p[i] + p[i] * p[i] / 2;
    });
  }
  template <class B>
  void backward_input(const B& b, typename B::const_view /*x*/, typename B::const_view dy, typename B::view dx) const {
    const auto p = b[product{}];
    for (std::int64_t r = 0; r < b.rows(); ++r)
      for (std::int64_t c = 0; c < width; ++c)
        dx(r, c) = dy(r, c) * (1 + p(r, c)) * b.vector(ly::weight{})[static_cast<std::size_t>(c)];
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    const auto p = b[product{}];
    for (std::int64_t r = 0; r < b.rows(); ++r)
      for (std::int64_t c = 0; c < width; ++c)
        b.gradient_vector(ly::weight{})[static_cast<std::size_t>(c)] += dy(r, c) * (1 + p(r, c)) * x(r, c);
  }
};

}  // namespace

TEST_CASE("linear layers in both storage orders, with and without bias", "[model][gradient]") {
  check("in_out, bias", to_heads<true, ly::storage::in_out>("l", {4}, {2, 3}), 4, 6);
  check("in_out", to_heads<false, ly::storage::in_out>("l", {4}, {2, 3}), 4, 6);
  check("out_in, bias", to_heads<true, ly::storage::out_in>("l", {4}, {2, 3}), 4, 6);
  check("out_in", to_heads<false, ly::storage::out_in>("l", {4}, {2, 3}), 4, 6);
}

TEST_CASE("norms", "[model][gradient]") {
  CHECK(gradients_error(norm(5), 5, 5) < tolerance);
  CHECK(gradients_error(rms(5), 5, 5) < tolerance);
  // Their statistics come with their output: who keeps that gives it the same role, as `residual` does.
  const auto alone_again = [](const auto& layer) {
    rig r(layer, usual, 5, 5, layer.role);
    r.forward();
    r.replay();
  };
  CHECK_THROWS_WITH(
      alone_again(norm(5)),
      "heddle: the norm \"ln\" computes its statistics again together with its output; the layer that keeps "
      "the output must give it the norm's role");
  CHECK_THROWS_AS(alone_again(rms(5)), hd::config_error);
  check("norms of heads", ly::head_norm<hd::dim::heads, hd::dim::group>("hn", {2, 3}, 4, 1e-5), 24, 24);
  check("norms of heads by 1 + w", ly::shifted_head_norm<hd::dim::heads>("hn", {3}, 4, 1e-5), 12, 12);
  check("norms of all heads together", ly::joined_head_norm<hd::dim::heads, hd::dim::group>("hn", {2, 3}, 4, 1e-5), 24,
        24);
  CHECK(gradients_error(ly::rms_norm<hd::dim::width, true>("rms", 5, 1e-5), 5, 5) < tolerance);
  check("a norm behind a layer", ly::plain_residual(ly::normed_after(mlp(4, 7), ly::rms_norm<>("rms", 4, 1e-5))), 4, 4);
}

TEST_CASE("plain and gated MLPs", "[model][gradient]") {
  check("gelu_mlp", mlp(4, 7), 4, 4);
  check("gated_mlp of silu", gated_mlp<hd::compute::silu>(4, 7), 4, 4);
  check("gated_mlp of gelu", gated_mlp<hd::compute::gelu_tanh>(4, 7), 4, 4);
}

TEST_CASE("mixtures of experts", "[model][gradient][experts]") {
  check("two of five", ly::experts<>("moe", "gate", 5, 2, 4, 3), 4, 4);
  check("three of four, softmax of all, gelu",
        ly::experts<hd::compute::softmax_of_all, hd::compute::gelu_tanh>("moe", "gate", 4, 3, 4, 3), 4, 4);
  check("one of one", ly::experts<>("moe", "gate", 1, 1, 4, 3), 4, 4);
}

TEST_CASE("attention with one product, and with grouped queries and rotary positions", "[model][gradient]") {
  check("fused", fused(2, 3), 6, 6);
  check("grouped, one query head each", grouped(2, 1, 4), 8, 8);
  check("grouped, three query heads each", grouped(2, 3, 2), 12, 12);
  check("grouped, one key-value head", grouped(1, 2, 4), 8, 8);
  check("biases", grouped<ly::grouped_attention<true, true>>(2, 2, 2), 8, 8);
  {
    using windowed = ly::grouped_attention<false, false, false, ly::storage::out_in, ly::no_adapter, true>;
    windowed attention = grouped<windowed>(1, 2, 4);
    attention.window = 2;
    check("a window", attention, 8, 8);
  }
  {
    using capped = ly::grouped_attention<false, false, false, ly::storage::out_in, ly::no_adapter, false, ly::head_norm,
                                         ly::storage::out_in, true>;
    capped attention = grouped<capped>(2, 2, 2);
    attention.score_cap = 0.3;
    check("scores below a cap", attention, 8, 8);
  }
  {
    using sinking = ly::grouped_attention<true, true, false, ly::storage::out_in, ly::no_adapter, true, ly::head_norm,
                                          ly::storage::out_in, false, true>;
    sinking attention = grouped<sinking>(2, 3, 2);
    attention.window = 2;
    check("sinks, a window and biases", attention, 12, 12);
  }
  {
    auto part = grouped(1, 2, 6);
    part.rotating = 4;
    part.longrope = {.count = 2, .original = 4, .table_factor = 1.3, .brief = {1, 1}, .extended = {2, 5}};
    check("two of three pairs rotate", part, 12, 12);
    using joined =
        ly::grouped_attention<false, false, true, ly::storage::out_in, ly::no_adapter, false, ly::joined_head_norm>;
    check("norms of all heads together", grouped<joined>(2, 2, 4, 6), 6, 6);
  }
  {
    using linear = ly::gated_linear_attention;
    check("linear attention",
          linear{"attn", linear::q_layer("q", {6}, {2, 2, 3}), linear::kv_layer("k", {6}, {2, 3}),
                 linear::kv_layer("v", {6}, {2, 3}), linear::down_layer("gk.0", {6}, {2}),
                 linear::up_layer("gk.1", {2}, {2, 3}),
                 linear::norm_layer("g_norm", {2, 2}, 3, 1e-5, ly::detail::kept_heads),
                 linear::out_layer("o", {2, 2, 3}, {6}), 0.7},
          6, 6);
  }
  check("normed heads, wider than the stream", grouped<ly::grouped_attention<false, false, true>>(2, 2, 4, 6), 6, 6);
  check("normed heads, biases, in_out", grouped<ly::grouped_attention<true, false, true, ly::storage::in_out>>(1, 2, 4),
        8, 8);
}

TEST_CASE("token embeddings, with and without learned positions", "[model][gradient]") {
  check("with positions", ly::embedding<true>{"", "words", "positions", 7, 4, 5}, 4, 4);
  check("without", ly::embedding<false>{"", "words", "", 7, 4, 5}, 4, 4);
}

TEST_CASE("language heads, tied and with a weight of their own, with ignored targets", "[model][gradient]") {
  check("tied", ly::language_head<ly::layer_norm<>, true>(norm(4, "ln_f.out"), 7), 4, 4);
  check("untied", ly::language_head<ly::rms_norm<>, false>(rms(4, "ln_f.out"), 7, "head"), 4, 4);
  ly::language_head<ly::rms_norm<>, false, false, true> capped(rms(4, "ln_f.out"), 7, "head");
  capped.logit_cap = 0.4;
  check("logits below a cap", capped, 4, 4);
}

TEST_CASE("language heads whose logits are made some words at a time", "[model][gradient]") {
  const ly::language_head<ly::layer_norm<>, true> tied(norm(4, "ln_f.out"), 7);
  const ly::language_head<ly::rms_norm<>, false> untied(rms(4, "ln_f.out"), 7, "head");
  check("tied, three of seven", ly::chunked_head<ly::layer_norm<>, true, 3>(tied), 4, 4);
  check("untied, all at once", ly::chunked_head<ly::rms_norm<>, false, 9>(untied), 4, 4);
  // One by one: the numbers of the head that keeps all logits.
  rig all(tied, usual, 4, 4);
  rig some(ly::chunked_head<ly::layer_norm<>, true, 1>(tied), usual, 4, 4);
  CHECK(some.forward() == Approx(all.forward()).epsilon(1e-13));
  const auto back = [](auto& r) {
    r.backward_input();
    r.backward_weight();
    return numbers(r.store.gradients().begin(), r.store.gradients().end());
  };
  CHECK(relative_error(back(some), back(all)) < 1e-12);
  CHECK(relative_error(some.dx, all.dx) < 1e-12);
  CHECK(relative_error(some.d_words, all.d_words) < 1e-12);
}

TEST_CASE("residual connections and sequences of two and three layers", "[model][gradient]") {
  const auto first = ly::residual(norm(4), mlp(4, 7));
  const auto second = ly::residual(rms(4), grouped(1, 2, 2));
  check("residual", first, 4, 4);
  check("two", ly::sequence(4, second, first), 4, 4);
  check("three", ly::sequence(4, first, second, ly::residual(norm(4), fused(2, 2))), 4, 4);
}

TEST_CASE("a layer that reads what its lifetimes call dead is noticed", "[model][gradient]") {
  CHECK(gradients_error(curved<ly::life::until_weight>(4), 4, 4) < tolerance);
  CHECK(std::isnan(gradients_error(curved<ly::life::until_input>(4), 4, 4)));
  CHECK(std::isnan(gradients_error(curved<ly::life::scratch>(4), 4, 4)));
}

TEST_CASE("forward equals formulas", "[model]") {
  const auto of = [](auto& r, const char* name) {
    for (const md::parameter& p : r.store.table())
      if (p.name == name) {
        const auto w = r.store.weights().subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
        return numbers(w.begin(), w.end());
      }
    throw std::runtime_error(std::string("no parameter ") + name);
  };
  const auto add_bias = [](numbers y, const numbers& bias) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
    return y;
  };
  const auto ran = [](auto& r) -> const numbers& {
    r.forward();
    return r.y;
  };
  {
    rig r(to_heads<true, ly::storage::in_out>("l", {4}, {2, 3}), usual, 4, 6);
    const auto product = serial::product(r.x, of(r, "l.weight"), 4, 6, serial::stored::in_out);
    CHECK(relative_error(ran(r), add_bias(product, of(r, "l.bias"))) < 1e-13);
  }
  {
    rig r(to_heads<false, ly::storage::out_in>("l", {4}, {2, 3}), usual, 4, 6);
    CHECK(relative_error(ran(r), serial::product(r.x, of(r, "l.weight"), 4, 6)) < 1e-13);
  }
  {
    rig r(norm(5), usual, 5, 5);
    const auto w = of(r, "ln.weight"), bias = of(r, "ln.bias");
    numbers expected;
    for (std::size_t row = 0; row < 6; ++row) {
      double mean = 0, variance = 0;
      for (std::size_t i = 0; i < 5; ++i) mean += r.x[row * 5 + i] / 5;
      for (std::size_t i = 0; i < 5; ++i) variance += std::pow(r.x[row * 5 + i] - mean, 2) / 5;
      for (std::size_t i = 0; i < 5; ++i)
        expected.push_back((r.x[row * 5 + i] - mean) / std::sqrt(variance + 1e-5) * w[i] + bias[i]);
    }
    CHECK(relative_error(ran(r), expected) < 1e-13);
  }
  {
    rig r(mlp(4, 7), usual, 4, 4);
    numbers h =
        add_bias(serial::product(r.x, of(r, "mlp.up.weight"), 4, 7, serial::stored::in_out), of(r, "mlp.up.bias"));
    for (double& v : h) v = v / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
    const auto product = serial::product(h, of(r, "mlp.down.weight"), 7, 4, serial::stored::in_out);
    CHECK(relative_error(ran(r), add_bias(product, of(r, "mlp.down.bias"))) < 1e-13);
  }
  {
    rig r(gated_mlp<hd::compute::silu>(4, 7), usual, 4, 4);
    numbers h = serial::product(r.x, of(r, "mlp.gate.weight"), 4, 7);
    const numbers up = serial::product(r.x, of(r, "mlp.up.weight"), 4, 7);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] *= up[i] / (1 + std::exp(-h[i]));
    CHECK(relative_error(ran(r), serial::product(h, of(r, "mlp.down.weight"), 7, 4)) < 1e-13);
  }
  {
    rig r(fused(2, 3), usual, 6, 6);
    const numbers all =
        add_bias(serial::product(r.x, of(r, "attn.in.weight"), 6, 18, serial::stored::in_out), of(r, "attn.in.bias"));
    numbers heads;
    for (std::size_t sample = 0; sample < 2; ++sample) {
      std::array<numbers, 3> qkv;
      for (std::size_t i = sample * 54; i < (sample + 1) * 54; ++i) qkv[i % 18 / 6].push_back(all[i]);
      const numbers out = serial::attention(qkv[0], qkv[1], qkv[2], 3, 2, 2, 3).out;
      heads.insert(heads.end(), out.begin(), out.end());
    }
    const auto product = serial::product(heads, of(r, "attn.out.weight"), 6, 6, serial::stored::in_out);
    CHECK(relative_error(ran(r), add_bias(product, of(r, "attn.out.bias"))) < 1e-13);
  }
}
