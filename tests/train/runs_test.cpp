// tests/train/runs_test.cpp: the runs of runs.hpp, and: any mesh and schedule trains the model that one rank trains.
#include "runs.hpp"

#include "catch.hpp"
#include "model/support.hpp"
#include "small_dataset.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/background_saves.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/same_copies.hpp>
#include <heddle/train/peer_saves.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/store_saves.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

// Compiled alone: this is the namespace of the header.
namespace train_test {
namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
template <class T, int Zero, class World, class... Policies>
using trainer_of =
    hd::train::trainer<hd::model::gpt2<T>, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<Zero>, Policies...>,
                       World>;
using tensors = std::map<std::string, std::vector<double>>;

// What somebody else has in the saves of a run: rank 0 writes it, and all ranks read it.
class numbers_beside final : public hd::train::state_beside {
 public:
  explicit numbers_beside(int rank) : rank_(rank) {}
  void write(hd::io::part_writer& writer) override {
    if (rank_ == 0) writer.add("beside/numbers", std::span<const std::int64_t>(numbers));
  }
  void read(const hd::io::checkpoint_reader& reader) override {
    std::array<std::int64_t, 3> got{};
    reader.read("beside/numbers", std::span<std::int64_t>(got), hd::io::tensor_region::whole({3}));
    if (got != numbers) throw hd::io_error("numbers beside a trainer's are others");
  }
  void gather(const hd::io::checkpoint_reader&) override {}

 private:
  static constexpr std::array<std::int64_t, 3> numbers{5, 6, 7};
  int rank_;
};

// Puts the part [begin, end) of this rank's flat buffer into the whole tensors; `flat` begins at element `origin` of
// it.
template <class Stage, class T>
void assemble(const Stage& stage, std::span<const T> flat, std::int64_t begin, std::int64_t end, double scale,
              tensors& whole, std::int64_t origin = 0, const std::string& kind = "") {
  for (const auto& p : stage.parameters()) {
    if (p.tied_copy) continue;
    auto& to = whole[kind + p.name];
    to.resize(static_cast<std::size_t>(p.global_count()), std::nan(""));
    hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t k = 0; k < length; ++k)
        if (const std::int64_t at = p.offset + local + k; at >= begin && at < end)
          to[static_cast<std::size_t>(global + k)] =
              static_cast<double>(flat[static_cast<std::size_t>(at - origin)]) * scale;
    });
  }
}

// What one process holds joins what others do; NaN where nobody does.
void fill_in(tensors& whole, const tensors& part) {
  for (const auto& [name, values] : part) {
    auto& to = whole.try_emplace(name, values.size(), std::nan("")).first->second;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::isnan(values[i])) to[i] = values[i];
  }
}

