// Lines of slots -> columns, one pass over the bytes. What is wrong with a line is said elsewhere
// (shoal/clicks/slots.py reads it again): here it is only found.
#include "slots.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace shoal {

SlotKeys::SlotKeys(const std::vector<std::string>& slot_names,
                   const std::vector<std::string>& dense_names,
                   const std::vector<int64_t>& dense_counts, const std::string& label_name,
                   bool pass_over)
    : slots(slot_names), dense(dense_names), label(label_name), others(pass_over) {
  if (dense_counts.size() != dense.size()) throw std::invalid_argument("a count for each dense key");
  for (const int64_t count : dense_counts) {
    first.push_back(num_dense);
    counts.push_back(static_cast<size_t>(count));
    num_dense += counts.back();
  }
  for (size_t k = 0; k < slots.size(); ++k) by_name[slots[k]] = {Kind::slot, k};
  for (size_t k = 0; k < dense.size(); ++k) by_name[dense[k]] = {Kind::dense, k};
  by_name[label] = {Kind::label, 0};
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A whole number that fits 64 bits with sign.
bool read_id(const char* at, const char* end, int64_t& id) {
  const bool negative = at < end && *at == '-';
  at += negative;
  if (at == end || end - at > 19) return false;
  uint64_t value = 0;  // 19 digits fit 64 bits without sign
  for (; at < end; ++at) {
    if (!is_digit(*at)) return false;
    value = value * 10 + static_cast<uint64_t>(*at - '0');
  }
  const uint64_t limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + negative;
  if (value > limit) return false;
  id = static_cast<int64_t>(negative ? 0 - value : value);
  return true;
}

const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                         1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// A finite decimal number, rounded to a double and then to a float, as Python and numpy do.
bool read_float(const char* at, const char* end, float& out) {
  const char* const begin = at;
  const bool negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  uint64_t mantissa = 0;
  int digits = 0, seen = 0, exponent = 0;
  const auto take = [&](int of_fraction) {
    for (; at < end && is_digit(*at); ++at, ++seen) {
      if (digits >= 18) {  // more than a double holds: the slow way below
        digits = 99;
        continue;
      }
      mantissa = mantissa * 10 + static_cast<uint64_t>(*at - '0');
      digits += mantissa != 0;
      exponent -= of_fraction;
    }
  };
  take(0);
  if (at < end && *at == '.') {
    ++at;
    take(1);
  }
  if (seen == 0) return false;
  if (at < end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool down = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) ++at;
    if (at == end) return false;
    int given = 0;
    for (; at < end && is_digit(*at); ++at) given = std::min(given * 10 + (*at - '0'), 100000);
    exponent += down ? -given : given;
  }
  if (at != end) return false;
  double value;
  if (digits < 99 && mantissa < (1ULL << 53) && exponent >= -22 && exponent <= 22) {
    // Both are exact in a double, so one rounding gives the nearest one.
    value = static_cast<double>(mantissa);
    value = exponent < 0 ? value / powers[-exponent] : value * powers[exponent];
    if (negative) value = -value;
  } else {
    value = std::strtod(std::string(begin, end).c_str(), nullptr);
  }
  out = static_cast<float>(value);
  return std::isfinite(out);
}

bool same(const std::string& name, const char* at, size_t length) {
  return name.size() == length && std::memcmp(name.data(), at, length) == 0;
}

// Where a line stops without the spaces, tabs and returns at its end.
int64_t trimmed(const char* text, int64_t start, int64_t stop) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (stop > start && is_space(text[stop - 1])) --stop;
  return stop;
}

