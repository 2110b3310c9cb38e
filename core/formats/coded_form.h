// Tensors that are stored in 8 or 4 bits a number: the state of an optimizer, and activations that
// wait for backward. Neighbors in memory form blocks, and each block has a scale of its own. A step
// of an optimizer decodes a block, updates it in f32, and encodes it; the weight moves by the
// numbers before they are encoded.
//
//   form           a code is                            block  bytes  source
//   8bit           nearest of 256 numbers, denser       256    260    Dettmers et al. 2022
//                  towards 0
//   8bit_linear    nearest of 255 equidistant numbers   256    260    bitsandbytes' linear map
//                  (of 256 if none is negative)
//   4bit           nearest of 16 numbers, denser        128    68     torchao; Li et al. 2023
//                  towards 0 (equidistant, without 0,
//                  if none is negative)
//   e4m3           f8_e4m3 of value / (amax / 448)      256    260    torchao's FP8 state
//   e4m3_expanded  f8_e4m3 of 448 (|value| / amax)^k:   256    264    COAT (Xi et al. 2025)
//                  k spreads the block over e4m3
//
// A coded tensor is u8 [blocks, bytes of a block]. A block begins with its scales (f32, as bytes:
// amax, of e4m3 amax / 448; then k), then come the codes; of two in a byte, the first is in the
// upper half. The last block may have unused codes. Zero bytes are zeros. Codes of 8bit, 4bit and
// e4m3 equal torchao's to the bit.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>

#include <halftone/core/device.h>
#include <halftone/core/dtype.h>
#include <halftone/core/language.h>
#include <halftone/core/math.h>
#include <halftone/core/words.h>

