// The bytes of ONNX files, read by a reader of Protocol Buffers that is written here, and the
// errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include <halftone/halftone.h>
#include <support.h>

namespace halftone {
namespace save_onnx_test {

/// The fields of a message by number: numbers and floats as 64 bits, messages and texts as bytes.
struct Fields {
  std::multimap<int, uint64_t> numbers;
  std::multimap<int, std::string> texts;

  explicit Fields(std::string_view bytes) {
    const auto byte = [&] {
      REQUIRE(!bytes.empty());
      const auto value = uint8_t(bytes[0]);
      bytes.remove_prefix(1);
      return value;
    };
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const uint8_t part = byte();
        value |= uint64_t(part & 0x7f) << shift;
        if (part < 0x80) return value;
      }
    };
    while (!bytes.empty()) {
      const uint64_t key = varint();
      const int field = int(key >> 3);
      if ((key & 7) == 0) {
        numbers.emplace(field, varint());
      } else if ((key & 7) == 5) {
        uint64_t bits = 0;
        for (int i = 0; i < 4; ++i) bits |= uint64_t(byte()) << (8 * i);
        numbers.emplace(field, bits);
      } else {
        REQUIRE((key & 7) == 2);
        const uint64_t size = varint();
        REQUIRE(size <= bytes.size());
        texts.emplace(field, bytes.substr(0, size));
        bytes.remove_prefix(size);
      }
    }
  }
  uint64_t number(int field) const {
    REQUIRE(numbers.count(field) == 1);
    return numbers.find(field)->second;
  }
  std::vector<std::string> all(int field) const {
    std::vector<std::string> found;
    for (auto [at, end] = texts.equal_range(field); at != end; ++at) found.push_back(at->second);
    return found;
  }
  std::string text(int field) const {
    REQUIRE(texts.count(field) == 1);
    return texts.find(field)->second;
  }
};

struct File {
  uint64_t ir_version = 0, opset = 0;
  std::vector<std::string> types;              // of the nodes
  std::map<std::string, std::string> weights;  // raw bytes by name
  std::map<std::string, uint64_t> weight_types;
  std::vector<std::string> first_dims;  // of inputs, then outputs; numbers as text

  int count(std::string_view type) const { return int(std::ranges::count(types, type)); }
};

std::string first_dim(const std::string& value_info) {
  const Fields dims(Fields(Fields(Fields(value_info).text(2)).text(1)).text(2));
  const Fields first(dims.all(1).at(0));
  return first.numbers.count(1) ? std::to_string(first.number(1)) : first.text(2);
}

File read(const std::filesystem::path& path) {
  const std::string bytes = test::read_file(path);
  const Fields model(bytes);
  File file;
  file.ir_version = model.number(1), file.opset = Fields(model.text(8)).number(2);
  CHECK(model.text(2) == "halftone");
  const Fields graph(model.text(7));
  for (const std::string& node : graph.all(1)) file.types.push_back(Fields(node).text(4));
  for (const std::string& tensor : graph.all(5)) {
    const Fields fields(tensor);
    file.weights[fields.text(8)] = fields.text(9);
    file.weight_types[fields.text(8)] = fields.number(2);
  }
  for (const int field : {11, 12})
    for (const std::string& info : graph.all(field)) file.first_dims.push_back(first_dim(info));
  return file;
}

struct Folder {
  test::TemporaryDirectory directory;
  std::filesystem::path path = directory / "model.onnx";
};

/// A model with a function as its forward pass, and one parameter.
struct Custom final : nn::Layer {
  std::function<Tensor(const Tensor&)> function;
  nn::Parameter weight{Shape{3}};
  explicit Custom(std::function<Tensor(const Tensor&)> f) : function(std::move(f)) {}
  Tensor forward(const Tensor& x) const override { return function(x); }
  void describe(nn::Fields& field) override { field("weight", weight); }
};

