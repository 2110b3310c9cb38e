// An operation as data: its name, its cast class, and the reason for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <halftone/core/language.h>
#include <halftone/core/words.h>

namespace halftone::cast_reason {

// Reasons for cast classes that several operations share; a reason of one operation is in that
// operation. `halftone-lab show` prints them. The classes follow PyTorch's list for CUDA
// (amp/cast_policy.cpp). The reasons come from number formats and kernels; a class that has only
// historical reasons says so.

using Text = std::string_view;

// low_precision
inline constexpr Text products = "most of the time, half the bytes; terms are summed in f32 inside";
inline constexpr Text made_of_products = "made of matrix products, which sum in f32";

// full_precision
inline constexpr Text exponential =
    "exp leaves f16 beyond 11, and turns an error of x into a factor";
inline constexpr Text exp_inside = "exp inside, and small probabilities next to large ones";
inline constexpr Text steep = "steep near 0 or 1, where short formats are coarse";
inline constexpr Text reciprocal = "1 / x of a small x leaves f16's range";
inline constexpr Text powers =
    "squares, powers and products leave f16's range: 256 * 256 is infinite";
inline constexpr Text grows =
    "grows with its number of terms: beyond f16's range, or bf16's whole numbers";
inline constexpr Text deviations =
    "a difference from a mean, over a root of squares: both cancel and overflow";
inline constexpr Text loss =
    "a loss is one number: f32 costs nothing, and every gradient begins here";

// widest_input
inline constexpr Text two_inputs = "two inputs must agree: nothing is lost in the wider dtype";
inline constexpr Text several_inputs = "sums several inputs, which must agree";

// as_is
inline constexpr Text moves = "moves numbers, and changes none";
inline constexpr Text chooses =
    "chooses among its numbers: the result is one of them, or its place";
inline constexpr Text rounds_once = "exact, or rounded once, in any dtype";
inline constexpr Text bounded =
    "bounded, or near its input: computed in f32 inside and rounded once";
inline constexpr Text a_mean =
    "unlike sum no larger than its terms: summed in f32 inside and rounded once";
inline constexpr Text statistics =
    "statistics are f32 inside, whatever comes; one pass over short numbers";
inline constexpr Text truth = "true or false";

}  // namespace halftone::cast_reason

// The facts that an operation states: its name, its cast class with the reason, and the properties
// that policies of casts and grids use. No other code knows an operation by its name.

namespace halftone {

class Tensor;

/// The dtype that an operation requests under autocast. The active policy decides what it gets.
enum class CastClass : uint8_t {
  low_precision,   // fast and safe in bf16 / f16: matmul, convolution
  full_precision,  // needs range or long accumulation: exp, softmax, norms, losses, sums
  widest_input,    // inputs must agree: cast to the widest of them
  as_is,           // runs in the dtype of its input: relu, reshape
  banned,          // refused under autocast, with a reason
};
template <>
inline constexpr std::array<std::string_view, 5> words_of<CastClass>{
    "low_precision", "full_precision", "widest_input", "as_is", "banned"};

/// The dimension of a tensor that a product sums over. Blocks of scales and rotations run along it.
enum class Sums : uint8_t {
  over_last,
  over_rows,      // the dimension before the last: the right operand of a matrix product
  over_tokens,    // all dimensions but the last: gradients of a linear layer's weight
  over_channels,  // dimension 1, of images and of weights of convolutions
  over_first,     // dimension 0, of weights of convolutions
};

/// The dimension that a product sums over, for each input of an operation.
struct SummedDimensions {
  Sums first = Sums::over_last;   // input 0
  Sums others = Sums::over_last;  // the inputs after it
  constexpr Sums of(std::size_t input) const { return input == 0 ? first : others; }
};

/// The dimensions that the products of an operation sum over.
struct Contraction {
  SummedDimensions forward{};   // each operand, in the product of forward
  SummedDimensions backward{};  // each operand, in the product with the gradient of the result
  /// The gradient of the result, in the product that gives the gradient of this operand.
  SummedDimensions gradient{};
};
inline constexpr Contraction sums_over_last{};

/// Facts that few operations have.
struct OpFacts {
  std::string_view instead{};  // for a banned operation: the reason, and the alternative
  bool is_loss = false;        // f32 even if weights are short and nothing else is cast
  bool once = false;           // has side effects, such as statistics: never computed twice
  bool convolves = false;      // on the CPU its weight, input 1, is cast into channels-last order
  bool accumulator = false;    // can emulate an accumulator (core/formats/number_format.h)
  bool tf32 = false;           // GPUs can compute its products in TF32
  bool factors = false;        // its products read numbers and their factors (core/pending.h)
  /// what its products sum over; required for operations of class low_precision, at compile time
  std::optional<Contraction> sums{};
  /// Returns the multiplications and additions of a forward pass with these inputs, the first two
  /// of which are defined; 0 for shapes that forward refuses.
  double (*flops)(std::span<const Tensor> inputs) = nullptr;
};

/// The facts of an operation. The cast class is a mandatory argument of the constructor. `reason`
/// says in a few words why the operation asks for this class; all operations here have a reason.
struct OpInfo : OpFacts {
  std::string_view name;
  CastClass cast_class;
  std::string_view reason;
  constexpr OpInfo(std::string_view op_name, CastClass asked, std::string_view why = {},
                   const OpFacts& facts = {})
      : OpFacts(facts), name(op_name), cast_class(asked), reason(why) {}
};

using OperationSlot = Slot<const OpInfo*>;
/// Marks the operation whose forward or backward runs.
using OperationScope = OperationSlot::Scope;

/// Returns the operation whose forward or backward runs in this thread, for messages of its
/// callees: several operations share a kernel. Returns `otherwise` outside of any operation.
inline std::string_view running_operation(std::string_view otherwise) {
  const OpInfo* running = OperationSlot::current();
  return running ? running->name : otherwise;
}

}  // namespace halftone
