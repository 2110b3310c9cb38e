// Products of small blocks on the calling thread, for kernels that consist of many: operands are
// packed once and multiplied as often as needed. The classes have one interface, so that a kernel
// is written once as a template: FloatBlocks computes in f32 from f32 or bf16, DotBlocks and
// AmxBlocks from bf16 on AVX512-BF16 and on AMX; all add up in f32.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include <halftone/backends/cpu/simd/panels.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>

namespace halftone::cpu {

/// Computes c = a b, or c += a b, for c [m, n]. Uses the first k rows of b, of which `packed_depth`
/// were packed.
struct BlockProduct {
  int64_t m, n, k, packed_depth;
  float* c;
  int64_t stride;  // between rows of c
  bool accumulate = false;
  int64_t chain = k;  // products that are added up in a row (in f32; bf16 has its own order)
};

class FloatBlocks {
 public:
  using Packed = float;
  /// The type of computed operands before they are packed.
  using Value = float;
  static constexpr simd::Element element = simd::Element::f32;

  /// Good sizes of blocks; blocks of columns begin at multiples of column_unit().
  static int64_t block_rows() {
    if (portable_bits()) return 84;  // whole tiles on every instruction set
    return 112 / simd_kernels().tile_rows * simd_kernels().tile_rows;
  }
  static int64_t block_columns() { return 256 / column_unit() * column_unit(); }
  static int64_t column_unit() { return simd_kernels().tile_columns; }
  static int64_t packed_rows(int64_t rows, int64_t depth) {
    return round_up(rows, simd_kernels().tile_rows) * depth;
  }
  static int64_t packed_columns(int64_t depth, int64_t columns) {
    return round_up(columns, column_unit()) * depth;
  }
  static void pack_rows(const simd::Matrix& a, int64_t rows, int64_t depth, float* to) {
    simd_kernels().pack_rows(a, rows, depth, to);
  }
  static void pack_columns(const simd::Matrix& b, int64_t depth, int64_t columns, float* to) {
    simd_kernels().pack_columns(b, depth, columns, to);
  }
  static void multiply(const float* a, const float* b, const BlockProduct& to);

 private:
  static int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
};

/// Products: of simd/panels.h.
template <class Products> class Bf16Blocks {
 public:
  using Packed = uint16_t;
  using Value = uint16_t;
  static constexpr simd::Element element = simd::Element::bf16;

  /// Tiles need many rows for each panel that they load. Without tiles, small blocks skip more of
  /// the part that causality masks.
  static int64_t block_rows() { return std::is_same_v<Products, simd::amx::Products> ? 128 : 64; }
  static int64_t block_columns() { return 256; }
  static int64_t column_unit() { return simd::panels::panel_width; }
  static int64_t packed_rows(int64_t rows, int64_t depth) { return panels(rows) * units(depth); }
  static int64_t packed_columns(int64_t depth, int64_t columns) {
    return panels(columns) * units(depth);
  }
  static void pack_rows(const simd::Matrix& a, int64_t rows, int64_t depth, uint16_t* to) {
    simd::panels::pack_rows(a, rows, depth, to);
  }
  static void pack_columns(const simd::Matrix& b, int64_t depth, int64_t columns, uint16_t* to) {
    simd::panels::pack_columns(b, depth, columns, to);
  }
  /// Converts floats to operands.
  static void store(const float* x, int64_t n, uint16_t* to) {
    simd_kernels().narrow_bf16(x, to, n);
  }
  static void multiply(const uint16_t* a, const uint16_t* b, const BlockProduct& to);

 private:
  static int64_t panels(int64_t x) {
    return reference::pieces_of(x, simd::panels::panel_width) * simd::panels::panel_width;
  }
  static int64_t units(int64_t depth) {
    return reference::pieces_of(depth, simd::panels::depth_unit) * simd::panels::depth_unit;
  }
};
using DotBlocks = Bf16Blocks<simd::panels::Products>;
using AmxBlocks = Bf16Blocks<simd::amx::Products>;

}  // namespace halftone::cpu

