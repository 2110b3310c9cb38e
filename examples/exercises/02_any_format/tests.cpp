// Hidden tests of task 2. The oracle lists every number of a format and searches for the nearest.
#include "grade.h"

#include TASK

namespace {

const Format e4m3{4, -6, 448, false}, e2m1{2, 0, 6, false}, e5m2{3, -14, 57344, true},
    e2m3{4, 0, 7.5, false}, e3m2{3, -2, 28, false}, f16{11, -14, 65504, true};

/// All numbers from 0 to max, and the one that would follow. Even positions are even numbers.
std::vector<double> listed(const Format& f) {
  std::vector<double> numbers;
  const int per_binade = 1 << (f.significand_bits - 1);
  for (int i = 0; i < per_binade; ++i)
    numbers.push_back(std::ldexp(i, f.min_exponent - f.significand_bits + 1));
  for (int e = f.min_exponent; numbers.back() <= f.max; ++e)
    for (int i = 0; i < per_binade && numbers.back() <= f.max; ++i)
      numbers.push_back(std::ldexp(per_binade + i, e - f.significand_bits + 1));
  return numbers;
}

float nearest(const Format& f, const std::vector<double>& numbers, float x) {
  if (std::isnan(x)) return x;
  const double size = std::fabs(double(x));
  std::size_t above = std::lower_bound(numbers.begin(), numbers.end(), size) - numbers.begin();
  double y = std::numeric_limits<double>::infinity();
  if (above == 0) y = 0;
  else if (above < numbers.size()) {
    const double up = numbers[above] - size, down = size - numbers[above - 1];
    y = numbers[up < down || (up == down && above % 2 == 0) ? above : above - 1];
  }
  if (y > f.max) y = f.infinity ? std::numeric_limits<double>::infinity() : f.max;
  return float(std::copysign(y, double(x)));
}

void check(const char* name, const Format& f, const std::vector<double>& numbers, float x) {
  for (const float signed_x : {x, -x}) {
    grade::input("round_to(%s, %.9g)   (%a)", name, double(signed_x), double(signed_x));
    grade::same(round_to(f, signed_x), nearest(f, numbers, signed_x));
  }
}

/// Points of the format in [from, to]: its numbers, the middles between them, and neighbors in f32.
void check_range(const char* name, const Format& f, double from, double to, bool middles) {
  const std::vector<double> numbers = listed(f);
  const std::size_t stride = numbers.size() / 2000 + 1;
  for (std::size_t i = 0; i + 1 < numbers.size(); i += stride) {
    const float middle = float((numbers[i] + numbers[i + 1]) / 2);
    if (numbers[i] < from || numbers[i + 1] > to) continue;
    if (middles) check(name, f, numbers, middle);
    else
      for (const double part : {0.0, 0.25, 0.4375, 0.5625, 0.75})
        check(name, f, numbers, float(numbers[i] + part * (numbers[i + 1] - numbers[i])));
  }
}

void check_all(double from, double to, bool middles, bool subnormal) {
  const std::pair<const char*, const Format*> formats[] = {{"e4m3", &e4m3}, {"e2m1", &e2m1},
                                                           {"e5m2", &e5m2}, {"e2m3", &e2m3},
                                                           {"e3m2", &e3m2}, {"f16", &f16}};
  for (const auto& [name, f] : formats) {
    const double least = std::ldexp(1.0, f->min_exponent);
    check_range(name, *f, subnormal ? from : least, subnormal ? least : std::min(to, f->max),
                middles);
  }
}

}  // namespace

