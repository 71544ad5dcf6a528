// heddle/train/peer_saves.hpp: keeps a rank's state in memory of two nodes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/store_saves.hpp>
#include <heddle/train/texts_of_ranks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Ranks whose coordinates along this axis differ are on different nodes: the copy of a rank's state goes to the next
/// one along it.
template <class Axis>
struct across {
  using axis = Axis;
};

/// Settings of `peer_saves`.
struct peer_options {
  std::int64_t every = 10;  ///< steps between copies; 0: behind the last only
};

namespace detail {

template <bool Ok, class Axis>
inline constexpr bool mesh_has_axis_of_peers = Ok;

inline void refuse_beside(const save_facts& facts, const char* what) {
  if (facts.beside != nullptr)
    throw config_error("heddle: " + std::string(what) +
                       ": copies of peers hold a trainer's state alone, not that of save_facts::beside; save both");
}
inline std::string peer_manifest_name(int rank) {
  return "rank-" + io::detail::padded_number(rank, 5) + ".manifest";
}

// Leaves out what has come already: tied parameters of two stages of one rank.
class first_parts final : public io::part_writer {
 public:
  explicit first_parts(io::part_writer& to) : to_(&to) {}
  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                const io::tensor_region& region) override {
    if (seen_.insert(std::string(name) + " " + io::detail::describe(region)).second)
      to_->add_part(name, dtype, bytes, region);
  }

 private:
  io::part_writer* to_;
  std::set<std::string> seen_;
};

// The file of one rank, as what reads a stage's state.
class rank_file_reader {
 public:
  rank_file_reader(std::filesystem::path file, io::manifest m) : path_(std::move(file)), manifest_(std::move(m)) {
    for (io::tensor_entry& e : io::read_tensor_index(path_)) entries_[e.name].push_back(std::move(e));
  }
  const io::manifest& manifest() const noexcept { return manifest_; }
  template <class T>
  void read(std::string_view name, std::span<T> out, const io::tensor_region& region) const {
    const auto parts = entries_.find(name);
    if (parts != entries_.end())
      for (const io::tensor_entry& e : parts->second) {
        if (!(e.region == region) || e.dtype != io::dtype_name<T>()) continue;
        const auto bytes = io::read_tensor_bytes(path_, e);
        const auto to = std::as_writable_bytes(out);
        if (bytes.size() != to.size()) break;
        std::copy(bytes.begin(), bytes.end(), to.begin());
        return;
      }
    throw io_error("heddle: '" + path_.string() + "' has no tensor '" + std::string(name) + "' of " +
                   io::detail::describe(region) + " in " + std::string(io::dtype_name<T>()));
  }

 private:
  std::filesystem::path path_;
  io::manifest manifest_;
  std::map<std::string, std::vector<io::tensor_entry>, std::less<>> entries_;
};

// A rank's file in the folder of a node.
struct peer_file {
  std::int64_t step = 0;
  int rank = 0;
  std::string run, mesh;
};
inline std::filesystem::path peer_folder(const std::filesystem::path& local, std::int64_t step) {
  return io::detail::save_path(local, step);
}
// What is there and whole: with a manifest, which is written last, and the size that this says.
inline std::vector<peer_file> peer_files(const std::filesystem::path& local) {
  std::vector<peer_file> all;
  std::error_code ec;
  for (const auto& step : io::detail::list_saves(local))
    for (std::filesystem::directory_iterator at(step.path, ec), end; !ec && at != end; at.increment(ec)) {
      if (at->path().extension() != ".manifest") continue;
      try {
        const auto bytes = io::read_bytes(at->path(), 0, io::detail::bytes_of_file(at->path()));
        const io::manifest m = io::parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                                  "'" + at->path().string() + "'");
        if (m.files.size() != 1 || m.step != step.step) continue;
        const auto rank = static_cast<int>(m.files[0].rank);
        if (io::detail::bytes_of_file(step.path / io::detail::rank_file_name(rank)) != m.files[0].bytes) continue;
        all.push_back({m.step, rank, io::detail::run_of(m), m.mesh});
      } catch (const io_error&) {  // cut off: it is not there
      }
    }
  return all;
}
inline void write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  io::detail::write_whole_file(path, [&](io::durable_file& file) { file.write(bytes); });
}
inline std::vector<std::byte> bytes_in(const std::filesystem::path& path) {
  return io::read_bytes(path, 0, io::detail::bytes_of_file(path));
}

