// examples/model_ranks.cpp: loads models, and what speculates for them, for all tools.
#include "model_ranks.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/falcon_folder.hpp>
#include <heddle/infer/families.hpp>
#include <heddle/infer/medusa_folder.hpp>
#include <heddle/infer/move_cache.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/infer/widened_runner.hpp>
#include "model_engines.hpp"
#include "model_folder.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace model_ranks {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

using whole_mesh = tool_mesh;  // one rank along dp
using backend = computed::by;

// Models of bf16 double what is compiled, so only programs for CUDA devices have them, and one of the tests.
#if defined(HEDDLE_EXAMPLE_CUDA) || defined(HEDDLE_EXAMPLE_BF16)
inline constexpr bool has_bf16 = true;
#else
inline constexpr bool has_bf16 = false;
#endif

struct loaded_model {
  runner steps;
  host_backend& kernels;
  std::string family{};
  std::string mesh{};
  std::int64_t width = 0;
  double epsilon = 0;                      ///< of the final norm
  md::falcon_base<float>* base = nullptr;  ///< where `options::base` is set
};

/// Errors: `config_error` for families whose final norm is no RMS norm, which `what` needs.
void require_rms_norm(std::string_view family, const std::string& what) {
  if (family == "gpt2")
    throw hd::config_error("heddle: " + what + " for models whose final norm is an RMS norm, not for gpt2");
}

/// The backend of a rank, and the host's for drafters, which are one where the model is the host's.
class kernels_of_rank {
 public:
  explicit kernels_of_rank(int threads) : model_(computed::backend_of(threads)), drafters_(threads) {}
  backend& of_model() noexcept { return model_; }
  host_backend& of_drafters() noexcept { return one_of(model_, drafters_); }

 private:
  struct nothing {
    explicit nothing(int) {}
  };
  static host_backend& one_of(host_backend& model, nothing&) noexcept { return model; }
  template <class OfModel>
  static host_backend& one_of(OfModel&, host_backend& own) noexcept {
    return own;
  }
  backend model_;
  std::conditional_t<std::is_same_v<backend, host_backend>, nothing, host_backend> drafters_;
};

/// Calls use(steps) with a runner of steps in float.
template <class Runner, class Use>
void in_float(Runner& of, Use&& use) {
  if constexpr (hd::is_half_precision<typename Runner::scalar>) {
    inf::widened_runner wide(of);
    use(runner(wide));
  } else {
    use(runner(of));
  }
}

using world_type = hd::world<hd::threads, whole_mesh>;

whole_mesh whole(const std::string& text) {
  const auto mesh = hd::parse_mesh<mesh_type>(text);
  return whole_mesh(1, mesh.extent<hd::pp>(), mesh.extent<hd::ep>(), mesh.extent<hd::tp>());
}

/// A model's files, and what runs on a rank of it.
template <class T>
class model_files {
 public:
  model_files(const options& o, const md::hugging_face_model& about)
      : o_(o),
        config(about, o.context),
        outlines_(md::outlines_of<T>(config)),
        weights_(o.model, about, outlines_),
        loading(std::in_place, "loading", std::ssize(outlines_), "tensors") {}
  auto runner_of(world_type& world, backend& kernels, bool counts) {
    const std::int64_t tokens =
        o_.cache_tokens > 0 ? o_.cache_tokens : (std::min)(std::int64_t{config.context}, std::int64_t{4096});
    const std::int64_t blocks = o_.cache_bytes
                                    ? inf::cache_blocks_for<T>(config, *o_.cache_bytes, world, kernels, o_.block_rows)
                                    : (tokens + o_.block_rows - 1) / o_.block_rows;
    auto on_ranks = inf::make_runner<T>(config, world, kernels, {blocks, o_.block_rows}, o_.rows);
    weights_.read(on_ranks->stage(), *loading, counts && is_first_copy(world));
    return on_ranks;
  }

 private:
  const options& o_;

 public:
  const md::any_config config;

 private:
  std::vector<md::parameter_outline> outlines_;
  model_weights weights_;

 public:
  std::optional<tool::progress> loading;
};

// A link between the ranks that lead two runners.
template <class Runner, class Mover>
struct held_link final : any_link {
  using link_type = inf::mover_link<Runner, Runner, Mover, inf::engine_lane>;
  explicit held_link(link_type& l) : link(l) {}
  void begin(const inf::row_transfer& t) override { link.begin(t); }
  inf::row_progress progress(inf::request_id id) override { return link.progress(id); }
  void end(inf::request_id id) override { link.end(id); }
  link_type& link;
};

