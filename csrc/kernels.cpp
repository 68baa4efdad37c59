// Compiled once per instruction set with SHOAL_ISA naming it. No fused multiply-add anywhere
// (-ffp-contract=off) and no reordered sums, so every build gives the same bits.
#include "kernels.h"

#include <cmath>
#include <cstring>

#include "memory.h"

#ifndef SHOAL_ISA
#define SHOAL_ISA baseline
#endif
#define SHOAL_TEXT_(x) #x
#define SHOAL_TEXT(x) SHOAL_TEXT_(x)

namespace shoal {
namespace SHOAL_ISA {
namespace {

constexpr int kLanes = 16;
constexpr size_t kBurst = 32;       // records looked up in the TLB together; see prefetch_all
constexpr size_t kMostLines = 12;   // per record; the hardware fetches the rest of a long one
constexpr size_t kGradsAhead = 12;  // gradients likewise

float sum_of_squares(const float* x, int dim) {
  float lanes[kLanes] = {};
  int c = 0;
  for (; c + kLanes <= dim; c += kLanes)
    for (int k = 0; k < kLanes; ++k) lanes[k] += x[c + k] * x[c + k];
  for (; c < dim; ++c) lanes[c % kLanes] += x[c] * x[c];
  float total = 0;
  for (float lane : lanes) total += lane;
  return total;
}

// One row's optimizer step; the same expressions, in the same order, as in shoal/optimizers/
// (sgd.py, adagrad.py, adam.py, rmsprop.py, ftrl.py).
template <Optimizer K>
inline void step_row(float* __restrict w, float* __restrict s, float* __restrict second,
                     const float* __restrict g, int dim, const Apply& a) {
  const float size = a.now.size, eps = a.now.eps;
  const Hyper& h = a.hyper;
  if constexpr (K == Optimizer::sgd) {
    for (int c = 0; c < dim; ++c) w[c] -= g[c] * size;
  } else if constexpr (K == Optimizer::momentum) {
    for (int c = 0; c < dim; ++c) {
      s[c] = s[c] * h.momentum + g[c];
      w[c] -= s[c] * size;
    }
  } else if constexpr (K == Optimizer::adagrad) {
    for (int c = 0; c < dim; ++c) {
      s[c] += g[c] * g[c];
      w[c] -= size * g[c] / (std::sqrt(s[c]) + eps);
    }
  } else if constexpr (K == Optimizer::rowwise_adagrad) {
    s[0] += sum_of_squares(g, dim) / static_cast<float>(dim);
    const float factor = size / (std::sqrt(s[0]) + eps);
    for (int c = 0; c < dim; ++c) w[c] -= g[c] * factor;
  } else if constexpr (K == Optimizer::adam || K == Optimizer::adamw) {
    float* __restrict first = s;
    const float rest1 = h.rest1, rest2 = h.rest2, keep = a.now.keep;
    for (int c = 0; c < dim; ++c) {
      const float m = first[c] + (g[c] - first[c]) * rest1;
      const float v = second[c] + (g[c] * g[c] - second[c]) * rest2;
      first[c] = m;
      second[c] = v;
      w[c] = w[c] * keep - size * m / (std::sqrt(v) + eps);
    }
  } else if constexpr (K == Optimizer::rmsprop) {
    const float rest = h.rest_alpha;
    for (int c = 0; c < dim; ++c) {
      s[c] += (g[c] * g[c] - s[c]) * rest;
      w[c] -= size * g[c] / (std::sqrt(s[c]) + eps);
    }
  } else if constexpr (K == Optimizer::ftrl) {
    float* __restrict total = s;
    float* __restrict linear = second;
    for (int c = 0; c < dim; ++c) {
      const float before = std::sqrt(total[c]);
      total[c] += g[c] * g[c];
      const float after = std::sqrt(total[c]);
      linear[c] += g[c] - (after - before) / a.now.lr * w[c];
      const float weight = (h.beta + after) / a.now.lr + h.l2;
      const float over = std::fabs(linear[c]) - h.l1;
      const float shrunk = std::copysign(over > 0 ? over : 0.0f, linear[c]);
      if (weight > 0) w[c] = -shrunk / weight;
    }
  }
}

// A vector register of this instruction set.
#if defined(__AVX512F__)
constexpr size_t kRegister = 64;
#elif defined(__AVX2__)
constexpr size_t kRegister = 32;
#else
constexpr size_t kRegister = 16;
#endif
constexpr size_t kWords = kRegister / 4;

typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef float Wide __attribute__((vector_size(kRegister), aligned(4)));

inline const float* gradient_of(const Apply& a, uint32_t i, int dim) {
  return a.grads + static_cast<size_t>(i) * static_cast<size_t>(dim);
}

// V registers of columns: they stay there over all occurrences.
template <int V, bool weighted>
void sum_block(const Apply& a, uint32_t begin, uint32_t end, int dim, int column, float* out) {
  const uint32_t last = a.starts[a.count];
  Wide sum[V] = {};
  for (uint32_t k = begin; k < end; ++k) {
    if (k + kGradsAhead < last) {
      const auto* coming =
          reinterpret_cast<const char*>(gradient_of(a, a.order[k + kGradsAhead], dim) + column);
      for (size_t b = 0; b < sizeof sum; b += 64) prefetch_read(coming + b);
    }
    const Wide* from = reinterpret_cast<const Wide*>(gradient_of(a, a.order[k], dim) + column);
    for (int v = 0; v < V; ++v) sum[v] += weighted ? a.weights[k] * from[v] : from[v];
  }
  std::memcpy(out + column, sum, sizeof sum);
}

template <bool weighted>
void sum_columns(const Apply& a, uint32_t begin, uint32_t end, int dim, float* out) {
  constexpr int words = static_cast<int>(kWords);
  int c = 0;
  for (; c + 8 * words <= dim; c += 8 * words) sum_block<8, weighted>(a, begin, end, dim, c, out);
  for (; c + 4 * words <= dim; c += 4 * words) sum_block<4, weighted>(a, begin, end, dim, c, out);
  for (; c + words <= dim; c += words) sum_block<1, weighted>(a, begin, end, dim, c, out);
  for (int left = c; left < dim; ++left) out[left] = 0.0f;
  for (uint32_t k = begin; c < dim && k < end; ++k) {
    const float* __restrict g = gradient_of(a, a.order[k], dim);
    for (int left = c; left < dim; ++left) out[left] += weighted ? a.weights[k] * g[left] : g[left];
  }
}

// The sum of a row's gradients in order of arrival: [dim], in place where there is only one.
inline const float* sum_gradients(const Apply& a, size_t u, int dim, float* buffer) {
  const uint32_t begin = a.starts[u], end = a.starts[u + 1];
  if (a.weights != nullptr) {
    sum_columns<true>(a, begin, end, dim, buffer);
    return buffer;
  }
  if (end - begin == 1) return gradient_of(a, a.order[begin], dim);
  sum_columns<false>(a, begin, end, dim, buffer);
  return buffer;
}

// out = g, or out += g; sixteen columns at a time, then what is left.
template <bool first>
inline void accumulate(float* out, const float* g, int dim) {
  int c = 0;
  for (; c + 16 <= dim; c += 16) {
    const Four* from = reinterpret_cast<const Four*>(g + c);
    Four* to = reinterpret_cast<Four*>(out + c);
    Four part[4];  // read before anything is written, which the compiler may not reorder itself
    for (int v = 0; v < 4; ++v) part[v] = from[v];
    for (int v = 0; v < 4; ++v) to[v] = first ? part[v] : to[v] + part[v];
  }
  for (; c < dim; ++c) out[c] = first ? g[c] : out[c] + g[c];
}

void scatter(const Scatter& s) {
  const int dim = s.dim;
  const size_t width = static_cast<size_t>(dim);
  uint32_t seen = 0;
  for (size_t k = 0; k < s.occurrences; ++k) {
    const uint32_t u = s.distinct_of[k];
    const float* g = s.grads + s.position[k] * width;
    if (s.weights != nullptr) {
      float* __restrict out = s.sums + u * width;
      const float weight = s.weights[k];
      for (int c = 0; c < dim; ++c) out[c] = (u == seen ? 0.0f : out[c]) + weight * g[c];
      seen += u == seen ? 1 : 0;
    } else if (u == seen) {
      ++seen;
      accumulate<true>(s.sums + u * width, g, dim);
    } else {
      accumulate<false>(s.sums + u * width, g, dim);
    }
  }
}

// Stochastic rounding: 16 bits of noise per value, a pure function of (key, id, column).
inline void store_half(uint16_t* out, const float* w, int dim, uint64_t row_key) {
  constexpr int some = 64;  // values whose noise is made at once, in registers
  for (int first = 0; first < dim; first += some) {
    uint64_t words[some / 4];
    for (int k = 0; k < some / 4; ++k)
      words[k] = mix(row_key + static_cast<uint64_t>(first / 4 + k + 1) * kIncrement);
    uint16_t noise[some];
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low bits of a word come first");
    std::memcpy(noise, words, sizeof noise);
    const int count = dim - first < some ? dim - first : some;
    const float* __restrict from = w + first;
    uint16_t* __restrict to = out + first;
    for (int c = 0; c < count; ++c) to[c] = narrow(from[c], noise[c]);
  }
}

// With `whole` the dimension is a multiple of 16, and loops need no code for what is left over.
// (A dimension known exactly makes the compiler unroll before it vectorises, which is far worse.)
template <Optimizer K, bool whole>
void apply_rows(const Apply& a) {
  const int dim = whole ? a.layout.dim & ~15 : a.layout.dim;
  float* const buffer = a.scratch;
  float* const wide = a.scratch + dim;
  const bool touch_up = a.hyper.clip > 0 || (a.hyper.weight_decay > 0 && K != Optimizer::adamw);
  const size_t lines = (a.layout.stride + 63) / 64 + (a.layout.stride % 64 != 0 ? 1 : 0);
  const size_t fetched = lines < kMostLines ? lines : kMostLines;
  for (size_t u = 0; u < a.count; ++u) {
    const size_t far = u + kAhead + kBurst;
    if (u % kBurst == 0 && far < a.count)
      prefetch_all(a.records + far, a.count - far < kBurst ? a.count - far : kBurst);
    if (u + kAhead < a.count) {
      const char* coming = a.records[u + kAhead];
      for (size_t line = 0; line < fetched; ++line) prefetch_write(coming + 64 * line);
    }
    char* const record = a.records[u];
    if (record == nullptr) continue;  // an id that is not admitted yet
    float* w = reinterpret_cast<float*>(record);
    float* const s = reinterpret_cast<float*>(record + a.layout.state);
    if (a.layout.half) {
      const auto* narrow_values = reinterpret_cast<const uint16_t*>(record);
      for (int c = 0; c < dim; ++c) wide[c] = widen(narrow_values[c]);
      w = wide;
    }
    const float* g = sum_gradients(a, u, dim, buffer);
    if (touch_up) {
      float scale = 1.0f;
      if (a.hyper.clip > 0) {
        const float norm = std::sqrt(sum_of_squares(g, dim));
        if (norm > a.hyper.clip) scale = a.hyper.clip / norm;
      }
      const float decay = K != Optimizer::adamw ? a.hyper.weight_decay : 0.0f;
      for (int c = 0; c < dim; ++c) buffer[c] = g[c] * scale + decay * w[c];
      g = buffer;
    }
    step_row<K>(w, s, s + dim, g, dim, a);
    if (a.layout.half) {
      const uint64_t row_key = mix(static_cast<uint64_t>(a.ids[u]) * kIncrement ^ a.noise_key);
      store_half(reinterpret_cast<uint16_t*>(record), w, dim, row_key);
    }
  }
}

template <Optimizer K>
void apply_of(const Apply& a) {
  a.layout.dim % 16 == 0 ? apply_rows<K, true>(a) : apply_rows<K, false>(a);
}

void apply(const Apply& a) {
  switch (a.hyper.kind) {
    case Optimizer::sgd: return apply_of<Optimizer::sgd>(a);
    case Optimizer::momentum: return apply_of<Optimizer::momentum>(a);
    case Optimizer::adagrad: return apply_of<Optimizer::adagrad>(a);
    case Optimizer::rowwise_adagrad: return apply_of<Optimizer::rowwise_adagrad>(a);
    case Optimizer::adam: return apply_of<Optimizer::adam>(a);
    case Optimizer::adamw: return apply_of<Optimizer::adamw>(a);
    case Optimizer::ftrl: return apply_of<Optimizer::ftrl>(a);
    case Optimizer::rmsprop: return apply_of<Optimizer::rmsprop>(a);
  }
}

// Four values at a time, of which the last may be copied twice: to call memcpy takes as long again.
inline void copy_row(float* to, const float* from, size_t dim) {
  constexpr size_t four = 4 * sizeof(float);
  if (dim < 4) {
    for (size_t c = 0; c < dim; ++c) to[c] = from[c];
    return;
  }
  for (size_t c = 0; c + 4 <= dim; c += 4) std::memcpy(to + c, from + c, four);
  std::memcpy(to + dim - 4, from + dim - 4, four);
}

template <int D>
void gather_of(const Layout& layout, const char* base, const int64_t* ids, size_t n, float* out) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(D > 0 ? D : layout.dim);
  const size_t dim = bytes / sizeof(float);
  constexpr size_t ahead = 16;
  for (size_t i = 0; i < n; ++i) {
    if (i + ahead < n) {
      const char* coming = base + static_cast<size_t>(ids[i + ahead]) * layout.stride;
      for (size_t b = 0; b < bytes; b += 64) prefetch_read(coming + b);
    }
    const char* const from = base + static_cast<size_t>(ids[i]) * layout.stride;
    if constexpr (D > 0) std::memcpy(out + i * dim, from, sizeof(float) * D);
    else copy_row(out + i * dim, reinterpret_cast<const float*>(from), dim);
  }
}

void read_values(const Layout& layout, const char* record, float* out) {
  if (!layout.half) {
    std::memcpy(out, record, sizeof(float) * static_cast<size_t>(layout.dim));
    return;
  }
  const auto* values = reinterpret_cast<const uint16_t*>(record);
  for (int c = 0; c < layout.dim; ++c) out[c] = widen(values[c]);
}

void gather(const Layout& layout, const char* base, const int64_t* ids, size_t n, float* out) {
  if (layout.half) {
    const size_t dim = static_cast<size_t>(layout.dim);
    for (size_t i = 0; i < n; ++i) {
      if (i + 16 < n) prefetch_read(base + static_cast<size_t>(ids[i + 16]) * layout.stride);
      read_values(layout, base + static_cast<size_t>(ids[i]) * layout.stride, out + i * dim);
    }
    return;
  }
  switch (layout.dim) {
    case 1: return gather_of<1>(layout, base, ids, n, out);
    case 16: return gather_of<16>(layout, base, ids, n, out);
    case 32: return gather_of<32>(layout, base, ids, n, out);
    case 64: return gather_of<64>(layout, base, ids, n, out);
    case 128: return gather_of<128>(layout, base, ids, n, out);
    default: return gather_of<0>(layout, base, ids, n, out);
  }
}

typedef uint16_t Halves __attribute__((vector_size(kRegister / 2), aligned(2)));
typedef uint32_t Bits __attribute__((vector_size(kRegister)));

// A register of a record's values, from a column on.
template <bool half>
inline Wide load_values(const char* record, size_t column) {
  if constexpr (half) {
    const auto* from = reinterpret_cast<const uint16_t*>(record) + column;
    return (Wide)(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Bits) << 16);
  } else {
    return *reinterpret_cast<const Wide*>(reinterpret_cast<const float*>(record) + column);
  }
}

template <bool half>
inline float load_value(const char* record, size_t column) {
  if constexpr (half) return widen(reinterpret_cast<const uint16_t*>(record)[column]);
  else return reinterpret_cast<const float*>(record)[column];
}

struct BagRows {
  const char* base;
  size_t stride, bytes;  // of a record, and of its values
  const int64_t* ids;
  const float* weights;
  size_t begin, end, n;

