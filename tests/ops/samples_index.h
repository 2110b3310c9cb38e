// Samples of gather, scatter_add, argsort and flip.
#pragma once

#include <algorithm>
#include <numeric>

#include "ops/samples_case.h"
#include "ops/samples_reduce.h"

namespace halftone::test {

/// The position that an index names, from the position of the index.
inline Dims named_by(const Arrays& in, Dims i, int dim) {
  if (i.rank() > 0) i[dim] = int64_t(in[1][i]);
  return i;
}

template <> struct Samples<Gather> {
  static Case of(std::string name, const Shape& x, int dim, const Shape& shape, Values index) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers(shape, std::move(index))},
            .call = [dim](const Tensors& in) { return gather(in[0], dim, in[1]); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](const Dims& i) { return in[0][named_by(in, i, d)]; });
                },
            .reduced = numel_of(shape)};
  }
  /// index_select uses this operation.
  static Case select_case(std::string name, const Shape& x, int dim, Values index) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    Shape result = x;
    result[d] = int64_t(index.size());
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers({int64_t(index.size())}, index)},
            .call = [dim](const Tensors& in) { return index_select(in[0], dim, in[1]); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(result, [&](Dims i) {
                    i[d] = int64_t(in[1](i[d]));
                    return in[0][i];
                  });
                },
            .reduced = int64_t(index.size())};
  }
  static OpSamples make() {
    const auto bad = [](std::initializer_list<double> index, const Shape& shape, DType dtype) {
      return [=, values = Values(index)] {
        gather(ones({2, 3}), 1, from_vector(values, shape, dtype));
      };
    };
    return {.cases = {of("columns", {3, 4}, 1, {3, 2}, {0, 3, 1, 1, 2, 0}),
                      of("rows", {3, 4}, 0, {2, 4}, {2, 0, 1, 1, 0, 0, 2, 2}),
                      of("fewer of the others", {2, 3, 4}, -1, {1, 2, 5},
                         {3, 3, 0, 1, 2, 0, 0, 0, 0, 1}),
                      of("one place often", {4}, 0, {6}, {1, 1, 3, 1, 1, 0}),
                      of("a scalar", {}, 0, {}, {0}), of("nothing", {2, 3}, 1, {2, 0}, {}),
                      select_case("select, middle", {2, 4, 3}, 1, {3, 0, 0}),
                      select_case("select, last", {3, 4}, -1, {2, 1, 2, 0, 3})},
            .errors =
                {error<UsageError>("[gather] index 3 is out of range for a dimension of size 3. "
                                   "Indices must be from 0 to 2.",
                                   bad({0, 3}, {1, 2}, i64)),
                 error<UsageError>("[gather] index -1 is out of range", bad({-1}, {1, 1}, i32)),
                 error<DTypeError>("[gather] the index must be i64 or i32, got [1, 1] f32.",
                                   bad({0}, {1, 1}, f32)),
                 error<ShapeError>("[gather] the index is [3, 1] for [2, 3] f32 along dimension 1. "
                                   "It must have the same rank, and in other dimensions sizes up "
                                   "to those.",
                                   bad({0, 0, 0}, {3, 1}, i64)),
                 error<ShapeError>("[gather] the index is [1] for", bad({0}, {1}, i64)),
                 REFUSES(UsageError, "[index_select] index 2 is out of range",
                         index_select(ones({2}), 0, full({1}, 2, i64))),
                 REFUSES(ShapeError, "[index_select] the index is [1, 1] i64. It must be a vector.",
                         index_select(ones({2}), 0, zeros({1, 1}, i64)))},
            .any_dtype = true};
  }
};

