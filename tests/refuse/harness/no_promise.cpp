static_assert(sizeof(char) == 2, "heddle: this file does not say what must appear");
