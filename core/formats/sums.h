// Sums as matrix units add them up. A step takes up to `fused` exact products and the sum so far:
//
//   largest   Significands are aligned to the largest exponent among them, cut towards 0 below
//             `fraction` bits, and added exactly. An exponent is the sum of the operands'
//             exponents, so that a product's significand is below 4; that of a 0 is -126. NVIDIA's
//             tensor cores: probed by Li et al. (arXiv 2511.10909, with the simulator MMA-Sim) and
//             by Fasi, Higham, Mikaitis and Pranesh (2021).
//   apart     The same for the products alone, to 24 bits; then their sum, to 31 bits, and the sum
//             so far, to 24, are floored below the larger of both exponents, and added. CDNA 3: the
//             same source.
//   in_order  Fused multiply-adds; of each two products the second comes first. Subnormal operands
//             and results are 0. VDPBF16PS of AVX512-BF16: Intel's manual.
//   scales    The operands are numbers with scales of blocks. 16 products add up exactly; the sum
//             times both scales is aligned as in `largest`, by the sum of the scales' exponents
//             alone. NVIDIA's e2m1 with scales of blocks: MMA-Sim.
//   halves    The even and the odd products are added up from 0, each by fused multiply-adds, then
//             to each other, then to the sum so far. Subnormals are 0. TDPBF16PS of AMX: Intel's
//             manual.
//
// After `largest`, `scales` and `apart` the exact result is rounded to the accumulator's grid. All
// of it is double arithmetic without an error: a product of floats has 48 bits, a cut sum fewer
// than 50. NaN results are one pattern.
//
// With Accumulator::scaled (n), a row of an operand is n numbers, their scale, the next n numbers,
// their scale, and so on; exponents of `largest` have those of both scales added.
#pragma once

#include <halftone/core/formats/number_format.h>

namespace halftone::sums {

/// Returns the exponent that a unit reads from x, at least `least` (-126 for the sum); of 0: -126.
HT_HD constexpr int32_t exponent_of(float x, int32_t least) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  const auto exponent = int32_t(magnitude >> 23) - 127;
  const auto read = int32_t(exponent < least ? least : exponent);
  return magnitude == 0 ? -126 : read;
}
/// Returns 2^exponent, which must be a normal double.
HT_HD constexpr double power(int32_t exponent) {
  return std::bit_cast<double>(uint64_t(exponent + 1023) << 52);
}
/// Round a number of magnitude below 2^51 to a whole number. The additions round to nearest, at
/// whole numbers; what went too far comes back by 1.
HT_HD constexpr double cut(double x) {
  constexpr double whole = 0x1p52;
  const double magnitude = x < 0 ? -x : x, near = (magnitude + whole) - whole;
  const double below = near > magnitude ? near - 1 : near;
  return x < 0 ? -below : below;
}
HT_HD constexpr double floored(double x) {
  constexpr double whole = 0x1.8p52;
  const double near = (x + whole) - whole;
  return near > x ? near - 1 : near;
}
/// Cuts a double to a float, towards 0. Beyond the largest float it is infinite.
HT_HD float cut_to_float(double x) {
  const double normal =
      std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~((uint64_t(1) << 29) - 1));
  const bool small = x < 0x1p-126 && x > -0x1p-126;
  return float(small ? rounded_product(cut(rounded_product(x, 0x1p149)), 0x1p-149) : normal);
}

HT_HD constexpr float one_nan(float x) { return x != x ? std::bit_cast<float>(0x7fffffffu) : x; }

/// Rounds the exact result of a step. floats: whether the grid is f32, which loops know; then the
/// rounding is nearest_even or toward_zero.
template <Rounding rounding, bool floats> HT_HD float rounded(const Grid& grid, double x) {
  if constexpr (floats) {
    return one_nan(rounding == Rounding::nearest_even ? float(x) : cut_to_float(x));
  } else {
    // The last bit is set if anything was cut off, so that ties are decided right.
    const float y = cut_to_float(x);
    const bool inexact = double(y) != x && x == x;
    const uint32_t jammed = std::bit_cast<uint32_t>(y) | uint32_t(inexact);
    return one_nan(round_on<rounding, true>(grid, std::bit_cast<float>(jammed), 0));
  }
}
HT_HD constexpr bool is_f32(const Grid& grid) {
  return grid.drop == 0 && grid.subnormal_drop == 0 && grid.least_field == 1 &&
         grid.max == std::numeric_limits<float>::max();
}
/// Calls function.operator()<floats>() for a grid that is known at run time.
template <Rounding rounding, class Function>
HT_HD constexpr decltype(auto) visit_result(const Grid& grid, Function&& function) {
  if constexpr (rounding == Rounding::nearest_even || rounding == Rounding::toward_zero)
    if (is_f32(grid)) return function.template operator()<true>();
  return function.template operator()<false>();
}

