// write_dot(): the exact text of the graph of a step, and details that are not nodes of it.
#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "support.h"

namespace halftone::test::write_dot_test {

using halftone::test::message_of;

namespace {

std::string dot(const Tensor& loss, const DotOptions& options = {}) {
  std::ostringstream out;
  write_dot(loss, out, options);
  return out.str();
}
/// Returns the text after the legend: nodes and edges.
std::string body(const std::string& text) {
  const std::string end = "</TABLE>>];\n";
  return text.substr(text.find(end) + end.size());
}
int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; ++at) ++found;
  return found;
}
Tensor input(const Shape& shape) {
  const MemoryScope scope(MemoryUse::input);
  return rand(shape);
}
Tensor weight(const Shape& shape) {
  const MemoryScope scope(MemoryUse::parameter);
  return rand(shape).set_requires_grad();
}

TEST_CASE("the text of a small graph") {
  const Tensor w = weight({2, 3}), b = weight({2});
  const Tensor loss = sum(tanh(linear(input({4, 3}), w, b)));
  CHECK(dot(loss, {.names = {{"w", w}, {"b", b}}}) ==
        R"(digraph step {
  graph [fontname="Helvetica", fontsize=11, labelloc=t, nodesep=0.2, ranksep=0.3,
         label="3 operations in the order of computation\nkept for backward: 32 B"];
  node [fontname="Helvetica", fontsize=10, shape=box, height=0.3,
        margin="0.1,0.05"];
  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];
  legend [shape=plain, label=<<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="2" CELLPADDING="3">
    <TR><TD BGCOLOR="#cfe3f7">f32</TD></TR>
    <TR><TD BORDER="0" ALIGN="LEFT" COLSPAN="1">bold box: a leaf, such as a parameter</TD></TR>
    <TR><TD BORDER="0" ALIGN="LEFT" COLSPAN="1">round box: an operation, its result</TD></TR>
    <TR><TD BORDER="0" ALIGN="LEFT" COLSPAN="1">not drawn: inputs that want no gradient</TD></TR>
    </TABLE>>];
  p1 [style="filled,bold", fillcolor="#cfe3f7", label="w\nf32 [2, 3]"];
  p2 [style="filled,bold", fillcolor="#cfe3f7", label="b\nf32 [2]"];
  n1 [style="filled,rounded", fillcolor="#cfe3f7", label="1. linear\nf32 [4, 2]\nkeeps f32 [4, 3]: an input\nkeeps f32 [2, 3]: w"];
  p1 -> n1;
  p2 -> n1;
  n2 [style="filled,rounded", fillcolor="#cfe3f7", label="2. tanh\nf32 [4, 2]\nkeeps f32 [4, 2]: 32 B"];
  n1 -> n2;
  n3 [style="filled,rounded", fillcolor="#cfe3f7", label="3. sum\nf32 []"];
  n2 -> n3;
  result [shape=plaintext, style="", label="the result"];
  n3 -> result;
}
)");
}

TEST_CASE("two computations of the same give the same text") {
  const auto text = [] {
    const Tensor a = weight({5}), b = weight({5});
    return dot(sum(a * b + exp(a) * (b - a)));
  };
  CHECK(text() == text());
}

TEST_CASE("a leaf that is used twice is one box, and each use an edge") {
  const Tensor a = weight({3});
  const std::string text = body(dot(sum(a * a + a)));
  CHECK(count(text, "leaf\\nf32 [3]") == 1);
  CHECK(count(text, "p1 -> n1;") == 2);
  CHECK(count(text, "p1 -> n2;") == 1);
}

