// Sgd, Adam, AdamW, Rmsprop: their option checks, and parameters that change their dtype or lack
// gradients. Their numbers are compared with PyTorch's in tests/pytorch/optimizers_test.cpp.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::optimizers_test {

using namespace halftone::optim;

namespace {

using Values = std::vector<double>;

Tensor leaf(const Values& values, DType dtype = f32) {
  return from_vector(values, {int64_t(values.size())}, dtype).set_requires_grad();
}

}  // namespace

TEST_CASE("a first AdamW step moves by the learning rate, computed by hand") {
  Tensor p = leaf({1});
  p.set_grad(from({0.5}));
  AdamW({p}, {.lr = 0.1}).step();  // 1 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + 1e-8)
  CHECK(p.item() == doctest::Approx(0.899));
  CHECK(AdamOptions{}.weight_decay == 0);
}

TEST_CASE("parameters without gradients are skipped and keep their own step count") {
  Tensor a = leaf({1}), b = leaf({1});
  Adam optimizer({a, b}, {.lr = 0.1});
  a.set_grad(from({1.0}));
  optimizer.step();
  CHECK(a.item() == doctest::Approx(0.9));
  CHECK(b.item() == 1);
  b.set_grad(from({1.0}));
  optimizer.step();
  CHECK(a.item() == doctest::Approx(0.8));
  CHECK(b.item() == doctest::Approx(0.9));  // its first step, with the correction of a first step
  const NamedTensors state = optimizer.state_dict();
  CHECK(state.at("state.0.step").item() == 2);
  CHECK(state.at("state.1.step").item() == 1);

  Tensor c = leaf({1}), d = leaf({1});
  Sgd momentum({c, d}, {.lr = 1, .momentum = 0.5, .dampening = 0.5});
  c.set_grad(from({1.0}));
  momentum.step();
  d.set_grad(from({1.0}));
  momentum.step();
  CHECK(c.item() == 1 - 1 - (0.5 + 0.5));
  CHECK(d.item() == 0);
}

TEST_CASE("a step without any gradient does nothing") {
  Tensor p = leaf({1});
  AdamW optimizer({p});
  optimizer.step();
  CHECK(p.item() == 1);
  CHECK(optimizer.gradients().empty());
  CHECK(optimizer.state_dict().count("state.0.step") == 0);
}

TEST_CASE("low-precision parameters are updated in f32, with f32 state unless told otherwise") {
  Tensor p = leaf({1}, bf16), q = leaf({1}, bf16);
  p.set_grad(from({1e-4}, bf16)), q.set_grad(from({1e-4}, bf16));
  Adam wide({p}, {.lr = 0.25, .eps = 1e-12});
  Adam narrow({q}, {.lr = 0.25, .eps = 1e-12, .state_dtype = bf16});
  wide.step(), narrow.step();
  CHECK(p.item() == 0.75);  // m / sqrt(v) is 1 although v is 1e-11
  CHECK(q.item() == doctest::Approx(0.75).epsilon(0.01));
  CHECK(wide.state_dict().at("state.0.exp_avg_sq").dtype() == f32);
  CHECK(narrow.state_dict().at("state.0.exp_avg_sq").dtype() == bf16);
  CHECK(p.dtype() == bf16);
}

TEST_CASE("a step bumps the version of the tensors it wrote") {
  Tensor p = leaf({1}), frozen = leaf({1});
  Sgd optimizer({p, frozen}, {.lr = 1});
  const uint64_t before = p.storage()->version(), other = frozen.storage()->version();
  p.set_grad(from({1.0}));
  optimizer.step();
  CHECK(p.storage()->version() > before);
  CHECK(frozen.storage()->version() == other);
}

TEST_CASE("option errors name the option and its value") {
  const std::vector<Tensor> p{leaf({1})};
  CHECK_THROWS_WITH_AS(Sgd(p, {.lr = -1}), "[Sgd] lr is -1. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.lr = std::nan("")}), "[Sgd] lr is nan. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.momentum = -0.5}), "[Sgd] momentum is -0.5. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.weight_decay = -0.1}), "[Sgd] weight_decay is -0.1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.nesterov = true}),
                       "[Sgd] nesterov with momentum 0 and dampening 0. It needs a positive "
                       "momentum and no dampening.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Adam(p, {.betas = {1, 0.9}}), "[Adam] beta1 is 1. Use 0 or more, below 1.",
                       UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.betas = {0.9, -0.1}}),
                       "[AdamW] beta2 is -0.1. Use 0 or more, below 1.", UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.eps = -1e-8}), "[AdamW] eps is -1e-08. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.weight_decay = -1}), "[AdamW] weight_decay is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Rmsprop(p, {.alpha = -1}), "[Rmsprop] alpha is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Adam(p, {.state_dtype = i64}),
                       "[Adam] state_dtype is i64. Use f32, bf16 or f16, or a CodedForm.",
                       DTypeError);
}

