// Meshes from text: what is accepted, printed and read again is the same mesh.
#include <heddle/mesh/parse.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(mesh) {
  namespace hd = heddle;
  using any = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepted([&] {
    const any m = hd::parse_mesh<any>(text);
    std::string again;
    for (const std::string& name : hd::axis_names<any>())
      again += (again.empty() ? "" : ",") + name + "=" +
               std::to_string(m.extents()[again.empty()  ? 0
                                          : name == "pp" ? 1
                                                         : 2]);
    fuzz::require(hd::parse_mesh<any>(again) == m, "a mesh reads back");
    fuzz::require(std::int64_t{m.extents()[0]} * m.extents()[1] * m.extents()[2] == m.size(), "ranks are the product");
  });
  fuzz::accepted([&] { hd::parse_mesh<hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 4>>>(text); });
}
