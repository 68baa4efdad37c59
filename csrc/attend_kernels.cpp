// Samples stand side by side: a column holds one value of each of them. As in softmax_kernels.cpp
// nothing of the standard library is used here.
#include "attend.h"
#include "vectors.h"

#ifndef SHOAL_ISA
#error "SHOAL_ISA names the instruction set of this build"
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHOAL_SHUFFLES
#endif
#endif

namespace shoal {
namespace SHOAL_ISA {
namespace {

// Four columns of sums are in registers at a time: 16 of 32 on ARM, 8 of 16 on x86.
#if defined(__aarch64__)
constexpr size_t kAcross = 4;
#else
constexpr size_t kAcross = 2;
#endif
constexpr size_t kSide = kAcross * kLanes;
constexpr size_t kHigh = 4;

struct Column {
  Vector x[kAcross];
};

inline void add(Column& to, const Column& a, const Column& b) {
  for (size_t v = 0; v < kAcross; ++v) to.x[v] += a.x[v] * b.x[v];
}

// ---- to columns and back ----------------------------------------------------------------------

// Four rows of four values each, at a and `down` apart, become columns at b, `across` apart; or the
// other way round.
inline void turn(const float* a, size_t down, float* b, size_t across) {
#ifdef SHOAL_SHUFFLES
  const Four r0 = load<Four>(a), r1 = load<Four>(a + down);
  const Four r2 = load<Four>(a + 2 * down), r3 = load<Four>(a + 3 * down);
  const Four low = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Four low_ = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Four high = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Four high_ = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  store(b, __builtin_shufflevector(low, low_, 0, 1, 4, 5));
  store(b + across, __builtin_shufflevector(low, low_, 2, 3, 6, 7));
  store(b + 2 * across, __builtin_shufflevector(high, high_, 0, 1, 4, 5));
  store(b + 3 * across, __builtin_shufflevector(high, high_, 2, 3, 6, 7));
#else
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = 0; k < 4; ++k) b[k * across + i] = a[i * down + k];
#endif
}

// Values [samples, n], rows `next` apart, as columns [n], `step` columns apart.
void to_columns(const float* x, size_t next, size_t samples, size_t n, size_t step, Column* out) {
  float* const to = reinterpret_cast<float*>(out);
  const size_t across = step * kSide;
  size_t s = 0;
  for (; s + 4 <= samples; s += 4) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) turn(x + s * next + i, next, to + i * across + s, across);
    for (; i < n; ++i)
      for (size_t k = 0; k < 4; ++k) to[i * across + s + k] = x[(s + k) * next + i];
  }
  for (; s < kSide; ++s)
    for (size_t i = 0; i < n; ++i) to[i * across + s] = s < samples ? x[s * next + i] : 0.0f;
}

void from_columns(const Column* columns, size_t step, size_t next, size_t samples, size_t n,
                  float* out) {
  const float* const from = reinterpret_cast<const float*>(columns);
  const size_t across = step * kSide;
  size_t s = 0;
  for (; s + 4 <= samples; s += 4) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) turn(from + i * across + s, across, out + s * next + i, next);
    for (; i < n; ++i)
      for (size_t k = 0; k < 4; ++k) out[(s + k) * next + i] = from[i * across + s + k];
  }
  for (; s < samples; ++s)
    for (size_t i = 0; i < n; ++i) out[s * next + i] = from[i * across + s];
}

// ---- sums of products -------------------------------------------------------------------------

// Columns that lie in a table: one step of a sum, and one result, further on.
struct Strided {
  const Column* x;
  size_t term, result;
};

// out[r] = sum over t of a[t] * b[t, r] for R results; More: added to what is there.
template <size_t R, bool More>
inline void some_sums(const Column* a, size_t a_step, Strided b, size_t terms, Column* out,
                      size_t out_step) {
  Column sums[R];
  for (size_t r = 0; r < R; ++r) sums[r] = More ? out[r * out_step] : Column{};
  for (size_t t = 0; t < terms; ++t) {
    const Column factor = a[t * a_step];
    for (size_t r = 0; r < R; ++r) add(sums[r], factor, b.x[t * b.term + r * b.result]);
  }
  for (size_t r = 0; r < R; ++r) out[r * out_step] = sums[r];
}

// The same for any number of results.
template <bool More = false>
void sums(const Column* a, size_t a_step, Strided b, size_t terms, size_t results, Column* out,
          size_t out_step) {
  size_t r = 0;
  for (; r + kHigh <= results; r += kHigh)
    some_sums<kHigh, More>(a, a_step, {b.x + r * b.result, b.term, b.result}, terms,
                           out + r * out_step, out_step);
  const Strided rest{b.x + r * b.result, b.term, b.result};
  Column* const to = out + r * out_step;
  if (results - r == 3) some_sums<3, More>(a, a_step, rest, terms, to, out_step);
  if (results - r == 2) some_sums<2, More>(a, a_step, rest, terms, to, out_step);
  if (results - r == 1) some_sums<1, More>(a, a_step, rest, terms, to, out_step);
}