TEST_CASE("parameter errors") {
  const Tensor p = leaf({1});
  CHECK_THROWS_WITH_AS(
      AdamW(std::vector<Tensor>{}),
      "[AdamW] got an empty parameter list. Pass model.parameters() of a model that has some.",
      UsageError);
  CHECK_THROWS_WITH_AS(
      Sgd(std::vector<ParameterGroup<SgdOptions>>{}),
      "[Sgd] got no parameter groups. Pass model.parameters() of a model that has some.",
      UsageError);
  CHECK_THROWS_WITH_AS(Sgd({p, Tensor{}}), "[Sgd] parameter 1 is undefined. Leave it out.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd({p, zeros({2}, i64)}),
                       "[Sgd] parameter 1 is [2] i64. Only floating tensors can be trained.",
                       DTypeError);
  CHECK_THROWS_WITH_AS(Sgd({p, p}),
                       "[Sgd] parameter 1, [1] f32, appears twice. Name each parameter once.",
                       UsageError);
}

}  // namespace halftone::test::optimizers_test

// Lion, LAMB and Muon: compared with their published formulas in f64, under every form of weights.

namespace halftone::test::by_formula_test {

using namespace halftone::optim;

namespace {

using Values = std::vector<double>;

Values random_values(std::size_t count, int seed) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::sin(double(seed) * 12.9898 + double(i) * 78.233) * 1.3 + 0.1;
  return values;
}

double norm(const Values& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

/// A formula updates a whole parameter of some shape; it stores its own state. t = 1, 2, ...
using Formula = std::function<void(int t, const Shape& shape, Values& p, const Values& g)>;

Formula lion(const LionOptions& o) {
  return [o, m = Values{}](int, const Shape&, Values& p, const Values& g) mutable {
    m.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double u = o.betas[0] * m[i] + (1 - o.betas[0]) * g[i];
      p[i] -= o.lr * (double(u > 0) - double(u < 0) + o.weight_decay * p[i]);
      m[i] = o.betas[1] * m[i] + (1 - o.betas[1]) * g[i];
    }
  };
}

Formula lamb(const LambOptions& o) {
  return [o, m = Values{}, v = Values{}](int t, const Shape&, Values& p, const Values& g) mutable {
    m.resize(p.size()), v.resize(p.size());
    Values u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = o.betas[0] * m[i] + (1 - o.betas[0]) * g[i];
      v[i] = o.betas[1] * v[i] + (1 - o.betas[1]) * g[i] * g[i];
      u[i] = m[i] / (1 - std::pow(o.betas[0], t)) /
                 (std::sqrt(v[i] / (1 - std::pow(o.betas[1], t))) + o.eps) +
             o.weight_decay * p[i];
    }
    const double w = norm(p), d = norm(u), trust = w > 0 && d > 0 ? w / d : 1;
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= o.lr * trust * u[i];
  };
}

using Matrix = std::vector<Values>;
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), Values(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < b.size(); ++k)
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}
Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), Values(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

/// torch.optim.Muon, without its bf16.
Formula muon(const MuonOptions& o) {
  return [o, m = Values{}](int, const Shape& shape, Values& p, const Values& g) mutable {
    m.resize(p.size());
    const auto rows = std::size_t(shape[0]), columns = p.size() / rows;
    Matrix x(rows, Values(columns));
    Values u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] += (1 - o.momentum) * (g[i] - m[i]);
      u[i] = o.nesterov ? g[i] + o.momentum * (m[i] - g[i]) : m[i];
    }
    for (std::size_t i = 0; i < p.size(); ++i)
      x[i / columns][i % columns] = u[i] / std::max(norm(u), o.eps);
    const bool tall = rows > columns;
    if (tall) x = transposed(x);
    for (int step = 0; step < o.iterations; ++step) {
      const Matrix gram = product(x, transposed(x)), square = product(gram, gram);
      Matrix factor = gram;
      for (std::size_t i = 0; i < factor.size(); ++i)
        for (std::size_t j = 0; j < factor.size(); ++j)
          factor[i][j] = o.coefficients[1] * gram[i][j] + o.coefficients[2] * square[i][j];
      const Matrix change = product(factor, x);
      for (std::size_t i = 0; i < x.size(); ++i)
        for (std::size_t j = 0; j < x[0].size(); ++j)
          x[i][j] = o.coefficients[0] * x[i][j] + change[i][j];
    }
    if (tall) x = transposed(x);
    const double r = double(rows), c = double(columns);
    const double scale = o.scale == MuonScale::original ? std::sqrt(std::max(1.0, r / c))
                                                        : 0.2 * std::sqrt(std::max(r, c));
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = p[i] * (1 - o.lr * o.weight_decay) - o.lr * scale * x[i / columns][i % columns];
  };
}

