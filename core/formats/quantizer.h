// Quantizers: a grid, a rounding and a scaling, applied to one tensor so that it holds the numbers
// that a short format would. Values stay in their dtype (f32, or a short one that holds the results
// exactly): a quantizer changes values, never dtypes.
//
// All arithmetic is here, once: scales from largest magnitudes, and one element. Every product and
// quotient is of floats, rounded to nearest. None is added to anything except through integers
// (round_by_addition), so compilers cannot differ in what they fuse.
//
//   none            y = on(x)
//   tensor          y = on(x s) (1 / s)     s = max / a, a the largest |x| now or recently:
//                                           TransformerEngine
//   block, e8m0     y = on(x 2^-e) 2^e      e from the block's largest by `rule`: OCP MX, torchao
//   block, f32      y = on(x / d) d         d = the block's largest / max: DeepSeek-V3
//   block, short    y = on(x u) b (1 / g)   b: the block's scale on its own grid, g: the tensor's,
//                                           u = 1 / (b (1 / g)): NVFP4
//   learned         y = on(x / s) s         s: a number for the tensor, or one for each row: LSQ
//
// Sub-blocks multiply the scale of their block by a power of two (InnerScale).
//
// core/formats/block_scale.h has the scales that a block chooses, draws or corrects by its
// elements.
//
// With a scale, finite numbers saturate. Infinity and NaN make the scale of their block (tensor) 1;
// NaN stays, and infinity becomes what the format says.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/dtype.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/random.h>
#include <halftone/core/pending.h>
#include <halftone/core/tensor.h>
#include <halftone/core/words.h>

namespace halftone {

struct OwnQuantizer;

/// Rule for the exponent of a power-of-two scale from a block's largest magnitude a; E is a's
/// exponent, E_max that of the grid's largest number. The four rules of torchao.
enum class ScaleRule : uint8_t {
  floor,  // E - E_max: OCP's; the largest of a block may saturate
  ceil,   // one more unless a is a power of two
  rceil,  // a / max rounded up to a power of two: nothing saturates
  even,   // E of a rounded to the grid's significand - E_max
};
template <>
inline constexpr std::array<std::string_view, 4> words_of<ScaleRule>{"floor", "ceil", "rceil",
                                                                     "even"};

/// The error by which a block chooses among the targets of its scale: the sum of squares, the sum
/// of magnitudes, or the largest magnitude of y - x.
enum class ScaleError : uint8_t { mse, mae, max };
template <>
inline constexpr std::array<std::string_view, 3> words_of<ScaleError>{"mse", "mae", "max"};

/// Scales of sub-blocks inside of a block, `columns` neighbors in a row each: the powers of two 2^0
/// to 2^(2^bits - 1). A sub-block takes the least of them for which its scaled largest magnitude
/// has at most the exponent of the grid's largest number, or the largest of them if there is none.
/// If another level is inside, the grid's largest number counts times the largest scale of that
/// level. MX4 to MX9 use this (arXiv 2302.08007), and HiFloat4 (arXiv 2602.11287).
struct InnerScale {
  int32_t columns = 0;  // 0: no such level
  int32_t bits = 1;     // at most 3
  int32_t most() const { return columns > 0 ? (1 << bits) - 1 : 0; }
  bool operator==(const InnerScale&) const = default;
};

struct Scaling {
  enum class Per : uint8_t { none, tensor, block };
  Per per = Per::none;
  /// --- tensor: s is a parameter that training updates (QuantizeCall::amax); with row_level one
  /// per row. LSQ (Esser et al., arXiv 1902.08153). amp/session.h has its gradient.
  bool learned = false;
  // --- tensor
  bool from_history = false;  // s from the largest magnitudes of earlier steps, else from x itself
  int32_t history = 1024;     // the number of those steps
  bool latest = false;        // uses the last of them, else the largest
  int32_t margin = 0;         // s is 2^margin smaller
  float least = 0;            // the largest magnitude is taken to be at least this
  bool power_of_two = false;  // rounds s down to a power of two
  // --- block: `columns` neighbors in each of `rows` rows; columns run along the last dimension
  int32_t rows = 1, columns = 32;
  NumberFormat scale_format =
      formats::e8m0;  // with one significand bit: powers of two; f32; or a short format
  ScaleRule rule = ScaleRule::floor;
  bool tensor_level = false;  // adds an f32 scale of the whole tensor above short block scales
  bool row_level = false;     // adds one for each row instead, above blocks of one row
  /// the scale of the tensor or row puts the largest scale of a block at this number; 0: at the
  /// format's largest
  float scale_max = 0;
  /// The numbers at which a block's scale may put its largest magnitude; a 0 ends them. None: at
  /// the grid's largest. The block takes the number with the least `error`, the first of equal
  /// ones. The errors are those of rounding to nearest if the quantizer rounds stochastically.
  /// [6, 4] on e2m1: Four Over Six (arXiv 2512.02010), as TransformerEngine.
  static constexpr int32_t most_targets = 8;
  std::array<float, most_targets> targets{};
  ScaleError error = ScaleError::mse;
  /// the rounding of short block scales: nearest_even, up, or stochastic
  Rounding scale_rounding = Rounding::nearest_even;
  /// A block's elements x are rounded to q with a short scale b that is rounded to nearest. Then b
  /// becomes b <x, x> / <x, q>, rounded by scale_rounding. With stochastic rounding and rotations
  /// that draw their signs: MS-EDEN (arXiv 2601.22813, algorithm 1).
  bool corrected = false;
  /// Levels of sub-blocks, the outer one first. A block's scale puts its largest magnitude at the
  /// grid's largest number times the largest scales inside.
  std::array<InnerScale, 2> inner{};

