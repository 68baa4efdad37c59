// A board that processes share, as Python sees it: shoal/kernels/board.py.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "board.h"
#include "argument_checks.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// Of a table: ids of lookups, how many, values, columns, the limit of ids or -1.
using Entry = std::tuple<Addresses, std::vector<size_t>, Addresses, size_t, int64_t>;

Given given_of(const Entry& entry) {
  const auto& [ids, lengths, values, dim, limit] = entry;
  need(ids.size() == lengths.size() && values.size() == lengths.size(), "board: a length for each lookup");
  need(dim >= 1 && dim <= (size_t{1} << 24) && limit <= (int64_t{1} << 40), "board: no such table");
  Given given;
  given.dim = dim;
  given.limit = limit;
  size_t total = 0;
  for (size_t k = 0; k < ids.size(); ++k) {
    need_array(ids[k], lengths[k], sizeof(int64_t), "board: no array");
    need_array(values[k], times(lengths[k], dim), sizeof(float), "board: no array");
    total += lengths[k];
    need(lengths[k] < kNoRow && total < kNoRow, "board: more ids than can be told");
    const auto* const some = at<int64_t>(ids[k]);
    need(limit < 0 || all_below(some, lengths[k], static_cast<uint64_t>(limit)), "board: beyond the limit");
    given.lookups.push_back({some, at<const float>(values[k]), lengths[k]});
  }
  return given;
}

bool write(Board& board, Address floats, size_t n, const std::vector<Entry>& entries, int threads) {
  need_array(floats, n, sizeof(float), "board: no array");
  std::vector<Given> tables;
  for (const Entry& entry : entries) tables.push_back(given_of(entry));
  return board.write(at<float>(floats), n, tables, threads);
}

bool sums(const Board& board, Address out, size_t n) {
  need_array(out, n, sizeof(float), "board: no array");
  return board.sums(at<float>(out), n);
}

size_t count_rows(const Board& board, size_t table, size_t dim) {
  need(dim >= 1 && dim <= (size_t{1} << 24), "board: no such table");
  size_t total = 0;
  for (const Values& some : board.rows(table, dim)) total += some.n;
  return total;
}

// ids [n], values [n, dim] of all processes, multiplied.
void read(const Board& board, size_t table, size_t dim, float scale, Address ids, Address values, size_t n) {
  need(dim >= 1 && dim <= (size_t{1} << 24), "board: no such table");
  need_array(ids, n, sizeof(int64_t), "board: no array");
  need_array(values, times(n, dim), sizeof(float), "board: no array");
  auto* to_ids = at<int64_t>(ids);
  auto* to = at<float>(values);
  for (const Values& some : board.rows(table, dim)) {
    need(some.n <= n, "board: more rows than there is room for");
    n -= some.n;
    to_ids = std::copy_n(some.ids, some.n, to_ids);
    for (size_t i = 0; i < some.n * dim; ++i) to[i] = some.at[i] * scale;
    to += some.n * dim;
  }
  need(n == 0, "board: fewer rows than were asked for");
}

}  // namespace

void bind_board(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Board>(m, "Board")
      .def("__init__",
           [](Board* self, int file, size_t from, size_t bytes, int rank, int ranks) {
             need(ranks >= 1 && ranks <= 1 << 12 && bytes <= (size_t{1} << 40) && from <= (size_t{1} << 40),
                  "board: too many or too long");
             new (self) Board(Pages::shared(file, bytes, from), rank, ranks);
           })
      .def("write", &write, release())
      .def("sums", &sums)
      .def("count_rows", &count_rows)
      .def("read", &read, release())
      .def_prop_ro("bytes_written", &Board::bytes_written);
}

}  // namespace shoal