template <class T, int Zero, class... Policies>
outcome train(const setup& s) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = s.layers, .heads = s.heads, .width = s.width, .context = s.context, .vocabulary = s.vocabulary};
  o.batch = s.batch;
  o.microbatches = s.microbatches;
  o.layers_per_stage = s.layers_per_stage;
  o.steps = s.steps;
  o.learning_rate = {.peak = s.learning_rate, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.clip_norm = s.clip;
  o.validate_every = s.validate_every;
  o.threads_per_rank = 1;
  const small_dataset data(
      noise(static_cast<std::size_t>(s.context * 40 + 1), s.vocabulary),
      {.context = s.context, .batch = s.batch, .ignore_every = s.ignore_every, .held_out = s.held_out});
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const hd::schedule::tabled when(table_named(s.schedule, mesh.template extent<pp>(), s.microbatches));
  outcome result;
  result.ranks.resize(static_cast<std::size_t>(mesh.size()));
  result.bytes_read.resize(static_cast<std::size_t>(mesh.size()));
  result.faults.resize(static_cast<std::size_t>(mesh.size()));
  result.peer_bytes.resize(static_cast<std::size_t>(mesh.size()));
  result.message_bytes.resize(static_cast<std::size_t>(mesh.size()));
  std::mutex guard;
  const auto run = [&](auto& world) {
    auto mine = o;
    if (world.rank() == s.odd_rank) mine.seed = 99;
    trainer_of<T, Zero, std::remove_reference_t<decltype(world)>, Policies...> trainer(world, mine, when);
    for (int k = 0; k < trainer.stages(); ++k)
      for (const auto& p : trainer.stage(k).parameters())
        if (p.name == s.poison)
          for (std::int64_t i = 0; i < p.count; ++i)
            trainer.stage(k).weights()[static_cast<std::size_t>(p.offset + i)] = static_cast<T>(s.poison_value);
    constexpr bool may_save_in_background = std::is_same_v<T, double> && sizeof...(Policies) == 0;
    constexpr bool may_copy_to_peers = may_save_in_background && Zero == 1;
    const auto node = std::filesystem::path(s.peers) / std::to_string(world.template coordinate<dp>());
    numbers_beside beside(world.rank());
    const hd::train::save_facts about_save{.corpus = 77, .beside = s.beside ? &beside : nullptr};
    if (!s.resume_from.empty()) {
      hd::train::resume_result resumed;
      if constexpr (may_copy_to_peers) {
        if (!s.peers.empty()) {
          const auto back = hd::train::resume_from_peers(trainer, node, *s.store, about_save);
          resumed = back.result;
          const std::lock_guard lock(guard);
          if (world.rank() == 0) {
            result.from_peers = back.from_peers;
            result.files_moved = back.moved;
            result.why_not_peers = back.why;
          }
        }
      }
      if constexpr (may_save_in_background)
        if (s.store != nullptr && s.peers.empty()) resumed = hd::train::resume(trainer, *s.store, about_save);
      if (s.store == nullptr && s.peers.empty()) resumed = hd::train::resume(trainer, s.resume_from, about_save);
      if (world.rank() == 0) result.first_step = resumed.step;
      result.bytes_read[static_cast<std::size_t>(world.rank())] = resumed.bytes_read;
    }
    std::conditional_t<may_save_in_background, std::optional<hd::train::background_saves<decltype(trainer)>>, bool>
        background{};
    if constexpr (may_save_in_background)
      if (!s.in_background.empty()) {
        const hd::train::background_options how{.on_failure = s.in_background == "ends"
                                                                  ? hd::train::save_failure::ends_run
                                                                  : hd::train::save_failure::reports};
        if (s.store != nullptr)
          background.emplace(trainer, *s.store, about_save, how);
        else
          background.emplace(trainer, s.save_to, about_save, how);
      }
    const auto in_background = [&](auto&& work) {
      try {
        work();
      } catch (const hd::io_error& e) {
        result.faults[static_cast<std::size_t>(world.rank())] = e.what();
      }
    };
    while (trainer.steps_done() < s.steps) {
      const auto pipe_before = trainer.pipeline_group().counters();
      const auto tied_before = world.template along_if<pp>().counters();
      const auto dp_before = trainer.ranks().template along_if<hd::dp>().counters();
      typename decltype(trainer)::step_result step;
      const auto tell = [&](double loss, double norm) {
        const std::lock_guard lock(guard);
        if (world.rank() != 0) return;
        result.losses.push_back(loss);
        result.norms.push_back(norm);
      };
      const bool validates = s.validate_every > 0 && (trainer.steps_done() + 1) % s.validate_every == 0;
      const bool saves = !s.save_to.empty() && (trainer.steps_done() + 1 == s.steps ||
                                                (s.save_every > 0 && (trainer.steps_done() + 1) % s.save_every == 0));
      if constexpr (sizeof...(Policies) > 0) {
        if (s.ahead) {
          if (const auto report = trainer.step_ahead(data)) tell(report->loss, report->gradient_norm);
          if (validates || saves || trainer.steps_done() == s.steps)
            if (const auto report = trainer.finish_step()) tell(report->loss, report->gradient_norm);
        } else {
          const auto report = trainer.step(data);
          tell(report.loss, report.gradient_norm);
        }
      } else {
        step = trainer.compute_gradients(data);
        tell(step.loss, step.gradient_norm);
      }
      const auto pipe_after = trainer.pipeline_group().counters();
      const bool last = trainer.steps_done() + (sizeof...(Policies) > 0 ? 0 : 1) == s.steps;
      if (last) {
        const std::lock_guard lock(guard);
        for (int k = 0; k < trainer.stages(); ++k)
          assemble(trainer.stage(k), std::span<const T>(trainer.optimizer_state(k).gradients_of(trainer.stage(k))),
                   trainer.optimizer_state(k).owned_begin(), trainer.optimizer_state(k).owned_end(),
                   step.gradient_scale, result.gradients, trainer.optimizer_state(k).gradients_begin());
      }
      if constexpr (sizeof...(Policies) == 0) trainer.apply_gradients(step);
      const auto dp_after = trainer.ranks().template along_if<hd::dp>().counters();
      if (trainer.steps_done() == 1 && world.rank() == s.spoilt_rank)
        for (int k = 0; k < trainer.stages(); ++k)
          for (const auto& p : trainer.stage(k).parameters())
            if (p.name == s.spoilt) trainer.stage(k).weights()[static_cast<std::size_t>(p.offset)] *= T(1.001);
      if (!trainer.is_ahead()) hd::train::require_same_copies(trainer);
      double validation = 0;
      if (validates) validation = trainer.validate(data);
      if constexpr (may_copy_to_peers)
        if (!s.peers.empty()) {
          hd::train::peer_saves<hd::train::across<dp>> peers(trainer, node, about_save, {.every = 1});
          const auto before = world.control().counters();
          peers(trainer);
          const auto r = static_cast<std::size_t>(world.rank());
          result.peer_bytes[r] = peers.bytes_sent();
          result.message_bytes[r] = world.control().counters().bytes_sent() - before.bytes_sent();
        }
      if constexpr (may_save_in_background)
        if (saves && background) in_background([&] { (*background)(trainer); });
      if constexpr (may_save_in_background)
        if (saves && !background && s.store != nullptr) hd::train::save(trainer, *s.store, about_save);
      if (saves && !background && s.store == nullptr) hd::train::save(trainer, s.save_to, about_save);
      const std::lock_guard lock(guard);
      if (world.rank() == 0 && validates) result.validation.push_back(validation);
      if (!last) continue;
      rank_facts& facts = result.ranks[static_cast<std::size_t>(world.rank())];
      facts.pp = trainer.pipeline_group().rank();
      facts.launched = s.order.empty() ? world.rank() : s.order[static_cast<std::size_t>(world.rank())];
      facts.tp = trainer.ranks().template along_if<hd::tp>().rank();
      facts.sends = trainer.counters().sends;
      facts.bytes_sent = trainer.counters().bytes_sent;
      facts.comm_messages = pipe_after.messages_sent() - pipe_before.messages_sent();
      facts.comm_bytes = pipe_after.bytes_sent() - pipe_before.bytes_sent();
      const auto tied_after = world.template along_if<pp>().counters();
      facts.tied_messages = tied_after.messages_sent() - tied_before.messages_sent();
      facts.tied_bytes = tied_after.bytes_sent() - tied_before.bytes_sent();
      facts.taken_back = trainer.steps_taken_back();
      facts.overlapped = trainer.counters().overlapped;
      facts.peak_live = trainer.counters().peak_live;
      facts.max_samples = trainer.max_samples();
      for (int k = 0; k < trainer.stages(); ++k) {
        facts.slots += trainer.plan().storage.slots(trainer.held(k).index);
        facts.state_bytes += trainer.optimizer_state(k).state_bytes();
        facts.parameters += static_cast<std::int64_t>(trainer.stage(k).weights().size());
      }
      facts.saved_bytes = trainer.saved_activation_bytes();
      const auto bytes = [&](hd::comm_operation what) { return dp_after[what].bytes - dp_before[what].bytes; };
      facts.dp_reduced = bytes(hd::comm_operation::reduce_scatter_v) + bytes(hd::comm_operation::all_reduce);
      facts.dp_gathered = bytes(hd::comm_operation::all_gather_v);
    }
    if constexpr (may_save_in_background)
      if (background) {
        in_background([&] { background->wait(); });
        if (world.rank() == 0) result.saves_failed = background->stats().failed;
      }
    const std::lock_guard lock(guard);
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& optimizer = trainer.optimizer_state(k);
      const std::span<const T> kept = optimizer.weights_of(trainer.stage(k));
      const std::int64_t first = optimizer.weights_begin(), owned = optimizer.owned_begin();
      assemble(trainer.stage(k), kept, first, first + std::ssize(kept), 1.0, result.weights, first);
      for (int m = 0; m < 2; ++m)
        assemble(trainer.stage(k), std::span<const T>(optimizer.moment(m)), owned, optimizer.owned_end(), 1.0,
                 result.moments, owned, std::to_string(m) + " ");
    }
  };
  transport_test::launch(mesh, [&](auto& world) {
    if (s.order.empty()) return run(world);
    auto placed = world.renumbered(s.order);
    run(placed);
  });
  for (auto* values : {&result.losses, &result.norms, &result.validation}) transport_test::tell(*values, 0);
  transport_test::tell(result.first_step, 0);
  transport_test::share(result.ranks);
  transport_test::merge(result.gradients, fill_in);
  transport_test::merge(result.weights, fill_in);
  transport_test::merge(result.moments, fill_in);
  transport_test::share(result.bytes_read);
  transport_test::share(result.faults);
  transport_test::tell(result.saves_failed, 0);
  transport_test::tell(result.from_peers, 0);
  transport_test::tell(result.files_moved, 0);
  transport_test::tell(result.why_not_peers, 0);
  transport_test::share(result.peer_bytes);
  transport_test::share(result.message_bytes);
  return result;
}

