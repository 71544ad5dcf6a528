// refuse: heddle: a mesh names one axis twice; give each axis its own tag type (struct my_axis {};)
#include <heddle/mesh/mesh.hpp>

heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::dp, 4>> m;
