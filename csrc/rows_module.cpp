// Rows of several tables at once, read and updated, as Python sees them: shoal/kernels/tables.py.
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "argument_checks.h"
#include "module.h"
#include "table.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// Guards of several tables, each once and in one order, so that two callers never wait in a ring.
template <bool write>
class Guards {
 public:
  explicit Guards(std::vector<Table*> tables) : tables_(std::move(tables)) {
    std::sort(tables_.begin(), tables_.end());
    tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
    for (Table* table : tables_) write ? table->guard().lock() : table->guard().lock_shared();
  }
  ~Guards() {
    for (Table* table : tables_) write ? table->guard().unlock() : table->guard().unlock_shared();
  }
  Guards(const Guards&) = delete;
  Guards& operator=(const Guards&) = delete;

 private:
  std::vector<Table*> tables_;
};

// -1 when all ids are inside, otherwise (which table) << 40 | (which id).
int64_t find_outside(const std::vector<Table*>& tables, const Addresses& ids,
                     const std::vector<size_t>& n) {
  need(ids.size() == tables.size() && n.size() == tables.size(), "ids: one array for each table");
  for (size_t t = 0; t < tables.size(); ++t) {
    need(tables[t] != nullptr, "no table");
    need_array(ids[t], n[t], sizeof(int64_t), "ids: no array");
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const int64_t position = tables[t]->first_outside(at<int64_t>(ids[t]), n[t]);
    if (position >= 0) return static_cast<int64_t>(t) << 40 | position;
  }
  return -1;
}

}  // namespace

int64_t pull(const std::vector<Table*>& tables, const Addresses& ids, const std::vector<size_t>& n,
             const Addresses& out, int threads) {
  const int64_t wrong = find_outside(tables, ids, n);
  if (wrong >= 0) return wrong;
  need(out.size() == tables.size(), "rows: one array for each table");
  size_t values = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const size_t own = times(n[t], static_cast<size_t>(tables[t]->dim()));
    need_array(out[t], own, sizeof(float), "rows: no array");
    values += own;
  }
  const size_t parts = static_cast<size_t>(parts_for(values, threads));
  const Guards<false> guards(tables);
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const size_t p = static_cast<size_t>(part);
    for (size_t t = 0; t < tables.size(); ++t) {
      const size_t begin = n[t] * p / parts, end = n[t] * (p + 1) / parts;
      const size_t dim = static_cast<size_t>(tables[t]->dim());
      tables[t]->pull(at<int64_t>(ids[t]) + begin, end - begin, at<float>(out[t]) + begin * dim);
    }
  });
  return -1;
}

namespace {

// Bags of n ids, in so many lists; address 0: none.
IdBags id_bags(Address starts, size_t count, Address weights, size_t n) {
  if (starts == 0) return {};
  need_array(starts, times(count, 2), sizeof(int64_t), "bags: no array");
  const auto* found = at<const int64_t>(starts);
  need(ascend(found, count, n) && found[0] == 0 && static_cast<size_t>(found[count]) == n,
       "bags: they ascend from 0 to the number of ids");
  need(count < kNoRow, "bags: more than 2^32 - 2");
  return {found, count, at<const float>(weights)};
}

// The bag that place `part` of `parts` begins in.
size_t bag_at(const IdBags& bags, size_t n, size_t part, size_t parts) {
  if (part == parts) return bags.count;
  const auto place = static_cast<int64_t>(n * part / parts);
  return static_cast<size_t>(std::lower_bound(bags.starts, bags.starts + bags.count, place) -
                             bags.starts);
}

// Sums of the bags of each table: see IdBags.
int64_t pull_bags(const std::vector<Table*>& tables, const Addresses& ids,
                  const std::vector<size_t>& n, const Addresses& starts,
                  const std::vector<size_t>& num_bags, const Addresses& weights,
                  const Addresses& out, int threads) {
  const int64_t wrong = find_outside(tables, ids, n);
  if (wrong >= 0) return wrong;
  const size_t count = tables.size();
  need(starts.size() == count && num_bags.size() == count && weights.size() == count &&
           out.size() == count,
       "bags: one entry for each table");
  size_t values = 0;
  std::vector<IdBags> bags;
  for (size_t t = 0; t < count; ++t) {
    const size_t dim = static_cast<size_t>(tables[t]->dim());
    need(starts[t] != 0, "bags: no array");
    bags.push_back(id_bags(starts[t], num_bags[t], weights[t], n[t]));
    need_array(out[t], times(num_bags[t], dim), sizeof(float), "sums: no array");
    values += times(n[t], dim);
  }
  const size_t parts = static_cast<size_t>(parts_for(values, threads));
  const Guards<false> guards(tables);
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const size_t p = static_cast<size_t>(part);
    for (size_t t = 0; t < count; ++t) {
      const size_t first = bag_at(bags[t], n[t], p, parts), last = bag_at(bags[t], n[t], p + 1, parts);
      if (first < last)
        tables[t]->pull_bags(at<int64_t>(ids[t]), n[t], bags[t], first, last, at<float>(out[t]));
    }
  });
  return -1;
}