// Shared parts of attention's forward and backward: the call, the scores of a block of queries and
// keys (scale, causality, mask, dropout), and blocks as operands of products. See attention.cpp.

namespace halftone::cpu::attention {

/// Tensors and sizes of one call.
struct Call {
  const Tensor &q, &k, &v, &mask;
  const AttentionSettings& settings;
  int64_t heads = q.shape()[0] * q.shape()[1], l = q.shape()[2], s = k.shape()[2], e = q.shape()[3],
          ev = v.shape()[3];
  /// Number of heads of q that share one head of keys and values.
  int64_t group = k.shape()[1] == 0 ? 1 : q.shape()[1] / k.shape()[1];
  bool any_empty() const { return heads == 0 || l == 0 || s == 0 || e == 0 || ev == 0; }
  /// Returns the chain length of a product of some depth. It depends on the call, not on the block:
  /// blocks of queries depend on the number of threads, and backward needs exactly the scores that
  /// forward's statistics describe.
  int64_t chain(int64_t depth) const {
    return l <= 4 && !portable_bits() ? std::min<int64_t>(depth, 16) : depth;
  }
  /// Returns whether forward, or backward, is worth several threads.
  bool is_large() const {
    return heads * l * s * (e + ev) > reference::worth_waking(int64_t(1) << 18);
  }
  /// Returns the number of keys that queries before `end` see.
  int64_t keys_before(int64_t end) const { return settings.causal ? std::min(s, end) : s; }
};

/// Returns the start of a head of [n, heads, rows, columns].
inline int64_t offset_of(const Tensor& x, int64_t head) {
  const int64_t heads = x.shape()[1];
  return head / heads * x.strides()[0] + head % heads * x.strides()[1];
}
/// Returns the rows of a head, beginning with row `first`.
inline simd::Matrix rows_of(const Tensor& x, int64_t head, int64_t first = 0) {
  const int64_t offset = offset_of(x, head) + first * x.strides()[2];
  return {x.raw_data() + offset * size_of(x.dtype()),
          x.dtype() == f32 ? simd::Element::f32 : simd::Element::bf16, x.strides()[2], 1};
}
inline simd::Matrix transposed(const simd::Matrix& x) {
  return {x.data, x.element, x.column, x.row};
}

/// Turns blocks of products q k^T into scores, in place.
class Scores {
 public:
  explicit Scores(const Call& call)
      : call_(call),
        scale_(float(call.settings.scale)),
        apart_(call.mask.defined() || scale_ <= 0),
        mask_row_(call.mask.defined() ? call.s : 0) {}

  /// Returns the factor that the scores must still be multiplied by.
  float factor() const { return apart_ ? 1.0f : scale_; }
  /// Returns how many of `count` keys from j0 on query i sees.
  int64_t seen(int64_t i, int64_t j0, int64_t count) const {
    return std::clamp<int64_t>(call_.keys_before(i + 1) - j0, 0, count);
  }
  /// Does the same, and turns their products into scores.
  int64_t make(float* row, int64_t head, int64_t i, int64_t j0, int64_t count) {
    const int64_t seen = this->seen(i, j0, count);
    if (apart_) simd_kernels().scale(scale_, row, seen);
    if (call_.mask.defined()) add_mask(row, head, i, j0, seen);
    return seen;
  }
  /// Appends keys of weight 0 to the seen keys, so that the scores fill whole vectors if the row
  /// has room. Returns the new number.
  static int64_t fill_vectors(float* row, int64_t seen, int64_t room) {
    constexpr int64_t vector = 16;
    const int64_t whole = std::min(room, reference::pieces_of(seen, vector) * vector);
    std::fill(row + seen, row + whole, -std::numeric_limits<float>::infinity());
    return whole;
  }
  /// Applies dropout to row i's values (weights or their gradients) at keys from j0 on.
  void drop(float* row, int64_t head, int64_t i, int64_t j0, int64_t count) const {
    const AttentionSettings& settings = call_.settings;
    if (settings.dropout == 0) return;
    const auto place = uint64_t((head * call_.l + i) * call_.s + j0);
    simd_kernels().dropout(row, settings.key.seed, 4 * settings.key.offset + place,
                           float(settings.dropout), float(1 / (1 - settings.dropout)), row, count);
  }