  static Scaling per_tensor() { return {.per = Per::tensor}; }
  /// One scale for each row, of up to whole_row numbers: f32, or e8m0 for powers of two.
  static Scaling per_row(const NumberFormat& format = formats::f32) {
    return per_block(1, whole_row, format);
  }
  static constexpr int32_t whole_row = 1 << 20;
  static Scaling delayed(int32_t steps = 1024) {
    return {.per = Per::tensor, .from_history = true, .history = steps};
  }
  static Scaling per_block(int32_t block_rows, int32_t block_columns,
                           const NumberFormat& format = formats::e8m0) {
    return {
        .per = Per::block, .rows = block_rows, .columns = block_columns, .scale_format = format};
  }
  int32_t target_count() const;
  /// Returns whether the largest magnitude of a block determines its scale, without its elements
  /// and without random numbers.
  bool is_plain() const {
    return target_count() == 0 && scale_rounding == Rounding::nearest_even && !corrected;
  }
  bool operator==(const Scaling&) const = default;
};

/// A bound of magnitudes that follows from the tensor (core/formats/block_scale.h). At most one
/// entry has a value.
struct Clip {
  std::optional<double> rms{};       // a multiple of the root mean square
  std::optional<double> quantile{};  // the share of the numbers that are within the bound
  bool any() const { return rms || quantile; }
  bool operator==(const Clip&) const = default;
};

/// The three stochastic roundings of IEEE P3109 with N random bits R. s: 2^N times the part of a
/// spacing that is cut off. a: away from zero if s + R is at least 2^N; b: with R + 1/2 in place of
/// R; c: with s rounded to a whole number first, ties to even.
enum class StochasticVariant : uint8_t { a, b, c };
template <>
inline constexpr std::array<std::string_view, 3> words_of<StochasticVariant>{"A", "B", "C"};

/// The random numbers of stochastic rounding.
struct StochasticBits {
  int32_t bits =
      32;  // upper bits used from the 32 random ones; at most 24 for the variants b and c
  StochasticVariant variant = StochasticVariant::a;
  bool operator==(const StochasticBits&) const = default;
};

/// The grids among which each block takes the one with the least error, the first of equal ones.
/// With each grid, a block has the scale for this grid's largest number. Errors are summed in f64,
/// row by row; a stochastic rounding is measured to nearest. (Grid Games, arXiv 2605.12327.)
struct GridChoice {
  std::vector<NumberFormat> grids{};  // 2 to 8; none: no choice
  ScaleError by = ScaleError::mse;
  bool operator==(const GridChoice&) const = default;
};

struct Quantizer {
  NumberFormat grid{};
  Rounding rounding = Rounding::nearest_even;
  StochasticBits random{};
  /// without a value: Saturation::none, or with a scale Saturation::propagate
  std::optional<Saturation> saturation{};
  Scaling scaling{};
  /// 2, 4, ... 128: the number of neighbors along columns that are rotated first, and back: y = H^T
  /// Q(H x). H is the orthogonal Hadamard matrix times signs: neighbor j is negated if bit j of
  /// hadamard_signs is set (core/formats/block_scale.h: from neighbor 64 on). 0: no rotation.
  int32_t hadamard = 0;
  uint64_t hadamard_signs = 0;
  /// The signs are drawn with the call's key instead.
  bool draws_signs = false;
  /// 2 to 256 ascending numbers that replace `grid`, whose max must be their largest magnitude.
  /// Numbers beyond them saturate. Ties of nearest_even go to the number whose place is even.
  std::vector<float> table{};
  /// A choice among grids for each block; the first of them is `grid`.
  GridChoice choice{};
  /// Finite numbers beyond the bound become the bound, with their sign: after the rotation, before
  /// the scale is computed.
  Clip clip{};
  /// Above 0: each number becomes the one of its two neighbors on the grid that is nearer to
  /// QuantizeCall::average, an exponential average of x over the steps. In each step the average
  /// becomes share * average + (1 - share) * x, with this number as the share. Ties go away from
  /// zero. The scale is computed from x. Q-EMA of TetraJet (arXiv 2502.20853).
  double average = 0;
  /// A function of the program rounds instead of grid, rounding, scaling and table, which must be
  /// the defaults. The host computes it (OwnQuantizer, below).
  std::shared_ptr<const OwnQuantizer> own{};

