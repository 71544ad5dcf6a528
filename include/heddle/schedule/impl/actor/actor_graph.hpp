// heddle/schedule/impl/actor/actor_graph.hpp: bodies of heddle/schedule/actor/actor_graph.hpp.
#pragma once

#include <heddle/schedule/actor/actor_graph.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

HEDDLE_INLINE std::string to_string(const actor_report& found) {
  if (found.ok()) return "the actor graph is sound";
  std::string text = "heddle: actor graph: ";
  if (found.actor >= 0) text.append("actor '").append(found.actor_name).append("': ");
  std::string name = "register ";
  if (found.register_name.empty())
    name += std::to_string(found.reg);
  else
    name.append("'").append(found.register_name).append("'");
  if (found.what == actor_problem::actor_twice) return text + "there are two actors of this name";
  if (found.what == actor_problem::circular_wait) text += "waits for ";
  text += name;
  constexpr std::pair<actor_problem, const char*> of_register[] = {
      {actor_problem::unknown_register, " does not exist"},
      {actor_problem::no_producer, " is written by no actor"},
      {actor_problem::two_producers, " is written twice; each register has one producer"},
      {actor_problem::read_twice, " is read twice by this actor; name it once"},
      {actor_problem::no_slots, " needs at least one slot"},
      {actor_problem::too_many_tokens, " cannot hold its initial values; give it as many slots, or none below zero"},
      {actor_problem::circular_wait,
       " on a circle of actors that wait for each other; give the feedback register an initial value, or a slot "
       "more"}};
  for (const auto& [what, says] : of_register)
    if (what == found.what) text += says;
  return text;
}

HEDDLE_INLINE int task_graph::add_actor(std::string name, std::string_view queue, const std::vector<int>& inputs,
                                        const std::vector<int>& outputs) {
  std::size_t q = 0;
  while (q < queues_.size() && queues_[q] != queue) ++q;
  if (q == queues_.size()) queues_.push_back(keep(std::string(queue)));
  actor_entry a{keep(std::move(name)), static_cast<int>(q), static_cast<int>(ports_.size()), 0, 0};
  ports_.insert(ports_.end(), inputs.begin(), inputs.end());
  a.outputs = static_cast<int>(ports_.size());
  ports_.insert(ports_.end(), outputs.begin(), outputs.end());
  a.end = static_cast<int>(ports_.size());
  actors_.push_back(a);
  linked_ = false;
  return static_cast<int>(actors_.size()) - 1;
}

HEDDLE_INLINE actor_graph_view task_graph::view() {
  if (!linked_) {
    links_ = ports_;
    links_.resize(2 * ports_.size());
    for (register_entry& r : registers_) r.producer = -1;
    detail::link_actors(actors_, registers_, links_, static_cast<int>(ports_.size()));
    linked_ = true;
  }
  return {actors_, registers_, queues_, links_};
}

}  // namespace heddle::inline v0::schedule
