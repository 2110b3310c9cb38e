// Rules for one call of an operation in a module (match.ordinal), and for one operand (input.0,
// input.1): the bits of quantizations written by hand, errors, tables and texts.
#include <cmath>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/amp/resolved.h>

#include "../support.h"
#include "policy_cases.h"

namespace halftone::test::operand_rules_test {
namespace {

using policy::Role;

/// (a b) c of three activations: two products in one module.
struct TwoProducts final : nn::Module {
  Tensor operator()(const Tensor& a, const Tensor& b, const Tensor& c) const {
    const CallScope scope(this);
    return matmul(relu(matmul(a, b)), c);
  }
  void describe(nn::Fields&) override {}
};

struct Model final : nn::Module {
  TwoProducts products;
  nn::Parameter weight{numbers({6, 5}, 9)};
  void describe(nn::Fields& field) override {
    field("products", products), field("weight", weight);
  }
};

/// One pass of the model under rules.
struct Products {
  Model model;
  optim::Sgd sgd;
  amp::Training training;
  Tensor a{numbers({4, 6}, 1)}, b{numbers({6, 7}, 2)}, c{numbers({7, 3}, 3)},
      dy{numbers({4, 3}, 4)}, y{};
  explicit Products(const std::string& rules)
      : sgd(model.parameters(), {.lr = 0.1}),
        training(policy::read_text(policy_with(rules)), model, sgd) {
    for (Tensor* x : {&a, &b, &c}) x->set_requires_grad();
    y = training.forward([&] { return model.products(a, b, c); });
    y.backward(dy);
  }
};

/// The quantizers of one product: of forward, and of the products of backward.
struct Rounded {
  const char *left = nullptr, *right = nullptr, *left_backward = nullptr, *right_backward = nullptr;
};

Tensor on(const char* quantizer, const Tensor& x) {
  return quantizer ? quantized(x.detach(), {.quantizer = *quantizer_named(quantizer)}) : x.detach();
}

/// Computes both products and all gradients with explicit calls of quantized().
void check_written_by_hand(const Products& pass, const Rounded& first, const Rounded& second) {
  const NoGrad no_grad;
  const auto use = [](const char* own, const char* role) { return own ? own : role; };
  const Tensor h = matmul(on(first.left, pass.a), on(first.right, pass.b)), r = relu(h);
  CHECK(floats(pass.y) == floats(matmul(on(second.left, r), on(second.right, pass.c))));
  const Tensor r_used = on(use(second.left_backward, second.left), r),
               c_used = on(use(second.right_backward, second.right), pass.c),
               a_used = on(use(first.left_backward, first.left), pass.a),
               b_used = on(use(first.right_backward, first.right), pass.b);
  const Tensor dr = matmul(pass.dy, transpose(c_used, 0, 1));
  const Tensor dh = where(h > 0.0, dr, zeros({4, 7}));
  CHECK(floats(pass.c.grad()) == floats(matmul(transpose(r_used, 0, 1), pass.dy)));
  CHECK(floats(pass.a.grad()) == floats(matmul(dh, transpose(b_used, 0, 1))));
  CHECK(floats(pass.b.grad()) == floats(matmul(transpose(a_used, 0, 1), dh)));
}

TEST_CASE("a rule with an ordinal quantizes only that call") {
  check_written_by_hand(Products(R"({"match": {"op": "matmul"}, "input": "e2m1"})"),
                        {"e2m1", "e2m1"}, {"e2m1", "e2m1"});
  check_written_by_hand(Products(R"({"match": {"op": "matmul", "ordinal": 1}, "input": "e2m1"})"),
                        {}, {"e2m1", "e2m1"});
  check_written_by_hand(Products(R"({"match": {"op": "matmul", "ordinal": 0}, "input": "e2m1"})"),
                        {"e2m1", "e2m1"}, {});
}

TEST_CASE("a rule for one operand quantizes only that operand") {
  check_written_by_hand(Products(R"({"match": {"op": "matmul"}, "input.1": "e2m1"})"),
                        {nullptr, "e2m1"}, {nullptr, "e2m1"});
  check_written_by_hand(Products(R"({"match": {"op": "matmul", "ordinal": 1}, "input.0": "e2m1"})"),
                        {}, {.left = "e2m1"});
  check_written_by_hand(
      Products(R"({"match": {"op": "matmul", "ordinal": 1}, "input.1": "e4m3", "input.0": "e3m2",
                   "input.1.backward": "e2m1"})"),
      {}, {"e3m2", "e4m3", nullptr, "e2m1"});
  check_written_by_hand(
      Products(R"({"match": {"op": "matmul"}, "input.0.backward": "e2m1", "input": "e4m3"})"),
      {"e4m3", "e4m3", "e2m1", nullptr}, {"e4m3", "e4m3", "e2m1", nullptr});
}

TEST_CASE("the entry for one operand wins in its rule, and later rules win over earlier ones") {
  // In one rule, in any order.
  check_written_by_hand(
      Products(R"({"match": {"op": "matmul"}, "input.1": "e2m1", "input": "e4m3"})"),
      {"e4m3", "e2m1"}, {"e4m3", "e2m1"});
  check_written_by_hand(
      Products(R"({"match": {"op": "matmul"}, "input.1": "none", "input": "e4m3"})"),
      {"e4m3", nullptr}, {"e4m3", nullptr});
  // A later "input" is for both operands.
  check_written_by_hand(Products(R"({"match": {"op": "matmul"}, "input.1": "e2m1"},
                                    {"match": {"op": "matmul", "ordinal": 1}, "input": "e4m3"})"),
                        {nullptr, "e2m1"}, {"e4m3", "e4m3"});
  // A later entry for one operand leaves the other one.
  check_written_by_hand(Products(R"({"match": {"op": "matmul"}, "input": "e2m1"},
                                    {"match": {"op": "matmul", "ordinal": 0}, "input.0": "e4m3"})"),
                        {"e4m3", "e2m1"}, {"e2m1", "e2m1"});
  // A later "input" does not change uses; a later "input.backward" is for both operands.
  check_written_by_hand(Products(R"({"match": {"op": "matmul"}, "input.0.backward": "e2m1"},
                  {"match": {"op": "matmul"}, "input": "e4m3"},
                  {"match": {"op": "matmul", "ordinal": 1}, "input.backward": "as_used"})"),
                        {"e4m3", "e4m3", "e2m1", nullptr}, {"e4m3", "e4m3"});
  check_written_by_hand(
      Products(R"({"match": {"op": "matmul"}, "input.backward": "e2m1", "input.1": "e4m3",
                   "input.1.backward": "as_used"})"),
      {nullptr, "e4m3", "e2m1", "e4m3"}, {nullptr, "e4m3", "e2m1", "e4m3"});
}

