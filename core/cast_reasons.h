// Reasons for cast classes that several operations share; a reason of one operation is in that
// operation. `halftone-lab show` prints them. The classes follow PyTorch's list for CUDA
// (amp/presets.cpp). The reasons come from number formats and kernels; a class that has only
// historical reasons says so.
#pragma once

#include <string_view>

namespace halftone::cast_reason {

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
