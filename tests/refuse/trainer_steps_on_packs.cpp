// refuse: heddle: this is no data for the model: a trainer takes samples such as io::dataset (tokens, for model::batch), io::pairs (x and y, for model::pair_batch) or io::basic_documents (for a context split)
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/io/tokens/best_fit.hpp>
#include <heddle/io/tokens/megatron_index.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh>;
void train(const hd::train::options<hd::model::gpt2_config>& o,
           const hd::io::packed_documents<hd::io::megatron_corpus>& data) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.step(data);
  });
}