// out[r, k] = sum over t of matrix[t, r] * x[t, k]: [terms, results], [terms, count].
void multiply(const float* matrix, const Column* x, size_t terms, size_t results, size_t count,
              Column* out) {
  size_t r = 0;
  for (; r + kHigh <= results; r += kHigh)
    for (size_t k = 0; k < count; ++k) {
      Column made[kHigh] = {};
      for (size_t t = 0; t < terms; ++t) {
        const Column& from = x[t * count + k];
        const Spread factors(matrix + t * results + r);
        for (size_t i = 0; i < kHigh; ++i)
          for (size_t v = 0; v < kAcross; ++v)
            made[i].x[v] += factors[static_cast<int>(i)] * from.x[v];
      }
      for (size_t i = 0; i < kHigh; ++i) out[(r + i) * count + k] = made[i];
    }
  for (; r < results; ++r)
    for (size_t k = 0; k < count; ++k) {
      Column made = {};
      for (size_t t = 0; t < terms; ++t)
        for (size_t v = 0; v < kAcross; ++v)
          made.x[v] += all(matrix[t * results + r]) * x[t * count + k].x[v];
      out[r * count + k] = made;
    }
}

// sums[r, c] += <a[r], b[c]>, lanes apart, for kHigh rows a and C rows b of `count` columns each.
template <size_t C>
inline void some_outer(const Column* a, const Column* b, size_t count, float* to, size_t columns) {
  Vector made[kHigh][C] = {};
  for (size_t k = 0; k < count; ++k)
    for (size_t v = 0; v < kAcross; ++v) {
      Vector right[C];
      for (size_t c = 0; c < C; ++c) right[c] = b[c * count + k].x[v];
      for (size_t r = 0; r < kHigh; ++r)
        for (size_t c = 0; c < C; ++c) made[r][c] += a[r * count + k].x[v] * right[c];
    }
  for (size_t r = 0; r < kHigh; ++r)
    for (size_t c = 0; c < C; ++c) {
      float* const at = to + (r * columns + c) * kLanes;
      store(at, load(at) + made[r][c]);
    }
}

// All of them; there are 4 * something rows.
void outer(const Column* a, size_t rows, const Column* b, size_t columns, size_t count, float* to) {
  for (size_t r = 0; r < rows; r += kHigh) {
    const Column* const left = a + r * count;
    size_t c = 0;
    for (; c + 4 <= columns; c += 4)
      some_outer<4>(left, b + c * count, count, to + (r * columns + c) * kLanes, columns);
    for (; c < columns; ++c)
      some_outer<1>(left, b + c * count, count, to + (r * columns + c) * kLanes, columns);
  }
}

// ---- a few samples ----------------------------------------------------------------------------

// What a few samples make: x [dim, count], parts [4, heads, width, count], shares
// [heads, count, count], out [heads, width, count], and back the gradients of all of them.
struct Work {
  const Attend& of;
  const size_t count, made;
  Column *x, *parts, *shares, *out, *of_x, *of_parts, *of_shares;

  Work(const Attend& given, float* room)
      : of(given), count(of.x.count), made(of.heads * of.width) {
    Column* at = reinterpret_cast<Column*>(room);
    const auto take = [&at](size_t n) { Column* const begin = at; at += n; return begin; };
    x = take(of.x.dim * count);
    parts = take(4 * made * count);
    shares = take(of.heads * count * count);
    out = take(made * count);
    of_x = take(of.x.dim * count);
    of_parts = take(4 * made * count);
    of_shares = take(count * count);
  }

  static size_t columns(const Attend& of) {
    const size_t count = of.x.count;
    return count * (2 * of.x.dim + 9 * of.heads * of.width + (of.heads + 1) * count);
  }

  Column* query(size_t h) const { return parts + h * of.width * count; }
  Column* key(size_t h) const { return query(of.heads + h); }
  Column* value(size_t h) const { return query(2 * of.heads + h); }
  const Column* same() const { return parts + 3 * made * count; }

  // row [j] = softmax over j of scale * row.
  void weigh(Column* row, Vector scale) const {
    Column highest = row[0], total = {};
    for (size_t j = 1; j < count; ++j)
      for (size_t v = 0; v < kAcross; ++v) highest.x[v] = larger(highest.x[v], row[j].x[v]);
    for (size_t j = 0; j < count; ++j)
      for (size_t v = 0; v < kAcross; ++v) {
        row[j].x[v] = exponential((row[j].x[v] - highest.x[v]) * scale);
        total.x[v] += row[j].x[v];
      }
    for (size_t v = 0; v < kAcross; ++v) total.x[v] = all(1.0f) / total.x[v];
    for (size_t j = 0; j < count; ++j)
      for (size_t v = 0; v < kAcross; ++v) row[j].x[v] *= total.x[v];
  }