/// Prompts on the ranks of one mesh behind those of answers. `lead(runner of prompts, of answers, link, lane, family)` is called on rank 0.
template <class T, class Lead>
void run_pools(const options& o, const md::hugging_face_model& about, const Lead& lead) {
  const whole_mesh of_answers = whole(o.decode), of_prompts = whole(o.prefill);
  for (const std::string& pool : {o.decode, o.prefill}) mesh_for<mesh_type>(pool, md::any_config(about));
  model_files<T> files(o, about);
  std::vector<int> all(static_cast<std::size_t>(ranks_of(o)));
  std::iota(all.begin(), all.end(), 0);
  const auto first = static_cast<std::size_t>(of_answers.size());
  using any_runner = inf::any_model_runner<T, hd::space_of<backend>>;
  using mover_type = inf::cache_mover<world_type, backend, inf::any_cached_rows<T, hd::space_of<backend>>>;
  any_runner* prompts = nullptr;
  mover_type* there = nullptr;
  inf::engine_lane lane;
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);
  hd::launch<hd::threads>(whole_mesh(ranks_of(o), 1, 1, 1), ranks, [&](world_type& world) {
    kernels_of_rank kernels(o.threads);
    auto answer_world = world.on(of_answers, std::span<const int>(all).first(first));
    auto prompt_world = world.on(of_prompts, std::span<const int>(all).subspan(first));
    const auto own =
        files.runner_of(answer_world ? *answer_world : *prompt_world, kernels.of_model(), answer_world.has_value());
    mover_type mover(world, kernels.of_model(), prompt_world ? own.get() : nullptr, answer_world ? own.get() : nullptr);
    if (prompt_world && own->leads()) prompts = own.get(), there = &mover;
    world.control().barrier();
    if (!own->leads()) {
      while (own->follow() == inf::followed::interrupted) mover.follow();
      return;
    }
    if (prompt_world) {
      lane.serve();
    } else {
      const inf::lane_end end(lane);
      files.loading.reset();
      typename held_link<any_runner, mover_type>::link_type link(*prompts, *own, mover, *there, lane);
      held_link<any_runner, mover_type> held(link);
      in_float(*prompts, [&](runner a) { in_float(*own, [&](runner b) { lead(a, b, held, lane); }); });
    }
    own->finish();
  });
}

template <class T>
void run_model(const options& o, const md::hugging_face_model& about,
               const std::function<void(const loaded_model&)>& lead) {
  const auto mesh = mesh_for<mesh_type>(o.mesh, md::any_config(about));
  model_files<T> files(o, about);
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);  // those that follow wait for as long as there is nothing to do
  hd::launch<hd::threads>(whole(o.mesh), ranks, [&](world_type& world) {
    kernels_of_rank kernels(o.threads);
    const auto on_ranks = files.runner_of(world, kernels.of_model(), true);
    world.control().barrier();  // a rank that cannot load is to end the others before anything begins
    md::falcon_base<float> base;
    if constexpr (std::is_same_v<T, float>)
      if (o.base) base = md::gather_falcon_base(on_ranks->stage(), world);
    if (!on_ranks->leads()) {
      on_ranks->follow();
      return;
    }
    files.loading.reset();
    in_float(*on_ranks, [&](const runner& steps) {
      const auto norm = [](const auto& c) { return c.epsilon; };
      lead({steps, kernels.of_drafters(), std::string(about.family()), words_of(mesh), files.config.width,
            files.config.with(norm), o.base ? &base : nullptr});
    });
    on_ranks->finish();
  });
}

/// Loads the model on all ranks, and calls `lead` on the one that leads.
void with_model(const options& o, const std::function<void(const loaded_model&)>& lead) {
  const auto about = read_model_folder(o.model, o.ignored_keys, o.blocks).about;
  if (o.base) require_rms_norm(about.family(), "drafters of Falcon are");
#if defined(HEDDLE_EXAMPLE_CUDA) || defined(HEDDLE_EXAMPLE_BF16)
  if (o.dtype == "bf16" && std::holds_alternative<md::deepseek_config>(about.config))
    throw hd::config_error("heddle: --dtype bf16 is not for DeepSeek, whose experts are chosen in float: take f32");
  if (o.dtype == "bf16") return run_model<hd::bf16>(o, about, lead);
#endif
  run_model<float>(o, about, lead);
}

/// Calls `use(decoding policy)` with what speculates for a model that was loaded with `options_for`. Errors: `config_error` for folders that do not fit.
template <class Use>
void with_speculation(const speculation& s, const options& o, const loaded_model& of, Use&& use) {
  require_speculation(s);
  const inf::step_limits limits = of.steps.limits();
  if (s.by == "none") return use(inf::one_token{});
  if (s.by == "ngram") return use(inf::ngram_speculation<>{});
  if (s.by == "draft") {
    options own = o;
    own.model = s.draft;
    own.blocks = s.draft_blocks;
    own.mesh = "pp=1";
    own.base = false;
    return with_model(own, [&](const loaded_model& draft) {
      runner steps = draft.steps;
      if (steps.limits().vocabulary != limits.vocabulary)
        throw hd::config_error("heddle: a draft should have the model's vocabulary of " +
                               std::to_string(limits.vocabulary) + " tokens, got " +
                               std::to_string(steps.limits().vocabulary));
      use(inf::draft_speculation<runner>(steps));
    });
  }
  if (s.by == "falcon") {
    const inf::falcon_folder_settings settings = inf::read_falcon_settings(s.heads);
    inf::require_falcon_fits(s.heads, settings.shape, of.width, limits.vocabulary, of.epsilon);
    md::falcon_drafter<float, host_backend> drafter(of.kernels, settings.shape);
    inf::read_falcon_weights(s.heads, drafter);
    if (of.base == nullptr) throw hd::config_error("heddle: a model that Falcon drafts for is loaded with options_for");
    drafter.take(std::move(*of.base));
    return use(inf::falcon_speculation(drafter, settings.tree));
  }
  require_rms_norm(of.family, "heads of Medusa are");
  const inf::medusa_folder_settings settings = inf::read_medusa_settings(s.heads);
  inf::medusa_heads<float, host_backend> heads(of.kernels, settings.heads, of.width, limits.vocabulary, of.epsilon);
  inf::read_medusa_heads(s.heads, heads);
  use(inf::medusa_speculation(heads, settings.tree));
}

}  // namespace

