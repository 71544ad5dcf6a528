// refuse: heddle: a sentence the compiler does not print
static_assert(sizeof(char) == 2, "heddle: another sentence");
