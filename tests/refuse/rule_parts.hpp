// A rule of an optimizer in parts, and all that a program does with one; each file leaves a part out.
#pragma once

#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/save.hpp>

#include <cstdint>
#include <string>

namespace rule_parts {

namespace hd = heddle;

struct named {
  static constexpr const char* name = "own";
};
struct counted {
  static constexpr int moments = 1;
};
struct configured {
  struct options {
    void validate() const {}
    friend std::string to_string(const options&) { return {}; }
  };
};
struct scaled {
  template <class T>
  struct scalars {
    T rate;
  };
  template <class T>
  static scalars<T> at(const configured::options&, double rate, std::int64_t, bool) {
    return {static_cast<T>(rate)};
  }
};
struct updating {
  template <class T>
  static void update(T& w, T g, T*, const scaled::scalars<T>& s) {
    w -= s.rate * g;
  }
};
template <class... Parts>
struct rule : Parts... {
  using kind = hd::optimizer_kind;
};

/// Trains and saves by a strategy with these policies.
template <class Mesh, class... Policies>
void train_on(const trainer_parts::options& o) {
  hd::launch<hd::threads>(Mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<Mesh, Policies...>>(hd::model::gpt2<float>{}, world, o);
    hd::train::resume(trainer, "saves");
    trainer.run(trainer_parts::no_data{});
    hd::train::save(trainer, "saves");
  });
}
template <class... Policies>
void train(const trainer_parts::options& o) {
  train_on<trainer_parts::mesh, Policies...>(o);
}

}  // namespace rule_parts
