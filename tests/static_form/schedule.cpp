// tests/static_form/schedule.cpp: the plan of a static schedule is read-only data; forms.py reads the assembly.
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>

namespace hd = heddle;
namespace sc = heddle::schedule;

using when = sc::zb_h1<hd::microbatches<8>>;
using plan = sc::static_plan<when, 4>;

// constant: what is known of a static schedule is a number.
extern "C" bool constant_valid() {
  return sc::valid<when, hd::mesh<hd::axis<hd::pp, 4>>>;
}  // 1
extern "C" int constant_actions() {
  return static_cast<int>(plan::view().table.actions().size());
}  // 188

// read_only: the address of an object that lies in read-only data, made by the compiler.
extern "C" const sc::action* read_only_actions() {
  return plan::view().table.actions().data();
}
extern "C" const sc::action_storage* read_only_storage() {
  return plan::view().storage.actions().data();
}
extern "C" const int* read_only_stages() {
  return plan::view().table.rank_of_stage().data();
}