/// Does six steps from a parameter of that shape: the optimizer in f64 and the formula agree.
template <class O, class Options>
void compare(const Options& options, const Shape& shape, const Formula& formula, double start = 1) {
  const auto count = std::size_t(numel_of(shape));
  for (const char* backend : {"cpu", "reference"}) {
    INFO(Options::name, ' ', backend);
    const CpuBackendScope scope(backend);
    Values expected = random_values(count, 0);
    for (double& x : expected) x *= start;
    Tensor p = from_vector(expected, shape, f64).set_requires_grad();
    O optimizer({p}, options);
    Formula rule = formula;
    for (int t = 1; t <= 6; ++t) {
      const Values g = random_values(count, t);
      p.set_grad(from_vector(g, shape, f64));
      if (t % 2 == 0) optimizer.step();
      else optimizer.step({.factor = full({}, 1, f32)});
      rule(t, shape, expected, g);
    }
    const Values got = p.to_vector<double>();
    double largest = 0;
    for (std::size_t i = 0; i < count; ++i)
      largest = std::max(largest, std::abs(got[i] - expected[i]));
    CHECK(largest < 1e-12);
  }
}

TEST_CASE("Lion follows its algorithm") {
  for (const double decay : {0.0, 0.1}) {
    const LionOptions options{.lr = 0.01, .weight_decay = decay};
    compare<Lion>(options, {37}, lion(options));
  }
  // A momentum of 0 has no direction.
  Tensor p = ones({2}).set_requires_grad();
  Lion optimizer({p}, 0.5);
  p.set_grad(from({0.0, 2.0}));
  optimizer.step();
  CHECK(p.to_vector<double>() == Values{1, 0.5});
}

TEST_CASE("the length of LAMB's step is determined by the parameter") {
  for (const double decay : {0.0, 0.1}) {
    const LambOptions options{.lr = 0.01, .weight_decay = decay};
    compare<Lamb>(options, {3, 11}, lamb(options));
    compare<Lamb>(options, {}, lamb(options));
    compare<Lamb>(options, {5}, lamb(options), 0);  // a norm of 0: the factor is 1
  }
}

TEST_CASE("Muon makes momentum orthogonal") {
  for (const Shape& shape : {Shape{4, 7}, Shape{7, 4}, Shape{5, 5}, Shape{1, 3}, Shape{6, 2, 3, 3}})
    for (const bool nesterov : {true, false})
      for (const MuonScale scale : {MuonScale::original, MuonScale::match_rms_adamw}) {
        CAPTURE(shape);
        const MuonOptions options{
            .lr = 0.02, .nesterov = nesterov, .iteration_dtype = f64, .scale = scale};
        compare<Muon>(options, shape, muon(options));
      }
}

TEST_CASE("norms whose squares leave f32: LAMB's factor, and Muon's step of any gradient") {
  for (const double size : {1e-25, 1e25}) {
    Tensor p = full({9}, size).clone().set_requires_grad();
    Lamb optimizer({p}, {.lr = 0.01, .eps = 0, .weight_decay = 0});
    p.set_grad(ones({9}));
    optimizer.step();
    CHECK(p.to_vector<double>()[8] == doctest::Approx(0.99 * size).epsilon(1e-5));
  }
  const auto stepped = [](double size) {
    Tensor p = zeros({4, 6}).set_requires_grad();
    Muon optimizer({p}, {.lr = 1, .weight_decay = 0, .iteration_dtype = f32, .eps = 0});
    p.set_grad(from_vector(random_values(24, 5), {4, 6}) * size);
    optimizer.step();
    return p.to_vector<double>();
  };
  const Values usual = stepped(1);
  for (const double size : {0x1p-90, 0x1p90}) {
    const Values other = stepped(size);
    for (std::size_t i = 0; i < usual.size(); ++i)
      CHECK(other[i] == doctest::Approx(usual[i]).epsilon(1e-4));
  }
}

TEST_CASE("Muon updates parameters that are not matrices as AdamW does") {
  Tensor p = from_vector(random_values(9, 0), {9}, f64).set_requires_grad(),
         q = p.detach().clone().set_requires_grad();
  Muon muon({p}, {.lr = 0.01, .vector_lr_factor = 0.5});
  AdamW adamw({q}, {.lr = 0.005, .weight_decay = 0.1});
  for (int t = 1; t <= 3; ++t) {
    p.set_grad(from_vector(random_values(9, t), {9}, f64)), q.set_grad(p.grad().clone());
    muon.step(), adamw.step();
  }
  CHECK(p.to_vector<double>() == q.to_vector<double>());
}