TEST_CASE("a weight keeps its role as the right operand; numbers count all operands") {
  Model model;
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(
      policy::read_text(policy_with(R"({"match": {"op": "matmul"}, "input.0": "e2m1"})")), model,
      sgd);
  const Tensor x = numbers({4, 6}, 1);
  const Tensor y = training.forward([&] { return matmul(x, model.weight); });
  const NoGrad no_grad;
  CHECK(floats(y) == floats(matmul(on("e2m1", x), model.weight.detach())));
}

// --- errors

/// Returns the message of a pass and the checks of its rules.
std::string message_under(const std::string& rules) {
  return message_of<UsageError>(
      [&] { policy::session_of(Products(rules).training).require_all_rules_used(); });
}

TEST_CASE("ordinals and operands that a file cannot have") {
  const auto ordinal = [](const char* value) {
    return refusal_of_rule(R"("input": "e4m3", "match": {"ordinal": )" + std::string(value) + "}");
  };
  CHECK(ordinal("0") == "accepted");
  CHECK(ordinal("-1") ==
        "/rules/0/match/ordinal: expected a whole number from 0 to 1073741824, got -1.");
  CHECK(ordinal("1.5") ==
        "/rules/0/match/ordinal: expected a whole number from 0 to 1073741824, got 1.5.");
  CHECK(ordinal(R"("1")") == "/rules/0/match/ordinal: expected a number, got a text.");
  CHECK(refusal_of_rule(R"("input.2": "e4m3")") ==
        "/rules/0/input.2: rules name only the operands 0 and 1. \"input\" alone is for all "
        "operands.");
  CHECK(refusal_of_rule(R"("input.a": "e4m3")")
            .starts_with("/rules/0/input.a: a rule has no entry \"input.a\". Did you mean "));
  CHECK(refusal_of_rule(R"("input.1": "as_used")").starts_with("/rules/0/input.1: as_used is of "));
  CHECK(refusal_of_rule(R"("input.1.backward": "as_used")") == "accepted");
  CHECK(refusal_of_rule(R"("match": {"op": ["relu", "softmax"]}, "input.1": "e4m3")") ==
        "/rules/0/input.1: an operation with one input has no operand 1: relu, softmax. Use "
        "\"input\", or leave the entry out.");
  CHECK(refusal_of_rule(R"("match": {"op": "relu"}, "input.1.backward": "e4m3")")
            .starts_with(
                "/rules/0/input.1.backward: an operation with one input has no operand 1: relu."));
  for (const char* op : {"add", "matmul", "linear", "cat", "where", "lstm", "einsum"}) {
    CAPTURE(op);
    CHECK(refusal_of_rule(R"("match": {"op": ")" + std::string(op) + R"("}, "input.1": "e4m3")") ==
          "accepted");
  }
  CHECK(refusal_of_rule(R"("match": {"op": "relu"}, "input.0": "e4m3")") == "accepted");
  CHECK(refusal_of_rule(R"("compute": "bf16", "input.1": "fp8_block")")
            .starts_with("/rules/0/input.1: the grid of \"input.1\" is e4m3, blocks of "));
}

