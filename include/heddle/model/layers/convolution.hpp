// heddle/model/layers/convolution.hpp: convolutions over images in the residual stream.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/layers/combinators.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model::layers {

struct neighbours {};    ///< activation: the neighbourhood of each pixel, as a row
struct d_neighbours {};  ///< gradient of `neighbours`

namespace detail {
template <bool Ok, class How>
inline constexpr bool images_are_whole = Ok;
}  // namespace detail

/// y = f(neighbours of x): `F` takes the square neighbourhood of each pixel, tap by tap and zeros outside the image, so that a
/// linear layer from dims<dim::taps, dim::width> is a convolution with stride 1 that keeps the size. What F splits of its
/// hidden units, such as the channels inside a `gelu_mlp`, is split as there.
/// Errors: `config_error` if samples are no whole images.
/// Shapes: x, y [samples * height * width, channels]; neighbours [samples * height * width, taps, channels].
template <class F>
struct convolution {
  const char* name;
  compute::image_window window;
  std::int64_t channels;
  F f;

  constexpr convolution(const char* called, compute::image_window around, std::int64_t width, F layer)
      : name(called), window(around), channels(width), f(layer) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(f); }
  constexpr auto activations() const {
    using taps = dims<dim::taps, dim::width>;
    return list(activation<neighbours, life::until_weight, taps>{{window.taps(), channels}},
                activation<d_neighbours, life::scratch, taps>{{window.taps(), channels}});
  }
  using needs = compute::facet_list<compute::image_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    static_assert(
        detail::images_are_whole<!B::layouts::template splits_rows<dims<dim::taps, dim::width>>,
                                 typename B::layouts::how>,
        "heddle: a convolution computes whole images, whose pixels are rows: leave dim::sequence out of the sharding");
    detail::require_whole_samples<std::remove_cvref_t<decltype(*this)>, B>();
    require_images(b.run().extent.sequence);
    auto [inner] = b.children();
    b.make(neighbours{}, [&](auto v) { compute::run<compute::ops::unfold>(b.compute(), x, window, v); });
    return inner.forward(b[neighbours{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view /*x*/, typename B::const_view dy, typename B::view dx) const {
    using taps = typename B::layouts::template edge<dims<dim::taps, dim::width>>;
    auto [inner] = b.children();
    detail::require_settled<F, dual<taps>>(inner.backward_input(b[neighbours{}], dy, b[d_neighbours{}]));
    compute::run<compute::ops::unfold_backward>(b.compute(), b[d_neighbours{}], window, dx);
    return made<dual<typename B::layouts::template edge<dims<dim::width>>>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view /*x*/, typename B::const_view dy) const {
    auto [inner] = b.children();
    inner.backward_weight(b[neighbours{}], dy);
  }

 private:
  void require_images(std::int64_t rows) const {
    if (window.pixels() < 1 || rows % window.pixels() != 0)
      throw config_error("heddle: the convolution \"" + std::string(name) + "\" takes images of " +
                         std::to_string(window.height) + " x " + std::to_string(window.width) +
                         " pixels, but a sample has " + std::to_string(rows) + " rows");
  }
};

}  // namespace heddle::inline v0::model::layers