TEST_CASE("the precision of Muon's iteration is the user's choice") {
  const auto singular_spread = [](DType dtype) {
    Tensor p = zeros({8, 16}).set_requires_grad();
    Muon muon({p}, {.lr = 1, .weight_decay = 0, .iteration_dtype = dtype});
    p.set_grad(from_vector(random_values(128, 1), {8, 16}, f32));
    muon.step();
    const Tensor gram = matmul(p.detach(), transpose(p.detach(), 0, 1));
    double trace = 0;
    for (int64_t i = 0; i < 8; ++i) trace += gram.at({i, i});
    return trace / 8;  // of squared singular values, which end between 0.5^2 and 1.5^2
  };
  const double f32_trace = singular_spread(f32), bf16_trace = singular_spread(bf16);
  CHECK(f32_trace > 0.25);
  CHECK(f32_trace < 2.25);
  CHECK(bf16_trace != f32_trace);
  CHECK(bf16_trace == doctest::Approx(f32_trace).epsilon(0.1));
  CHECK_THROWS_AS(Muon({zeros({2, 2}).set_requires_grad()}, {.iteration_dtype = i32}), DTypeError);
  CHECK_THROWS_AS(Muon({zeros({2, 2}).set_requires_grad()}, {.iterations = -1}), UsageError);
}

// --- forms of weights

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)>;
const std::vector<std::pair<std::string, Make>> makers{
    {"Lion",
     [](std::vector<Tensor> p) {
       return std::make_unique<Lion>(p, LionOptions{.lr = 0.01, .weight_decay = 0.1});
     }},
    {"LAMB",
     [](std::vector<Tensor> p) {
       return std::make_unique<Lamb>(p, LambOptions{.lr = 0.01, .weight_decay = 0.1});
     }},
    {"Muon",
     [](std::vector<Tensor> p) { return std::make_unique<Muon>(p, MuonOptions{.lr = 0.01}); }},
    {"Adagrad", [](std::vector<Tensor> p) { return std::make_unique<Adagrad>(p); }},
    {"NAdam", [](std::vector<Tensor> p) { return std::make_unique<NAdam>(p); }},
    {"RAdam", [](std::vector<Tensor> p) { return std::make_unique<RAdam>(p); }},
    {"Adafactor", [](std::vector<Tensor> p) { return std::make_unique<Adafactor>(p); }},
};

TEST_CASE("state is saved and loaded under its names") {
  const std::map<std::string, std::vector<std::string>> names{
      {"Lion", {"exp_avg"}},
      {"LAMB", {"exp_avg", "exp_avg_sq"}},
      {"Muon", {"momentum_buffer"}},
      {"Adagrad", {"sum"}},
      {"NAdam", {"exp_avg", "exp_avg_sq"}},
      {"RAdam", {"exp_avg", "exp_avg_sq"}},
      {"Adafactor", {"row_var", "col_var"}}};
  for (const auto& [name, make] : makers) {
    INFO(name);
    Tensor p = from_vector(random_values(12, 0), {3, 4}, f32).set_requires_grad(),
           q = p.detach().clone().set_requires_grad();
    const auto first = make({p}), second = make({q});
    const auto step = [](Tensor& x, Optimizer& optimizer, int t) {
      x.set_grad(from_vector(random_values(12, t), {3, 4}, f32));
      optimizer.step();
    };
    step(p, *first, 1), step(p, *first, 2);
    int64_t bytes = 0;
    for (const std::string& entry : names.at(name)) {
      REQUIRE(first->state_dict().contains("state.0." + entry));
      bytes += 4 * first->state_dict().at("state.0." + entry).numel();
    }
    CHECK(first->state_bytes(0, p, f32, p.numel(), {}) == bytes);
    const std::vector<std::string_view> known = state_names();
    for (const std::string& entry : names.at(name))
      CHECK(std::ranges::find(known, entry) != known.end());
    q = p.detach().clone().set_requires_grad();
    const auto third = make({q});
    third->load_state_dict(first->state_dict());
    step(p, *first, 3), step(q, *third, 3);
    CHECK(p.to_vector<double>() == q.to_vector<double>());
  }
}

TEST_CASE("NAdam's product of momenta follows from the step, and is PyTorch's") {
  for (const auto& [beta, decay] :
       {std::pair{0.9, 4e-3}, {0.999, 4e-3}, {0.9999, 1.0}, {0.99, 30.0}, {0.9, 0.0}, {0.0, 1.0}}) {
    const rule::NAdam rule{.beta1 = beta, .momentum_decay = decay};
    double product = 1;
    for (int t = 1; t <= 2000; ++t) {
      product *= beta * (1 - 0.5 * std::pow(0.96, t * decay));
      if (t < 10 || t % 100 == 0)
        CHECK(std::abs(rule.mu_product(t) - product) <= 1e-12 * product + 1e-20);
    }
  }
  Tensor p = ones({3}).set_requires_grad();
  NAdam optimizer({p});
  for (int t = 1; t <= 2; ++t) p.set_grad(ones({3})), optimizer.step();
  const NamedTensors state = optimizer.state_dict();
  CHECK(state.at("state.0.mu_product").dtype() == f32);
  const double first = 0.9 * (1 - 0.5 * std::pow(0.96, 4e-3)),
               second = 0.9 * (1 - 0.5 * std::pow(0.96, 8e-3));
  CHECK(state.at("state.0.mu_product").item() == doctest::Approx(first * second));
  NAdam other({p});
  other.load_state_dict(state);
  CHECK(other.state_dict().at("state.0.mu_product").item() ==
        state.at("state.0.mu_product").item());
}