std::string message_of(nn::Layer& model, const Tensor& x, const OnnxOptions& options = {}) {
  const Folder folder;
  try {
    save_onnx(model, {x}, folder.path, options);
  } catch (const Error& error) {
    CHECK(!std::filesystem::exists(folder.path));
    return error.what();
  }
  return "no error";
}
std::string message_of(std::function<Tensor(const Tensor&)> f) {
  Custom model(std::move(f));
  return message_of(model, ones({2, 3}));
}
using test::contains;

TEST_CASE("save_onnx: weights have the names and bytes of the state dictionary") {
  manual_seed(1);
  auto model = nn::models::mlp({6, 5, 4});
  const Folder folder;
  const OnnxFile said = save_onnx(model, {ones({1, 6})}, folder.path);
  const File file = read(folder.path);
  CHECK(file.opset == 18);
  CHECK(file.ir_version == 8);
  CHECK(said.opset == 18);
  CHECK(said.ir_version == 8);
  CHECK(file.types == std::vector<std::string>{"Gemm", "Relu", "Gemm"});
  const NamedTensors state = nn::state_dict(model);
  CHECK(file.weights.size() == state.size());
  for (const auto& [name, x] : state) {
    REQUIRE(file.weights.count(name) == 1);
    CHECK(file.weights.at(name) ==
          std::string(reinterpret_cast<const char*>(x.raw_data()), std::size_t(x.bytes())));
    CHECK(file.weight_types.at(name) == 1);
  }
  CHECK(said.weight_bytes == (6 * 5 + 5 + 5 * 4 + 4) * 4);
  CHECK(file.first_dims == std::vector<std::string>{"batch", "batch"});
}

TEST_CASE("save_onnx: without dynamic_batch sizes are those of the example") {
  manual_seed(1);
  auto model = nn::models::mlp({6, 4});
  const Folder folder;
  save_onnx(model, {ones({3, 6})}, folder.path, {.dynamic_batch = false});
  CHECK(read(folder.path).first_dims == std::vector<std::string>{"3", "3"});
}

TEST_CASE("save_onnx: modules are in evaluation mode meanwhile, and batch norm has one node") {
  manual_seed(1);
  nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::Relu());
  model.train();
  const Folder folder;
  save_onnx(model, {ones({2, 3})}, folder.path);
  CHECK(model.training);
  const File file = read(folder.path);
  CHECK(file.types == std::vector<std::string>{"Gemm", "BatchNormalization", "Relu"});
  CHECK(file.weights.count("1.running_mean") == 1);
}

TEST_CASE("save_onnx: casts of autocast are Cast nodes, and a weight is cast once") {
  manual_seed(1);
  auto model = nn::models::mlp({6, 5, 4});
  const Folder folder;
  save_onnx(model, {ones({1, 6})}, folder.path, {.region = amp::Region{.dtype = f16}});
  const File file = read(folder.path);
  CHECK(file.count("Cast") == 5);  // the input, two weights, two biases; the result stays f16
  CHECK(file.weight_types.at("0.weight") == 1);
}

TEST_CASE("save_onnx: products in bf16 are in f32, which onnxruntime's CPU has") {
  manual_seed(1);
  auto model = nn::models::mlp({6, 5, 4});
  model.to(bf16);
  const Folder folder;
  save_onnx(model, {ones({1, 6}, bf16)}, folder.path);
  const File file = read(folder.path);
  CHECK(file.count("Gemm") == 2);
  CHECK(file.count("Relu") == 1);
  CHECK(file.count("Cast") == 10);  // operands and results of two products and a Relu; two biases
}

TEST_CASE("save_onnx: max_pool2d with ceil_mode is padded, also if windows begin in the padding") {
  const auto pool = [](PoolOptions options) {
    Custom model([=](const Tensor& x) { return max_pool2d(x, options); });
    return message_of(model, ones({2, 1, 7, 6}));
  };
  CHECK(pool({.kernel = 2, .ceil_mode = true}) == "no error");
  CHECK(pool({.kernel = 3, .stride = Pair(2), .padding = 1, .ceil_mode = true}) == "no error");
  CHECK(pool({.kernel = 2, .stride = Pair(4), .padding = 1, .ceil_mode = true}) == "no error");
}

