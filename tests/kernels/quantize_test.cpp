// Quantizers: the reference's bits for every rounding and scaling, at sizes near those of warps and
// groups of four.
#include <bit>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>
#include <halftone/core/pending.h>

#include "../core/quantizer_cases.h"
#include "against_reference.h"

namespace halftone::test {
namespace {

void check_bits(const Tensors& in, const Tensors& out, const KernelCall& call) {
  check_against_reference(in, out, same, call);
}

/// Numbers of many magnitudes. Every third has few significant bits, so that it may be halfway
/// between two numbers of a short format. Some are beyond the largest of e5m2 or subnormal.
/// special: also infinity, NaN and -0.
Tensor spread(const Shape& shape, DType dtype, bool special) {
  Tensor x = randn(shape);
  constexpr float edges[] = {57344, -59392, 61440, -70000, 90000, 0x1p-149f, -0x1.8p-127f, -464};
  for (int64_t i = 0; i < x.numel(); ++i) {
    float& value = x.data<float>()[i];
    value *= std::ldexp(1.0f, int(i * 7 % 31) - 20);
    if (i % 3 == 1)
      value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & ~0u << (17 + i % 6));
    if (i % 41 == 20) value = edges[i / 41 % 8];
  }
  if (special && x.numel() > 3) {
    x.data<float>()[0] = std::numeric_limits<float>::infinity();
    x.data<float>()[x.numel() - 1] = -std::numeric_limits<float>::quiet_NaN();
    x.data<float>()[x.numel() / 2] = -0.0f;
  }
  Tensor y = empty(shape, dtype);
  backend_for(y).copy(x, y);
  return y;
}

TEST_CASE("kernels: f8 numbers times their factors are the quantized values") {
  Scaling powers = Scaling::per_tensor();
  powers.power_of_two = true;
  for (const DType dtype : {f32, f16, bf16})
    for (const Shape& shape : {Shape{3, 37}, Shape{2, 1030}, Shape{5, 3, 64}})
      for (const NumberFormat& format : {formats::e4m3, formats::e5m2})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic})
          for (const Scaling& scaling :
               {Scaling{}, powers, Scaling::per_row(), Scaling::per_row(formats::e8m0),
                Scaling::per_block(1, 32)}) {
            const Quantizer quantizer{.grid = format, .rounding = rounding, .scaling = scaling};
            INFO(described(quantizer), ", ", shape, " ", dtype);
            check_bits({spread(shape, dtype, false)}, {empty(shape, f32)},
                       [&](Backend& backend, const Tensors& in, Tensors& out) {
                         const QuantizeCall call{.quantizer = quantizer, .key = {5, 3}};
                         if (in[0].device() == Device::cpu())
                           return backend.copy(quantized(in[0].to(f32), call), out[0]);
                         backend.copy(waiting_operand(quantized_f8(in[0], call), f32), out[0]);
                       });
          }
}

TEST_CASE("kernels: f32 numbers times their factor are the quantized values") {
  Scaling powers = Scaling::per_tensor();
  powers.power_of_two = true;
  for (const DType dtype : {f32, bf16})
    for (const Shape& shape : {Shape{3, 37}, Shape{2, 1030}})
      for (const NumberFormat& format : {formats::e4m3, formats::e5m2})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic})
          for (const Scaling& scaling : {powers, Scaling::per_tensor()}) {
            const Quantizer quantizer{.grid = format, .rounding = rounding, .scaling = scaling};
            INFO(described(quantizer), ", ", shape, " ", dtype);
            CHECK(has_one_factor(quantizer));
            check_bits({spread(shape, dtype, false)}, {empty(shape, f32)},
                       [&](Backend& backend, const Tensors& in, Tensors& out) {
                         const QuantizeCall call{.quantizer = quantizer, .key = {5, 3}};
                         const F8Operand apart = quantized_apart(in[0], call);
                         const Tensor values = quantized(in[0].to(f32), call),
                                      again =
                                          quantized(apart.numbers, {.quantizer = {.grid = format}});
                         backend.copy(waiting_operand(apart, f32), out[0]);
                         CHECK(out[0].to_vector<float>() == values.to_vector<float>());
                         CHECK(again.to_vector<float>() == apart.numbers.to_vector<float>());
                       });
          }
}

