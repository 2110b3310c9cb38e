// Hidden tests of task 5. Sums of small integers are exact in f64; rounding is that of numbers.h.
#include "grade.h"

#include TASK

namespace {

std::vector<float> random_terms(int64_t count, uint64_t seed, bool positive = false) {
  grade::Random random{seed};
  std::vector<float> terms(static_cast<std::size_t>(count));
  for (float& x : terms) x = numbers::bf16(positive ? random.uniform() : random.spread(-4, 1));
  return terms;
}

double exact(std::span<const float> terms) {
  double sum = 0;
  for (const float x : terms) sum += x;
  return sum;
}

/// The same tree as the task's, from the leaves up: neighbors in a list of (size, sum).
float tree(const std::vector<float>& terms, std::size_t begin, std::size_t count) {
  if (count == 0) return 0;
  if (count == 1) return terms[begin];
  const std::size_t left = count / 2;
  return numbers::bf16(double(tree(terms, begin, left)) + tree(terms, begin + left, count - left));
}

}  // namespace

void grade::tests() {
  group("sum_bf16", "sums",
        "Beyond 256 bf16 has no odd numbers: a count of tokens in bf16 stops there.", [] {
          input("no terms");
          same(sum_bf16({}), 0.0f);
          for (const int64_t n : {1, 2, 3, 100, 256, 257, 1000}) {
            input("%d ones", int(n));
            same(sum_bf16(std::vector<float>(std::size_t(n), 1.0f)),
                 float(std::min<int64_t>(n, 256)));
          }
          for (const int64_t n : {5, 50, 3000}) {
            const std::vector<float> terms = random_terms(n, 7);
            double sum = 0;
            for (const float x : terms) sum = numbers::bf16(sum + x);
            input("%d random terms of both signs, the first %.9g", int(n), double(terms[0]));
            same(sum_bf16(terms), float(sum));
          }
        });
  group("sum_f32", "sums",
        "A sum that is rounded once has half a spacing of error, however long it is.", [] {
          input("no terms");
          same(sum_f32({}), 0.0f);
          for (const int64_t n : {1, 256, 257, 300, 1000, 4099}) {
            input("%d ones", int(n));
            same(sum_f32(std::vector<float>(std::size_t(n), 1.0f)), numbers::bf16(double(n)));
          }
          const std::vector<float> terms{1.0f, 0x1p-9f, 0x1p-9f, 0x1p-9f, -1.0f};
          Random random{9};
          std::vector<float> many(3000);  // partial sums are exact in f32
          for (float& x : many) x = float(random.word() % 256) / 256;
          input("3000 random multiples of 2^-8 in [0, 1), the first %g", double(many[0]));
          same(sum_f32(many), numbers::bf16(exact(many)));
          std::vector<float> cancels(300, 1.0f);
          cancels[0] = 2, cancels.back() = -300;
          input("2, 298 ones, -300");
          same(sum_f32(cancels), 0.0f);
          cancels.back() = -256;
          input("2, 298 ones, -256");
          same(sum_f32(cancels), 44.0f);
          std::vector<float> lost(300, 1.0f);
          lost[0] = 0x1p24f, lost.back() = -0x1p24f;
          input("2^24, 298 ones, -2^24; in f32, 2^24 + 1 rounds to 2^24");
          same(sum_f32(lost), 0.0f);
          input("1, 2^-9, 2^-9, 2^-9, -1");
          same(sum_f32(terms), 3 * 0x1p-9f);
        });
  group("sum_pairwise_bf16", "sums",
        "Pairs keep the partial sums alike in size, so that none is lost. It costs no memory.", [] {
          input("no terms");
          same(sum_pairwise_bf16({}), 0.0f);
          for (const int64_t n : {1, 2, 3, 256, 257, 1000, 4096, 5001}) {
            const std::vector<float> terms = random_terms(n, uint64_t(n));
            input("%d random terms, the first %.9g", int(n), double(terms[0]));
            same(sum_pairwise_bf16(terms), tree(terms, 0, terms.size()));
          }
          input("4096 ones");
          same(sum_pairwise_bf16(std::vector<float>(4096, 1.0f)), 4096.0f);
        });
  group("predicted_sum_bf16", "sums",
        "You can know where a sum stops without running it, and choose the accumulator before.",
        [] {
          for (const float term : {1.0f, 0x1p-10f, 8.0f, 0x1p20f})
            for (const int64_t n : {int64_t(0), int64_t(1), int64_t(100), int64_t(255),
                                    int64_t(256), int64_t(257), int64_t(700)}) {
              input("term = %g, count = %d", double(term), int(n));
              same(predicted_sum_bf16(term, n), sum_bf16(std::vector<float>(std::size_t(n), term)));
            }
          input("term = 1, count = 10^15");
          same(predicted_sum_bf16(1, 1'000'000'000'000'000), 256.0f);
        });
  group("error_bound", "sums",
        "The bound of a bf16 sum, (n - 1) / 256, is above 1 from 257 terms on: use f32.", [] {
          for (const int64_t n : {int64_t(1), int64_t(2), int64_t(3), int64_t(4), int64_t(5),
                                  int64_t(1000), int64_t(1024), int64_t(1025), int64_t(1) << 20,
                                  (int64_t(1) << 20) + 1, (int64_t(1) << 33) + 1}) {
            int levels = 0;
            while ((int64_t(1) << levels) < n) ++levels;
            input("Method::bf16, n = %lld", static_cast<long long>(n));
            near(error_bound(Method::bf16, n), double(n - 1) / 256, 0);
            input("Method::pairwise_bf16, n = %lld", static_cast<long long>(n));
            near(error_bound(Method::pairwise_bf16, n), levels / 256.0, 0);
            input("Method::f32, n = %lld", static_cast<long long>(n));
            near(error_bound(Method::f32, n), double(n - 1) * 0x1p-24 + 0x1p-8, 1e-12);
          }
          for (const int64_t n : {10, 100, 1000}) {
            const std::vector<float> terms = random_terms(n, uint64_t(n) + 9, true);
            input("%d positive terms: is the error of sum_bf16 within the bound?", int(n));
            const double error = std::fabs(sum_bf16(terms) / exact(terms) - 1);
            holds(error <= error_bound(Method::bf16, n),
                  "an error of at most " + shown(error_bound(Method::bf16, n)), shown(error));
          }
        });
}