TEST_CASE("Adafactor's state: one row and one column of a matrix, and what does not fit") {
  Tensor matrix = ones({6, 4, 5}).set_requires_grad(), vector = ones({4}).set_requires_grad();
  Adafactor optimizer({matrix, vector}, {.state_dtype = bf16});
  matrix.set_grad(ones({6, 4, 5})), vector.set_grad(ones({4}));
  optimizer.step();
  NamedTensors state = optimizer.state_dict();
  CHECK(state.at("state.0.row_var").shape() == Shape{6, 4, 1});
  CHECK(state.at("state.0.col_var").shape() == Shape{6, 1, 5});
  CHECK(state.at("state.0.col_var").dtype() == bf16);
  CHECK(state.at("state.1.variance").shape() == Shape{4});
  CHECK_FALSE(state.contains("state.0.variance"));
  state.erase("state.0.row_var");
  CHECK_THROWS_WITH_AS(optimizer.load_state_dict(state),
                       doctest::Contains("state.0.row_var is missing"), UsageError);
  state["state.0.row_var"] = ones({6, 4, 5});
  CHECK_THROWS_WITH_AS(optimizer.load_state_dict(state),
                       doctest::Contains("state.0.row_var is [6, 4, 5] instead of [6, 4, 1]"),
                       UsageError);
}

TEST_CASE("options of Adagrad, NAdam, RAdam, Adafactor and L-BFGS say what is wrong") {
  const std::vector<Tensor> p{ones({2}).set_requires_grad()};
  const auto says = [](const std::string& text) { return doctest::Contains(text.c_str()); };
  CHECK_THROWS_WITH(Adagrad(p, {.lr_decay = -1}), "[Adagrad] lr_decay is -1. Use 0 or more.");
  CHECK_THROWS_WITH(Adagrad(p, {.initial_accumulator_value = -1}), says("[Adagrad] initial_acc"));
  CHECK_THROWS_WITH(NAdam(p, {.momentum_decay = -1}), says("[NAdam] momentum_decay is -1."));
  CHECK_THROWS_WITH(RAdam(p, {.betas = {0.9, 1}}), says("[RAdam] beta2 is 1."));
  CHECK_THROWS_WITH(Adafactor(p, {.beta2_decay = 0.1}), says("[Adafactor] beta2_decay is 0.1."));
  CHECK_THROWS_WITH(Adafactor(p, {.d = 0.5}), says("[Adafactor] d is 0.5. Use 1 or more."));
  CHECK_THROWS_WITH(Lbfgs(p, {.max_iter = 0}), says("[Lbfgs] max_iter is 0. Use 1 or more."));
  CHECK_THROWS_WITH(Lbfgs(p, {.state_dtype = bf16}), says("[Lbfgs] state_dtype is bf16."));
  CHECK_THROWS_WITH(Lbfgs({ones({2}, bf16).set_requires_grad()}), says("[Lbfgs] the parameters"));
  CHECK_THROWS_WITH(Lbfgs(p).step(), says("[Lbfgs] a step needs the loss more than once."));
  CHECK_THROWS_WITH(Lbfgs(p).step([] { return Tensor{}; }), says("[Lbfgs] the closure returned"));
}

TEST_CASE("L-BFGS: under strategies, and with a state that does not fit") {
  manual_seed(2);
  nn::Linear layer(3, 2);
  Lbfgs optimizer(layer.parameters());
  CHECK_THROWS_WITH(
      [&] {
        amp::Training training = amp::apply(amp::Policy::named("o2-bf16"), layer, optimizer);
        training.backward(sum(training.forward(layer, ones({1, 3}))));
        training.step();
      }(),
      doctest::Contains("[Lbfgs] a step needs the loss more than once."));
  const Tensor x = randn({5, 3}), t = randn({5, 2});
  nn::Linear other(3, 2);
  Lbfgs own(other.parameters(), {.strong_wolfe = true});
  const auto closure = [&] {
    own.zero_grad();
    const Tensor loss = amp::autocast(bf16, [&] { return mse(other(x), t); });
    loss.backward();
    return loss;
  };
  const double first = own.step(closure).item();
  CHECK(own.step(closure).item() < first / 1.5);
  NamedTensors state = own.state_dict();
  state.erase("state.0.d");
  CHECK_THROWS_WITH_AS(own.load_state_dict(state), doctest::Contains("there is no state.0.d of"),
                       UsageError);
}

}  // namespace

}  // namespace halftone::test::by_formula_test

