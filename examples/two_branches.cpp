// Trains super-resolution of sharp and of blurred pictures on branches of their own, which exchange weights slowly, and merges them.
// run: --steps 60 --out two_branches.pgm
// prints: PSNR in dB     sharp  blurred
// prints: merged
// prints: wrote two_branches.pgm
#include "portable_map.hpp"
#include "tool.hpp"

#include <heddle/heddle.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/model.hpp>
#include <heddle/train.hpp>
#include <heddle/train/branches.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::model::dims, hd::model::by_inputs;
namespace dim = hd::dim;

namespace {

constexpr int side = 8;  // of a picture of low resolution
struct branch {};
using whole = hd::mesh<hd::axis<branch, 2>, hd::axis<dp, 2>>;
using strategy = hd::strategy<hd::mesh<hd::axis<dp, 2>>, hd::zero<1>>;

// From each pixel of low resolution to a patch of scale x scale pixels: a target of that many numbers for each row.
struct super_resolution
    : hd::model::described<super_resolution, float, hd::model::pair_batch<float>, hd::model::network_config> {
  static auto describe(const config& c) {
    using namespace hd::model::layers;
    using in = linear<dims<dim::features>, dims<dim::width>>;
    using up = linear<dims<dim::taps, dim::width>, dims<dim::ffn>>;
    using down = linear<dims<dim::ffn>, dims<dim::width>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    const gelu_mlp channels("conv", up("up", {9, c.width}, {c.hidden}, by_inputs(9 * c.width)),
                            down("down", {c.hidden}, {c.width}, by_inputs(c.hidden)));
    return network(in("in", {c.inputs}, {c.width}, by_inputs(c.inputs)), "block.", c.layers,
                   residual(layer_norm<>("norm", c.width, 1e-5), convolution("", {side, side}, c.width, channels)),
                   squared_error(out("out", {c.width}, {c.outputs}, by_inputs(c.width))));
  }
};

// Pictures of gratings, edges and bars, seen through a lens that blurs by so many pixels of high resolution.
struct pictures {
  std::vector<float> x, y;
  int scale;