// Sends bytes to one rank and gets others' from another.
template <communicator Communicator>
std::vector<std::byte> exchange_bytes(Communicator& all, std::span<const std::byte> mine, int to, int from) {
  const auto count = static_cast<std::int64_t>(mine.size());
  std::int64_t theirs = 0;
  auto size_in = all.irecv(std::span<std::int64_t>(&theirs, 1), from, 0);
  auto size_out = all.isend(std::span<const std::int64_t>(&count, 1), to, 0);
  size_in.wait();
  size_out.wait();
  std::vector<std::byte> got(static_cast<std::size_t>(theirs));
  auto in = all.irecv(std::span<std::byte>(got), from, 0);
  auto out = all.isend(mine, to, 0);
  in.wait();
  out.wait();
  return got;
}

// The newest step of which every rank's file is on some rank, and who has them (itself, if it has); empty without.
// `wanted`: of which run; empty: of any.
struct peer_choice {
  std::int64_t step = -1;
  std::vector<int> holders{};
  std::int64_t incomplete = -1;  // the newest step of which a file is missing
  int missing = -1;              // whose
  std::set<std::string> runs{};  // of which there are copies
};
template <communicator Communicator>
peer_choice choose_peer_step(Communicator& all, const std::filesystem::path& local, const std::string& mesh,
                             const std::string& wanted) {
  std::string mine, fault;
  std::vector<peer_file> files;
  try {
    files = peer_files(local);
  } catch (const io_error& e) {
    fault = e.what();
  }
  throw_together<io_error>(all, fault);
  for (const peer_file& f : files)
    if (f.mesh == mesh && (wanted.empty() || f.run == wanted))
      mine += std::to_string(f.step) + '\t' + f.run + '\t' + std::to_string(f.rank) + '\t' +
              std::to_string(all.rank()) + '\n';
  const std::string text = texts_of_ranks(all, mine);
  std::map<std::pair<std::int64_t, std::string>, std::vector<int>> found;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = io::detail::next_field(rest, '\n');
    const auto number = [&] {
      return io::detail::parse_number<std::int64_t>(io::detail::next_field(line, '\t'), 10, "a peer's step");
    };
    const std::int64_t step = number();
    const std::string run(io::detail::next_field(line, '\t'));
    const auto rank = static_cast<int>(number()), holder = static_cast<int>(number());
    auto& holders = found[{step, run}];
    holders.resize(static_cast<std::size_t>(all.size()), -1);
    if (rank < 0 || rank >= all.size()) continue;
    int& of = holders[static_cast<std::size_t>(rank)];
    if (of < 0 || holder == rank) of = holder;
  }
  peer_choice choice;
  for (const auto& copies : found) choice.runs.insert(copies.first.second);
  for (auto at = found.rbegin(); at != found.rend(); ++at) {
    const auto none = std::find(at->second.begin(), at->second.end(), -1);
    if (none == at->second.end()) {
      choice.step = at->first.first;
      choice.holders = at->second;
      return choice;
    }
    if (choice.incomplete < 0) {
      choice.incomplete = at->first.first;
      choice.missing = static_cast<int>(none - at->second.begin());
    }
  }
  return choice;
}

}  // namespace detail

/// Copies of a trainer's state in folders of the nodes, best in memory (/dev/shm): of each rank one on its own node
/// and one on the next along an axis, `peer_saves<across<dp>>`, for `trainer.run(data, listener, peers)`. A node that
/// is lost takes one copy of each of its ranks; `resume_from_peers` goes on from the others. Called on all ranks
/// together. A step waits for a copy of what the rank saves, and until it has been sent once. Memory: two steps in the
/// folder, each of what the rank and its neighbour save; during a copy both once more in the process. The folder is
/// for one run: files of these ranks of other steps are removed. When the run has ended, remove it.
/// Refused when compiled: an axis that the mesh lacks.
/// Errors, on all ranks: `config_error` for an axis of one rank, whose copies would be on the same node, and for
/// `save_facts::beside`, which copies do not hold; `io_error` for what the folder refuses: the copies of the step before stay; `numeric_error` for a state that is not finite.
/// Source: Wang et al., "Gemini: fast failure recovery in distributed training with in-memory checkpoints", SOSP 2023.
template <class Across>
class peer_saves {
 public:
  template <class Trainer>
  peer_saves(Trainer& trainer, std::filesystem::path local, save_facts facts = {}, peer_options options = {})
      : local_(std::move(local)), facts_(std::move(facts)), options_(options) {
    using mesh_type = std::remove_cvref_t<decltype(trainer.ranks().mesh())>;
    using axis = typename Across::axis;
    static_assert(detail::mesh_has_axis_of_peers<mesh_type::template has<axis>, axis>,
                  "heddle: peer_saves<across<Axis>>: the mesh has no such axis; name one along which nodes differ");
    detail::refuse_beside(facts_, "peer_saves");
    if (trainer.ranks().mesh().template extent<axis>() < 2)
      throw config_error(
          "heddle: peer_saves<across<Axis>>: the axis has one rank, so that copies would stay on its node");
  }