TEST_CASE("casts under autocast: recorded ones, and those that the f32 gradient bypasses") {
  const Tensor w = weight({2, 3}), v = weight({2, 2});
  const Tensor loss = amp::autocast(bf16, [&] {
    const Tensor h = exp(linear(input({4, 3}), w));  // f32, computed from bf16
    const Tensor y = linear(h, v);
    return sum(linear(y, v) * h);  // the product of two dtypes promotes
  });
  const std::string text = dot(loss, {.names = {{"w", w}, {"v", v}}});
  CHECK(body(text) == R"(  p1 [style="filled,bold", fillcolor="#cfe3f7", label="w\nf32 [2, 3]"];
  c1 [shape=hexagon, margin="0,0.02", style="filled,dashed", fillcolor="#fcd9a0", label="cast\nf32 to bf16"];
  p1 -> c1;
  n1 [style="filled,rounded", fillcolor="#fcd9a0", label="1. linear\nbf16 [4, 2]\nkeeps bf16 [4, 3]: 24 B\nkeeps bf16 [2, 3]: 12 B"];
  c1 -> n1;
  n2 [style="filled,rounded", fillcolor="#cfe3f7", label="2. exp\nf32 [4, 2]\nkeeps f32 [4, 2]: 32 B"];
  n1 -> n2;
  c2 [shape=hexagon, margin="0,0.02", style="filled,dashed", fillcolor="#fcd9a0", label="cast\nf32 to bf16"];
  n2 -> c2;
  p2 [style="filled,bold", fillcolor="#cfe3f7", label="v\nf32 [2, 2]"];
  c3 [shape=hexagon, margin="0,0.02", style="filled,dashed", fillcolor="#fcd9a0", label="cast\nf32 to bf16"];
  p2 -> c3;
  n3 [style="filled,rounded", fillcolor="#fcd9a0", label="3. linear\nbf16 [4, 2]\nkeeps bf16 [4, 2]: 16 B\nkeeps bf16 [2, 2]: 8 B"];
  c2 -> n3;
  c3 -> n3;
  n4 [style="filled,rounded", fillcolor="#fcd9a0", label="4. linear\nbf16 [4, 2]\nkeeps bf16 [4, 2]: 16 B\nkeeps bf16 [2, 2]: that of 3"];
  n3 -> n4;
  c3 -> n4;
  n5 [shape=hexagon, margin="0,0.02", style="filled", fillcolor="#cfe3f7", label="5. cast\nbf16 to f32"];
  n4 -> n5;
  n6 [style="filled,rounded", fillcolor="#cfe3f7", label="6. mul\nf32 [4, 2]\nkeeps f32 [4, 2]: 32 B\nkeeps f32 [4, 2]: that of 2"];
  n5 -> n6;
  n2 -> n6;
  n7 [style="filled,rounded", fillcolor="#cfe3f7", label="7. sum\nf32 []"];
  n6 -> n7;
  result [shape=plaintext, style="", label="the result"];
  n7 -> result;
}
)");
  CHECK(test::contains(text, "hexagon: a cast"));
  CHECK(test::contains(text, "dashed: a cast that the f32 gradient passes by"));
  CHECK(test::contains(text, "#cfe3f7\">f32</TD><TD BGCOLOR=\"#fcd9a0\">bf16"));
}

TEST_CASE("the kept bytes are those of the ledger, under every precision") {
  const auto check = [](nn::Layer& model, const Tensor& x, const Tensor& targets,
                        const amp::Region& region) {
    const int64_t before = memory_report().total_now;
    const Tensor loss = amp::autocast(region, [&] {
      const Tensor logits = model(x);
      return cross_entropy(flatten(logits, 0, -2), flatten(targets));
    });
    // The loss itself is not charged to a node: cross_entropy keeps no result.
    const int64_t kept = memory_report().total_now - before - loss.bytes();
    PlainText wanted;
    wanted << "kept for backward: " << HumanBytes{kept};
    INFO(wanted.str());
    CHECK(test::contains(dot(loss), wanted.str()));
  };
  for (const amp::Region& region : {amp::Region{.enabled = false}, amp::Region{.dtype = bf16},
                                    amp::Region{.dtype = f16, .cache = false}}) {
    manual_seed(3);
    Tensor targets, tokens;
    {
      const MemoryScope scope(MemoryUse::input);
      targets = randint(0, 4, {3}), tokens = randint(0, 9, {2, 5});
    }
    nn::Sequential mlp = nn::models::mlp({8, 6, 4});
    check(mlp, input({3, 8}), targets, region);
    nn::models::ResNet resnet = nn::models::resnet18({.classes = 4, .cifar_stem = true});
    check(resnet, input({3, 3, 8, 8}), targets, region);
    nn::models::Gpt gpt({.vocabulary = 9, .context = 5, .layers = 2, .heads = 2, .width = 8});
    check(gpt, tokens, tokens, region);
  }
}