TEST_CASE("ordinals and operands that a model does not have") {
  CHECK(message_under(
            R"({"name": "third", "match": {"op": "matmul", "ordinal": 2}, "input": "e4m3"})") ==
        "[policy t] rule 0 (\"third\") matches nothing in this model: its ordinal is 2, and the "
        "largest ordinal of its operations is 1. Mark it \"optional\" if that is meant.");
  CHECK(message_under(
            R"({"match": {"op": "matmul", "ordinal": 2}, "input": "e4m3", "optional": true})")
            .empty());
  CHECK(contains(message_under(R"({"match": {"op": "linear", "ordinal": 0}, "input": "e4m3"})"),
                 "no operation that it is for has a path like \"**\""));
  CHECK(message_under(R"({"name": "all", "input.1": "e4m3"})") ==
        "[policy t] rule 0 (\"all\") at products/relu.0: relu has one input, so \"input.1\" is not "
        "possible here. Name the operations in \"match\", or except this place.");
  CHECK(message_under(R"({"match": {"asks": "low_precision"}, "input.1": "e4m3"})").empty());
  // The right operand of a linear layer is its weight.
  CHECK(message_of<UsageError>([] {
          Steps steps(
              policy_with(R"({"name": "r", "match": {"op": "linear"}, "input.1": "e4m3"})"));
          steps.step(0);
        }) ==
        "[policy t] rule 0 (\"r\"): \"input.1\" changes no tensor: operand 1 is not an activation "
        "at any site of the rule. Use \"weight\" for parameters, or mark the rule \"optional\".");
}

TEST_CASE("a role that no tensor of the rule's sites has is an error of the first step") {
  for (const char* role : {"weight", "weight.backward", "bias", "grad_weight"}) {
    CAPTURE(role);
    const std::string rule =
        R"({"name": "r", "match": {"op": "relu"}, ")" + std::string(role) + R"(": "e4m3")";
    CHECK(message_under(rule + "}") == "[policy t] rule 0 (\"r\"): \"" + std::string(role) +
                                           "\" changes no tensor: there is none at any site of the "
                                           "rule. Leave it out, or mark the rule \"optional\".");
    CHECK(message_under(rule + R"(, "optional": true})").empty());
  }
  CHECK(
      message_under(R"({"match": {"op": "relu"}, "input": "e4m3", "grad_input": "e5m2"})").empty());
}

TEST_CASE("an operation that a rule refuses is named with its site") {
  CHECK(message_under(R"({"match": {"op": "relu"}, "compute": "refuse"})") ==
        "[policy t] products/relu.0: a rule refuses relu here. Change the model, or except this "
        "place.");
}

// --- tables and texts