  bool due(std::int64_t done, std::int64_t last) const noexcept {
    return done == last || (options_.every > 0 && done % options_.every == 0);
  }
  template <class Trainer>
  void operator()(Trainer& trainer) {
    detail::refuse_ahead(trainer);
    require_finite_state(trainer, "step " + std::to_string(trainer.steps_done()) + " is not copied to peers");
    auto& world = trainer.ranks();
    auto& all = world.control();
    trainer.set_run_name(
        detail::on_first_rank(all, [&] { return trainer.run_name().value_or(detail::random_name()); }));
    const int rank = world.rank();
    const auto folder = detail::peer_folder(local_, trainer.steps_done());
    std::string fault;
    const auto tried = [&](auto&& work) {
      try {
        if (fault.empty()) work();
      } catch (const io_error& e) {
        fault = e.what();
      }
    };
    const std::int64_t step = trainer.steps_done();
    const auto [to, from] = neighbours(world);
    const auto agree = [&] {
      fault = detail::first_fault(all, fault);
      if (fault.empty()) return;
      remove(step, {rank, from});
      throw io_error(fault);
    };
    if (last_ < 0)
      last_ = detail::choose_peer_step(all, local_, detail::manifest_of(trainer).mesh, *trainer.run_name()).step;
    std::vector<std::byte> mine;
    std::string about;
    tried([&] {
      for (const auto& old : io::detail::list_saves(local_))  // of killed attempts and of runs before, too
        if (old.step != last_ && old.step != step) remove(old.step, {rank, from});
      io::detail::make_folder(folder);
      const auto file = folder / io::detail::rank_file_name(rank);
      std::error_code ignored;  // of an attempt that was killed
      std::filesystem::remove(folder / detail::peer_manifest_name(rank), ignored);
      io::tensor_file_writer writer(file);
      detail::first_parts parts(writer);
      detail::write_state(parts, trainer, facts_, false);
      const io::file_digest d = writer.finish();
      io::manifest m = detail::named_manifest(trainer, facts_, detail::manifest_of(trainer));
      m.files = {{rank, d.bytes, d.checksum}};
      about = io::to_text(m);
      mine = detail::bytes_in(file);
    });
    agree();
    const auto theirs = detail::exchange_bytes(all, mine, to, from);
    const auto about_theirs = detail::exchange_bytes(all, std::as_bytes(std::span<const char>(about)), to, from);
    bytes_sent_ = std::ssize(mine);
    tried([&] {
      detail::write_whole(folder / io::detail::rank_file_name(from), theirs);
      detail::write_whole(folder / detail::peer_manifest_name(from), about_theirs);
      detail::write_whole(folder / detail::peer_manifest_name(rank), std::as_bytes(std::span<const char>(about)));
    });
    agree();
    last_ = step;
  }