  /// Returns a quantizer for a table: sorted, with `grid` filled in.
  static Quantizer of_table(std::vector<float> numbers);

  /// Returns whether a tensor of that dtype holds every result for an x of that dtype.
  bool exact_in(DType dtype) const;
  /// Returns the bits per element in a native encoding, scales of blocks included.
  double bits_per_element() const;
  /// Returns whether results depend on the call's key.
  bool draws() const;
  /// Returns whether the kernel needs the largest magnitude of x first.
  bool needs_amax() const {
    return (scaling.per == Scaling::Per::tensor && !scaling.from_history) ||
           (scaling.per == Scaling::Per::block && (scaling.tensor_level || scaling.row_level));
  }
  bool operator==(const Quantizer&) const = default;
};

/// Returns a format's quantizer (nearest even, unscaled), or one of mxfp8 mxfp8-e5m2 mxfp6
/// mxfp6-e3m2 mxfp4 mxint8 nvfp4 fp8_tensor fp8_block; mxfp8 is e4m3, mxfp6 e2m3.
std::optional<Quantizer> quantizer_named(std::string_view name);
std::span<const std::string_view> ready_made_quantizers();
/// Returns one line: "e2m1, blocks of 1x16 with e4m3 scales under one of the tensor, stochastic".
std::string described(const Quantizer& quantizer);
/// Throws UsageError in the name of `op` for fields that are invalid or exclude each other.
void check_quantizer(std::string_view op, const Quantizer& quantizer);

/// Arguments of one call of the kernel. Scalars are f32 on the device, so the host never waits.
struct QuantizeCall {
  const Quantizer& quantizer;
  /// the largest magnitude of x, if quantizer.needs_amax(); with row_level, that of each row. With
  /// a learned scale: the scale; undefined: first_scale() of x
  Tensor amax{};
  Tensor scale{};  // s, if scaling is from history
  /// the average that quantizer.average reads: f32, of x's shape and device; undefined: x itself
  Tensor average{};
  Tensor skip{};  // if it is not 0, y does not change; may be undefined
  /// of a result of numbers on the grid (f8; on the CPU also f32): receives their factors
  /// (F8Operand); with blocks, `whole` comes after them
  Tensor factor{};
  Tensor survey{};  // for quantized(): the row (core/formats/survey.h) to add to; may be undefined
  /// key of stochastic rounding: element row * columns + column uses that word of the key; scales
  /// of blocks and signs of rotations have streams of their own
  RandomKey key{};
  /// While work is replayed: 0 if the key is a generator's; else replay n uses offset + n
  /// key_stride
  uint64_t key_stride = 0;
  /// for surveys: x before its clip, f32 and row-major; undefined without one
  Tensor unclipped{};
};

// --- arithmetic

/// The factors of one element: x is multiplied by `in` (divided by it, for f32 scales of blocks)
/// before rounding, and the number on the grid is multiplied by `out`, then by `tail`, afterwards.
struct Scale {
  float in = 1, out = 1, tail = 1;
};

/// The representation of a block's scale.
enum class ScaleKind : uint8_t { power_of_two, f32, on_grid };

/// Turns 32 random bits into those of a stochastic rounding.
struct RandomBits {
  uint32_t kept = 0xffffffffu;
  uint32_t half = 0;  // the bit below them, for the variants b and c
  uint32_t odd = 0;   // the last of them, for the variant c: ties with an odd R do not go up
  HT_HD constexpr uint32_t operator()(uint32_t random) const {
    const uint32_t r = random & kept;
    return (r | half) - uint32_t((r & odd) != 0);
  }
};

/// The numbers of a quantizer that kernels need. It is passed by value.
struct QuantizeNumbers {
  Grid grid{}, scale_grid{};
  Rounding rounding = Rounding::nearest_even;
  RandomBits random_bits{};
  bool wide = false;
  // scales
  Scaling::Per per = Scaling::Per::none;
  bool from_history = false, power_of_two = false;
  bool tensor_level = false, row_level = false;  // tensor_level: either of the two
  bool given = false;                            // the scale is what amax_above() returns
  ScaleKind kind = ScaleKind::power_of_two;
  ScaleRule rule = ScaleRule::floor;
  float max = 0, inverse_max = 0, scale_max = 0, least = 0, margin = 1;
  int32_t max_exponent = 0, half_unit = 0;
  int32_t inner_levels = 0;  // of sub-blocks
  int32_t rows = 1, columns = 32;
  // scales that are not plain (core/formats/block_scale.h)
  bool plain = true, corrected = false;
  Rounding scale_rounding = Rounding::nearest_even;
  ScaleError error = ScaleError::mse;
  int32_t target_count = 0;
  float targets[Scaling::most_targets]{};
  float base = 0, level_max = 0;  // first target or max; where the tensor's scale puts the largest
  // levels of sub-blocks: the columns of each, its largest exponent, and the binade above which a
  // sub-block takes more than 2^0
  int32_t inner_columns[2]{}, inner_most[2]{}, inner_binade[2]{};
  // a table instead of the grid; it belongs to the quantizer
  const float* table = nullptr;
  int32_t table_count = 0;
};
QuantizeNumbers numbers_of(const Quantizer& quantizer);

/// Returns the bits of |x|; they order as the numbers do, and NaN is above all.
HT_HD constexpr uint32_t magnitude_bits(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}
/// The bits of a NaN as largest magnitude: one pattern, on every device.
inline constexpr uint32_t nan_magnitude = 0x7fc00000u;
HT_HD constexpr bool is_finite_magnitude(float amax) { return magnitude_bits(amax) < 0x7f800000u; }
/// Returns 2^exponent for -127 to 127.
HT_HD constexpr float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(exponent < -126 ? 0x400000u : uint32_t(exponent + 127) << 23);
}

