// Rounds numbers to grids: loops around the functions of core/formats/quantizer.h, one per
// rounding. Compiled without fused multiply-adds, because every instruction set must give the same
// bits.
#include <halftone/backends/cpu/simd/block_scales.h>
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/backends/cpu/simd/philox.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/sums.h>

namespace halftone::simd::HALFTONE_ISA {

static uint32_t largest_magnitude(const float* x, int64_t n) { return largest_of(x, n); }

static double finite_squares(const float* x, int64_t n, int64_t& finite) {
  int64_t numbers = 0;
  for (int64_t i = 0; i < n; ++i) numbers += is_finite_magnitude(x[i]) ? 1 : 0;
  finite = numbers;
  return summed_by_lanes(n, [x](int64_t i) { return finite_square(x[i]); });
}

static void clip(const float* x, float bound, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = clipped(x[i], bound);
}

/// words: one per element, if the rounding is stochastic.
template <Rounding rounding, bool wide>
[[gnu::always_inline]] static inline void quantize_piece(const Grid on, const Scale by,
                                                         RandomBits bits, const uint32_t* words,
                                                         const float* x, float* y, int64_t n) {
  const Grid grid = on;  // a copy that writes to y cannot change
  const Scale scale = by;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    y[i] = quantize_scaled<rounding, wide>(grid, scale, x[i], x[i] * scale.in,
                                           rounding == Rounding::stochastic ? bits(words[i]) : 0);
}

/// Quantizes whole vectors of finite numbers to nearest, and returns how many numbers that were.
template <bool saturates>
static int64_t nearest_run(const NearestOnGrid& nearest, const Scale& by, const float* x, float* y,
                           int64_t n) {
  constexpr int64_t piece = 64 * lanes;
  const Vector in = by.in - Vector{}, out = by.out - Vector{}, tail = by.tail - Vector{};
  int64_t i = 0;
  while (i + lanes <= n) {
    const int64_t count = n - i < piece ? (n - i) / lanes * lanes : piece;
    if (largest_of(x + i, count) >= 0x7f800000u) return i;
    for (const int64_t end = i + count; i < end; i += lanes)
      store(y + i, nearest.operator()<saturates>(load(x + i) * in) * out * tail);
  }
  return i;
}

template <Rounding rounding, bool wide>
static void quantize_run(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                         uint64_t first, const float* x, float* y, int64_t n) {
  const RandomBits bits = numbers.random_bits;
  const bool divides = halftone::divides(numbers) && scale.in != 1;
  if constexpr (rounding == Rounding::nearest_even && !wide)
    if (const NearestOnGrid nearest(numbers.grid); nearest.serves() && !divides) {
      const int64_t done = nearest.saturates() ? nearest_run<true>(nearest, scale, x, y, n)
                                               : nearest_run<false>(nearest, scale, x, y, n);
      first += uint64_t(done), x += done, y += done, n -= done;
    }
  if (rounding != Rounding::stochastic && !divides)
    return quantize_piece<rounding, wide>(numbers.grid, scale, bits, nullptr, x, y, n);
  // A block with a divisor has only finite numbers, so their quotients can replace x. A subnormal
  // divisor, rounded down, makes the largest quotient infinite: then it is the largest number.
  const Scale after{divides ? 1 : scale.in, scale.out, scale.tail};
  uint32_t words[4 * lanes];
  float quotients[4 * lanes];
  for (int64_t i = 0; i < n;) {
    const auto skipped = int64_t((first + uint64_t(i)) % 4);
    const int64_t count = n - i < 4 * lanes - skipped ? n - i : 4 * lanes - skipped;
    if (rounding == Rounding::stochastic)
      random_words(key.seed, key.offset + (first + uint64_t(i)) / 4, words);
    if (divides)
      for (int64_t k = 0; k < count; ++k) {
        constexpr float largest = std::numeric_limits<float>::max();
        const float quotient = x[i + k] / scale.in;
        quotients[k] = quotient > largest ? largest : quotient < -largest ? -largest : quotient;
      }
    quantize_piece<rounding, wide>(numbers.grid, after, bits, words + skipped,
                                   divides ? quotients : x + i, y + i, count);
    i += count;
  }
}

static void quantize(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                     uint64_t first, const float* x, float* y, int64_t n) {
  visit_rounding(numbers.rounding, [&]<Rounding r>() {
    if (numbers.wide) quantize_run<r, true>(numbers, scale, key, first, x, y, n);
    else quantize_run<r, false>(numbers, scale, key, first, x, y, n);
  });
}

/// Quantizes a row of whole blocks of whole vectors, whose numbers are finite, to nearest.
template <ScaleKind kind>
static void nearest_row(const NearestOnGrid& nearest, const BlockScales& scales, int64_t blocks,
                        int64_t columns, const float* x, float* y) {
  for (int64_t b = 0; b < blocks; ++b) {
    const Vector in = scales.in[b] - Vector{}, out = scales.out[b] - Vector{},
                 tail = scales.tail[b] - Vector{};
    for (int64_t i = b * columns; i < (b + 1) * columns; i += lanes) {
      const Vector given = load(x + i), scaled = kind == ScaleKind::f32 ? given / in : given * in;
      const Vector y_b = nearest.operator()<true>(scaled) * out;
      store(y + i, kind == ScaleKind::on_grid ? y_b * tail : y_b);
    }
  }
}

/// Quantizes the blocks of a band to nearest. Returns false, and does nothing, if a number is not
/// finite, or if a block has no whole vectors.
static bool nearest_rows(const QuantizeNumbers& numbers, const BlockScales& scales, int64_t blocks,
                         const BlockBand& band, const float* x, int64_t width, float* y) {
  const NearestOnGrid nearest(numbers.grid);
  if (numbers.columns % lanes != 0 || width % numbers.columns != 0 || !nearest.serves() ||
      !nearest.saturates())
    return false;
  for (int64_t b = 0; b < blocks; ++b)
    if (!is_finite_magnitude(scales.largest[b])) return false;
  visit_scale_kind(numbers.kind, [&]<ScaleKind kind>() {
    for (int64_t i = 0; i < band.rows; ++i)
      nearest_row<kind>(nearest, scales, blocks, numbers.columns, x + i * band.row_step,
                        y + i * band.row_step);
  });
  return true;
}

/// Quantizes one row of at most ColumnScales::most columns; x may be y.
template <Rounding rounding, bool wide>
static void quantize_row(const QuantizeNumbers& numbers, const ColumnScales& scales, RandomKey key,
                         uint64_t first, const float* x, float* y, int64_t n) {
  const Grid grid = numbers.grid;
  const RandomBits bits = numbers.random_bits;
  float scaled[ColumnScales::most];
  uint32_t words[ColumnScales::most + 4 * lanes];
  const auto skipped = int64_t(first % 4);
  if (rounding == Rounding::stochastic)
    for (int64_t i = 0; i < skipped + n; i += 4 * lanes) {
      uint32_t some[4 * lanes];
      random_words(key.seed, key.offset + (first + uint64_t(i)) / 4, some);
      __builtin_memcpy(words + i, some, sizeof some);
    }
  if (numbers.kind == ScaleKind::f32)
    for (int64_t i = 0; i < n; ++i) scaled[i] = x[i] / scales.in[i];
  else
    for (int64_t i = 0; i < n; ++i) scaled[i] = x[i] * scales.in[i];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    y[i] = quantize_scaled<rounding, wide>(
        grid, Scale{1, scales.out[i], scales.tail[i]}, x[i], scaled[i],
        rounding == Rounding::stochastic ? bits(words[skipped + i]) : 0);
}

/// Multiplies the scales of a row's columns, `of_blocks`, by those of its sub-blocks.
static void add_inner(const QuantizeNumbers& numbers, const BlockScales& of_blocks,
                      const ColumnScales& scales, const float* x, int64_t width,
                      ColumnScales& own) {
  float scaled[ColumnScales::most];
  if (divides(numbers))
    for (int64_t i = 0; i < width; ++i) scaled[i] = __builtin_fabsf(x[i] / scales.in[i]);
  else
    for (int64_t i = 0; i < width; ++i) scaled[i] = __builtin_fabsf(x[i] * scales.in[i]);
  for (int64_t left = 0; left < width; left += numbers.columns)
    each_inner(
        numbers, Scale{}, numbers.columns < width - left ? numbers.columns : width - left,
        of_blocks.largest[left / numbers.columns],
        [&](int64_t at, int64_t count) {
          float most = 0;
          for (int64_t i = left + at; i < left + at + count; ++i)
            most = scaled[i] > most ? scaled[i] : most;
          return most;
        },
        [&](const Scale& by, int64_t at, int64_t count) {
          for (int64_t i = left + at; i < left + at + count; ++i)
            own.in[i] = scales.in[i] * by.in, own.out[i] = scales.out[i] * by.out;
        });
  __builtin_memcpy(own.tail, scales.tail, std::size_t(width) * sizeof(float));
}

/// Quantizes columns [column, column + width) of a band whose blocks have at most
/// ColumnScales::most.
template <Rounding rounding, bool wide>
static void quantize_narrow(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                            const BlockBand& band, int64_t column, int64_t width, const float* x,
                            float* y) {
  BlockScales of_blocks;
  const int64_t blocks = (width + numbers.columns - 1) / numbers.columns;
  if (numbers.plain) {
    fill_largest(band, numbers.columns, x + column, width, of_blocks.largest);
    visit_scale_kind(numbers.kind, [&]<ScaleKind kind>() {
      fill_scales<kind>(numbers, amax_tensor, blocks, of_blocks);
    });
  } else {
    constexpr Rounding measured = measured_rounding(rounding);
    fill_measured<measured, wide || measured != Rounding::nearest_even>(
        numbers, amax_tensor, key, band.first + uint64_t(column), band, x + column, width,
        of_blocks);
  }
  const bool inner = numbers.inner_levels > 0;
  if constexpr (rounding == Rounding::nearest_even && !wide)
    if (!inner && nearest_rows(numbers, of_blocks, blocks, band, x + column, width, y + column))
      return;
  ColumnScales scales, own;
  spread(of_blocks, blocks, numbers.columns, scales);
  for (int64_t i = 0; i < band.rows; ++i) {
    const int64_t at = i * band.row_step + column;
    const uint64_t number = band.first + uint64_t(i * band.number_step + column);
    if (inner) add_inner(numbers, of_blocks, scales, x + at, width, own);
    quantize_row<rounding, wide>(numbers, inner ? own : scales, key, number, x + at, y + at, width);
  }
}

/// band: of one block, whose first element is x[0], with the number `first`.
[[gnu::flatten]] static Scale scale_of(const QuantizeNumbers& numbers, uint32_t largest,
                                       float amax_tensor, RandomKey key, uint64_t first,
                                       const BlockBand& band, const float* x, int64_t width) {
  if (numbers.plain) return scale_of_block(numbers, as_magnitude(largest), amax_tensor);
  return block_scale(numbers, as_magnitude(largest), level_of(numbers, amax_tensor),
                     scale_word(key, first), [&](ScaleError error, const auto& term) {
                       return block_total(error, band.rows, width, [&](int64_t i, int64_t j) {
                         return term(x[i * band.row_step + j]);
                       });
                     });
}

/// Quantizes one block of any width.
template <Rounding rounding, bool wide>
static void quantize_block(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                           const BlockBand& band, int64_t column, int64_t width, const float* x,
                           float* y) {
  const uint32_t largest = largest_of_block(band, x + column, width);
  const Scale scale = scale_of(numbers, largest, amax_tensor, key, band.first + uint64_t(column),
                               band, x + column, width);
  for (int64_t i = 0; i < band.rows; ++i) {
    const int64_t at = i * band.row_step + column;
    const uint64_t number = band.first + uint64_t(i * band.number_step + column);
    quantize_run<rounding, wide>(numbers, scale, key, number, x + at, y + at, width);
  }
}

template <Rounding rounding, bool wide>
static void quantize_band(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                          const BlockBand& band, const float* x, float* y) {
  const bool narrow = numbers.columns <= ColumnScales::most;
  const int64_t together =
      narrow ? ColumnScales::most / numbers.columns * numbers.columns : numbers.columns;
  for (int64_t column = 0; column < band.columns; column += together) {
    const int64_t width = together < band.columns - column ? together : band.columns - column;
    if (narrow)
      quantize_narrow<rounding, wide>(numbers, amax_tensor, key, band, column, width, x, y);
    else quantize_block<rounding, wide>(numbers, amax_tensor, key, band, column, width, x, y);
  }
}

static void quantize_blocks(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                            const BlockBand& band, const float* x, float* y) {
  visit_rounding(numbers.rounding, [&]<Rounding r>() {
    if (numbers.wide) quantize_band<r, true>(numbers, amax_tensor, key, band, x, y);
    else quantize_band<r, false>(numbers, amax_tensor, key, band, x, y);
  });
}

// Rotations: sums and differences of lanes that are 1, 2, 4, ... apart, then of whole registers.

using RegisterBits [[gnu::vector_size(register_bytes)]] = uint32_t;

static Register negated_where(Register x, RegisterBits sign_bits) {
  return __builtin_bit_cast(Register, __builtin_bit_cast(RegisterBits, x) ^ sign_bits);
}

/// Lane i becomes x[i] + x[i + half], lane i + half x[i] - x[i + half].
template <int half> static Register butterflies(Register x) {
  using Places [[gnu::vector_size(register_bytes)]] = int32_t;
  Places partner;
  RegisterBits upper;
  for (int i = 0; i < register_lanes; ++i)
    partner[i] = i ^ half, upper[i] = (i & half) != 0 ? 0x80000000u : 0u;
  return shuffled(x, partner) + negated_where(x, upper);
}
template <int half, int end> static Register all_butterflies(Register x) {
  if constexpr (half < end) return all_butterflies<half * 2, end>(butterflies<half>(x));
  else return x;
}

template <int size>
static void rotate_as(const float* x, int64_t n, const uint32_t* flips, bool back, float* y) {
  constexpr int count = size > register_lanes ? size / register_lanes : 1;  // registers of a group
  constexpr int inside = size > register_lanes ? register_lanes : size;
  constexpr int together = count * register_lanes;
  const float inverse_root = float(1 / __builtin_sqrt(double(size)));
  RegisterBits signs[count];
  for (int k = 0; k < together; ++k)
    signs[k / register_lanes][k % register_lanes] = flips[k % size];
  const auto rotate_registers = [&](const float* from, float* to) {
    Register v[count];
    for (int k = 0; k < count; ++k) {
      v[k] = load<Register>(from + k * register_lanes);
      if (!back) v[k] = negated_where(v[k], signs[k]);
      v[k] = all_butterflies<1, inside>(v[k]);
    }
    for (int step = 1; step < count; step *= 2)
      for (int k = 0; k < count; ++k)
        if ((k & step) == 0) {
          const Register a = v[k], b = v[k + step];
          v[k] = a + b, v[k + step] = a - b;
        }
    for (int k = 0; k < count; ++k) {
      v[k] *= inverse_root;
      if (back) v[k] = negated_where(v[k], signs[k]);
      store(to + k * register_lanes, v[k]);
    }
  };
  int64_t i = 0;
  for (; i + together <= n; i += together) rotate_registers(x + i, y + i);
  if (i == n) return;
  float rest[together] = {};  // groups that fill no register
  __builtin_memcpy(rest, x + i, std::size_t(n - i) * sizeof(float));
  rotate_registers(rest, rest);
  __builtin_memcpy(y + i, rest, std::size_t(n - i) * sizeof(float));
}

static void rotate(const float* x, int64_t n, int size, const uint32_t* flips, bool back,
                   float* y) {
  switch (size) {
    case 2: return rotate_as<2>(x, n, flips, back, y);
    case 4: return rotate_as<4>(x, n, flips, back, y);
    case 8: return rotate_as<8>(x, n, flips, back, y);
    case 16: return rotate_as<16>(x, n, flips, back, y);
    case 32: return rotate_as<32>(x, n, flips, back, y);
    case 64: return rotate_as<64>(x, n, flips, back, y);
    default: return rotate_as<128>(x, n, flips, back, y);
  }
}

template <Rounding rounding>
static void accumulate_rounded(const Grid& on, const float* a, int64_t depth, const float* b,
                               int64_t b_step, float* sums, int64_t n) {
  const Grid grid = on;
  for (int64_t i = 0; i < depth; ++i) {
    const float factor = a[i];
    const float* const row = b + i * b_step;
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j)
      sums[j] =
          round_on<rounding, true>(grid, rounded_sum(sums[j], rounded_product(factor, row[j])), 0);
  }
}

