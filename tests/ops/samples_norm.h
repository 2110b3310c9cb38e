// Samples of the normalizations. All of them use one oracle: elements that share statistics form a
// group; the affine parameters are read by another index.
#pragma once

#include <map>

#include "ops/samples_elementwise.h"
#include "ops/samples_reduce.h"

namespace halftone::test {

/// y = (x - mean) / sqrt(variance + eps) * weight[a] + bias[a]; groups by group(index), a by
/// affine(index). Undefined weights and biases are empty arrays.
template <class Group, class Affine>
Array normalized(const Array& x, const Array& weight, const Array& bias, double eps, bool centred,
                 const Group& group, const Affine& affine) {
  std::map<int64_t, Values> groups;
  each_index(x.shape, [&](const Dims& i) { groups[group(i)].push_back(x[i]); });
  return array_of(x.shape, [&](const Dims& i) {
    const Values& members = groups[group(i)];
    const double mean = centred ? average(members) : 0;
    double variance = 0;
    for (double v : members) variance += (v - mean) * (v - mean) / double(members.size());
    const auto a = std::size_t(affine(i));
    const double scale = weight.values.empty() ? 1 : weight.values[a];
    return (x[i] - mean) / std::sqrt(variance + eps) * scale +
           (bias.values.empty() ? 0 : bias.values[a]);
  });
}

enum class AffineInputs { both, weight, none, wide };

/// x, weight and bias of a normalization; `wide`: parameters that stay f32 with short data.
inline std::vector<Input> norm_inputs(const Shape& x, const Shape& affine, AffineInputs which) {
  const InputKind kind = which == AffineInputs::wide ? InputKind::wide : InputKind::data;
  const Input parameter{.shape = affine, .domain = {0.5, 1.5}, .kind = kind};
  const bool has_weight = which != AffineInputs::none,
             has_bias = has_weight && which != AffineInputs::weight;
  return {{.shape = x}, has_weight ? parameter : absent(), has_bias ? parameter : absent()};
}

template <> struct Samples<LayerNorm> {
  static Case of(std::string name, const Shape& x, const Shape& normalized_shape,
                 AffineInputs which, double eps = 1e-5) {
    const int64_t n = numel_of(normalized_shape);
    return {.name = std::move(name),
            .inputs = norm_inputs(x, normalized_shape, which),
            .call =
                [=](const Tensors& in) {
                  return layer_norm(in[0], normalized_shape, in[1], in[2], eps);
                },
            .oracle =
                [=](const Arrays& in) {
                  const auto place = [&](const Dims& i) { return int64_t(in[0].place(i)); };
                  return normalized(
                      in[0], in[1], in[2], eps, true, [&](const Dims& i) { return place(i) / n; },
                      [&](const Dims& i) { return place(i) % n; });
                },
            .reduced = n,
            .condition = 4};
  }
  static OpSamples make() {
    using enum AffineInputs;
    return {
        .cases = {of("rows", {4, 9}, {9}, both), of("two dimensions", {3, 2, 5}, {2, 5}, both),
                  of("weight only", {4, 9}, {9}, weight), of("no parameters", {2, 3, 7}, {7}, none),
                  of("wide parameters", {5, 6}, {6}, wide), of("long rows", {3, 600}, {600}, both),
                  of("large eps", {4, 9}, {9}, both, 0.5), of("no rows", {0, 4}, {4}, both)},
        .errors =
            {REFUSES(ShapeError,
                     "[layer_norm] [2, 3] f32 does not end in the normalized shape [4]. The last "
                     "dimensions must equal it.",
                     layer_norm(ones({2, 3}), {4})),
             REFUSES(ShapeError, "[layer_norm] [2, 3] f32 does not end in the normalized shape [].",
                     layer_norm(ones({2, 3}), {})),
             REFUSES(ShapeError,
                     "[layer_norm] weight or bias is [2] f32, the normalized shape is [3]. They "
                     "must agree.",
                     layer_norm(ones({2, 3}), {3}, ones({2})))},
        .mixed = Mixed::accepts};
  }
};

template <> struct Samples<RmsNorm> {
  static Case of(std::string name, const Shape& x, const Shape& normalized_shape,
                 AffineInputs which) {
    const int64_t n = numel_of(normalized_shape);
    Case test{
        .name = std::move(name),
        .inputs = norm_inputs(x, normalized_shape, which),
        .call = [=](const Tensors& in) { return rms_norm(in[0], normalized_shape, in[1], 1e-6); },
        .oracle =
            [=](const Arrays& in) {
              const auto place = [&](const Dims& i) { return int64_t(in[0].place(i)); };
              return normalized(
                  in[0], in[1], {}, 1e-6, false, [&](const Dims& i) { return place(i) / n; },
                  [&](const Dims& i) { return place(i) % n; });
            },
        .reduced = n,
        .condition = 4};
    test.inputs.pop_back();  // no bias
    return test;
  }
  static OpSamples make() {
    using enum AffineInputs;
    return {
        .cases = {of("rows", {4, 9}, {9}, weight), of("two dimensions", {3, 2, 5}, {2, 5}, weight),
                  of("no parameters", {4, 9}, {9}, none), of("wide parameters", {5, 6}, {6}, wide),
                  of("long rows", {3, 600}, {600}, weight)},
        .errors = {REFUSES(ShapeError,
                           "[rms_norm] [2, 3] f32 does not end in the normalized shape [4].",
                           rms_norm(ones({2, 3}), {4})),
                   REFUSES(ShapeError,
                           "[rms_norm] weight or bias is [2] f32, the normalized shape is [3].",
                           rms_norm(ones({2, 3}), {3}, ones({2})))},
        .mixed = Mixed::accepts};
  }
};

/// Both results, one after the other. The norm, an operation of its own, may be f32 under autocast.
template <> struct Samples<AddBeforeNorm> {
  static Case of(std::string name, const Shape& x, AffineInputs which) {
    const int64_t n = x[x.rank() - 1];
    std::vector<Input> inputs = norm_inputs(x, {n}, which);
    inputs[2] = inputs[1], inputs[1] = {.shape = x};  // a, b, weight
    return {.name = std::move(name),
            .inputs = std::move(inputs),
            .call =
                [](const Tensors& in) {
                  const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2]);
                  return cat({sum, cast(normed, sum.dtype())}, 0);
                },
            .oracle =
                [=](const Arrays& in) {
                  const Array total =
                      array_of(x, [&](const Dims& i) { return in[0][i] + in[1][i]; });
                  const auto place = [&](const Dims& i) { return int64_t(total.place(i)); };
                  const Array y = normalized(
                      total, in[2], {}, 1e-6, false, [&](const Dims& i) { return place(i) / n; },
                      [&](const Dims& i) { return place(i) % n; });
                  Shape both = x;
                  both[0] *= 2;
                  Values values = total.values;
                  values.insert(values.end(), y.values.begin(), y.values.end());
                  return Array(both, values);
                },
            .reduced = n,
            .roundings = 2,
            .condition = 8};
  }
  static OpSamples make() {
    using enum AffineInputs;
    const std::string op = "[add_rms_norm] ";
    return {.cases = {of("rows", {4, 9}, weight), of("three dimensions", {2, 3, 8}, weight),
                      of("no weight", {3, 7}, none), of("wide weight", {5, 6}, wide),
                      of("long rows", {3, 1100}, weight), of("no rows", {0, 4}, weight)},
            .errors = {
                REFUSES(ShapeError,
                        op + "a is [2, 3] f32, b is [3] f32. They must have one shape, with "
                             "a last dimension.",
                        add_rms_norm(ones({2, 3}), ones({3}))),
                REFUSES(ShapeError, op + "weight or bias is [2] f32, the normalized shape is [3].",
                        add_rms_norm(ones({2, 3}), ones({2, 3}), ones({2})))}};
  }
};

