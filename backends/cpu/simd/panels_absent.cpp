// The bf16 products of panels.h for CPUs that have no such instructions.
// has_bf16_products() is false there, so nothing calls them.
#include <cstdlib>

#include <halftone/backends/cpu/simd/panels.h>

namespace halftone::simd {

namespace panels {
void pack_rows(const Matrix&, int64_t, int64_t, uint16_t*) { std::abort(); }
void pack_columns(const Matrix&, int64_t, int64_t, uint16_t*) { std::abort(); }
void find_rows(const Places&, const uint16_t*, int64_t, int64_t, int64_t, int64_t, int64_t,
               const uint16_t**) {
  std::abort();
}
void pack_pairs(const uint16_t* const*, int64_t, uint16_t*) { std::abort(); }
void copy_rows(const uint16_t* const*, int64_t, int64_t, int64_t, uint16_t*) { std::abort(); }
void Products::multiply(int64_t, const Rows&, const uint16_t*, const Target&) { std::abort(); }
}  // namespace panels

namespace amx {
Products::Products() { std::abort(); }
Products::~Products() = default;
void Products::multiply(int64_t, const panels::Rows&, const uint16_t*, const panels::Target&) {
  std::abort();
}
void Products::fetch(const panels::Ahead&, int64_t) { std::abort(); }
}  // namespace amx

}  // namespace halftone::simd
