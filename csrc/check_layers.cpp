// Steps of layers: every value against its formula in double, and threads against one thread.
#include <algorithm>
#include <cmath>

#include "attend.h"
#include "check.h"
#include "dispatch.h"
#include "layers.h"
#include "pair_attention.h"

namespace shoal {
namespace {

bool near(double wanted, float found) { return std::fabs(wanted - found) < 1e-3; }

void check_activation(size_t rows, size_t width, double p) {
  const std::vector<float> x = random_floats(rows * width), bias = random_floats(width);
  const std::vector<float> grad = random_floats(rows * width);
  std::vector<float> mask(rows * width, 1.0f);
  const Dropout drop{random_word(), p, 1};
  if (p > 0) dropout_mask(drop, 5, mask.size(), mask.data());
  std::vector<float> alone;
  for (int threads : {1, 3}) {
    std::vector<float> made = x, back(x.size()), sums(width);
    activate(made.data(), bias.data(), rows, width, p > 0 ? &drop : nullptr, 5, threads);
    activate_back(grad.data(), made.data(), rows, width, back.data(), sums.data(), threads);
    std::vector<double> total(width);
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(made[i] == std::fmax(x[i] + bias[i % width], 0.0f) * mask[i]);
      CHECK(back[i] == (made[i] > 0 ? grad[i] : 0.0f));
      total[i % width] += back[i];
    }
    for (size_t c = 0; c < width; ++c) CHECK(near(total[c], sums[c]));
    if (threads == 1) alone = sums;
    CHECK(alone == sums);
  }
}

void check_bags(size_t n, size_t dim, bool named, bool weighted) {
  const std::vector<int64_t> starts = {0, 0, 3, 4, static_cast<int64_t>(n)};
  const size_t count = starts.size() - 1;
  const std::vector<float> x = random_floats(n * dim), weights = random_floats(n);
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) id = static_cast<int64_t>(random_word() % n);
  const Bags bags{x.data(), starts.data(), named ? ids.data() : nullptr,
                  weighted ? weights.data() : nullptr, count, dim};
  for (int threads : {1, 3}) {
    std::vector<float> out(count * dim);
    sum_bags(bags, out.data(), threads);
    for (size_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (int64_t p = starts[i / dim]; p < starts[i / dim + 1]; ++p) {
        const auto place = static_cast<size_t>(p);
        const size_t row = named ? static_cast<size_t>(ids[place]) : place;
        sum += (weighted ? weights[place] : 1.0) * x[row * dim + i % dim];
      }
      CHECK(near(sum, out[i]));
    }
  }
  const std::vector<float> grads = random_floats(count * dim);
  std::vector<float> back(n * dim), shares(count);
  spread_bags(bags, grads.data(), n, back.data());
  for (size_t k = 0; k < count; ++k)
    for (auto p = static_cast<size_t>(starts[k]); p < static_cast<size_t>(starts[k + 1]); ++p)
      for (size_t c = 0; c < dim; ++c)
        CHECK(back[p * dim + c] == (weighted ? weights[p] : 1.0f) * grads[k * dim + c]);
  if (!named) return;
  share_bags(bags, ids[3], shares.data());
  CHECK(shares[0] == 1.0f && shares[2] == 1.0f);  // of none, and of padding alone
}