template <> struct Samples<GroupNorm> {
  static Case of(std::string name, const Shape& x, int64_t groups, AffineInputs which) {
    const int64_t channels = x[1], per_group = channels / groups;
    return {.name = std::move(name),
            .inputs = norm_inputs(x, {channels}, which),
            .call = [=](const Tensors& in) { return group_norm(in[0], groups, in[1], in[2]); },
            .oracle =
                [=](const Arrays& in) {
                  return normalized(
                      in[0], in[1], in[2], 1e-5, true,
                      [=](const Dims& i) { return i[0] * groups + i[1] / per_group; },
                      [](const Dims& i) { return i[1]; });
                },
            .reduced = numel_of(x) / (x[0] * groups),
            .condition = 4};
  }
  static OpSamples make() {
    using enum AffineInputs;
    return {
        .cases = {of("images", {2, 6, 3, 2}, 3, both), of("one group", {2, 4, 3, 3}, 1, both),
                  of("a group per channel", {2, 3, 3, 3}, 3, both), of("vectors", {3, 8}, 2, both),
                  of("sequences", {2, 4, 5}, 2, weight), of("no parameters", {2, 4, 2, 3}, 2, none),
                  of("wide parameters", {2, 4, 2, 3}, 2, wide),
                  of("large images", {1, 4, 20, 21}, 2, both),
                  of("images of several blocks", {2, 4, 35, 37}, 2, both)},
        .errors =
            {REFUSES(ShapeError,
                     "[group_norm] [2, 5, 3] f32 with 2 groups. The input must be [n, c, ...] with "
                     "c divisible by the number of groups.",
                     group_norm(ones({2, 5, 3}), 2)),
             REFUSES(ShapeError, "[group_norm] [4] f32 with 2 groups.", group_norm(ones({4}), 2)),
             REFUSES(ShapeError, "[group_norm] weight is [3] f32 for 4 channels. It must be [4].",
                     group_norm(ones({2, 4, 3}), 2, ones({3})))},
        .mixed = Mixed::accepts};
  }
};

