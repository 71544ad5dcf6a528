// heddle/io/nccl_topology.hpp: a machine from NCCL's topology file.
#pragma once

#if !__has_include(<pugixml.hpp>)
#error \
    "heddle/io/nccl_topology.hpp needs pugixml.hpp: link heddle::pugixml (Debian: apt install libpugixml-dev)"
#endif

#include <heddle/io/node_topology.hpp>

#include <pugixml.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
// Bytes per second of a PCIe link as NCCL writes it: "16.0 GT/s PCIe", 16 lanes. Lines of 8 GT/s and more carry 128
// bits in 130, slower ones 8 in 10.
inline double pcie_bytes_per_second(const char* speed, int lanes) {
  const double gigatransfers = std::strtod(speed, nullptr);
  return gigatransfers * 1e9 / 8 * (gigatransfers >= 8 ? 128.0 / 130 : 0.8) * lanes;
}

// A PCI address, as NCCL compares it: hexadecimal digits large or small.
inline std::string pci_address(const pugi::xml_attribute& written) {
  std::string text = written.as_string();
  for (char& c : text)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

class nccl_topology_reader {
 public:
  nccl_topology_reader(const pugi::xml_node& system, const node_link_classes& classes, std::string source)
      : system_(system), classes_(classes), source_(std::move(source)) {}

  node_topology read() {
    find_gpus();
    // By NCCL's device numbers; where two are alike, in the order of the file.
    std::sort(gpus_.begin(), gpus_.end(), [](const gpu& a, const gpu& b) {
      return a.device != b.device ? a.device < b.device : a.found < b.found;
    });
    if (gpus_.empty()) fail("there is no gpu");
    node_.links = topology(static_cast<int>(gpus_.size()));
    node_.links.ranks_forward(false);
    for (std::size_t r = 0; r < gpus_.size(); ++r) {
      if (!rank_of_.emplace(gpus_[r].bus, static_cast<int>(r)).second) fail("two gpus have the busid " + gpus_[r].bus);
    }
    std::vector<int> processors;
    for (const pugi::xml_node& cpu : system_.children("cpu")) {
      if (processors.size() == most_cpus) too_many(most_cpus, "cpus");
      const int v = node_.links.add_vertex(vertex_kind::cpu);
      for (const int other : processors) node_.links.add_both(other, v, classes_.processor);
      processors.push_back(v);
      below(cpu, v);
    }
    int nvswitch = -1;
    for (std::size_t r = 0; r < gpus_.size(); ++r)
      for (const pugi::xml_node& l : gpus_[r].node.children("nvlink")) nvlink(static_cast<int>(r), l, nvswitch);
    for (std::size_t r = 0; r < gpus_.size(); ++r)
      if (node_.links.links_from(static_cast<int>(r)).empty())
        fail("the gpu with busid " + gpus_[r].bus + " is below no cpu");
    assign_cards(node_);
    return std::move(node_);
  }

 private:
  struct gpu {
    pugi::xml_node node;
    std::string bus;
    int device = 0;
    std::size_t found = 0;
  };

  // How deep elements may be nested, and how many cpus, gpus and cards there may be: all pairs of cpus are linked, and
  // every gpu is compared with every card. Real machines are far below.
  static constexpr int most_depth = 64;
  static constexpr std::size_t most_cpus = 256, most_parts = 1024;

  // Walks all elements, in the order of the file.
  void find_gpus() {
    int depth = 1;
    for (pugi::xml_node at = system_.first_child(); at;) {
      if (const pugi::xml_node g = at.child("gpu")) {
        if (gpus_.size() == most_parts) too_many(most_parts, "gpus");
        gpus_.push_back({g, pci_address(at.attribute("busid")), g.attribute("dev").as_int(), gpus_.size()});
      }
      if (at.first_child()) {
        if (++depth > most_depth) fail("its elements are nested more than " + std::to_string(most_depth) + " deep");
        at = at.first_child();
        continue;
      }
      while (at != system_ && !at.next_sibling()) at = at.parent(), --depth;
      at = at == system_ ? pugi::xml_node() : at.next_sibling();
    }
  }

  // What hangs below a processor or a bridge.
  void below(const pugi::xml_node& at, int vertex) {
    for (const pugi::xml_node& pci : at.children("pci")) {
      link_class c = classes_.pcie;
      const double speed =
          pcie_bytes_per_second(pci.attribute("link_speed").as_string(), pci.attribute("link_width").as_int());
      if (speed > 0) c.bytes_per_second = speed;
      if (pci.child("gpu")) {
        node_.links.add_both(rank_of_.at(pci_address(pci.attribute("busid"))), vertex, c);
      } else if (only_card(pci)) {
        node_.links.add_both(card(pci.child("nic").child("net")), vertex, c);
      } else if (pci.child("pci") || pci.child("nic")) {
        const int bridge = node_.links.add_vertex();
        node_.links.add_both(bridge, vertex, c);
        below(pci, bridge);
      }
    }
    for (const pugi::xml_node& nic : at.children("nic"))
      for (const pugi::xml_node& net : nic.children("net")) node_.links.add_both(card(net), vertex, classes_.pcie);
  }

  static bool only_card(const pugi::xml_node& pci) {
    const pugi::xml_node nic = pci.child("nic");
    return nic && !nic.next_sibling("nic") && !pci.child("pci") && nic.child("net") &&
           !nic.child("net").next_sibling("net");
  }

  int card(const pugi::xml_node& net) {
    if (node_.cards.size() == most_parts) too_many(most_parts, "cards");
    const int v = node_.links.add_vertex(vertex_kind::nic);
    const std::string name = net.attribute("name").as_string();
    // Linux calls Ethernet devices eth0, enp1s0, eno1; cards with RDMA have the names of their drivers.
    const bool ethernet = name.compare(0, 3, "eth") == 0 || name.compare(0, 2, "en") == 0;
    const double megabits = net.attribute("speed").as_double();
    const double bytes_per_second = megabits > 0 ? megabits * 1e6 / 8 : 0;
    node_.cards.push_back({v, name, bytes_per_second, ethernet ? link_kind::ethernet : classes_.card});
    return v;
  }

  void nvlink(int rank, const pugi::xml_node& l, int& nvswitch) {
    link_class c = classes_.nvlink;
    c.bytes_per_second *= (std::max)(l.attribute("count").as_int(1), 1);
    const std::string_view target_class = l.attribute("tclass").as_string();
    const auto other = rank_of_.find(pci_address(l.attribute("target")));
    if (target_class == "0x068000") {  // NVSwitch: all of a machine's act as one
      if (nvswitch < 0) nvswitch = node_.links.add_vertex();
      node_.links.add_both(rank, nvswitch, c);
    } else if (other != rank_of_.end()) {  // the other GPU lists the way back
      node_.links.add_link(rank, other->second, c);
    }
  }

  [[noreturn]] void too_many(std::size_t most, const char* parts) const {
    fail("it has more than " + std::to_string(most) + " " + parts);
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("heddle: " + source_ + " is no topology of NCCL: " + why);
  }

  pugi::xml_node system_;
  node_link_classes classes_;
  std::string source_;
  node_topology node_;
  std::vector<gpu> gpus_;
  std::map<std::string, int> rank_of_;
};

inline node_topology nccl_topology(const pugi::xml_document& file, const pugi::xml_parse_result& parsed,
                                   const node_link_classes& classes, const std::string& source) {
  if (!parsed)
    throw io_error("heddle: " + source + " cannot be read as XML: " + parsed.description() + " (at byte " +
                   std::to_string(parsed.offset) + ")");
  if (!file.child("system")) throw io_error("heddle: " + source + " is no topology of NCCL: it has no element system");
  return nccl_topology_reader(file.child("system"), classes, source).read();
}
}  // namespace detail

/// The machine that NCCL's topology file describes (`NCCL_TOPO_FILE`, or what `NCCL_TOPO_DUMP_FILE` writes): ranks are
/// the GPUs by device number; processors, PCIe bridges and an NVSwitch join them. PCIe bandwidths are those of the
/// links' lanes. Each rank's place names the nearest card, of those with RDMA if there are any. Errors: `io_error`
/// naming the file and what is wrong, also elements nested more than 64 deep, and more than 256 cpus, 1024 gpus
/// or 1024 cards.
inline node_topology load_nccl_topology(const std::string& path, const node_link_classes& classes = {}) {
  pugi::xml_document file;
  const pugi::xml_parse_result parsed = file.load_file(path.c_str());
  return detail::nccl_topology(file, parsed, classes, path);
}
/// A node from the text of NCCL's topology file.
inline node_topology parse_nccl_topology(const std::string& text, const node_link_classes& classes = {}) {
  pugi::xml_document file;
  const pugi::xml_parse_result parsed = file.load_buffer(text.data(), text.size());
  return detail::nccl_topology(file, parsed, classes, "the text");
}

}  // namespace heddle::inline v0