void add_options(tool::command_line& app, speculation& s, options& o) {
  add_ignored_keys(app, o.ignored_keys);
  add_blocks(app, o.blocks);
  app.add_option("--dtype", o.dtype,
                 has_bf16 ? "type of weights, activations and cache: f32 or bf16"
                          : "type of weights, activations and cache: f32; programs for CUDA devices have bf16, too");
  app.add_option("--speculate", s.by,
                 "propose tokens, which leaves answers the same: ngram (what followed the same words), draft, medusa, "
                 "falcon or none");
  app.add_option("--draft", s.draft,
                 "folder of a smaller model with the same tokens, for --speculate draft; it has a cache of its own, of "
                 "the same size");
  app.add_option("--draft-blocks", s.draft_blocks,
                 "blocks of the draft, as in 0-3: with the model's own folder, a draft that needs no training")
      ->otherwise("all");
  app.add_option("--heads", s.heads,
                 "folder that train_heads wrote: heads, for --speculate medusa, or a drafter, for --speculate falcon");
}

void require_speculation(const speculation& s) {
  if (s.by != "none" && s.by != "ngram" && s.by != "draft" && s.by != "medusa" && s.by != "falcon")
    throw hd::config_error("heddle: --speculate should be ngram, draft, medusa, falcon or none, got '" + s.by + "'");
  if (s.by == "draft" && s.draft.empty())
    throw hd::config_error("heddle: --speculate draft needs a model: --draft FOLDER");
  if (s.by != "draft" && !s.draft_blocks.empty())
    throw hd::config_error("heddle: --draft-blocks " + s.draft_blocks +
                           " are blocks of a draft: give --speculate draft --draft FOLDER, too");
  if (s.by == "medusa" && s.heads.empty())
    throw hd::config_error("heddle: --speculate medusa needs heads: --heads FOLDER");
  if (s.by == "falcon" && s.heads.empty())
    throw hd::config_error("heddle: --speculate falcon needs a drafter: --heads FOLDER");
}

options options_for(const speculation& s, options o) {
  require_speculation(s);
  if (o.dtype != "f32" && !(has_bf16 && o.dtype == "bf16"))
    throw hd::config_error("heddle: --dtype should be f32" + std::string(has_bf16 ? " or bf16" : " in this program") +
                           ", got '" + o.dtype + "'");
  if (o.dtype != "f32" && !o.prefill.empty())
    throw hd::config_error("heddle: pools of prompts and answers (--prefill, --decode) are of f32, got '" + o.dtype +
                           "'");
  if (o.dtype == "bf16" && s.by == "falcon")
    throw hd::config_error(
        "heddle: --speculate falcon is for models of f32: its drafter has the model's embedding and "
        "head in float; take --dtype f32");
  o.base = s.by == "falcon";
  return o;
}

int ranks_of(const options& o) {
  if (o.prefill.empty() != o.decode.empty())
    throw hd::config_error("heddle: --prefill and --decode are meshes of two pools: give both or none; got only --" +
                           std::string(o.prefill.empty() ? "decode" : "prefill"));
  return o.prefill.empty() ? whole(o.mesh).size() : whole(o.prefill).size() + whole(o.decode).size();
}

void with_engine(const speculation& s, const options& o, const inf::engine_options& engine,
                 const std::function<void(inf::any_engine&, const loaded&)>& use) {
  if (!o.prefill.empty()) {
    static_cast<void>(ranks_of(o));
    if (s.by != "none")
      throw hd::config_error(
          "heddle: pools of prompts and answers (--prefill, --decode) go with --speculate none, got '" + s.by + "'");
    const auto about = read_model_folder(o.model, o.ignored_keys, o.blocks).about;
    return run_pools<float>(o, about, [&](runner& prompts, runner& answers, any_link& link, inf::engine_lane& lane) {
      use(*make_pools(prompts, answers, engine, link, lane),
          {std::string(about.family()),
           words_of(hd::parse_mesh<mesh_type>(o.prefill)) + " for prompts and " +
               words_of(hd::parse_mesh<mesh_type>(o.decode)) + " for answers",
           answers.limits()});
    });
  }
  with_model(o, [&](const loaded_model& model) {
    with_speculation(s, o, model, [&](auto decoding) {
      runner steps = model.steps;
      use(*make_engine(steps, engine, std::move(decoding)), {model.family, model.mesh, steps.limits()});
    });
  });
}

}  // namespace model_ranks