template <> struct Samples<ScatterAdd> {
  static Case of(std::string name, const Shape& x, int dim, const Shape& shape, Values index,
                 Shape source = {}) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    if (source.empty()) source = shape;
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers(shape, std::move(index)), {.shape = source}},
            .call = [dim](const Tensors& in) { return scatter_add(in[0], dim, in[1], in[2]); },
            .oracle =
                [=](const Arrays& in) {
                  Array y = in[0];
                  each_index(shape, [&](const Dims& i) { y[named_by(in, i, d)] += in[2][i]; });
                  return y;
                },
            .reduced = numel_of(shape)};
  }
  static OpSamples make() {
    const auto bad = [](double index, const Shape& shape, const Shape& source) {
      return [=] { scatter_add(ones({2, 3}), 1, full(shape, index, i64), ones(source)); };
    };
    return {
        .cases = {of("columns", {3, 4}, 1, {3, 2}, {0, 3, 1, 1, 2, 0}),
                  of("rows", {3, 4}, 0, {2, 4}, {2, 0, 1, 1, 0, 0, 2, 2}),
                  of("a larger source", {2, 3, 4}, -1, {1, 2, 3}, {3, 3, 0, 2, 0, 1}, {2, 3, 3}),
                  of("all to one place", {4}, 0, {7}, {2, 2, 2, 2, 2, 2, 2}),
                  of("a scalar", {}, 0, {}, {0}), of("nothing", {2, 3}, 1, {2, 0}, {})},
        .errors =
            {error<UsageError>("[scatter_add] index 3 is out of range for a dimension of size 3.",
                               bad(3, {1, 1}, {1, 1})),
             error<ShapeError>("[scatter_add] the index is [2, 2] i64, the source [2, 1] f32. The "
                               "source must be as large in every dimension.",
                               bad(0, {2, 2}, {2, 1})),
             error<ShapeError>("[scatter_add] the index is [3, 1] for", bad(0, {3, 1}, {3, 1}))},
        .any_dtype = true,
        .mixed = Mixed::refuses};
  }
};

template <> struct Samples<ArgSort> {
  static Case of(std::string name, const Shape& shape, int dim, bool descending,
                 Values given = {}) {
    const int d = dim < 0 ? dim + shape.rank() : dim;
    Input input{.shape = shape, .kind = InputKind::constant, .distinct = given.empty()};
    input.given = std::move(given);
    return {.name = std::move(name),
            .inputs = {input},
            .call = [=](const Tensors& in) { return argsort(in[0], dim, descending); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](const Dims& i) {
                    if (shape.rank() == 0) return 0.0;
                    Values row;
                    Dims at = i;
                    for (at[d] = 0; at[d] < shape[d]; ++at[d]) row.push_back(in[0][at]);
                    std::vector<int> order(row.size());
                    std::iota(order.begin(), order.end(), 0);
                    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
                      const double u = row[std::size_t(a)], v = row[std::size_t(b)];
                      return descending ? u > v : u < v;
                    });
                    return double(order[std::size_t(i[d])]);
                  });
                },
            .output = i64,
            .gradient = false};
  }
  static OpSamples make() {
    const Values ties{1, 0, 1, -2, 0, 1, -2, 1};
    Case whole = of("integers", {2, 4}, 1, false);
    whole.inputs[0] = integers({2, 4}, {5, -70000, 70000, 5, -1, 0, -1, 1});
    return {.cases = {of("rows", {4, 7}, -1, false), of("rows, descending", {4, 7}, 1, true),
                      of("columns", {7, 4}, 0, false), of("middle", {2, 5, 3}, 1, true),
                      of("equals keep their order", {8}, 0, false, ties),
                      of("also when descending", {8}, 0, true, ties), of("a scalar", {}, 0, false),
                      of("nothing", {3, 0}, 1, false), of("a long row", {3, 701}, 1, false),
                      of("many rows", {300, 3}, 1, true), whole},
            .errors = {REFUSES(ShapeError,
                               "[argsort] dimension 2 is out of range for rank 2. Use -2 to 1.",
                               argsort(ones({2, 3}), 2))},
            .any_dtype = true};
  }
};