TEST_CASE("tables show operands, and hashes depend on their effect") {
  const auto hash = [](const std::string& rules) {
    return policy::resolved_hash(policy::session_of(Products(rules).training));
  };
  const std::string both = R"({"match": {"op": "matmul"}, "input": "e4m3"})";
  CHECK(hash(R"({"match": {"op": "matmul"}, "input": "e4m3", "input.1": "e4m3"})") == hash(both));
  CHECK(hash(R"({"match": {"op": "matmul"}, "input.1": "e2m1"},)" + both) == hash(both));
  std::set<std::string> hashes{hash(R"({"match": {"op": "matmul"}, "input": "none"})")};
  for (const char* rule :
       {R"("op": "matmul"}, "input": "e4m3")", R"("op": "matmul"}, "input.0": "e4m3")",
        R"("op": "matmul"}, "input.1": "e4m3")",
        R"("op": "matmul", "ordinal": 1}, "input": "e4m3")",
        R"("op": "matmul"}, "input": "e4m3", "input.1": "none")",
        R"("op": "matmul"}, "input.1.backward": "e4m3")",
        R"("op": "matmul"}, "input.1.backward": "none", "input": "e4m3")"}) {
    CAPTURE(rule);
    CHECK(hashes.insert(hash(R"({"match": {)" + std::string(rule) + "}")).second);
  }
  const Products pass(
      R"({"name": "pv", "match": {"op": "matmul", "ordinal": 1}, "input": "e4m3", "input.1": "none"})");
  const policy::Session& session = policy::session_of(pass.training);
  const std::string table = policy::resolved_table(session);
  CHECK(contains(table, "products/matmul.0  low_precision | f32 | |\n"));
  CHECK(contains(table, "products/matmul.1  low_precision | f32 | input=e4m3 input.1=none | 0\n"));
  CHECK(contains(table, "rule 0 (pv): 1 sites, "));
  const auto json = nlohmann::json::parse(policy::resolved_json(session));
  for (const auto& site : json["sites"])
    if (site["site"] == "products/matmul.1")
      CHECK(site["roles"] == nlohmann::json{{"input", "e4m3"},
                                            {"input.1", "none"},
                                            {"input.backward", "e4m3"},
                                            {"input.1.backward", "none"}});
  const Products other(both);
  CHECK(contains(policy::resolved_difference(session, policy::session_of(other.training)),
                 "products/matmul.1\n  - low_precision | f32 | input=e4m3 input.1=none\n"
                 "  + low_precision | f32 | input=e4m3\n"));
}

TEST_CASE("ordinals and operands survive writing; files without them have the same text") {
  const amp::Policy file = file_of(R"("rules": [{"match": {"op": "matmul", "ordinal": 1},
    "input": "e4m3", "input.0": "mxfp4", "input.1": "none", "input.0.backward": "as_used",
    "input.1.backward": "e5m2"}])");
  const policy::Rule& rule = file.rules.rules.at(0);
  CHECK(rule.match.ordinal == 1);
  CHECK(rule.roles.size() == 5);
  CHECK(rule.roles.at(Role::input_0).quantizer == *quantizer_named("mxfp4"));
  const std::string text = policy::write(file);
  const amp::Policy again = policy::read_text(text, "again");
  CHECK(again.rules == file.rules);
  CHECK(policy::write(again) == text);
  amp::Policy first = file;
  first.rules.rules[0].match.ordinal = 0;
  CHECK(policy::hash(first) != policy::hash(file));
  const std::string plain = policy::write(file_of(R"("rules": [{"input": "e4m3"}])"));
  CHECK_FALSE(contains(plain, "ordinal"));
  CHECK_FALSE(contains(plain, "input."));
}

TEST_CASE("the hashes of shipped policies stay") {
  const std::pair<const char*, const char*> hashes[]{
      {"mxfp8", "ef173e0767458d0b"},
      {"nvfp4", "a4a98908405c426a"},
      {"te_delayed_hybrid", "263def4b2717dc8d"},
      {"deepseek_v3", "4579971d1d963d11"},
      {"quartet2", "ecfb76902afb8ea0"},
  };
  for (const auto& [name, hash] : hashes) {
    CAPTURE(name);
    CHECK(policy::hash(policy::named_or_read(name)) == hash);
  }
}

}  // namespace
}  // namespace halftone::test::operand_rules_test

// Averages of weights over steps: the recurrence, one update per step, evaluation, saved states,
// and what files cannot say.

namespace halftone::test::weight_averages_test {
namespace {

constexpr double share = 0.75;
const std::string averaged = policy_with(
    R"({"match": {"op": "linear"}, "weight": {"format": "e2m1", "average": 0.75,
       "scale": {"per": "block", "block": [1, 4], "rule": "rceil"}}})");