template <> struct Samples<InstanceNorm> {
  static Case of(std::string name, const Shape& x, AffineInputs which) {
    const int64_t channels = x[1];
    Case test = Samples<GroupNorm>::of(std::move(name), x, channels, which);
    test.call = [](const Tensors& in) { return instance_norm(in[0], in[1], in[2]); };
    return test;
  }
  static OpSamples make() {
    using enum AffineInputs;
    return {.cases = {of("images", {2, 3, 4, 2}, both), of("sequences", {2, 4, 5}, weight),
                      of("no parameters", {2, 2, 3, 3}, none),
                      of("wide parameters", {2, 3, 2, 3}, wide)},
            .errors = {REFUSES(ShapeError,
                               "[instance_norm] [2, 5] f32 has no channels, or nothing to "
                               "normalize in them.",
                               instance_norm(ones({2, 5}))),
                       REFUSES(ShapeError, "weight is [3] f32 for 4 channels. It must be [4].",
                               instance_norm(ones({2, 4, 3}), ones({3})))},
            .mixed = Mixed::accepts};
  }
};

/// The device of the statistics for x; an undefined x is refused later.
inline Device device_of(const Tensor& x) { return x.defined() ? x.device() : Device{}; }

template <> struct Samples<BatchNorm> {
  static double running_mean(int64_t c) { return 0.25 * double(c) - 0.5; }
  static double running_var(int64_t c) { return 0.5 + 0.25 * double(c); }

  static Case training(std::string name, const Shape& x, AffineInputs which, bool tracked) {
    return {.name = std::move(name),
            .inputs = norm_inputs(x, {x[1]}, which),
            .call =
                [=](const Tensors& in) {
                  // Each call has its own statistics, because training changes them.
                  const Device device = device_of(in[0]);
                  const Tensor mean = tracked ? zeros({x[1]}, f32, device) : Tensor{},
                               var = tracked ? ones({x[1]}, f32, device) : Tensor{};
                  return batch_norm(in[0], in[1], in[2], mean, var, {.training = tracked});
                },
            .oracle =
                [](const Arrays& in) {
                  const auto channel = [](const Dims& i) { return i[1]; };
                  return normalized(in[0], in[1], in[2], 1e-5, true, channel, channel);
                },
            .reduced = numel_of(x) / x[1],
            .condition = 4};
  }
  static Case evaluation(std::string name, const Shape& x, AffineInputs which) {
    Case test = training(std::move(name), x, which, false);
    test.call = [=](const Tensors& in) {
      Values mean, var;
      for (int64_t c = 0; c < x[1]; ++c)
        mean.push_back(running_mean(c)), var.push_back(running_var(c));
      const Device device = device_of(in[0]);
      return batch_norm(in[0], in[1], in[2], from_vector(mean, {x[1]}).to(device),
                        from_vector(var, {x[1]}).to(device));
    };
    test.oracle = [](const Arrays& in) {
      return array_of(in[0].shape, [&](const Dims& i) {
        const int64_t c = i[1];
        const double y = (in[0][i] - running_mean(c)) / std::sqrt(running_var(c) + 1e-5);
        return y * (in[1].values.empty() ? 1 : in[1](c)) + (in[2].values.empty() ? 0 : in[2](c));
      });
    };
    return test;
  }
  static OpSamples make() {
    using enum AffineInputs;
    Case many = training("training, many values", {4, 3, 16, 17}, wide, true);
    many.condition = 16;  // sum(|dy (x - mean)|) is some 40 times |sum(dy (x - mean))|
    return {
        .cases = {training("training, images", {3, 4, 3, 2}, both, true), many,
                  training("training, sequences", {3, 4, 5}, both, true),
                  training("training, vectors", {9, 5}, both, true),
                  training("training, wide parameters", {3, 4, 3, 2}, wide, true),
                  training("training, no parameters", {3, 4, 3, 2}, none, true),
                  training("without running statistics", {3, 4, 3, 2}, both, false),
                  training("training, many channels", {2, 70, 3, 2}, wide, true),
                  evaluation("evaluation, images", {2, 3, 3, 4}, both),
                  evaluation("evaluation, sequences", {2, 3, 4}, wide),
                  evaluation("evaluation, vectors", {4, 5}, weight),
                  evaluation("evaluation, one value", {1, 3, 1, 1}, none)},
        .errors =
            {REFUSES(ShapeError,
                     "[batch_norm] the input is [4] f32. It must be [n, c], [n, c, l], "
                     "[n, c, h, w] or [n, c, d, h, w].",
                     batch_norm(ones({4}), {}, {}, {}, {})),
             REFUSES(ShapeError,
                     "[batch_norm] training needs more than one value per channel, got [1, 3] f32. "
                     "Use a larger batch, or eval().",
                     batch_norm(ones({1, 3}), {}, {}, {}, {}, {.training = true})),
             REFUSES(ShapeError, "[batch_norm] weight is [2] f32 for 3 channels. It must be [3].",
                     batch_norm(ones({4, 3}), ones({2}), {}, {}, {})),
             REFUSES(ShapeError,
                     "[batch_norm] running_var is [2] f32 for 3 channels. It must be [3].",
                     batch_norm(ones({4, 3}), {}, {}, ones({3}), ones({2}))),
             REFUSES(UsageError,
                     "[batch_norm] one of running_mean and running_var is undefined. Pass both or "
                     "neither.",
                     batch_norm(ones({4, 3}), {}, {}, ones({3}), {}))},
        .mixed = Mixed::accepts};
  }
};