// AMSGrad, maximize, schedules, plateaus and p-norms, each compared with PyTorch's formula in f64
// or its published numbers.

namespace halftone::test::variants_and_schedules_test {

using optim::LrSchedule;

namespace {

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("AMSGrad and maximize, by their formulas in f64") {
  const std::vector<double> start{1, -2, 0.5};
  for (const bool amsgrad : {false, true})
    for (const bool maximize : {false, true})
      for (const bool decoupled : {false, true}) {
        CAPTURE(amsgrad);
        CAPTURE(maximize);
        CAPTURE(decoupled);
        Tensor p = from_vector(start, {3}, f64).set_requires_grad();
        optim::Adam adam(
            {p}, {.lr = 0.1, .weight_decay = 0.02, .amsgrad = amsgrad, .maximize = maximize});
        Tensor q = from_vector(start, {3}, f64).set_requires_grad();
        optim::AdamW adamw(
            {q}, {.lr = 0.1, .weight_decay = 0.02, .amsgrad = amsgrad, .maximize = maximize});
        Tensor& x = decoupled ? q : p;
        std::vector<double> w = start, m(3), v(3), most(3);
        for (int t = 1; t <= 6; ++t) {
          std::vector<double> g(3);
          for (std::size_t i = 0; i < 3; ++i) g[i] = (t % 2 ? 1.0 : 0.1) * (w[i] + double(i));
          x.set_grad(from_vector(g, {3}, f64));
          if (decoupled) adamw.step();
          else adam.step();
          for (std::size_t i = 0; i < 3; ++i) {
            double gradient = maximize ? -g[i] : g[i];
            if (decoupled) w[i] *= 1 - 0.1 * 0.02;
            else gradient += 0.02 * w[i];
            m[i] = 0.9 * m[i] + 0.1 * gradient;
            v[i] = 0.999 * v[i] + 0.001 * gradient * gradient;
            most[i] = std::max(most[i], v[i]);
            const double root = std::sqrt((amsgrad ? most[i] : v[i]) / (1 - std::pow(0.999, t)));
            w[i] -= 0.1 / (1 - std::pow(0.9, t)) * m[i] / (root + 1e-8);
          }
        }
        for (std::size_t i = 0; i < 3; ++i)
          CHECK(values(x)[i] == doctest::Approx(w[i]).epsilon(1e-12));
      }
}

TEST_CASE("AMSGrad: under masters and split weights, saved and resumed") {
  for (const char* name : {"fp32", "o2-bf16", "split-bf16", "full-bf16-kahan", "amp-fp16"}) {
    CAPTURE(name);
    const auto train = [&](int steps, const optim::NamedTensors* from, optim::NamedTensors* to) {
      manual_seed(5);
      nn::Linear layer(4, 3);
      optim::AdamW adamw(layer.parameters(), {.lr = 0.05, .amsgrad = true});
      auto training = amp::apply(amp::Policy::named(name), layer, adamw);
      if (from) training.load_state_dict(*from);
      for (int i = 0; i < steps; ++i) {
        training.zero_grad();
        training.backward(mean(square(training.forward(layer, ones({2, 4})) - 1.0)));
        training.step();
      }
      to->clear();
      for (const auto& [key, x] : training.state_dict()) (*to)[key] = x.clone();
    };
    optim::NamedTensors whole, half, rest;
    train(6, nullptr, &whole), train(3, nullptr, &half), train(3, &half, &rest);
    REQUIRE(whole.contains("optimizer.state.0.max_exp_avg_sq"));
    for (const auto& [key, x] : whole) {
      CAPTURE(key);
      CHECK(values(x) == values(rest.at(key)));
    }
  }
}

TEST_CASE("maximize: SGD and RMSprop go in the opposite direction, also under a loss scale") {
  for (const bool scaled : {false, true}) {
    Tensor up = from({1.0, 2}).set_requires_grad(), down = from({1.0, 2}).set_requires_grad();
    optim::Sgd rises({up}, {.lr = 0.5, .momentum = 0.9, .maximize = true});
    optim::Sgd falls({down}, {.lr = 0.5, .momentum = 0.9});
    for (int i = 0; i < 3; ++i) {
      up.set_grad(from({-2.0, 1})), down.set_grad(from({2.0, -1}));
      if (scaled) rises.step({.factor = scalar(0.5)}), falls.step({.factor = scalar(0.5)});
      else rises.step(), falls.step();
    }
    CHECK(values(up) == values(down));
  }
  Tensor p = from({1.0}).set_requires_grad();
  optim::Rmsprop rmsprop({p}, {.lr = 0.1, .maximize = true});
  p.set_grad(from({3.0}));
  rmsprop.step();
  CHECK(values(p)[0] > 1);
}

TEST_CASE("schedules are torch's") {
  const LrSchedule steps = LrSchedule::multi_step({2, 5}, 0.1);
  CHECK(steps.at(1) == 1);
  CHECK(steps.at(2) == doctest::Approx(0.1));
  CHECK(steps.at(5) == doctest::Approx(0.01));
  CHECK(LrSchedule::exponential(0.9).at(3) == doctest::Approx(0.729));
  CHECK(LrSchedule::polynomial(10, 2).at(5) == doctest::Approx(0.25));
  CHECK(LrSchedule::polynomial(10).at(12) == 0);
  // torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(T_0=4, T_mult=2, eta_min=0.1), lr 1
  const LrSchedule restarts = LrSchedule::cosine_restarts(4, 2, 0.1);
  const std::vector<double> expected{1.0,
                                     0.8681980515339464,
                                     0.55,
                                     0.23180194846605364,
                                     1.0,
                                     0.9657457896300791,
                                     0.8681980515339464};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(restarts.at(int64_t(i)) == doctest::Approx(expected[i]).epsilon(1e-12));
  CHECK(restarts.at(12) == doctest::Approx(1));
  // torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10)
  const LrSchedule cycle = LrSchedule::one_cycle(10);
  const std::vector<double> one_cycle{0.04,
                                      0.52,
                                      1.0,
                                      0.9504846320134736,
                                      0.8117456539497631,
                                      0.6112620219362892,
                                      0.38874197806371076,
                                      0.18825834605023694,
                                      0.04951936798652633,
                                      4e-06};
  for (std::size_t i = 0; i < one_cycle.size(); ++i)
    CHECK(cycle.at(int64_t(i)) == doctest::Approx(one_cycle[i]).epsilon(1e-9));
  CHECK_THROWS_AS(LrSchedule::one_cycle(0), UsageError);
  CHECK_THROWS_AS(LrSchedule::one_cycle(10, 1.5), UsageError);
  CHECK_THROWS_AS(LrSchedule::one_cycle(10, 0.3, 0), UsageError);
  CHECK_THROWS_AS(LrSchedule::cosine_restarts(0), UsageError);
  CHECK_THROWS_AS(LrSchedule::multi_step({-1}), UsageError);
}

TEST_CASE("ReduceOnPlateau: patience, cooldown, threshold, least rate") {
  Tensor p = from({1.0}).set_requires_grad();
  const auto rates = [&](const optim::PlateauOptions& options, const std::vector<double>& losses) {
    optim::Sgd sgd({p}, {.lr = 1});
    optim::ReduceOnPlateau plateau(sgd, options);
    std::vector<double> seen;
    for (const double loss : losses) plateau.step(loss), seen.push_back(sgd.lr());
    return seen;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Rates = std::vector<double>;
  CHECK(rates({.factor = 0.5, .patience = 1}, {3, 2, 2, 2, 2, 2}) ==
        Rates{1, 1, 1, 0.5, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .cooldown = 2}, {3, 3, 3, 3, 3}) ==
        Rates{1, 0.5, 0.5, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .threshold = 0.1}, {10, 9.5, 8}) ==
        Rates{1, 0.5, 0.5});
  CHECK(rates({.larger_is_better = true, .factor = 0.5, .patience = 0}, {1, 2, 1.5, nan}) ==
        Rates{1, 1, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .min_lr = 0.4}, {1, 1, 1, 1}) ==
        Rates{1, 0.5, 0.4, 0.4});
  optim::Sgd sgd({p}, {.lr = 1});
  CHECK_THROWS_AS(optim::ReduceOnPlateau(sgd, {.factor = 1}), UsageError);
  CHECK_THROWS_AS(optim::ReduceOnPlateau(sgd, {.patience = -1}), UsageError);
}

