// Token files of Megatron and llm.c, and Megatron's order of samples, against numbers that Megatron's own code has
// made.
#include "catch.hpp"

#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/io/tokens/llm_c.hpp>
#include <heddle/io/tokens/megatron_index.hpp>
#include <heddle/io/tokens/token_source.hpp>
#include <heddle/train/step_batches.hpp>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "scratch.hpp"

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace io = heddle::io;

namespace tokens_test {

// Documents of given lengths; token t of document d is 100 d + t.
struct counted_store {
  std::vector<std::int64_t> lengths;
  std::int64_t documents() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t length(std::int64_t d) const { return lengths[static_cast<std::size_t>(d)]; }
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<Id>(100 * d + first + static_cast<std::int64_t>(i));
  }
  std::uint64_t fingerprint() const { return 1; }
};
static_assert(io::token_store<counted_store> && io::token_store<io::megatron_corpus> &&
              io::token_store<io::llm_c_shards>);
static_assert(heddle::train::sample_source<io::token_source<io::megatron_corpus, io::gpt_order>>);

std::string of_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}
// Lengths 3 and 2, tokens of 16 bits, two documents: an index as published.
const std::string published = of_hex(
    "4d4d49444944580000010000000000000008020000000000000003000000000000000300000002000000000000000000000006000000000000"
    "00"
    "000000000000000001000000000000000200000000000000");

std::string bytes_of(const auto& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]};
}
std::vector<std::int32_t> document(const auto& store, std::int64_t d) {
  std::vector<std::int32_t> x(static_cast<std::size_t>(store.length(d)));
  store.copy(d, 0, std::span(x));
  return x;
}
void fold(std::uint64_t& value, std::int64_t n) {
  value = value * 1000003 + static_cast<std::uint64_t>(n) + 1;
}

TEST_CASE("files of Megatron are written as published, and read", "[io][tokens]") {
  const scratch_folder folder("tokens");
  REQUIRE(published.size() == 82);
  io::megatron_writer writer(folder / "small", 300);
  writer.add(std::vector<std::int32_t>{7, 8, 299});
  writer.end_document();
  writer.add(std::vector<std::int32_t>{1, 2});
  writer.end_document();
  CHECK_THROWS_WITH(writer.add(std::vector<std::int32_t>{1, 300}),
                    Contains("token 1 of sequence 2 is 300; the vocabulary has 300"));
  writer.finish();
  CHECK(get(folder / "small.idx") == published);
  CHECK(get(folder / "small.bin") == bytes_of(std::vector<std::uint16_t>{7, 8, 299, 1, 2}));
  const io::megatron_corpus small(folder / "small");
  CHECK((small.documents() == 2 && small.tokens() == 5));
  CHECK(document(small, 0) == std::vector<std::int32_t>{7, 8, 299});
  CHECK(document(small, 1) == std::vector<std::int32_t>{1, 2});
  CHECK(small.document_begins() == std::vector<std::int64_t>{0, 1, 2});
  std::vector<std::int32_t> part(2);
  small.copy(0, 1, std::span(part));
  CHECK(part == std::vector<std::int32_t>{8, 299});
  // A larger vocabulary has 32 bits; other tokens are another corpus.
  io::megatron_writer wide(folder / "wide", 65500);
  wide.add(std::vector<std::int32_t>{65499});
  wide.add({});
  wide.end_document();
  wide.finish();
  const io::megatron_corpus read(folder / "wide");
  CHECK(document(read, 0) == std::vector<std::int32_t>{65499});
  CHECK(read.length(1) == 0);
  CHECK(read.fingerprint() != small.fingerprint());
}

TEST_CASE("documents of a corpus are copied as they stand, runs of them at once", "[io][tokens]") {
  const scratch_folder at("megatron-copy");
  for (const std::int64_t vocabulary : {500, 70000}) {
    const auto prefix = at / std::to_string(vocabulary);
    io::megatron_writer from(prefix, vocabulary);
    std::vector<std::int32_t> ids;
    for (int d = 0; d < 3000; ++d) {
      ids.assign(static_cast<std::size_t>(d % 700), d % 500);
      from.add(ids);
      from.end_document();
    }
    from.finish();
    const io::megatron_corpus whole(prefix);
    REQUIRE(whole.tokens() > 600000);  // more bytes than are held back
    io::megatron_writer to(at / "some", vocabulary);
    to.add_documents(whole, 5, 0);
    to.add_documents(whole, 1, 10);     // held back
    to.add_documents(whole, 11, 1990);  // written as it lies, behind what is held back
    to.add_documents(whole, 2999, 1);
    CHECK_THROWS_WITH(to.add_documents(whole, 2999, 2), Contains("sequences 2999 to 3001"));
    to.finish();
    const io::megatron_corpus some(at / "some");
    REQUIRE(some.documents() == 2001);
    CHECK(std::ssize(some.document_begins()) == 2002);
    for (std::int64_t d = 0; d < 2001; ++d) {
      const std::int64_t was = d == 2000 ? 2999 : d + 1;
      ids.assign(static_cast<std::size_t>(some.length(d)), -1);
      some.copy(d, 0, std::span(ids));
      REQUIRE(ids ==
              std::vector<std::int32_t>(static_cast<std::size_t>(was % 700), static_cast<std::int32_t>(was % 500)));
    }
    io::megatron_writer other(at / "other", vocabulary == 500 ? 70000 : 500);
    CHECK_THROWS_WITH(other.add_documents(whole, 0, 1), Contains("bytes a token; expected"));
  }
}

