// Makes token files for training out of texts, on all cores: Megatron's .bin and .idx, without what comes twice. What is done stays done when it is stopped.
// run: --text @SOURCE_DIR@/docs/tutorial --bytes --out corpus --dedup 0.8
// prints: documents, 0 of them duplicates
// prints: wrote corpus.bin and corpus.idx
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/tokens/candidate_pairs.hpp>
#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/io/tokens/megatron_index.hpp>
#include <heddle/io/tokens/minhash.hpp>
#include <heddle/io/tokens/provenance.hpp>
#include <heddle/mesh/mesh.hpp>

#include "text_tokens.hpp"
#include "tokens/text_parts.hpp"
#include "tool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace fs = std::filesystem;

namespace {

struct workers {};
using mesh_type = hd::mesh<hd::axis<workers>>;

struct settings {
  std::string model, field = "text", out, data, end_token;
  std::vector<std::string> text;
  bool bytes = false;
  double dedup = 0;
  int cores = 0;
  std::int64_t part_bytes = std::int64_t{64} << 20, explain = -1, context = 1024, samples = 0, batch = 1;
  std::uint32_t seed = 1234;
};

// What says whether documents are alike: of each a hash of its text, and a signature.
struct marks {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint32_t> signatures;
};
void write(const fs::path& path, const marks& m) {
  io::durable_file file(path);
  file.write(std::as_bytes(std::span(m.hashes)));
  file.write(std::as_bytes(std::span(m.signatures)));
  file.close();
}
marks read_marks(const fs::path& path, std::int64_t documents, std::size_t of_signature) {
  const auto n = static_cast<std::size_t>(documents);
  marks m{std::vector<std::uint64_t>(n), std::vector<std::uint32_t>(n * of_signature)};
  const auto bytes = io::read_bytes(path, 0, static_cast<std::int64_t>(8 * n + 4 * n * of_signature));
  if (n == 0) return m;
  std::memcpy(m.hashes.data(), bytes.data(), 8 * n);
  if (of_signature > 0) std::memcpy(m.signatures.data(), bytes.data() + 8 * n, 4 * n * of_signature);
  return m;
}

fs::path part_path(const settings& s, std::size_t i) {
  return fs::path(s.out + ".parts") / (std::string(6 - (std::min)(std::to_string(i).size(), std::size_t{6}), '0') + std::to_string(i));
}
// A part is done when its index is there, which is written last and renamed.
fs::path index_of(const settings& s, std::size_t i) { return part_path(s, i) += ".idx"; }

// What the parts on the disk were made with; parts of other texts or options are not taken for these.
void claim_parts(const settings& s, const std::vector<text_parts::part>& parts) {
  std::string text = "heddle tokens 1\nmodel " + s.model + (s.bytes ? " bytes" : "") + "\nfield " + s.field + "\nend " + s.end_token +
                     "\nalike " + (s.dedup > 0 && s.dedup < 1 ? "near" : "exact") + "\n";
  for (const auto& p : parts)
    text += p.file.string() + " " + std::to_string(p.first) + " " + std::to_string(p.end) + " " +
            std::to_string(fs::last_write_time(p.file).time_since_epoch().count()) + "\n";
  const fs::path folder = s.out + ".parts", list = folder / "settings";
  if (!fs::exists(list)) {
    fs::create_directories(folder);
    io::durable_file file(folder / "settings.new");
    file.write(text);
    file.close();
    fs::rename(folder / "settings.new", list);
    return;
  }
  const auto there = io::read_bytes(list, 0, static_cast<std::int64_t>(fs::file_size(list)));
  if (std::string_view(reinterpret_cast<const char*>(there.data()), there.size()) != text)
    throw hd::config_error("heddle: '" + folder.string() + "' has parts of other texts or options; remove it to begin anew");
}

int make(const settings& s) {
  if (s.text.empty() || s.out.empty() || (s.model.empty() && !s.bytes))
    throw tool::usage_error("--text, --out and --model (or --bytes) are needed");
  const auto tokenizer = s.bytes ? byte_tokenizer() : tokenizer_of(s.model);
  const std::optional<std::int32_t> end = s.end_token.empty() ? std::nullopt : std::optional(tokenizer.special(s.end_token));
  const auto parts = text_parts::parts_of(s.text, s.part_bytes);
  if (parts.empty()) throw hd::config_error("heddle: there is no text in what --text names");
  claim_parts(s, parts);
  const io::minhash hash;
  const bool near = s.dedup > 0 && s.dedup < 1;
  const std::size_t of_signature = near ? hash.size() : 0;
  std::int64_t all_bytes = 0;
  for (const auto& p : parts) all_bytes += p.end - p.first;
  tool::progress shown("tokens", all_bytes >> 20, "MB");
  std::atomic<std::int64_t> read{0}, made{0}, reused{0};
  const auto advance = [&](std::int64_t bytes) {
    const std::int64_t before = read.fetch_add(bytes);
    if (const std::int64_t more = ((before + bytes) >> 20) - (before >> 20); more > 0) shown.add(more);
  };
  const auto begin = std::chrono::steady_clock::now();

  const auto make_part = [&](std::size_t i) {
    io::megatron_writer writer(part_path(s, i) += ".new", tokenizer.vocabulary());
    marks m;
    std::int64_t counted = 0;
    text_parts::each_text(parts[i], s.field, [&](std::string_view text, std::int64_t bytes) {
      std::vector<std::int32_t> ids = tokenizer.encode(text, {.add_special_tokens = false, .special_tokens_as_text = true});
      if (ids.empty()) return;
      m.hashes.push_back(io::checksum64().update(std::as_bytes(std::span(text))).value());
      if (near) {
        const auto signature = hash.signature(io::token_shingles(std::span<const std::int32_t>(ids)));
        m.signatures.insert(m.signatures.end(), signature.begin(), signature.end());
      }
      if (end) ids.push_back(*end);
      writer.add(ids);
      writer.end_document();
      made += static_cast<std::int64_t>(ids.size());
      counted += bytes;
      advance(bytes);
    });
    advance((std::max)(parts[i].end - parts[i].first - counted, std::int64_t{0}));
    writer.finish();
    write(part_path(s, i) += ".marks", m);
    fs::rename(part_path(s, i) += ".new.bin", part_path(s, i) += ".bin");
    fs::rename(part_path(s, i) += ".new.idx", index_of(s, i));
  };

  std::atomic<std::size_t> next{0};
  std::vector<std::int64_t> begins(parts.size() + 1, 0);  // documents before each part
  std::vector<io::document_pair> alike;
  std::vector<bool> goes;
  const int cores = s.cores > 0 ? s.cores : hd::detail::available_cores();
  hd::launch<hd::threads>(mesh_type(cores), [&](auto& world) {
    for (std::size_t i = next++; i < parts.size(); i = next++)
      if (fs::exists(index_of(s, i))) {
        ++reused;
        advance(parts[i].end - parts[i].first);
      } else {
        make_part(i);
      }
    auto& ranks = world.template along<workers>();
    ranks.barrier();
    if (world.rank() == 0)
      for (std::size_t i = 0; i < parts.size(); ++i) begins[i + 1] = begins[i] + io::megatron_corpus(part_path(s, i)).documents();
    ranks.barrier();
    if (s.dedup <= 0) return;
    std::vector<io::document_key> keys;
    for (std::size_t i = static_cast<std::size_t>(world.rank()); i < parts.size(); i += static_cast<std::size_t>(world.size())) {
      const marks m = read_marks(part_path(s, i) += ".marks", begins[i + 1] - begins[i], of_signature);
      for (std::size_t d = 0; d < m.hashes.size(); ++d) {
        const std::int64_t document = begins[i] + static_cast<std::int64_t>(d);
        keys.push_back({m.hashes[d], document});
        if (!near) continue;
        for (const std::uint64_t key : hash.keys(std::span(m.signatures).subspan(d * of_signature, of_signature)))
          keys.push_back({key, document});
      }
    }
    auto pairs = io::candidate_pairs(ranks, keys);
    if (world.rank() == 0) alike = std::move(pairs);
  });

  // Candidates are compared: by their text's hash, else by their signatures.
  if (s.dedup > 0) {
    marks all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const marks m = read_marks(part_path(s, i) += ".marks", begins[i + 1] - begins[i], of_signature);
      all.hashes.insert(all.hashes.end(), m.hashes.begin(), m.hashes.end());
      all.signatures.insert(all.signatures.end(), m.signatures.begin(), m.signatures.end());
    }
    const auto signature = [&](std::int64_t d) {
      return std::span<const std::uint32_t>(all.signatures).subspan(static_cast<std::size_t>(d) * of_signature, of_signature);
    };
    std::erase_if(alike, [&](const io::document_pair& p) {
      return all.hashes[static_cast<std::size_t>(p.kept)] != all.hashes[static_cast<std::size_t>(p.other)] &&
             !(near && io::minhash::alike(signature(p.kept), signature(p.other)) >= s.dedup);
    });
  }
  goes = io::later_of_pairs(alike, begins.back());