  /// Of the last copy, by this rank: its own state.
  std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  // The next and the previous rank along the axis.
  template <class World>
  std::pair<int, int> neighbours(World& world) const {
    using axis = typename Across::axis;
    const auto& mesh = world.mesh();
    const int extent = mesh.template extent<axis>();
    std::pair<int, int> found{-1, -1};
    const int mine = mesh.template coordinate<axis>(world.rank());
    for (int r = 0; r < world.size(); ++r) {
      if (!same_elsewhere(mesh, r, world.rank())) continue;
      const int theirs = mesh.template coordinate<axis>(r);
      if (theirs == (mine + 1) % extent) found.first = r;
      if (theirs == (mine + extent - 1) % extent) found.second = r;
    }
    return found;
  }
  template <class Mesh>
  static bool same_elsewhere(const Mesh& mesh, int a, int b) {
    return [&]<class... Tags>(heddle::v0::type_list<Tags...>) {
      return (... && (std::is_same_v<Tags, typename Across::axis> ||
                      mesh.template coordinate<Tags>(a) == mesh.template coordinate<Tags>(b)));
    }(typename Mesh::tags{});
  }
  void remove(std::int64_t step, std::initializer_list<int> ranks) const {
    std::error_code ignored;
    const auto folder = detail::peer_folder(local_, step);
    for (const int r : ranks) {
      std::filesystem::remove(folder / detail::peer_manifest_name(r), ignored);
      std::filesystem::remove(folder / io::detail::rank_file_name(r), ignored);
    }
    std::filesystem::remove(folder, ignored);  // where no other rank of the node has files in it
  }

  std::filesystem::path local_;
  save_facts facts_;
  peer_options options_;
  std::int64_t last_ = -1;  // the newest step that is whole
  std::int64_t bytes_sent_ = 0;
};

/// What `resume_from_peers` did.
struct peer_resume_result {
  resume_result result{};
  bool from_peers = false;
  int moved = 0;      ///< files that came from another rank's folder
  std::string why{};  ///< empty, or why the folder of saves was taken
};

namespace detail {
template <class Trainer, class Saves>
peer_resume_result resume_from_peers_or(Trainer& trainer, const std::filesystem::path& local, const Saves& saves,
                                        const std::string& shown, const save_facts& facts);
}

/// Goes on from the newest of: the copies that `peer_saves` left in the folders `local` of all nodes, on the same
/// mesh; and the saves in `folder`. Called on all ranks together. A file that a node lost comes from where its copy
/// is. Where both are lost, the save in `folder` is taken, and `why` says so; rank 0 prints that line on stderr. Copies
/// count only if they are of the trainer's run, where it has a name, or else of that of the newest save in `folder`.
/// Errors, on all ranks: those of `resume`; `config_error` for `facts.beside`, for copies of another model, element types or data, and for
/// those of several runs where neither says which; `io_error` if copies were damaged while they were read, and there
/// is no save.
template <class Trainer>
peer_resume_result resume_from_peers(Trainer& trainer, const std::filesystem::path& local,
                                     const std::filesystem::path& folder, const save_facts& facts = {}) {
  return detail::resume_from_peers_or(trainer, local, folder, folder.string(), facts);
}
/// The same, with the saves in a store.
template <class Trainer>
peer_resume_result resume_from_peers(Trainer& trainer, const std::filesystem::path& local, const io::store& from,
                                     const save_facts& facts = {}) {
  return detail::resume_from_peers_or(trainer, local, from, from.where(""), facts);
}