TEST_CASE("kernels: numbers times the scales of their blocks are the quantized values") {
  Quantizer square = *quantizer_named("nvfp4"), chosen = square, corrected = square;
  square.scaling.rows = 16;
  chosen.scaling.targets = {6, 4};
  corrected.scaling.corrected = true;
  const Quantizer mxfp4 = *quantizer_named("mxfp4"), mxfp8 = *quantizer_named("mxfp8");
  for (const DType dtype : {f32, bf16})
    for (const Shape& shape : {Shape{3, 37}, Shape{35, 64}, Shape{2, 2, 48}})
      for (Quantizer quantizer :
           {*quantizer_named("nvfp4"), square, chosen, corrected, mxfp4, mxfp8})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
          quantizer.rounding = rounding;
          INFO(described(quantizer), ", ", shape, " ", dtype);
          Accumulator unit{.fused = 64, .scaled = quantizer.scaling.columns};
          unit.align = quantizer.grid == formats::e2m1 ? Align::scales : Align::largest;
          unit.least_exponent = quantizer.scaling.scale_format.min_exponent;
          CHECK(has_scales_for(unit, quantizer));
          check_bits({spread(shape, dtype, false)}, {empty(shape, f32)},
                     [&](Backend& backend, const Tensors& in, Tensors& out) {
                       const QuantizeCall call{.quantizer = quantizer, .key = {5, 3}};
                       const F8Operand apart = quantized_f8(in[0], call);
                       const Tensor values = quantized(in[0].to(f32), call);
                       backend.copy(waiting_operand(apart, f32), out[0]);
                       CHECK(out[0].to_vector<float>() == values.to_vector<float>());
                     });
        }
}

TEST_CASE("kernels: quantizers give the reference's bits") {
  for (const DType dtype : {f32, f16, bf16})
    for (const Shape& shape :
         sizes<Shape>({{1, 1}, {3, 37}, {35, 99}, {2, 1030}, {2, 96}, {7, 160}},
                      {{1}, {0, 3}, {33, 100}, {3, 4, 64}, {2, 40000}}))
      for (const bool special : {false, true})
        for (Quantizer quantizer : sizes(usual_quantizers(), more_quantizers())) {
          if (special && with_gpu() && shape[0] * shape[1] > 200) continue;
          for (int rounding = 0; rounding < rounding_count; ++rounding) {
            quantizer.rounding = Rounding(rounding);
            if (!quantizer.exact_in(dtype)) continue;
            // More than a thread's piece: where pieces begin matters to random numbers.
            const bool draws = quantizer.rounding == Rounding::stochastic;
            if (numel_of(shape) > 70000 && !(dtype == f32 && (rounding == 0 || draws))) continue;
            INFO(described(quantizer), ", ", shape, " ", dtype);
            const Tensor x = spread(shape, dtype, special), scale = scalar(1.7);
            const int64_t rows = x.numel() / x.size(-1);
            const Tensor amax = rand({rows});  // of each row; of the tensor: the first
            for (int64_t i = 0; i < rows; ++i) amax.data<float>()[i] += 3;
            check_bits({x, amax, scale}, {empty(shape, dtype)},
                       [&](Backend& backend, const Tensors& in, Tensors& out) {
                         const QuantizeCall call{
                             .quantizer = quantizer, .amax = in[1], .scale = in[2], .key = {4, 9}};
                         backend.quantize(in[0], call, out[0]);
                       });
            if (with_gpu() && rounding > 0) continue;
            check_bits({x}, {empty(shape, dtype)}, [&](Backend&, const Tensors& in, Tensors& out) {
              out[0] = quantized(in[0], {.quantizer = quantizer, .key = {11, 3}});
            });
          }
        }
}

