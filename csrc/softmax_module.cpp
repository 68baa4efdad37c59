// A softmax over a catalogue and small products, as Python sees them:
// shoal/kernels/softmax.py and products.py.
#include "softmax.h"

#include <algorithm>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "catalogue.h"
#include "dispatch.h"
#include "argument_checks.h"
#include "module.h"
#include "products.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// The optimizers that have a kernel for values side by side.
Optimizer dense_optimizer(int kind) {
  const auto found = static_cast<Optimizer>(kind);
  need(found == Optimizer::sgd || found == Optimizer::adagrad || found == Optimizer::adam ||
           found == Optimizer::adamw,
       "an optimizer that has no such step");
  return found;
}

// made: exponentials and tops; numbers: highest, totals and pooled.
void catalogue_exponentials(Address hidden, size_t n, size_t dim, Address rows, size_t k,
                            Address bias, Address others, size_t num_others, const Addresses& made,
                            const Addresses& numbers, int threads) {
  need_array(hidden, times(n, dim), sizeof(float), "hidden: no array");
  need_array(rows, times(k, dim), sizeof(float), "rows: no array");
  need(times(padded(n), k) < (size_t{1} << 60), "exponentials: more than memory holds");
  need(made.size() == 2 && numbers.size() == 3, "catalogue: 2 and 3 arrays");
  for (Address array : made) need_array(array, times(n, k), sizeof(float), "made: no array");
  for (Address array : numbers) need_array(array, n, sizeof(float), "numbers: no array");
  need_array(others, num_others, sizeof(int64_t), "others: no array");
  need(all_below(at<int64_t>(others), num_others, k), "others: beyond the rows");
  for (size_t i = 1; i < num_others; ++i)
    need(at<int64_t>(others)[i - 1] < at<int64_t>(others)[i], "others: not ascending");
  threads = std::max(threads, 1);
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
  need(made.size() == 2 && numbers.size() == 6 && rows.size() == 3 && bias.size() == 3,
       "catalogue: 2, 6, 3 and 3 entries");
  need_array(hidden, times(n, dim), sizeof(float), "hidden: no array");
  for (Address array : made) need_array(array, times(n, k), sizeof(float), "made: no array");
  for (Address array : {highest, shares, places}) need_array(array, n, 8, "positions: no array");
  need_array(rows[0], times(k, dim), sizeof(float), "rows: no array");
  const Optimizer kind = dense_optimizer(optimizer);
  const size_t pieces = kind == Optimizer::sgd ? 0 : kind == Optimizer::adagrad ? 1 : 2;
  for (size_t piece = 1; piece <= pieces; ++piece)
    need((rows[piece] != 0 || k == 0) && (bias[0] == 0 || bias[piece] != 0), "state: no array");
  for (size_t i = 0; i < n; ++i)
    need(at<int64_t>(places)[i] >= -1 && at<int64_t>(places)[i] < static_cast<int64_t>(k),
         "places: beyond the rows");
  threads = std::max(threads, 1);
  const Rule rule{kind, numbers.at(0), numbers.at(1), numbers.at(2),
                  numbers.at(3), numbers.at(4), numbers.at(5)};
  step_rows({at<float>(hidden), dim}, {n, k, at<float>(made.at(0)), at<float>(made.at(1))},
            at<float>(highest), at<float>(shares), at<int64_t>(places), truth, rule,
            {at<float>(rows.at(0)), at<float>(rows.at(1)), at<float>(rows.at(2))},
            {at<float>(bias.at(0)), at<float>(bias.at(1)), at<float>(bias.at(2))}, threads);
}

}  // namespace

void bind_softmax(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("exponentials", [](Address x, size_t n, size_t k, Address highest, Address totals,
                           int threads) {
    need(k >= 1 || n == 0, "exponentials: rows without values");
    need_array(x, times(n, k), sizeof(float), "x: no array");
    need_array(highest, n, sizeof(float), "highest: no array");
    need_array(totals, n, sizeof(float), "totals: no array");
    exponentials(at<float>(x), n, k, at<float>(highest), at<float>(totals), std::max(threads, 1));
  }, release());
  m.def("products", [](Address a, Address b, Address out, size_t count, size_t m, size_t k,
                       size_t n) {
    need_array(a, times(count, times(m, k)), sizeof(float), "a: no array");
    need_array(b, times(count, times(k, n)), sizeof(float), "b: no array");
    need_array(out, times(count, times(m, n)), sizeof(float), "out: no array");
    if (m == 0) return;
    products(at<float>(a), at<float>(b), at<float>(out), count, m, k, n);
  }, release());
  // Sizes of what `catalogue_exponentials` writes: (width, blocks).
  m.def("catalogue_sizes", [](size_t n, size_t k) {
    need(n < (size_t{1} << 60) && k < (size_t{1} << 60), "catalogue: sizes beyond all memory");
    return std::make_pair(padded(n), num_blocks(k));
  });
  m.def("catalogue_exponentials", &catalogue_exponentials, release());
  m.def("catalogue_step", &catalogue_step, release());
  m.def("instruction_set", [] { return kernels().name; });
  m.def("instruction_sets", &instruction_sets);
  m.def("use_instruction_set", &use_instruction_set);
}

}  // namespace shoal
