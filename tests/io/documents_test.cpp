// tests/io/documents_test.cpp: a stream of tokens as documents: where they begin, what they learn, and in which order.
#include "catch.hpp"

#include <heddle/io/corpus.hpp>
#include <heddle/io/documents.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace io = heddle::io;
using Catch::Matchers::Contains;
using ids = std::vector<std::int32_t>;

namespace {

struct pairs {
  ids inputs, targets;
};
template <class Documents>
pairs read(const Documents& all, std::int64_t document, std::int64_t first, std::int64_t count) {
  pairs p{ids(static_cast<std::size_t>(count)), ids(static_cast<std::size_t>(count))};
  all.fill(document, first, std::span<std::int32_t>(p.inputs), std::span<std::int32_t>(p.targets));
  return p;
}

}  // namespace

TEST_CASE("documents lie between separators, which their last tokens learn", "[io][documents]") {
  const std::vector<std::uint16_t> tokens{5, 6, 7, 0, 0, 8, 0, 9, 10};
  const io::basic_documents<std::uint16_t> all(tokens, std::uint16_t{0});
  REQUIRE(all.documents() == 3);
  CHECK(all.empty() == 1);
  CHECK(all.longest() == 3);
  CHECK(all.length(0) == 3);
  CHECK(all.length(1) == 1);
  CHECK(read(all, 0, 0, 3).inputs == ids{5, 6, 7});
  CHECK(read(all, 0, 0, 3).targets == ids{6, 7, 0});
  CHECK(read(all, 0, 1, 1).targets == ids{7});
  CHECK(read(all, 1, 0, 1).targets == ids{0});
  CHECK(read(all, 2, 0, 2).inputs == ids{9, 10});
  CHECK(read(all, 2, 0, 2).targets == ids{10, all.ignored});  // nothing is behind it
}

TEST_CASE("documents of given starts learn nothing of the next one, and long ones are cut", "[io][documents]") {
  const std::vector<std::uint8_t> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::int64_t> starts{1, 6, 6, 8};
  const io::basic_documents<std::uint8_t> all(tokens, starts, {.longest = 2});
  REQUIRE(all.documents() == 4);
  CHECK(all.empty() == 1);
  CHECK(read(all, 0, 0, 2).inputs == ids{2, 3});
  CHECK(read(all, 0, 0, 2).targets == ids{3, 4});  // goes on in the next part
  CHECK(read(all, 2, 0, 1).targets == ids{all.ignored});
  CHECK(read(all, 3, 0, 2).targets == ids{8, all.ignored});
}

TEST_CASE("every epoch has each training document once, in an order of its own", "[io][documents]") {
  std::vector<std::uint8_t> tokens;
  for (int d = 0; d < 20; ++d) tokens.insert(tokens.end(), {1, 1, 0});
  const io::basic_documents<std::uint8_t> all(tokens, std::uint8_t{0}, {.validation = 0.25, .seed = 4});
  REQUIRE(all.documents() == 15);
  REQUIRE(all.validation_samples() == 5);
  std::vector<std::int64_t> first, second;
  for (std::int64_t i = 0; i < 15; ++i) first.push_back(all.train_document(i)), second.push_back(all.train_document(15 + i));
  CHECK(std::set<std::int64_t>(first.begin(), first.end()).size() == 15);
  CHECK(std::set<std::int64_t>(second.begin(), second.end()).size() == 15);
  CHECK(*std::set<std::int64_t>(first.begin(), first.end()).rbegin() == 14);
  CHECK(first != second);
  CHECK(all.validation_document(0) == 15);
}

TEST_CASE("the files of a folder are documents", "[io][documents]") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "heddle-documents-test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "a.txt") << "first";
  std::ofstream(folder / "b.txt") << "";
  std::ofstream(folder / "c.txt") << "second one";
  const io::corpus corpus(folder);
  const io::basic_documents<std::uint8_t> all(corpus.tokens(), corpus.starts(), {});
  std::filesystem::remove_all(folder);
  REQUIRE(all.documents() == 2);
  CHECK(all.length(0) == 6);  // with the separator behind it
  CHECK(all.length(1) == 10);
  CHECK(read(all, 1, 0, 1).inputs == ids{'s'});
}

TEST_CASE("documents refuse starts that fall or leave the tokens", "[io][documents][error]") {
  const std::vector<std::uint8_t> tokens{1, 2, 3};
  const auto made = [&](std::vector<std::int64_t> starts, io::documents_options o = {}) {
    return io::basic_documents<std::uint8_t>(tokens, std::span<const std::int64_t>(starts), o);
  };
  CHECK_THROWS_WITH(made({0, 2, 1}), Contains("document 2 begins at token 1; expected 2 to 3"));
  CHECK_THROWS_WITH(made({0, 4}), Contains("document 1 begins at token 4; expected 0 to 3"));
  CHECK_THROWS_WITH(made({-1, 3}), Contains("document 0 begins at token -1"));
  CHECK_THROWS_WITH(made({0, 0}), Contains("0 documents with tokens in them"));
  CHECK_THROWS_WITH(made({0, 3}, {.validation = 0.5}), Contains("expected at least 2"));
  CHECK_THROWS_WITH(made({0, 3}, {.longest = -1}), Contains("at least 1 token, or 0 to cut none, got -1"));
  const auto all = made({0, 3});
  ids two(2), one(1);
  CHECK_THROWS_WITH(all.fill(0, 2, std::span<std::int32_t>(two), std::span<std::int32_t>(two)), Contains("tokens 2 to 4"));
  CHECK_THROWS_WITH(all.fill(0, 0, std::span<std::int32_t>(two), std::span<std::int32_t>(one)), Contains("room for 1 targets"));
  CHECK_THROWS_WITH(all.fill(1, 0, std::span<std::int32_t>(one), std::span<std::int32_t>(one)), Contains("there are 1 documents"));
}
