#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <halftone/core/files.h>

#include "operations.h"
#include "program.h"

namespace halftone::ptx {

Operation& Operations::add(Operation operation) {
  std::string name = operation.name;
  return all_.insert_or_assign(std::move(name), std::move(operation)).first->second;
}

Operation& Operations::add(std::string name, Run run, std::initializer_list<uint8_t> widths) {
  Operation operation;
  operation.name = std::move(name), operation.run = run, operation.widths = widths;
  return add(std::move(operation));
}

const Operation* Operations::find(std::string_view name) const {
  const auto found = all_.find(name);
  return found == all_.end() ? nullptr : &found->second;
}

const Operations& operations() {
  static const Operations* const instance = [] {
    auto* const all = new Operations;
    for (const auto add :
         {add_arithmetic, add_rounded, add_approximations, add_comparisons, add_integers,
          add_conversions, add_moves, add_memory, add_exchanges, add_matrices, add_control})
      add(*all);
    return all;
  }();
  return *instance;
}

namespace {
void nothing(Machine&, const Instruction&, const Lanes&) {}
}  // namespace

void add_control(Operations& all) {
  const auto control = [&](const char* name, Form form, Flow flow) {
    Operation& operation = all.add(name, nothing, {4});
    operation.form = form, operation.flow = flow, operation.results = 0;
  };
  control("bra", Form::branch, Flow::branch);
  control("bra.uni", Form::branch, Flow::branch);
  control("call.uni", Form::call, Flow::next);
  control("ret", Form::leave, Flow::leave);
  control("exit", Form::leave, Flow::leave);
  control("bar.sync", Form::barrier, Flow::barrier);
  control("bar.warp.sync", Form::plain, Flow::exchange);
}

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

namespace {

void dropped(Machine&, const Instruction&, const Lanes&) {}

void swap_values(Kernel& kernel, Instruction& i) {
  std::vector<Operand> operands(i.operands, i.operands + i.operand_count);
  // The predicate of a selection is not a value.
  const std::size_t last = operands.size() - (i.operation->name.starts_with("selp") ? 2 : 1);
  if (last < i.results + 1u || operands[last].width != operands[last - 1].width)
    throw Fault("[ptx] there are no two values to swap: " + std::string(kernel.text_of(i)));
  std::swap(operands[last - 1], operands[last]);
  kernel.operands.push_back(std::move(operands));
  i.operands = kernel.operands.back().data();
}

}  // namespace

void mutate(Kernel& kernel, std::size_t place, std::string_view kind) {
  Instruction& i = kernel.code.at(place);
  kernel.mutated = true;
  if (kind == "drop") i.run = dropped, i.flow = Flow::next;
  else if (kind == "swap") swap_values(kernel, i);
  else if (kind == "invert" && i.guarded) i.guard_inverted = !i.guard_inverted;
  else
    throw Fault("[ptx] " + std::string(kind) + " is not a change of " +
                std::string(kernel.text_of(i)));
}

void mutate(Kernel& kernel) {
  static const char* const wanted = environment_variable("HALFTONE_PTX_MUTANT");
  if (!wanted) return;
  std::istringstream words(wanted);
  std::string name, kind;
  std::size_t place = 0;
  words >> name >> place >> kind;
  if (name == kernel.name) mutate(kernel, place, kind);
}

}  // namespace halftone::ptx