template <> struct Samples<Flip> {
  static Case of(std::string name, const Shape& shape, const Dims& dims) {
    return {.name = std::move(name),
            .inputs = {{.shape = shape}},
            .call = [dims](const Tensors& in) { return flip(in[0], dims); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](Dims i) {
                    for (int64_t dim : dims) {
                      const int d = int(dim < 0 ? dim + shape.rank() : dim);
                      i[d] = shape[d] - 1 - i[d];
                    }
                    return in[0][i];
                  });
                }};
  }
  static OpSamples make() {
    return {.cases = {of("rows", {3, 4}, {0}), of("columns", {3, 4}, {-1}),
                      of("both", {3, 4}, {0, 1}), of("images", {2, 3, 4, 5}, {2, 3}),
                      of("a long one", {3, 701}, {1}), of("a matrix", {40, 50}, {0}),
                      of("none", {2, 3}, {}), of("nothing", {0, 3}, {0, 1})},
            .errors = {REFUSES(ShapeError, "[flip] dimension 1 is given twice in [1, -1].",
                               flip(ones({2, 3}), {1, -1}))},
            .any_dtype = true};
  }
};

// Samples of softmax and related operations, and of the losses over classes.

/// The elements of `x` along `dim` through index i.
inline Values line(const Array& x, Dims i, int dim) {
  Values values;
  for (int64_t k = 0; k < x.size(dim); ++k) i[dim] = k, values.push_back(x[i]);
  return values;
}
inline double log_sum_exp_of(const Values& v) {
  double sum = 0;
  for (double x : v) sum += std::exp(x);
  return std::log(sum);
}

inline std::vector<std::pair<Shape, int>> softmax_shapes() {
  return {{{4, 9}, -1}, {{9, 4}, 0}, {{2, 5, 3}, 1}, {{2, 3, 2, 4}, 1},
          {{3, 1}, 1},  {{5}, 0},    {{2, 300}, 1},  {{0, 3}, 1}};
}
template <class Call, class Of> std::vector<Case> softmax_cases(Call call, Of of) {
  std::vector<Case> cases;
  for (const auto& [shape, dim] : softmax_shapes()) {
    const int d = dim < 0 ? dim + shape.rank() : dim;
    std::ostringstream name;
    name << shape << " along " << dim;
    cases.push_back({.name = name.str(),
                     .inputs = {{.shape = shape, .domain = {-4, 4}}},
                     .call = [call, dim = dim](const Tensors& in) { return call(in[0], dim); },
                     .oracle =
                         [of, d](const Arrays& in) {
                           return array_of(in[0].shape, [&](const Dims& i) {
                             return of(in[0][i], log_sum_exp_of(line(in[0], i, d)));
                           });
                         },
                     .reduced = shape[d],
                     .condition = 4});
  }
  return cases;
}
inline ErrorCase row_error(const std::string& op, std::function<void()> call) {
  return error<ShapeError>("[" + op + "] dimension 2 is out of range for rank 2. Use -2 to 1.",
                           std::move(call));
}

template <> struct Samples<Softmax> {
  static OpSamples make() {
    OpSamples samples{
        .cases = softmax_cases([](const Tensor& x, int d) { return softmax(x, d); },
                               [](double x, double total) { return std::exp(x - total); }),
        .errors = {row_error("softmax", [] {
          softmax(ones({2, 3}), 2);
        })}};
    Case large = samples.cases[0];
    large.name = "values that overflow without the shift";
    large.inputs[0].domain = {96, 112};
    large.condition = 16;  // one y is near 1: in its gradient, dy and sum(y dy) nearly cancel
    large.oracle = [](const Arrays& in) {
      return array_of(in[0].shape, [&](const Dims& i) {
        double sum = 0;
        for (double x : line(in[0], i, 1)) sum += std::exp(x - in[0][i]);
        return 1 / sum;
      });
    };
    samples.cases.push_back(large);
    return samples;
  }
};

template <> struct Samples<LogSoftmax> {
  static OpSamples make() {
    return {.cases = softmax_cases([](const Tensor& x, int d) { return log_softmax(x, d); },
                                   [](double x, double total) { return x - total; }),
            .errors = {row_error("log_softmax", [] {
              log_softmax(ones({2, 3}), 2);
            })}};
  }
};

