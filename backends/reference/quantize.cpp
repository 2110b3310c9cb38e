// Quantizers, surveys, and products with rounded sums.
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <halftone/backends/reference/loops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/sums.h>
#include <halftone/core/formats/survey.h>

namespace halftone {

// Quantizers element by element, with the functions of core/formats/quantizer.h; other backends
// must match them to the bit.

using namespace reference;

namespace {

float scalar_or(const Tensor& x, float otherwise) {
  return x.defined() ? *x.data<float>() : otherwise;
}

/// The four random words of one counter serve four neighbors.
class Words {
 public:
  explicit Words(const QuantizeCall& call)
      : key_(call.key), needed_(call.quantizer.rounding == Rounding::stochastic) {}
  uint32_t operator()(uint64_t element) {
    if (!needed_) return 0;
    if (element / 4 != group_) {
      group_ = element / 4;
      words_ = Philox::words(key_.seed, key_.offset + group_);
    }
    return words_[element % 4];
  }

 private:
  RandomKey key_;
  bool needed_;
  uint64_t group_ = ~uint64_t(0);
  std::array<uint32_t, 4> words_{};
};

void quantize_run(const QuantizeNumbers& n, const Scale& scale, Words& words, const Tensor& x,
                  int64_t first, int64_t count, const Tensor& y) {
  float values[block_length];
  for (int64_t begin = 0; begin < count; begin += block_length) {
    const int64_t length = std::min(block_length, count - begin);
    load(x, first + begin, length, values);
    for (int64_t i = 0; i < length; ++i)
      values[i] = quantize_element(n, scale, values[i], words(uint64_t(first + begin + i)));
    store(values, length, y, first + begin);
  }
}

uint32_t largest_of(const Tensor& x, int64_t offset, int64_t step, int64_t count) {
  float values[block_length];
  uint32_t largest = 0;
  for (int64_t begin = 0; begin < count; begin += block_length) {
    const int64_t length = std::min(block_length, count - begin);
    load(x, offset + begin * step, step, length, values);
    for (int64_t i = 0; i < length; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  }
  return largest;
}

float as_magnitude(uint32_t bits) {
  return std::bit_cast<float>(bits > 0x7f800000u ? nan_magnitude : bits);
}

/// Quantizes blocks side by side, in rows [row, row + height). With call.factor the results are
/// numbers on the grid.
void quantize_band(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x, int64_t row,
                   int64_t height, const Tensor& y) {
  const int64_t columns = x.size(-1), across = pieces_of(columns, n.columns);
  const float amax_above_blocks = amax_above(n, floats_of(call.amax), row);
  if (call.factor.defined() && row == 0)
    call.factor.data<float>()[call.factor.numel() - 1] = 1 / level_of(n, amax_above_blocks).g;
  Words words(call);
  for (int64_t column = 0; column < columns; column += n.columns) {
    const int64_t width = std::min<int64_t>(n.columns, columns - column);
    uint32_t largest = 0;
    for (int64_t r = row; r < row + height; ++r)
      largest = std::max(largest, largest_of(x, r * columns + column, 1, width));
    Scale scale = n.plain ? scale_of_block(n, as_magnitude(largest), amax_above_blocks)
                          : scale_by_elements(n, call, x, row * columns + column, height, width,
                                              as_magnitude(largest));
    if (call.factor.defined()) {
      call.factor.data<float>()[row / n.rows * across + column / n.columns] = scale.out;
      scale.out = scale.tail = 1;
    }
    for (int64_t r = row; r < row + height; ++r) {
      const int64_t first = r * columns + column;
      if (n.inner_levels == 0) quantize_run(n, scale, words, x, first, width, y);
      else
        each_inner(
            n, scale, width, as_magnitude(largest),
            [&](int64_t at, int64_t count) {
              return as_magnitude(largest_of(x, first + at, 1, count));
            },
            [&](const Scale& own, int64_t at, int64_t count) {
              quantize_run(n, own, words, x, first + at, count, y);
            });
    }
  }
}

}  // namespace

void ReferenceBackend::largest_magnitude(const Tensor& x, Tensor& amax) {
  const LoopNest<1> nest(x);
  Workspace<uint32_t> pieces(pieces_of(nest.turns(), grain_length));
  parallel_pieces(nest.turns(), grain_length, [&](int64_t begin, int64_t end) {
    uint32_t largest = 0;
    nest.runs(begin, end, [&](Offsets<1> offset, Offsets<1> step, int64_t count) {
      largest = std::max(largest, largest_of(x, offset[0], step[0], count));
    });
    pieces[begin / grain_length] = largest;
  });
  uint32_t largest = magnitude_bits(*amax.data<float>());
  for (int64_t i = 0; i < pieces.size(); ++i) largest = std::max(largest, pieces[i]);
  *amax.data<float>() = as_magnitude(largest);
  amax.storage()->bump_version();
}

void ReferenceBackend::clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) {
  *bound.data<float>() = halftone::clip_bound(clip, {x.data<float>(), std::size_t(x.numel())});
}

void ReferenceBackend::clip(const Tensor& x, const Tensor& bound, Tensor& y) {
  parallel_pieces(x.numel(), grain_length,
                  [&, most = *bound.data<float>()](int64_t begin, int64_t end) {
                    const float* const from = x.data<float>();
                    float* const to = y.data<float>();
                    for (int64_t i = begin; i < end; ++i) to[i] = clipped(from[i], most);
                  });
}

void ReferenceBackend::quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) {
  if (x.numel() == 0 || scalar_or(call.skip, 0) != 0) return;
  const QuantizeNumbers n = numbers_of(call.quantizer);
  if (n.per == Scaling::Per::block) {
    const int64_t rows = x.numel() / x.size(-1);
    parallel_pieces(rows, n.rows, [&](int64_t begin, int64_t end) {
      quantize_band(n, call, x, begin, end - begin, y);
    });
    return;
  }
  Scale scale;
  if (n.per == Scaling::Per::tensor)
    scale = scale_per_tensor(n.from_history ? scalar_or(call.scale, 1)
                                            : scale_of_tensor(n, scalar_or(call.amax, 0)));
  if (call.factor.defined()) *call.factor.data<float>() = std::exchange(scale.out, 1.0f);
  parallel_pieces(x.numel(), grain_length, [&](int64_t begin, int64_t end) {
    Words words(call);
    quantize_run(n, scale, words, x, begin, end - begin, y);
  });
}

