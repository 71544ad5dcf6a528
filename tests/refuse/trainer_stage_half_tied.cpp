// refuse: heddle: a stage whose weight another stage has too (model::of_stage::ties_embedding) needs tied_gradient(), `std::int64_t tied_elements() const` and `bool borrows_embedding() const`; one of them is missing or misspelled
// why: a tied weight without its size
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void tied_elements() = delete;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);
