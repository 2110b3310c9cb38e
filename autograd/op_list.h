// The catalog: every operation of the framework, named once. apply() refuses an operation that is
// missing here, and tests/ops/properties.cpp requires samples for every entry. Elementwise
// operations enter through their formula lists.
#pragma once

#include <concepts>

#include <halftone/core/formulas.h>

namespace halftone {

template <class F> struct Unary;
template <class F> struct Binary;
template <class F> struct Compare;
struct Cast;
struct Where;
struct Reshape;
struct Permute;
struct Expand;
struct Slice;
struct Cat;
struct Pad;
struct Contiguous;
struct Sum;
struct Mean;
struct Var;
struct Max;
struct Min;
struct Prod;
struct Norm;
struct ArgMax;
struct ArgMin;
struct Any;
struct All;
struct ArgSort;
struct Gather;
struct ScatterAdd;
struct Flip;
struct CumulativeSum;
struct CumulativeProduct;
struct Matmul;
struct Linear;
struct Dot;
struct CosineSimilarity;
struct Softmax;
struct LogSoftmax;
struct LogSumExp;
struct Attention;
struct PackedAttention;
struct CrossEntropy;
struct NllLoss;
struct LayerNorm;
struct RmsNorm;
struct GroupNorm;
struct InstanceNorm;
struct BatchNorm;
struct BatchNormRelu;
struct Conv2d;
struct ConvTranspose2d;
struct MaxPool2d;
struct AvgPool2d;
struct AdaptiveAvgPool2d;
struct Interpolate;
struct Embedding;
struct Lstm;
struct Gru;
struct Dropout;
struct Quantize;
struct Checkpoint;

using ElementwiseOps = Concat<Wrap<Unary, UnaryFormulas>, Wrap<Binary, BinaryFormulas>,
                              Wrap<Compare, CompareFormulas>>;
using StructuredOps =
    TypeList<Cast, Where, Reshape, Permute, Expand, Slice, Cat, Pad, Contiguous, Sum, Mean, Var,
             Max, Min, Prod, Norm, ArgMax, ArgMin, Any, All, ArgSort, Gather, ScatterAdd, Flip,
             CumulativeSum, CumulativeProduct, Matmul, Linear, Dot, CosineSimilarity, Softmax,
             LogSoftmax, LogSumExp, Attention, PackedAttention, CrossEntropy, NllLoss, LayerNorm,
             RmsNorm, GroupNorm, InstanceNorm, BatchNorm, BatchNormRelu, Conv2d, ConvTranspose2d,
             MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Interpolate, Embedding, Lstm, Gru, Dropout,
             Quantize, Checkpoint>;
using AllOps = Concat<ElementwiseOps, StructuredOps>;

/// Functions made of operations, with a class of their own in casting policies, as in PyTorch's
/// lists: their inputs are cast before the first of those operations.
namespace composed {
inline constexpr OpInfo einsum{"einsum", CastClass::low_precision, cast_reason::products};
inline constexpr OpInfo triplet_margin_loss{
    "triplet_margin_loss", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
inline constexpr const OpInfo* all[]{&einsum, &triplet_margin_loss};
}  // namespace composed

/// Base of operations that users define outside the library: exempt from the catalog.
struct UserOp {};

template <class Op>
concept Operation = std::same_as<const OpInfo, decltype(Op::info)>;

}  // namespace halftone