// Batches of the golden file, one per step.
class golden_data {
 public:
  explicit golden_data(const model_test::golden_file& file) : file_(file), context_(file.at("step1.tokens").shape[1]) {}
  std::int64_t context() const { return context_; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const std::int64_t batch = file_.at("step1.tokens").shape[0];
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t sample = block.first + i;
      const std::string step = "step" + std::to_string(sample / batch + 1);
      const auto from = file_.ids(step + ".tokens"), to = file_.ids(step + ".targets");
      for (std::int64_t t = 0; t < context_; ++t) {
        const auto at = static_cast<std::size_t>(sample % batch * context_ + t);
        tokens[static_cast<std::size_t>(i * context_ + t)] = from[at];
        targets[static_cast<std::size_t>(i * context_ + t)] = to[at];
      }
    }
  }
  void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) const {}

 private:
  const model_test::golden_file& file_;
  std::int64_t context_;
};

template <class T, int Zero>
golden_outcome train_golden(const std::string& mesh_text, const std::string& schedule) {
  const model_test::golden_file file(HEDDLE_SOURCE_DIR "/tests/golden/gpt2_golden.bin");
  const auto config = file.ids("config");
  const auto adamw = file.values("optimizer");
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {
      .layers = config[0], .heads = config[1], .width = config[2], .context = config[3], .vocabulary = config[4]};
  o.batch = config[5];
  o.microbatches = 2;
  o.steps = 2;
  o.learning_rate = {.peak = adamw[0], .minimum = adamw[0], .warmup_steps = 0, .total_steps = 2};
  o.adamw = {.beta1 = adamw[1], .beta2 = adamw[2], .epsilon = adamw[3], .weight_decay = adamw[4]};
  o.clip_norm = adamw[5];
  const golden_data data(file);
  golden_outcome result;
  result.gradients.resize(2);
  result.weights.resize(2);
  std::mutex guard;
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const hd::schedule::tabled when(table_named(schedule, mesh.template extent<pp>(), 2));
  transport_test::launch(mesh, [&](auto& world) {
    trainer_of<T, Zero, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    for (const auto& p : trainer.stage().parameters()) {
      const auto& whole = file.values("initial." + p.name);
      hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
        for (std::int64_t k = 0; k < length; ++k)
          trainer.stage().weights()[static_cast<std::size_t>(p.offset + local + k)] =
              static_cast<T>(whole[static_cast<std::size_t>(global + k)]);
      });
    }
    for (std::size_t step = 0; step < 2; ++step) {
      const auto computed = trainer.compute_gradients(data);
      {
        const std::lock_guard lock(guard);
        assemble(trainer.stage(), std::span<const T>(trainer.stage().gradients()),
                 trainer.optimizer_state().owned_begin(), trainer.optimizer_state().owned_end(),
                 computed.gradient_scale, result.gradients[step]);
        if (world.rank() == 0) {
          result.losses.push_back(computed.loss);
          result.norms.push_back(computed.gradient_norm);
        }
      }
      trainer.apply_gradients(computed);
      const std::lock_guard lock(guard);
      assemble(trainer.stage(), std::span<const T>(trainer.stage().weights()), 0,
               static_cast<std::int64_t>(trainer.stage().weights().size()), 1.0, result.weights[step]);
    }
  });
  transport_test::tell(result.losses, 0);
  transport_test::tell(result.norms, 0);
  for (std::size_t step = 0; step < 2; ++step) {
    transport_test::merge(result.gradients[step], fill_in);
    transport_test::merge(result.weights[step], fill_in);
  }
  return result;
}

}  // namespace

