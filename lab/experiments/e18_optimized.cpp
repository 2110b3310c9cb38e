// E18. The decisions of seven roundings on seven grids, 980,000 in all, made in this file and by
// the compiled kernels of the library. tests/lab/scripts/compiled_rounding.cmake compiles the same
// formula without optimization, with full optimization, and with -ffast-math. For comparison it
// also compiles rounding by sums of floats (Veltkamp's splitting), which breaks completely if a
// compiler may fuse multiplications and additions.
#include <cmath>
#include <sstream>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/rounding_hash.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e18 {

std::string hexadecimal(uint64_t hash) {
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

/// Runs floats of all sizes through the quantizers of all named grids. Returns the hash.
std::string by_kernels(const char* backend) {
  const CpuBackendScope scope(backend);
  AnyFloats floats;
  std::vector<float> values;
  while (values.size() < 30'000)
    if (const float x = floats.next(); !std::isnan(x)) values.push_back(x);
  const Tensor x = from_vector(values, {150, 200});
  manual_seed(18);
  std::vector<Tensor> rounded;
  for (const NamedFormat& format : named_formats())
    for (int r = 0; r < rounding_count; ++r)
      rounded.push_back(quantize(x, {.grid = format.format, .rounding = Rounding(r)}));
  return hash_of(rounded);
}

void run(Findings& found) {
  const std::string formula = hexadecimal(
      rounding_hash([](const NumberFormat& format, float x, Rounding rounding, uint32_t random) {
        return round_to(format, x, rounding, random);
      }));
  const std::string left_out = hexadecimal(
      rounding_hash([](const NumberFormat&, float x, Rounding, uint32_t) { return x; }));
  const std::string cpu = by_kernels("cpu"), reference = by_kernels("reference");
  Table table({"decisions", "hash"});
  table.row({"the formula, as compiled here", formula});
  table.row({"with rounding left out", left_out});
  table.row({"kernels, cpu", cpu});
  table.row({"kernels, reference", reference});
  found.out() << table;
  found.equal("the formula", formula, hexadecimal(rounding_hash_everywhere));
  found.different("with rounding left out", left_out, formula);
  found.equal("kernels", cpu, reference);
}

}  // namespace e18

const Experiment found::e18{
    "E18",
    "Emulated formats survive optimization: rounding by integer arithmetic has the same bits at "
    "every level of optimization, -ffast-math included, and in vector code.",
    e18::run};

}  // namespace halftone::lab