void check_dots(size_t n, size_t dim, size_t samples, bool together) {
  const std::vector<float> x = random_floats(n * dim * samples);
  const size_t pairs = n * (n - 1) / 2;
  const Vectors vectors{x.data(), n, dim, samples, together ? dim : samples * dim,
                        together ? n * dim : dim};
  const std::vector<float> grads = random_floats(samples * pairs);
  const auto value = [&](size_t s, size_t i, size_t c) {
    return static_cast<double>(x[i * vectors.apart + s * vectors.next + c]);
  };
  for (int threads : {1, 3}) {
    std::vector<float> out(samples * pairs), back(x.size());
    dots(vectors, out.data(), threads);
    dots_back(vectors, grads.data(), back.data(), threads);
    std::vector<double> wanted(x.size());
    for (size_t s = 0; s < samples; ++s)
      for (size_t i = 1, pair = s * pairs; i < n; ++i)
        for (size_t j = 0; j < i; ++j, ++pair) {
          double dot = 0;
          for (size_t c = 0; c < dim; ++c) {
            dot += value(s, i, c) * value(s, j, c);
            const double grad = grads[pair];
            wanted[i * vectors.apart + s * vectors.next + c] += grad * value(s, j, c);
            wanted[j * vectors.apart + s * vectors.next + c] += grad * value(s, i, c);
          }
          CHECK(near(dot, out[pair]));
        }
    for (size_t i = 0; i < x.size(); ++i) CHECK(near(wanted[i], back[i]));
  }
  std::vector<float> made(samples * dim), total(samples * dim), back(x.size());
  pair_products(vectors, made.data(), total.data());
  pair_products_back(vectors, total.data(), total.data(), back.data());
  for (size_t at = 0; at < samples * dim; ++at) {
    const size_t s = at / dim, c = at % dim;
    double sum = 0, products = 0;
    for (size_t i = 0; i < n; ++i) {
      products += sum * value(s, i, c);
      sum += value(s, i, c);
    }
    CHECK(near(products, made[at]) && near(sum, total[at]));
    for (size_t i = 0; i < n; ++i)
      CHECK(near((sum - value(s, i, c)) * sum, back[i * vectors.apart + s * vectors.next + c]));
  }
}

void check_attention(size_t count, size_t dim, size_t hidden, size_t samples) {
  const std::vector<float> x = random_floats(count * dim * samples);
  const std::vector<float> weight = random_floats(hidden * dim), bias = random_floats(hidden);
  const std::vector<float> query = random_floats(hidden), out = random_floats(dim);
  const PairAttention of{x.data(), weight.data(), bias.data(), query.data(), out.data(),
                         count,    dim,           hidden,      samples};
  const size_t made = of.pairs() * samples;
  const std::vector<float> of_asked = random_floats(made), of_values = random_floats(made);
  std::vector<double> back(x.size()), of_weight(weight.size()), of_bias(hidden), of_query(hidden);
  std::vector<double> of_out(dim), asked(made), values(made);
  for (size_t s = 0; s < samples; ++s)
    for (size_t i = 0, at = s; i < count; ++i)
      for (size_t j = i + 1; j < count; ++j, at += samples) {
        const auto place = [&](size_t k, size_t c) { return (k * dim + c) * samples + s; };
        std::vector<double> p(dim), of_p(dim);
        for (size_t c = 0; c < dim; ++c) {
          p[c] = x[place(i, c)] * x[place(j, c)];
          values[at] += out[c] * p[c];
          of_out[c] += of_values[at] * p[c];
          of_p[c] = of_values[at] * out[c];
        }
        for (size_t o = 0; o < hidden; ++o) {
          double h = bias[o];
          for (size_t c = 0; c < dim; ++c) h += weight[o * dim + c] * p[c];
          if (h <= 0) continue;
          asked[at] += query[o] * h;
          of_query[o] += of_asked[at] * h;
          of_bias[o] += of_asked[at] * query[o];
          for (size_t c = 0; c < dim; ++c) {
            of_weight[o * dim + c] += of_asked[at] * query[o] * p[c];
            of_p[c] += of_asked[at] * query[o] * weight[o * dim + c];
          }
        }
        for (size_t c = 0; c < dim; ++c) {
          back[place(i, c)] += of_p[c] * x[place(j, c)];
          back[place(j, c)] += of_p[c] * x[place(i, c)];
        }
      }
  const auto all_near = [](const std::vector<double>& wanted, const std::vector<float>& found) {
    for (size_t k = 0; k < wanted.size(); ++k) CHECK(near(wanted[k], found[k]));
  };
  for (int threads : {1, 3}) {
    std::vector<float> one(made), two(made), a(x.size()), b(weight.size()), c(hidden), d(hidden);
    std::vector<float> e(dim);
    pair_attention(of, one.data(), two.data(), threads);
    all_near(asked, one);
    all_near(values, two);
    pair_attention_back(of, of_asked.data(), of_values.data(),
                        {a.data(), b.data(), c.data(), d.data(), e.data()}, threads);
    all_near(back, a);
    all_near(of_weight, b);
    all_near(of_bias, c);
    all_near(of_query, d);
    all_near(of_out, e);
  }
}