// Steps of a matrix unit (core/formats/sums.h), for `width` columns at a time. b: one row for each
// product.

constexpr int64_t sum_width = 64;

/// y[j] = totals[j], rounded to the grid of the sums.
template <Rounding rounding>
static void round_totals(const Grid& on, const double* totals, float* y, int64_t n) {
  const Grid grid = on;
  sums::visit_result<rounding>(grid, [&, grid]<bool floats>() {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) y[j] = sums::rounded<rounding, floats>(grid, totals[j]);
  });
}

/// Adds products to columns, each cut at the place of its column.
template <bool apart>
static void add_cut(const float* a, int32_t count, const float* b, int64_t b_step,
                    const sums::Place* places, double* totals, double* plain, int64_t n) {
  for (int32_t i = 0; i < count; ++i) {
    const auto factor = double(a[i]);
    const float* const row = b + i * b_step;
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const double product = factor * double(row[j]);
      if (apart) plain[j] += product;
      totals[j] += sums::cut((apart ? sums::beyond_floats(product) : product) * places[j].in);
    }
  }
}

template <Rounding rounding, bool apart>
static void aligned_step(const Accumulator& unit, const Grid& grid, const float* a, int32_t count,
                         const float* b, int64_t b_step, float* y, int64_t n) {
  int32_t most[sum_width];
  sums::Place places[sum_width] = {};
  double totals[sum_width], plain[sum_width] = {};
  const int32_t least = unit.least_exponent;
  const int32_t fraction = apart ? sums::apart_products : unit.fraction;
  for (int64_t j = 0; j < n; ++j) most[j] = apart ? -1000 : sums::exponent_of(y[j], -126);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t exponent = sums::exponent_of(a[i], least);
    const float* const row = b + i * b_step;
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const int32_t of_product = exponent + sums::exponent_of(row[j], least);
      most[j] = of_product > most[j] ? of_product : most[j];
    }
  }
  for (int64_t j = 0; j < n; ++j) places[j] = sums::place_of(most[j], fraction);
  for (int64_t j = 0; j < n; ++j) totals[j] = apart ? 0 : sums::cut(double(y[j]) * places[j].in);
  if (apart)
    for (int64_t j = 0; j < n; ++j) plain[j] = double(y[j]);
  add_cut<apart>(a, count, b, b_step, places, totals, plain, n);
  for (int64_t j = 0; j < n; ++j) {
    const double total = totals[j] * places[j].out;
    totals[j] = apart ? sums::joined_apart(total, most[j], y[j], plain[j]) : total;
  }
  round_totals<rounding>(grid, totals, y, n);
}

