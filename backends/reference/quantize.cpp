// Quantizers element by element, with the functions of core/formats/quantizer.h; other backends must match
// them to the bit.
#include <halftone/backends/reference/reference.h>

#include <cmath>

#include <halftone/backends/reference/block_scales.h>
#include <halftone/backends/reference/runs.h>
#include <halftone/core/formats/block_scale.h>

namespace halftone {

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

/// Quantizes blocks side by side, in rows [row, row + height).
void quantize_band(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x, int64_t row,
                   int64_t height, const Tensor& y) {
  const int64_t columns = x.size(-1);
  const float amax_above_blocks = amax_above(n, floats_of(call.amax), row);
  Words words(call);
  for (int64_t column = 0; column < columns; column += n.columns) {
    const int64_t width = std::min<int64_t>(n.columns, columns - column);
    uint32_t largest = 0;
    for (int64_t r = row; r < row + height; ++r)
      largest = std::max(largest, largest_of(x, r * columns + column, 1, width));
    const Scale scale = n.plain ? scale_of_block(n, as_magnitude(largest), amax_above_blocks)
                                : scale_by_elements(n, call, x, row * columns + column, height,
                                                    width, as_magnitude(largest));
    for (int64_t r = row; r < row + height; ++r)
      quantize_run(n, scale, words, x, r * columns + column, width, y);
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
  parallel_pieces(x.numel(), grain_length, [&](int64_t begin, int64_t end) {
    Words words(call);
    quantize_run(n, scale, words, x, begin, end - begin, y);
  });
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

}  // namespace halftone
