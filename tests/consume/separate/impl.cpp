// tests/consume/separate/impl.cpp: the one file of a program that compiles what is no template.
#include <heddle/impl.hpp>