namespace {
/// Blocks side by side, whose sums do not wait for each other.
constexpr int64_t together = 8;

/// Adds one row, of `count` elements, to the errors of blocks of `width` columns: each from left to
/// right, as least_candidate() does.
void add_errors(ScaleError by, const float* before, const float* after, int64_t count,
                int64_t width, double* errors) {
  constexpr int64_t piece = 32;
  for (int64_t left = 0; left < width; left += piece) {
    double terms[together][piece] = {};  // beyond a block: 0, which changes no error
    const int64_t most = std::min(piece, width - left);
    for (int64_t b = 0; b < together; ++b) {
      const int64_t first = b * width + left, n = std::min(most, count - first);
      for (int64_t j = 0; j < n; ++j) {
        const double d = double(after[first + j]) - double(before[first + j]);
        terms[b][j] = by == ScaleError::mse ? rounded_product(d, d) : std::abs(d);
      }
    }
    for (int64_t j = 0; j < most; ++j)
      for (int64_t b = 0; b < together; ++b) {
        const double e = terms[b][j];
        if (by == ScaleError::max) errors[b] = e > errors[b] ? e : errors[b];
        else errors[b] += e;
      }
  }
}
}  // namespace

void ReferenceBackend::choose_blocks(const Quantizer& quantizer, const Tensor& x,
                                     std::span<const Tensor> measured,
                                     std::span<const Tensor> results, Tensor& y) {
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  const int64_t width = std::min<int64_t>(quantizer.scaling.columns, columns);
  parallel_pieces(rows, quantizer.scaling.rows, [&](int64_t begin, int64_t end) {
    for (int64_t left = 0; left < columns; left += together * width) {
      const int64_t count = std::min(together * width, columns - left);
      const auto at = [&, left](const Tensor& t, int64_t row) {
        return t.data<float>() + row * columns + left;
      };
      double least[together] = {};
      std::size_t best[together] = {};
      for (std::size_t k = 0; k < measured.size(); ++k) {
        double errors[together] = {};
        for (int64_t i = begin; i < end; ++i)
          add_errors(quantizer.choice.by, at(x, i), at(measured[k], i), count, width, errors);
        for (int64_t b = 0; b < together; ++b)
          if (k == 0 || errors[b] < least[b]) best[b] = k, least[b] = errors[b];
      }
      for (int64_t i = begin; i < end; ++i)
        for (int64_t b = 0; b * width < count; ++b)
          std::copy_n(at(results[best[b]], i) + b * width, std::min(width, count - b * width),
                      at(y, i) + b * width);
    }
  });
  y.storage()->bump_version();
}

