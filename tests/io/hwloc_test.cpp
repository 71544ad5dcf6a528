#include <heddle/core/config.hpp>

#if __has_include(<hwloc.h>)
#include <heddle/io/hwloc.hpp>

#include "catch.hpp"

#include <string>

// g++ defines a macro, clang has a feature.
#if defined(__SANITIZE_ADDRESS__)
#define HEDDLE_LEAKS_COUNT 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEDDLE_LEAKS_COUNT 1
#endif
#endif
#if !defined(HEDDLE_LEAKS_COUNT)
#define HEDDLE_LEAKS_COUNT 0
#endif

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::hwloc_ranks;
using hd::link_kind;

namespace {

std::string core(int i) {
  const std::string set = i == 0 ? "0x1" : i == 1 ? "0x2" : i == 2 ? "0x4" : "0x8";
  const std::string node = i < 2 ? "0x1" : "0x2", number = std::to_string(i);
  const std::string sets = " cpuset=\"" + set + "\" complete_cpuset=\"" + set + "\" nodeset=\"" + node +
                           "\" complete_nodeset=\"" + node + "\"";
  return "<object type=\"Core\" os_index=\"" + number + "\"" + sets + " gp_index=\"" + std::to_string(20 + i) +
         "\"><object type=\"PU\" os_index=\"" + number + "\"" + sets + " gp_index=\"" + std::to_string(30 + i) +
         "\"/></object>\n";
}

std::string device(int gp, const std::string& address, const std::string& type, const std::string& speed,
                   const std::string& inside) {
  return "<object type=\"PCIDev\" gp_index=\"" + std::to_string(gp) + "\" pci_busid=\"" + address + "\" pci_type=\"" +
         type + " [10de:2330] [10de:16c1] a1\" pci_link_speed=\"" + speed + "\">" + inside + "</object>\n";
}

// Two packages of two cores. Below the first: a bridge with two GPUs and an InfiniBand card, and a console's display.
// Below the second: a GPU and a RoCE card on bridges of their own, and an Ethernet card.
// `swapped`: the devices with high PCI addresses are below the first package.
std::string machine(bool with_devices = true, bool swapped = false) {
  const auto package = [](int i, const std::string& io) {
    const std::string sets = i == 0
                                 ? " cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x1\" complete_nodeset=\"0x1\""
                                 : " cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0x2\" complete_nodeset=\"0x2\"";
    return "<object type=\"Package\" os_index=\"" + std::to_string(i) + "\"" + sets + " gp_index=\"" +
           std::to_string(2 + i) + "\"><object type=\"NUMANode\" os_index=\"" + std::to_string(i) + "\"" + sets +
           " gp_index=\"" + std::to_string(10 + i) + "\" local_memory=\"1000000\"/>" + core(2 * i) + core(2 * i + 1) +
           io + "</object>\n";
  };
  const std::string lid = "<info name=\"Port1State\" value=\"4\"/><info name=\"Port1LID\" value=\"";
  const std::string infiniband =
      "<object type=\"OSDev\" gp_index=\"60\" name=\"ib0\" osdev_type=\"2\"/>"
      "<object type=\"OSDev\" gp_index=\"61\" name=\"mlx5_0\" osdev_type=\"3\">" +
      lid + "0x1f\"/></object>";
  const std::string roce =
      "<object type=\"OSDev\" gp_index=\"62\" name=\"mlx5_1\" osdev_type=\"3\">" + lid + "0x0\"/></object>";
  const std::string first =
      "<object type=\"Bridge\" gp_index=\"40\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-0f]\">"
      "<object type=\"Bridge\" gp_index=\"41\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[01-04]\" "
      "pci_busid=\"0000:00:01.0\" "
      "pci_type=\"0604 [8086:2030] [8086:2030] 04\" pci_link_speed=\"31.5\">" +
      device(50, "0000:02:00.0", "0302", "63.0", "") +
      device(51, "0000:03:00.0", "0300", "63.0",
             "<object type=\"OSDev\" gp_index=\"63\" name=\"cuda1\" osdev_type=\"5\" subtype=\"CUDA\"/>") +
      device(52, "0000:04:00.0", "0207", "31.5", infiniband) + "</object>" +
      device(53, "0000:05:00.0", "0300", "0.0",
             "<object type=\"OSDev\" gp_index=\"64\" name=\"card0\" osdev_type=\"1\"/>") +
      "</object>";
  const std::string second =
      "<object type=\"Bridge\" gp_index=\"42\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[80-8f]\">"
      "<object type=\"Bridge\" gp_index=\"43\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[81-81]\" "
      "pci_busid=\"0000:80:01.0\" "
      "pci_type=\"0604 [8086:2030] [8086:2030] 04\" pci_link_speed=\"63.0\">" +
      device(54, "0000:81:00.0", "0302", "63.0", "") +
      "</object>"
      "<object type=\"Bridge\" gp_index=\"44\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[82-82]\" "
      "pci_busid=\"0000:80:02.0\" "
      "pci_type=\"0604 [8086:2030] [8086:2030] 04\" pci_link_speed=\"15.75\">" +
      device(55, "0000:82:00.0", "0200", "15.75", roce) + "</object>" +
      device(56, "0000:83:00.0", "0200", "1.0",
             "<object type=\"OSDev\" gp_index=\"65\" name=\"eno1\" osdev_type=\"2\"/>") +
      "</object>";
  const std::string all =
      " cpuset=\"0xf\" complete_cpuset=\"0xf\" allowed_cpuset=\"0xf\" nodeset=\"0x3\" complete_nodeset=\"0x3\" "
      "allowed_nodeset=\"0x3\"";
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
         "version=\"2.0\">\n"
         "<object type=\"Machine\" os_index=\"0\"" +
         all + " gp_index=\"1\">\n" + package(0, with_devices ? (swapped ? second : first) : "") +
         package(1, with_devices ? (swapped ? first : second) : "") + "</object>\n</topology>\n";
}

}  // namespace