template <> struct Samples<LogSumExp> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const Over& over : {Over{"rows", {4, 9}, {1}}, Over{"columns", {9, 4}, {0}},
                             Over{"middle, kept", {2, 5, 3}, {1}, true},
                             Over{"long", {2, 300}, {-1}}, Over{"no rows", {0, 3}, {1}}})
      cases.push_back(reduction(
          over,
          [](const Tensor& x, const Dims& d, bool keep) { return logsumexp(x, int(d[0]), keep); },
          log_sum_exp_of));
    return {.cases = cases, .errors = {row_error("logsumexp", [] { logsumexp(ones({2, 3}), 2); })}};
  }
};

/// A loss over classes, in the form of both class losses: logits, targets and the options.
struct ClassLoss {
  std::string name;
  Shape logits;
  Values targets;
  LossReduction reduction = LossReduction::mean;
  bool weighted = false;
  double smoothing = 0;
  int64_t ignored = -100;

  Shape target_shape() const {
    Shape shape = logits;
    if (shape.rank() == 1) return {};
    shape.erase(1);
    return shape;
  }
  int64_t classes() const { return logits[logits.rank() == 1 ? 0 : 1]; }
  double weight(int64_t c) const { return weighted ? 0.5 + 0.25 * double(c) : 1; }
  CrossEntropyOptions options() const {
    CrossEntropyOptions s{
        .label_smoothing = smoothing, .ignore_index = ignored, .reduction = reduction};
    if (!weighted) return s;
    Values weights;
    for (int64_t c = 0; c < classes(); ++c) weights.push_back(weight(c));
    s.weight = from_vector(weights, {classes()}, f32, test_device());
    return s;
  }
};

/// torch.nn.functional.cross_entropy's definition, over log-probabilities `log_p(index)`.
template <class LogP>
Array class_loss_oracle(const ClassLoss& loss, const Array& targets, const LogP& log_p) {
  Array losses(loss.target_shape());
  double sum = 0, weights = 0;
  each_index(losses.shape, [&](const Dims& i) {
    const auto target = int64_t(targets[i]);
    if (target == loss.ignored) return;
    const auto at = [&](int64_t c) {
      Dims index = i;
      index.insert(loss.logits.rank() == 1 ? 0 : 1, c);
      return -log_p(index);
    };
    double value = (1 - loss.smoothing) * loss.weight(target) * at(target);
    for (int64_t c = 0; c < loss.classes(); ++c)
      value += loss.smoothing / double(loss.classes()) * loss.weight(c) * at(c);
    losses[i] = value, sum += value, weights += loss.weight(target);
  });
  if (loss.reduction == LossReduction::none) return losses;
  return Array({}, Values{loss.reduction == LossReduction::mean ? sum / weights : sum});
}

inline std::vector<ClassLoss> class_losses() {
  using enum LossReduction;
  return {{"mean", {4, 5}, {1, 0, 4, 2}},
          {"sum", {4, 5}, {1, 0, 4, 2}, sum},
          {"none", {4, 5}, {1, 0, 4, 2}, none},
          {"weighted mean", {4, 5}, {1, 0, 4, 2}, mean, true},
          {"weighted none", {4, 5}, {1, 0, 4, 2}, none, true},
          {"a row ignored", {4, 5}, {1, -100, 4, 2}, mean},
          {"class two ignored, weighted", {4, 5}, {1, 2, 4, 2}, mean, true, 0, 2},
          {"ignored, none", {3, 4}, {1, -100, 3}, none},
          {"sequences", {2, 3, 4}, {0, 1, 2, 0, 2, 1, 1, 0}, mean},
          {"images, none", {2, 3, 2, 2}, {0, 1, 2, 0, 2, 1, 1, 0}, none},
          {"one row without a batch", {5}, {3}, mean},
          {"one row, none", {5}, {3}, none},
          {"many classes", {3, 210}, {7, 209, 100}, mean}};
}