NamedTensors state_of(const Steps& run) { return run.training.region().session->state_dict(); }

TEST_CASE("the average follows the weight, once per step") {
  Steps run(averaged);
  const Tensor weight = run.model.parameters()[0];
  std::vector<float> wanted = floats(weight);
  for (uint64_t i = 0; i < 4; ++i) {
    const std::vector<float> now = floats(weight);
    for (std::size_t k = 0; k < now.size() && i > 0; ++k)
      wanted[k] += float(1 - share) * (now[k] - wanted[k]);
    // Another training pass and an evaluation in the same step change nothing.
    run.training.forward([&](const Tensor& in) { return run.model(in); }, numbers({5, 6}, 30));
    {
      const NoGrad no_grad;
      run.training.forward([&](const Tensor& in) { return run.model(in); }, numbers({5, 6}, 31));
    }
    run.step(i);
    const Tensor average = state_of(run).at("average.0/linear.0.weight1");
    REQUIRE(average.shape() == weight.shape());
    for (std::size_t k = 0; k < wanted.size(); ++k)
      CHECK(average.data<float>()[k] == doctest::Approx(wanted[k]).epsilon(1e-6));
    CHECK((floats(average) != now) == (i > 0));
  }
}

TEST_CASE("a layer multiplies the weight that its average chooses") {
  Steps run(averaged, {6, 3});
  run.step(0), run.step(1), run.step(2);
  const Tensor x = numbers({5, 6}, 9);
  const NoGrad no_grad;
  const Tensor y = run.training.forward([&](const Tensor& in) { return run.model(in); }, x);
  Quantizer quantizer = *quantizer_named("mxfp4");
  quantizer.scaling.columns = 4, quantizer.scaling.rule = ScaleRule::rceil;
  quantizer.average = share;
  const Tensor weight = run.model.parameters()[0];
  const Tensor chosen = quantized(
      weight, {.quantizer = quantizer, .average = state_of(run).at("average.0/linear.0.weight1")});
  CHECK(floats(y) == floats(linear(x, chosen, run.model.parameters()[1])));
}

TEST_CASE("a training that is loaded in the middle ends with the same weights") {
  Steps whole(averaged), first(averaged), second(averaged);
  for (uint64_t i = 0; i < 6; ++i) whole.step(i);
  for (uint64_t i = 0; i < 3; ++i) first.step(i);
  const auto a = first.model.parameters(), b = second.model.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) copy_into(b[i], a[i]);
  second.training.load_state_dict(first.training.state_dict());
  for (uint64_t i = 3; i < 6; ++i) second.step(i);
  CHECK(second.weights() == whole.weights());
  Steps without(policy_with(R"({"match": {"op": "linear"}, "weight": {"format": "e2m1",
       "scale": {"per": "block", "block": [1, 4], "rule": "rceil"}}})"));
  for (uint64_t i = 0; i < 6; ++i) without.step(i);
  CHECK(without.weights() != whole.weights());
}

TEST_CASE("a damaged average is refused") {
  Steps run(averaged);
  run.step(0);
  NamedTensors state = state_of(run);
  state["average.0/linear.0.weight1"] = ones({8, 6}, i64);
  CHECK_THROWS_AS(run.training.region().session->load_state_dict(state), UsageError);
}

TEST_CASE("files: averages are for weights") {
  const auto refusal = [](const std::string& role) {
    return refusal_of_rule('"' + role + R"(": {"like": "mxfp4", "average": 0.9})");
  };
  CHECK(refusal("weight") == "accepted");
  CHECK(refusal("weight.backward") == "accepted");
  CHECK(refusal("input") ==
        "/rules/0/input: an average over steps is for weights, and \"input\" is another tensor in "
        "each step. Use it for \"weight\" or \"weight.backward\".");
  CHECK_FALSE(refusal("grad_output") == "accepted");
  CHECK(refusal_of(R"("optimizer": {"parameters": {"like": "e4m3", "average": 0.9}})") ==
        "/optimizer/parameters: averages are for the weights of operations, not for what an "
        "optimizer keeps.");
  CHECK(refusal_of_quantizer(R"("like": "mxfp4", "average": 1.5)") ==
        "/quantizers/q: an average keeps the share 1.5 of itself in each step. Choose a number "
        "above 0 and below 1.");
}

}  // namespace
}  // namespace halftone::test::weight_averages_test

