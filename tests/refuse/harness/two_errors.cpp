// refuse: heddle: one mistake
static_assert(sizeof(char) == 2, "heddle: one mistake");
static_assert(sizeof(char) == 3, "heddle: and a consequence");