/// Returns s of scaling per tensor from a largest magnitude; 1 if that is 0 or not finite.
HT_HD constexpr float scale_of_tensor(const QuantizeNumbers& n, float amax) {
  constexpr float largest = std::numeric_limits<float>::max(), least = 0x1p-126f;
  const float bounded = amax < n.least ? n.least : amax;
  if (!is_finite_magnitude(bounded) || bounded == 0) return 1;
  float s = n.max / bounded;
  s = s > largest ? largest : s;
  if (n.power_of_two) s = std::bit_cast<float>(std::bit_cast<uint32_t>(s) & 0x7f800000u);
  s *= n.margin;
  return s < least ? least : s;  // 1 / s must not be infinite
}
HT_HD constexpr Scale scale_per_tensor(float s) { return {s, 1 / s, 1}; }

/// Returns the exponent of a power-of-two scale for a block's largest magnitude, which is finite.
HT_HD constexpr int32_t scale_exponent(const QuantizeNumbers& n, float amax) {
  const bool by_quotient = n.rule == ScaleRule::rceil;
  uint32_t bits = magnitude_bits(by_quotient ? amax / n.max : amax);
  // The significand of a subnormal is a whole number: a times 2^149, which a float holds exactly.
  const bool subnormal = bits < 0x800000u;
  bits = detail::choose(subnormal, std::bit_cast<uint32_t>(float(int32_t(bits & 0x7fffffu))), bits);
  bits += n.rule == ScaleRule::even ? uint32_t(n.half_unit) : 0u;
  const int32_t floor = int32_t(bits >> 23) - (subnormal ? 127 + 149 : 127);
  const bool up = (by_quotient || n.rule == ScaleRule::ceil) && (bits & 0x7fffffu) != 0;
  int32_t exponent = floor + int32_t(up) - (by_quotient ? 0 : n.max_exponent);
  exponent = exponent < -127 ? -127 : exponent;
  return exponent > 127 ? 127 : exponent;
}