TEST_CASE("hostile names neither end a string nor are escapes") {
  const Tensor a = weight({1});
  DotOptions options{.names = {{"a\"];\nx -> y;\\N\\", a}}};
  options.place_of = [](const Node&) { return "&lt;<b>\x01\xff\xc3\xa9 \xed\xa0\x80"; };
  const std::string text = body(dot(exp(a), options));
  CHECK(test::contains(text, R"(label="a\"];?x -> y;\\N\\\nf32 [1]")"));
  CHECK(test::contains(text, "1. exp\\n&amp;lt;<b>??\xc3\xa9 ???\\nf32 [1]"));
  CHECK(count(text, "\n") == 6);
}

TEST_CASE("places, hooks and taps are shown") {
  struct Tap final : OpTap {
    Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
      return operation.run(inputs);
    }
    std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
      return node.backward(dy);
    }
  };
  struct Caster final : InputCaster {
    CastPlan plan(const OpInfo&, std::span<Tensor>, bool) override {
      return {.tap = std::make_shared<Tap>()};
    }
    void cast_inputs(const OpInfo&, std::span<Tensor>) override {}
  };
  const Tensor a = weight({1});
  Tensor b;
  {
    const CasterScope region(std::make_shared<Caster>());
    b = exp(a);
  }
  register_hook(b, [](const Tensor&) { return Tensor{}; });
  const std::string text =
      dot(sum(b), {.place_of = [](const Node& node) { return node.tap ? "block.0/exp.0" : ""; }});
  CHECK(test::contains(text, "double border"));
  CHECK(test::contains(text, "n1 [peripheries=2, style=\"filled,rounded\""));
  CHECK(test::contains(text,
                       "label=\"1. exp\\nblock.0/exp.0\\nf32 [1]\\ntapped\\nhooks on its gradient: "
                       "1\\nkeeps f32 [1]: 4 B\""));
  CHECK(test::contains(text, "label=\"2. sum\\nf32 []\""));
}

struct Cube : UserOp {
  static constexpr OpInfo info{"cube", CastClass::as_is};
  int unused = 0;
  std::optional<Tensor> saved{};
  std::vector<Tensor> more{};

  Tensor forward(const Tensor& x) {
    saved = x, more = {x * x};
    return x * more[0];
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy * more[0] * 3.0}; }
};

TEST_CASE("an operation of a user keeps the tensors that its reader names") {
  const Tensor a = weight({8});
  const Tensor loss = sum(exp(apply(Cube{}, a)));
  const std::string unread = dot(loss);
  CHECK(test::contains(unread, "1. cube\\nf32 [8]\\nkeeps: not known"));
  CHECK(test::contains(unread,
                       "backward: 32 B, without what 1 operation keeps that no reader knows"));
  const std::string read = dot(loss, {.names = {{"a", a}}, .operations = {reader_of<Cube>()}});
  CHECK(test::contains(read, "1. cube\\nf32 [8]\\nkeeps f32 [8]: a\\nkeeps f32 [8]: 32 B\""));
  CHECK(test::contains(read, "backward: 64 B\""));
}

TEST_CASE("a checkpointed segment is one operation that keeps its inputs") {
  const Tensor a = weight({8});
  const Tensor b = exp(a);
  const Segment segment = [](const std::vector<Tensor>& in) { return tanh(tanh(in[0])); };
  const std::string text = dot(sum(checkpoint(segment, {b})));
  CHECK(test::contains(text, "2. checkpoint\\nf32 [8]\\nkeeps f32 [8]: that of 1\""));
  CHECK_FALSE(test::contains(text, "tanh"));
  CHECK(test::contains(text, "3 operations"));
}

TEST_CASE("a long chain is walked without recursion") {
  const Tensor a = weight({1});
  Tensor b = a;
  for (int i = 0; i < 10'000; ++i) b = b + 0.0;
  const std::string text = dot(b);
  CHECK(test::contains(text, "10000 operations"));
  CHECK(test::contains(text, "n9999 -> n10000;\n  result"));
}

TEST_CASE("a graph of which backward() used a part") {
  const Tensor a = weight({1});
  const Tensor b = exp(a), c = tanh(b), d = sum(b);
  c.backward();
  CHECK(test::contains(dot(d), "1. exp\\nf32 [1]\\nfreed by backward()"));
}

TEST_CASE("a tensor that cannot be drawn is an error, and so is a file that cannot be written") {
  std::ostringstream out;
  CHECK_THROWS_WITH_AS(write_dot({}, out),
                       "[write_dot] the tensor is undefined. Pass a computed tensor, such as a "
                       "loss.",
                       UsageError);
  CHECK_THROWS_WITH_AS(write_dot(ones({2}), out),
                       "[write_dot] no recorded operation made this tensor, [2] f32. Pass one that "
                       "was computed, outside of NoGrad, from a leaf that requires a gradient.",
                       UsageError);
  const Tensor a = weight({1});
  CHECK_THROWS_AS(write_dot(a, out), UsageError);
  const Tensor b = exp(a);
  const test::TemporaryDirectory directory;
  CHECK(test::contains(message_of<FormatError>([&] { write_dot(b, directory / "none/x.dot"); }),
                       "[write_dot] cannot write " + (directory / "none/x.dot").string()));
  write_dot(b, directory / "x.dot");
  CHECK(test::read_file(directory / "x.dot") == dot(b));
  b.backward();
  CHECK_THROWS_WITH_AS(write_dot(b, out),
                       "[write_dot] the graph of exp was freed by an earlier backward(). Draw it "
                       "before.",
                       UsageError);
}

}  // namespace

}  // namespace halftone::test::write_dot_test