  pictures(std::uint64_t seed, int count, int times, double blur) : scale(times) {
    const hd::counter_random random(seed, 11);
    const int high = side * scale, reach = static_cast<int>(std::ceil(2 * blur));
    for (int n = 0; n < count; ++n) {
      const auto draw = [&](int k) { return random.uniform(static_cast<std::uint64_t>(8 * n + k)); };
      const double angle = 2 * M_PI * draw(0), shift = draw(2), wave = (2 + 4 * draw(1)) * scale;
      const auto light = [&](int p, int q) {
        const double along = (p * std::cos(angle) + q * std::sin(angle)) / wave + shift;
        if (n % 3 == 0) return 0.5 + 0.4 * std::sin(2 * M_PI * along);
        const double in_wave = along - std::floor(along);
        return n % 3 == 1 ? (along - shift > (0.5 - shift) ? 0.9 : 0.1) : (in_wave < 0.35 ? 0.85 : 0.15);
      };
      const auto seen = [&](int p, int q) {
        double sum = 0, weight = 0;
        for (int i = -reach; i <= reach; ++i)
          for (int j = -reach; j <= reach; ++j) {
            const double w = blur > 0 ? std::exp(-(i * i + j * j) / (2 * blur * blur)) : 1;
            sum += w * light(p + i, q + j);
            weight += w;
          }
        return static_cast<float>(sum / weight);
      };
      for (int p = 0; p < high; p += scale)
        for (int q = 0; q < high; q += scale) {
          float mean = 0;
          for (int k = 0; k < scale * scale; ++k) {
            y.push_back(seen(p + k / scale, q + k % scale));
            mean += y.back();
          }
          x.push_back(mean / static_cast<float>(scale * scale));
        }
    }
  }
  hd::io::pairs<float, float> data() const {
    return {x, y, {.inputs = side * side, .targets = side * side * scale * scale, .validation = 0.25}};
  }
  pictures& operator+=(const pictures& more) {  // one of each in turn, so that a mix has as many held out of both
    const auto blend = [](std::vector<float>& a, const std::vector<float>& b, std::size_t of_one) {
      std::vector<float> all;
      for (std::size_t i = 0; i < a.size(); i += of_one) {
        all.insert(all.end(), a.begin() + static_cast<std::ptrdiff_t>(i),
                   a.begin() + static_cast<std::ptrdiff_t>(i + of_one));
        all.insert(all.end(), b.begin() + static_cast<std::ptrdiff_t>(i),
                   b.begin() + static_cast<std::ptrdiff_t>(i + of_one));
      }
      a = std::move(all);
    };
    blend(x, more.x, side * side);
    blend(y, more.y, static_cast<std::size_t>(side * side * scale * scale));
    return *this;
  }
};

struct settings {
  int scale = 2, steps = 300, seed = 1;
  double keep = 0.97;
  std::string out;
};

void say(const char* network, double sharp, double blurred) {
  std::printf("%-14s %6.2f   %6.2f\n", network, -10 * std::log10(sharp), -10 * std::log10(blurred));
}

// From top to bottom: a held-out picture of low resolution as large blocks, what a network makes of it, and the picture itself.
template <class Trainer>
void write_strip(Trainer& trainer, const pictures& all, const std::string& path, bool writes) {
  const auto scale = static_cast<std::size_t>(all.scale), high = side * scale, last = all.x.size() - side * side;
  const std::vector<float> low(all.x.begin() + static_cast<std::ptrdiff_t>(last), all.x.end());
  const std::vector<float> made = hd::train::predict(trainer, low);
  if (!writes) return;
  portable_map::picture strip{static_cast<std::int64_t>(3 * high), static_cast<std::int64_t>(high), 1,
                              std::vector<std::uint8_t>(3 * high * high)};
  for (std::size_t p = 0; p < 3 * high; ++p)
    for (std::size_t q = 0; q < high; ++q) {
      const std::size_t row = p % high, pixel = row / scale * side + q / scale;
      const std::size_t at = pixel * scale * scale + row % scale * scale + q % scale;
      const float light = p < high ? low[pixel] : p < 2 * high ? made[at] : all.y[last * scale * scale + at];
      strip.values[p * high + q] = static_cast<std::uint8_t>(std::clamp(255 * light, 0.0F, 255.0F));
    }
  portable_map::write_picture(path, strip);
  std::printf("wrote %s\n", path.c_str());
}

void run(const settings& s) {
  const auto seed = static_cast<std::uint64_t>(s.seed);
  const pictures sharp(seed, 384, s.scale, 0), blurred(seed + 1000, 384, s.scale, 0.8 * s.scale);
  const auto of_sharp = sharp.data(), of_blurred = blurred.data();
  hd::train::options<super_resolution::config> options{
      .model = {.outputs = s.scale * s.scale, .width = 16, .hidden = 32, .context = side * side},
      .batch = 16,
      .steps = s.steps};
  options.seed = seed;
  options.learning_rate = {.peak = 5e-3, .warmup_steps = 10};
  auto of_mix = options;
  of_mix.batch *= 2;
  pictures both = sharp;
  both += blurred;
  hd::launch<hd::threads, whole>([&](auto& world) {
    if (world.rank() == 0) std::printf("PSNR in dB     sharp  blurred\n");
    auto own = world.template sub<dp>();
    const int mine = world.template along<branch>().rank();
    auto trainer = hd::train::make_trainer<strategy>(super_resolution{}, own, options);
    auto exchange = hd::train::branches<branch>(trainer, world, {.keep = s.keep});
    trainer.run(mine == 0 ? of_sharp : of_blurred, hd::train::quiet{}, hd::train::every(1, exchange));
    const auto tell = [&](const char* network, auto& of_network, int of) {
      const double errors[] = {of_network.validate(of_sharp), of_network.validate(of_blurred)};
      world.control().barrier();
      if (mine == of && own.rank() == 0) say(network, errors[0], errors[1]);
      world.control().barrier();
    };
    tell("sharp branch", trainer, 0);
    tell("blurred branch", trainer, 1);
    const hd::train::branch_losses losses =
        mine == 0 ? exchange.barrier(trainer, of_sharp) : exchange.barrier(trainer, of_blurred);
    exchange.merge(trainer);
    tell("merged", trainer, 0);
    if (world.rank() == 0) std::printf("barrier        %+.6f of the squared error\n", losses.barrier());
    // For comparison: one network on both kinds of pictures, as many of each.
    auto mixed = hd::train::make_trainer<strategy>(super_resolution{}, own, of_mix);
    mixed.run(both.data());
    tell("on the mix", mixed, 0);
    if (!s.out.empty()) write_strip(trainer, sharp, s.out, world.rank() == 0);
  });
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app(
      "Trains super-resolution on two branches of ranks that exchange weights slowly, and merges them.");
  app.add_option("--scale", s.scale, "times as many pixels along each side")->range(2, 4);
  app.add_option("--steps", s.steps, "steps of each branch")->range(1, 1000000);
  app.add_option("--seed", s.seed, "of pictures and first weights");
  app.add_option("--keep", s.keep, "d: of its own weights each branch keeps so much in an exchange");
  app.add_option("--out", s.out, "PGM of a held-out picture: low resolution, made, real");
  return tool::run(app, argc, argv, [&] { run(s); });
}
