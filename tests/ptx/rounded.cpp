// Sums and products that are rounded toward zero, down or up. MXCSR sets the mode while they run,
// and this file is compiled with -frounding-math.
#include <cmath>
#include <initializer_list>
#include <string>

#include <xmmintrin.h>

#include "operations.h"

namespace halftone::ptx {

namespace {

class Rounding {
 public:
  explicit Rounding(unsigned mode) : before_(_mm_getcsr()) {
    _mm_setcsr((before_ & ~unsigned(_MM_ROUND_MASK)) | mode);
  }
  ~Rounding() { _mm_setcsr(before_); }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  unsigned before_;
};

struct Add {
  float operator()(float a, float b) const { return a + b; }
};
struct Mul {
  float operator()(float a, float b) const { return a * b; }
};
struct Fma {
  float operator()(float a, float b, float c) const { return std::fma(a, b, c); }
};

template <class Op, unsigned mode>
void rounded_binary(Machine& m, const Instruction& i, const Lanes& lanes) {
  const Rounding rounding(mode);
  binary<float, Op>(m, i, lanes);
}
template <unsigned mode> void rounded_fma(Machine& m, const Instruction& i, const Lanes& lanes) {
  const Rounding rounding(mode);
  ternary<float, Fma>(m, i, lanes);
}

template <unsigned mode> void add_mode(Operations& all, const std::string& name) {
  all.add("add." + name + ".f32", rounded_binary<Add, mode>, {4});
  all.add("mul." + name + ".f32", rounded_binary<Mul, mode>, {4});
  all.add("fma." + name + ".f32", rounded_fma<mode>, {4});
}

}  // namespace

void add_rounded(Operations& all) {
  add_mode<_MM_ROUND_TOWARD_ZERO>(all, "rz");
  add_mode<_MM_ROUND_DOWN>(all, "rm");
  add_mode<_MM_ROUND_UP>(all, "rp");
}

}  // namespace halftone::ptx