/// Returns the entry of `amax` for the blocks that begin in `row`: the row's with row_level, else
/// the tensor's. amax: the numbers of QuantizeCall::amax; if null, returns 0.
HT_HD constexpr float amax_above(const QuantizeNumbers& n, const float* amax, int64_t row) {
  return amax ? amax[n.row_level ? row : 0] : 0;
}
/// Returns g, the scale of a tensor or row, above the scales of its blocks.
HT_HD constexpr float tensor_level_of(const QuantizeNumbers& n, float amax_tensor) {
  constexpr float largest = std::numeric_limits<float>::max();
  if (n.given) return amax_tensor;
  if (!n.tensor_level || !is_finite_magnitude(amax_tensor) || amax_tensor == 0) return 1;
  const float g = n.level_max * n.base / amax_tensor;
  return g > largest ? largest : (g == 0 ? 1 : g);
}

/// Returns the scale of a block from its largest magnitude, under g. It selects numbers instead of
/// branching, so that loops over many blocks need no branches. wide: n.scale_grid.is_wide(), for
/// loops that know it.
template <ScaleKind kind, bool wide = true>
HT_HD constexpr Scale scale_of_block(const QuantizeNumbers& n, float amax, float g) {
  constexpr float largest = std::numeric_limits<float>::max();
  const auto where = [](bool usable, float a) { return detail::choose(usable, a, 1.0f); };
  const bool finite = is_finite_magnitude(amax);
  if constexpr (kind == ScaleKind::power_of_two) {
    const int32_t e = scale_exponent(n, amax);
    return {where(finite, power_of_two(-e)), where(finite, power_of_two(e)), 1};
  } else if constexpr (kind == ScaleKind::f32) {
    const float own = where(finite && amax / n.max != 0, amax / n.max);
    const float d = detail::choose(n.given, g, own);
    return {d, d, 1};
  } else {
    const float inverse_g = 1 / g, wanted = amax * (g * n.inverse_max);
    const float b = round_on<Rounding::nearest_even, wide>(
        n.scale_grid, wanted > n.scale_max ? n.scale_max : wanted, 0);
    const float u = 1 / (b * inverse_g);
    return {where(finite, u > largest ? largest : u), where(finite, b), where(finite, inverse_g)};
  }
}
/// Calls function.operator()<kind>() for a kind that is known at run time only.
template <class Function>
HT_HD constexpr decltype(auto) visit_scale_kind(ScaleKind kind, Function&& function) {
  switch (kind) {
    case ScaleKind::power_of_two: break;
    case ScaleKind::f32: return function.template operator()<ScaleKind::f32>();
    case ScaleKind::on_grid: return function.template operator()<ScaleKind::on_grid>();
  }
  return function.template operator()<ScaleKind::power_of_two>();
}
HT_HD constexpr Scale scale_of_block(const QuantizeNumbers& n, float amax, float amax_tensor) {
  const float g = tensor_level_of(n, amax_tensor);
  return visit_scale_kind(n.kind,
                          [&]<ScaleKind kind>() { return scale_of_block<kind>(n, amax, g); });
}