TEST_CASE("save_onnx: quantizers are pairs of nodes where ONNX has the format") {
  const struct {
    const char* quantizer;
    uint64_t opset, ir_version, type;
  } cases[]{{"e4m3", 19, 9, 17}, {"e5m2", 19, 9, 19}, {"int8", 19, 9, 3}, {"e2m1", 23, 11, 23}};
  for (const auto& each : cases) {
    CAPTURE(each.quantizer);
    Custom model([&](const Tensor& x) { return quantize(x, each.quantizer); });
    const Folder folder;
    save_onnx(model, {ones({2, 32})}, folder.path);
    const File file = read(folder.path);
    CHECK(file.opset == each.opset);
    CHECK(file.ir_version == each.ir_version);
    CHECK(file.count("QuantizeLinear") == 1);
    CHECK(file.count("DequantizeLinear") == 1);
    CHECK(file.weight_types.at("zero_point") == each.type);
  }
  Custom blocks([](const Tensor& x) { return quantize(x, "mxfp8"); });
  CHECK(contains(message_of(blocks, ones({2, 32})),
                 "[save_onnx] \"quantize\" with scales of blocks has no counterpart"));
  Custom grid([](const Tensor& x) { return quantize(x, "e3m2"); });
  CHECK(contains(message_of(grid, ones({2, 32})), "onto a grid that ONNX does not have"));
}

TEST_CASE("save_onnx: rules of a policy become quantizers") {
  manual_seed(1);
  auto model = nn::models::mlp({6, 5, 4});
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const amp::Policy strategy = policy::read_text(
      R"({"halftone_policy": 1, "name": "t", "extends": "fp32",
          "rules": [{"match": {"op": "linear"}, "input": "e4m3", "weight": "e4m3", "output": "e5m2"}]})",
      "t");
  const amp::Training training = amp::apply(strategy, model, sgd);
  const Folder folder;
  save_onnx(model, {ones({2, 6})}, folder.path, {.region = training.region()});
  const File file = read(folder.path);
  CHECK(file.count("QuantizeLinear") == 6);  // two layers: input, weight, output
  CHECK(file.count("DequantizeLinear") == 6);
  CHECK(file.count("Gemm") == 2);
}