/// The same for operands with scales: sums::scaled_step() for columns.
template <Rounding rounding>
static void scaled_step(const Accumulator& unit, const Grid& grid, const float* a, int32_t count,
                        const float* b, int64_t b_step, float* y, int64_t n) {
  const bool exact = unit.align == Align::scales;
  const int32_t numbers = unit.scaled, together = exact ? sums::exact_products : 1;
  const int32_t least = exact ? unit.least_exponent : sums::least_of_scales;
  int32_t most[sum_width], of_scales[sum_width];
  sums::Place places[sum_width] = {};
  double totals[sum_width], both[sum_width];
  for (int64_t j = 0; j < n; ++j) most[j] = sums::exponent_of(y[j], -126);
  for (int32_t first = 0; first < count; first += numbers + 1) {
    const int32_t exponent = sums::exponent_of(a[first + numbers], least);
    const float* const scales = b + (first + numbers) * b_step;
    for (int64_t j = 0; j < n; ++j) of_scales[j] = exponent + sums::exponent_of(scales[j], least);
    if (exact)
      for (int64_t j = 0; j < n; ++j) most[j] = of_scales[j] > most[j] ? of_scales[j] : most[j];
    for (int32_t i = first; i < first + numbers && !exact; ++i) {
      const int32_t of_number = sums::exponent_of(a[i], unit.least_exponent);
      const float* const row = b + i * b_step;
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const int32_t of_product =
            of_number + sums::exponent_of(row[j], unit.least_exponent) + of_scales[j];
        most[j] = of_product > most[j] ? of_product : most[j];
      }
    }
  }
  for (int64_t j = 0; j < n; ++j) places[j] = sums::place_of(most[j], unit.fraction);
  for (int64_t j = 0; j < n; ++j) totals[j] = sums::cut(double(y[j]) * places[j].in);
  for (int32_t first = 0; first < count; first += numbers + 1) {
    const auto scale = double(a[first + numbers]);
    const float* const scales = b + (first + numbers) * b_step;
    for (int64_t j = 0; j < n; ++j) both[j] = scale * double(scales[j]);
    for (int32_t i = first; i < first + numbers; i += together) {
      // Few bits each: floats add them up without an error.
      float products[sum_width] = {};
      for (int32_t k = i; k < i + together; ++k) {
        const float* const row = b + k * b_step;
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j)
          products[j] = rounded_sum(products[j], rounded_product(a[k], row[j]));
      }
      for (int64_t j = 0; j < n; ++j)
        totals[j] += sums::cut(double(products[j]) * both[j] * places[j].in);
    }
  }
  for (int64_t j = 0; j < n; ++j) totals[j] *= places[j].out;
  round_totals<rounding>(grid, totals, y, n);
}