TEST_CASE("kernels: every block chooses the reference's grid") {
  Quantizer quantizer{.grid = formats::e2m1, .scaling = Scaling::per_block(1, 16, formats::e4m3)};
  quantizer.scaling.tensor_level = true;
  quantizer.choice.grids = {formats::e2m1, NumberFormat::integer(4), NumberFormat::ieee_like(3, 0)};
  for (const ScaleError by : {ScaleError::mse, ScaleError::mae, ScaleError::max})
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic})
      for (const int32_t rows : {1, 3})
        for (const Shape& shape : sizes<Shape>({{5, 50}, {7, 160}}, {{1}, {0, 3}, {33, 100}}))
          for (const bool special : {false, true}) {
            quantizer.choice.by = by, quantizer.rounding = rounding;
            quantizer.scaling.rows = rows, quantizer.scaling.columns = rows == 1 ? 16 : 70;
            INFO(described(quantizer), ", ", shape);
            check_bits({spread(shape, f32, special)}, {empty(shape)},
                       [&](Backend&, const Tensors& in, Tensors& out) {
                         out[0] = quantized(in[0], {.quantizer = quantizer, .key = {11, 3}});
                       });
          }
}

TEST_CASE("kernels: blocks whose scale is subnormal") {
  for (const int64_t columns : {16, 600, 1000})
    for (const NumberFormat& grid : {formats::bf16, formats::tf32, formats::e5m2, formats::e4m3})
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic, Rounding::up})
        for (const float largest : {3.8595836e-06f, 1e-6f, 3e-38f, 1e-40f, 2e-45f}) {
          Tensor x = zeros({1, columns});
          x.data<float>()[0] = -largest, x.data<float>()[1] = largest / 3;
          x.data<float>()[5] = largest;
          Quantizer q{.grid = grid, .rounding = rounding, .scaling = Scaling::per_block(1, 1000)};
          q.scaling.scale_format = formats::f32;
          INFO(described(q), ", ", columns, " columns, largest ", largest);
          check_bits({x}, {x}, [&](Backend&, const Tensors& in, Tensors& out) {
            out[0] = quantized(in[0], {.quantizer = q, .key = {4, 0}});
            for (const double y : out[0].to_vector<double>()) CHECK(std::isfinite(y));
          });
        }
}

TEST_CASE("kernels: a skipped quantizer writes nothing") {
  for (const char* name : {"e4m3", "mxfp4"}) {
    const Quantizer quantizer = *quantizer_named(name);
    check_bits({randn({4, 40}), scalar(1)}, {randn({4, 40})},
               [&](Backend& backend, const Tensors& in, Tensors& out) {
                 backend.quantize(in[0], {.quantizer = quantizer, .skip = in[1]}, out[0]);
               });
  }
}

TEST_CASE("kernels: largest magnitudes, rotations, scales from a history") {
  for (const DType dtype : {f32, f16, bf16})
    for (const int64_t n : {1, 31, 300, 70000})
      for (const bool special : {false, true})
        check_bits({spread({n}, dtype, special)}, {scalar(0.25)},
                   [](Backend& backend, const Tensors& in, Tensors& out) {
                     backend.largest_magnitude(in[0], out[0]);
                   });
  check_bits({spread({5, 6, 14}, f32, false)}, {scalar(0.25)},
             [](Backend& backend, const Tensors& in, Tensors& out) {
               const Tensor part = views::slice(views::slice(in[0], 1, 0, 5), 2, 1, 4, 3);
               backend.largest_magnitude(part, out[0]);
             });
  for (const int32_t size : {2, 16, 64})
    for (const bool back : {false, true})
      for (const int64_t columns : {128, 100, 1})
        for (const DType dtype : {f32, f16, bf16})
          check_bits({randn({3, columns}, dtype)}, {empty({3, columns}, dtype)},
                     [&](Backend& backend, const Tensors& in, Tensors& out) {
                       backend.rotate(in[0], {.size = size, .signs = 0xf0f1, .back = back}, out[0]);
                     });
  const Quantizer quantizer{.grid = formats::e4m3, .scaling = Scaling::delayed(3)};
  Tensor amax = rand({600}), history = rand({600, 3});
  amax.data<float>()[7] = std::numeric_limits<float>::infinity(), amax.data<float>()[8] = 0;
  check_bits({}, {amax, history, randint(0, 9, {600}), ones({600})},
             [&](Backend& backend, const Tensors&, Tensors& out) {
               backend.next_scales(quantizer, out[0], out[1], out[2], out[3]);
             });
}

