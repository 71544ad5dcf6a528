// Every layer's backward against central differences of its forward, in double.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>

using namespace model_test;

namespace {

using backend = hd::compute::host<>;
using context = md::layer_context<backend, alone>;
using matrix = std::vector<double>;
constexpr double tolerance = 1e-6;

struct rank_alone {
  backend kernels{1};
  alone group{};
  context c{kernels, group};
};

auto m(matrix& v, std::int64_t rows, std::int64_t columns) { return md::as_matrix(std::span(v), rows, columns); }

struct place_for {
  explicit place_for(std::int64_t n) : memory(n) {}
  hd::buffer<double> memory;
  md::carver<double> carver() { return md::carver<double>(std::span<double>(memory.data(), memory.size())); }
};

}  // namespace

TEST_CASE("column_linear: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t rows = 5, in = 4, out = 7;
  owned_linear o(in, out, 1);
  const md::column_linear<double, alone_plan> layer{o.views()};
  matrix x = random_vector(rows * in, 3), y(rows * out), dx(x.size());
  matrix dy = random_vector(rows * out, 4);
  md::column_linear<double, alone_plan>::saved s;
  const auto loss = [&] {
    layer.forward(r.c, s, m(x, rows, in), m(y, rows, out));
    return dot(y, dy);
  };
  loss();
  layer.backward_input(r.c, m(dy, rows, out), m(dx, rows, in));
  layer.backward_weight(r.c, s, m(dy, rows, out));
  CHECK(difference_error(x, dx, loss) < tolerance);
  CHECK(difference_error(o.w, o.dw, loss) < tolerance);
  CHECK(difference_error(o.b, o.db, loss) < tolerance);
}

TEST_CASE("row_linear: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t rows = 3, in = 6, out = 4;
  owned_linear o(in, out, 11);
  const md::row_linear<double, alone_plan> layer{o.views()};
  matrix x = random_vector(rows * in, 13), y(rows * out), dx(x.size());
  matrix dy = random_vector(rows * out, 14);
  md::row_linear<double, alone_plan>::saved s;
  const auto loss = [&] {
    layer.forward(r.c, s, m(x, rows, in), m(y, rows, out));
    return dot(y, dy);
  };
  loss();
  layer.backward_input(r.c, m(dy, rows, out), m(dx, rows, in));
  layer.backward_weight(r.c, s, m(dy, rows, out));
  CHECK(difference_error(x, dx, loss) < tolerance);
  CHECK(difference_error(o.w, o.dw, loss) < tolerance);
  CHECK(difference_error(o.b, o.db, loss) < tolerance);
}

TEST_CASE("a row-parallel layer with no columns of its input is its bias", "[model]") {
  rank_alone r;
  owned_linear o(0, 4, 15);
  const md::row_linear<double, alone_plan> layer{o.views()};
  matrix x, y(3 * 4, std::nan(""));
  md::row_linear<double, alone_plan>::saved s;
  layer.forward(r.c, s, m(x, 3, 0), m(y, 3, 4));
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == o.b[i % 4]);
}

TEST_CASE("layer_norm: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t rows = 4, width = 9;
  owned_norm o(width, 21);
  const auto layer = o.layer();
  matrix x = random_vector(rows * width, 23, 2.0, 0.5), y(x.size()), dx(x.size());
  matrix dy = random_vector(rows * width, 24);
  place_for place(64);
  auto memory = place.carver();
  md::layer_norm<double>::saved s;
  s.place(memory, rows);
  const auto loss = [&] {
    layer.forward(r.c, s, m(x, rows, width), m(y, rows, width));
    return dot(y, dy);
  };
  loss();
  layer.backward_input(r.c, s, m(dy, rows, width), m(dx, rows, width));
  layer.backward_weight(r.c, s, m(dy, rows, width));
  CHECK(difference_error(x, dx, loss) < tolerance);
  CHECK(difference_error(o.w, o.dw, loss) < tolerance);
  CHECK(difference_error(o.b, o.db, loss) < tolerance);
}

