// heddle/rl/run.hpp: generates, judges and trains on the ranks of one world, as a pipeline says.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/rl/batch_buffer.hpp>
#include <heddle/rl/colocated_weights.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/frozen_reference.hpp>
#include <heddle/rl/group_advantages.hpp>
#include <heddle/rl/objective_checks.hpp>
#include <heddle/rl/pipeline.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/rollout.hpp>
#include <heddle/rl/run_arguments.hpp>
#include <heddle/rl/settings.hpp>
#include <heddle/rl/spare_weights.hpp>
#include <heddle/rl/words.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/trainer.hpp>
#include <heddle/train/trainer_weights.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

namespace detail {

// The world of one generator: without the axes along which there are several.
template <class World, class... Tags>
auto world_of_generator(const World& all, type_list<Tags...>) {
  return all.template sub<Tags...>();
}

/// A run on one rank. `World`: of all ranks.
template <class World, class Strategy, class Policy, class GenerateMesh, class Critic>
class session {
  template <class Session, class Saves>
  friend class run_saver;
  using base = typename Policy::base;
  using train_mesh = typename Strategy::mesh;
  using backend_type = typename Strategy::backend;
  template <class Mesh>
  using world_on = typename decltype(std::declval<const World&>().on(std::declval<const Mesh&>(), {}))::value_type;
  using training_world = world_on<train_mesh>;
  using generating_world = world_on<GenerateMesh>;
  using copies = typename GenerateMesh::template tags_among<dp, replica>;
  using generator_world =
      decltype(world_of_generator(std::declval<const generating_world&>(),
                                  typename axes_beside<GenerateMesh, copies>::type{}));
  using trainer_type = train::trainer<Policy, Strategy, training_world>;
  using runner_type = infer::model_runner<base, generator_world, backend_type>;
  using engine_type = infer::engine<runner_type>;
  static constexpr bool shares_backend = !space_of<backend_type>::host_accessible;
  static constexpr bool may_have_reference = may_know_reference<decltype(Policy::config::objective)>;

 public:
  using options_type = typename trainer_type::options_type;
  using critic_type = session_critic<Critic, Policy, Strategy, training_world>;
  static constexpr bool has_critic = !std::is_same_v<Critic, no_critic>;

  template <class Fill>
  session(World& world, const flow& how, const meshes<train_mesh, GenerateMesh>& where, const options_type& options,
          const settings& s, const task& t, const Fill& fill, const Critic& critic)
      : world_(&world),
        how_(how),
        settings_(checked(s, how)),
        objective_(to_string(options.model.objective)),
        critic_text_(to_string(critic)),
        task_(&t),
        where_(checked(where, how, world.size())),
        buffer_(how, s.prompts) {
    training_ = world.on(where.train, ranks_from(0, where.train.size()));
    generating_ = world.on(where.generate, ranks_from(how.apart ? where.train.size() : 0, where.generate.size()));
    generators_ = generating_count(where.generate, copies{});
    if (training_) make_trainer(options, fill);
    require_critic<Critic>(s);
    if constexpr (has_critic)
      if (training_) critic_.emplace(*training_, critic, trainer_->options());
    if (generating_) make_generator(options, fill);
    route_weights();
  }

  /// `report(const run_report&)` on ranks that train, behind each batch.
  template <class Report, class Saves>
  run_result run(Report&& report, const Saves& saves) {
    last_ = now_ns();
    run_saver<session, Saves> saver(*this, saves);
    if (rollout_ && !saver.resumed()) rollout_->start(most_groups);
    for (int turn = 0; turn < turns_; ++turn) meet(saver);  // all begin with the same weights
    if (!training_) {
      while (!stopped_) write(), meet(saver);
    } else if (how_.apart) {
      while (!done()) take_or_ask(report, saver);
      stopped_ = true;
      ask(at_once);
      meet(saver);
    } else {
      while (!done()) {
        write();
        meet(saver);
        if (take_batches(report, saver) && (!done() || saver.is_due())) meet(saver);
      }
    }
    end_generator();
    if constexpr (requires { report.finished(*trainer_); })
      if (training_) {
        if (copy_ && copy_->generating()) copy_->to_training(*world_, backend());
        report.finished(*trainer_);
      }
    result_.groups = buffer_.came();
    result_.given_up = buffer_.given_up();
    return result_;
  }

