// The operation table: samples of every operation in AllOps. An operation without a Samples
// specialization is an incomplete type here, so it does not compile.
#pragma once

#include "ops/samples_decoder.h"
#include "ops/samples_elementwise.h"
#include "ops/samples_images.h"
#include "ops/samples_index.h"
#include "ops/samples_linalg.h"
#include "ops/samples_norm.h"
#include "ops/samples_products.h"
#include "ops/samples_reduce.h"
#include "ops/samples_shape.h"

namespace halftone::test {

/// All of them, in the catalogue's order.
inline std::vector<OpSamples> make_all_samples() {
  std::vector<OpSamples> all;
  for_each_type(AllOps{}, [&]<class Op>() {
    OpSamples samples = Samples<Op>::make();
    samples.name = Op::info.name, samples.cast_class = Op::info.cast_class;
    all.push_back(std::move(samples));
  });
  return all;
}

}  // namespace halftone::test
