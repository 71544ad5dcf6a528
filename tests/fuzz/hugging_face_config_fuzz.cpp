// config.json of Hugging Face: what is accepted is a configuration that is valid, with finite rotary frequencies, and no name comes twice.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/json/strict.hpp>
#include <heddle/model/hugging_face/config.hpp>

#include "fuzz.hpp"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <variant>

HEDDLE_FUZZ_TARGET(hugging_face_config) {
  namespace md = heddle::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepted([&] {
    const nlohmann::json config = heddle::io::parse_json(text, "x");
    fuzz::require(heddle::io::parse_json(config.dump(), "x") == config, "what is printed reads back");
    const md::hugging_face_model m = md::from_config(config);
    std::visit([](const auto& c) { c.validate(); }, m.config);
    if (m.scales)
      for (const std::int64_t size : {m.scales->blocks.rows, m.scales->blocks.columns})
        fuzz::require(size >= 1, "blocks have elements");
    if (const auto* const c = std::get_if<md::llama_config>(&m.config); c != nullptr && c->head_dim() <= 4096)
      for (const double f : heddle::compute::rotary_frequencies(c->head_dim(), c->theta, c->scaling))
        fuzz::require(std::isfinite(f) && f >= 0, "frequencies are finite");
    fuzz::require(md::from_config(config).config == m.config, "it reads the same twice");
  });
}
#endif
