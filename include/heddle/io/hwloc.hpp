// heddle/io/hwloc.hpp: a machine's topology by hwloc, of this machine or from saved XML.
#pragma once

#if !__has_include(<hwloc.h>)
#error "heddle/io/hwloc.hpp needs hwloc.h: link heddle::hwloc (Debian: apt install libhwloc-dev)"
#endif

#include <heddle/io/node_topology.hpp>

#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// What of a machine is a rank.
enum class hwloc_ranks : unsigned char {
  gpus_or_cores,  ///< its GPUs, or its cores where it has none
  gpus,           ///< its GPUs, in the order of PCI addresses
  cores,          ///< its processor cores
};

namespace detail {
class hwloc_reader {
 public:
  hwloc_reader(hwloc_topology_t machine, hwloc_ranks ranks, const node_link_classes& classes)
      : machine_(machine), classes_(classes) {
    collect(hwloc_get_root_obj(machine_));
    // The tree has them by the processor they are below, which is another order.
    std::sort(gpus_.begin(), gpus_.end(), [](hwloc_obj_t a, hwloc_obj_t b) { return address(a) < address(b); });
    gpus_are_ranks_ = ranks == hwloc_ranks::gpus || (ranks == hwloc_ranks::gpus_or_cores && !gpus_.empty());
    if (gpus_are_ranks_ ? gpus_.empty() : cores_ == 0)
      throw io_error(gpus_are_ranks_ ? "heddle: hwloc finds no GPU in this machine; use its cores (hwloc_ranks::cores)"
                                     : "heddle: hwloc finds no processor core in this machine");
  }

  node_topology read() {
    node_.links = topology(gpus_are_ranks_ ? static_cast<int>(gpus_.size()) : cores_);
    node_.links.ranks_forward(false);
    std::vector<hwloc_obj_t> packages;
    for (hwloc_obj_t p = nullptr; (p = hwloc_get_next_obj_by_type(machine_, HWLOC_OBJ_PACKAGE, p)) != nullptr;)
      packages.push_back(p);
    // A machine without packages is one processor.
    for (std::size_t i = 0; i < packages.size() || i == 0; ++i) {
      const int v = node_.links.add_vertex(vertex_kind::cpu);
      for (const int other : processors_) node_.links.add_both(other, v, classes_.processor);
      processors_.push_back(v);
    }
    packages_ = std::move(packages);
    visit(hwloc_get_root_obj(machine_), processors_[0]);
    assign_cards(node_);
    return std::move(node_);
  }

 private:
  static bool has_prefix(hwloc_obj_t o, std::string_view prefix) {
    return o->name != nullptr && std::string_view(o->name).substr(0, prefix.size()) == prefix;
  }

  // Computing cards: those that a runtime for computing knows, and PCI classes 3D controller and processing
  // accelerator. Not every display is one: servers have a small one for their console.
  static bool is_gpu(hwloc_obj_t o) {
    if (o->type != HWLOC_OBJ_PCI_DEVICE) return false;
    if (o->attr->pcidev.class_id == 0x0302 || o->attr->pcidev.class_id == 0x1200) return true;
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling)
      if (c->type == HWLOC_OBJ_OS_DEVICE &&
          (c->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC || has_prefix(c, "nvml") || has_prefix(c, "rsmi")))
        return true;
    return false;
  }