TEST_CASE("a machine is read from hwloc's XML, with its GPUs as ranks", "[io][topology]") {
  const hd::node_topology node = hd::parse_hwloc_topology(machine());
  const hd::topology& t = node.links;
  REQUIRE(t.ranks() == 3);  // not the console's display
  CHECK(t.route(0, 1).hops == 2);
  CHECK(t.route(0, 1).bytes_per_second == 63e9);
  CHECK(t.route(0, 2).hops == 5);  // bridge, processor, processor, bridge
  CHECK(t.route(0, 2).bytes_per_second == 31.5e9);
  REQUIRE(node.cards.size() == 3);
  CHECK(node.cards[0] == hd::network_card{node.cards[0].vertex, "mlx5_0", 0, link_kind::infiniband});
  CHECK(node.cards[1] == hd::network_card{node.cards[1].vertex, "mlx5_1", 0, link_kind::roce});
  CHECK(node.cards[2] == hd::network_card{node.cards[2].vertex, "eno1", 0, link_kind::ethernet});
  CHECK(t.place(0) == hd::rank_place{0, 0, 0, 0, link_kind::infiniband});
  CHECK(t.place(1).rail == 0);
  CHECK(t.route(2, node.cards[1].vertex).hops == 4);
  CHECK(t.route(2, node.cards[2].vertex).hops == 3);
  CHECK(t.place(2) == hd::rank_place{2, 0, 1, 0, link_kind::roce});  // not the nearer card without RDMA
}

TEST_CASE("GPUs are numbered by their PCI addresses, wherever they are plugged in", "[io][topology]") {
  const hd::node_topology node = hd::parse_hwloc_topology(machine(true, true));
  const hd::topology& t = node.links;
  REQUIRE(t.ranks() == 3);
  CHECK(t.route(0, 1).hops == 2);  // 02:00.0 and 03:00.0 have a bridge in common
  CHECK(t.route(0, 2).hops == 5);
  CHECK(t.place(0).nic == link_kind::infiniband);
  CHECK(t.place(2).nic == link_kind::roce);
}

TEST_CASE("the cores of a machine are ranks where asked for or where there is no GPU", "[io][topology]") {
  for (const hd::node_topology& node :
       {hd::parse_hwloc_topology(machine(), hwloc_ranks::cores), hd::parse_hwloc_topology(machine(false))}) {
    CHECK(node.links.ranks() == 4);
    CHECK(node.links.route(0, 1).hops == 2);
    CHECK(node.links.route(1, 2).hops == 3);
    CHECK(node.links.route(1, 2).seconds == Approx(3 * hd::node_link_classes{}.processor.seconds));
  }
  CHECK(hd::parse_hwloc_topology(machine(false)).cards.empty());
  hwloc_topology_t loaded = nullptr;
  REQUIRE(hwloc_topology_init(&loaded) == 0);
  REQUIRE(hwloc_topology_load(loaded) == 0);
  const hd::node_topology here = hd::hwloc_node(loaded, hwloc_ranks::cores);
  hwloc_topology_destroy(loaded);
  CHECK(here.links.ranks() >= 1);
  for (int r = 1; r < here.links.ranks(); ++r) CHECK(here.links.hops(0, r) >= 2);
#if !HEDDLE_LEAKS_COUNT  // hwloc 2.9's search for PCI devices keeps some memory, in a C program too
  const hd::node_topology with_devices = hd::hwloc_this_machine(hwloc_ranks::cores);
  CHECK(with_devices.links.ranks() == here.links.ranks());
#endif
}

TEST_CASE("what hwloc cannot read is refused", "[io][topology][error]") {
  CHECK_THROWS_WITH(hd::parse_hwloc_topology("<topology", hwloc_ranks::cores),
                    Contains("heddle: hwloc cannot read the XML"));
  CHECK_THROWS_WITH(hd::load_hwloc_topology("/no/such/file.xml"), Contains("/no/such/file.xml"));
  CHECK_THROWS_WITH(hd::parse_hwloc_topology(machine(false), hwloc_ranks::gpus), Contains("finds no GPU"));
}
#endif