/// Adds the products of one row of b to columns.
static void add_products(float a, const float* row, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) y[j] = sums::multiplied_and_added(a, row[j], y[j]);
}

static void in_order_step(const float* a, int32_t count, const float* b, int64_t b_step, float* y,
                          int64_t n) {
  for (int32_t i = 0; i < count; i += 2) {
    if (i + 1 < count) add_products(a[i + 1], b + (i + 1) * b_step, y, n);
    add_products(a[i], b + i * b_step, y, n);
  }
}

static void halves_step(const float* a, int32_t count, const float* b, int64_t b_step, float* y,
                        int64_t n) {
  float half[2][sum_width] = {};
  for (int32_t i = 0; i < count; ++i) add_products(a[i], b + i * b_step, half[i % 2], n);
  for (int64_t j = 0; j < n; ++j) y[j] = sums::with_halves(y[j], half[0][j], half[1][j]);
}

template <Rounding rounding>
static void fused_step(const Accumulator& unit, const Grid& grid, const float* a, int32_t count,
                       const float* b, int64_t b_step, float* y, int64_t n) {
  if (unit.scaled > 0) return scaled_step<rounding>(unit, grid, a, count, b, b_step, y, n);
  switch (unit.align) {
    case Align::scales:
    case Align::largest:
      return aligned_step<rounding, false>(unit, grid, a, count, b, b_step, y, n);
    case Align::apart: return aligned_step<rounding, true>(unit, grid, a, count, b, b_step, y, n);
    case Align::in_order: return in_order_step(a, count, b, b_step, y, n);
    case Align::halves: return halves_step(a, count, b, b_step, y, n);
  }
}

