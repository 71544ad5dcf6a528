// examples/model_engines.cpp: engines for all tools.
#include "model_engines.hpp"

#include <heddle/infer/engine.hpp>

#include <utility>

namespace model_ranks {

namespace inf = heddle::infer;

template <class Decoding>
std::unique_ptr<inf::any_engine> make_engine(runner& steps, const inf::engine_options& options, Decoding decoding) {
  using engine = inf::engine<runner, inf::prefix_shared, Decoding>;
  return std::make_unique<inf::held_engine<engine>>(steps, options, std::move(decoding));
}
#if !defined(HEDDLE_EXAMPLE_ONE_UNIT)
template std::unique_ptr<inf::any_engine> make_engine(runner&, const inf::engine_options&, inf::one_token);
template std::unique_ptr<inf::any_engine> make_engine(runner&, const inf::engine_options&, inf::ngram_speculation<>);
template std::unique_ptr<inf::any_engine> make_engine(runner&, const inf::engine_options&,
                                                      inf::draft_speculation<runner>);
template std::unique_ptr<inf::any_engine> make_engine(runner&, const inf::engine_options&, falcon);
template std::unique_ptr<inf::any_engine> make_engine(runner&, const inf::engine_options&, medusa);
#endif

}  // namespace model_ranks