void grade::tests() {
  group("ieee_format", "formats", "A wrong largest number or a wrong bias moves the whole range.",
        [] {
          for (int e = 2; e <= 8; ++e)
            for (int m = 1; m <= 23; ++m) {
              input("ieee_format(%d, %d)", e, m);
              const Format f = ieee_format(e, m);
              same(f.significand_bits, m + 1, "significand_bits");
              double bias = 0;  // an exponent field of ones but the first bit
              for (int bit = 0; bit < e - 1; ++bit) bias += 1 << bit;
              same(f.min_exponent, int(1 - bias), "min_exponent");
              double fraction = 0;
              for (int bit = 0; bit <= m; ++bit) fraction += std::ldexp(1.0, -bit);
              near(f.max, std::ldexp(fraction, int(bias)), 0, "max");
              same(f.infinity, true, "infinity");
            }
        });
  group("the examples of task.h", "formats", "They are the rules of round_to in seven numbers.",
        [] {
          const std::vector<double> numbers = listed(e4m3);
          for (const float x : {17.f, 18.f, 19.f, 500.f, 464.f, 0x1p-10f, 0x1.8p-10f})
            check("e4m3", e4m3, numbers, x);
        });
  group("normal numbers go to the nearer neighbor", "formats",
        "The spacing doubles at each power of two. A spacing that is twice too large costs a bit.",
        [] {
          check_all(0, 1e30, false, false);
          check_range("bf16", {8, -126, 0x1.fep127, true}, 0x1p-100, 0x1p100, false);
        });
  group("halfway cases go to the even significand", "rounding",
        "With one fraction bit, a quarter of all sums and products is halfway.", [] {
          check_all(0, 1e30, true, false);
          check_range("bf16", {8, -126, 0x1.fep127, true}, 0x1p-100, 0x1p100, true);
        });
  group("subnormal numbers", "formats",
        "e2m1 has two of its fifteen numbers there. Without them, gradients vanish early.", [] {
          for (const bool middles : {false, true}) check_all(0, 1e30, middles, true);
          check_range("bf16", {8, -126, 0x1.fep127, true}, 0, 0x1p-125, true);
        });
  group("one rounding, not two", "rounding",
        "A number that is rounded to f16 first and to a shorter format afterwards can end on the "
        "wrong side of a middle.",
        [] {
          Random random{3};
          for (const auto& [name, f] : {std::pair{"e4m3", e4m3}, {"e2m1", e2m1}, {"f16", f16}}) {
            const std::vector<double> numbers = listed(f);
            for (int i = 0; i < 3000; ++i) {
              const std::size_t at = random.word() % (numbers.size() - 2);
              const double middle = (numbers[at] + numbers[at + 1]) / 2;
              check(name, f, numbers, float(middle * (1 + (random.uniform() - 0.5) * 0x1p-12)));
            }
          }
        });
  group("beyond the largest number", "range",
        "e4m3 without infinity must saturate; an e5m2 gradient beyond 57344 must become infinite, "
        "so that the scaler sees it. A number just above the largest still rounds down to it.",
        [] {
          for (const auto& [name, f] :
               {std::pair{"e4m3", e4m3}, {"e2m1", e2m1}, {"e5m2", e5m2}, {"f16", f16}}) {
            const std::vector<double> numbers = listed(f);
            const double last = numbers[numbers.size() - 2], next = numbers.back();
            for (const double part : {0.0, 0.1, 0.49, 0.5, 0.51, 1.0, 1000.0})
              check(name, f, numbers, float(last + part * (next - last)));
            check(name, f, numbers, std::numeric_limits<float>::infinity());
          }
        });
  group("f32 itself", "formats",
        "A logarithm in f32 is rounded: just below a power of two it gives the exponent above.",
        [] {
          const Format f = ieee_format(8, 23);
          const auto stays = [&f](float x) {
            input("round_to(ieee_format(8, 23), %.9g)   (%a)", double(x), double(x));
            same(round_to(f, x), x);
          };
          Random random{6};
          for (int i = 0; i < 3000; ++i) stays(random.spread(-149, 127));
          for (int e = -140; e < 128; ++e)
            stays(std::nextafterf(std::ldexp(1.0f, e), 0)), stays(-std::ldexp(1.0f, e));
        });
  group("zero and NaN", "range", "NaN must show, and 1 / -0 is not 1 / 0.", [] {
    for (const Format& f : {e4m3, e5m2}) {
      check("a format", f, listed(f), 0.0f);
      check("a format", f, listed(f), std::numeric_limits<float>::quiet_NaN());
    }
  });
}
