// Samples of interpolation. The oracle is its definition as a sum over all pixels: the weight of a
// pixel is 1 minus its distance to the requested position, if that is positive.
#pragma once

#include <algorithm>

#include "ops/samples_case.h"

namespace halftone::test {

template <> struct Samples<Interpolate> {
  /// The weight of input i in output o along one axis of `in` and `out` positions.
  static double weight(const InterpolateOptions& o, double factor, int64_t in, int64_t out,
                       int64_t to, int64_t from) {
    const double step = o.scale_factor ? 1 / factor : double(in) / double(out);
    if (o.mode == Interpolation::nearest)
      return from == std::min(int64_t(double(to) * step + 1e-9), in - 1) ? 1 : 0;
    double place = (double(to) + 0.5) * step - 0.5;
    if (o.align_corners) place = out > 1 ? double(to * (in - 1)) / double(out - 1) : 0;
    place = std::clamp(place, 0.0, double(in - 1));
    return std::max(0.0, 1 - std::abs(place - double(from)));
  }
  static Array oracle(const Array& x, const InterpolateOptions& o) {
    const Factors factors = o.scale_factor.value_or(1.0);
    const int64_t h = x.size(2), w = x.size(3);
    const Shape shape{x.size(0), x.size(1),
                      o.size ? o.size->height : int64_t(double(h) * factors.height),
                      o.size ? o.size->width : int64_t(double(w) * factors.width)};
    return array_of(shape, [&](const Dims& i) {
      double sum = 0;
      for (int64_t iy = 0; iy < h; ++iy)
        for (int64_t ix = 0; ix < w; ++ix)
          sum += weight(o, factors.height, h, shape[2], i[2], iy) *
                 weight(o, factors.width, w, shape[3], i[3], ix) * x(i[0], i[1], iy, ix);
      return sum;
    });
  }
  static Case of(std::string name, const Shape& x, const InterpolateOptions& o) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}},
            .call = [o](const Tensors& in) { return interpolate(in[0], o); },
            .oracle = [o](const Arrays& in) { return oracle(in[0], o); },
            .reduced = 4};
  }
  static OpSamples make() {
    struct Size {
      std::string name;
      Shape x;
      InterpolateOptions options;
    };
    const std::vector<Size> sizes{{"doubled", {2, 3, 4, 5}, {.scale_factor = 2.0}},
                                  {"to a size", {1, 2, 3, 4}, {.size = Pair{5, 7}}},
                                  {"smaller", {1, 5, 9, 8}, {.size = Pair{4, 3}}},
                                  {"up and down", {2, 1, 2, 9}, {.size = Pair{7, 2}}},
                                  {"factors", {1, 2, 5, 4}, {.scale_factor = Factors{1.5, 2.75}}},
                                  {"to one", {1, 2, 3, 3}, {.size = 1}},
                                  {"from one", {1, 3, 1, 1}, {.size = Pair{3, 2}}},
                                  {"the same size", {1, 2, 3, 3}, {.size = 3}},
                                  {"many channels", {1, 70, 3, 2}, {.scale_factor = 2.0}},
                                  {"no images", {0, 2, 3, 3}, {.scale_factor = 2.0}}};
    std::vector<Case> cases;
    for (const auto& [name, x, given] : sizes) {
      InterpolateOptions o = given;
      cases.push_back(of("nearest, " + name, x, o));
      o.mode = Interpolation::bilinear;
      cases.push_back(of("bilinear, " + name, x, o));
      o.align_corners = true;
      cases.push_back(of("bilinear with aligned corners, " + name, x, o));
    }
    const auto with = [](const Shape& shape, InterpolateOptions o) {
      return [=] { interpolate(ones(shape), o); };
    };
    return {
        .cases = cases,
        .errors = {
            error<UsageError>("[interpolate] neither of size and scale_factor given. Give one of "
                              "them.",
                              with({1, 1, 2, 2}, {})),
            error<UsageError>(
                "[interpolate] both of size and scale_factor given. Give one of them.",
                with({1, 1, 2, 2}, {.size = 2, .scale_factor = 2.0})),
            error<UsageError>("[interpolate] align_corners has no meaning for nearest. Leave it, "
                              "or use bilinear.",
                              with({1, 1, 2, 2}, {.size = 2, .align_corners = true})),
            error<UsageError>("[interpolate] scale_factor is -1. It must be positive.",
                              with({1, 1, 2, 2}, {.scale_factor = Factors{2, -1}})),
            error<ShapeError>("[interpolate] x is [2, 2] f32, of rank 2. It must have rank 4.",
                              with({2, 2}, {.size = 2})),
            error<ShapeError>("[interpolate] the output would be [1, 1, 0, 0] for x [1, 1, 2, 2] "
                              "f32. Both must have elements.",
                              with({1, 1, 2, 2}, {.scale_factor = 0.25})),
            error<ShapeError>("[interpolate] the output would be [1, 1, 2, 2] for x [1, 1, 0, 2] "
                              "f32. Both must have elements.",
                              with({1, 1, 0, 2}, {.size = 2}))}};
  }
};

}  // namespace halftone::test
