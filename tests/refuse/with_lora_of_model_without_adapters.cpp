// refuse: heddle: with_lora needs a model whose describe(config, adapter) takes an adapter (`auto... adapt`)
#include <heddle/model/gpt2.hpp>
#include <heddle/model/with_lora.hpp>

namespace md = heddle::model;
struct plain : md::gpt2<float> {
  static constexpr auto describe(const md::gpt2_config& c) { return md::describe_gpt2(c); }
};
using described = decltype(md::with_lora<plain>::describe({}));

int main() {}
