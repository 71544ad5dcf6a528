// refuse: heddle: an optimizer's rule needs `struct options` with a friend `std::string to_string(const options&)`, which ranks compare before they start
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/save.hpp>

#include <cstdint>
#include <string>

namespace hd = heddle;
struct own {
  using kind = hd::optimizer_kind;
  static constexpr const char* name = "own";
  static constexpr int moments = 1;
  template <class T>
  struct scalars {
    T rate;
  };
  template <class T>
  static scalars<T> at(int, double rate, std::int64_t, bool) {
    return {static_cast<T>(rate)};
  }
  template <class T>
  static void update(T& w, T g, T*, const scalars<T>& s) {
    w -= s.rate * g;
  }
};
using strategy = hd::strategy<trainer_parts::mesh, own>;
void train(const trainer_parts::options& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    hd::train::resume(trainer, "saves");
    trainer.run(trainer_parts::no_data{});
    hd::train::save(trainer, "saves");
  });
}