  io::megatron_writer writer(s.out, tokenizer.vocabulary());
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const io::megatron_corpus corpus(part_path(s, i));
    for (std::int64_t d = 0, end = 0; d < corpus.documents(); d = end + 1) {
      for (end = d; end < corpus.documents() && !goes[static_cast<std::size_t>(begins[i] + end)]; ++end) tokens += corpus.length(end);
      writer.add_documents(corpus, d, end - d);
    }
  }
  writer.finish();
  fs::remove_all(s.out + ".parts");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto dropped = std::count(goes.begin(), goes.end(), true);
  shown.above([&] {
    if (reused > 0) std::printf("%lld of %zu parts were there already\n", static_cast<long long>(reused), parts.size());
    std::printf("%lld documents, %lld of them duplicates (%.1f %%); %lld tokens from %.1f MB, %.2f M tokens/s on %d cores\n",
                static_cast<long long>(begins.back()), static_cast<long long>(dropped),
                begins.back() == 0 ? 0.0 : 100.0 * static_cast<double>(dropped) / static_cast<double>(begins.back()),
                static_cast<long long>(tokens), static_cast<double>(all_bytes) * 1e-6, static_cast<double>(made) * 1e-6 / seconds, cores);
    std::printf("wrote %s.bin and %s.idx\n", s.out.c_str(), s.out.c_str());
  });
  return 0;
}

