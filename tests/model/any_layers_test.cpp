#include "catch.hpp"

#include <heddle/model/any_layers.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace hd = heddle;
namespace md = heddle::model;

namespace {

struct layers_that_move : md::resident_layers<float> {
  using resident_layers<float>::resident_layers;
  static constexpr bool moves = true;
};
struct layers_that_may_move : layers_that_move {
  struct settings {
    bool leave = false;
  };
  layers_that_may_move(hd::host_memory::queue& queue, const settings& how, int slots,
                       std::span<const std::int64_t> elements)
      : layers_that_move(queue, {}, slots, elements), leave_(how.leave) {}
  bool moves_now() const noexcept { return leave_; }

 private:
  bool leave_;
};

template <class Memory>
bool moves(const typename Memory::settings& how) {
  hd::host_memory::queue queue;
  const std::array<std::int64_t, 2> elements{3, 4};
  using any = md::any_layers<float>;
  const any layers(queue, any::settings::template of<Memory>(how), 2, elements);
  return md::moves_now(layers);
}

}  // namespace

TEST_CASE("memory of activations without its type says what the memory says of moving them", "[model][any_layers]") {
  CHECK_FALSE(moves<md::resident_layers<float>>({}));
  CHECK(moves<layers_that_move>({}));
  CHECK_FALSE(moves<layers_that_may_move>({false}));
  CHECK(moves<layers_that_may_move>({true}));
  hd::host_memory::queue queue;
  const std::array<std::int64_t, 1> elements{3};
  CHECK_FALSE(md::moves_now(md::any_layers<float>(queue, {}, 1, elements)));  // resident
}
