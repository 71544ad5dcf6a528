// heddle/rl/save.hpp: saves of runs, from which they go on without loss or repeats.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/run_state.hpp>
#include <heddle/train/save.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// Saves of a run, for `run`: after every `every`-th batch (0: after none of these) and after the last. A save is one of
/// `train::save`, whose first file also has the state of the run (`run_state`), unfinished answers included, and which has
/// the state of a critic (`with_critic`) under names that begin with `critic/`: it is there with all of this, or it is not
/// there, whenever a process is killed.
///
/// A run that goes on may have other meshes than the one that saved; generators take the newest weights first. Where the
/// meshes are the same and nothing is ahead (`sync`), it ends with the bits of an undisturbed one.
struct saves {
  std::filesystem::path folder{};  ///< of this run alone while it lives; empty: nothing is saved
  std::int64_t every = 0;          ///< batches
  bool resume = false;             ///< goes on from the newest complete save, where there is one
  int keep = 2;                    ///< complete saves that stay
  /// What must be the same where the run goes on, beside its settings and its objective: such as {"prompts", a checksum}
  /// and {"model", a checksum}.
  std::vector<fixed_setting> facts{};
  std::function<void(const std::string&)> note{};  ///< of rank 0: which save it went on from, which were passed over

  /// Errors: `config_error` naming the setting.
  void validate() const {
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw config_error("heddle: rl::saves." + what);
    };
    require(!folder.empty() || (every == 0 && !resume), "folder must name a folder, got \"\"");
    require(every >= 0, "every must be at least 0, got " + std::to_string(every));
    require(keep >= 1, "keep must be at least 1, got " + std::to_string(keep));
  }
};

namespace detail {

// A trainer in the saves of another, on the same ranks: its tensors have names behind `critic/`.
template <class Trainer>
class critic_in_saves final : public train::state_beside {
  struct named_writer final : io::part_writer {
    io::part_writer* of;
    explicit named_writer(io::part_writer& to) : of(&to) {}
    void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                  const io::tensor_region& region) override {
      of->add_part("critic/" + std::string(name), dtype, bytes, region);
    }
  };
  struct named_reader {
    const io::checkpoint_reader* of;
    const io::manifest& manifest() const noexcept { return of->manifest(); }
    template <class T>
    void read(std::string_view name, std::span<T> out, const io::tensor_region& region) const {
      of->read("critic/" + std::string(name), out, region);
    }
  };

 public:
  explicit critic_in_saves(Trainer& trainer) : trainer_(&trainer) {}
  void write(io::part_writer& writer) override {
    named_writer named(writer);
    train::detail::write_state(named, *trainer_, {});
  }
  void read(const io::checkpoint_reader& reader) override {
    train::detail::read_shares(named_reader{&reader}, *trainer_);
  }
  void gather(const io::checkpoint_reader& reader) override {
    train::detail::gather_shares(named_reader{&reader}, *trainer_);
    require_finite("'" + reader.path().string() + "' is no save to go on from");
  }
  void require_finite(const std::string& so) const { train::require_finite_state(*trainer_, "critic: " + so); }

 private:
  Trainer* trainer_;
};

template <class Session>
struct critic_saves_of {
  using type = no_critic;
};
template <class Session>
  requires Session::has_critic
struct critic_saves_of<Session> {
  using type = std::optional<critic_in_saves<typename Session::critic_type::trainer_type>>;
};

template <class Session>
class run_saver<Session, saves> {
 public:
  // Called on all ranks together, as everything here.
  run_saver(Session& s, const saves& how) : s_(&s), how_(&how) {
    how.validate();
    if (how.folder.empty()) return;
    if constexpr (Session::has_critic)
      if (s.critic_) critic_.emplace(s.critic_->trainer());
    claim_ = train::claim_saves(*s.world_, how.folder);
    if (how.resume) resume();
  }
  bool resumed() const noexcept { return resumed_; }
  // On ranks that train: whether the next meeting is one of a save.
  bool is_due() const noexcept {
    if (how_->folder.empty()) return false;
    const std::int64_t done = s_->result_.batches;
    return done > saved_ && (s_->done() || (how_->every > 0 && done / how_->every > saved_ / how_->every));
  }

