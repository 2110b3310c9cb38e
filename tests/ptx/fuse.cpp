#include "fuse.h"

#include <cmath>
#include <map>
#include <set>
#include <string>

#include <halftone/core/files.h>

#include "operations.h"

namespace halftone::ptx {

namespace {

int64_t count = 0;
enum Signs : uint8_t { minus_product = 1, minus_other = 2 };

/// Operands: d, the two factors, the other summand.
template <class T> void multiply_add(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2), *const c = m.value<T>(i, 3);
  const T product = i.variant & minus_product ? -1 : 1, other = i.variant & minus_other ? -1 : 1;
  lanes.each([=](int l) { d[l] = std::fma(product * a[l], b[l], other * c[l]); });
}

/// The products in code without branches whose factors still have their values.
class Products {
 public:
  void forget() { by_row_.clear(); }
  void forget(uint32_t row) {
    by_row_.erase(row);
    std::erase_if(by_row_, [&](const auto& one) {
      const Operand* const o = one.second->operands;
      return o[1].row == row || o[2].row == row;
    });
  }
  void remember(const Instruction& i) {
    const Operand* const o = i.operands;
    if (o[1].row != o[0].row && o[2].row != o[0].row) by_row_[o[0].row] = &i;
  }
  const Instruction* of(uint32_t row) const {
    const auto found = by_row_.find(row);
    return found == by_row_.end() ? nullptr : found->second;
  }

 private:
  std::map<uint32_t, const Instruction*> by_row_{};
};

/// Replaces a sum by a multiply-add if one of its summands is a product.
void fuse_sum(Kernel& kernel, Instruction& sum, const Products& products, bool subtracts) {
  const bool single = sum.operands[0].width == 4;
  for (int n : {1, 2}) {
    const Instruction* const product = products.of(sum.operands[n].row);
    if (!product || (product->operands[0].width == 4) != single) continue;
    const Operand other = sum.operands[3 - n];
    kernel.operands.push_back({sum.operands[0], product->operands[1], product->operands[2], other});
    sum.operands = kernel.operands.back().data(), sum.operand_count = 4;
    sum.variant = uint8_t(!subtracts ? 0 : n == 2 ? minus_product : minus_other);
    sum.run = single ? multiply_add<float> : multiply_add<double>;
    ++count;
    return;
  }
}

/// Rows of constants that are powers of two. A product with one is exact, so fusing changes
/// nothing.
std::set<uint32_t> powers_of_two(const Kernel& kernel) {
  std::set<uint32_t> rows;
  for (const FilledRow& row : kernel.filled) {
    const bool single = row.width == 4;
    const uint64_t significand = single ? row.bits & 0x7fffff : row.bits & 0xfffffffffffff;
    const uint64_t exponent = single ? row.bits >> 23 & 255 : row.bits >> 52 & 2047;
    if (row.what == FilledRow::What::bits && row.width >= 4 && significand == 0 && exponent != 0)
      rows.insert(row.row);
  }
  return rows;
}

}  // namespace

bool fuses() {
  static const bool on = environment_variable("HALFTONE_PTX_FUSE") != nullptr;
  return on;
}
int64_t fused_sums() { return count; }

void fuse(Kernel& kernel) {
  std::set<int> starts;
  for (const Instruction& i : kernel.code) starts.insert(i.target);
  const std::set<uint32_t> exact = powers_of_two(kernel);
  Products products;
  for (std::size_t n = 0; n < kernel.code.size(); ++n) {
    Instruction& i = kernel.code[n];
    if (starts.contains(int(n)) || i.flow != Flow::next) products.forget();
    const std::string& name = i.operation->name;
    const bool sum = name == "add.f32" || name == "add.f64",
               difference = name == "sub.f32" || name == "sub.f64";
    if (!i.guarded && (sum || difference)) fuse_sum(kernel, i, products, difference);
    for (int r = 0; r < i.results; ++r) products.forget(i.operands[r].row);
    const bool product = name == "mul.f32" || name == "mul.f64";
    if (!i.guarded && product && !exact.contains(i.operands[1].row) &&
        !exact.contains(i.operands[2].row))
      products.remember(i);
  }
}

}  // namespace halftone::ptx
