// Compares own convolution products with oneDNN's kernels, layer by layer for the models below. The
// rule products_win() of backends/cpu/conv_windows.h is based on these times. The only program
// that uses internals of the backend.
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>

#include "../examples/output.h"
#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/core/factory.h>
#include <halftone/halftone.h>

namespace ht = halftone;

namespace {
struct Layer {
  int64_t images, in, side, out, kernel, stride;
};
// Layers of LeNet, of ResNet-18 on 32 x 32 and of ResNet-18 on 224 x 224.
constexpr std::array layers{
    Layer{128, 1, 28, 32, 3, 1},   Layer{128, 32, 14, 64, 3, 1},  Layer{64, 3, 32, 64, 3, 1},
    Layer{64, 64, 32, 64, 3, 1},   Layer{64, 64, 32, 128, 3, 2},  Layer{64, 64, 32, 128, 1, 2},
    Layer{64, 128, 16, 128, 3, 1}, Layer{64, 128, 16, 256, 3, 2}, Layer{64, 128, 16, 256, 1, 2},
    Layer{64, 256, 8, 256, 3, 1},  Layer{64, 256, 8, 512, 3, 2},  Layer{64, 256, 8, 512, 1, 2},
    Layer{64, 512, 4, 512, 3, 1},  Layer{16, 3, 224, 64, 7, 2},   Layer{16, 64, 56, 64, 3, 1},
    Layer{16, 64, 56, 128, 3, 2},  Layer{16, 64, 56, 128, 1, 2},  Layer{16, 128, 28, 128, 3, 1},
    Layer{16, 128, 28, 256, 3, 2}, Layer{16, 128, 28, 256, 1, 2}, Layer{16, 256, 14, 256, 3, 1},
    Layer{16, 256, 14, 512, 3, 2}, Layer{16, 256, 14, 512, 1, 2}, Layer{16, 512, 7, 512, 3, 1}};

/// Returns GFLOP/s of the fastest of several calls; 0 if the path does not support the layer.
template <class Path> double speed(double flops, const Path& path) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  if (!path()) return 0;
  double least = 1e9;
  const auto start = Clock::now();
  for (int i = 0; i < 5 || (i < 60 && since(start) < 0.25); ++i) {
    const auto begin = Clock::now();
    path();
    least = std::min(least, since(begin));
  }
  return flops / least / 1e9;
}

ht::Tensor images(const ht::Shape& shape, ht::DType dtype) {
  ht::Tensor x = ht::empty_channels_last(shape, dtype, {});
  ht::backend_for(x).copy(ht::cast(ht::randn(shape), dtype), x);
  return x;
}

void print_layer(const Layer& l, ht::DType dtype) {
  const int64_t padding = l.kernel / 2, side = (l.side + 2 * padding - l.kernel) / l.stride + 1;
  const ht::ConvGeometry g{.stride = {l.stride, l.stride}, .padding = {padding, padding}};
  const ht::Shape kernel{l.out, l.in, l.kernel, l.kernel};
  ht::Tensor x = images({l.images, l.in, l.side, l.side}, dtype),
             y = images({l.images, l.out, side, side}, dtype), dx = ht::empty_like(x, dtype),
             dw = ht::zeros(kernel);
  const ht::Tensor w = ht::cast(ht::randn(kernel), dtype);
  const double flops = 2 * double(y.numel()) * double(l.in * l.kernel * l.kernel);
  const bool own =
      dtype == ht::bf16 ? ht::cpu::bf16_products_serve(x, w, g) : ht::cpu::products_serve(x, w, g);
  const auto products = [&](auto of_f32, auto of_bf16) {
    return speed(flops, [&] {
      if (own && dtype == ht::bf16) of_bf16();
      else if (own) of_f32();
      return own;
    });
  };
  std::printf("%4lld x %3lld %3lld -> %3lld, %lld x %lld / %lld ", (long long)l.images,
              (long long)l.in, (long long)l.side, (long long)l.out, (long long)l.kernel,
              (long long)l.kernel, (long long)l.stride);
  const auto compare = [](double theirs, double ours) {
    std::printf("  %6.0f %6.0f %5.2f", theirs, ours, theirs > 0 ? ours / theirs : 0);
  };
  using namespace ht::cpu;
  compare(speed(flops, [&] { return ht::onednn::conv(x, w, {}, g, y); }),
          products([&] { conv_by_products(x, w, {}, g, y); },
                   [&] { conv_by_bf16_products(x, w, {}, g, y); }));
  compare(speed(flops, [&] { return ht::onednn::conv_backward_data(y, w, g, dx); }),
          products([&] { conv_backward_data_by_products(y, w, g, dx); },
                   [&] { conv_backward_data_by_bf16_products(y, w, g, dx); }));
  compare(speed(flops, [&] { return ht::onednn::conv_backward_weights(x, y, g, dw); }),
          products([&] { conv_backward_weights_by_products(x, y, g, dw); },
                   [&] { conv_backward_weights_by_bf16_products(x, y, g, dw); }));
  std::printf("\n"), std::fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  std::string dtype = "f32";
  int threads = omp_get_max_threads();
  CLI::App app(
      "Own convolution products compared with oneDNN's kernels: GFLOP/s, and their ratio.");
  app.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--threads", threads, "OpenMP threads")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(threads);
  try {
    const ht::NoGrad no_grad;
    std::printf("%-32s%-22s%-22s%s\n", "images x channels, side -> out", "forward: oneDNN, own",
                "data", "weights");
    for (const Layer& layer : layers) print_layer(layer, dtype == "f32" ? ht::f32 : ht::bf16);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