TEST_CASE("an index of Megatron that cannot be is named, with the place", "[io][tokens]") {
  const scratch_folder folder("tokens");
  const auto fault = [&](std::size_t at, const std::string& bytes, std::size_t size = 82) {
    std::string bad = published;
    bad.replace(at, bytes.size(), bytes);
    put(folder / "x.idx", bad.substr(0, size));
    put(folder / "x.bin", std::string(10, '\1'));
    return message_of<heddle::io_error>([&] { io::megatron_corpus corpus(folder / "x"); });
  };
  CHECK(fault(0, "M").empty());
  CHECK_THAT(fault(0, "N"), Contains("x.idx': is no index of Megatron"));
  CHECK_THAT(fault(9, "\2"), Contains("is an index of version 2; version 1 is read"));
  CHECK_THAT(fault(17, "\7"), Contains("byte 17, the type of elements, is 7; tokens are 1 (u8)"));
  CHECK_THAT(fault(17, "\4"), Contains("sequence 0 has 3 tokens of 4 bytes at byte 0; the .bin file has 10 bytes"));
  CHECK_THAT(fault(18, "\3"), Contains("is cut off: 3 sequences and 3 marks of documents do not fit in its 82 bytes"));
  CHECK_THAT(fault(18, std::string(8, '\xff')), Contains("is cut off"));
  CHECK_THAT(fault(34, std::string(4, '\xff')), Contains("sequence 0 has -1 tokens"));
  CHECK_THAT(fault(50, "\7"), Contains("sequence 1 has 2 tokens of 2 bytes at byte 7"));
  CHECK_THAT(fault(66, "\3"), Contains("document 1 begins with sequence 3, behind 0 of 2"));
  CHECK_THAT(fault(74, std::string(1, '\0')), Contains("document 2 begins with sequence 0, behind 1 of 2"));
  for (std::size_t n = 0; n < 82; ++n) CHECK_FALSE(fault(0, "M", n).empty());
  fs::remove(folder / "x.bin");
  put(folder / "x.idx", published);
  CHECK_THAT(message_of<heddle::io_error>([&] { io::megatron_corpus corpus(folder / "x"); }), Contains("x.bin'"));
}

TEST_CASE("shards of llm.c are read, of 16 bits and of 32", "[io][tokens]") {
  const scratch_folder folder("tokens");
  const auto shard = [&](const char* name, std::int32_t magic, std::int32_t version, std::int32_t tokens,
                         const std::string& data) {
    std::vector<std::int32_t> head(256);
    head[0] = magic, head[1] = version, head[2] = tokens;
    put(folder / name, bytes_of(head) + data);
    return folder / name;
  };
  const std::vector<fs::path> paths{
      shard("a.bin", 20240520, 1, 3, bytes_of(std::vector<std::uint16_t>{1, 65535, 50256})),
      shard("b.bin", 20240801, 7, 2, bytes_of(std::vector<std::uint32_t>{128000, 3}))};
  const io::llm_c_shards both(paths);
  CHECK(document(both, 0) == std::vector<std::int32_t>{1, 65535, 50256});
  CHECK(document(both, 1) == std::vector<std::int32_t>{128000, 3});
  CHECK(both.fingerprint() != io::llm_c_shards(std::span(paths).first(1)).fingerprint());
  const auto fault = [&](const fs::path& path) {
    return message_of<heddle::io_error>([&] { io::llm_c_shards one(std::span(&path, 1)); });
  };
  CHECK_THAT(fault(shard("c.bin", 20240520, 7, 0, "")), Contains("c.bin': begins with 20240520, version 7; shards"));
  CHECK_THAT(fault(shard("c.bin", 20240520, 1, 4, "123456")),
             Contains("has 1030 bytes; its header says 4 tokens of 2"));
  put(folder / "c.bin", "short");
  CHECK_THAT(fault(folder / "c.bin"), Contains("it has 5 bytes, the header alone 1024"));
  CHECK_THROWS_AS(io::llm_c_shards({}), heddle::config_error);
}

