// Products of bf16 matrices on AVX512-BF16. f32 products and those on AMX use the own kernels
// (backends/cpu/gemm.h), which are faster than oneDNN 2.6's; f16 has no primitive there.
#include <halftone/backends/cpu/onednn/adapter.h>
#include <halftone/backends/cpu/onednn/onednn.h>

namespace halftone::onednn {

namespace {
dnnl::memory::desc strided(const Tensor& x) {
  return dnnl::memory::desc(dnnl::memory::dims(x.shape().begin(), x.shape().end()),
                            *data_type(x.dtype()),
                            dnnl::memory::dims(x.strides().begin(), x.strides().end()));
}

/// Returns whether oneDNN would take the elements between those of a for elements of a. Version 3.7
/// does on AVX-512 if a has one row with holes (brg_matmul:avx512_core). Such rows are rare, so
/// other versions do not compute them either.
bool misreads(const Tensor& a) { return a.shape()[-2] == 1 && a.strides()[-1] != 1; }
}  // namespace

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  const bool batch_stands =
      a.rank() == 3 && (a.strides()[0] == 0 || b.strides()[0] == 0) && c.shape()[0] != 1;
  if (!data_type(a.dtype()) || !data_type(b.dtype()) || !data_type(c.dtype()) || batch_stands ||
      misreads(a))
    return false;
  if (bias.defined() && !data_type(bias.dtype())) return false;
  PlanKey key{3,
              team_size(),
              int64_t(a.dtype()),
              int64_t(b.dtype()),
              int64_t(c.dtype()),
              bias.defined() ? int64_t(bias.dtype()) : -1};
  for (const Tensor* t : {&a, &b, static_cast<const Tensor*>(&c)}) {
    key.insert(key.end(), t->shape().begin(), t->shape().end());
    key.insert(key.end(), t->strides().begin(), t->strides().end());
  }
  const std::shared_ptr<const Plan> plan = plan_for("matmul", key, [&] {
    dnnl::memory::dims bias_dims(std::size_t(c.rank()), 1);
    bias_dims.back() = c.shape()[c.rank() - 1];
    const dnnl::memory::desc row =
        bias.defined() ? dnnl::memory::desc(bias_dims, *data_type(bias.dtype()),
                                            c.rank() == 3 ? dnnl::memory::format_tag::abc
                                                          : dnnl::memory::format_tag::ab)
                       : dnnl::memory::desc();
    const auto description = describe<dnnl::matmul>(user_scratchpad(), std::nullopt, strided(a),
                                                    strided(b), row, strided(c));
    Plan built{.primitive = dnnl::matmul(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(strided(a), strided(a))},
                    {DNNL_ARG_WEIGHTS, input_layout(strided(b), strided(b))}};
    if (bias.defined()) built.inputs.push_back({DNNL_ARG_BIAS, input_layout(row, row)});
    built.outputs = {{DNNL_ARG_DST, output_layout(strided(c), strided(c))}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {a.raw_data(), b.raw_data(), bias.defined() ? bias.raw_data() : nullptr};
  void* outputs[] = {c.raw_data()};
  execute("matmul", plan, inputs, outputs);
  return true;
}

}  // namespace halftone::onednn