namespace halftone {

class Tensor;

/// The forms of the table above. plain: floats, like any other tensor.
enum class CodedForm : uint8_t { plain, dynamic8, linear8, dynamic4, e4m3, e4m3_expanded };
template <>
inline constexpr std::array<std::string_view, 6> words_of<CodedForm>{
    "plain", "8bit", "8bit_linear", "4bit", "e4m3", "e4m3_expanded"};

struct CodedFormFacts {
  int64_t block = 1;  // numbers
  int scales = 0;     // of a block
  int codes_in_byte = 1;
  HT_HD constexpr int64_t scale_bytes() const { return scales * int64_t(sizeof(float)); }
  HT_HD constexpr int64_t block_bytes() const { return scale_bytes() + block / codes_in_byte; }
  HT_HD constexpr int64_t blocks(int64_t numbers) const { return (numbers + block - 1) / block; }
};
HT_HD constexpr CodedFormFacts facts(CodedForm form) {
  switch (form) {
    case CodedForm::plain: return {};
    case CodedForm::dynamic4: return {128, 1, 2};
    case CodedForm::e4m3_expanded: return {256, 2, 1};
    default: return {256, 1, 1};
  }
}

/// The most numbers that a block of any form has.
inline constexpr int64_t most_coded_together = 256;

/// How one tensor is stored. has_sign is false for a tensor that is never negative (a second
/// moment): 8bit, 8bit_linear and 4bit then have no negative numbers, the e4m3 forms are the same.
struct Coding {
  CodedForm form = CodedForm::plain;
  bool has_sign = true;
  bool operator==(const Coding&) const = default;
  bool coded() const { return form != CodedForm::plain; }
};

// One number, on every backend. `numbers`: those of all codes, as Codec has them.
namespace coded {

inline constexpr float least_scale = 1e-12f, e4m3_max = 448;

HT_HD constexpr bool is_e4m3(CodedForm form) {
  return form == CodedForm::e4m3 || form == CodedForm::e4m3_expanded;
}

struct Scales {
  float scale, power;
};

/// Returns the scales of a block. amax: its largest magnitude (NaN if any is); amin: the smallest
/// that is not 0, which only e4m3_expanded reads.
HT_HD Scales scales_of(CodedForm form, float amax, float amin) {
  const float largest = amax < least_scale ? least_scale : amax;
  if (form == CodedForm::e4m3) return {largest / e4m3_max, 1};
  if (form != CodedForm::e4m3_expanded) return {largest, 1};
  // From 2^-9 to 448 e4m3 has a ratio of exp(12.34). A block of nearly equal numbers is spread by
  // the power 16 at most.
  const float own = amin > 0 && amin < largest ? math::log(largest / amin) : 0.0f;
  const float power = own > 0 ? 12.3432312f / own : 16.0f;
  return {largest, power < 16.0f ? power : 16.0f};
}
/// Returns x as scaled for its code: x gets the code of the number that is nearest to the result.
HT_HD float scaled(CodedForm form, const Scales& s, float x) {
  if (form != CodedForm::e4m3_expanded) return x / s.scale;
  const float part = math::abs(x) / s.scale, bent = math::exp_below(s.power * math::log(part));
  return math::copysign(part > 0 ? bent * e4m3_max : part, x);
}
HT_HD float unscaled(CodedForm form, const Scales& s, float number) {
  if (form != CodedForm::e4m3_expanded) return number * s.scale;
  const float bent = math::abs(number) / e4m3_max,
              part = math::exp_below(math::log(bent) / s.power);
  return math::copysign(bent > 0 ? part * s.scale : bent, number);
}

/// Returns the code of the nearest of `count` ascending numbers; of two equally near ones, the
/// larger. As torchao's quantize_8bit_with_qmap().
HT_HD int nearest(const float* numbers, int count, float x) {
  int code = 0;
  for (int half = count / 2; half > 0; half /= 2)
    if (x >= numbers[code + half]) code += half;
  const int next = code + 1 < count ? code + 1 : code;
  const float below = numbers[code];
  return x - below >= (numbers[next] - below) * 0.5f ? next : code;
}
HT_HD uint8_t code_of(CodedForm form, const float* numbers, float scaled) {
  if (is_e4m3(form)) return Float8E4M3(scaled, Overflow::saturate).bits;
  return uint8_t(nearest(numbers, form == CodedForm::dynamic4 ? 16 : 256, scaled));
}

}  // namespace coded

/// The tables of a form. code_of() looks a float up by its upper 16 bits: among all floats with the
/// same upper bits, a cell, the code changes once at most.
struct Codec {
  CodedForm form = CodedForm::plain;
  float numbers[256]{};
  // Cells of magnitudes, first to last; then those of negative numbers. Smaller magnitudes have
  // the code of the first cell. In a cell: the code at its beginning, the one at its end << 8, and
  // the last lower half that has the first one << 16.
  uint32_t first = 0, last = 0;
  const uint32_t* cells = nullptr;

  /// Returns the code of a number that scaled() returned.
  HT_HD uint8_t code_of(float scaled) const {
    const uint32_t bits = std::bit_cast<uint32_t>(scaled), magnitude = bits >> 16 & 0x7fffu;
    const uint32_t inside = magnitude < first ? first : magnitude > last ? last : magnitude;
    const uint32_t sign = bits >> 31 != 0 ? last - first + 1 : 0;
    const uint32_t cell = cells[sign + (inside - first)];
    // A magnitude outside of the cells has the code of either end.
    const uint32_t lower = magnitude < first ? 0u : bits & 0xffffu;
    return uint8_t(lower > cell >> 16 ? cell >> 8 : cell);
  }
};
/// Returns the tables of a coding, which are made at the first call. `storage` is not plain.
const Codec& codec_of(Coding storage);

/// Encode and decode one block of n numbers, at most facts(form).block, by plain loops.
void encode_block(const Codec& codec, const float* x, int64_t n, uint8_t* block);
void decode_block(const Codec& codec, const uint8_t* block, int64_t n, float* x);

/// Returns a coded tensor of `numel` zeros.
Tensor coded_zeros(CodedForm form, int64_t numel, Device device);

}  // namespace halftone
