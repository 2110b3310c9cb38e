// Surveys element by element, with survey_element() of core/formats/survey.h. Each piece of the tensor has
// its own row, and rows are added up in the order of the pieces: the sums do not depend on threads.
#include <halftone/backends/reference/reference.h>

#include <limits>

#include <cstring>

#include <halftone/backends/reference/block_scales.h>
#include <halftone/backends/reference/runs.h>
#include <halftone/core/formats/survey.h>

namespace halftone {

using namespace reference;

namespace {

constexpr int64_t most_pieces = 64;

/// The counts of one piece of the tensor. Whole numbers add up faster than doubles.
struct Piece {
  std::array<int64_t, Survey::binades> binade{};
  SurveySums sums{};
};

/// A stretch of neighboring elements with one scale.
class Stretches {
 public:
  Stretches(const Tensor& x, const Tensor& y, const QuantizeCall* call, const QuantizeNumbers& n)
      : x_(x),
        y_(y),
        numbers_(survey_numbers(call)),
        quantizer_(n),
        clips_(call && call->unclipped.defined()),
        original_(clips_ ? call->unclipped : x) {}

  void add(const Scale& scale, int64_t first, int64_t count, Piece& to) const {
    float before[block_length], used[block_length], after[block_length];
    constexpr float beyond = std::numeric_limits<float>::infinity();
    for (int64_t begin = 0; begin < count; begin += block_length) {
      const int64_t length = std::min(block_length, count - begin);
      load(original_, first + begin, length, before);
      if (!numbers_.rounds) {
        count_all(to, length, [&](int64_t i, SurveySums& sums) {
          return survey_element({}, scale, before[i], 0, before[i], sums);
        });
        continue;
      }
      load(y_, first + begin, length, after);
      if (clips_) {  // a clipped number counts as saturated
        load(x_, first + begin, length, used);
        count_all(to, length, [&](int64_t i, SurveySums& sums) {
          const float scaled =
              used[i] != before[i] ? beyond : scaled_in(quantizer_, scale, used[i]);
          return survey_element(numbers_, scale, before[i], scaled, after[i], sums);
        });
        continue;
      }
      count_all(to, length, [&](int64_t i, SurveySums& sums) {
        return survey_element(numbers_, scale, before[i], scaled_in(quantizer_, scale, before[i]),
                              after[i], sums);
      });
    }
  }
  uint32_t largest(int64_t first, int64_t count) const {
    float values[block_length];
    uint32_t largest = 0;
    for (int64_t begin = 0; begin < count; begin += block_length) {
      const int64_t length = std::min(block_length, count - begin);
      load(x_, first + begin, length, values);
      for (int64_t i = 0; i < length; ++i) largest = std::max(largest, magnitude_bits(values[i]));
    }
    return largest;
  }

 private:
  /// Counts in local sums, which stay in registers.
  template <class F> static void count_all(Piece& to, int64_t length, F&& element) {
    SurveySums sums = to.sums;
    for (int64_t i = 0; i < length; ++i)
      if (const int bin = element(i, sums); bin >= 0) ++to.binade[std::size_t(bin)];
    to.sums = sums;
  }

  const Tensor &x_, &y_;
  SurveyNumbers numbers_;
  const QuantizeNumbers& quantizer_;
  bool clips_;
  const Tensor& original_;
};

/// Calls add(unit, piece's row) for all units, which are shared evenly by the pieces.
template <class F> void in_pieces(int64_t units, Tensor& row, F&& add) {
  const int64_t each = pieces_of(units, std::min(units, most_pieces));
  std::vector<Piece> own(std::size_t(pieces_of(units, each)));
  parallel_pieces(units, each, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) add(unit, own[std::size_t(begin / each)]);
  });
  Survey total;
  std::memcpy(static_cast<void*>(&total), row.data<double>(), sizeof total);
  for (const Piece& piece : own) {
    for (std::size_t i = 0; i < piece.binade.size(); ++i)
      total.binade[i] += double(piece.binade[i]);
    total.sums.merge(piece.sums);
  }
  std::memcpy(row.data<double>(), static_cast<const void*>(&total), sizeof total);
  row.storage()->bump_version();
}

float scalar_or(const Tensor& x, float otherwise) {
  return x.defined() ? *x.data<float>() : otherwise;
}

}  // namespace

void ReferenceBackend::survey(const Tensor& x, const Tensor& y, const QuantizeCall* call,
                              Tensor& row) {
  if (x.numel() == 0) return;
  const QuantizeNumbers n = call ? numbers_of(call->quantizer) : QuantizeNumbers{};
  const Stretches stretches(x, y, call, n);
  if (n.per != Scaling::Per::block) {
    Scale scale;
    if (n.per == Scaling::Per::tensor)
      scale = scale_per_tensor(n.from_history ? scalar_or(call->scale, 1)
                                              : scale_of_tensor(n, scalar_or(call->amax, 0)));
    in_pieces(pieces_of(x.numel(), grain_length), row, [&](int64_t unit, Piece& to) {
      const int64_t first = unit * grain_length;
      stretches.add(scale, first, std::min(grain_length, x.numel() - first), to);
    });
    return;
  }
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  in_pieces(pieces_of(rows, n.rows), row, [&](int64_t unit, Piece& to) {
    const int64_t begin = unit * n.rows, end = std::min(rows, begin + n.rows);
    const float amax_above_blocks = amax_above(n, floats_of(call->amax), begin);
    for (int64_t column = 0; column < columns; column += n.columns) {
      const int64_t width = std::min<int64_t>(n.columns, columns - column);
      uint32_t largest = 0;
      for (int64_t r = begin; r < end; ++r)
        largest = std::max(largest, stretches.largest(r * columns + column, width));
      const float amax = std::bit_cast<float>(largest > 0x7f800000u ? nan_magnitude : largest);
      const Scale scale =
          n.plain ? scale_of_block(n, amax, amax_above_blocks)
                  : scale_by_elements(n, *call, x, begin * columns + column, end - begin,
                                      std::min<int64_t>(n.columns, columns - column), amax);
      for (int64_t r = begin; r < end; ++r) stretches.add(scale, r * columns + column, width, to);
    }
  });
}

}  // namespace halftone