 private:
  static constexpr int ask_tag = 7301;
  static constexpr std::int64_t at_once = -1;  // asks for nothing that has not been written
  static constexpr std::int64_t most_groups = std::int64_t{1} << 60;  // one round for the whole run
  static std::vector<int> ranks_from(int first, int count) {
    std::vector<int> all(static_cast<std::size_t>(count));
    for (int r = 0; r < count; ++r) all[static_cast<std::size_t>(r)] = first + r;
    return all;
  }
  template <class... Tags>
  static int generating_count(const GenerateMesh& m, type_list<Tags...>) {
    return (1 * ... * m.template extent<Tags>());
  }
  template <class... Tags>
  static int generating_index(const GenerateMesh& m, int rank, type_list<Tags...>) {
    return m.template group_index<Tags...>(rank);
  }
  static const settings& checked(const settings& s, const flow& how) {
    s.validate();
    how.validate();
    return s;
  }
  static const meshes<train_mesh, GenerateMesh>& checked(const meshes<train_mesh, GenerateMesh>& m, const flow& how,
                                                        int ranks) {
    require_meshes(m.train.size(), m.generate.size(), ranks, how);
    return m;
  }

  template <class Fill>
  void make_trainer(options_type o, const Fill& fill) {
    const bool reads_reference = knows_reference(o.model.objective);
    o.batch = settings_.prompts * settings_.answers;
    o.steps = settings_.steps;
    o.model.statistics = &statistics_;
    o.model.temperature = settings_.temperature;
    trainer_.emplace(*training_, std::move(o));
    if constexpr (!std::is_same_v<Fill, seeded_weights>)
      train::fill_weights(*trainer_, [&](auto& stage) { fill(stage, model::which_parameters::all); });
    if constexpr (may_have_reference)
      if (reads_reference) reference_.emplace(*trainer_);
  }
  template <class Fill>
  void make_generator(const options_type& o, const Fill& fill) {
    generator_.emplace(world_of_generator(*generating_, typename axes_beside<GenerateMesh, copies>::type{}));
    own_ = generating_index(where_.generate, generating_->rank(), copies{});
    // On a device both sides of a rank have one queue, in whose order weights change, and one memory.
    if (!shares_backend || !trainer_)
      backend_.reset(new backend_type(train::detail::backend_for<backend_type>(o, world_->size())));
    const auto& config = static_cast<const typename base::config&>(o.model);
    const generator_room room = room_of(settings_, how_, config.context);
    runner_.emplace(config, *generator_, backend(),
                    infer::cache_extent{.blocks = room.blocks, .block_rows = room.block_rows, .states = room.sequences},
                    room.rows);
    if (!runner_->stage().frozen_parameters().empty()) {  // which do not travel
      runner_->stage().initialize(o.seed);
      if constexpr (!std::is_same_v<Fill, seeded_weights>) fill(runner_->stage(), model::which_parameters::frozen);
      model::of_stage::weights_written(runner_->stage());
    }
    if (!runner_->leads()) return;
    engine_.emplace(*runner_, infer::engine_options{.max_running = room.sequences});
    // Which groups begin, and when answers are interrupted, is decided here, for all generators together.
    rollout_.emplace(*engine_, completion_rule{.over = 0, .slots = how_.slots},
                     rollout_options{.groups = settings_.prompts,
                                     .answers = settings_.answers,
                                     .compared = settings_.advantage != advantage_of::reward,
                                     .max_tokens = settings_.most_tokens,
                                     .sampling = {.temperature = settings_.temperature, .seed = settings_.seed},
                                     .stop_tokens = settings_.end_tokens});
  }
  // One route to all generators, or where they take weights in turn, one to each turn's.
  void route_weights() {
    require_copies(settings_, how_);
    if (settings_.one_copy) {
      copy_.emplace(*world_, &*trainer_, &runner_->stage(), settings_.bucket_bytes);
    }
    turns_ = how_.rolling > 0 ? (generators_ + static_cast<int>(how_.rolling) - 1) / static_cast<int>(how_.rolling) : 1;
    for (int turn = 0; turn < turns_ && !copy_; ++turn)
      routes_.emplace_back(*world_, source(), target(turn), settings_.bucket_bytes);
    sent_.assign(static_cast<std::size_t>(turns_), -1);
    if (how_.delayed && runner_) spare_.emplace(runner_->stage());
    bases_.assign(static_cast<std::size_t>(generators_), 0);
    without_before_ = bases_;
  }
  bool in_turn(int generator, int turn) const {
    return how_.rolling == 0 || generator / static_cast<int>(how_.rolling) == turn;
  }
  train::trainer_weights<trainer_type> source() {
    return train::trainer_weights<trainer_type>(trainer_ ? &*trainer_ : nullptr);
  }
  model::stage_weights<typename runner_type::stage_type> target(int turn) {
    using weights = model::stage_weights<typename runner_type::stage_type>;
    if (!runner_ || !in_turn(own_, turn)) return weights(nullptr);
    return waits(turn) ? spare_->target() : weights(&runner_->stage());
  }
  // Whether the weights of a turn wait for their generators; the first are taken at once.
  bool waits(int turn) const { return how_.delayed && !sent_.empty() && sent_[static_cast<std::size_t>(turn)] >= 0; }

