#include <heddle/comm/threads.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/reconfigure.hpp>

#include "catch.hpp"
#include "collective/plain_rounds.hpp"

#include <map>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace topologies = heddle::topologies;

namespace {

using line = hd::mesh<hd::axis<hd::dp>>;
// What a rank sent: bytes by (round, receiver).
using sent_bytes = std::map<std::pair<int, int>, std::int64_t>;

// Rounds [first, end) of a table in which every rank begins with a whole vector, by plain messages.
template <class Comm>
void run_rounds(Comm& comm, hd::round_view rounds, int first, int end, std::vector<float>& x, sent_bytes& sent) {
  const auto elements = static_cast<std::int64_t>(x.size());
  for (int k = first; k < end; ++k) {
    struct message {
      hd::round_transfer what;
      std::vector<float> data;
    };
    std::vector<message> in, out;
    for (const hd::round_transfer& t : rounds.round(k)) {
      std::vector<float> data;
      for (const int item : rounds.items_of(t)) {
        const hd::item_extent e = hd::extent_of(rounds, item, elements);
        data.insert(data.end(), x.begin() + e.offset, x.begin() + e.offset + e.size);
      }
      if (t.to == comm.rank()) in.push_back({t, data});
      if (t.from == comm.rank()) out.push_back({t, data});
    }
    std::vector<decltype(comm.irecv(std::span(x), 0))> requests;
    for (message& m : in) requests.push_back(comm.irecv(std::span(m.data), m.what.from));
    for (message& m : out) {
      const auto already = comm.counters().bytes_sent();
      requests.push_back(comm.isend(std::span(std::as_const(m.data)), m.what.to));
      sent[{k, m.what.to}] += comm.counters().bytes_sent() - already;
    }
    for (auto& r : requests) r.wait();
    for (const message& m : in) {
      std::size_t at = 0;
      for (const int item : rounds.items_of(m.what)) {
        const hd::item_extent e = hd::extent_of(rounds, item, elements);
        for (std::int64_t i = e.offset; i < e.offset + e.size; ++i, ++at) {
          float& own = x[static_cast<std::size_t>(i)];
          own = m.what.how == hd::arrival::store         ? m.data[at]
                : m.what.how == hd::arrival::fold_before ? m.data[at] + own
                                                         : own + m.data[at];
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("ranks that follow a plan get the same bits, and send over each link what the plan says", "[plan][pccl]") {
  for (const int n : {8, 16})
    for (const std::int64_t elements : {std::int64_t{1000}, std::int64_t{7}, std::int64_t{40000}}) {
      const hd::round_table rounds = plain_rounds::halving_doubling(n);
      const plan::circuit_switch fabric{3e-6, 1e9, 2, 1e-5};
      const plan::fabric_states states(rounds, topologies::ring(n, fabric.port()), fabric);
      const plan::reconfiguration made = plan::reconfigure(states, elements, 4);
      CAPTURE(n, elements, made.switches);
      if (elements == 40000) CHECK(made.switches > 0);

      std::vector<sent_bytes> sent(static_cast<std::size_t>(n));
      std::vector<std::vector<float>> planned(sent.size()), plain(sent.size());
      hd::launch<hd::threads>(line{n}, [&](auto& world) {
        auto& comm = world.all();
        const auto r = static_cast<std::size_t>(comm.rank());
        std::vector<float> x(static_cast<std::size_t>(elements));
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = 0.1f * static_cast<float>(r + 1) + static_cast<float>(i % 89) / 7.0f;
        std::vector<float> y = x;
        for (const auto& part : made.segments()) {
          comm.barrier();  // here the fabric would switch
          run_rounds(comm, rounds, part.first, part.end, x, sent[r]);
        }
        sent_bytes unplanned;
        run_rounds(comm, rounds, 0, rounds.view().rounds(), y, unplanned);
        planned[r] = x;
        plain[r] = y;
      });

      // The sum in the order that the tree of distances n/2, n/4, ... gives, on every rank.
      bool same = true;
      for (std::size_t r = 0; r < planned.size(); ++r)
        same = same && planned[r] == plain[r] && planned[r] == planned[0];
      CHECK(same);
      bool loads = true;
      for (int k = 0; k < rounds.view().rounds(); ++k) {
        const int state = made.states[static_cast<std::size_t>(k)];
        const hd::topology& t = states[state];
        std::vector<double> carried(t.links().size(), 0);
        for (int from = 0; from < n; ++from)
          for (const auto& [where, bytes] : sent[static_cast<std::size_t>(from)]) {
            if (where.first == k)
              for (const hd::route_step& s : t.route(from, where.second, hd::routing::split))
                carried[static_cast<std::size_t>(s.link)] += s.share * static_cast<double>(bytes);
          }
        const hd::load_map expected(states.ways(state), elements, 4);
        for (std::size_t l = 0; l < carried.size(); ++l)
          loads = loads && carried[l] == expected.bytes(k, static_cast<int>(l));
      }
      CHECK(loads);
    }
}
