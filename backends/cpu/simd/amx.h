// The inner part of the bf16 matrix product on AMX, on the panels of panels.h. Only use it where
// cpu/isa.h says use_amx().
#pragma once

#include <halftone/backends/cpu/simd/panels.h>

namespace halftone::simd::amx {

/// As panels::Products. While a product is computed, the results of the one before are rounded and
/// stored: c is complete when this object is gone. It lives within one function, for tiles are
/// registers of the thread, and other libraries shape them as well.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  void multiply(int64_t depth, const panels::Rows& a, const uint16_t* b, const panels::Target& to);

 private:
  alignas(64) float sums_[2][panels::panel_width * panels::panel_width];
  int current_ = 0;
  panels::Target before_{};
};

}  // namespace halftone::simd::amx