  // ---- what all ranks do together ----

  // Exchanges finished groups, and weights where they are due, and saves. Every rank calls it equally often.
  template <class Saver>
  void meet(Saver& saver) {
    say_.clear();
    if (world_->rank() == 0) say_as_trainer(saver.is_due());
    if (rollout_) say_as_leader();
    const gathered_words all = gather_words(world_->control(), say_);
    std::span<const std::int64_t> said = all.of(0);
    const auto next = [&] {
      const std::int64_t word = said.front();
      said = said.subspan(1);
      return word;
    };
    stopped_ = next() != 0;
    const std::int64_t version = next();
    const auto turn = static_cast<int>(next());
    until_ = next();
    const bool saves = next() != 0;
    const auto bases = said.first(static_cast<std::size_t>(generators_));
    said = said.subspan(bases.size());
    if (training_)
      take_groups(all, said);
    if (saves) saver.save();  // while the trainer has its weights
    if (turn >= 0) {
      if (copy_)
        copy_->to_generation(*world_, backend());
      else
        routes_[static_cast<std::size_t>(turn)].run(*world_, backend(), source(), target(turn));
      if (rollout_ && in_turn(own_, turn)) {
        if (waits(turn))
          waiting_ = version;
        else
          rollout_->weights_changed(version, how_.cache);
      }
      sent(turn, version);
    }
    // The window of weights that wait begins when they are taken.
    if (rollout_) (waiting_ < 0 ? base_ : waiting_base_) = bases[static_cast<std::size_t>(own_)];
    asks_.clear();  // they have arrived
    heard_ = false;
  }
  backend_type& backend() { return backend_ ? *backend_ : trainer_->backend(); }