TEST_CASE("kernels: bounds of clips, and clips") {
  const auto check = [](const Tensor& x, const Clip& clip) {
    INFO(x.numel(), " numbers, rms ", clip.rms.value_or(0), ", quantile ",
         clip.quantile.value_or(0));
    check_bits({x}, {empty({}), empty({x.numel()})},
               [&](Backend& backend, const Tensors& in, Tensors& out) {
                 backend.clip_bound(in[0], clip, out[0]);
                 backend.clip(in[0], out[0], out[1]);
               });
  };
  for (const int64_t n : {1, 33, 256, 4097, 9000})
    for (const bool special : {false, true})
      for (const Clip& clip : {Clip{.rms = 1.5}, Clip{.quantile = 1e-9}, Clip{.quantile = 0.4},
                               Clip{.quantile = 0.99}, Clip{.quantile = 1}, Clip{}})
        check(spread({n}, f32, special), clip);
  for (const int64_t n : {300, 4096, 5000, 20'000, 257 * 4096 + 300}) {
    const Tensor x = randn({n});
    if (emulation::deferred() && n > 20'000) continue;
    for (const Clip& clip : clips_near_the_middle(ordered_squares(x.to_vector<float>()), n))
      check(x, clip);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor none = from_vector(std::vector<float>{nan, -nan}, {2});
  for (const Clip& clip : {Clip{.rms = 1}, Clip{.quantile = 0.5}}) check(none, clip);
  Tensor equal = empty({300});
  std::fill_n(equal.data<float>(), 300, -0.75f);
  check(equal, {.quantile = 0.5});
  if (emulation::deferred()) return;
  // Several rows of counts; on the CPU, a search among the numbers above a sample's.
  const auto clipped_near_the_top = [&](const Tensor& x) {
    for (const double share : {0.98, 0.999, 1.0}) check(x, {.quantile = share});
  };
  constexpr int64_t many = 300'000, samples = 4096;
  clipped_near_the_top(randn({many}));
  clipped_near_the_top(ones({many}));
  clipped_near_the_top(spread({many}, f32, true));
  Tensor ascending = arange(many).to(f32), sampled = rand({many}), few = full({many}, nan);
  clipped_near_the_top(ascending);  // too many in one piece
  for (int64_t i = 0; i < samples; ++i) sampled.data<float>()[i * (many / samples)] = 2;
  clipped_near_the_top(sampled);  // the sample is far above the others
  few.data<float>()[1] = 3, few.data<float>()[many - 1] = -4;
  clipped_near_the_top(few);
}

TEST_CASE("a table is computed on the host, in every layout and in place") {
  Quantizer table = Quantizer::of_table({-1, -0.5f, 0, 0.125f, 0.7f, 1});
  table.scaling = Scaling::per_block(1, 16, formats::f32);
  Quantizer whole = Quantizer::of_table({-1, 0, 0.3f, 1});
  whole.scaling = Scaling::per_tensor(), whole.clip.rms = 2;
  Quantizer chosen = table;
  chosen.scaling.targets = {1, 0.7f};
  Tensor special = randn({33, 100});
  special.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  special.data<float>()[500] = std::numeric_limits<float>::infinity();
  for (const Tensor& x : {randn({6, 40}), special})
    for (Quantizer quantizer : {table, whole, chosen})
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic, Rounding::up}) {
        quantizer.rounding = rounding;
        const auto call = [&](const Tensor& skip) {
          return QuantizeCall{.quantizer = quantizer, .skip = skip, .key = {3, 1}};
        };
        const Shape turned{x.shape()[1], x.shape()[0]};
        check_bits({x, ones({})}, {empty(x.shape()), empty(turned), x, x},
                   [&](Backend&, const Tensors& in, Tensors& out) {
                     out[0] = quantized(in[0], call({}));
                     out[1] = quantized(views::transpose(in[0], 0, 1), call({}));
                     quantize_in_place(out[2], call({}));
                     quantize_in_place(out[3], call(in[1]));
                   });
      }
}

TEST_CASE("kernels: quantizers with a clip, whole and in place") {
  for (const DType dtype : {f32, bf16})
    for (const Clip& clip : {Clip{.rms = 1}, Clip{.quantile = 0.9}})
      for (const char* name : {"e4m3", "mxfp8", "mxfp4", "nvfp4", "fp8_tensor"}) {
        Quantizer quantizer = *quantizer_named(name);
        quantizer.clip = clip;
        for (const int32_t rotation : {0, 16}) {
          quantizer.hadamard = rotation, quantizer.draws_signs = rotation > 0;
          quantizer.rounding = rotation > 0 ? Rounding::stochastic : Rounding::nearest_even;
          if (!quantizer.exact_in(dtype)) continue;
          INFO(described(quantizer), " ", dtype);
          const Tensor x = randn({6, 64}, dtype);
          check_bits({x, zeros({}), ones({})}, {empty({6, 64}, dtype), x, x},
                     [&](Backend&, const Tensors& in, Tensors& out) {
                       const RandomKey key{3, 5};
                       out[0] = quantized(in[0], {.quantizer = quantizer, .key = key});
                       const auto in_place = [&](const Tensor& skip, const Tensor& y) {
                         quantize_in_place(y, {.quantizer = quantizer, .skip = skip, .key = key});
                       };
                       in_place(in[1], out[1]), in_place(in[2], out[2]);
                     });
        }
      }
}

TEST_CASE("kernels: products that add up on a grid") {
  for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero, Rounding::down})
    for (const int32_t chunk : {0, 5}) {
      const Accumulator accumulator{formats::f16, rounding, chunk};
      for (const DType dtype : {f32, bf16})
        check_bits({randn({2, 5, 33}, dtype), randn({2, 33, 9}, dtype), randn({9}, dtype)},
                   {empty({2, 5, 9}, dtype)},
                   [&](Backend& backend, const Tensors& in, Tensors& out) {
                     backend.matmul_accumulating(in[0], in[1], in[2], accumulator, out[0]);
                   });
    }
}