TEST_CASE("self_attention: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t heads = 3, head_dim = 2, width = 5;
  const md::extent_of_batch e{2, 4};
  owned_linear qkv(width, 3 * heads * head_dim, 31), projection(heads * head_dim, width, 33);
  md::self_attention<double, alone_plan> layer;
  layer.c_attn.at = qkv.views();
  layer.c_proj.at = projection.views();
  layer.heads = heads;
  layer.head_dim = head_dim;
  matrix x = random_vector(e.rows() * width, 35), y(x.size()), dx(x.size());
  matrix dy = random_vector(e.rows() * width, 36);
  place_for place(4096);
  auto memory = place.carver();
  md::self_attention<double, alone_plan>::saved s;
  s.place(memory, e.rows(), heads, head_dim);
  const auto loss = [&] {
    layer.forward(r.c, s, e, m(x, e.rows(), width), m(y, e.rows(), width));
    return dot(y, dy);
  };
  loss();
  matrix scratch(static_cast<std::size_t>(e.rows() * heads * head_dim)), dqkv(3 * scratch.size());
  const auto dqkv_view = m(dqkv, e.rows(), 3 * heads * head_dim);
  layer.backward_input(r.c, s, m(dy, e.rows(), width), m(scratch, e.rows(), heads * head_dim), dqkv_view,
                       m(dx, e.rows(), width));
  layer.backward_weight(r.c, s, m(dy, e.rows(), width), dqkv_view);
  CHECK(difference_error(x, dx, loss) < tolerance);
  CHECK(difference_error(qkv.w, qkv.dw, loss) < tolerance);
  CHECK(difference_error(qkv.b, qkv.db, loss) < tolerance);
  CHECK(difference_error(projection.w, projection.dw, loss) < tolerance);
  CHECK(difference_error(projection.b, projection.db, loss) < tolerance);
}

TEST_CASE("mlp: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t rows = 3, width = 4, hidden = 10;
  owned_linear fc(width, hidden, 41), projection(hidden, width, 43);
  md::mlp<double, alone_plan> layer;
  layer.c_fc.at = fc.views();
  layer.c_proj.at = projection.views();
  matrix x = random_vector(rows * width, 45), y(x.size()), dx(x.size());
  matrix dy = random_vector(rows * width, 46);
  place_for place(1024);
  auto memory = place.carver();
  md::mlp<double, alone_plan>::saved s;
  s.place(memory, rows, hidden);
  const auto loss = [&] {
    layer.forward(r.c, s, m(x, rows, width), m(y, rows, width));
    return dot(y, dy);
  };
  loss();
  matrix d_hidden(static_cast<std::size_t>(rows * hidden));
  layer.backward_input(r.c, s, m(dy, rows, width), m(d_hidden, rows, hidden), m(dx, rows, width));
  layer.backward_weight(r.c, s, m(dy, rows, width), m(d_hidden, rows, hidden));
  CHECK(difference_error(x, dx, loss) < tolerance);
  CHECK(difference_error(fc.w, fc.dw, loss) < tolerance);
  CHECK(difference_error(fc.b, fc.db, loss) < tolerance);
  CHECK(difference_error(projection.w, projection.dw, loss) < tolerance);
  CHECK(difference_error(projection.b, projection.db, loss) < tolerance);
}