  // Of rank 0: whether it is over, the version of weights and whose turn it is to take them, what the trainer waits for,
  // whether all save, and from where the window of each generator is counted.
  void say_as_trainer(bool saves) {
    const int turn = turn_due();
    say_.assign({stopped_ ? 1 : 0, version_, turn, buffer_.until(), saves ? 1 : 0});
    for (int g = 0; g < generators_; ++g)
      say_.push_back(turn >= 0 && in_turn(g, turn) ? buffer_.left() : base_of(g));
  }
  // Groups that left without a new version make room, too.
  std::int64_t base_of(int generator) const {
    const auto g = static_cast<std::size_t>(generator);
    return bases_[g] + without_version_ - without_before_[g];
  }
  // The turn whose generators are the furthest behind, if weights are due; -1: none.
  int turn_due() const {
    const auto oldest = std::min_element(sent_.begin(), sent_.end());
    // Also earlier, where a guard would give up all that older weights write.
    const bool due = *oldest < 0 || version_ - *oldest >= how_.updates || *oldest < buffer_.oldest_usable(version_) ||
                     (copy_ && !copy_->generating());
    return due && !stopped_ ? static_cast<int>(oldest - sent_.begin()) : -1;
  }
  void sent(int turn, std::int64_t version) {
    sent_[static_cast<std::size_t>(turn)] = version;
    for (int g = 0; g < generators_; ++g)
      if (in_turn(g, turn)) {
        bases_[static_cast<std::size_t>(g)] = buffer_.left();
        without_before_[static_cast<std::size_t>(g)] = without_version_;
      }
  }

  // ---- on ranks that generate ----

  // Writes answers until this rank should meet the others.
  void write() {
    if (!generating_) return;
    if (!rollout_) {
      do runner_->follow();
      while (how_.delayed && takes_spare(false));
      return;
    }
    if (how_.apart) {
      listen();
      if (!begun_) wait_until_asked();  // the trainer has nothing, and asks at once
      begun_ = true;
    }
    for (;;) {
      const bool asked = !how_.apart || was_asked();
      if (how_.apart && asked && (asked_for_ == at_once || (how_.delayed && asked_for_ == 0))) break;
      if (waiting_ >= 0 && is_idle()) {
        runner_->interrupt();
        takes_spare(true);
        rollout_->weights_changed(std::exchange(waiting_, -1), how_.cache);
        base_ = waiting_base_;
      }
      begin_groups(asked);
      if (should_meet(asked)) break;
      rollout_->step();
      judge_finished();
    }
    if (how_.over > 1) rollout_->cancel_rest();
    if (how_.apart) wait_until_asked();
    runner_->interrupt();
    if (how_.delayed) takes_spare(false);
  }
  // On all ranks of a generator, between two of its steps: whether they take the weights that wait, as its leader says.
  bool takes_spare(bool takes) {
    std::int64_t word = takes ? 1 : 0;
    generator_->control().broadcast(std::span<std::int64_t>(&word, 1), 0);
    if (word != 0) spare_->take();
    return word != 0;
  }
  // Groups of this generator, in order, as far as its weights may; where the trainer lacks a batch, only those of that.
  void begin_groups(bool asked) {
    std::int64_t bound = how_.may_begin(base_, settings_.prompts);
    if (asked && !how_.overtakes() && (asked_for_ > 0 || !how_.apart)) bound = (std::min)(bound, until_);
    if (next_ < 0) next_ = own_;
    for (; next_ < bound; next_ += generators_) rollout_->add({next_, task_->prompt(next_)});
  }
  bool is_idle() const {
    const rollout_counts& n = rollout_->counts();
    return n.started == n.taken && rollout_->waiting_prompts() == 0;
  }
  bool should_meet(bool asked) const {
    if (is_idle()) return true;
    return asked && how_.overtakes() && std::ssize(finished_) >= (how_.apart ? asked_for_ : each_lacks());
  }
  void judge_finished() {
    while (rollout_->finished() > 0) {
      std::vector<sample> group = rollout_->take_finished(1);
      questions_.clear();
      for (const sample& s : group) questions_.push_back({s.prompt, s.tokens, {}, {}, s.group, {}});
      const std::vector<judgement> said = checked_judgements(task_->reward(questions_), questions_.size());
      for (std::size_t i = 0; i < said.size(); ++i) {
        group[i].reward = said[i].ok() ? said[i].reward : 0;
        group[i].missing = said[i].missing;
      }
      finished_.push_back(std::move(group));
    }
  }
  void say_as_leader() {
    for (const auto& group : finished_) append_words(say_, group);
    finished_.clear();
  }
  void end_generator() {
    if (!runner_) return;
    if (runner_->leads())
      runner_->finish();
    else
      runner_->follow();
  }
  void listen() {
    asked_.emplace(world_->control().irecv(std::span(&asked_for_, 1), 0, ask_tag));
  }
  bool was_asked() {
    if (!heard_ && asked_->test()) wait_until_asked();
    return heard_;
  }
  void wait_until_asked() {
    if (asked_) asked_->wait();
    asked_.reset();
    heard_ = true;
  }