TEST_CASE("clipping by any p-norm") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {f64, f32, bf16})
    for (const double p : {1.0, 1.5, 2.0, 3.0, inf}) {
      CAPTURE(p);
      Tensor a = zeros({2}, dtype).set_requires_grad(), b = zeros({1}, dtype).set_requires_grad();
      a.set_grad(from({3, -4}, dtype)), b.set_grad(from({12}, dtype));
      const double expected =
          std::isinf(p) ? 12 : std::pow(std::pow(3, p) + std::pow(4, p) + std::pow(12, p), 1 / p);
      const Tensor norm = optim::clip_grad_norm({a, b}, 1, {.norm_type = p});
      CHECK(norm.item() == doctest::Approx(expected).epsilon(1e-6));
      CHECK(values(a.grad())[1] ==
            doctest::Approx(-4 / expected).epsilon(4 * epsilon(dtype) + 1e-6));
    }
  Tensor huge = zeros({2}).set_requires_grad();
  huge.set_grad(from({1e30, 1e30}));
  CHECK(optim::clip_grad_norm({huge}, 1, {.norm_type = 3}).item() ==
        doctest::Approx(std::cbrt(2) * 1e30));
  CHECK_THROWS_AS(optim::clip_grad_norm({huge}, 1, {.norm_type = 0}), UsageError);
  CHECK(optim::clip_grad_norm({}, 1, {.norm_type = 1}).item() == 0);
}

}  // namespace

}  // namespace halftone::test::variants_and_schedules_test