// Where the tokens of a step come from.
int explain(const settings& s) {
  if (s.data.empty()) throw tool::usage_error("--explain needs --data, --samples and --batch as of the run");
  const io::megatron_corpus corpus(s.data);
  const io::gpt_order order(corpus, {.context = s.context, .samples = s.samples, .seed = s.seed});
  const io::sample_block step{s.explain * s.batch, s.batch};
  std::fputs(io::explain(corpus, order, step).c_str(), stdout);
  std::printf("step %lld  digest %016llx\n", static_cast<long long>(s.explain),
              static_cast<unsigned long long>(io::digest_of(order, corpus.fingerprint(), step)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line line("Makes Megatron's token files out of texts, or says where the tokens of a training step come from.");
  line.add_option("--text", s.text, "files, or folders of files: .jsonl or .json with an object in every line, else a text each; .gz and .zst too")->take_all();
  line.add_option("--field", s.field, "the member of a line that is the text");
  line.add_option("--model", s.model, "folder of a model, whose tokenizer is used");
  line.add_flag("--bytes", s.bytes, bytes_help);
  line.add_option("--end-token", s.end_token, "a special token that is put behind every document, such as <|endoftext|>");
  line.add_option("--out", s.out, "PATH.bin and PATH.idx are written; PATH.parts has what is done when the tool is stopped");
  line.add_option("--dedup", s.dedup, "documents go whose text came before: 1, or one as similar as this (Jaccard, by MinHash): 0.8")->range(0.0, 1.0)->otherwise("all stay");
  line.add_option("--cores", s.cores, "threads")->at_least(1)->otherwise("all cores");
  line.add_option("--part-bytes", s.part_bytes, "how large the parts of a plain file of lines are")->at_least(1);
  line.add_option("--explain", s.explain, "prints file and bytes of every sample of this step, and a digest of the step")->at_least(0)->otherwise("texts are read");
  line.add_option("--data", s.data, "the path of the token files, without .bin");
  line.add_option("--context", s.context, "tokens of a sample")->at_least(1);
  line.add_option("--samples", s.samples, "samples of the whole run")->at_least(0);
  line.add_option("--batch", s.batch, "samples of a step")->at_least(1);
  line.add_option("--seed", s.seed, "of the order");
  return tool::run(line, argc, argv, [&] { return s.explain >= 0 ? explain(s) : make(s); });
}