// Parts of tables, each done once by work(table, part, parts). values[t]: how many a step of it is of.
template <typename Work>
void each_part(const std::vector<size_t>& values, int threads, Work work) {
  size_t total = 0;
  for (const size_t own : values) total += own;
  const int workers = parts_for(total, threads);
  // A part of a table must look at all its ids, so only tables too large for one share are split.
  struct Task {
    size_t table;
    int part, parts;
  };
  std::vector<Task> tasks;
  for (size_t t = 0; t < values.size(); ++t) {
    const int parts = 2 * values[t] * static_cast<size_t>(workers) > total ? workers : 1;
    for (int part = 0; part < parts; ++part) tasks.push_back({t, part, parts});
  }
  Pool::run(workers, static_cast<int>(tasks.size()), [&](int task) {
    const Task& job = tasks[static_cast<size_t>(task)];
    work(job.table, job.part, job.parts);
  });
}

// num_grads: rows of each table's gradients, those of its bags where it has starts. clicks, shows:
// see Push; address 0: none.
int64_t push(const std::vector<Table*>& tables, const Addresses& ids, const std::vector<size_t>& n,
             const Addresses& grads, const std::vector<size_t>& num_grads, const Addresses& starts,
             const Addresses& weights, const Addresses& clicks, const Addresses& shows, const std::vector<StepNumbers>& numbers, const std::vector<uint64_t>& counts,
             int threads) {
  const int64_t wrong = find_outside(tables, ids, n);
  if (wrong >= 0) return wrong;
  const size_t count = tables.size();
  need(starts.size() == count && weights.size() == count, "push: one entry for each table");
  need(grads.size() == count && num_grads.size() == count && clicks.size() == count &&
           shows.size() == count && numbers.size() == count && counts.size() == count,
       "push: one entry for each table");
  std::vector<size_t> values;
  std::vector<Push> pushes(count);
  for (size_t t = 0; t < count; ++t) {
    need_array(grads[t], times(num_grads[t], static_cast<size_t>(tables[t]->dim())), sizeof(float),
               "gradients: no array");
    need(starts[t] != 0 || num_grads[t] >= n[t], "gradients: fewer than ids");
    Push& p = pushes[t];
    p.bags = id_bags(starts[t], num_grads[t], weights[t], n[t]);
    p.ids = at<int64_t>(ids[t]);
    p.n = n[t];
    p.grads = at<float>(grads[t]);
    p.clicks = at<float>(clicks[t]);
    p.shows = at<float>(shows[t]);
    p.now = numbers[t];
    p.step = counts[t];
    values.push_back(n[t] * static_cast<size_t>(tables[t]->dim()));
    if (n[t] >= kNoRow) throw std::length_error("more than 2^32 - 2 ids in one push");
  }
  const Guards<true> guards(tables);
  each_part(values, threads, [&](size_t t, int part, int parts) { tables[t]->push(pushes[t], part, parts); });
  return -1;
}

}  // namespace

void bind_rows(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("pull", &pull, release());
  m.def("pull_bags", &pull_bags, release());
  m.def("push", &push, release());
}

}  // namespace shoal