  static bool is_card(hwloc_obj_t o) {
    if (o->type != HWLOC_OBJ_PCI_DEVICE || is_gpu(o)) return false;
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling)
      if (c->type == HWLOC_OBJ_OS_DEVICE &&
          (c->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK || c->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS))
        return true;
    return false;
  }

  static std::array<unsigned, 4> address(hwloc_obj_t o) {
    const auto& pci = o->attr->pcidev;
    return {pci.domain, pci.bus, pci.dev, pci.func};
  }

  void collect(hwloc_obj_t o) {
    if (is_gpu(o)) gpus_.push_back(o);
    cores_ += o->type == HWLOC_OBJ_CORE;
    for (hwloc_obj_t c = o->first_child; c != nullptr; c = c->next_sibling) collect(c);
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling) collect(c);
  }

  // `vertex` is the processor or bridge that the object hangs below.
  void visit(hwloc_obj_t o, int vertex) {
    for (std::size_t i = 0; i < packages_.size(); ++i)
      if (packages_[i] == o) vertex = processors_[i];
    if (o->type == HWLOC_OBJ_CORE && !gpus_are_ranks_) node_.links.add_both(next_core_++, vertex, classes_.processor);
    if (o->type == HWLOC_OBJ_BRIDGE && o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      const int bridge = node_.links.add_vertex();
      node_.links.add_both(bridge, vertex, pcie(o->attr->bridge.upstream.pci.linkspeed));
      vertex = bridge;
    }
    if (is_gpu(o) && gpus_are_ranks_) {
      const auto rank = static_cast<int>(std::find(gpus_.begin(), gpus_.end(), o) - gpus_.begin());
      node_.links.add_both(rank, vertex, pcie(o->attr->pcidev.linkspeed));
    }
    if (is_card(o)) {
      const int v = node_.links.add_vertex(vertex_kind::nic);
      node_.links.add_both(v, vertex, pcie(o->attr->pcidev.linkspeed));
      node_.cards.push_back(card(o, v));
    }
    for (hwloc_obj_t c = o->first_child; c != nullptr; c = c->next_sibling) visit(c, vertex);
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling) visit(c, vertex);
  }

  link_class pcie(float gigabytes_per_second) const {
    link_class c = classes_.pcie;
    if (gigabytes_per_second > 0) c.bytes_per_second = static_cast<double>(gigabytes_per_second) * 1e9;
    return c;
  }

  // hwloc does not say how fast a card is outside. A card with RDMA is InfiniBand if the subnet's manager has given a
  // port an address (LID), else RoCE.
  network_card card(hwloc_obj_t device, int vertex) const {
    network_card result{vertex, "", 0, link_kind::ethernet};
    bool rdma_named = false;
    for (hwloc_obj_t c = device->io_first_child; c != nullptr; c = c->next_sibling) {
      if (c->type != HWLOC_OBJ_OS_DEVICE) continue;
      const bool rdma = c->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
      if (!rdma && c->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) continue;
      if (c->name != nullptr && (result.name.empty() || (rdma && !rdma_named))) result.name = c->name;
      rdma_named = rdma_named || rdma;
      if (!rdma) continue;
      if (result.kind == link_kind::ethernet) result.kind = classes_.card;
      for (int port = 1; port <= 4; ++port) {
        const char* lid = hwloc_obj_get_info_by_name(c, ("Port" + std::to_string(port) + "LID").c_str());
        if (lid == nullptr) continue;
        const bool given = std::string_view(lid) != "0x0" && std::string_view(lid) != "0";
        result.kind = given ? link_kind::infiniband : link_kind::roce;
        if (given) break;
      }
    }
    return result;
  }

  hwloc_topology_t machine_;
  node_link_classes classes_;
  bool gpus_are_ranks_ = false;
  std::vector<hwloc_obj_t> gpus_;
  int cores_ = 0;
  int next_core_ = 0;
  std::vector<hwloc_obj_t> packages_;
  std::vector<int> processors_;
  node_topology node_;
};

struct hwloc_close {
  void operator()(hwloc_topology* t) const noexcept { hwloc_topology_destroy(t); }
};

// Loads what `choose` sets; `what` is for the message.
template <class Choose>
node_topology hwloc_loaded(const std::string& what, hwloc_ranks ranks, const node_link_classes& classes,
                           Choose choose) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw io_error("heddle: hwloc cannot be initialised");
  const std::unique_ptr<hwloc_topology, hwloc_close> machine(raw);
  // Bridges too: two devices below one bridge are nearer to each other.
  const bool good = hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
                    choose(raw) == 0 && hwloc_topology_load(raw) == 0;
  if (!good) throw io_error("heddle: hwloc cannot read " + what);
  return hwloc_reader(raw, ranks, classes).read();
}
}  // namespace detail

/// A machine whose hwloc topology is loaded already (with I/O devices, if these matter).
/// Errors: `io_error` if it has none of what is to be the ranks.
inline node_topology hwloc_node(hwloc_topology_t loaded, hwloc_ranks ranks = hwloc_ranks::gpus_or_cores,
                                const node_link_classes& classes = {}) {
  return detail::hwloc_reader(loaded, ranks, classes).read();
}

/// The machine that the program runs on.
inline node_topology hwloc_this_machine(hwloc_ranks ranks = hwloc_ranks::gpus_or_cores,
                                        const node_link_classes& classes = {}) {
  return detail::hwloc_loaded("this machine", ranks, classes, [](hwloc_topology_t) { return 0; });
}

/// A machine saved as XML (`lstopo machine.xml`). Errors: `io_error` naming the file.
inline node_topology load_hwloc_topology(const std::string& path, hwloc_ranks ranks = hwloc_ranks::gpus_or_cores,
                                         const node_link_classes& classes = {}) {
  return detail::hwloc_loaded(path, ranks, classes,
                              [&](hwloc_topology_t t) { return hwloc_topology_set_xml(t, path.c_str()); });
}
/// A machine from the text of its XML.
inline node_topology parse_hwloc_topology(const std::string& xml, hwloc_ranks ranks = hwloc_ranks::gpus_or_cores,
                                          const node_link_classes& classes = {}) {
  return detail::hwloc_loaded("the XML", ranks, classes, [&](hwloc_topology_t t) {
    return hwloc_topology_set_xmlbuffer(t, xml.c_str(), static_cast<int>(xml.size()) + 1);
  });
}

}  // namespace heddle::inline v0
