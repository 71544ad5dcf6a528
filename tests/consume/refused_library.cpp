// refuse: a layout uses one mesh axis twice; [an unbalanced bracket
// needs: range_v3
#include <own_model.hpp>

#if defined(OWN_MODEL_AXES) && OWN_MODEL_AXES == (2 | 4)
static_assert(own_model::axes == 6, "a layout uses one mesh axis twice; [an unbalanced bracket");
#endif