TEST_CASE("save_onnx: rotary positions are two tables and an order, whose sum is the operation's") {
  constexpr int64_t l = 5, e = 6;
  for (const bool interleaved : {false, true}) {
    const RopeOptions options{.theta = 50, .position = 3, .interleaved = interleaved};
    Custom model([&](const Tensor& x) { return rope(x, options); });
    const Folder folder;
    const Tensor x = randn({2, 2, l, e}), wanted = rope(x, options);
    save_onnx(model, {x}, folder.path);
    const File file = read(folder.path);
    CHECK(file.types.size() == 4);
    std::vector<std::vector<float>> tables;
    std::vector<int64_t> order;
    for (const auto& [name, bytes] : file.weights) {
      const auto copied = [&](auto& values) {
        values.resize(bytes.size() / sizeof(values[0]));
        std::memcpy(values.data(), bytes.data(), bytes.size());
      };
      if (bytes.size() == l * e * sizeof(float)) copied(tables.emplace_back());
      if (bytes.size() == e * sizeof(int64_t)) copied(order);
    }
    REQUIRE(tables.size() == 2);
    REQUIRE(order.size() == e);
    // Which table has the cosines: of a pair, both are equal, and sines have opposite signs.
    const auto pair = std::size_t(order[0]);
    const bool first = tables[0][0] == tables[0][pair];
    const auto &cosines = tables[first ? 0 : 1], &sines = tables[first ? 1 : 0];
    CHECK(sines[0] == -sines[pair]);
    CHECK(pair == (interleaved ? 1 : e / 2));
    const std::vector<float> in = x.to_vector<float>(), out = wanted.to_vector<float>();
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::size_t place = i % (l * e), row = i - i % e;
      const float y = in[i] * cosines[place] + in[row + std::size_t(order[i % e])] * sines[place];
      CHECK(y == doctest::Approx(out[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("save_onnx: a Llama is written, and one with experts is refused") {
  nn::models::LlamaOptions options{.vocabulary = 9,
                                   .context = 8,
                                   .layers = 1,
                                   .width = 16,
                                   .heads = 4,
                                   .key_heads = 2,
                                   .hidden = 12};
  nn::models::Llama dense(options);
  const Tensor tokens = randint(0, 9, {2, 8});
  CHECK(message_of(dense, tokens) == "no error");
  options.experts = 4;
  nn::models::Llama mixture(options);
  // The sizes of the groups of rows depend on the tokens.
  CHECK(message_of(mixture, tokens).starts_with("[save_onnx] "));
}

TEST_CASE("save_onnx: an operation without a counterpart is named, with its module") {
  nn::Sequential model(Custom([](const Tensor& x) { return dropout(x, 0.5); }));
  const std::string message = message_of(model, ones({2, 3}));
  CHECK(contains(message, "[save_onnx] \"dropout\" in \"0\" has no counterpart in ONNX."));
  // The operations of a checkpointed segment are recorded.
  CHECK(message_of([](const Tensor& x) {
          return checkpoint([](const std::vector<Tensor>& in) { return in[0] * 2; }, {x});
        }) == "no error");
  // It does no harm if the result does not need it.
  CHECK(message_of([](const Tensor& x) {
          static_cast<void>(dropout(x, 0.5));
          return x * 2;
        }) == "no error");
}

TEST_CASE("save_onnx: values that no operation computed are errors, not constants") {
  CHECK(contains(message_of([](const Tensor& x) { return x * x.mean().item(); }),
                 "an attribute of \"affine\" depends on the batch or its values"));
  CHECK(contains(message_of([](const Tensor& x) { return x + x.clone(); }),
                 "depends on the inputs and was made outside of recorded operations"));
  CHECK(contains(message_of([](const Tensor& x) { return sum(x, {0}) / double(x.size(0)); }),
                 "an attribute of \"affine\" depends on the batch"));
  CHECK(contains(message_of([](const Tensor& x) { return x.size(0) > 2 ? relu(x) : x * 2; }),
                 "the model computes other operations for 3 rows than for 2"));
  CHECK(
      contains(message_of([](const Tensor& x) { return x.mean().item() > 0.6 ? relu(x) : exp(x); }),
               "the model computes other operations"));
  CHECK(contains(message_of([](const Tensor& x) {
                   return slice(x, 0, 0, x.size(0) == 5 ? 1 : x.size(0) - 1);
                 }),
                 "not a multiple of the rows plus a number"));
  CHECK(contains(message_of([](const Tensor& x) {
                   Tensor y = x * 2;
                   copy_into(y, x);
                   return y;
                 }),
                 "\"affine\" was written in place later"));
  CHECK(message_of([](const Tensor& x) { return x + ones(x.shape()); }) == "no error");
}

TEST_CASE("save_onnx: wrong examples") {
  auto model = nn::models::mlp({6, 4});
  CHECK(contains(message_of(model, Tensor{}), "[save_onnx] an example input is undefined."));
  CHECK(contains(message_of(model, ones({0, 6})),
                 "[save_onnx] an example input is [0, 6] f32, without rows."));
  CHECK(contains(message_of(model, ones({1, 6}), {.output_names = {"0.weight"}}),
                 "[save_onnx] \"0.weight\" names two of the inputs, outputs and weights"));
  const Folder folder;
  CHECK_THROWS_AS(save_onnx(model, {}, folder.path), UsageError);
  CHECK_THROWS_AS(save_onnx(model, {ones({1, 6}), ones({1, 6})}, folder.path), UsageError);
  CHECK_THROWS_AS(save_onnx(model, {ones({1, 6})}, folder.path / "no" / "folder"), FormatError);
}

}  // namespace save_onnx_test
}  // namespace halftone