void ReferenceBackend::rotate(const Tensor& x, const Rotation& rotation, Tensor& y) {
  if (x.numel() == 0) return;
  const auto inverse_root = float(1 / std::sqrt(double(rotation.size)));
  const RotationSigns signs = signs_of(rotation, rotation.key);
  const int64_t columns = x.size(-1), across = pieces_of(columns, rotation.size);
  parallel_pieces(x.numel() / columns * across, grain_length / Rotation::largest,
                  [&](int64_t begin, int64_t end) {
                    float group[Rotation::largest];
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t j = i % across * rotation.size,
                                    first = i / across * columns + j,
                                    count = std::min<int64_t>(rotation.size, columns - j);
                      load(x, first, count, group);
                      if (count == rotation.size)
                        rotate_group(group, rotation, signs, inverse_root);
                      store(group, count, y, first);
                    }
                  });
}

void ReferenceBackend::next_scales(const Quantizer& quantizer, Tensor& amax, Tensor& history,
                                   Tensor& position, Tensor& scale) {
  const QuantizeNumbers n = numbers_of(quantizer);
  const int64_t steps = history.size(-1);
  for (int64_t i = 0; i < amax.numel(); ++i)
    next_scale(n, steps, quantizer.scaling.latest, amax.data<float>()[i],
               history.data<float>() + i * steps, position.data<int64_t>()[i],
               scale.data<float>()[i]);
  for (const Tensor* written : {&amax, &history, &position, &scale})
    written->storage()->bump_version();
}

// Surveys element by element, with survey_element() of core/formats/survey.h. Each piece of the
// tensor has its own row, and rows are added up in the order of the pieces: the sums do not depend
// on threads.

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
      const float amax = as_magnitude(largest);
      const Scale scale =
          n.plain ? scale_of_block(n, amax, amax_above_blocks)
                  : scale_by_elements(n, *call, x, begin * columns + column, end - begin,
                                      std::min<int64_t>(n.columns, columns - column), amax);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t first = r * columns + column;
        if (n.inner_levels == 0) stretches.add(scale, first, width, to);
        else
          each_inner(
              n, scale, width, amax,
              [&](int64_t at, int64_t count) {
                return as_magnitude(stretches.largest(first + at, count));
              },
              [&](const Scale& own, int64_t at, int64_t count) {
                stretches.add(own, first + at, count, to);
              });
      }
    }
  });
}

// Matrix products whose sums stay on a grid; they are computed one after the other
// (core/formats/number_format.h).

using namespace reference;

namespace {

/// The part of a matrix that one result needs: the start of its row (column), and the step along k.
struct Line {
  int64_t offset, step;
};
Line line_of(const Tensor& x, int64_t batch, int64_t index, int across, int along) {
  const int64_t batch_step = x.rank() == 3 && x.size(0) > 1 ? x.strides()[0] : 0;
  return {batch * batch_step + index * x.strides()[x.rank() + across],
          x.strides()[x.rank() + along]};
}

float sum_of_products(const Grid& grid, const Accumulator& accumulator, const Tensor& a, Line row,
                      const Tensor& b, Line column, int64_t k) {
  const int64_t chunk = accumulator.chunk > 0 ? accumulator.chunk : std::max<int64_t>(k, 1);
  const int64_t steps = accumulator.fused > 0 ? block_length / accumulator.fused : block_length;
  const int64_t most = steps * std::max(accumulator.fused, 1);  // products loaded together
  float total = 0, left[block_length], right[block_length];
  for (int64_t first = 0; first < k; first += chunk) {
    const int64_t end = std::min(k, first + chunk);
    float sum = 0;
    for (int64_t begin = first; begin < end; begin += most) {
      const int64_t count = std::min(most, end - begin);
      load(a, row.offset + begin * row.step, row.step, count, left);
      load(b, column.offset + begin * column.step, column.step, count, right);
      sum = visit_rounding(accumulator.rounding, [&]<Rounding r>() {
        const auto term = [&](int64_t i) { return sums::Factors{left[i], right[i]}; };
        return accumulator.scaled > 0 ? sums::added<r, true>(accumulator, grid, count, sum, term)
                                      : sums::added<r, false>(accumulator, grid, count, sum, term);
      });
    }
    total = rounded_sum(total, sum);
  }
  return total;
}

}  // namespace

void ReferenceBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                           const Accumulator& accumulator, Tensor& c) {
  if (c.numel() == 0) return;
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  const Grid grid = grid_of(accumulator.grid, accumulator.rounding);
  const Accumulator unit = sums::counting_scales(accumulator);
  parallel_pieces(c.numel() / n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < n; ++column) {
        const int64_t batch = row / m;
        float sum = sum_of_products(grid, unit, a, line_of(a, batch, row % m, -2, -1), b,
                                    line_of(b, batch, column, -1, -2), k);
        if (bias.defined()) {
          float added;
          load(bias, column * bias.strides()[0], 1, &added);
          sum = rounded_sum(sum, added);
        }
        store(&sum, 1, c, row * n + column);
      }
  });
}

}  // namespace halftone
