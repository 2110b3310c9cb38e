// The operation table: samples of every operation in AllOps. An operation without a Samples
// specialisation is an incomplete type here, so it does not compile.
#pragma once

#include "op_samples_attention.h"
#include "op_samples_dot.h"
#include "op_samples_elementwise.h"
#include "op_samples_images.h"
#include "op_samples_index.h"
#include "op_samples_matmul.h"
#include "op_samples_norm.h"
#include "op_samples_other.h"
#include "op_samples_recurrent.h"
#include "op_samples_reduce.h"
#include "op_samples_resize.h"
#include "op_samples_rows.h"
#include "op_samples_shape.h"

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