HT_HD constexpr bool divides(const QuantizeNumbers& n) {
  return n.per == Scaling::Per::block && n.kind == ScaleKind::f32;
}

/// Returns the exponent of the scale of a sub-block of a level. amax: its largest magnitude; above:
/// the exponent of the level above it.
HT_HD constexpr int32_t inner_exponent(const QuantizeNumbers& n, const Scale& scale, int level,
                                       int32_t above, float amax) {
  const uint32_t bits = magnitude_bits(divides(n) ? amax / scale.in : amax * scale.in);
  const int32_t more = int32_t(bits >> 23) - 127 - above - n.inner_binade[level];
  const int32_t most = n.inner_most[level];
  return more < 0 ? 0 : (more > most ? most : more);
}
/// Returns the scale of a sub-block: that of its block times 2^exponent.
HT_HD constexpr Scale times_power(const QuantizeNumbers& n, const Scale& scale, int32_t exponent) {
  const float up = power_of_two(exponent), in = divides(n) ? up : power_of_two(-exponent);
  return {scale.in * in, scale.out * up, scale.tail};
}
/// Calls use(scale, first, count) for the sub-blocks in one row of a block, from left to right.
/// width: the row's numbers in the block; whole: the largest magnitude of the block;
/// amax(first, count): that of `count` numbers of the row, called before `use` gets one of them.
template <class Amax, class Use>
HT_HD constexpr void each_inner(const QuantizeNumbers& n, const Scale& scale, int64_t width,
                                float whole, const Amax& amax, const Use& use) {
  const bool finite = is_finite_magnitude(whole), nested = n.inner_levels > 1;
  const int64_t outer = n.inner_columns[0], inner = n.inner_columns[nested ? 1 : 0];
  for (int64_t begin = 0; begin < width; begin += outer) {
    const int64_t end = begin + outer < width ? begin + outer : width;
    const int32_t first = finite ? inner_exponent(n, scale, 0, 0, amax(begin, end - begin)) : 0;
    for (int64_t at = begin; at < end; at += inner) {
      const int64_t count = at + inner < end ? inner : end - at;
      const int32_t second =
          finite && nested ? inner_exponent(n, scale, 1, first, amax(at, count)) : 0;
      use(times_power(n, scale, first + second), at, count);
    }
  }
}