HT_HD constexpr float without_subnormals(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7fffffffu) < 0x800000u ? std::bit_cast<float>(bits & 0x80000000u) : x;
}
HT_HD float multiplied_and_added(float a, float b, float sum) {
#if defined(__CUDA_ARCH__)
  const float y = __fmaf_rn(without_subnormals(a), without_subnormals(b), without_subnormals(sum));
#else
  const float y =
      __builtin_fmaf(without_subnormals(a), without_subnormals(b), without_subnormals(sum));
#endif
  return one_nan(without_subnormals(y));
}

/// Adds both halves of a step to the sum before it.
HT_HD constexpr float with_halves(float sum, float even, float odd) {
  const float both = without_subnormals(rounded_sum(even, odd));
  return one_nan(without_subnormals(rounded_sum(without_subnormals(sum), both)));
}

/// Returns a product as a unit of CDNA 3 holds it: infinite if it is beyond the floats.
HT_HD constexpr double beyond_floats(double product) {
  constexpr auto infinity = double(std::numeric_limits<float>::infinity());
  return product >= 0x1p128 ? infinity : product <= -0x1p128 ? -infinity : product;
}

/// Where a sum is cut: numbers are multiplied by `in`, made whole, and multiplied by `out`.
struct Place {
  double in, out;
};
HT_HD constexpr Place place_of(int32_t exponent, int32_t fraction) {
  return {power(fraction - exponent), power(exponent - fraction)};
}
inline constexpr int32_t apart_products = 24, apart_sum = 31, apart_before = 24;

/// Joins the products of a step, cut and added, to the sum before it. exponent: the largest of the
/// products. plain: the products and the sum before, as doubles add them.
HT_HD double joined_apart(double products, int32_t exponent, float before, double plain) {
  const int32_t own = exponent_of(before, -126), most = own > exponent ? own : exponent;
  const Place a = place_of(most, apart_sum), b = place_of(most, apart_before);
  const double joined = rounded_product(floored(rounded_product(products, a.in)), a.out) +
                        rounded_product(floored(rounded_product(double(before), b.in)), b.out);
  return plain - plain == 0 ? joined : plain;
}

struct Factors {
  float a, b;
};

/// Numbers of an operand: the bits that any significand uses below the leading one, and the
/// magnitudes, as bits, of the smallest but 0 and of the largest.
struct Extent {
  int32_t bits = 0, least = 0x7f800000, most = 0;
  constexpr void add(float x) {
    const auto magnitude = std::bit_cast<int32_t>(x) & 0x7fffffff;
    const int32_t or_infinity = magnitude == 0 ? 0x7f800000 : magnitude;
    bits |= magnitude & 0x7fffff;
    least = or_infinity < least ? or_infinity : least;
    most = magnitude > most ? magnitude : most;
  }
};
/// The exponents of products that fit_floats(), and the largest `fraction` of their unit.
inline constexpr int32_t least_in_floats = -100, most_in_floats = 60, most_fraction_in_floats = 25;

/// Returns whether steps can multiply in f32 and add up in int32, if their operands fit_floats().
/// Rounded up or away from 0, a sum may double in each step, until it is infinite.
constexpr bool adds_in_floats(const Accumulator& unit) {
  const bool apart = unit.align == Align::apart;
  const bool outward = unit.rounding == Rounding::up || unit.rounding == Rounding::down ||
                       unit.rounding == Rounding::max_magnitude;
  return (apart || unit.align == Align::largest) && unit.fused > 0 && unit.scaled == 0 &&
         (apart ? apart_products : unit.fraction) <= most_fraction_in_floats && !outward &&
         unit.grid.max >= 0x1p100;
}
/// Returns whether products of two operands are exact in f32, their sums finite, and neither a 0,
/// which has an exponent as well, nor a subnormal operand decides where numbers are cut.
constexpr bool fit_floats(const Accumulator& unit, const Extent& a, const Extent& b) {
  const auto significand_bits = [](const Extent& x) {
    return x.bits == 0 ? 1 : 24 - std::countr_zero(uint32_t(x.bits));
  };
  const auto exponent = [](int32_t magnitude) { return (magnitude >> 23) - 127; };
  const int32_t least_of_a = exponent(a.least), least_of_b = exponent(b.least);
  const int32_t most_of_a = exponent(a.most), most_of_b = exponent(b.most);
  const int32_t of_zeros = -126 + (most_of_a > most_of_b ? most_of_a : most_of_b);
  return significand_bits(a) + significand_bits(b) <= 24 && most_of_a < 127 && most_of_b < 127 &&
         least_of_a > -127 && least_of_b > -127 && least_of_a >= unit.least_exponent &&
         least_of_b >= unit.least_exponent && least_of_a + least_of_b >= least_in_floats &&
         least_of_a + least_of_b >= of_zeros && most_of_a + most_of_b <= most_in_floats;
}

/// Returns a unit whose steps and chunks include the scales in a row of an operand.
HT_HD constexpr Accumulator counting_scales(Accumulator unit) {
  if (unit.scaled == 0) return unit;
  unit.chunk = unit.chunk / unit.scaled * (unit.scaled + 1);
  unit.fused = unit.fused / unit.scaled * (unit.scaled + 1);
  return unit;
}
/// The products that Align::scales adds up exactly.
inline constexpr int32_t exact_products = 16;
/// The least exponent of scales that are powers of two, e8m0.
inline constexpr int32_t least_of_scales = -127;

