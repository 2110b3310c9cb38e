// Lion, LAMB and Muon: compared with their published formulas in f64, under every form of weights.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

#include <halftone/amp/master_weights.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/optim/optim.h>

namespace halftone::test::lion_lamb_muon_test {

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
};

/// The weights after eight steps with the same bf16 gradients, from weights that are exact in bf16.
struct Trained {
  Values weights, parameter;
  bool operator==(const Trained&) const = default;
};
Trained trained(const Make& make, std::optional<amp::MasterWeightsOptions> keep, DType dtype) {
  const Shape shape{24, 32};
  Tensor p = cast(from_vector(random_values(768, 0), shape, f32), bf16);
  p = cast(p, dtype).detach().set_requires_grad();
  Tensor bias = cast(cast(from_vector(random_values(33, 5), {33}, f32), bf16), dtype);
  bias = bias.detach().set_requires_grad();
  const auto inner = make({p, bias});
  std::optional<amp::MasterWeights> masters;
  if (keep) masters.emplace(*inner, *keep);
  Optimizer& optimizer = masters ? static_cast<Optimizer&>(*masters) : *inner;
  for (int t = 1; t <= 8; ++t) {
    p.set_grad(cast(cast(from_vector(random_values(768, t), shape, f32), bf16), dtype));
    bias.set_grad(cast(cast(from_vector(random_values(33, t), {33}, f32), bf16), dtype));
    optimizer.step({.factor = full({}, 0.5, f32)});
  }
  Trained result;
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor parameter = (i == 0 ? p : bias).detach();
    const Tensor weight = masters ? masters->weight(i) : cast(parameter, f32);
    for (const double v : weight.to_vector<double>()) result.weights.push_back(v);
    for (const double v : parameter.to_vector<double>()) result.parameter.push_back(v);
  }
  return result;
}

double distance(const Values& a, const Values& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST_CASE("masters and split weights of every optimizer are the f32 run, bit for bit") {
  for (const auto& [name, make] : makers)
    for (const char* backend : {"cpu", "reference"}) {
      INFO(name, ' ', backend);
      const CpuBackendScope scope(backend);
      const Trained wide = trained(make, {}, f32);
      const auto keep = [&](WeightForm form, bool fused) {
        return trained(make, amp::MasterWeightsOptions{.form = form, .fused = fused}, bf16);
      };
      CHECK(keep(WeightForm::master, true).weights == wide.weights);
      CHECK(keep(WeightForm::master, false).weights == wide.weights);
      CHECK(keep(WeightForm::split, true).weights == wide.weights);
      CHECK(keep(WeightForm::split_rounded, true).weights == wide.weights);
    }
}

TEST_CASE("compensated and stochastic weights of every optimizer stay near the f32 run") {
  for (const auto& [name, make] : makers) {
    INFO(name);
    const Trained wide = trained(make, {}, f32);
    Values start = random_values(768, 0);
    for (const double v : random_values(33, 5)) start.push_back(v);
    const double moved = distance(wide.weights, start);
    const auto keep = [&](WeightForm form) {
      return trained(make, amp::MasterWeightsOptions{.form = form}, bf16);
    };
    const Trained kahan = keep(WeightForm::kahan), stochastic = keep(WeightForm::stochastic);
    CHECK(distance(kahan.weights, wide.weights) < 0x1p-13);
    // Each of eight roundings has an error below a spacing of a weight below 2.
    CHECK(distance(stochastic.weights, wide.weights) < 8 * 0x1p-7);
    CHECK(distance(stochastic.weights, wide.weights) > 0);
    CHECK(moved > 0.01);
  }
}

TEST_CASE("a skipped step changes nothing") {
  for (const auto& [name, make] : makers) {
    INFO(name);
    Tensor p = from_vector(random_values(12, 0), {3, 4}, f32).set_requires_grad();
    const auto optimizer = make({p});
    p.set_grad(from_vector(random_values(12, 1), {3, 4}, f32));
    optimizer->step();
    const Values weights = p.to_vector<double>();
    std::map<std::string, Values> state;
    for (const auto& [key, x] : optimizer->state_dict()) state[key] = x.to_vector<double>();
    p.set_grad(full({3, 4}, std::nan("")));
    optimizer->step({.skip = ones({})});
    CHECK(p.to_vector<double>() == weights);
    for (const auto& [key, x] : optimizer->state_dict())
      CHECK_MESSAGE(x.to_vector<double>() == state[key], key);
  }
}

TEST_CASE("state is saved and loaded under its names") {
  const std::map<std::string, std::vector<std::string>> names{
      {"Lion", {"exp_avg"}}, {"LAMB", {"exp_avg", "exp_avg_sq"}}, {"Muon", {"momentum_buffer"}}};
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
    for (const std::string& entry : names.at(name))
      CHECK(first->state_dict().contains("state.0." + entry));
    q = p.detach().clone().set_requires_grad();
    const auto third = make({q});
    third->load_state_dict(first->state_dict());
    step(p, *first, 3), step(q, *third, 3);
    CHECK(p.to_vector<double>() == q.to_vector<double>());
    CHECK(first->state_tensors(0, p) == int64_t(names.at(name).size()));
  }
}

}  // namespace

}  // namespace halftone::test::lion_lamb_muon_test
