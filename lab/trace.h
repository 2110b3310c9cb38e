// A hash of every tensor of sampled steps, so that two runs can be compared by place: which
// operation's result differs first?
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

/// A tensor of a sampled step, as the operation or its successor got it.
struct TraceRow {
  int64_t step = 0;
  std::string site;
  policy::Role role = policy::Role::input;
  std::size_t input = 0;  // its number among the operation's inputs; otherwise 0
  std::string dtype;
  Shape shape{};
  std::string hash;             // FNV-1a 64 of dtype, shape and bits
  double root_mean_square = 0;  // in f64; not finite if an element is not

  /// Whether two rows are of one place: step, site, role and input.
  bool same_place(const TraceRow& other) const;
};

/// Records the steps 0, every, 2 every, ... of a training that it observes. Changes no bit of it.
class Tracer final : public policy::Observer {
 public:
  explicit Tracer(int64_t every) : every_(every) {}
  bool begin_pass(int64_t step) override;
  void tensor(const policy::Seen& seen, const Tensor& before, const Tensor& after) override;
  /// A JSON object per row, in the order of computation: trace.jsonl.
  std::string lines() const;
  const std::vector<TraceRow>& rows() const { return rows_; }

 private:
  int64_t every_, step_ = 0;
  std::vector<TraceRow> rows_{};
};

/// Reads trace.jsonl. Throws FormatError, in the name of `op`, for a file that cannot be read and
/// for a line that is not a row.
std::vector<TraceRow> read_trace(std::string_view op, const std::filesystem::path& path);

/// Returns the steps of a trace.
std::set<int64_t> steps_of(const std::vector<TraceRow>& rows);

/// The first row that differs.
struct TraceDifference {
  std::size_t row = 0;                      // its number; all before it are equal
  std::optional<TraceRow> there{}, here{};  // absent after the end of a trace
};
/// Compares two traces row by row; nullopt if they are equal.
std::optional<TraceDifference> first_difference(const std::vector<TraceRow>& there,
                                                const std::vector<TraceRow>& here);
/// "step 3, h.0/linear.0, output [16, 64] bf16: other bits; root mean squares 0.5 and 0.500001
/// differ by 2e-06" and the like.
std::string text_of(const TraceDifference& difference);

}  // namespace halftone::lab
