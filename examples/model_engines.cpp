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

namespace {
struct engines_of_pools {
  inf::engine<runner, inf::prefix_shared> prompts;
  inf::engine<runner, inf::paged> answers;
};
struct pools_and_engines : private engines_of_pools,
                           public inf::pools<inf::engine<runner, inf::prefix_shared>, inf::engine<runner, inf::paged>,
                                             any_link, inf::engine_lane> {
  pools_and_engines(runner& first, runner& second, const inf::engine_options& options, any_link& link,
                    inf::engine_lane& lane)
      : engines_of_pools{inf::engine<runner, inf::prefix_shared>(first, options),
                         inf::engine<runner, inf::paged>(second, options)},
        pools(prompts, engines_of_pools::answers, link, lane) {}
};
}  // namespace

std::unique_ptr<inf::any_engine> make_pools(runner& prompts, runner& answers, const inf::engine_options& options,
                                            any_link& link, inf::engine_lane& lane) {
  return std::make_unique<inf::held_engine<pools_and_engines>>(prompts, answers, options, link, lane);
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
