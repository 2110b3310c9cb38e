// halftone-lab vectors: inputs with the exact results of a format's or a quantizer's rounding, in a
// file that another project can read, and a check of a short format over every f32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>

namespace halftone::lab {

/// The command in errors.
inline constexpr std::string_view vectors_op = "halftone-lab vectors";

struct VectorsOptions {
  std::string format{}, quantizer{};  // at least one; both: the quantizer with that grid
  std::string rounding{};             // one of the seven; "": all
  int64_t count = 128;                // inputs of a format; of a quantizer: of each case, at least
  std::string output{};               // .safetensors or .jsonl; without a name: a folder
  bool exhaustive = false;
};

/// Vectors of one format or quantizer. docs/vectors.md lists the tensors.
struct Vectors {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};
/// Returns the vectors of a quantizer (unscaled: of its grid). `name` goes into the metadata.
/// Throws UsageError for a count below 64.
Vectors vectors_of(const std::string& name, const Quantizer& quantizer,
                   const std::vector<Rounding>& roundings, int64_t count);
/// Returns one JSON object for the metadata, then one for each input, all on lines of their own.
std::string json_lines_of(const Vectors& vectors);

/// Special numbers, numbers of the grid, midpoints and their neighbors, then random numbers:
/// `count` inputs for the rounding to a format. The same on every machine.
std::vector<float> inputs_of(const NumberFormat& format, int64_t count);

/// Returns what a search over the grid in f64 finds for x. word: 32 random bits, read by stochastic
/// rounding only.
float found_by_search(const NumberFormat& format, Rounding rounding, float x, uint32_t word = 0);

/// The result of a comparison of quantize() with a search over the grid in f64.
struct Exhaustive {
  int64_t compared = 0, different = 0;
  std::string first{};  // describes the first difference
};
/// Rounds the floats with the bits from `first` up to, without, `last` to a format of at most 8
/// bits. Throws UsageError for a longer format.
Exhaustive compare_all(const NumberFormat& format, const std::vector<Rounding>& roundings,
                       uint64_t first = 0, uint64_t last = uint64_t(1) << 32);

/// Writes the file or the files, or compares all floats. Returns the exit code: 1 if one differs.
int run_vectors(const VectorsOptions& options);

}  // namespace halftone::lab
