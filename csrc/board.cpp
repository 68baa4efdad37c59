#include "board.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "dedupe.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kLine = 64;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

void need(bool sound) {
  if (!sound) throw std::invalid_argument("board: what lies there was not written in this step");
}

}  // namespace

Board::Board(Pages pages, int rank, int ranks)
    : pages_(std::move(pages)), memory_(pages_.data()),
      share_(pages_.size() / 2 / static_cast<size_t>(std::max(ranks, 1)) / kLine * kLine),
      rank_(rank), ranks_(ranks) {
  if (rank < 0 || rank >= ranks || share_ < sizeof(Head))
    throw std::invalid_argument("board: ranks 0 to size - 1, a place for each");
}

char* Board::place(int rank) const {
  const auto number = static_cast<size_t>(rank) + (step_ % 2) * static_cast<size_t>(ranks_);
  return memory_ + number * share_;
}

bool Board::write(const float* floats, size_t n, const std::vector<Given>& tables, int threads) {
  ++step_;
  char* const begin = place(rank_);
  Head& head = *reinterpret_cast<Head*>(begin);
  auto* const sections = reinterpret_cast<Section*>(&head + 1);
  head = {step_, 0, n, tables.size(), 0};

  size_t values = 0;
  for (const Given& given : tables)
    for (const Values& some : given.lookups) values += some.n * given.dim;
  const auto workers = static_cast<size_t>(parts_for(values, threads));
  const size_t count = tables.size() * workers;
  std::vector<size_t> rooms(count);  // ids of each part, were none repeated
  for (size_t t = 0; t < tables.size(); ++t)
    for (const Values& some : tables[t].lookups) {
      if (workers == 1) rooms[t] += some.n;
      for (size_t i = 0; workers > 1 && i < some.n; ++i) ++rooms[t * workers + part_of(some.ids[i], workers)];
    }

  const auto base = static_cast<size_t>(begin - memory_), end = base + share_;
  const size_t floats_at = base + sizeof(Head) + count * sizeof(Section);
  size_t at = floats_at + n * sizeof(float);
  std::vector<Section> found(count);
  for (size_t k = 0; k < count && at <= end; ++k) {
    const size_t row = tables[k / workers].dim * sizeof(float);
    found[k].table = k / workers;
    found[k].ids = round_up(at, kLine);
    found[k].sums = round_up(found[k].ids + rooms[k] * sizeof(int64_t), kLine);
    at = found[k].sums + rooms[k] * row;
  }
  if (at > end) return false;
  if (n != 0) std::memcpy(memory_ + floats_at, floats, n * sizeof(float));
  Pool::run(static_cast<int>(workers), static_cast<int>(count), [&](int task) {
    const auto k = static_cast<size_t>(task);
    const Given& given = tables[found[k].table];
    Sum sum;
    sum.dim = static_cast<int>(given.dim);
    sum.part = k % workers;
    sum.parts = workers;
    sum.ids = reinterpret_cast<int64_t*>(memory_ + found[k].ids);
    sum.sums = reinterpret_cast<float*>(memory_ + found[k].sums);
    found[k].n = sum_rows(scratch(), sum, given.lookups, given.limit);
  });
  std::copy(found.begin(), found.end(), sections);
  head.sections = count;
  head.fits = 1;
  bytes_written_ = n * sizeof(float);
  for (const Section& one : found)
    bytes_written_ += one.n * (sizeof(int64_t) + tables[one.table].dim * sizeof(float));
  return true;
}

const Board::Head& Board::head_of(int rank) const {
  const Head& head = *reinterpret_cast<const Head*>(place(rank));
  need(head.step == step_);
  return head;
}

bool Board::sums(float* out, size_t n) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (head_of(rank).fits == 0) return false;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Head& head = head_of(rank);
    need(head.floats == n && n <= share_ / sizeof(float) && head.sections <= share_ / sizeof(Section));
    const size_t at = sizeof(Head) + head.sections * sizeof(Section);
    need(at + n * sizeof(float) <= share_);
    const auto* const from = reinterpret_cast<const float*>(place(rank) + at);
    for (size_t i = 0; i < n; ++i) out[i] = rank == 0 ? from[i] : out[i] + from[i];
  }
  return true;
}

std::vector<Values> Board::rows(size_t t, size_t dim) const {
  std::vector<Values> found;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Head& head = head_of(rank);
    need(head.fits != 0 && head.sections <= (share_ - sizeof(Head)) / sizeof(Section));
    const auto* const sections = reinterpret_cast<const Section*>(&head + 1);
    const auto low = static_cast<uint64_t>(place(rank) - memory_), high = low + share_;
    const auto inside = [&](uint64_t at, uint64_t n, uint64_t size) {
      return at % kLine == 0 && at >= low && at <= high && n <= (high - at) / size;
    };
    for (size_t k = 0; k < head.sections; ++k) {
      const Section one = sections[k];  // a copy: what is looked at is what is used
      if (one.table != t || one.n == 0) continue;
      need(inside(one.ids, one.n, sizeof(int64_t)) && inside(one.sums, one.n, dim * sizeof(float)));
      found.push_back({reinterpret_cast<const int64_t*>(memory_ + one.ids),
                       reinterpret_cast<const float*>(memory_ + one.sums), static_cast<size_t>(one.n)});
    }
  }
  return found;
}

}  // namespace shoal