  // ---- on ranks that train ----

  bool done() const noexcept {
    return result_.batches >= settings_.steps || (result_.batches > 0 && trainer_->stopped());
  }
  // Of the groups that the next batch lacks, those of one generator.
  std::int64_t each_lacks() const { return (buffer_.missing() + generators_ - 1) / generators_; }
  template <class Report, class Saver>
  void take_or_ask(Report& report, Saver& saver) {
    if (take_batches(report, saver)) {
      if (!how_.in_flight && (done() || (turn_due() < 0 && !saver.is_due()))) return;
      ask(0);  // each step sends its weights, so that generators are as far ahead as they may, and no further
    } else {
      ask(each_lacks());
    }
    meet(saver);
  }
  // Tells the leaders of generators that the trainer waits, for so many groups of each.
  void ask(std::int64_t groups) {
    if (world_->rank() != 0) return;
    asking_for_ = groups;
    for (int r = 0; r < where_.generate.size(); ++r)
      if (generating_index(where_.generate, r, typename axes_beside<GenerateMesh, copies>::type{}) == 0)
        asks_.push_back(world_->control().isend(std::span<const std::int64_t>(&asking_for_, 1),
                                                where_.train.size() + r, ask_tag));
  }
  // Those of all leaders; rank 0 has said more.
  void take_groups(const gathered_words& all, std::span<const std::int64_t> words) {
    for (int r = 0; r < world_->size(); ++r)
      for (words = r == 0 ? words : all.of(r); !words.empty();) {
        std::vector<sample> answers = take_samples(words);
        const std::int64_t id = answers.front().group;
        buffer_.add(id, std::move(answers));
      }
    give_up();
  }
  void give_up() {
    const std::int64_t n = buffer_.give_up(version_);
    without_version_ += n;
    given_up_ += n;
  }
  // Steps on the batches that are there; true if there was one.
  template <class Report, class Saver>
  bool take_batches(Report& report, Saver& saver) {
    bool any = false;
    while (!done()) {
      auto batch = buffer_.take();
      if (!batch) break;
      use(*batch, report);
      any = true;
      if (how_.apart || turn_due() >= 0 || saver.is_due()) break;
    }
    return any;
  }
  template <class Report>
  void use(const std::vector<std::vector<sample>>& batch, Report& report) {
    if (copy_ && copy_->generating()) copy_->to_training(*world_, backend());
    run_report r;
    r.batch = result_.batches++;
    r.version = version_;
    r.given_up = std::exchange(given_up_, 0);
    std::vector<sample> all;
    double rewards = 0;
    // A divergence from a reference has a gradient where no answer has an advantage.
    const bool pulled = knows_reference(trainer_->options().model.objective);
    bool moves = false;
    for (std::vector<sample> group : batch) {
      set_advantages(group, settings_.advantage);
      for (sample& s : group) {
        if (s.missing.empty()) {
          rewards += s.reward;
        } else if (r.missing++ == 0) {
          r.why_missing = s.missing;
        }
        moves = moves || ((s.advantage != 0 || pulled || has_critic) && s.missing.empty());
        count_lags(s, r);
        all.push_back(std::move(s));
      }
    }
    const auto answers = static_cast<std::int64_t>(all.size());
    if (r.missing == answers)
      throw numeric_error("heddle: rl: the rewards of all " + std::to_string(answers) + " answers of batch " +
                          std::to_string(r.batch + 1) + " are missing; the first: " + r.why_missing);
    r.reward = rewards / static_cast<double>(answers - r.missing);
    r.mean_lag = r.tokens > 0 ? r.mean_lag / static_cast<double>(r.tokens) : 0;
    result_.tokens += r.tokens;
    result_.missing += r.missing;
    if (moves) {
      step(std::move(all), r);
    } else {
      ++result_.skipped;
      without_version_ += settings_.prompts;
    }
    if (how_.least_share > 0 && moves && r.statistics.effective_share() < how_.least_share)
      buffer_.only_from(version_);
    give_up();
    result_.version = version_;
    const auto now = now_ns();
    r.seconds = static_cast<double>(now - std::exchange(last_, now)) * 1e-9;
    r.waiting = r.seconds - (r.training.steps > 0 ? r.training.seconds : 0) - (r.critic.steps > 0 ? r.critic.seconds : 0);
    if constexpr (std::is_invocable_v<Report&, const run_report&, trainer_type&>)
      report(static_cast<const run_report&>(r), *trainer_);
    else
      report(static_cast<const run_report&>(r));
  }
  void count_lags(const sample& s, run_report& r) {
    const auto tokens = std::ssize(s.tokens);
    r.tokens += tokens;
    for (std::size_t i = 0; i < s.segments.size(); ++i) {
      const std::int64_t end = i + 1 < s.segments.size() ? s.segments[i + 1].first : tokens;
      const std::int64_t n = end - s.segments[i].first, lag = version_ - s.segments[i].version;
      if (lag < 0)
        throw schedule_error("heddle: rl: an answer of version " + std::to_string(s.segments[i].version) +
                             " came to a trainer of version " + std::to_string(version_));
      if (const std::int64_t most = how_.greatest_lag(); most >= 0 && lag > most)
        throw schedule_error("heddle: rl: a token is " + std::to_string(lag) +
                             " versions old, and this pipeline's are at most " + std::to_string(most));
      r.mean_lag += static_cast<double>(n * lag);
      r.greatest_lag = (std::max)(r.greatest_lag, lag);
      if (i + 1 < s.segments.size()) r.inherited += n;
      if (result_.lags.size() <= static_cast<std::size_t>(lag)) result_.lags.resize(static_cast<std::size_t>(lag) + 1);
      result_.lags[static_cast<std::size_t>(lag)] += n;
    }
  }
  void step(std::vector<sample> all, run_report& r) {
    if constexpr (may_have_reference)
      if (reference_) reference_->score(*trainer_, all);
    if constexpr (has_critic) {
      critic_->advise(all);
      r.critic = critic_->learn(all);
    }
    const experience data(std::move(all), trainer_->options().model.context, trainer_->samples_consumed(),
                          any_aggregate{settings_.aggregation, static_cast<double>(settings_.most_tokens)});
    statistics_ = {};
    r.training = trainer_->step(data);
    ++version_;
    std::array<double, 6> sums{statistics_.tokens, statistics_.weights,   statistics_.squares,
                               statistics_.flat,   statistics_.behaviour, statistics_.reference};
    training_->control().all_reduce(std::span<double>(sums), plus{});
    r.statistics = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]};
  }

  World* world_;
  flow how_;
  settings settings_;
  std::string objective_, critic_text_;
  const task* task_;
  meshes<train_mesh, GenerateMesh> where_;
  rl::statistics statistics_{};
  std::optional<training_world> training_;
  std::optional<generating_world> generating_;
  std::optional<generator_world> generator_;
  std::optional<trainer_type> trainer_;
  std::conditional_t<may_have_reference, std::optional<frozen_reference<trainer_type>>, seeded_weights> reference_;
  std::conditional_t<has_critic, std::optional<critic_type>, no_critic> critic_;
  std::unique_ptr<backend_type> backend_;  // stays where it is
  std::optional<runner_type> runner_;
  std::optional<engine_type> engine_;
  std::optional<rollout> rollout_;
  int generators_ = 1, own_ = 0, turns_ = 1;
  std::vector<model::parameter_route> routes_;
  std::optional<colocated_weights<trainer_type, typename runner_type::stage_type>> copy_;

  // Of all ranks, as rank 0 says.
  bool stopped_ = false;
  std::int64_t until_ = 0;
  std::vector<std::int64_t> say_;
  std::optional<spare_weights<typename runner_type::stage_type>> spare_;
  // Of a leader: its window's begin, its next group, and what waits for a meeting.
  std::int64_t base_ = 0, next_ = -1, asked_for_ = 0;
  std::int64_t waiting_ = -1, waiting_base_ = 0;  // the version of the weights that wait, and their window's begin
  bool heard_ = false, begun_ = false;
  std::optional<typename World::control_communicator::request> asked_;
  std::vector<std::vector<sample>> finished_;
  std::vector<question> questions_;
  // Of a trainer.
  batch_buffer buffer_;
  std::int64_t version_ = 0, without_version_ = 0, given_up_ = 0, asking_for_ = 0, last_ = 0;
  std::vector<std::int64_t> sent_, bases_, without_before_;
  std::vector<typename World::control_communicator::request> asks_;
  run_result result_;
};

}  // namespace detail