SlotResult parse(const SlotKeys& keys, const char* text, const int64_t* starts,
                 const int64_t* stops, size_t n, float* labels, float* dense, int64_t* ids,
                 int64_t* lengths) {
  const size_t num_slots = keys.slots.size(), num_dense = keys.num_dense;
  SlotResult result;
  std::vector<int64_t> seen(num_slots, -1);  // the line that last had this slot
  std::vector<size_t> filled(keys.dense.size());
  std::vector<std::pair<size_t, int64_t>> found;  // (slot, id) of a line, where there are lists
  for (size_t line = 0; line < n; ++line) {
    const char* at = text + starts[line];
    const char* const end = text + stops[line];
    const auto number = static_cast<int64_t>(line);
    result.fault = number;  // until the line is known to be sound
    bool has_label = false;
    size_t guess = 0, last_dense = 0;
    std::fill(filled.begin(), filled.end(), 0);
    found.clear();
    if (lengths == nullptr) std::fill_n(ids + line * num_slots, num_slots, 0);
    for (bool more = true; more;) {
      const char* colon = at;
      while (colon < end && *colon != ':' && *colon != ' ') ++colon;
      if (colon == end || *colon == ' ' || colon == at) return result;
      const char* const value = colon + 1;
      const char* stop = value;
      while (stop < end && *stop != ' ') ++stop;
      const auto size = static_cast<size_t>(colon - at);
      SlotKeys::Target target;
      bool known = true;
      // Keys nearly always come in one order: look where the last one leads before searching.
      if (guess < num_slots && same(keys.slots[guess], at, size)) {
        target = {SlotKeys::Kind::slot, guess};
      } else if (last_dense < keys.dense.size() && same(keys.dense[last_dense], at, size)) {
        target = {SlotKeys::Kind::dense, last_dense};
      } else {
        const auto place = keys.by_name.find(std::string_view(at, size));
        known = place != keys.by_name.end();
        if (!known && !keys.others) return result;
        if (known) target = place->second;
      }
      if (known && target.kind == SlotKeys::Kind::slot) {
        int64_t id;
        if (!read_id(value, stop, id)) return result;
        guess = target.index + 1;
        if (lengths != nullptr) {
          found.emplace_back(target.index, id);
        } else if (seen[target.index] == number) {
          result.fault = -1;
          result.repeated = true;
          return result;
        } else {
          seen[target.index] = number;
          ids[line * num_slots + target.index] = id;
        }
      } else if (known && target.kind == SlotKeys::Kind::dense) {
        last_dense = target.index;
        size_t& place = filled[target.index];
        if (place == keys.counts[target.index]) return result;
        float* const out = dense + line * num_dense + keys.first[target.index] + place++;
        if (!read_float(value, stop, *out)) return result;
      } else if (known) {
        if (has_label || !read_float(value, stop, labels[line])) return result;
        if (labels[line] != 0.0f && labels[line] != 1.0f) return result;
        has_label = true;
      }
      more = stop < end;
      at = stop + 1;
    }
    if (!has_label || filled != keys.counts) return result;
    if (lengths != nullptr) {
      std::stable_sort(found.begin(), found.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      size_t next = 0;
      for (size_t slot = 0; slot < num_slots; ++slot) {
        const size_t before = result.num_ids;
        for (; next < found.size() && found[next].first == slot; ++next)
          ids[result.num_ids++] = found[next].second;
        if (result.num_ids == before) ids[result.num_ids++] = 0;
        lengths[line * num_slots + slot] = static_cast<int64_t>(result.num_ids - before);
      }
    }
  }
  if (lengths == nullptr) result.num_ids = n * num_slots;
  result.fault = -1;
  return result;
}

}  // namespace

SlotResult parse_slots(const SlotKeys& keys, const char* text, const int64_t* starts,
                       const int64_t* stops, size_t n, float* labels, float* dense, int64_t* ids,
                       int64_t* lengths) {
  SlotResult result = parse(keys, text, starts, stops, n, labels, dense, ids, lengths);
  // Few logs have white space at the ends of lines, so it is looked for where a line is not sound.
  if (result.fault < 0) return result;
  const int64_t stop = stops[result.fault];
  if (trimmed(text, starts[result.fault], stop) == stop) return result;
  std::vector<int64_t> ends(n);
  for (size_t line = 0; line < n; ++line) ends[line] = trimmed(text, starts[line], stops[line]);
  return parse(keys, text, starts, ends.data(), n, labels, dense, ids, lengths);
}

}  // namespace shoal