template <> struct Samples<BatchNormRelu> {
  /// A case of batch norm, then a residual of +-4 or none, then relu: the sign is seldom ambiguous.
  static Case of(Case test, bool training, bool has_residual) {
    const Shape shape = test.inputs[0].shape;
    Input residual{.shape = shape};
    for (int64_t i = 0; i < numel_of(shape); ++i)
      residual.given.push_back(i % 3 == 1 ? -4.25 : 3.75 + double(i % 5) / 8);
    test.inputs.push_back(has_residual ? residual : absent());
    test.call = [=](const Tensors& in) {
      Values mean, var;
      for (int64_t c = 0; c < shape[1]; ++c) {
        mean.push_back(Samples<BatchNorm>::running_mean(c));
        var.push_back(Samples<BatchNorm>::running_var(c));
      }
      const Device device = device_of(in[0]);
      return batch_norm_relu(in[0], in[1], in[2], from_vector(mean, {shape[1]}).to(device),
                             from_vector(var, {shape[1]}).to(device), {.training = training},
                             in[3]);
    };
    test.oracle = [inner = test.oracle](const Arrays& in) {
      const Array y = inner({in[0], in[1], in[2]});
      return array_of(y.shape, [&](const Dims& i) {
        return std::max(0.0, y[i] + (in[3].values.empty() ? 0 : in[3][i]));
      });
    };
    return test;
  }
  static OpSamples make() {
    using enum AffineInputs;
    using Plain = Samples<BatchNorm>;
    return {
        .cases =
            {of(Plain::training("training, images", {3, 4, 3, 2}, both, true), true, true),
             of(Plain::training("training, no residual", {3, 4, 3, 2}, both, true), true, false),
             of(Plain::training("training, wide parameters", {2, 70, 3, 2}, wide, true), true,
                true),
             of(Plain::training("training, vectors", {9, 5}, both, true), true, true),
             of(Plain::training("training, sequences", {3, 4, 5}, both, true), true, true),
             of(Plain::training("training, no parameters", {3, 4, 3, 2}, none, true), true, true),
             of(Plain::evaluation("evaluation, images", {2, 3, 3, 4}, both), false, true),
             of(Plain::evaluation("evaluation, no residual", {2, 3, 3, 4}, wide), false, false)},
        .errors = {REFUSES(ShapeError,
                           "[batch_norm_relu] the input is [4, 3] f32, the residual [4, 1] f32. "
                           "They must agree.",
                           batch_norm_relu(ones({4, 3}), {}, {}, {}, {}, {}, ones({4, 1}))),
                   REFUSES(ShapeError,
                           "[batch_norm_relu] weight is [2] f32 for 3 channels. It must be [3].",
                           batch_norm_relu(ones({4, 3}), ones({2}), {}, {}, {})),
                   REFUSES(UsageError,
                           "[batch_norm_relu] one of running_mean and running_var is undefined.",
                           batch_norm_relu(ones({4, 3}), {}, {}, ones({3}), {}))},
        .mixed = Mixed::accepts};
  }
};