// Tensors inside of attention that rules name, compared with loops in double.

namespace halftone::test::attention_roles_test {
namespace {

using policy::Role;
constexpr int64_t heads = 2, length = 5, keys = 6, width = 4;
constexpr double scale = 0.5;  // 1 / sqrt(width)

/// Attention in a module.
struct Model final : nn::Module {
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const CallScope scope(this);
    return scaled_dot_product_attention(q, k, v);
  }
  void describe(nn::Fields&) override {}
};
struct Outer final : nn::Module {
  Model attn;
  nn::Parameter weight{numbers({2, 2}, 9)};
  void describe(nn::Fields& field) override { field("attn", attn), field("weight", weight); }
};

std::string rule(const std::string& entries) {
  return R"({"match": {"op": "scaled_dot_product_attention"}, )" + entries + "}";
}

struct Run {
  Outer model;
  optim::Sgd sgd;
  amp::Training training;
  Tensor q{numbers({1, heads, length, width}, 1)}, k{numbers({1, heads, keys, width}, 2)},
      v{numbers({1, heads, keys, width}, 3)}, dy{numbers({1, heads, length, width}, 4)}, y{};
  explicit Run(const std::string& rules)
      : sgd(model.parameters(), {.lr = 0.1}),
        training(policy::read_text(policy_with(rules)), model, sgd) {
    for (Tensor* x : {&q, &k, &v}) x->set_requires_grad();
    y = training.forward([&] { return model.attn(q, k, v); });
    y.backward(dy);
  }
  std::string sites() const {
    std::string text;
    for (const auto& site : policy::session_of(training).resolved()) text += name(site.site) + ' ';
    return text;
  }
};

/// Quantizers of the inside; null: none.
struct Inside {
  const char *query = nullptr, *key = nullptr, *value = nullptr, *scores = nullptr,
             *probabilities = nullptr, *grad_scores = nullptr, *grad_probabilities = nullptr;
};

using Matrix = std::vector<std::vector<double>>;
Matrix made(int64_t rows, int64_t columns) {
  return Matrix(std::size_t(rows), std::vector<double>(std::size_t(columns)));
}
/// Rounds a matrix in blocks along its rows or its columns: the dimension that a product sums over.
Matrix rounded(const char* quantizer, const Matrix& x, bool along_columns = false) {
  if (!quantizer) return x;
  const auto rows = int64_t(x.size()), columns = int64_t(x[0].size());
  std::vector<float> flat;
  for (const auto& row : x) flat.insert(flat.end(), row.begin(), row.end());
  Tensor t = from_vector<float>(flat, {rows, columns});
  if (along_columns) t = views::transpose(t, 0, 1);
  Tensor q = quantized(views::contiguous(t), {.quantizer = *quantizer_named(quantizer)});
  if (along_columns) q = views::transpose(q, 0, 1);
  const std::vector<float> out = floats(views::contiguous(q));
  Matrix y = x;
  for (int64_t i = 0; i < rows * columns; ++i)
    y[std::size_t(i / columns)][std::size_t(i % columns)] = double(out[std::size_t(i)]);
  return y;
}
Matrix product(const Matrix& a, const Matrix& b, bool a_turned, bool b_turned) {
  const std::size_t m = a_turned ? a[0].size() : a.size(),
                    depth = a_turned ? a.size() : a[0].size(),
                    n = b_turned ? b.size() : b[0].size();
  Matrix c = made(int64_t(m), int64_t(n));
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t p = 0; p < depth; ++p)
        c[i][j] += (a_turned ? a[p][i] : a[i][p]) * (b_turned ? b[j][p] : b[p][j]);
  return c;
}
Matrix head_of(const Tensor& x, int64_t head) {
  const int64_t rows = x.size(2), columns = x.size(3);
  const std::vector<float> all = floats(x);
  Matrix m = made(rows, columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      m[std::size_t(i)][std::size_t(j)] = double(all[std::size_t((head * rows + i) * columns + j)]);
  return m;
}
void check_near(const char* what, const Matrix& got, const Matrix& wanted) {
  INFO(what);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (std::size_t j = 0; j < wanted[i].size(); ++j)
      CHECK(got[i][j] == doctest::Approx(wanted[i][j]).epsilon(1e-5).scale(1));
}

/// Computes attention of each head in double, with the rounded tensors of `by`.
void check_by_hand(const Run& run, const Inside& by) {
  for (int64_t head = 0; head < heads; ++head) {
    CAPTURE(head);
    const Matrix q = rounded(by.query, head_of(run.q, head)),
                 k = rounded(by.key, head_of(run.k, head)),
                 v = rounded(by.value, head_of(run.v, head), true), dy = head_of(run.dy, head);
    Matrix s = product(q, k, false, true);
    for (auto& row : s)
      for (double& x : row) x *= scale;
    Matrix p = rounded(by.scores, s);
    for (auto& row : p) {
      double sum = 0;
      for (double& x : row) x = std::exp(x), sum += x;
      for (double& x : row) x /= sum;
    }
    const Matrix used = rounded(by.probabilities, p);
    check_near("y", head_of(run.y, head), product(used, v, false, false));
    check_near("dv", head_of(run.v.grad(), head), product(used, dy, true, false));
    const Matrix dp = rounded(by.grad_probabilities, product(dy, v, false, true));
    Matrix ds = dp;
    for (std::size_t i = 0; i < ds.size(); ++i) {
      double mean = 0;
      for (std::size_t j = 0; j < ds[i].size(); ++j) mean += p[i][j] * dp[i][j];
      for (std::size_t j = 0; j < ds[i].size(); ++j) ds[i][j] = scale * p[i][j] * (dp[i][j] - mean);
    }
    ds = rounded(by.grad_scores, ds);
    check_near("dq", head_of(run.q.grad(), head), product(ds, k, false, false));
    check_near("dk", head_of(run.k.grad(), head), product(ds, q, true, false));
  }
}

TEST_CASE("each tensor inside of attention is rounded where a rule names it") {
  check_by_hand(Run(rule(R"("query": "e2m1")")), {.query = "e2m1"});
  check_by_hand(Run(rule(R"("key": "e2m1")")), {.key = "e2m1"});
  check_by_hand(Run(rule(R"("value": "e2m1")")), {.value = "e2m1"});
  check_by_hand(Run(rule(R"("scores": "e2m1")")), {.scores = "e2m1"});
  check_by_hand(Run(rule(R"("probabilities": "e4m3")")), {.probabilities = "e4m3"});
  check_by_hand(Run(rule(R"("grad_scores": "e4m3")")), {.grad_scores = "e4m3"});
  check_by_hand(Run(rule(R"("grad_probabilities": "e2m1")")), {.grad_probabilities = "e2m1"});
  check_by_hand(Run(rule(R"("query": "e4m3", "key": "e4m3", "value": "e5m2", "scores": "e5m2",
                             "probabilities": "e4m3", "grad_scores": "e5m2",
                             "grad_probabilities": "e5m2")")),
                {"e4m3", "e4m3", "e5m2", "e5m2", "e4m3", "e5m2", "e5m2"});
}

TEST_CASE("blocks of the inside lie along the dimension that a product sums over") {
  check_by_hand(Run(rule(R"("query": "mxfp4", "key": "mxfp4", "value": "mxfp4",
                             "probabilities": "mxfp8")")),
                {.query = "mxfp4", .key = "mxfp4", .value = "mxfp4", .probabilities = "mxfp8"});
}

TEST_CASE("attention stays one operation unless a rule that reaches it names its inside") {
  CHECK(Run(rule(R"("input": "e4m3")")).sites() == "attn/scaled_dot_product_attention.0 ");
  CHECK(Run(R"({"match": {"op": "scaled_dot_product_attention", "path": "other"}, "key": "e4m3",
                "optional": true})")
            .sites() == "attn/scaled_dot_product_attention.0 ");
  const std::string opened =
      "attn/scaled_dot_product_attention.0 attn/attention_scores.0 "
      "attn/attention_probabilities.0 attn/attention_values.0 ";
  CHECK(Run(rule(R"("key": "e4m3")")).sites() == opened);
  CHECK(Run(R"({"match": {"op": "attention_scores"}, "input.1": "e4m3"})").sites() == opened);
  // The same numbers by either name.
  const Run named(rule(R"("key": "e2m1", "probabilities": "e2m1")"));
  const Run inner(R"({"match": {"op": "attention_scores"}, "input.1": "e2m1"},
                     {"match": {"op": "attention_values"}, "input.0": "e2m1"})");
  CHECK(floats(named.y) == floats(inner.y));
  CHECK(floats(named.q.grad()) == floats(inner.q.grad()));
  // Without a grid, the parts compute what the whole does.
  check_by_hand(Run(rule(R"("key": "none", "input": "none")")), {});
}

TEST_CASE("rules reach the inside of packed attention with a causal mask, also under autocast") {
  struct Packed final : nn::Module {
    nn::Linear in{8, 24}, out{8, 3};
    Tensor operator()(const Tensor& x) const {
      const CallScope scope(this);
      return out(self_attention(in(x), 2, {.causal = true}));
    }
    void describe(nn::Fields& field) override { field("in", in), field("out", out); }
  };
  const auto trained = [](const std::string& base, const std::string& rules) {
    manual_seed(1);
    Packed model;
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": ")" +
                                             base + R"(", "rules": [)" + rules + "]}"),
                           model, sgd);
    const Tensor x = numbers({2, 7, 8}, 5);
    const Tensor y = training.forward([&] { return model(x); });
    training.backward(mean(y * y));
    return std::pair(floats(y), floats(model.in.weight.grad()));
  };
  const auto near = [](const std::vector<float>& a, const std::vector<float>& b, double bound) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      difference = std::max(difference, std::abs(double(a[i]) - double(b[i]))),
      size = std::max(size, std::abs(double(b[i])));
    return difference <= bound * size;
  };
  const auto whole = trained("fp32", rule(R"("input": "none")")),
             parts = trained("fp32", rule(R"("key": "none")")),
             rough = trained("fp32", rule(R"("key": "e2m1")"));
  CHECK(near(parts.first, whole.first, 1e-5));
  CHECK(near(parts.second, whole.second, 1e-5));
  CHECK_FALSE(near(rough.first, whole.first, 1e-3));
  const auto whole_bf16 = trained("amp-bf16", rule(R"("input": "none")")),
             parts_bf16 = trained("amp-bf16", rule(R"("key": "none")"));
  CHECK(near(parts_bf16.first, whole_bf16.first, 0.05));
  CHECK(near(parts_bf16.second, whole_bf16.second, 0.1));
}