template <Rounding rounding>
static void accumulate_fused(const Accumulator& of, const Grid& on, const float* a, int64_t depth,
                             const float* b, int64_t b_step, float* y, int64_t n) {
  const Accumulator unit = of;
  const Grid grid = on;
  for (int64_t j = 0; j < n; j += sum_width)
    for (int64_t i = 0; i < depth; i += unit.fused) {
      const int64_t left = depth - i, columns = n - j < sum_width ? n - j : sum_width;
      fused_step<rounding>(unit, grid, a + i, int32_t(left < unit.fused ? left : unit.fused),
                           b + i * b_step + j, b_step, y + j, columns);
    }
}

// The same for operands that fit_floats(): four registers of columns. Whole numbers are added up
// in int32, as many products as cannot pass it.

using Whole [[gnu::vector_size(register_bytes)]] = int32_t;
constexpr int float_registers = 4;
constexpr int64_t float_width = float_registers * register_lanes;

/// Returns x, rounded down to a power of two, or 0.
[[gnu::always_inline]] static inline Register power_below(Register x) {
  return Register(Whole(x) & 0x7f800000);
}

/// Adds the products of a step, in units of the place where each column is cut.
[[gnu::always_inline]] static inline void add_whole(const float* a, int32_t count, const float* b,
                                                    int64_t b_step, const Register* in,
                                                    Whole* sums) {
  for (int32_t i = 0; i < count; ++i)
    for (int v = 0; v < float_registers; ++v)
      sums[v] += __builtin_convertvector(
          a[i] * load<Register>(b + i * b_step + v * register_lanes) * in[v], Whole);
}

