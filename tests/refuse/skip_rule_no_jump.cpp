// refuse: plan::max_jump<N>: N is at least 1, the next stage
#include <heddle/plan/skippipe/rules.hpp>

int main() {
  return heddle::plan::max_jump<0>::may_visit({}, 0) ? 0 : 1;
}
