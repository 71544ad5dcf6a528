// heddle/observe/impl/linux_counters.hpp: bodies of heddle/observe/linux_counters.hpp.
#pragma once

#include <heddle/observe/linux_counters.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace heddle::inline v0::observe {

namespace detail {

// /proc/net/snmp and netstat: a line of names, then a line of numbers, both with the protocol in front.
HEDDLE_INLINE void read_named_counts(const std::string& file, std::map<std::string, double>& to) {
  std::ifstream in(file);
  for (std::string names, values; std::getline(in, names) && std::getline(in, values);) {
    std::istringstream n(names), v(values);
    std::string protocol, same, name;
    double value = 0;
    if (!(n >> protocol) || !(v >> same) || protocol != same) return;
    while (n >> name && v >> value) to[protocol + name] = value;
  }
}
HEDDLE_INLINE std::optional<double> number_in(const std::string& file) {
  std::ifstream in(file);
  double value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

}  // namespace detail

HEDDLE_INLINE linux_counters::linux_counters(std::string root) : root_(std::move(root)) {
  last_ = read();
}

HEDDLE_INLINE linux_counters::counts linux_counters::read() const {
  counts found;
  detail::read_named_counts(root_ + "/proc/net/snmp", found);
  detail::read_named_counts(root_ + "/proc/net/netstat", found);
  std::ifstream dev(root_ + "/proc/net/dev");
  for (std::string line; std::getline(dev, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    name.erase(0, name.find_first_not_of(' '));
    std::istringstream values(line.substr(colon + 1));
    double bytes_in = 0, other = 0, bytes_out = 0;
    values >> bytes_in;
    for (int i = 0; i < 7; ++i) values >> other;
    if (!(values >> bytes_out)) continue;
    const auto speed = detail::number_in(root_ + "/sys/class/net/" + name + "/speed");
    if (!speed || *speed <= 0) continue;
    found["speed:" + name] = *speed;
    found["in:" + name] = bytes_in;
    found["out:" + name] = bytes_out;
  }
  namespace fs = std::filesystem;
  std::error_code none;
  for (fs::directory_iterator card(root_ + "/sys/class/infiniband", none), end; card != end; card.increment(none)) {
    std::error_code no_port;
    for (fs::directory_iterator port(card->path() / "ports", no_port); port != end; port.increment(no_port))
      for (const char* name : {"counters/port_xmit_packets", "counters/port_xmit_wait", "hw_counters/packet_seq_err",
                               "hw_counters/local_ack_timeout_err"})
        if (const auto value = detail::number_in((port->path() / name).string())) found[name] += *value;
  }
  return found;
}

HEDDLE_INLINE linux_window linux_counters::next(double seconds) {
  const counts before = last_, now = read();
  last_ = now;
  const auto more = [&](const std::string& name) -> std::optional<double> {
    const auto a = before.find(name), b = now.find(name);
    if (a == before.end() || b == now.end() || b->second < a->second) return std::nullopt;  // counters may start anew
    return b->second - a->second;
  };
  const auto part = [](std::optional<double> some, std::optional<double> all) -> std::optional<double> {
    if (!some || !all || *all <= 0) return std::nullopt;
    return *some / *all;
  };
  const auto sum = [](std::optional<double> a, std::optional<double> b) -> std::optional<double> {
    if (!a && !b) return std::nullopt;
    return a.value_or(0) + b.value_or(0);
  };
  linux_window w;
  w.in_retransmits = part(sum(more("TcpExt:TCPOFOQueue"), more("TcpExt:TCPDSACKOldSent")), more("Tcp:InSegs"));
  w.out_retransmits = part(more("Tcp:RetransSegs"), more("Tcp:OutSegs"));
  for (const auto& [name, value] : now) {
    if (!name.starts_with("speed:") || !(seconds > 0)) continue;
    const std::string card = name.substr(6);
    const auto in = more("in:" + card), out = more("out:" + card);
    if (!in || !out) continue;
    const double share = 8 * (std::max)(*in, *out) / (value * 1e6 * seconds);
    w.nic_share = (std::max)(w.nic_share.value_or(0), share);
  }
  w.link_retransmits = part(sum(more("hw_counters/packet_seq_err"), more("hw_counters/local_ack_timeout_err")),
                            more("counters/port_xmit_packets"));
  if (const auto wait = more("counters/port_xmit_wait"); wait && seconds > 0) w.credit_wait = *wait / seconds;
  return w;
}

HEDDLE_INLINE void linux_counters::add_to(runbook& to, double seconds, int node, int link) {
  const linux_window w = next(seconds);
  if (w.in_retransmits) to.add(signal::in_retransmits, *w.in_retransmits);
  if (w.out_retransmits) to.add(signal::out_retransmits, *w.out_retransmits);
  if (w.nic_share) to.add(signal::nic_share, node, *w.nic_share);
  if (w.link_retransmits) to.add(signal::link_retransmits, link, *w.link_retransmits);
  if (w.credit_wait) to.add(signal::credit_wait, node, *w.credit_wait);
}

}  // namespace heddle::inline v0::observe