namespace detail {

inline std::optional<io::manifest> newest_save(const io::store& from) {
  return io::latest(from);
}
inline std::optional<io::manifest> newest_save(const std::filesystem::path& folder) {
  const io::search_result found = io::latest(folder, io::verify::sizes);
  return found.save ? std::optional(found.save->manifest) : std::nullopt;
}

// `saves`: a folder or a store; `shown`: in messages.
template <class Trainer, class Saves>
peer_resume_result resume_from_peers_or(Trainer& trainer, const std::filesystem::path& local, const Saves& saves,
                                        const std::string& shown, const save_facts& facts) {
  detail::refuse_ahead(trainer);
  detail::refuse_beside(facts, "resume_from_peers");
  auto& world = trainer.ranks();
  auto& all = world.control();
  peer_resume_result done;
  const io::manifest expected = detail::manifest_of(trainer);
  std::int64_t saved = -1;
  const std::string run = detail::on_first_rank(all, [&] {
    const std::optional<io::manifest> found = newest_save(saves);
    if (found) saved = found->step;
    return trainer.run_name().value_or(found ? io::detail::run_of(*found) : std::string());
  });
  all.broadcast(std::span<std::int64_t>(&saved, 1), 0);
  const detail::peer_choice choice = detail::choose_peer_step(all, local, expected.mesh, run);
  if (run.empty() && choice.runs.size() > 1)
    throw config_error("heddle: '" + local.string() + "' has copies of " + std::to_string(choice.runs.size()) +
                       " runs, '" + *choice.runs.begin() + "' and '" + *std::next(choice.runs.begin()) + "', and '" +
                       shown + "' has no save that says which to go on with: call set_run_name, or remove the others");
  if (choice.missing >= 0 && choice.incomplete > saved)
    done.why = "no node has a copy of rank " + std::to_string(choice.missing) + " of step " +
               std::to_string(choice.incomplete);
  std::string fault;
  bool touched = false;
  std::optional<detail::rank_file_reader> reader;
  if (choice.step >= 0 && choice.step >= saved) {
    const auto at = detail::peer_folder(local, choice.step);
    for (int r = 0; r < all.size(); ++r) {
      const int holder = choice.holders[static_cast<std::size_t>(r)];
      if (holder == r) continue;
      ++done.moved;
      for (const std::string& name : {io::detail::rank_file_name(r), detail::peer_manifest_name(r)}) {
        std::vector<std::byte> bytes;
        std::int64_t count = -1;
        if (all.rank() == holder) {
          try {
            bytes = detail::bytes_in(at / name);
            count = std::ssize(bytes);
          } catch (const io_error& e) {
            fault = e.what();
          }
          all.send(std::span<const std::int64_t>(&count, 1), r);
          if (count >= 0) all.send(std::span<const std::byte>(bytes), r);
        } else if (all.rank() == r) {
          all.recv(std::span<std::int64_t>(&count, 1), holder);
          bytes.resize(static_cast<std::size_t>((std::max)(count, std::int64_t{0})));
          if (count >= 0) all.recv(std::span<std::byte>(bytes), holder);
          try {
            if (count < 0) continue;
            io::detail::make_folder(at);
            detail::write_whole(at / name, bytes);
          } catch (const io_error& e) {
            fault = e.what();
          }
        }
      }
    }
    std::string misfit;
    try {
      if (fault.empty()) {
        const auto file = at / io::detail::rank_file_name(all.rank());
        const auto text = detail::bytes_in(at / detail::peer_manifest_name(all.rank()));
        io::manifest m = io::parse_manifest({reinterpret_cast<const char*>(text.data()), text.size()},
                                            "'" + (at / detail::peer_manifest_name(all.rank())).string() + "'");
        if (m.config != expected.config || m.corpus != facts.corpus ||
            (m.facts.count("order") != 0 ? m.facts.at("order") : std::string()) != facts.order)
          misfit = "heddle: the copies of peers are of another training: " + m.config + ", expected " + expected.config;
        if (io::digest(file).checksum != m.files.at(0).checksum)
          throw io_error("heddle: '" + file.string() + "' is damaged: its checksum is not what was written");
        reader.emplace(file, std::move(m));
      }
    } catch (const io_error& e) {
      fault = e.what();
    }
    detail::throw_together<config_error>(all, misfit);
    fault = detail::first_fault(all, fault);
    if (fault.empty()) {  // all ranks have theirs: from here on the trainer changes
      touched = true;
      try {
        for (int k = 0; k < trainer.stages(); ++k) detail::read_frozen(*reader, trainer.stage(k));
        detail::each_saved_bucket(trainer, [&](auto& stage, auto& optimizer, auto& group) {
          detail::read_stage(*reader, stage, optimizer, group);
        });
      } catch (const io_error& e) {
        fault = e.what();
      }
      fault = detail::first_fault(all, fault);
    }
    if (fault.empty()) {
      detail::each_saved_bucket(trainer, [&](auto& stage, auto& optimizer, auto& group) {
        detail::gather_stage(*reader, stage, optimizer, group);
      });
      require_finite_state(trainer, "the copies of peers are no state to go on from");
      trainer.set_position(reader->manifest().step, reader->manifest().position.consumed);
      trainer.set_run_name(io::detail::run_of(reader->manifest()));
      done.from_peers = done.result.resumed = true;
      done.result.step = reader->manifest().step;
      done.result.mesh = reader->manifest().mesh;
      return done;
    }
    done.why = fault.substr(fault.find(": ") + 2);
  }
  if (!done.why.empty() && all.rank() == 0)
    std::fprintf(stderr, "heddle: %s: the newest save in '%s' is taken\n", done.why.c_str(), shown.c_str());
  done.result = resume(trainer, saves, facts);
  if (touched && !done.result.resumed)
    throw io_error("heddle: " + done.why + "; a part of the copies has been read, and '" + shown +
                   "' has no save in their place");
  return done;
}

}  // namespace detail
}  // namespace heddle::inline v0::train