TEST_CASE("kernels: products that add up as matrix units do") {
  for (const NamedAccumulator& machine : named_accumulators())
    for (const int64_t columns : {3, 150}) {
      CAPTURE(machine.name);
      Accumulator unit = machine.accumulator;
      unit.chunk = columns == 3 ? 0 : 2 * unit.fused;
      const int64_t with_scale = unit.scaled + 1, k = unit.scaled > 0 ? 7 * with_scale : 163;
      Tensor a = randn({2, 5, k}), b = randn({2, k, columns});
      for (int64_t i = 0; i < a.numel(); i += 9)
        a.data<float>()[i] = std::ldexp(1.5f, int(i % 50) - 30);
      if (unit.scaled > 0)  // the last of each block is a scale
        for (Tensor* const x : {&a, &b})
          for (int64_t i = 0; i < x->numel(); ++i) {
            const int64_t at = x == &a ? i % k : i / columns % k;
            float& value = x->data<float>()[i];
            value = at % with_scale == unit.scaled ? std::ldexp(1.25f, int(i % 60) - 30)
                                                   : round_to(formats::e2m1, value);
          }
      check_bits({a, b, randn({columns})}, {empty({2, 5, columns})},
                 [&](Backend& backend, const Tensors& in, Tensors& out) {
                   backend.matmul_accumulating(in[0], in[1], in[2], unit, out[0]);
                 });
    }
}

}  // namespace

