// Who computes a call of attention that cuDNN could take. Its plans are for lengths, and making one
// takes a third of a second: text that grows by one token a call would need one for each. So it
// gets whole multiples of a step; other lengths go to the own kernels where they are short, and
// else, where keys that are added behind change nothing, are lengthened to the next multiple.
#pragma once

#include <cstdint>
#include <functional>

#include <halftone/backends/cuda/context.h>
#include <halftone/core/backend.h>

namespace halftone::cuda {

enum class AttentionRoute { own_kernels, library, lengthened };

inline constexpr int64_t attention_step = 64;

/// For n * heads of l queries and s keys each.
inline AttentionRoute attention_route(int64_t batch_heads, int64_t l, int64_t s, bool causal) {
  constexpr int64_t few_scores = int64_t(1) << 22;  // 12 heads of 590 x 590
  if (l % attention_step == 0 && s % attention_step == 0) return AttentionRoute::library;
  if (batch_heads * l * s < few_scores) return AttentionRoute::own_kernels;
  return causal && l == s ? AttentionRoute::lengthened : AttentionRoute::library;
}

/// q, k, v, y [n, heads, l, e] and log_sum_exp [parts, n, heads, l].
using AttentionCall = std::function<bool(const Tensor& q, const Tensor& k, const Tensor& v,
                                         Tensor& y, Tensor& log_sum_exp)>;
/// Causal attention of l queries to l keys by `call` on the next multiple of attention_step, zeros
/// behind: no query sees a key that was added. What `call` returns; false leaves y as it was.
bool attention_lengthened(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          Tensor& y, Tensor& log_sum_exp, const AttentionCall& call);

}  // namespace halftone::cuda