  // All up to what relu will be taken of.
  void forward(const float* turned, Vector scale, size_t first, size_t n) const {
    for (size_t i = 0; i < count; ++i)
      to_columns(of.x.x + i * of.x.apart + first * of.x.next, of.x.next, n, of.x.dim, count, x + i);
    multiply(turned, x, of.x.dim, 4 * made, count, parts);
    for (size_t k = 0; k < made * count; ++k) out[k] = same()[k];
    for (size_t h = 0; h < of.heads; ++h)
      for (size_t i = 0; i < count; ++i) {
        Column* const row = shares + (h * count + i) * count;
        sums(query(h) + i, count, {key(h), count, 1}, of.width, count, row, 1);
        weigh(row, scale);
        sums<true>(row, 1, {value(h), 1, count}, count, of.width, out + h * of.width * count + i,
                   count);
      }
  }

  // back [j], of the softmax `row`, becomes that of what it was taken of, times scale.
  void weigh_back(const Column* row, Column* back, Vector scale) const {
    Column sum = {};
    for (size_t j = 0; j < count; ++j) add(sum, row[j], back[j]);
    for (size_t j = 0; j < count; ++j)
      for (size_t v = 0; v < kAcross; ++v)
        back[j].x[v] = (back[j].x[v] - sum.x[v]) * row[j].x[v] * scale;
  }

  // of_parts, of which the last are the gradients of `out`.
  void back(Vector scale) const {
    const size_t head = of.width * count;
    for (size_t h = 0; h < of.heads; ++h) {
      Column* const of_query = of_parts + h * head;
      Column *const of_key = of_query + made * count, *const of_value = of_key + made * count;
      const Column* const grad = of_value + made * count;
      const Column* const share = shares + h * count * count;
      for (size_t i = 0; i < count; ++i) {
        Column* const row = of_shares + i * count;
        sums(grad + i, count, {value(h), count, 1}, of.width, count, row, 1);
        weigh_back(share + i * count, row, scale);
        sums(row, 1, {key(h), 1, count}, count, of.width, of_query + i, count);
      }
      for (size_t j = 0; j < count; ++j) {
        sums(share + j, count, {grad, 1, count}, count, of.width, of_value + j, count);
        sums(of_shares + j, count, {query(h), 1, count}, count, of.width, of_key + j, count);
      }
    }
  }
};

inline Vector scale_of(const Attend& of) {
  return all(1.0f) / root(all(static_cast<float>(of.width)));
}

size_t room(const Attend& of) { return Work::columns(of) * kSide; }

void forward(const Attend& of, const float* turned, size_t first, size_t n, float* given,
             float* out) {
  const Work work(of, given);
  work.forward(turned, scale_of(of), first, n);
  // What is no number stays so: it is not below 0.
  for (size_t k = 0; k < work.made * work.count; ++k)
    for (size_t v = 0; v < kAcross; ++v) {
      const Vector made = work.out[k].x[v];
      work.out[k].x[v] = (Vector)((Words)made & ~(Words)(made < all(0.0f)));
    }
  for (size_t i = 0; i < work.count; ++i)
    from_columns(work.out + i, work.count, work.count * work.made, n, work.made,
                 out + (first * work.count + i) * work.made);
}

void back(const Attend& of, const float* turned, size_t first, size_t n, const float* grads,
          float* given, float* of_x, float* to) {
  const Work work(of, given);
  const size_t count = work.count, made = work.made;
  work.forward(turned, scale_of(of), first, n);
  Column* const grad = work.of_parts + 3 * made * count;
  for (size_t i = 0; i < count; ++i)
    to_columns(grads + (first * count + i) * made, count * made, n, made, count, grad + i);
  for (size_t k = 0; k < made * count; ++k)
    for (size_t v = 0; v < kAcross; ++v) {
      const Words left_out = (Words)(work.out[k].x[v] <= all(0.0f));
      grad[k].x[v] = (Vector)((Words)grad[k].x[v] & ~left_out);
    }
  work.back(scale_of(of));
  multiply(of.weight, work.of_parts, 4 * made, of.x.dim, count, work.of_x);
  for (size_t i = 0; i < count; ++i)
    from_columns(work.of_x + i, count, of.x.next, n, of.x.dim,
                 of_x + i * of.x.apart + first * of.x.next);
  outer(work.of_parts, 4 * made, work.x, of.x.dim, count, to);
}

}  // namespace

extern const AttendKernels attend_table;
const AttendKernels attend_table = {kSide, kLanes, room, forward, back};

}  // namespace SHOAL_ISA
}  // namespace shoal
