// The inner part of the bf16 matrix product on AMX, on the panels of panels.h. Use it only if
// use_amx() of backends/cpu/isa.h is true.
#pragma once

#include <halftone/backends/cpu/simd/panels.h>

namespace halftone::simd::amx {

/// Like panels::Products. While a product is computed, the results of the one before are rounded
/// and stored: c is complete when this object is destroyed. Use it within one function, because
/// tiles are registers of the thread that other libraries also configure.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  void multiply(int64_t depth, const panels::Rows& a, const uint16_t* b, const panels::Target& to);
  /// Brings this memory into the second-level cache, spread over the next `units` depth units.
  void fetch(const panels::Ahead& ahead, int64_t units);

 private:
  /// Two by two tiles of sums; `stride` is the distance of rows.
  template <class T> struct Block {
    T* data;
    int64_t stride = panels::panel_width;

    T* tile(int64_t below, int64_t right) const { return data + 16 * (below * stride + right); }
    int64_t row_bytes() const { return stride * int64_t(sizeof(T)); }
  };
  template <bool two_rows, bool two_columns>
  void multiply_tiles(int64_t depth_units, const panels::Rows& rows, const uint16_t* b,
                      const panels::Target& to, const Block<const float>& begun,
                      const Block<float>& sums);
  void store_rows(int64_t count);
  void fetch_lines();

  /// The present product leaves its sums in one half; the other half is being stored.
  alignas(64) float sums_[2][panels::panel_width * panels::panel_width];
  int current_ = 0;
  panels::Target waiting_{.c = nullptr, .bf16 = false, .stride = 0, .rows = 0, .columns = 0};
  int64_t stored_ = 0;                               // rows of it
  panels::Ahead ahead_;                              // still to be fetched
  int64_t ahead_at_ = 0, ahead_lines_per_unit_ = 0;  // lines of its first piece that were fetched
};

}  // namespace halftone::simd::amx