/// Returns whether a grid has f32's exponents and at most 14 bits: then only its last bit matters
/// in rounding a sum of numbers that fit_floats().
static bool is_short_f32(const Grid& grid) {
  return grid.least_field == 1 && grid.drop >= 10 && grid.plain_zero == 0 && grid.by_code == 0 &&
         grid.no_sign == 0;
}

template <Rounding rounding, bool apart>
static void step_in_floats(const Accumulator& unit, const Grid& on, const float* a, int32_t count,
                           const float* b, int64_t b_step, float* y) {
  const Register least = Register{} + float(0x1p-100);
  static_assert(sums::least_in_floats == -100);
  Register most[float_registers], in[float_registers];
  const int32_t fraction = apart ? sums::apart_products : unit.fraction;
  for (int v = 0; v < float_registers; ++v)
    most[v] = apart ? Register{} : power_below(load<Register>(y + v * register_lanes));
  for (int32_t i = 0; i < count; ++i) {
    const Register power = power_below(Register{} + a[i]);
    for (int v = 0; v < float_registers; ++v) {
      const Register of_product =
          power * power_below(load<Register>(b + i * b_step + v * register_lanes));
      most[v] = of_product > most[v] ? of_product : most[v];
    }
  }
  Whole sums[float_registers];
  for (int v = 0; v < float_registers; ++v) {
    most[v] = most[v] > least ? most[v] : least;
    in[v] = Register(((2 * 127 + fraction) << 23) - Whole(most[v]));
    const Register before = load<Register>(y + v * register_lanes) * in[v];
    sums[v] = apart ? Whole{} : __builtin_convertvector(before, Whole);
  }
  const Grid grid = on;
  // A sum below 2^24 units is a float.
  if (!apart && is_short_f32(grid) && int64_t(count + 1) << (fraction + 2) <= int64_t(1) << 24) {
    add_whole(a, count, b, b_step, in, sums);
    const auto out = float(sums::power(-fraction));
    for (int v = 0; v < float_registers; ++v)
      store(y + v * register_lanes, __builtin_convertvector(sums[v], Register) * (most[v] * out));
#pragma GCC ivdep
    for (int64_t j = 0; j < float_width; ++j) y[j] = round_on<rounding, false>(grid, y[j], 0);
    return;
  }
  int32_t whole[float_width];
  float place[float_width];
  double totals[float_width] = {};
  const auto flush = [&] {
    for (int v = 0; v < float_registers; ++v)
      store(whole + v * register_lanes, sums[v]), sums[v] = Whole{};
    for (int64_t j = 0; j < float_width; ++j) totals[j] += whole[j];
  };
  flush();
  const int32_t piece = 1 << (31 - 2 - fraction);
  for (int32_t i = 0; i < count; i += piece) {
    add_whole(a + i, count - i < piece ? count - i : piece, b + i * b_step, b_step, in, sums);
    flush();
  }
  for (int v = 0; v < float_registers; ++v) store(place + v * register_lanes, most[v]);
  const double out = sums::power(-fraction);
  for (int64_t j = 0; j < float_width; ++j) {
    const double total = totals[j] * (double(place[j]) * out);
    totals[j] =
        apart ? sums::joined_apart(total, sums::exponent_of(place[j], -126), y[j], 0) : total;
  }
  round_totals<rounding>(grid, totals, y, float_width);
}

