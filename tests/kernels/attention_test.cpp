// Attention and its gradients around the edges of blocks of queries, keys and columns; masks of
// every kind, rows without keys, dropout. Rotary positions.
#include "against_reference.h"

namespace halftone::test {
namespace {

enum class Kind { plain, causal, condition, added, dropout, added_each, condition_each };
struct AttentionCase {
  int64_t l, s, e, ev;
  int64_t sharing = 1;  // heads of queries with one head of keys and values
};

Tensor mask_of(Kind kind, const AttentionCase& c, DType dtype) {
  if (kind == Kind::added) return randn({1, 1, c.l, c.s}, dtype);
  // A mask of its own for each batch and head.
  if (kind == Kind::added_each) return randn({2, 2, c.l, c.s}, dtype);
  if (kind == Kind::condition_each) {
    Tensor condition = empty({2, 2, c.l, c.s}, boolean);
    for (int64_t j = 0; j < condition.numel(); ++j) condition.data<bool>()[j] = j * j % 11 < 6;
    return condition;
  }
  if (kind != Kind::condition) return {};
  Tensor condition = empty({2, 1, 1, c.s}, boolean);  // one row of keys for all queries
  for (int64_t j = 0; j < condition.numel(); ++j)
    condition.data<bool>()[j] = j / c.s == 0 && j % 3 != 1;  // the second batch sees nothing
  return condition;
}

double largest_of(const Tensor& x) {
  double largest = 0;
  for (const double v : x.to_vector<double>()) largest = std::max(largest, std::abs(v));
  return largest;
}

void check_attention(const AttentionCase& c, Kind kind, DType dtype) {
  INFO("l ", c.l, ", s ", c.s, ", e ", c.e, ", ev ", c.ev, ", sharing ", c.sharing, ", kind ",
       int(kind), ", ", dtype);
  const int64_t heads = 2 * c.sharing;
  const Tensor q = randn({2, heads, c.l, c.e}, dtype), k = randn({2, 2, c.s, c.e}, dtype),
               v = randn({2, 2, c.s, c.ev}, dtype), dy = randn({2, heads, c.l, c.ev}, dtype),
               mask = mask_of(kind, c, dtype);
  const AttentionSettings settings{.scale = 0.3,
                                   .causal = kind == Kind::causal,
                                   .dropout = kind == Kind::dropout ? 0.3 : 0,
                                   .key = {7, 5}};
  const auto expanded = [&](const Tensor& m) {
    return m.defined() ? views::expand(m, {2, heads, c.l, c.s}) : m;
  };
  const int64_t parts = size_of(dtype) < 4 ? 1 : 2;
  Tensor y = empty_like(dy), log_sum_exp = empty({parts, 2, heads, c.l}, statistics(dtype));
  // Weights of short floats are rounded before they are multiplied by the values. Each is off by at
  // most half an epsilon of the dtype, and their sum is 1, or what dropout makes of it.
  const double of_weights = size_of(dtype) < 4 ? 2 * epsilon(dtype) / epsilon(f32) : 0;
  check_against_reference({q, k, v, mask}, {y}, 64 + of_weights * largest_of(v),
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            Tensor aside =
                                empty(log_sum_exp.shape(), log_sum_exp.dtype(), out[0].device());
                            backend.attention({.q = in[0],
                                               .k = in[1],
                                               .v = in[2],
                                               .mask = expanded(in[3]),
                                               .settings = settings,
                                               .y = out[0],
                                               .log_sum_exp = aside});
                          });
  check_against_reference({q, k, v, mask}, {log_sum_exp}, 64,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            Tensor aside = empty(y.shape(), dtype, out[0].device());
                            backend.attention({.q = in[0],
                                               .k = in[1],
                                               .v = in[2],
                                               .mask = expanded(in[3]),
                                               .settings = settings,
                                               .y = aside,
                                               .log_sum_exp = out[0]});
                          });
  const CpuBackendScope reference("reference");
  backend_for(q).attention({.q = q,
                            .k = k,
                            .v = v,
                            .mask = expanded(mask),
                            .settings = settings,
                            .y = y,
                            .log_sum_exp = log_sum_exp});
  // Backward computes sum(w g) of a query from its rounded y, and bf16 gradients of scores are
  // rounded.
  const double rounding = 8 * epsilon(dtype) / epsilon(statistics(dtype));
  check_against_reference({q, k, v, mask, y, log_sum_exp, dy},
                          {empty_like(q), empty_like(k), empty_like(v)}, 256 + rounding,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.attention_backward({.q = in[0],
                                                        .k = in[1],
                                                        .v = in[2],
                                                        .mask = expanded(in[3]),
                                                        .settings = settings,
                                                        .y = in[4],
                                                        .log_sum_exp = in[5],
                                                        .dy = in[6],
                                                        .dq = out[0],
                                                        .dk = out[1],
                                                        .dv = out[2]});
                          });
}