/// Returns the sum after a step whose operands have scales. unit: from counting_scales(); count: a
/// multiple of unit.scaled + 1.
template <Rounding rounding, class Term>
HT_HD float scaled_step(const Accumulator& unit, const Grid& grid, int32_t count, float sum,
                        const Term& term) {
  const bool exact = unit.align == Align::scales;
  const int32_t numbers = unit.scaled, least = exact ? unit.least_exponent : least_of_scales;
  int32_t most = exponent_of(sum, -126);
  for (int32_t first = 0; first < count; first += numbers + 1) {
    const Factors scales = term(first + numbers);
    const int32_t of_scales = exponent_of(scales.a, least) + exponent_of(scales.b, least);
    if (exact) most = of_scales > most ? of_scales : most;
    for (int32_t i = first; i < first + numbers && !exact; ++i) {
      const int32_t exponent = exponent_of(term(i).a, unit.least_exponent) +
                               exponent_of(term(i).b, unit.least_exponent) + of_scales;
      most = exponent > most ? exponent : most;
    }
  }
  const Place place = place_of(most, unit.fraction);
  double total = cut(rounded_product(double(sum), place.in));
  for (int32_t first = 0; first < count; first += numbers + 1) {
    const Factors scales = term(first + numbers);
    const double both = rounded_product(double(scales.a), double(scales.b));
    const int32_t together = exact ? exact_products : 1;
    for (int32_t i = first; i < first + numbers; i += together) {
      double products = 0;
      for (int32_t j = i; j < i + together; ++j)
        products += rounded_product(double(term(j).a), double(term(j).b));
      total += cut(rounded_product(rounded_product(products, both), place.in));
    }
  }
  total = rounded_product(total, place.out);
  return visit_result<rounding>(
      grid, [&]<bool floats>() { return rounded<rounding, floats>(grid, total); });
}

/// Returns the sum after one step. term(i): the factors of product i < count.
template <Rounding rounding, class Term>
HT_HD float step(const Accumulator& unit, const Grid& grid, int32_t count, float sum,
                 const Term& term) {
  if (unit.align == Align::in_order) {
    for (int32_t i = 0; i < count; i += 2) {
      if (i + 1 < count) sum = multiplied_and_added(term(i + 1).a, term(i + 1).b, sum);
      sum = multiplied_and_added(term(i).a, term(i).b, sum);
    }
    return sum;
  }
  if (unit.align == Align::halves) {
    float even = 0, odd = 0;
    for (int32_t i = 0; i < count; i += 2) {
      even = multiplied_and_added(term(i).a, term(i).b, even);
      if (i + 1 < count) odd = multiplied_and_added(term(i + 1).a, term(i + 1).b, odd);
    }
    return with_halves(sum, even, odd);
  }
  const bool apart = unit.align == Align::apart;
  int32_t most = apart ? -1000 : exponent_of(sum, -126);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t exponent =
        exponent_of(term(i).a, unit.least_exponent) + exponent_of(term(i).b, unit.least_exponent);
    most = exponent > most ? exponent : most;
  }
  const Place place = place_of(most, apart ? apart_products : unit.fraction);
  double total = apart ? 0 : cut(rounded_product(double(sum), place.in)), plain = double(sum);
  for (int32_t i = 0; i < count; ++i) {
    const double product = rounded_product(double(term(i).a), double(term(i).b));
    plain += product;
    total += cut(rounded_product(apart ? beyond_floats(product) : product, place.in));
  }
  total = rounded_product(total, place.out);
  const double result = apart ? joined_apart(total, most, sum, plain) : total;
  return visit_result<rounding>(
      grid, [&]<bool floats>() { return rounded<rounding, floats>(grid, result); });
}

/// Returns the sum after `count` more products, added in steps or one after the other. `count` is a
/// multiple of unit.fused, unless these are the last products. term(i): Factors. with_scales:
/// unit.scaled is not 0; then unit is from counting_scales(), and scales count as products.
template <Rounding rounding, bool with_scales, class Term>
HT_HD float added(const Accumulator& unit, const Grid& grid, int64_t count, float sum,
                  const Term& term) {
  if (unit.fused == 0 && !with_scales) {
    for (int64_t i = 0; i < count; ++i) {
      const Factors x = term(i);
      sum = round_on<rounding, true>(grid, rounded_sum(sum, rounded_product(x.a, x.b)), 0);
    }
    return sum;
  }
  for (int64_t first = 0; first < count; first += unit.fused) {
    const int64_t left = count - first;
    const auto next = int32_t(left < unit.fused ? left : unit.fused);
    const auto own = [&](int32_t i) { return term(first + i); };
    if constexpr (with_scales) sum = scaled_step<rounding>(unit, grid, next, sum, own);
    else sum = step<rounding>(unit, grid, next, sum, own);
  }
  return sum;
}

}  // namespace halftone::sums