/// Quantizes one element. x: the original; scaled: x times scale.in, or divided by it.
template <Rounding rounding, bool wide>
HT_HD constexpr float quantize_scaled(const Grid& grid, const Scale& scale, float x, float scaled,
                                      uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const float finite = round_finite<rounding, wide>(grid, scaled, random);
  const float infinite = detail::signed_on<wide>(grid, bits, grid.infinite, grid.infinite_below);
  const float number = detail::choose(magnitude == 0x7f800000u, infinite, finite);
  return detail::choose(magnitude > 0x7f800000u, x, number * scale.out * scale.tail);
}
HT_HD constexpr float scaled_in(const QuantizeNumbers& n, const Scale& scale, float x) {
  return divides(n) ? x / scale.in : x * scale.in;
}
/// Rounds to a table of ascending numbers. NaN stays NaN.
HT_HD constexpr float round_to_table(const float* table, int32_t count, Rounding rounding, float x,
                                     uint32_t random) {
  if (x != x) return x;
  if (!(x > table[0])) return table[0];
  if (!(x < table[count - 1])) return table[count - 1];
  int32_t low = 0, high = count - 1;  // table[low] <= x < table[high]
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (table[middle] <= x ? low : high) = middle;
  }
  const double below = double(x) - double(table[low]), above = double(table[high]) - double(x);
  bool up = false;
  switch (rounding) {
    case Rounding::toward_zero: up = x < 0 && below > 0; break;
    case Rounding::up: up = below > 0; break;
    case Rounding::down: break;
    case Rounding::stochastic:
      up = double(random) * 0x1p-32 < below / (double(table[high]) - double(table[low]));
      break;
    case Rounding::nearest_away: up = x < 0 ? above < below : above <= below; break;
    case Rounding::max_magnitude: up = x > 0 && below > 0; break;
    default: up = above < below || (above == below && high % 2 == 0);
  }
  return table[up ? high : low];
}
HT_HD constexpr float quantize_by_table(const QuantizeNumbers& n, const Scale& scale, float x,
                                        float scaled, uint32_t random) {
  const float number =
      round_to_table(n.table, n.table_count, n.rounding, scaled, n.random_bits(random));
  return magnitude_bits(x) > 0x7f800000u ? x : number * scale.out * scale.tail;
}

/// Quantizes one element, by a grid or a table, for parameters that are known at run time only.
HT_HD constexpr float quantize_element(const QuantizeNumbers& n, const Scale& scale, float x,
                                       uint32_t random) {
  const float scaled = scaled_in(n, scale, x);
  if (n.table_count > 0) return quantize_by_table(n, scale, x, scaled, random);
  return visit_rounding(
      n.rounding, [&]<Rounding r>() __attribute__((always_inline)) {
        return n.wide ? quantize_scaled<r, true>(n.grid, scale, x, scaled, n.random_bits(random))
                      : quantize_scaled<r, false>(n.grid, scale, x, scaled, n.random_bits(random));
      });
}

/// Ends a step for one tensor whose scaling is from history: see Backend::next_scales().
HT_HD void next_scale(const QuantizeNumbers& n, int64_t steps, bool latest, float& amax,
                      float* history, int64_t& position, float& scale) {
  if (is_finite_magnitude(amax)) {
    history[position % steps] = amax;
    ++position;
    float a = amax;
    for (int64_t i = 0; i < steps && !latest; ++i) a = history[i] > a ? history[i] : a;
    if (a > 0) scale = scale_of_tensor(n, a);
  }
  amax = 0;
}

// Quantizers that a program adds in C++: any function of a block of numbers. The host calls it on
// every backend, so results have the same bits everywhere, and a GPU waits.
//   policy::add_quantizer({.name = "halves", .hash = "1", .bits = 4, .round = [](auto in, auto,
//     auto out) { for (std::size_t i = 0; i < in.size(); ++i) out[i] = std::round(2 * in[i]) / 2;
//     }});                                                 // amp/policy.h

struct OwnQuantizer {
  std::string name;     // for policy files, tables and errors
  std::string hash;     // names the version of `round` in the hashes of policies
  double bits = 32;     // per number in a native encoding, scales included; for tables
  int32_t columns = 0;  // numbers of a block, along the last dimension; 0: a whole row
  bool draws = false;   // `round` gets a random word for each number
  /// Writes the quantized numbers of a block to `out`. in, out: f32, of the same size, at most
  /// `columns`; the last block of a row may be shorter. random: a word for each number, or empty
  /// without `draws`. Depends on nothing else, and may be called from several threads.
  using Round = std::function<void(std::span<const float> in, std::span<const uint32_t> random,
                                   std::span<float> out)>;
  Round round{};
};