/// Trains `policy` on the ranks of `world`: generators write groups of answers, the ranks that lead them ask for rewards,
/// those that train step on batches, and weights go back by a `parameter_route`, as `how` says. Colocated, both meshes
/// have all ranks; apart, the first ranks train and those behind them generate. All ranks call it together;
/// `report(const run_report&)`, or with the trainer behind it, is called on those that train, behind each batch;
/// `report.finished(trainer)`, where it has that, behind the last, when all is saved.
/// Where `options.stop` asks for it, the run ends behind the batch at hand, and is saved.
/// `options` are the trainer's; `batch`, `steps`, `model.temperature` and `model.statistics` follow from `s`.
///
/// A weight update waits for at most one decoding step where weights are in flight. Nobody is left in half of a
/// collective: all ranks meet, in one order, and go on. Where ranks may wait long for others, the time-out of
/// `launch_options` must be longer, or 0.
///
/// Errors: `config_error` naming the setting; `schedule_error` for a token that is older than the pipeline allows; what
/// the trainer, the engine and the task throw.
///
/// Where the objective reads a reference (`with_kl`), it is the policy that the run begins with, also one that goes on
/// from a save: its weights are kept beside the trainer's, and score each batch on the ranks that train
/// (`frozen_reference`).
///
/// `saves`: an `rl::saves` of heddle/rl/save.hpp, from which the run can go on. `fill`: a function of a stage that
/// gives it the weights to begin with, see `seeded_weights`. `critic`: a `with_critic` of heddle/rl/with_critic.hpp.
template <class Strategy, class World, class Generate, class Base, class Objective, class Report,
          class Saves = no_saves, class Fill = seeded_weights, class Critic = no_critic>
