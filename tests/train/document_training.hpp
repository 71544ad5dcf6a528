// tests/train/document_training.hpp: documents of very different lengths, and training on them with any mesh and carrier.
#pragma once

#include "language_training.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/documents.hpp>
#include <heddle/train/context.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace document_training {

namespace hd = heddle;
using language_training::check_same, language_training::outcome;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::cp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;

/// Documents of 1 token to `longest`, most of them short, the same on every rank and in every run.
struct corpus {
  std::vector<std::int32_t> tokens{};
  std::vector<std::int64_t> starts{0};
  corpus(int documents, std::int64_t longest, int words) {
    const hd::counter_random random(17, 5);
    std::uint64_t at = 0;
    for (int d = 0; d < documents; ++d) {
      const double part = static_cast<double>(random.integer(at++) % 1000) / 999.0;
      // The first is as long as any may be, the second has one token, and one has none.
      const auto length = d == 0   ? longest
                          : d == 1 ? std::int64_t{1}
                          : d == 4 ? std::int64_t{0}
                                   : static_cast<std::int64_t>(std::exp(part * std::log(static_cast<double>(longest))));
      for (std::int64_t i = 0; i < length; ++i)
        tokens.push_back(static_cast<std::int32_t>(random.integer(at++) % static_cast<std::uint64_t>(words)));
      starts.push_back(static_cast<std::int64_t>(tokens.size()));
    }
  }
  hd::io::basic_documents<std::int32_t> documents() const {
    return {std::span<const std::int32_t>(tokens), std::span<const std::int64_t>(starts), {.validation = 0.2, .seed = 3}};
  }
};

struct setup {
  std::string mesh = "", context = "", schedule = "1f1b";
  int microbatches = 6;
  std::int64_t rows = 0;
  std::string again = "";
  bool plan_ahead = true;
};
template <class Model, class... Policies>
outcome train(const typename Model::config& settings, const setup& s) {
  const corpus all(30, settings.context, settings.vocabulary);
  hd::train::options<typename Model::config> o;
  o.model = settings;
  o.batch = 9;
  o.steps = 3;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  o.recompute = s.again;
  o.context = s.context;
  o.rows_per_rank = s.rows;
  o.plan_ahead = s.plan_ahead;
  return language_training::train_on<mesh_type, Model, Policies...>(o, s.mesh, s.schedule, s.microbatches,
                                                                    all.documents());
}

}  // namespace document_training