// Samples of the recurrent layers: the oracles are the equations, one time step after the other.

/// state weight[row]^T + bias[row]: what a state adds to one gate.
inline double recurrent_share(const Values& state, const Array& weight, const Array& bias,
                              int64_t row) {
  double sum = bias.values.empty() ? 0 : bias(row);
  for (std::size_t j = 0; j < state.size(); ++j) sum += state[j] * weight(row, int64_t(j));
  return sum;
}

struct RecurrentShape {
  std::string name;
  int64_t time, n, h;
  bool bias = true, reverse = false;
};
inline const std::vector<RecurrentShape> recurrent_shapes{
    {"forwards", 3, 2, 3},
    {"backwards", 3, 2, 3, true, true},
    {"one step", 1, 2, 4},
    {"no bias", 2, 1, 3, false},
    {"one state", 2, 3, 1},
    {"wide rows", 2, 5, 19, true},
    {"backwards, one step", 1, 1, 2, true, true}};

/// Calls step(t, sample, first) for all steps of all samples, in the order of time.
template <class Step> void each_step(const RecurrentShape& s, const Step& step) {
  for (int64_t sample = 0; sample < s.n; ++sample)
    for (int64_t i = 0; i < s.time; ++i) step(s.reverse ? s.time - 1 - i : i, sample, i == 0);
}

template <class Op> std::vector<ErrorCase> recurrent_errors(int64_t gates) {
  const std::string op(Op::info.name), g = std::to_string(gates), two = std::to_string(2 * gates);
  const auto with = [](const Shape& x, const Shape& h, const Shape& w, int64_t bias) {
    return [=] {
      if constexpr (std::same_as<Op, Lstm>)
        apply(Lstm{.reverse = false}, ones(x), ones(h), ones({x[1], 2}), ones(w), ones({bias}));
      else apply(Gru{.reverse = false}, ones(x), ones(h), ones(w), ones({bias}));
    };
  };
  const int64_t wide = 2 * gates;
  return {
      error<ShapeError>("[" + op + "] x is [3, " + two + "] f32, of rank 2. It must have rank 3.",
                        with({3, wide}, {3, 2}, {wide, 2}, wide)),
      error<ShapeError>("[" + op + "] x is [3, 1, 7] f32, weight is [" + two +
                            ", 2] f32. With h states they must be [time, n, " + g + " h] and [" +
                            g + " h, h].",
                        with({3, 1, 7}, {1, 2}, {wide, 2}, wide)),
      error<ShapeError>("[" + op + "] x is [0, 1, " + two + "] f32. It must have steps.",
                        with({0, 1, wide}, {1, 2}, {wide, 2}, wide)),
      error<ShapeError>("[" + op + "] h0 is [2, 2] f32 for x [3, 1, " + two +
                            "] f32 and weights of 2 states. It must be [1, 2].",
                        with({3, 1, wide}, {2, 2}, {wide, 2}, wide)),
      error<ShapeError>(
          "[" + op + "] bias is [3] f32 for " + two + " channels. It must be [" + two + "].",
          with({3, 1, wide}, {1, 2}, {wide, 2}, 3))};
}