TEST_CASE("block: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const md::block_extents extents{6, 2, 3, 8};
  const md::extent_of_batch e{2, 3};
  const std::int64_t rows = e.rows(), d = extents.width;
  owned_norm ln_1(d, 51), ln_2(d, 53);
  owned_linear qkv(d, 18, 55), projection(6, d, 57), fc(d, 8, 59), out(8, d, 61);
  md::block<double, alone_plan> layer;
  layer.ln_1 = ln_1.layer();
  layer.ln_2 = ln_2.layer();
  layer.attn.c_attn.at = qkv.views();
  layer.attn.c_proj.at = projection.views();
  layer.attn.heads = extents.heads;
  layer.attn.head_dim = extents.head_dim;
  layer.ff.c_fc.at = fc.views();
  layer.ff.c_proj.at = out.views();
  layer.local = extents;
  place_for saved_place(8192), gradient_place(8192);
  auto saved_memory = saved_place.carver(), gradient_memory = gradient_place.carver();
  md::block<double, alone_plan>::saved s;
  s.place(saved_memory, rows, extents);
  md::block<double, alone_plan>::gradients g;
  g.place(gradient_memory, rows, extents);
  matrix x = random_vector(rows * d, 63), y(x.size()), dx(x.size()), scratch(static_cast<std::size_t>(rows * 6));
  const matrix dy = random_vector(rows * d, 64);
  const auto loss = [&] {
    std::copy(x.begin(), x.end(), s.x.begin());
    layer.forward(r.c, s, e, m(y, rows, d));
    return dot(y, dy);
  };
  loss();
  std::copy(dy.begin(), dy.end(), g.d_out.begin());
  layer.backward_input(r.c, s, g, scratch, m(dx, rows, d));
  layer.backward_weight(r.c, s, g);
  CHECK(difference_error(x, dx, loss) < tolerance);
  for (owned_norm* n : {&ln_1, &ln_2}) {
    CHECK(difference_error(n->w, n->dw, loss) < tolerance);
    CHECK(difference_error(n->b, n->db, loss) < tolerance);
  }
  for (owned_linear* l : {&qkv, &projection, &fc, &out}) {
    CHECK(difference_error(l->w, l->dw, loss) < tolerance);
    CHECK(difference_error(l->b, l->db, loss) < tolerance);
  }
}

TEST_CASE("vocabulary_embedding: gradients equal central differences", "[model][gradient]") {
  rank_alone r;
  const std::int64_t vocabulary = 5, d = 3, sequence = 4, samples = 2, rows = sequence * samples;
  matrix wte = random_vector(vocabulary * d, 71), wpe = random_vector(6 * d, 72), dwte(wte.size()), dwpe(wpe.size());
  const md::vocabulary_embedding<double, alone_plan> layer{m(wte, vocabulary, d), m(dwte, vocabulary, d), 0, m(wpe, 6, d),
                                                           m(dwpe, 6, d)};
  const auto tokens = random_ids(rows, 5, 73);
  matrix y(static_cast<std::size_t>(rows * d)), dy = random_vector(rows * d, 74);
  const auto loss = [&] {
    layer.forward(r.c, tokens, sequence, m(y, rows, d));
    return dot(y, dy);
  };
  loss();
  layer.backward_weight(r.c, tokens, sequence, m(dy, rows, d));
  CHECK(difference_error(wte, dwte, loss) < tolerance);
  CHECK(difference_error(wpe, dwpe, loss) < tolerance);
}

TEST_CASE("tied_head: gradients equal central differences, ignored targets count nothing", "[model][gradient]") {
  rank_alone r;
  const std::int64_t vocabulary = 7, d = 4, rows = 6;
  matrix wte = random_vector(vocabulary * d, 81), dwte(wte.size());
  const md::tied_head<double, alone_plan> layer{m(wte, vocabulary, d), m(dwte, vocabulary, d), 0};
  auto targets = random_ids(rows, 7, 82);
  targets[2] = -100;
  matrix h = random_vector(rows * d, 83), dh(h.size());
  place_for place(1024);
  auto memory = place.carver();
  md::tied_head<double, alone_plan>::saved s;
  s.place(memory, rows, vocabulary);
  const double scale = 0.25;
  const auto loss = [&] { return scale * layer.forward(r.c, s, m(h, rows, d), targets); };
  loss();
  layer.backward_input(r.c, s, targets, scale, m(dh, rows, d));
  layer.backward_weight(r.c, s);
  for (std::int64_t i = 0; i < d; ++i) CHECK(dh[static_cast<std::size_t>(2 * d + i)] == 0);
  CHECK(difference_error(h, dh, loss) < tolerance);
  CHECK(difference_error(wte, dwte, loss) < tolerance);
}
