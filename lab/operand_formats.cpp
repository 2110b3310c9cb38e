// Means over the resolved sites that have floating-point operations.
#include <halftone/lab/operand_formats.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/formats/quantizer.h>

namespace halftone::lab {

namespace {

OperandFormat format_of(const Quantizer& quantizer) {
  const NumberFormat& grid = quantizer.grid;
  const Scaling& scaling = quantizer.scaling;
  OperandFormat format{.bits = quantizer.bits_per_element()};
  if (quantizer.own) {
    format.block = std::max(1, quantizer.own->columns);
    format.exponent = 0, format.fraction = format.bits - 1;
    return format;
  }
  if (scaling.per == Scaling::Per::block) format.block = double(scaling.rows) * scaling.columns;
  if (!quantizer.table.empty()) {
    format.bits += std::log2(double(quantizer.table.size())) - grid.bits;
    format.exponent = 0, format.fraction = std::log2(double(quantizer.table.size())) - 1;
  } else if (std::ilogb(grid.max) == grid.min_exponent) {  // one exponent: an integer
    format.exponent = 0, format.fraction = grid.bits - 1;
  } else {
    format.fraction = grid.significand_bits - 1;
    format.exponent = grid.bits - 1 - format.fraction;
  }
  return format;
}

OperandFormat format_of(DType dtype) {
  const double bits = 8 * double(size_of(dtype));
  const double fraction = dtype == bf16 ? 7 : dtype == f16 ? 10 : dtype == f64 ? 52 : 23;
  return {.bits = bits, .exponent = bits - 1 - fraction, .fraction = fraction};
}

struct Sum {
  OperandFormat total{0, 0, 0, 0};
  double weight = 0;
  void add(const OperandFormat& format, double by) {
    total.bits += by * format.bits, total.exponent += by * format.exponent;
    total.fraction += by * format.fraction, total.block += by * format.block;
    weight += by;
  }
  OperandFormat mean() const {
    if (weight == 0) return {};
    return {total.bits / weight, total.exponent / weight, total.fraction / weight,
            total.block / weight};
  }
};

}  // namespace

std::array<OperandFormat, operand_roles> operand_formats(const policy::PolicySession& session) {
  std::array<Sum, operand_roles> sums;
  for (const policy::ResolvedSite& site : session.resolved()) {
    if (site.flops <= 0) continue;
    const auto add = [&](policy::Role role, DType dtype, std::size_t input) {
      const Quantizer* const quantizer = site.treatment->quantizer(role, input);
      for (std::size_t i = 0; i < operand_roles; ++i)
        if (operand_role_names[i] == policy::name(role))
          sums[i].add(quantizer ? format_of(*quantizer) : format_of(dtype), site.flops);
    };
    for (std::size_t i = 0; i < site.operands.size() && i < site.roles.size(); ++i)
      if (const auto dtype = site.operands[i]; dtype && is_floating(*dtype))
        add(site.roles[i], *dtype, i);
    if (!site.operands.empty() && site.operands[0] && is_floating(*site.operands[0]))
      add(policy::Role::grad_output, site.treatment->result.value_or(*site.operands[0]), 0);
  }
  return {sums[0].mean(), sums[1].mean(), sums[2].mean()};
}

}  // namespace halftone::lab