TEST_CASE("the order of samples is Megatron's, bit for bit", "[io][tokens][golden]") {
  std::ifstream golden(HEDDLE_SOURCE_DIR "/tests/golden/gpt_order_golden.txt");
  int lines = 0, several = 0;
  for (std::string line; std::getline(golden, line); ++lines) {
    std::istringstream in(line);
    io::gpt_order_options o;
    std::size_t n = 0;
    in >> o.seed >> o.context >> o.samples >> n;
    counted_store store;
    store.lengths.resize(n);
    for (std::int64_t& l : store.lengths) in >> l;
    std::int64_t epochs = 0, samples = 0;
    std::uint64_t documents = 0, cuts = 0, shuffled = 0, value = 0;
    in >> epochs >> documents >> cuts >> shuffled >> samples;
    CAPTURE(lines, o.context, o.samples);
    const io::gpt_order order(store, o);
    REQUIRE(order.epochs() == epochs);
    REQUIRE(order.samples() == samples);
    REQUIRE(order.samples() >= o.samples);
    std::int64_t position = -1;
    for (std::int64_t t = 0; t < epochs * std::accumulate(store.lengths.begin(), store.lengths.end(), std::int64_t{0});
         ++t)
      if (const auto at = order.token_place(t); at.position != position) {
        position = at.position;
        fold(value, at.document);
      }
    REQUIRE(value == documents);
    value = 0;
    for (std::int64_t cut = 0; cut <= samples; ++cut) {
      fold(value, order.begin_of(cut).position);
      fold(value, order.begin_of(cut).offset);
    }
    REQUIRE(value == cuts);
    value = 0;
    for (std::int64_t i = 0; i < samples; ++i) fold(value, order.cut(i));
    REQUIRE(value == shuffled);
    several += epochs > 1;
  }
  CHECK(lines == 200);
  CHECK(several > 100);
}

TEST_CASE("a source gives the tokens of an order, whoever asks for which part", "[io][tokens][law]") {
  const counted_store store{{5, 3, 7, 2, 6, 40}};
  const io::gpt_order order(store, {.context = 4, .samples = 50, .seed = 3, .end = 5});
  const io::token_source source(
      store, order, 600, std::optional(io::gpt_order(store, {.context = 4, .samples = 6, .seed = 3, .first = 5})));
  CHECK(source.context() == 4);
  CHECK(source.validation_samples() == 6);
  // By hand: all documents behind each other, in the order's order.
  std::vector<std::int32_t> stream;
  for (std::int64_t t = 0; t < order.epochs() * 23; ++t) {
    const auto at = order.token_place(t);
    stream.push_back(static_cast<std::int32_t>(100 * at.document + at.offset));
  }
  std::vector<std::int32_t> in(200), out(200), in_one(4), out_one(4);
  source.fill_train({0, 50}, std::span(in), std::span(out));
  for (std::int64_t i = 0; i < 50; ++i) {
    const auto at = static_cast<std::size_t>(4 * order.cut(i)), row = static_cast<std::size_t>(4 * i);
    source.fill_train({i, 1}, std::span(in_one), std::span(out_one));
    for (std::size_t t = 0; t < 4; ++t) {
      REQUIRE(in[row + t] == stream[at + t]);
      REQUIRE(out[row + t] == stream[at + t + 1]);
      REQUIRE((in_one[t] == in[row + t] && out_one[t] == out[row + t]));
    }
  }
  source.fill_validation({0, 6}, std::span(in), std::span(out));
  for (std::size_t i = 0; i < 24; ++i) CHECK((in[i] >= 500 && in[i] < 540 && out[i] == in[i] + 1));
  CHECK_THROWS_AS(source.fill_train({0, 51}, std::span(in), std::span(out)), heddle::config_error);
  CHECK_THROWS_WITH(source.fill_train({order.samples(), 1}, std::span(in), std::span(out)),
                    Contains("of " + std::to_string(order.samples()) + "; set `samples`"));
  CHECK_THROWS_AS(source.fill_validation({5, 2}, std::span(in), std::span(out)), heddle::config_error);
  const io::token_source narrow(store, order, 400);
  CHECK_THROWS_WITH(narrow.fill_train({0, 50}, std::span(in), std::span(out)),
                    Contains("of document 4 is 40") && Contains("; the model's vocabulary has 400"));
  CHECK_THROWS_AS(io::gpt_order(store, {.context = 4, .samples = 0}), heddle::config_error);
  CHECK_THROWS_AS(io::gpt_order(store, {.context = 4, .samples = 1, .first = 3, .end = 3}), heddle::config_error);
  CHECK_THROWS_AS(io::gpt_order(counted_store{{0, 0}}, {.context = 4, .samples = 1}), heddle::io_error);
  CHECK(to_string(order) == "gpt_order seed 3, context 4, samples 50, documents 0 to 5");
}

}  // namespace tokens_test