template <> struct Samples<Lstm> {
  static Array oracle(const RecurrentShape& s, const Arrays& in) {
    const Array &x = in[0], &h0 = in[1], &c0 = in[2], &w = in[3], &b = in[4];
    Array y({s.time + 1, s.n, s.h});
    Values state, cell;
    each_step(s, [&](int64_t t, int64_t n, bool first) {
      if (first) {
        state.clear(), cell.clear();
        for (int64_t j = 0; j < s.h; ++j) state.push_back(h0(n, j)), cell.push_back(c0(n, j));
      }
      const Values before = state;
      for (int64_t j = 0; j < s.h; ++j) {
        const auto gate = [&](int64_t which) {
          const int64_t row = which * s.h + j;
          return x(t, n, row) + recurrent_share(before, w, b, row);
        };
        double& c = cell[std::size_t(j)];
        c = logistic(gate(1)) * c + logistic(gate(0)) * std::tanh(gate(2));
        state[std::size_t(j)] = logistic(gate(3)) * std::tanh(c);
        y(t, n, j) = state[std::size_t(j)];
        y(s.time, n, j) = c;
      }
    });
    return y;
  }
  static OpSamples make() {
    std::vector<Case> cases;
    for (const RecurrentShape& s : recurrent_shapes)
      cases.push_back({.name = s.name,
                       .inputs = {{.shape = {s.time, s.n, 4 * s.h}},
                                  {.shape = {s.n, s.h}},
                                  {.shape = {s.n, s.h}},
                                  {.shape = {4 * s.h, s.h}, .domain = {-1, 1}},
                                  s.bias ? Input{.shape = {4 * s.h}} : absent()},
                       .call =
                           [s](const Tensors& in) {
                             return apply(Lstm{.reverse = s.reverse}, in[0], in[1], in[2], in[3],
                                          in[4]);
                           },
                       .oracle = [s](const Arrays& in) { return oracle(s, in); },
                       .reduced = s.h,
                       .roundings = int(s.time)});
    std::vector<ErrorCase> errors = recurrent_errors<Lstm>(4);
    errors.push_back(REFUSES(
        ShapeError,
        "[lstm] c0 is [1, 3] f32 for x [3, 1, 8] f32 and weights of 2 states. It must be [1, 2].",
        apply(Lstm{.reverse = false}, ones({3, 1, 8}), ones({1, 2}), ones({1, 3}), ones({8, 2}),
              Tensor{})));
    return {.cases = cases, .errors = errors, .mixed = Mixed::refuses};
  }
};

template <> struct Samples<Gru> {
  static Array oracle(const RecurrentShape& s, const Arrays& in) {
    const Array &x = in[0], &h0 = in[1], &w = in[2], &b = in[3];
    Array y({s.time, s.n, s.h});
    Values state;
    each_step(s, [&](int64_t t, int64_t n, bool first) {
      if (first) {
        state.clear();
        for (int64_t j = 0; j < s.h; ++j) state.push_back(h0(n, j));
      }
      const Values before = state;
      for (int64_t j = 0; j < s.h; ++j) {
        const auto share = [&](int64_t which) {
          return recurrent_share(before, w, b, which * s.h + j);
        };
        const double reset = logistic(x(t, n, j) + share(0));
        const double update = logistic(x(t, n, s.h + j) + share(1));
        const double fresh = std::tanh(x(t, n, 2 * s.h + j) + reset * share(2));
        state[std::size_t(j)] = (1 - update) * fresh + update * before[std::size_t(j)];
        y(t, n, j) = state[std::size_t(j)];
      }
    });
    return y;
  }
  static OpSamples make() {
    std::vector<Case> cases;
    for (const RecurrentShape& s : recurrent_shapes)
      cases.push_back({.name = s.name,
                       .inputs = {{.shape = {s.time, s.n, 3 * s.h}},
                                  {.shape = {s.n, s.h}},
                                  {.shape = {3 * s.h, s.h}, .domain = {-1, 1}},
                                  s.bias ? Input{.shape = {3 * s.h}} : absent()},
                       .call =
                           [s](const Tensors& in) {
                             return apply(Gru{.reverse = s.reverse}, in[0], in[1], in[2], in[3]);
                           },
                       .oracle = [s](const Arrays& in) { return oracle(s, in); },
                       .reduced = s.h,
                       .roundings = int(s.time)});
    return {.cases = cases, .errors = recurrent_errors<Gru>(3), .mixed = Mixed::refuses};
  }
};

}  // namespace halftone::test
