// What Python sees. Arrays come as addresses of torch tensors: shoal/kernels/ has
// checked their type, shape and layout, and holds them alive during the call.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "argument_checks.h"
#include "module.h"
#include "pairs.h"
#include "route.h"
#include "sampler.h"
#include "slots.h"
#include "table.h"

namespace nb = nanobind;
using namespace shoal;

namespace {

// What Python may call, and how. Raised whenever that changes, here and in shoal/kernels/core.py.
constexpr int kInterface = 18;

// What `shoal --version` prints of this build.
#if defined(Py_LIMITED_API)
constexpr const char* kAbi = "Python 3.12 and later (abi3)";
#else
constexpr const char* kAbi = "this Python";
#endif
#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

Table* make_table(int dim, int64_t rows, bool has_padding, int64_t padding, bool half,
                  const std::vector<int64_t>& numbering, int init_kind, uint64_t init_key,
                  float init_factor, const Hyper& hyper,
                  const std::vector<std::pair<bool, float>>& state, bool counted,
                  const std::vector<float>& admission, size_t bloom_counters, int threads) {
  need(dim >= 1 && rows >= -1, "a table has 1 or more values in a row, and rows or -1");
  need(init_kind >= 0 && init_kind <= 2, "unknown kind of initial values");
  need(bloom_counters < (size_t{1} << 40), "a Bloom filter of more than 2^40 counters");
  need(state.size() == kPieces[static_cast<int>(hyper.kind)], "state: not the optimizer's");
  for (const auto& piece : state)
    need(piece.first == (hyper.kind != Optimizer::rowwise_adagrad), "state: of another shape");
  need(numbering.empty() || numbering.size() == 3, "numbering: nothing, or 3 numbers");
  if (!numbering.empty()) {
    const int64_t most = numbering[2];
    need(rows >= 0 && most > 0 && numbering[0] >= 0 && numbering[0] <= most - rows,
         "numbering: a share lies inside its table");
    need(numbering[1] == 1 || (numbering[1] > 0 && numbering[1] < most && most < int64_t{1} << 31),
         "numbering: a factor below 2^31 rows");
  }
  threads = std::max(threads, 1);
  Spec spec;
  spec.dim = dim;
  spec.rows = rows;
  spec.has_padding = has_padding;
  spec.padding = padding;
  spec.half = half;
  if (!numbering.empty()) spec.numbering = {numbering[0], numbering[1], numbering[2]};
  spec.recipe = {static_cast<InitKind>(init_kind), init_key, init_factor};
  spec.hyper = hyper;
  for (const auto& [per_value, begin] : state) spec.state.push_back({per_value, begin});
  spec.counted = counted;
  if (admission.size() != 3) throw std::invalid_argument("admission: 3 floats");
  spec.admit_score = admission[0];
  spec.show_coefficient = admission[1];
  spec.click_coefficient = admission[2];
  spec.bloom_counters = bloom_counters;
  try {
    return new Table(spec, threads);
  } catch (const std::bad_alloc&) {
    throw std::invalid_argument("a table of " + std::to_string(rows) + " rows of " +
                                std::to_string(dim) + " values does not fit into memory");
  }
}

// counters: the addresses of show, click and last_step, or nothing for tables without them.
CounterArrays counter_arrays(const Addresses& counters) {
  if (counters.empty()) return {};
  return {at<float>(counters.at(0)), at<float>(counters.at(1)), at<int64_t>(counters.at(2))};
}

void check_counters(const Addresses& counters, size_t n) {
  need(counters.size() == 3, "counters: show, click and last_step");
  for (Address array : counters) need_array(array, n, sizeof(int64_t), "counters: no array");
}

void check_pending(Table& table, Address ids, size_t n, const Addresses& counters) {
  need(table.grows() && table.counted(), "this table counts no ids");
  need_array(ids, n, sizeof(int64_t), "ids: no array");
  check_counters(counters, n);
}

void check_rows(Table& table, Address ids, size_t n, Address values, const Addresses& states,
                const Addresses& counters) {
  need_array(ids, n, sizeof(int64_t), "ids: no array");
  need_array(values, times(n, static_cast<size_t>(table.dim())), sizeof(float), "rows: no array");
  need(table.first_outside(at<int64_t>(ids), n) < 0, "an id outside the table");
  need(states.size() == table.num_states(), "state of rows: one array for each piece");
  need(counters.size() == (table.counted() ? 3 : 0), "counters: of tables that keep them, 3");
  for (Address array : counters) need_array(array, n, sizeof(int64_t), "counters: no array");
}

void read_rows(Table& table, Address ids, size_t n, Address values, const Addresses& states,
               const Addresses& counters) {
  check_rows(table, ids, n, values, states, counters);
  std::vector<float*> pieces;
  for (Address state : states) {
    need(state != 0 || n == 0, "state of rows: no array");
    pieces.push_back(at<float>(state));
  }
  std::shared_lock<SharedLock> lock(table.guard());
  table.read(at<int64_t>(ids), n, at<float>(values), pieces.data(), counter_arrays(counters));
}

void write_rows(Table& table, Address ids, size_t n, Address values, const Addresses& states,
                const Addresses& counters) {
  check_rows(table, ids, n, values, states, counters);
  std::vector<const float*> pieces;
  for (Address state : states) pieces.push_back(at<const float>(state));
  std::unique_lock<SharedLock> lock(table.guard());
  table.write(at<int64_t>(ids), n, at<float>(values), pieces.data(), counter_arrays(counters));
}

// Whether line i, starts[i] to stops[i], lies within a text of so many bytes.
bool ordered(const int64_t* starts, const int64_t* stops, size_t n, size_t bytes) {
  for (size_t i = 0; i < n; ++i)
    if (starts[i] < 0 || stops[i] < starts[i] || static_cast<uint64_t>(stops[i]) > bytes) return false;
  return true;
}

// Lists of ids go to Python as bytes: torch reads them without a copy per id.
template <typename List>
nb::bytes id_bytes(Table& table, List list) {
  std::vector<int64_t> ids;
  {
    nb::gil_scoped_release release;
    std::shared_lock<SharedLock> lock(table.guard());
    ids = list();
  }
  return nb::bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
}

size_t shrink(Table& table, float min_score, float min_norm, int64_t max_age, int64_t capacity,
              bool least_recent, uint64_t step) {
  std::unique_lock<SharedLock> lock(table.guard());
  return table.shrink({min_score, min_norm, max_age, capacity, least_recent, step});
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // tables that live until the interpreter ends are no leak
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.doc() = "Embedding rows on the CPU: the native core of shoal.kernels";
  m.attr("INTERFACE") = kInterface;
  m.attr("BUILD") = std::make_pair(kAbi, kCompiler);
  m.attr("BLOOM_LAYOUT") = kBloomLayout;
  nb::class_<Table>(m, "Table")
      .def("__len__", &Table::size)
      .def_prop_ro("bytes", &Table::bytes)
      .def("sorted_ids",
           [](Table& t) { return id_bytes(t, [&] { return t.sorted_ids(); }); })
      .def("changed_ids",
           [](Table& t, uint64_t since) {
             return id_bytes(t, [&] { return t.changed_ids(since); });
           })
      .def("dropped_ids",
           [](Table& t, uint64_t since) {
             return id_bytes(t, [&] { return t.dropped_ids(since); });
           })
      .def("pending_ids",
           [](Table& t) { return id_bytes(t, [&] { return t.pending_ids(); }); })
      .def("read", &read_rows, release())
      .def("write", &write_rows, release())
      .def(
          "read_pending",
          [](Table& t, Address ids, size_t n, const Addresses& out) {
            std::shared_lock<SharedLock> lock(t.guard());
            check_pending(t, ids, n, out);
            t.read_pending(at<int64_t>(ids), n, counter_arrays(out));
          },
          release())
      .def(
          "write_pending",
          [](Table& t, Address ids, size_t n, const Addresses& in) {
            std::unique_lock<SharedLock> lock(t.guard());
            check_pending(t, ids, n, in);
            t.write_pending(at<int64_t>(ids), n, counter_arrays(in));
          },
          release())
      .def_prop_ro("bloom_bytes", &Table::bloom_bytes)
      .def(
          "read_bloom",
          [](Table& t, size_t start, size_t n, Address out) {
            std::shared_lock<SharedLock> lock(t.guard());
            need_array(out, n, 1, "counters: no array");
            t.read_bloom(start, n, at<uint8_t>(out));
          },
          release())
      .def(
          "write_bloom",
          [](Table& t, size_t start, size_t n, Address in) {
            std::unique_lock<SharedLock> lock(t.guard());
            need_array(in, n, 1, "counters: no array");
            t.write_bloom(start, n, at<uint8_t>(in));
          },
          release())
      .def(
          "decay",
          [](Table& t, float factor) {
            std::unique_lock<SharedLock> lock(t.guard());
            t.decay(factor);
          },
          release())
      .def("shrink", &shrink, release())
      .def(
          "mark",
          [](Table& t) {
            std::unique_lock<SharedLock> lock(t.guard());
            return t.mark();
          },
          release())
      .def_prop_ro("oldest_mark", &Table::oldest_mark);
  bind_row_optimizers(m);
  m.def("make_table", &make_table, nb::rv_policy::take_ownership, release());
  bind_wire(m);
  bind_lanes(m);
  bind_rows(m);
  bind_layers(m);
  bind_placed_pairs(m);
  bind_softmax(m);
  bind_topk(m);
  // known: (num_users, num_items, bitmap or 0, keys, starts); table: (keep, alias) or zeros.
  m.def("draw_negatives", [](const Addresses& known, uint64_t key, const Addresses& table,
                             int column_bits, int max_attempts, Address users, Address index,
                             size_t n, size_t num, Address out) {
    need(known.size() == 5 && table.size() == 2, "draws: 5 and 2 entries");
    const auto num_users = static_cast<int64_t>(known[0]), num_items = static_cast<int64_t>(known[1]);
    int64_t all_pairs;
    need(num_users >= 0 && num_items >= 2 && num_items <= (int64_t{1} << 52) &&
             !__builtin_mul_overflow(num_users, num_items, &all_pairs),
         "draws: there must be an item to draw, and pairs that can be counted");
    need(known[2] != 0 || known[4] != 0, "draws: neither a bitmap nor keys");
    need((table[0] == 0) == (table[1] == 0), "draws: an alias table has two parts");
    need(column_bits >= 0 && column_bits < 64 && max_attempts >= 1, "draws: bits or attempts");
    need(max_attempts <= (1 << 20), "draws: more than 2^20 attempts");
    need_array(users, n, sizeof(int64_t), "users: no array");
    need_array(index, n, sizeof(int64_t), "index: no array");
    need_array(out, times(n, num), sizeof(int64_t), "negatives: no array");
    const KnownPairs pairs{static_cast<int64_t>(known.at(0)), static_cast<int64_t>(known.at(1)),
                           at<uint8_t>(known.at(2)), at<int64_t>(known.at(3)),
                           at<int64_t>(known.at(4))};
    const Draws draws{key, at<double>(table.at(0)), at<int64_t>(table.at(1)), column_bits,
                      max_attempts};
    return draw_negatives(pairs, draws, at<int64_t>(users), at<int64_t>(index), n, num,
                          at<int64_t>(out));
  }, release());
  m.def("pair_loss", [](Address queries, Address positives, Address negatives, size_t n, size_t dim,
                        Address slopes, int threads) {
    for (Address array : {queries, positives, negatives})
      need_array(array, times(n, times(3, dim)), sizeof(float), "pairs: no array");
    need_array(slopes, n, sizeof(float), "slopes: no array");
    return pair_loss({at<float>(queries), at<float>(positives), at<float>(negatives), n, dim},
                     at<float>(slopes), parts_for(3 * n * dim, threads));
  }, release());
  // out: gradients of queries, positives and negatives.
  m.def("pair_gradients", [](Address queries, Address positives, Address negatives, size_t n, size_t dim,
                             Address slopes, float scale, const Addresses& out, int threads) {
    need(out.size() == 3, "pairs: 3 arrays");
    for (Address array : {queries, positives, negatives, out[0], out[1], out[2]})
      need_array(array, times(n, times(3, dim)), sizeof(float), "pairs: no array");
    need_array(slopes, n, sizeof(float), "slopes: no array");
    pair_gradients({at<float>(queries), at<float>(positives), at<float>(negatives), n, dim},
                   {at<float>(slopes), scale, at<float>(out.at(0)), at<float>(out.at(1)),
                    at<float>(out.at(2))},
                   parts_for(3 * n * dim, threads));
  }, release());
  m.def("codes_of", [](Address ids, size_t n, int64_t rows, int64_t padding, int64_t factor,
                       Address out) {
    need(rows >= 1 && factor >= 1 && padding < rows, "codes: rows, or a factor, below 1");
    need_array(ids, n, sizeof(int64_t), "ids: no array");
    need_array(out, n, sizeof(int64_t), "codes: no array");
    const int64_t wrong = first_outside_rows(at<int64_t>(ids), n, rows);
    if (wrong < 0) codes_of(at<int64_t>(ids), n, rows, padding, factor, at<int64_t>(out));
    return wrong;
  }, release());
  m.def("distinct_codes", [](Address codes, size_t n, int64_t limit, Address unique, Address inverse) {
    need(limit >= 0 && limit <= (int64_t{1} << 40) && n < kNoRow, "codes: more than can be told");
    for (Address array : {codes, unique, inverse})
      need_array(array, n, sizeof(int64_t), "codes: no array");
    need(all_below(at<int64_t>(codes), n, static_cast<uint64_t>(limit)), "codes: beyond the limit");
    return distinct_codes(at<int64_t>(codes), n, limit, at<int64_t>(unique), at<int64_t>(inverse));
  }, release());
  m.def("add_rows", [](Address total, size_t rows, size_t dim, Address places, Address grads, size_t n,
                       bool begun, Address starts, size_t bags, Address weights, int threads) {
    need_array(total, times(rows, dim), sizeof(float), "sums: no array");
    need_array(grads, times(starts == 0 ? n : bags, dim), sizeof(float), "gradients: no array");
    need_array(places, n, sizeof(int64_t), "places: no array");
    need(all_below(at<int64_t>(places), n, rows), "places: beyond the rows");
    threads = std::max(threads, 1);
    if (starts != 0) {
      need_array(starts, times(bags, 2), sizeof(int64_t), "bags: no array");
      const auto* found = at<const int64_t>(starts);
      need(ascend(found, bags, n) && found[0] == 0 && static_cast<size_t>(found[bags]) == n,
           "bags: they ascend from 0 to the number of places");
    }
    add_rows(at<float>(total), rows, dim, at<int64_t>(places), at<float>(grads), n, begun,
             {at<const int64_t>(starts), bags, at<const float>(weights)}, threads);
  }, release());
  nb::class_<SlotKeys>(m, "SlotKeys")
      .def(nb::init<const std::vector<std::string>&, const std::vector<std::string>&,
                    const std::vector<int64_t>&, const std::string&, bool>());
  // (line at fault or -1, whether a slot has several ids where none may, ids written)
  // bytes: of the text; room: ids that there is memory for.
  m.def("parse_slots", [](const SlotKeys& keys, Address text, size_t bytes, Address starts,
                          Address stops, size_t n, Address labels, Address dense, Address ids,
                          size_t room, Address lengths) {
    need_array(text, bytes, 1, "text: no array");
    for (Address array : {starts, stops, labels})
      need_array(array, n, sizeof(int64_t), "lines: no array");
    need_array(dense, times(n, keys.num_dense), sizeof(float), "dense: no array");
    const size_t lists = times(n, keys.slots.size());
    need_array(ids, room, sizeof(int64_t), "ids: no array");
    need(room >= lists, "ids: less room than slots");
    need(ordered(at<int64_t>(starts), at<int64_t>(stops), n, bytes), "lines: outside the text");
    if (lengths != 0) {
      const char* const from = at<char>(text);
      size_t most = lists;
      for (size_t line = 0; line < n; ++line)
        most += static_cast<size_t>(std::count(from + at<int64_t>(starts)[line],
                                               from + at<int64_t>(stops)[line], ':'));
      need(room >= most, "ids: less room than a line may need");
    }
    SlotResult result;
    {
      nb::gil_scoped_release free;
      result = parse_slots(keys, at<char>(text), at<int64_t>(starts), at<int64_t>(stops), n,
                           at<float>(labels), at<float>(dense), at<int64_t>(ids),
                           at<int64_t>(lengths));
    }
    return nb::make_tuple(result.fault, result.repeated, result.num_ids);
  });
}