 private:
  void add_mask(float* row, int64_t head, int64_t i, int64_t j0, int64_t count) {
    const Tensor& mask = call_.mask;
    const int64_t step = mask.strides()[3];
    float* values = mask_row_.data();
    reference::load(mask, offset_of(mask, head) + i * mask.strides()[2] + j0 * step, step, count,
                    values);
    if (mask.dtype() == boolean)
      for (int64_t j = 0; j < count; ++j)
        values[j] = values[j] != 0 ? 0.0f : -std::numeric_limits<float>::infinity();
    simd_kernels().accumulate(values, row, count);
  }

  const Call& call_;
  float scale_;
  bool apart_;  // the scale is applied before mask and softmax
  Workspace<float> mask_row_;
};

/// A block [rows, columns] of f32 that becomes an operand: in place, or rounded into another
/// buffer.
template <class Blocks> class ComputedBlock {
 public:
  ComputedBlock(int64_t rows, int64_t columns)
      : columns_(columns), floats_(rows * columns), rounded_(in_place ? 0 : rows * columns) {}
  /// Uses the same memory for rows of another length, at most as many as it holds.
  void shape_as(int64_t columns) { columns_ = columns; }
  int64_t stride() const { return columns_; }
  float* row(int64_t i, int64_t j = 0) { return floats_.data() + i * columns_ + j; }
  /// In row i, from column j on, keeps `count` values and writes zeros up to `total`.
  void complete(int64_t i, int64_t count, int64_t total, int64_t j = 0) {
    std::fill(row(i, j) + count, row(i, j) + total, 0.0f);
    if constexpr (!in_place) Blocks::store(row(i, j), total, values() + i * columns_ + j);
  }
  simd::Matrix matrix(int64_t j = 0) { return {values() + j, Blocks::element, columns_, 1}; }

 private:
  using Value = typename Blocks::Value;
  static constexpr bool in_place = std::is_same_v<Value, float>;
  Value* values() {
    if constexpr (in_place) return floats_.data();
    else return rounded_.data();
  }
  int64_t columns_;
  Workspace<float> floats_;
  Workspace<Value> rounded_;
};

/// The keys or values of a head, packed as right-hand sides, one block of keys at a time.
template <class Blocks> class PackedKeys {
 public:
  PackedKeys(int64_t keys, int64_t width)
      : width_(width),
        block_(Blocks::packed_columns(Blocks::block_columns(), width)),
        data_(reference::pieces_of(keys, Blocks::block_columns()) * block_) {}
  void pack(const simd::Matrix& rows, int64_t keys) {
    keys_ = keys;
    const int64_t size = rows.element == simd::Element::f32 ? 4 : 2;
    for (int64_t j = 0; j < keys; j += Blocks::block_columns())
      Blocks::pack_columns({static_cast<const std::byte*>(rows.data) + j * rows.row * size,
                            rows.element, rows.row, rows.column},
                           depth(j), width_, data_.data() + j / Blocks::block_columns() * block_);
  }
  /// Returns the block of keys that begins with j, and its number of keys.
  const typename Blocks::Packed* from(int64_t j) {
    return data_.data() + j / Blocks::block_columns() * block_;
  }
  int64_t depth(int64_t j) const { return std::min(Blocks::block_columns(), keys_ - j); }

 private:
  int64_t width_, block_, keys_ = 0;
  Workspace<typename Blocks::Packed> data_;
};

/// Calls compute<Blocks>() with the block products that this CPU has for a dtype.
template <class Compute> void with_blocks(DType dtype, const Compute& compute) {
  if (dtype != bf16 || !has_bf16_products()) compute.template operator()<FloatBlocks>();
  else if (use_amx()) compute.template operator()<AmxBlocks>();
  else compute.template operator()<DotBlocks>();
}

}  // namespace halftone::cpu::attention
