// refuse: heddle: a stage that is saved needs parameters with logical, local and start
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct entry {  // all that training needs
  std::string name;
  int id;
  std::int64_t offset, count;
  bool counted, decay;
};
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using hd::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    const std::vector<entry>& parameters() const { return entries; }
    std::vector<entry> entries;
  };
};
void save_and_resume(hd::train::trainer<model, hd::strategy<mesh>>& trainer) {
  hd::train::save(trainer, "saves");
  hd::train::resume(trainer, "saves");
}
