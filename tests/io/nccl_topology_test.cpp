#include <heddle/core/config.hpp>

#if __has_include(<pugixml.hpp>)
#include <heddle/io/nccl_topology.hpp>

#include "catch.hpp"

#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::link_kind;
using hd::vertex_kind;

namespace {

// Two processors, each with a bridge that has two GPUs and a card behind it; the second card has two ports. All GPUs
// are on NVSwitches; the file lists them against their numbers.
const std::string machine = R"(<?xml version="1.0"?>
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:f1:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:f1:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x020000" link_speed="5.0 GT/s" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000"/></nic>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:81:00.0" class="0x060400" link_speed="" link_width="0">
      <pci busid="0000:82:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="2" sm="90" rank="2" gdr="1"><nvlink target="0000:f1:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:83:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="3" sm="90" rank="3" gdr="1"><nvlink target="0000:f1:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:84:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_1" dev="1" speed="200000" port="1" gdr="1"/>
          <net name="mlx5_2" dev="3" speed="200000" port="2" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>)";

std::string without_nvlinks(std::string text) {
  for (std::size_t at; (at = text.find("<nvlink")) != std::string::npos;) text.erase(at, text.find("/>", at) + 2 - at);
  return text;
}

}  // namespace

TEST_CASE("a machine is read from NCCL's topology", "[io][topology]") {
  const hd::node_topology node = hd::parse_nccl_topology(machine);
  const hd::topology& t = node.links;
  CHECK(t.ranks() == 4);
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 4; ++b) {
      if (a == b) continue;
      CHECK(t.route(a, b).hops == 2);  // over the NVSwitch, also where a PCIe bridge is as near
      CHECK(t.route(a, b).bytes_per_second == 18 * 2.5e10);
    }
  REQUIRE(node.cards.size() == 4);
  CHECK(node.cards[0] == hd::network_card{node.cards[0].vertex, "mlx5_0", 5e10, link_kind::infiniband});
  CHECK(node.cards[1] == hd::network_card{node.cards[1].vertex, "eth0", 1.25e9, link_kind::ethernet});
  CHECK(node.cards[2].name == "mlx5_1");
  CHECK(t.kind(node.cards[3].vertex) == vertex_kind::nic);
  // GPUs 0 and 1 are two links from the first card; 2 and 3 three links from each port of the second: one each.
  CHECK(t.route(0, node.cards[0].vertex).hops == 2);
  CHECK(t.route(0, node.cards[0].vertex).bytes_per_second == 5e9 / 8 * 0.8 * 8);
  CHECK(t.place(0) == hd::rank_place{0, 0, 0, 0, link_kind::infiniband});
  CHECK(t.place(1) == hd::rank_place{1, 0, 0, 0, link_kind::infiniband});
  CHECK(t.place(2).rail == 2);
  CHECK(t.place(3).rail == 3);
  CHECK(t.route(2, node.cards[3].vertex).hops == 3);

  // Without NVLinks: a bridge inside, two bridges and the processors between; the empty speed takes the default.
  hd::node_link_classes classes;
  classes.pcie.bytes_per_second = 1e9;
  classes.card = link_kind::roce;
  const hd::node_topology plain = hd::parse_nccl_topology(without_nvlinks(machine), classes);
  CHECK(plain.links.route(0, 1).hops == 2);
  CHECK(plain.links.route(0, 1).bytes_per_second == Approx(32e9 / 8 * 16 * 128 / 130));
  CHECK(plain.links.route(0, 3).hops == 5);
  CHECK(plain.links.route(0, 3).bytes_per_second == 1e9);
  CHECK(plain.links.place(0).nic == link_kind::roce);

  const std::string path =
      (std::filesystem::temp_directory_path() / ("heddle_nccl_" + std::to_string(std::random_device{}()))).string();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  std::fwrite(machine.data(), 1, machine.size(), file);
  std::fclose(file);
  CHECK(hd::load_nccl_topology(path) == node);
  std::remove(path.c_str());
  CHECK_THROWS_WITH(hd::load_nccl_topology(path), Contains(path));
}

TEST_CASE("NVLinks from GPU to GPU are links of their width", "[io][topology]") {
  const hd::topology t = hd::parse_nccl_topology(R"(<system version="1"><cpu numaid="0">
    <pci busid="a" class="0x030200"><gpu dev="0" sm="70"><nvlink target="b" count="2" tclass="0x030200"/></gpu></pci>
    <pci busid="b" class="0x030200"><gpu dev="1" sm="70"><nvlink target="a" count="2" tclass="0x030200"/>
      <nvlink target="c" count="1" tclass="0x030200"/></gpu></pci>
    <pci busid="c" class="0x030200"><gpu dev="2" sm="70"><nvlink target="b" count="1" tclass="0x030200"/></gpu></pci>
    </cpu></system>)")
                             .links;
  CHECK(t.route(0, 1).hops == 1);
  CHECK(t.route(1, 0).bytes_per_second == 5e10);
  CHECK(t.route(1, 2).bytes_per_second == 2.5e10);
  CHECK(t.route(0, 2).hops == 2);  // over PCIe: GPUs do not forward
  CHECK(t.links()[static_cast<std::size_t>(t.route(0, 2)[0].link)].kind == link_kind::pcie);
  CHECK(t.place(0).nic == link_kind::other);
}

