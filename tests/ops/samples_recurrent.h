// Samples of the recurrent layers: the oracles are the equations, one time step after the other.
#pragma once

#include "ops/samples_elementwise.h"

namespace halftone::test {

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
    errors.push_back(error<ShapeError>(
        "[lstm] c0 is [1, 3] f32 for x [3, 1, 8] f32 and weights of 2 states. It must be [1, 2].",
        [] {
          apply(Lstm{.reverse = false}, ones({3, 1, 8}), ones({1, 2}), ones({1, 3}), ones({8, 2}),
                Tensor{});
        }));
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