/// Calls quantizer.round() for each block of a matrix. x, y: row-major, with `row_length` numbers
/// in a row. Element i of the matrix has word i % 4 of counter key.offset + i / 4.
void round_blocks(const OwnQuantizer& quantizer, std::span<const float> x, int64_t row_length,
                  RandomKey key, std::span<float> y);

/// Throws UsageError in the name of `op` for an empty name, hash or function, and for bits or
/// columns that are out of range.
void check_own_quantizer(std::string_view op, const OwnQuantizer& quantizer);

// Applies a quantizer to one tensor: the rotation, the clip, the largest magnitude if the scale
// needs it, the kernel, and the rotation back. Values change; dtype, shape and device do not.

/// Returns x quantized. x: f32, bf16 or f16, any strides. Blocks run along the last dimension
/// (columns); all others together are the rows. call.amax is computed if undefined and needed;
/// `skip` is for quantize_in_place() only. The host computes tables and functions of the program
/// (Quantizer::own), so a GPU waits for it; a captured step refuses them. Call check_quantizer()
/// first.
Tensor quantized(const Tensor& x, const QuantizeCall& call);

/// How the numbers of an operand of a product in hardware are scaled back: by one factor, by one
/// for each row, or by a power of two for each block of 32 in a row (MX).
enum class F8Scales : uint8_t { tensor, rows, blocks };
struct F8Kind {
  DType dtype;  // f8_e4m3 or f8_e5m2
  F8Scales scales;
};
/// Returns how a product in hardware reads the numbers of a quantizer. Absent: its grid or its
/// scales are others, or it does more than to scale and to round.
std::optional<F8Kind> f8_kind(const Quantizer& quantizer);
/// Returns whether a product in this accumulator can read the numbers and scales of a quantizer,
/// which may rotate first: e2m1 with scales of the accumulator's least exponent if it has
/// Align::scales, else e4m3 or e5m2 with e8m0; each for accumulator.scaled numbers of a row.
bool has_scales_for(const Accumulator& accumulator, const Quantizer& quantizer);
/// Returns x as an operand of a product that reads numbers and scales. The quantizer has an
/// f8_kind() and x is on a GPU that has f8_sums(), or it has_scales_for() an accumulator. Rows are
/// along x's last dimension. Its values are quantized() in f32, but rotated numbers stay rotated.
/// Throws UsageError for rows above Scaling::whole_row.
F8Operand quantized_f8(const Tensor& x, const QuantizeCall& call);
/// Returns whether a product that is emulated can read numbers and one factor: e4m3 or e5m2 with a
/// scale of the tensor that is not learned.
bool has_one_factor(const Quantizer& quantizer);
/// Returns x as such an operand, of f32 numbers. Its values are quantized() in f32.
F8Operand quantized_apart(const Tensor& x, const QuantizeCall& call);

/// Returns the largest number of a format over its smallest positive one: 7 for int4.
double largest_in_units(const NumberFormat& format);
/// Returns the first value of a learned scale, as LSQ: with it, mean(|x|) becomes sqrt(q) / 2 times
/// the smallest number of the grid, where q = largest_in_units(). 1 if x is 0 or not finite. An f32
/// scalar, or with row_level one for each row of [first dimension, all others]. Waits for a GPU.
Tensor first_scale(const Quantizer& quantizer, const Tensor& x);

/// Does what quantized() does, in place, for row-major parameters and optimizer states. Bumps the
/// storage version. Throws UsageError for an average over steps. If call.skip is not 0, x keeps its
/// bits; several steps (a rotation, a clip, ...) are computed before the skip is read.
void quantize_in_place(const Tensor& x, const QuantizeCall& call);

}  // namespace halftone