bool fits(const std::string& mesh) {
  return hd::parse_mesh<mesh_type>(mesh).size() <= transport_test::most_ranks();
}
bool is_spared(std::string_view schedule, int microbatches) {
  return !transport_test::on_threads && (schedule == "gpipe") != (microbatches == 1);
}
outcome train_f64(const setup& s) {
  if (s.post_validation && s.with_copy) return train<double, 1, hd::post_validation_with_copy>(s);
  if (s.post_validation) return train<double, 1, hd::post_validation, hd::layers_by_cost>(s);
  if (s.zero == 3) return train<double, 3>(s);
  return s.zero == 0 ? train<double, 0>(s) : train<double, 1>(s);
}
outcome train_f32(const setup& s) {
  return train<float, 1>(s);
}
golden_outcome train_golden_f32(const std::string& mesh, const std::string& schedule) {
  return train_golden<float, 1>(mesh, schedule);
}
golden_outcome train_golden_f64(const std::string& mesh, const std::string& schedule) {
  return train_golden<double, 1>(mesh, schedule);
}

double largest_error(const tensors& got, const tensors& reference) {
  double worst = got.size() == reference.size() ? 0 : 1e300;
  for (const auto& [name, values] : reference) {
    const auto found = got.find(name);
    const double error = found == got.end() ? 1e300 : model_test::relative_error(found->second, values);
    if (std::isnan(error) || error > worst) worst = error;  // a NaN stays, and fails every comparison
  }
  return worst;
}

}  // namespace train_test