  void save() {
    std::vector<std::int64_t> words;
    if (s_->rollout_) words = to_words(generator_state{s_->next_ < 0 ? s_->own_ : s_->next_, s_->rollout_->state()});
    const gathered_words all = gather_words(s_->world_->control(), words);
    if (!s_->training_) return;
    saved_ = s_->result_.batches;
    if (s_->world_->rank() == 0) words = to_words(state_with(all));
    train::save_facts facts = this->facts();
    facts.words = words;
    if constexpr (Session::has_critic) critic_->require_finite("the run is not saved, older saves stay");
    for (const std::string& left : train::save(*s_->trainer_, how_->folder, facts).left) note(left);
  }

 private:
  train::save_facts facts() {
    train::save_facts f{.keep = how_->keep, .most_batch = s_->settings_.prompts * s_->settings_.answers};
    if constexpr (Session::has_critic) f.beside = &*critic_;
    return f;
  }
  std::vector<fixed_setting> fixed() const {
    std::vector<fixed_setting> all = fixed_settings(s_->settings_, s_->how_, s_->objective_);
    all.push_back({"critic", s_->critic_text_});
    all.insert(all.end(), how_->facts.begin(), how_->facts.end());
    return all;
  }
  void note(const std::string& text) const {
    if (how_->note && s_->world_->rank() == 0) how_->note(text);
  }
  run_state state_with(const gathered_words& all) const {
    run_state state{.settings = fixed(),
                    .version = s_->version_,
                    .given_up = s_->given_up_,
                    .result = s_->result_,
                    .buffer = s_->buffer_.state(),
                    .generators = std::vector<generator_state>(static_cast<std::size_t>(s_->generators_))};
    for (int r = 0; r < s_->world_->size(); ++r)
      if (const auto words = all.of(r); !words.empty()) {
        generator_state g = generator_state_of(words);
        const auto own = static_cast<std::size_t>(g.next % s_->generators_);
        state.generators[own] = std::move(g);
      }
    return state;
  }

  void resume() {
    auto& all = s_->world_->control();
    std::vector<std::string> skipped;
    const std::string path = train::detail::find_checked_save(all, how_->folder, skipped);
    for (const std::string& why : skipped) note(why);
    if (path.empty()) return;
    // As rank 0 reads them, so that all go on alike, or throw alike.
    const std::string bytes = train::detail::on_first_rank(all, [&] {
      const std::vector<std::int64_t> words = words_in_save(path);
      return std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::int64_t));
    });
    std::vector<std::int64_t> words(bytes.size() / sizeof(std::int64_t));
    if (!words.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
    take(path, state_of_save(path, words));
    resumed_ = true;
    note("heddle: rl: goes on from '" + path + "', after " + std::to_string(saved_) + " batches");
  }
  void take(const std::string& path, run_state state) {
    require_same_settings(path, state.settings, fixed());
    saved_ = state.result.batches;
    if (s_->rollout_) {
      generator_state mine = dealt_to(state.generators, s_->own_, s_->generators_, s_->task_->prompt);
      s_->next_ = mine.next;
      s_->rollout_->restore(std::move(mine.answers));
    }
    if (!s_->training_) return;
    train::resume_result result;
    train::detail::resume_from(*s_->trainer_, path, facts(), result);
    if constexpr (Session::has_critic)
      s_->critic_->trainer().set_position(s_->trainer_->steps_done(), s_->trainer_->samples_consumed());
    if (result.step != state.version)
      throw io_error("heddle: rl: '" + path + "' is of step " + std::to_string(result.step) +
                     ", the state of the run in it of version " + std::to_string(state.version));
    s_->version_ = state.version;
    s_->given_up_ = state.given_up;
    s_->result_ = std::move(state.result);
    s_->buffer_.restore(std::move(state.buffer));
  }

  Session* s_;
  const saves* how_;
  io::save_folder claim_;
  typename critic_saves_of<Session>::type critic_{};
  bool resumed_ = false;
  std::int64_t saved_ = 0;  // batches
};

}  // namespace detail

}  // namespace heddle::inline v0::rl
