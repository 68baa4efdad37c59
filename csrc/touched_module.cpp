// Rows that lookups touch, as Python sees them: shoal/embedding/placed/duplicates.py.
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "doors.h"
#include "module.h"
#include "touched.h"

namespace nb = nanobind;

namespace shoal {
namespace {

std::vector<Ids> ids_of(const Addresses& addresses, const std::vector<size_t>& lengths, int64_t limit) {
  need(addresses.size() == lengths.size(), "touched: a length for each lookup");
  need(limit <= (int64_t{1} << 40), "touched: more rows than can be told");
  std::vector<Ids> lookups;
  size_t total = 0;
  for (size_t k = 0; k < addresses.size(); ++k) {
    need_array(addresses[k], lengths[k], sizeof(int64_t), "touched: no array");
    total += lengths[k];
    need(lengths[k] < kNoRow && total < kNoRow, "touched: more ids than can be told");
    const auto* const ids = at<int64_t>(addresses[k]);
    need(limit < 0 || all_below(ids, lengths[k], static_cast<uint64_t>(limit)), "touched: beyond the limit");
    lookups.push_back({ids, lengths[k]});
  }
  return lookups;
}

// A row of `values` for every id of each lookup; out_ids, out_sums: as long as there are rows.
void write_touched(const Touched& touched, const Addresses& values, size_t dim, float scale,
                   Address out_ids, Address out_sums, int threads) {
  const size_t rows = touched.ids().size();
  need(values.size() == touched.lengths().size(), "touched: values for each lookup");
  std::vector<const float*> from;
  for (size_t k = 0; k < values.size(); ++k) {
    need_array(values[k], times(touched.lengths()[k], dim), sizeof(float), "touched: no array");
    from.push_back(at<float>(values[k]));
  }
  need_array(out_sums, times(rows, dim), sizeof(float), "touched: no array");
  if (out_ids != 0) std::copy_n(touched.ids().data(), rows, at<int64_t>(out_ids));
  touched.write_sums(from, dim, scale, at<float>(out_sums), std::max(threads, 1));
}

}  // namespace

void bind_touched(nb::module_& m) {
  nb::class_<Touched>(m, "Touched")
      .def("__init__",
           [](Touched* self, const Addresses& ids, const std::vector<size_t>& lengths, int64_t limit) {
             new (self) Touched(ids_of(ids, lengths, limit), limit);
           })
      .def("__len__", [](const Touched& self) { return self.ids().size(); })
      .def("write", &write_touched, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
