// refuse: heddle: a sentence that the compiler prints
// and: static
// and: two_times<
static_assert(sizeof(char) == 2, "heddle: a sentence that the compiler prints");