run_result run(World& world, const flow& how, const meshes<typename Strategy::mesh, Generate>& where,
               policy<Base, Objective>, const train::options<typename policy<Base, Objective>::config>& options,
               const settings& s, const task& t, Report&& report, const Saves& saves = {}, const Fill& fill = {},
               const Critic& critic = {}) {
  detail::require_objective(options.model.objective, how);
  detail::session<World, Strategy, policy<Base, Objective>, Generate, Critic> all(world, how, where, options, s, t, fill,
                                                                                  critic);
  return all.run(report, saves);
}

/// The same by a `pipeline`, such as `pipelinerl`, whose policies have been checked by the compiler.
template <class System, class Strategy, class World, class Generate, class Base, class Objective, class Report,
          class Saves = no_saves, class Fill = seeded_weights, class Critic = no_critic>
run_result run(World& world, const meshes<typename Strategy::mesh, Generate>& where, policy<Base, Objective> of,
               const train::options<typename policy<Base, Objective>::config>& options, const settings& s,
               const task& t, Report&& report, const Saves& saves = {}, const Fill& fill = {},
               const Critic& critic = {}) {
  if constexpr (System::template takes<Objective>())
    return run<Strategy>(world, System::flow, where, of, options, s, t, report, saves, fill, critic);
  else
    return {};
}

}  // namespace heddle::inline v0::rl
