// The k largest scores of rows, as Python sees it: shoal/kernels/topk.py.
#include <limits>

#include "argument_checks.h"
#include "module.h"
#include "topk.h"

namespace nb = nanobind;

namespace shoal {
namespace {

TopK kept(size_t rows, size_t k, size_t room, Address values, Address places, Address counts,
          Address limits) {
  need(k >= 1 && room > k, "topk: room for more than k, and k of 1 or more");
  need_array(values, times(rows, room), sizeof(float), "topk values: no array");
  need_array(places, times(rows, room), sizeof(int32_t), "topk places: no array");
  need_array(counts, rows, sizeof(int32_t), "topk counts: no array");
  need_array(limits, rows, sizeof(float), "topk limits: no array");
  need(all_below(at<const int32_t>(counts), rows, room), "topk counts: more than there is room");
  return {rows, k, room, at<float>(values), at<int32_t>(places), at<int32_t>(counts),
          at<float>(limits)};
}

}  // namespace

void bind_topk(nb::module_& m) {
  m.def(
      "topk_add",
      [](size_t rows, size_t k, size_t room, Address values, Address places, Address counts,
         Address limits, Address scores, size_t stride, size_t columns, size_t first) {
        const auto state = kept(rows, k, room, values, places, counts, limits);
        need(columns <= stride, "topk scores: rows that overlap");
        need(first <= static_cast<size_t>(std::numeric_limits<int32_t>::max()) &&
                 columns <= static_cast<size_t>(std::numeric_limits<int32_t>::max()) - first,
             "topk scores: more columns than can be numbered");
        need_array(scores, times(rows, stride), sizeof(float), "topk scores: no array");
        topk_add(state, at<const float>(scores), stride, columns, static_cast<int32_t>(first));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.attr("TOPK_BLOCK") = kTopKBlock;
  m.def(
      "topk_products",
      [](size_t rows, size_t k, size_t room, Address values, Address places, Address counts,
         Address limits, Address queries, size_t dim, Address blocks, size_t columns,
         Address offsets, Address masked, size_t num_masked) {
        const auto state = kept(rows, k, room, values, places, counts, limits);
        need(dim >= 1 && columns <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
             "topk products: more columns than can be numbered");
        const size_t filled = (columns + kTopKBlock - 1) / kTopKBlock * kTopKBlock;
        need_array(queries, times(rows, dim), sizeof(float), "topk queries: no array");
        need_array(blocks, times(filled, dim), sizeof(float), "topk blocks: no array");
        need_array(offsets, rows + 1, sizeof(int64_t), "topk offsets: no array");
        need_array(masked, num_masked, sizeof(int32_t), "topk masked: no array");
        need(ascend(at<const int64_t>(offsets), rows, num_masked), "topk offsets: do not ascend");
        topk_products(state, at<const float>(queries), dim, at<const float>(blocks), columns,
                      {at<const int64_t>(offsets), at<const int32_t>(masked)});
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "topk_finish",
      [](size_t rows, size_t k, size_t room, Address values, Address places, Address counts,
         Address limits, Address best, Address where) {
        const auto state = kept(rows, k, room, values, places, counts, limits);
        need_array(best, times(rows, k), sizeof(float), "topk best: no array");
        need_array(where, times(rows, k), sizeof(int64_t), "topk where: no array");
        topk_finish(state, at<float>(best), at<int64_t>(where));
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