TEST_CASE("what is no topology of NCCL is refused", "[io][topology][error]") {
  CHECK_THROWS_WITH(hd::parse_nccl_topology("<system>"), Contains("heddle: the text cannot be read as XML"));
  CHECK_THROWS_WITH(hd::parse_nccl_topology("<topology/>"), Contains("no element system"));
  CHECK_THROWS_WITH(hd::parse_nccl_topology("<system><cpu numaid=\"0\"/></system>"), Contains("there is no gpu"));
  CHECK_THROWS_WITH(hd::parse_nccl_topology("<system><cpu><pci busid=\"a\"><gpu dev=\"0\"/></pci><pci busid=\"a\"><gpu "
                                            "dev=\"1\"/></pci></cpu></system>"),
                    Contains("two gpus have the busid a"));
}

TEST_CASE("what no machine has is refused, in little time and without deep recursion", "[io][topology][error]") {
  const auto repeated = [](std::size_t times, const std::string& text) {
    std::string all;
    for (std::size_t k = 0; k < times; ++k) all += text;
    return all;
  };
  const auto nested = [&](std::size_t depth) {
    return "<system><cpu>" + repeated(depth, "<pci>") + "<pci busid=\"a\"><gpu/></pci>" + repeated(depth, "</pci>") +
           "</cpu></system>";
  };
  for (const std::size_t depth : {std::size_t{62}, std::size_t{50000}})
    CHECK_THROWS_WITH(hd::parse_nccl_topology(nested(depth)),
                      "heddle: the text is no topology of NCCL: its elements are nested more than 64 deep");
  CHECK(hd::parse_nccl_topology(nested(61)).links.vertices() == 1 + 1 + 61);
  const std::string gpu = "<cpu><pci busid=\"a\"><gpu/></pci>";
  CHECK_THROWS_WITH(hd::parse_nccl_topology("<system>" + gpu + "</cpu>" + repeated(100000, "<cpu/>") + "</system>"),
                    Contains("it has more than 256 cpus"));
  CHECK_THROWS_WITH(
      hd::parse_nccl_topology("<system>" + gpu + repeated(100000, "<nic><net/></nic>") + "</cpu></system>"),
      Contains("it has more than 1024 cards"));
  CHECK_THROWS_WITH(
      hd::parse_nccl_topology("<system><cpu>" + repeated(100000, "<pci><gpu/></pci>") + "</cpu></system>"),
      Contains("it has more than 1024 gpus"));
  // As large as may be: every GPU is compared with every card.
  std::string many;
  for (int k = 0; k < 1024; ++k) many += "<pci busid=\"" + std::to_string(k) + "\"><gpu/></pci>";
  const hd::node_topology largest = hd::parse_nccl_topology(
      "<system><cpu>" + many + repeated(1024, "<nic><net/></nic>") + "</cpu>" + repeated(255, "<cpu/>") + "</system>");
  CHECK(largest.cards.size() == 1024);
  CHECK(largest.links.place(1023).rail == 1023);
  CHECK(hd::parse_nccl_topology("<system>" + gpu + "<nic><net speed=\"-1\"/></nic></cpu></system>")
            .cards[0]
            .bytes_per_second == 0);
}

TEST_CASE("PCI addresses of NCCL's file are the same in large and small letters", "[io][topology]") {
  const hd::node_topology node = hd::parse_nccl_topology(R"(<system version="1"><cpu>
    <pci busid="0000:AB:00.0"><gpu dev="0"><nvlink target="0000:ac:00.0" count="2" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:AC:00.0"><gpu dev="1"/></pci></cpu></system>)");
  CHECK(node.links.route(0, 1).hops == 1);
  CHECK(node.links.route(0, 1).bytes_per_second == 2 * hd::node_link_classes{}.nvlink.bytes_per_second);
  CHECK(node.links.route(1, 0).hops == 2);
}

TEST_CASE("a gpu of NCCL's file that nothing leads to is refused", "[io][topology][error]") {
  CHECK_THROWS_WITH(hd::parse_nccl_topology(R"(<system version="1"><cpu/><pci busid="0000:01:00.0"><gpu dev="0"/></pci>
                                               </system>)"),
                    Contains("the gpu with busid 0000:01:00.0 is below no cpu"));
}
#endif
