// Twelve faults of calls, each made by one of four ranks: all are caught, by the layer that is named here.
#include <heddle/core/monoid.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace call_mutations {
namespace {

namespace hd = heddle;
using hd::dp, hd::tp;
using mutated_grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;

enum class mutant : unsigned char {
  none,
  skip,
  swap,
  twice,
  size,
  type,
  combine,
  root,
  counts,
  group,
  order,
  late,
  fails
};
struct mutation {
  mutant what;
  std::string_view name, layer, said;
};
// What the error says, besides the rank that is at fault (or one that waits for it), where its calls are compared.
constexpr std::array<mutation, 12> mutations{{
    {mutant::skip, "a call left out", "marks", "ranks disagree about call"},
    {mutant::swap, "two calls swapped", "calls compared", "ranks disagree about call"},
    {mutant::twice, "a call made twice", "marks", "ranks disagree about call"},
    {mutant::size, "another size", "calls compared", "all_reduce of 4 float"},
    {mutant::type, "another type", "calls compared", "all_reduce of 8 double"},
    {mutant::combine, "another operator", "calls compared", "with maximum"},
    {mutant::root, "another root", "calls compared", "broadcast of 8 float with root 1"},
    {mutant::counts, "other counts", "calls compared", "ranks disagree about call"},
    {mutant::group, "the call of another group", "who waits where", "communicator (dp)"},
    {mutant::order, "groups in another order", "who waits where", "communicator (tp)"},
    {mutant::late, "a rank that does not come", "who waits where", "all_reduce of 8 float"},
    {mutant::fails, "a rank that throws", "errors of ranks", "no more"},
}};

std::string mutated_run(mutant what, int culprit) {
  hd::launch_options options;
  const bool waits = what == mutant::group || what == mutant::order || what == mutant::late;
  options.timeout = std::chrono::milliseconds(waits ? 300 : 20'000);
  try {
    transport_test::launch(mutated_grid{}, options, [&](auto& world) {
      std::vector<float> x(8, 1.0f), gathered(10);
      std::vector<double> y(8, 1.0);
      for (int step = 0; step < 4; ++step) {
        world.mark(step);
        const bool now = world.rank() == culprit && step == 2;
        const auto sum = [&] { world.all().all_reduce(x, hd::plus{}); };
        const auto spread = [&](int root) { world.all().broadcast(x, root); };
        if (now && what == mutant::swap) spread(0);
        if (!(now && what == mutant::skip)) sum();
        if (now && what == mutant::twice) sum();
        if (!(now && what == mutant::swap)) spread(now && what == mutant::root ? 1 : 0);
        if (now && what == mutant::fails) throw std::runtime_error("no more");
        if (now && what == mutant::late) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        if (now && what == mutant::size)
          world.all().all_reduce(std::span(x).first(4), hd::plus{});
        else if (now && what == mutant::type)
          world.all().all_reduce(y, hd::plus{});
        else if (now && what == mutant::combine)
          world.all().all_reduce(x, hd::maximum{});
        else
          sum();
        auto& rows = world.template along<tp>();
        auto& columns = world.template along<dp>();
        // A row's sum before that of all ranks: its neighbour waits in the latter for it.
        const bool early = now && what == mutant::order;
        if (early) rows.all_reduce(x, hd::plus{});
        // Ranks bring 1, 2, 3 and 4 elements; one may think otherwise.
        std::array<std::int64_t, 4> counts{1, 2, 3, 4};
        if (now && what == mutant::counts) std::swap(counts[0], counts[1]);
        const auto brought = static_cast<std::size_t>(counts[static_cast<std::size_t>(world.rank())]);
        world.all().all_gather_v(std::span<const float>(x).first(brought), std::span(gathered), counts);
        if (now && what == mutant::group)
          columns.all_reduce(x, hd::plus{});
        else if (!early)
          rows.all_reduce(x, hd::plus{});
        columns.all_reduce(x, hd::plus{});
        world.all().barrier();
      }
    });
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("twelve faults of calls are all caught, each by the layer that is there for it", "[comm][mutations][failure]") {
  if (!transport_test::on_threads && transport_test::most_ranks() != 4) {
    SUCCEED("four processes run it");
    return;
  }
  for (const int culprit : {0, 3}) {
    CHECK(mutated_run(mutant::none, culprit).empty());
    for (const mutation& m : mutations) {
      const std::string text = mutated_run(m.what, culprit);
      INFO(m.name << " on rank " << culprit << ": " << text);
      CHECK(!text.empty());
      CHECK(text.find(m.said) != std::string::npos);
      if (m.layer == "marks" || m.layer == "calls compared")
        CHECK(text.find("rank " + std::to_string(culprit) + " entered") != std::string::npos);
      if (m.layer != "errors of ranks") CHECK(text.find("in step") != std::string::npos);
      if (culprit == 3 && transport_test::process() == 0)
        std::printf("%-28.*s caught by: %.*s\n", static_cast<int>(m.name.size()), m.name.data(),
                    static_cast<int>(m.layer.size()), m.layer.data());
    }
  }
}

}  // namespace call_mutations
