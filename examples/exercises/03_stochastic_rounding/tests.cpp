// Hidden tests of task 3. Probabilities are counted over all 65536 random numbers, so they are
// exact.
#include "grade.h"

#include TASK

namespace {

void check(uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  const uint32_t low = bits >> 16, high = low + 1, r = bits & 0xffff;
  int64_t up = 0;
  grade::input("x = %.9g (bits 0x%08x), some random number", double(x), bits);
  for (uint32_t random = 0; random < 65536; ++random) {
    const uint16_t got = stochastic_bf16(x, uint16_t(random));
    up += got == high;
    if (got == low || (got == high && r != 0)) continue;
    grade::input("x = %.9g (bits 0x%08x), random = %u", double(x), bits, random);
    char text[80];
    std::snprintf(text, sizeof text, r == 0 ? "0x%04x" : "0x%04x or 0x%04x", low, high);
    grade::same_bits(got, low, 4, text);
  }
  grade::input("x = %.9g (bits 0x%08x), all 65536 random numbers", double(x), bits);
  grade::same(up, int64_t(r), "results away from zero");
}

/// One step on weights of 1 whose updates are halfway between two bf16: a random bit per element.
std::vector<uint16_t> halves(uint64_t seed, uint64_t step, std::size_t count) {
  std::vector<uint16_t> weights(count, 0x3f80);
  sgd_step(weights, std::vector<float>(count, 1.0f), 0x1p-9f, seed, step);
  return weights;
}

/// Fails if 64 elements in a row have results that are in `seen`: they used the same random
/// numbers. It compares every 16th of such rows, chosen by their results.
void no_row_twice(std::map<uint64_t, std::string>& seen, uint64_t seed, uint64_t step, int count) {
  const std::vector<uint16_t> results = halves(seed, step, std::size_t(count));
  uint64_t row = 0;
  for (int i = 0; i < count; ++i) {
    row = row << 1 | (results[std::size_t(i)] == 0x3f7f);
    if (i < 63 || row % 16 != 0) continue;
    char here[80];
    std::snprintf(here, sizeof here, "elements %d to %d in step %lld with seed %d", i - 63, i,
                  static_cast<long long>(step), int(seed));
    const auto [at, is_new] = seen.emplace(row, here);
    grade::input("%d weights of 1, gradients 1, lr = 2^-9: %s, and %s", count, at->second.c_str(),
                 here);
    grade::holds(is_new, "other results, from other random numbers", "the same 64 results");
  }
}

}  // namespace