// Schedules as tables, and the scheduler that applies them to groups.

namespace halftone::test::lr_schedule_test {

using namespace halftone::optim;

namespace {

void check_table(const LrSchedule& schedule, const std::vector<double>& expected) {
  for (std::size_t step = 0; step < expected.size(); ++step)
    CHECK(schedule.at(int64_t(step)) == doctest::Approx(expected[step]).epsilon(1e-12));
}
Tensor leaf() { return ones({1}).set_requires_grad(); }

}  // namespace

TEST_CASE("schedules, step by step") {
  check_table(LrSchedule::constant(), {1, 1, 1});
  check_table(LrSchedule::constant(0.5), {0.5, 0.5});
  check_table(LrSchedule::step_decay(2), {1, 1, 0.1, 0.1, 0.01});
  check_table(LrSchedule::step_decay(3, 0.5), {1, 1, 1, 0.5, 0.5, 0.5, 0.25});
  check_table(LrSchedule::linear(4), {1, 0.75, 0.5, 0.25, 0, 0});
  check_table(LrSchedule::linear(2, 0.5), {1, 0.75, 0.5, 0.5});
  const double c = std::sqrt(0.5);
  check_table(LrSchedule::cosine(4), {1, (1 + c) / 2, 0.5, (1 - c) / 2, 0, 0, 0});
  check_table(LrSchedule::cosine(2, 0.2), {1, 0.6, 0.2, 0.2});
  check_table(LrSchedule::warm_up(4), {0.25, 0.5, 0.75, 1, 1, 1});
  check_table(LrSchedule::warm_up(2, LrSchedule::linear(2)), {0.5, 1, 1, 0.5, 0, 0});
  check_table(LrSchedule::warm_up(0, LrSchedule::step_decay(1, 0.5)), {1, 0.5, 0.25});
  check_table(LrSchedule([](int64_t step) { return double(step); }), {0, 1, 2});
}

TEST_CASE("schedules refuse invalid options") {
  CHECK_THROWS_WITH_AS(LrSchedule::cosine(0), "[LrSchedule.cosine] steps is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::linear(-1), "[LrSchedule.linear] steps is -1. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::step_decay(0),
                       "[LrSchedule.step_decay] every is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::warm_up(-1), "[LrSchedule.warm_up] steps is -1. Use 0 or more.",
                       UsageError);
}

TEST_CASE("the scheduler multiplies each group's own rate") {
  Sgd optimizer({{.parameters = {leaf()}, .options = {.lr = 1}},
                 {.parameters = {leaf()}, .options = {.lr = 0.5}}});
  LrScheduler scheduler(optimizer, LrSchedule::warm_up(2, LrSchedule::linear(2)));
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
  scheduler.step();
  CHECK(optimizer.lr(0) == 1);
  CHECK(optimizer.lr(1) == 0.5);
  for (int i = 0; i < 2; ++i) scheduler.step();
  CHECK(scheduler.steps() == 3);
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
}

TEST_CASE("a scheduler resumes with its earlier rates") {
  Sgd first({leaf()}, {.lr = 2}), second({leaf()}, {.lr = 7});
  LrScheduler a(first, LrSchedule::linear(4)), b(second, LrSchedule::linear(4));
  a.step();
  b.load_state_dict(a.state_dict());
  CHECK(b.steps() == 1);
  CHECK(second.lr() == 1.5);
  a.step(), b.step();
  CHECK(second.lr() == first.lr());

  CHECK_THROWS_WITH_AS(b.load_state_dict({{"step", scalar(1)}}),
                       "[LrScheduler.load_state_dict] the state has 1 entries. It must have `step` "
                       "and `base_lrs`, as "
                       "state_dict() writes them.",
                       UsageError);
  CHECK_THROWS_WITH_AS(
      b.load_state_dict({{"step", scalar(1)}, {"base_lrs", ones({2})}}),
      "[LrScheduler.load_state_dict] the state has 2 rates, the optimizer 1 groups. Load what was "
      "saved for the same groups.",
      UsageError);
}

}  // namespace halftone::test::lr_schedule_test
