// A softmax over a catalogue and small products, as Python sees them:
// shoal/embedding/softmax/{native,fused_cpu}.py and shoal/models/nn/native.py.
#include "softmax.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "catalogue.h"
#include "dispatch.h"
#include "module.h"
#include "products.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// made: exponentials and tops; numbers: highest, totals and pooled.
void catalogue_exponentials(Address hidden, size_t n, size_t dim, Address rows, size_t k,
                            Address bias, Address others, size_t num_others, const Addresses& made,
                            const Addresses& numbers, int threads) {
  const Exponentials out{n, k, at<float>(made.at(0)), at<float>(made.at(1))};
  exponentials_of({at<float>(hidden), dim}, at<float>(rows), at<float>(bias), at<int64_t>(others),
                  num_others, out, at<float>(numbers.at(0)), at<float>(numbers.at(1)),
                  at<float>(numbers.at(2)), threads);
}

// numbers: step size, eps, 1 - beta1, 1 - beta2, decay and keep; see Rule.
void catalogue_step(Address hidden, size_t n, size_t dim, size_t k, const Addresses& made,
                    Address highest, Address shares, Address places, float truth, int optimizer,
                    const std::vector<float>& numbers, const Addresses& rows,
                    const Addresses& bias, int threads) {
  const Rule rule{static_cast<Optimizer>(optimizer), numbers.at(0), numbers.at(1), numbers.at(2),
                  numbers.at(3), numbers.at(4), numbers.at(5)};
  step_rows({at<float>(hidden), dim}, {n, k, at<float>(made.at(0)), at<float>(made.at(1))},
            at<float>(highest), at<float>(shares), at<int64_t>(places), truth, rule,
            {at<float>(rows.at(0)), at<float>(rows.at(1)), at<float>(rows.at(2))},
            {at<float>(bias.at(0)), at<float>(bias.at(1)), at<float>(bias.at(2))}, threads);
}

}  // namespace

void bind_softmax(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("logits", [](Address hidden, size_t n, Address rows, size_t k, size_t dim, Address bias,
                     Address out, int threads) {
    logits(at<float>(hidden), n, at<float>(rows), k, dim, at<float>(bias), at<float>(out), threads);
  }, release());
  m.def("exponentials", [](Address x, size_t n, size_t k, Address highest, Address totals,
                           int threads) {
    exponentials(at<float>(x), n, k, at<float>(highest), at<float>(totals), threads);
  }, release());
  m.def("products", [](Address a, Address b, Address out, size_t count, size_t m, size_t k,
                       size_t n) {
    products(at<float>(a), at<float>(b), at<float>(out), count, m, k, n);
  }, release());
  // Sizes of what `catalogue_exponentials` writes: (width, blocks).
  m.def("catalogue_sizes", [](size_t n, size_t k) {
    return std::make_pair(padded(n), num_blocks(k));
  });
  m.def("catalogue_exponentials", &catalogue_exponentials, release());
  m.def("catalogue_step", &catalogue_step, release());
  m.def("instruction_set", [] { return kernels().name; });
  m.def("instruction_sets", &instruction_sets);
  m.def("use_instruction_set", &use_instruction_set);
}

}  // namespace shoal