void check_attend(size_t count, size_t dim, size_t heads, size_t width, size_t samples,
                  bool together) {
  const size_t made = heads * width, rows = 4 * made;
  const std::vector<float> x = random_floats(count * dim * samples);
  const std::vector<float> weight = random_floats(rows * dim);
  const std::vector<float> grads = random_floats(count * made * samples);
  const Vectors vectors{x.data(), count, dim, samples, together ? dim : samples * dim,
                        together ? count * dim : dim};
  const Attend of{vectors, weight.data(), heads, width};
  std::vector<double> out(grads.size()), of_x(x.size()), of_weight(weight.size());
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (size_t s = 0; s < samples; ++s) {
    const auto place = [&](size_t i, size_t c) { return i * vectors.apart + s * vectors.next + c; };
    const auto result = [&](size_t i, size_t r) { return (s * count + i) * made + r; };
    std::vector<double> parts(rows * count), of_parts(rows * count);
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < count; ++i)
        for (size_t c = 0; c < dim; ++c)
          parts[r * count + i] += weight[r * dim + c] * static_cast<double>(x[place(i, c)]);
    for (size_t h = 0; h < heads; ++h) {
      const auto part = [&](size_t p, size_t c, size_t i) {
        return ((p * heads + h) * width + c) * count + i;
      };
      for (size_t i = 0; i < count; ++i) {
        std::vector<double> share(count), of_share(count);
        double total = 0, sum = 0;
        for (size_t j = 0; j < count; ++j) {
          for (size_t c = 0; c < width; ++c) share[j] += parts[part(0, c, i)] * parts[part(1, c, j)];
          total += share[j] = std::exp(scale * share[j]);
        }
        for (double& one : share) one /= total;
        for (size_t c = 0; c < width; ++c) {
          double value = parts[part(3, c, i)];
          for (size_t j = 0; j < count; ++j) value += share[j] * parts[part(2, c, j)];
          out[result(i, h * width + c)] = std::max(value, 0.0);
          const double grad = value > 0 ? grads[result(i, h * width + c)] : 0.0;
          of_parts[part(3, c, i)] = grad;
          for (size_t j = 0; j < count; ++j) {
            of_share[j] += grad * parts[part(2, c, j)];
            of_parts[part(2, c, j)] += grad * share[j];
          }
        }
        for (size_t j = 0; j < count; ++j) sum += share[j] * of_share[j];
        for (size_t j = 0; j < count; ++j)
          for (size_t c = 0; c < width; ++c) {
            const double grad = scale * share[j] * (of_share[j] - sum);
            of_parts[part(0, c, i)] += grad * parts[part(1, c, j)];
            of_parts[part(1, c, j)] += grad * parts[part(0, c, i)];
          }
      }
    }
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < count; ++i)
        for (size_t c = 0; c < dim; ++c) {
          of_x[place(i, c)] += of_parts[r * count + i] * weight[r * dim + c];
          of_weight[r * dim + c] += of_parts[r * count + i] * x[place(i, c)];
        }
  }
  const auto all_near = [](const std::vector<double>& wanted, const std::vector<float>& found) {
    for (size_t k = 0; k < wanted.size(); ++k) CHECK(near(wanted[k], found[k]));
  };
  for (int threads : {1, 3}) {
    std::vector<float> one(out.size()), two(x.size()), three(weight.size());
    attend(of, one.data(), threads);
    all_near(out, one);
    attend_back(of, grads.data(), two.data(), three.data(), threads);
    all_near(of_x, two);
    all_near(of_weight, three);
  }
}

}  // namespace

void check_layers() {
  for (size_t width : {1, 6, 19})
    for (double p : {0.0, 0.3}) check_activation(300, width, p);
  check_activation(3001, 70, 0.3);  // more than one thread's worth
  for (size_t dim : {1, 5, 8, 19, 83})
    for (bool named : {false, true})
      for (bool weighted : {false, true}) check_bags(3000, dim, named, weighted);
  for (bool together : {false, true}) {
    for (size_t samples : {0, 1, 37}) check_dots(4, 5, samples, together);
    check_dots(9, 11, 300, together);
    check_dots(3, 1100, 3, together);  // vectors of more than a stretch
  }
  for (size_t samples : {0, 1, 37, 1100}) check_attention(4, 5, 3, samples);
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    for (bool together : {false, true}) {
      for (size_t samples : {0, 1, 37, 1100}) check_attend(3, 6, 2, 3, samples, together);
      check_attend(7, 10, 1, 8, 50, together);
    }
  }
  use_instruction_set(instruction_sets().front());
}

}  // namespace shoal