// Surveys on the GPU: the reference's exact counts, its sums up to the order of addition, and rows
// that accumulate over calls.

namespace {

Survey surveyed(const Tensor& x, const Quantizer* quantizer, Device device) {
  const Tensor row = new_survey_row(device), here = x.to(device);
  for (int twice = 0; twice < 2; ++twice) {
    if (!quantizer) survey(here, here, nullptr, row);
    else quantized(here, {.quantizer = *quantizer, .survey = row});
  }
  return Survey::from(row);
}

void check_equal(const Survey& got, const Survey& wanted) {
  CHECK(got.binade == wanted.binade);
  const SurveySums &a = got.sums, &b = wanted.sums;
  for (const auto& [x, y] : {std::pair(a.count, b.count),
                             {a.zeros, b.zeros},
                             {a.infinite, b.infinite},
                             {a.nan, b.nan},
                             {a.to_zero, b.to_zero},
                             {a.subnormal, b.subnormal},
                             {a.saturated, b.saturated},
                             {a.to_infinity, b.to_infinity},
                             {a.changed, b.changed},
                             {a.largest, b.largest},
                             {a.smallest, b.smallest}})
    CHECK(x == y);
  for (const auto& [x, y] : {std::pair(a.sum_x2, b.sum_x2),
                             {a.sum_e2, b.sum_e2},
                             {a.sum_abs_x, b.sum_abs_x},
                             {a.sum_relative, b.sum_relative},
                             {a.dead_x2, b.dead_x2},
                             {a.saturated_x2, b.saturated_x2},
                             {a.saturated_e2, b.saturated_e2},
                             {a.grid_x2, b.grid_x2},
                             {a.grid_e2, b.grid_e2}})
    CHECK(x == doctest::Approx(y).epsilon(1e-12));
  CHECK(std::abs(a.grid_xe - b.grid_xe) <= 1e-12 * b.grid_x2);
  CHECK(std::abs(a.saturated_xe - b.saturated_xe) <= 1e-12 * b.saturated_x2);
  CHECK(std::abs(a.sum_e - b.sum_e) <= 1e-12 * b.sum_abs_x);
}

TEST_CASE("kernels: surveys count as the reference does") {
  std::vector<std::optional<Quantizer>> all{std::nullopt};
  for (const char* name : {"e4m3", "e5m2", "mxfp8", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"})
    all.push_back(quantizer_named(name));
  for (const char* name : {"e4m3", "mxfp4", "nvfp4"}) {
    Quantizer clipped = *quantizer_named(name);
    clipped.clip.rms = 1;
    all.push_back(clipped);
    if (clipped.scaling.tensor_level) clipped.scaling.targets = {6, 4}, all.push_back(clipped);
  }
  for (const DType dtype : {f32, bf16})
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 37}, Shape{150, 131}, Shape{2, 3, 40}})
      for (const bool special : {false, true})
        for (const std::optional<Quantizer>& quantizer : all) {
          if (quantizer && !quantizer->exact_in(dtype)) continue;
          INFO(shape, " ", dtype, " ", quantizer ? described(*quantizer) : "as it is");
          Tensor x = randn(shape);
          for (int64_t i = 0; i < x.numel(); ++i)
            x.data<float>()[i] *= std::ldexp(1.0f, int(i * 7 % 31) - 20);
          if (special && x.numel() > 3) {
            x.data<float>()[0] = std::numeric_limits<float>::infinity();
            x.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
            x.data<float>()[2] = -0.0f;
          }
          x = x.to(dtype);
          const Quantizer* const used = quantizer ? &*quantizer : nullptr;
          const Survey wanted = [&] {
            const CpuBackendScope reference("reference");
            return surveyed(x, used, Device::cpu());
          }();
          for (const KernelTarget& target : kernel_targets()) {
            const OnTarget scope(target);
            INFO(target.name);
            check_equal(surveyed(x, used, target.device), wanted);
          }
        }
}

}  // namespace
}  // namespace halftone::test