  const char* record(size_t place) const { return base + static_cast<size_t>(ids[place]) * stride; }
};

// V registers of columns of one bag: they stay there over all its rows, added one after the other.
template <int V, bool weighted, bool half>
void sum_bag(const BagRows& bag, size_t column, float* out) {
  constexpr size_t ahead = 16;
  Wide sum[V] = {};
  for (size_t p = bag.begin; p < bag.end; ++p) {
    if (column == 0 && p + ahead < bag.n) {
      const char* coming = bag.record(p + ahead);
      for (size_t b = 0; b < bag.bytes; b += 64) prefetch_read(coming + b);
      prefetch_read(coming + bag.bytes - 1);  // few records begin with a line
    }
    const char* const record = bag.record(p);
    for (int v = 0; v < V; ++v) {
      const Wide values = load_values<half>(record, column + static_cast<size_t>(v) * kWords);
      sum[v] += weighted ? bag.weights[p] * values : values;
    }
  }
  std::memcpy(out + column, sum, sizeof sum);
}

template <bool weighted, bool half>
void sum_rows(const BagRows& bag, size_t dim, float* out) {
  size_t c = 0;
  for (; c + 8 * kWords <= dim; c += 8 * kWords) sum_bag<8, weighted, half>(bag, c, out);
  for (; c + 4 * kWords <= dim; c += 4 * kWords) sum_bag<4, weighted, half>(bag, c, out);
  for (; c + kWords <= dim; c += kWords) sum_bag<1, weighted, half>(bag, c, out);
  for (; c < dim; ++c) {
    float sum = 0;
    for (size_t p = bag.begin; p < bag.end; ++p) {
      const float value = load_value<half>(bag.record(p), c);
      sum += weighted ? bag.weights[p] * value : value;
    }
    out[c] = sum;
  }
}

template <bool weighted, bool half>
void gather_bags_of(const Layout& layout, const char* base, const int64_t* ids, size_t n,
                    const IdBags& bags, size_t first, size_t last, float* out) {
  const size_t dim = static_cast<size_t>(layout.dim);
  const size_t bytes = (half ? sizeof(uint16_t) : sizeof(float)) * dim;
  for (size_t k = first; k < last; ++k) {
    const auto begin = static_cast<size_t>(bags.starts[k]);
    const auto end = static_cast<size_t>(bags.starts[k + 1]);
    sum_rows<weighted, half>({base, layout.stride, bytes, ids, bags.weights, begin, end, n}, dim,
                             out + k * dim);
  }
}

void gather_bags(const Layout& layout, const char* base, const int64_t* ids, size_t n,
                 const IdBags& bags, size_t first, size_t last, float* out) {
  const bool weighted = bags.weights != nullptr;
  const auto call = layout.half ? (weighted ? gather_bags_of<true, true> : gather_bags_of<false, true>)
                                : (weighted ? gather_bags_of<true, false> : gather_bags_of<false, false>);
  call(layout, base, ids, n, bags, first, last, out);
}

template <bool half>
void add_values_of(const char* record, float factor, size_t dim, float* out) {
  size_t c = 0;
  for (; c + kWords <= dim; c += kWords) {
    Wide* to = reinterpret_cast<Wide*>(out + c);  // auto would forget how it is aligned
    *to = *to + factor * load_values<half>(record, c);
  }
  for (; c < dim; ++c) out[c] += factor * load_value<half>(record, c);
}

void add_values(const Layout& layout, const char* record, const float* weight, float* out) {
  const float factor = weight == nullptr ? 1.0f : *weight;  // 1 * x is x
  (layout.half ? add_values_of<true> : add_values_of<false>)(
      record, factor, static_cast<size_t>(layout.dim), out);
}

// By hand: GCC needs three times as long for the loop.
typedef uint32_t Words __attribute__((vector_size(kRegister)));

// The finaliser of lowbias32 (Wellons), with the key between its rounds. Its last shift is left
// out: it does not reach the high bits, and those decide.
inline void mask_some(const Mask& mask, Words words, void* out) {
  words ^= words >> 16;
  words *= 0x7FEB352Du;
  words ^= mask.key;
  words ^= words >> 15;
  words *= 0x846CA68Bu;
  words = (Words)(words >= mask.threshold) & float_bits(mask.scale);
  std::memcpy(out, &words, sizeof words);
}

void write_mask(Mask mask, size_t n, float* out) {
  Words words;
  for (size_t k = 0; k < kWords; ++k) words[k] = mask.start + static_cast<uint32_t>(k) * kMaskStep;
  size_t i = 0;
  for (; i + kWords <= n; i += kWords) {
    mask_some(mask, words, out + i);
    words += static_cast<uint32_t>(kWords) * kMaskStep;
  }
  if (i == n) return;
  float rest[kWords];
  mask_some(mask, words, rest);
  std::memcpy(out + i, rest, (n - i) * sizeof(float));
}

}  // namespace

extern const Kernels table;
const Kernels table = {SHOAL_TEXT(SHOAL_ISA), scatter,     apply,     gather,
                       read_values,           gather_bags, add_values, write_mask};

}  // namespace SHOAL_ISA
}  // namespace shoal
