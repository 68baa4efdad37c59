// What updates rows, as Python sees it: shoal/kernels/tables.py.
#include <iterator>
#include <new>
#include <stdexcept>

#include "kernels.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {

void bind_row_optimizers(nb::module_& m) {
  nb::dict names;
  for (size_t k = 0; k < std::size(kOptimizers); ++k) names[kOptimizers[k]] = k;
  m.attr("OPTIMIZERS") = names;
  nb::class_<Hyper>(m, "Hyper")
      .def("__init__",
           [](Hyper* made, int kind) {
             if (kind < 0 || kind >= static_cast<int>(std::size(kOptimizers)))
               throw std::invalid_argument("unknown row optimizer");
             new (made) Hyper;
             made->kind = static_cast<Optimizer>(kind);
           })
      .def_rw("rest1", &Hyper::rest1)
      .def_rw("rest2", &Hyper::rest2)
      .def_rw("rest_alpha", &Hyper::rest_alpha)
      .def_rw("momentum", &Hyper::momentum)
      .def_rw("l1", &Hyper::l1)
      .def_rw("l2", &Hyper::l2)
      .def_rw("beta", &Hyper::beta)
      .def_rw("weight_decay", &Hyper::weight_decay)
      .def_rw("clip", &Hyper::clip);
  nb::class_<StepNumbers>(m, "StepNumbers")
      .def(
          "__init__",
          [](StepNumbers* made, float size, float eps, float lr, float keep) {
            new (made) StepNumbers{size, eps, lr, keep};
          },
          nb::kw_only(), nb::arg("size"), nb::arg("eps"), nb::arg("lr"), nb::arg("keep"));
}

}  // namespace shoal