template <Rounding rounding, bool apart>
static void accumulate_in_floats(const Accumulator& of, const Grid& on, const float* a,
                                 int64_t depth, const float* b, int64_t b_step, float* y,
                                 int64_t n) {
  const Accumulator unit = of;
  const Grid grid = on;
  int64_t j = 0;
  for (; j + float_width <= n; j += float_width)
    for (int64_t i = 0; i < depth; i += unit.fused) {
      const int64_t left = depth - i;
      step_in_floats<rounding, apart>(unit, grid, a + i,
                                      int32_t(left < unit.fused ? left : unit.fused),
                                      b + i * b_step + j, b_step, y + j);
    }
  accumulate_fused<rounding>(unit, grid, a, depth, b + j, b_step, y + j, n - j);
}

static void extend(const float* x, int64_t n, sums::Extent& extent) {
  sums::Extent all = extent;
  for (int64_t i = 0; i < n; ++i) all.add(x[i]);
  extent = all;
}

static void accumulate_on(const Accumulator& unit, const Grid& grid, bool in_floats, const float* a,
                          int64_t depth, const float* b, int64_t b_step, float* sums, int64_t n) {
  visit_rounding(unit.rounding, [&]<Rounding r>() {
    if (in_floats && unit.align == Align::apart)
      accumulate_in_floats<r, true>(unit, grid, a, depth, b, b_step, sums, n);
    else if (in_floats) accumulate_in_floats<r, false>(unit, grid, a, depth, b, b_step, sums, n);
    else if (unit.fused > 0) accumulate_fused<r>(unit, grid, a, depth, b, b_step, sums, n);
    else accumulate_rounded<r>(grid, a, depth, b, b_step, sums, n);
  });
}

void fill_quantize(Kernels& table) {
  table.largest_magnitude = largest_magnitude;
  table.finite_squares = finite_squares, table.clip = clip;
  table.quantize = quantize, table.quantize_blocks = quantize_blocks;
  table.accumulate_on = accumulate_on, table.extend = extend, table.rotate = rotate;
}

}  // namespace halftone::simd::HALFTONE_ISA
