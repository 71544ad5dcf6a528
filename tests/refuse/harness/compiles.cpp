// refuse: nothing is wrong here
int main() {}