TEST_CASE("the result has the dtype that the rule says") {
  Outer model;
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::read_text(policy_with(rule(R"("key": "e4m3", "result": "bf16")"))),
                         model, sgd);
  const Tensor x = numbers({1, heads, length, width}, 1);
  training.forward([&] {
    const Tensor y = model.attn(x, x, x);
    CHECK(y.dtype() == bf16);
    return y;
  });
}

TEST_CASE("what the inside of attention cannot do is refused") {
  CHECK(message_of<UsageError>(
            [] { const Run run(rule(R"("key": "e4m3", "input.1": "e4m3", "name": "r")")); }) ==
        "[policy t] rule 0 (\"r\") at attn/scaled_dot_product_attention.0: \"input.1\" is not "
        "possible where a rule is for the inside of attention. Name \"query\", \"key\" or "
        "\"value\", or except this place.");
  Outer model;
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::read_text(policy_with(rule(R"("key": "e4m3")"))), model, sgd);
  const Tensor x = numbers({1, 1, 3, 4}, 1);
  Tensor mask = zeros({3, 3});
  mask.set_requires_grad();
  CHECK(contains(message_of<UnsupportedError>([&] {
                   training.forward(
                       [&] { return scaled_dot_product_attention(x, x, x, {.mask = mask}); });
                 }),
                 "[scaled_dot_product_attention] a rule is for the inside of attention, and the "
                 "mask wants a gradient."));
  CHECK(contains(message_of<UnsupportedError>([&] {
                   training.forward([&] {
                     return apply(Attention{.settings = {.scale = 1}}, x, x, x, Tensor{});
                   });
                 }),
                 ": a rule is for the inside of attention, which is computed as a whole here."));
}

TEST_CASE("roles of the inside are attention's") {
  CHECK(
      refusal_of_rule(R"("match": {"op": "linear"}, "query": "e4m3")") ==
      "/rules/0/query: \"query\" is inside of scaled_dot_product_attention. Name this operation in "
      "\"op\".");
}

}  // namespace
}  // namespace halftone::test::attention_roles_test