void grade::tests() {
  group("the example of task.h", "stochastic",
        "1 + 2^-9 is a quarter of the way up, so it must go up in a quarter of all cases.",
        [] { check(0x3f804000); });
  group("exactly r of 65536 random numbers go away from zero", "stochastic",
        "A probability that is off by 2^-16 adds up over thousands of small updates.", [] {
          for (const uint32_t r : {0u, 1u, 2u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu})
            for (const uint32_t upper : {0x3f80u, 0xc049u}) check(upper << 16 | r);
        });
  group("zero, subnormal numbers and the largest", "stochastic",
        "Subnormal numbers are on average right as well; that is how a tiny update survives.", [] {
          for (const uint32_t bits :
               {0u, 0x80000000u, 1u, 0x80001234u, 0x7fffffu, 0x7f7f0000u, 0x7f7f4000u})
            check(bits);
        });
  group("infinity and NaN", "range",
        "Random bits that are added to a NaN can make an infinity, or -0, of it.", [] {
          check(0x7f800000), check(0xff800000);
          for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu})
            for (uint32_t random = 0; random < 65536; random += 1285) {
              input("x = NaN (bits 0x%08x), random = %u", bits, random);
              const uint16_t got = stochastic_bf16(std::bit_cast<float>(bits), uint16_t(random));
              if ((got & 0x7fff) <= 0x7f80) same_bits(got, 0x7fc0, 4, "any NaN, such as 0x7fc0");
            }
        });
  group("a run can be repeated", "stochastic",
        "Without it no failure can be looked at twice, and no checkpoint resumes to the bit.", [] {
          const auto after = [](uint64_t seed) { return halves(seed, 0, 64); };
          input("step 0 on 64 weights of 1, gradients 1, lr = 2^-9, twice with seed 7");
          const std::vector<uint16_t> first = after(7);
          same(after(7) == first, true, "the same bits");
          input("the same with the seeds 0 to 9");
          int different = 0;
          for (uint64_t seed = 0; seed < 10; ++seed) different += after(seed) != first;
          holds(different > 0, "different bits", "the same bits for every seed");
        });
  group("elements have random numbers of their own", "stochastic",
        "If all elements of a tensor go the same way in a step, their errors add up in every sum "
        "over the tensor and do not average out.",
        [] {
          std::vector<int> equal(9);
          for (uint64_t step = 0; step < 20; ++step) {
            input("step %d on 1000 weights of 1, gradients 1, lr = 2^-9", int(step));
            const std::vector<uint16_t> weights = halves(3, step, 1000);
            const auto moved = std::count(weights.begin(), weights.end(), 0x3f7f);
            holds(moved > 400 && moved < 600,
                  "400 to 600 weights at 0x3f7f, because 1 - 2^-9 is halfway",
                  std::to_string(moved) + " weights at 0x3f7f");
            for (std::size_t shift = 1; shift < equal.size(); ++shift)
              for (std::size_t i = shift; i < 1000; ++i)
                equal[shift] += weights[i] == weights[i - shift];
          }
          for (std::size_t shift = 1; shift < equal.size(); ++shift) {
            input("20 steps on 1000 weights of 1, gradients 1, lr = 2^-9; elements i and i + %d",
                  int(shift));
            const int share = equal[shift] / 200;  // of 20 * 1000
            holds(share > 45 && share < 55, "the same result in 46 to 54 % of all cases",
                  "the same result in " + std::to_string(share) + " %");
          }
        });
  group("steps have random numbers of their own", "stochastic",
        "With one random number for every step, an element that is rounded down once is always "
        "rounded down. The mean over elements hides it.",
        [] {
          int longest = 0;
          std::vector<int> moves(200), run(200), last(200, -1);
          for (uint64_t step = 0; step < 400; ++step) {
            const std::vector<uint16_t> weights = halves(5, step, 200);
            for (std::size_t i = 0; i < 200; ++i) {
              const int down = weights[i] == 0x3f7f;
              moves[i] += down, run[i] = down == last[i] ? run[i] + 1 : 1, last[i] = down;
              longest = std::max(longest, run[i]);
            }
          }
          for (std::size_t i = 0; i < 200; ++i) {
            input(
                "400 steps on a weight of 1 that is set back after each; gradient 1, lr = 2^-9; "
                "element %d",
                int(i));
            holds(moves[i] > 140 && moves[i] < 260, "down in 140 to 260 of 400 steps",
                  "down in " + std::to_string(moves[i]) + " of 400 steps");
          }
          input("the same, all 200 elements");
          holds(longest < 60, "never 60 steps in a row in the same direction",
                std::to_string(longest) + " in a row");
        });
  group("no two elements share random numbers", "stochastic",
        "A counter of step + i gives an element the number of its neighbor, and a seed of "
        "seed ^ step gives a run the numbers of another run. Then errors do not average out.",
        [] {
          std::map<uint64_t, std::string> seen;
          for (const uint64_t seed : {13, 14, 15})
            for (const uint64_t step : {0, 1, 2, 3, 4, 5, 6, 7})
              no_row_twice(seen, seed, step, 200);
          for (int bit = 6; bit < 32; ++bit) no_row_twice(seen, 13, uint64_t(1) << bit, 200);
          for (const uint64_t step : {100, 200, 1000, 10000, 100000, 1000000})
            no_row_twice(seen, 13, step, 200);
          seen.clear();
          for (const uint64_t step : {0, 1, 2}) no_row_twice(seen, 13, step, 100000);
        });
  group("the update is f32", "stochastic",
        "An update that is rounded to bf16 first is biased before the stochastic rounding.", [] {
          Random random{17};
          for (int i = 0; i < 2000; ++i) {
            const uint16_t from = uint16_t(random.word() & 0x83ff | 0x3c00),
                           to = uint16_t(random.word() & 0x83ff | 0x3c00);
            std::vector<uint16_t> weights{from};
            const float w = numbers::from_bf16(from), target = numbers::from_bf16(to);
            input("a step from %.9g with gradient %.9g and lr 0.5, to %.9g, which is a bf16",
                  double(w), double(2 * (w - target)), double(target));
            sgd_step(weights, {2 * (w - target)}, 0.5f, 19, uint64_t(i));
            same_bits(weights[0], to, 4, "the weight");
          }
        });
  group("weight decay that nearest rounding loses", "stochastic",
        "1 - 1e-4 rounds to 1 in bf16: with nearest rounding the weight never moves.", [] {
          std::vector<uint16_t> weights(256, 0x3f80);
          std::vector<float> gradients(256);
          input("2000 steps of w -= 1e-4 w from 1; the mean of 256 weights");
          for (uint64_t step = 0; step < 2000; ++step) {
            std::transform(weights.begin(), weights.end(), gradients.begin(), numbers::from_bf16);
            sgd_step(weights, gradients, 1e-4f, 11, step);
          }
          double sum = 0;
          for (const uint16_t w : weights) sum += numbers::from_bf16(w);
          near(sum / 256, std::exp(2000 * std::log1p(-1e-4)), 0.005, "mean");
        });
}
