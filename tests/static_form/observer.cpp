// tests/static_form/observer.cpp: an observer that is off leaves no instructions; forms.py compares the assembly.
#include <heddle/core/observer.hpp>

namespace hd = heddle;

int work(int n);

extern "C" int same_call_plain(int n) { return work(n) + 1; }
extern "C" int same_call_observed(int n) {
  hd::null_observer off;
  hd::event e;
  e.kind = hd::activity::forward;
  e.name = "forward";
  e.microbatch = n;
  return hd::observed(off, e, [&] { return work(n); }) + 1;
}

extern "C" void same_nothing_plain() {}
extern "C" void same_nothing_recorded(int rank) {
  hd::null_observer off;
  hd::event e;
  e.rank = rank;
  off.record(e);
}