template <> struct Samples<CrossEntropy> {
  static Case of(const ClassLoss& loss) {
    return {
        .name = loss.name,
        .inputs = {{.shape = loss.logits, .domain = {-3, 3}},
                   integers(loss.target_shape(), loss.targets)},
        .call = [loss](const Tensors& in) { return cross_entropy(in[0], in[1], loss.options()); },
        .oracle =
            [loss](const Arrays& in) {
              const int d = loss.logits.rank() == 1 ? 0 : 1;
              return class_loss_oracle(loss, in[1], [&](const Dims& i) {
                return in[0][i] - log_sum_exp_of(line(in[0], i, d));
              });
            },
        .reduced = numel_of(loss.logits)};
  }
  static OpSamples make() {
    std::vector<Case> cases;
    for (const ClassLoss& loss : class_losses()) cases.push_back(of(loss));
    using enum LossReduction;
    cases.push_back(of({"smoothed", {4, 5}, {1, 0, 4, 2}, mean, false, 0.1}));
    cases.push_back(of({"smoothed, weighted, ignored", {4, 5}, {1, -100, 4, 2}, mean, true, 0.3}));
    cases.push_back(
        of({"smoothed images", {2, 3, 2, 2}, {0, 1, 2, 0, 2, 1, -100, 0}, none, false, 0.2}));
    const auto bad = [](const Shape& x, std::initializer_list<double> t,
                        CrossEntropyOptions s = {}) {
      return [=, targets = Values(t)] {
        cross_entropy(ones(x), from_vector(targets, {int64_t(targets.size())}, i64), s);
      };
    };
    return {.cases = cases,
            .errors = {
                error<ShapeError>(
                    "[cross_entropy] the input is [2, 3] f32, targets are [3] i64. There must be "
                    "one target per row.",
                    bad({2, 3}, {0, 1, 2})),
                error<UsageError>(
                    "[cross_entropy] target 3 at row 1 is out of range for 3 classes. Targets must "
                    "be from 0 to 2, or ignore_index, which is -100.",
                    bad({2, 3}, {0, 3})),
                error<UsageError>("[cross_entropy] target -1 at row 0 is out of range",
                                  bad({2, 3}, {-1, 0})),
                error<UsageError>("[cross_entropy] label_smoothing is 1.5. Use a value on [0, 1].",
                                  bad({2, 3}, {0, 1}, {.label_smoothing = 1.5})),
                error<ShapeError>(
                    "[cross_entropy] the class weight is [2] f32 for 3 channels. It must be [3].",
                    bad({2, 3}, {0, 1}, {.weight = ones({2})})),
                error<ShapeError>(
                    "[cross_entropy] the input is [2, 3, 4] f32, targets are [2] i64. Targets must "
                    "have the input's shape without dimension 1.",
                    bad({2, 3, 4}, {0, 1})),
                error<ShapeError>(
                    "[cross_entropy] the input is a scalar. It must have a class dimension.",
                    bad({}, {0})),
                REFUSES(DTypeError,
                        "[cross_entropy] targets must be i64 or i32, got [2] f32. Cast it first.",
                        cross_entropy(ones({2, 3}), ones({2})))}};
  }
};

template <> struct Samples<NllLoss> {
  static Case of(const ClassLoss& loss) {
    return {.name = loss.name,
            .inputs = {{.shape = loss.logits, .domain = {-6, -0.1}},
                       integers(loss.target_shape(), loss.targets)},
            .call = [loss](const Tensors& in) { return nll_loss(in[0], in[1], loss.options()); },
            .oracle =
                [loss](const Arrays& in) {
                  return class_loss_oracle(loss, in[1], [&](const Dims& i) { return in[0][i]; });
                },
            .reduced = numel_of(loss.logits)};
  }
  static OpSamples make() {
    std::vector<Case> cases;
    for (const ClassLoss& loss : class_losses()) cases.push_back(of(loss));
    return {
        .cases = cases,
        .errors = {
            REFUSES(ShapeError,
                    "[nll_loss] the input is [2, 3] f32, targets are [1] i64. There must be one "
                    "target per row.",
                    nll_loss(ones({2, 3}), zeros({1}, i64))),
            REFUSES(UsageError, "[nll_loss] a target is out of range for 3 classes. Use 0 to 2.",
                    nll_loss(ones({2, 3}), full({2}, 3, i64))),
            REFUSES(DTypeError,
                    "[nll_loss] targets must be i64 or i32, got [2] i16. Cast it first.",
                    nll_loss(ones({2, 3}), zeros({2}, i16)))}};
  }
};

}  // namespace halftone::test
