// refuse: heddle: privacy::epsilon<N, D>: the budget N / D must be above 0, with a positive denominator
#include <heddle/core/privacy.hpp>

heddle::privacy::ledger nothing_may_be_spent(heddle::privacy::epsilon<0>{});