constexpr Kind kinds[] = {Kind::plain, Kind::causal, Kind::condition, Kind::added, Kind::dropout};

TEST_CASE("kernels: attention around the edges of blocks, with masks of every kind") {
  const std::vector<AttentionCase> for_cpu{
      {5, 257, 16, 9}, {113, 33, 33, 16}, {241, 300, 64, 32}, {130, 600, 24, 40}};
  for (const DType dtype : floating_dtypes)
    for (const Kind kind : kinds)
      for (const AttentionCase& c :
           sizes<AttentionCase>({{1, 1, 8, 8}, {5, 70, 16, 9}, {66, 37, 3, 1}}, for_cpu))
        check_attention(c, kind, dtype);
  for (const Kind kind : kinds) check_attention({130, 131, 17, 20}, kind, f32);
  for (const DType dtype : floating_dtypes)
    for (const Kind kind : {Kind::added_each, Kind::condition_each})
      check_attention({7, 67, 16, 9}, kind, dtype);
  // Heads of the usual size: whole tiles, and whole packs of short floats.
  for (const DType dtype : floating_dtypes)
    check_attention({65, 130, 64, 64}, Kind::dropout, dtype);
}

// Also at lengths that cuDNN takes. The own kernels go through the queries of a group in turn.
TEST_CASE("kernels: attention whose heads share keys and values") {
  for (const DType dtype : {f32, f16, bf16})
    for (const Kind kind : {Kind::plain, Kind::causal})
      for (const AttentionCase& c :
           {AttentionCase{67, 67, 16, 16, 3}, {128, 128, 64, 64}, {128, 128, 64, 64, 2}})
        check_attention(c, kind, dtype);
}

TEST_CASE("kernels: attention of empty tensors and of heads wider than a block") {
  for (const AttentionCase& c :
       {AttentionCase{0, 3, 4, 4}, {3, 0, 4, 4}, {3, 3, 0, 4}, {3, 3, 4, 0}})
    for (const Kind kind : {Kind::plain, Kind::causal}) check_attention(c, kind, f32);
  for (const DType dtype : floating_dtypes) {
    check_attention({9, 65, 100, 66}, Kind::causal, dtype);
    check_attention({7, 5, 20, 130}, Kind::dropout, dtype);
    check_attention({5, 9, 300, 12}, Kind::plain, dtype);
  }
}

TEST_CASE("kernels: rotary positions, of both kinds of pairs and in both directions") {
  const RopeOptions plain, neighbors{.position = 4000, .interleaved = true},
      slower{.theta = 5e5, .position = 100000, .scaling = {.factor = 8}};
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape : sizes<Shape>(
             {{1, 1, 1, 2}, {2, 3, 5, 6}, {1, 2, 33, 64}, {3, 3, 16, 64}}, {{3, 5, 130, 34}}))
      for (const RopeOptions& options : {plain, neighbors, slower})
        for (const bool inverse : {false, true}) {
          INFO(shape, ", ", dtype, ", position ", options.position, ", inverse ", inverse);
          const Tensor heads_last =
              views::transpose(randn({shape[0], shape[2], shape[1], shape[3]}, dtype), 1, 2);
          // In f64 the last bit of a frequency counts as often as the position.
          const double angles = dtype == f64 ? 4.0 * double(options.position + shape[2]) : 0;
          for (const Tensor& x : {randn(shape, dtype), heads_last})
            check_against_reference({x}, {empty_like(heads_last)}, 8 + angles,
                                    [&](Backend& backend, const Tensors& in, Tensors& out) {
                                      backend.rope(in[0], options, inverse, out[0]);
                                    });
        }
}

}  // namespace
}  // namespace halftone::test
