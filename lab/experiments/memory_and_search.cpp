// E15. Compares the ledger's counts with bytes computed from shapes alone, for one step of a small
// MLP, a CNN and a GPT under every strategy.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>
#include <sstream>

#include <halftone/amp/policy.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/llama.h>

namespace halftone::lab {
namespace e15 {

using Use = MemoryUse;

constexpr int64_t mlp_biases = 256 + 128 + 10;

struct Case {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, labels;
};

Case make(const std::string& name) {
  manual_seed(15);
  Case made;
  if (name == "MLP") {
    made.model = std::make_unique<nn::Sequential>(nn::models::mlp({128, 256, 128, 10}));
    made.inputs = randn({8, 128});
  } else if (name == "CNN") {
    made.model = std::make_unique<nn::Sequential>(nn::Sequential{
        nn::Conv2d(3, 16, 3), nn::BatchNorm2d(16), nn::Relu(), nn::Flatten(), nn::Linear(576, 10)});
    made.inputs = randn({8, 3, 8, 8});
  } else {
    made.model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
        .vocabulary = 10, .context = 16, .layers = 2, .heads = 2, .width = 128});
    made.inputs = randint(0, 10, {1, 8});
  }
  made.labels = randint(0, 10, {8});
  return made;
}

struct Bytes {
  int64_t parameters = 0;  // number of parameters
  int64_t parameter = 0, companion = 0, gradient = 0, state = 0;
  int64_t casts = 0, kept_casts = 0;  // the most within forward; the part kept for backward
  int64_t wrong = 0;                  // difference from the prediction
};

Bytes counted(const std::string& workload, std::string_view strategy_name) {
  const MemoryReport before = memory_report();
  Case run = make(workload);
  optim::AdamW adamw(run.model->parameters());
  const amp::Policy strategy = amp::Policy::named(strategy_name);
  const amp::StrategyBytes predicted = amp::predicted_bytes(strategy, *run.model, adamw);
  amp::Training training(strategy, *run.model, adamw);
  const auto held = [&](Use use) { return memory_report().now_of(use) - before.now_of(use); };
  training.zero_grad();
  reset_peak_memory();
  Bytes bytes{.parameters = run.model->parameter_count()};
  {
    const Tensor logits = training.forward(*run.model, run.inputs);
    const Tensor loss = cross_entropy(flatten(logits, 0, -2), run.labels);
    bytes.casts = memory_report().peak_of(Use::cast_cache),
    bytes.kept_casts = held(Use::cast_cache);
    training.backward(loss);
  }
  training.step();
  int64_t buffers = 0;
  for (const auto& [name, x] : run.model->named_buffers()) buffers += x.bytes();
  bytes.parameter = held(Use::parameter) - buffers;
  bytes.companion = held(Use::master_weight) + held(Use::compensation);
  bytes.gradient = held(Use::gradient), bytes.state = held(Use::optimizer_state);
  bytes.wrong = std::abs(bytes.parameter - predicted.parameter) +
                std::abs(bytes.companion - predicted.companion) +
                std::abs(bytes.gradient - predicted.gradient) +
                std::abs(bytes.state - predicted.optimizer_state);
  return bytes;
}

/// Bytes of a matrix as if its format were native: codes, and scales of blocks. Also counts blocks
/// with more different numbers than the codes can represent.
struct AsIf {
  int64_t bits = 0, too_rich = 0;
};

AsIf as_if(const Tensor& x, const Quantizer& quantizer) {
  const int64_t rows = x.size(0), columns = x.size(1), width = quantizer.scaling.columns;
  const std::vector<float> y = quantize(x, quantizer).to_vector<float>();
  AsIf sum;
  for (int64_t first = 0; first < rows * columns; first += width) {
    sum.bits += width * quantizer.grid.bits + quantizer.scaling.scale_format.bits;
    const std::set<float> numbers(y.begin() + first, y.begin() + first + width);
    sum.too_rich += int64_t(numbers.size()) > int64_t(1) << quantizer.grid.bits;
  }
  return sum;
}

void run(Findings& found) {
  const MemoryReport empty = memory_report();
  Table table(
      {"bytes / parameter, MLP", "weights", "companion", "gradients", "AdamW", "casts", "kept"});
  int64_t wrong = 0, cases = 0, casts_wrong = 0;
  for (const std::string_view strategy : amp::Policy::names())
    for (const char* workload : {"MLP", "CNN", "GPT"}) {
      const Bytes b = counted(workload, strategy);
      wrong += b.wrong, ++cases;
      if (std::string_view(workload) != "MLP") continue;
      const bool casts = amp::Policy::named(strategy).autocast.has_value();
      casts_wrong += std::abs(b.casts - (casts ? 2 * b.parameters : 0)) +
                     std::abs(b.kept_casts - (casts ? 2 * (b.parameters - mlp_biases) : 0));
      const auto each = [&](int64_t bytes) { return number(double(bytes) / double(b.parameters)); };
      table.row({std::string(strategy), each(b.parameter), each(b.companion), each(b.gradient),
                 each(b.state), each(b.casts), each(b.kept_casts)});
    }
  found.out() << table;
  found.exactly(
      "bytes by which predictions are off, " + std::to_string(cases) + " trainings together",
      double(wrong), 0);
  // Backward does not need biases, so only the region keeps casts of biases.
  found.exactly("bytes by which casts are not 2 a parameter, and then 2 a weight without biases",
                double(casts_wrong), 0);
  found.exactly("bytes left behind", double(memory_report().total_now - empty.total_now), 0);

  Table formats({"matrices of the GPT", "bits each", "bytes as if native", "f32"});
  const Case gpt = make("GPT");
  int64_t off = 0, too_rich = 0;
  for (const char* name : {"mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8_block"}) {
    const Quantizer quantizer = *quantizer_named(name);
    int64_t elements = 0, bits = 0;
    for (const Tensor& w : gpt.model->parameters()) {
      if (w.rank() != 2) continue;
      const AsIf sum = as_if(w.detach(), quantizer);
      elements += w.numel(), bits += sum.bits, too_rich += sum.too_rich;
    }
    const double said = double(elements) * quantizer.bits_per_element();
    off += said != double(bits);
    formats.row({name, number(quantizer.bits_per_element()), number(double(bits) / 8, 9),
                 number(4.0 * double(elements), 9)});
  }
  found.out() << formats;
  found.exactly("formats whose bytes are not elements x bits", double(off), 0);
  found.exactly("blocks with more numbers than codes", double(too_rich), 0);
}

}  // namespace e15

const Experiment found::e15{
    "E15",
    "The memory table of mixed precision is exact: bytes of weights, masters, gradients and states "
    "follow from shapes, to the byte, for every strategy; autocast needs 2 bytes more per "
    "parameter in forward, and keeps the bytes of weights until backward.",
    e15::run};

// E16. Searches the operations of gpt_tiny (lab/workload.h), starting from PyTorch's list
// for CUDA: which more operations may run in bf16 for an error of 2 % in the gradients? Then both
// policies train from the same seeds; the result is the difference of their losses, with its
// interval.

namespace e16 {

constexpr const char* workload = "gpt_tiny";

void run(Findings& f) {
  const amp::Policy base = amp::Policy::named("amp-bf16");
  Trial trial([] { return make_workload(workload); }, amp::Policy::named("fp32"));
  const Measurement of_base = trial.set_base(base);
  const auto space = search_space("ops", "low", base, make_workload(workload));
  const SearchOptions options{.objective = Objective::bytes, .budget = 0.02};
  std::ostream silent(nullptr);
  std::vector<Candidate> candidates = sensitivity(trial, base, space, silent);
  f.out() << table_of(candidates, of_base) << '\n';
  const Found found = search(trial, base, of_base, std::move(candidates), options, silent);
  f.out() << table_of(found, options) << '\n';

  amp::Policy chosen = found.policy;
  chosen.name = "found";
  const std::vector<uint64_t> seeds{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<RunResult> runs = all_runs(
      {.cells = cells_of({base, chosen}, {.workload = workload, .steps = f.thorough() ? 600 : 200}),
       .seeds = seeds});
  f.out() << table_of(runs) << '\n';
  std::vector<double> differences, ratios, base_times, found_times;
  for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {  // the two policies alternate, with the
                                                          // same seed
    differences.push_back(runs[i + 1].loss / runs[i].loss - 1);
    ratios.push_back(runs[i + 1].milliseconds / runs[i].milliseconds);
    base_times.push_back(runs[i].milliseconds);
    found_times.push_back(runs[i + 1].milliseconds);
  }
  f.out() << "ms per step over the list's: " << fixed(median(ratios), 3)
          << ", median of the pairs\n";
  const Interval difference = interval_of(differences);
  f.at_most("bytes kept, found over list", found.measured.bytes / of_base.bytes, 0.9);
  f.at_most("loss beyond the list's, upper end of 95 %", difference.mean + difference.half, 0.005);
  f.at_most("ms per step over the list's, least of the pairs", std::ranges::min(ratios), 1.0);
  // Noise only adds time; the least times still have noise of about 1 %.
  f.at_most("ms per step over the list's, of the least times",
            std::ranges::min(found_times) / std::ranges::min(base_times), 1.01);
  f.within("measured over predicted error", found.measured.added / found.predicted, 0.5, 2);
  // For one rule, both numbers are the same measurement; for all rules that save something, they
  // are not.
  const FrontierPoint& all = found.frontier.back();
  f.at_least("rules that save something", double(all.names.size()), 2);
  f.within("measured over predicted error of all of them", all.measured.added / all.predicted, 0.5,
           2);
}

}  // namespace e16

const Experiment found::e16{
    "E16",
    "A search over rules finds a policy that trains no worse than the hand-made list for CUDA and "
    "keeps at least 10 % fewer bytes from forward to backward (HAWQ-V2, arXiv 1911.03852, also "
    "ranks by sensitivity).",
    e16::run};

// E18. The decisions of seven roundings on seven grids, 980,000 in all, made in this file and by
// the compiled kernels of the library. tests/lab/scripts/compiled_rounding.cmake compiles the same
// formula without optimization, with full optimization, and with -ffast-math. For comparison it
// also compiles rounding by sums of floats (Veltkamp's splitting), which breaks completely if a
// compiler may fuse multiplications and additions.

namespace e18 {

std::string hexadecimal(uint64_t hash) {
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

/// Runs floats of all sizes through the quantizers of all named grids. Returns the hash.
std::string by_kernels(const char* backend) {
  const CpuBackendScope scope(backend);
  AnyFloats floats;
  std::vector<float> values;
  while (values.size() < 30'000)
    if (const float x = floats.next(); !std::isnan(x)) values.push_back(x);
  const Tensor x = from_vector(values, {150, 200});
  manual_seed(18);
  std::vector<Tensor> rounded;
  for (const NamedFormat& format : named_formats())
    for (int r = 0; r <= int(Rounding::stochastic); ++r)  // those of the record
      rounded.push_back(quantize(x, {.grid = format.format, .rounding = Rounding(r)}));
  return hash_of(rounded);
}

void run(Findings& found) {
  const std::string formula = hexadecimal(
      rounding_hash([](const NumberFormat& format, float x, Rounding rounding, uint32_t random) {
        return round_to(format, x, rounding, random);
      }));
  const std::string left_out = hexadecimal(
      rounding_hash([](const NumberFormat&, float x, Rounding, uint32_t) { return x; }));
  const std::string cpu = by_kernels("cpu"), reference = by_kernels("reference");
  Table table({"decisions", "hash"});
  table.row({"the formula, as compiled here", formula});
  table.row({"with rounding left out", left_out});
  table.row({"kernels, cpu", cpu});
  table.row({"kernels, reference", reference});
  found.out() << table;
  found.equal("the formula", formula, hexadecimal(rounding_hash_everywhere));
  found.different("with rounding left out", left_out, formula);
  found.equal("kernels", cpu, reference);
}

}  // namespace e18

const Experiment found::e18{
    "E18",
    "Emulated formats survive optimization: rounding by integer arithmetic has the same bits at "
    "every level of optimization, -ffast-math included, and in vector code.",
    e18::run};

// E26. A small GPT reads texts in batches of 1, 2, 3 and 64, and generates them token by token with
// stored keys and values. Elsewhere kernels for few rows sum in another order than kernels for
// many, so that the probabilities of generation are not those of training (Horace He et al. 2025,
// "Defeating nondeterminism in LLM inference"; Qi et al. 2025, arXiv 2510.26788). With portable
// bits every row has the same bits in any batch, so the divergence of both is exactly 0.

namespace e26 {

constexpr int64_t texts = 64, length = 40, vocabulary = 60;
constexpr nn::models::GptOptions small{
    .vocabulary = vocabulary, .context = length, .layers = 2, .heads = 4, .width = 96};

/// Texts in which a token usually follows from the two before it.
Tensor texts_of(uint64_t seed) {
  manual_seed(seed);
  const std::vector<int64_t> noise =
      randint(0, 10 * vocabulary, {texts, length}).to_vector<int64_t>();
  std::vector<int64_t> tokens(noise.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool starts = i % length < 2 || noise[i] < vocabulary;
    tokens[i] =
        starts ? noise[i] % vocabulary : (3 * tokens[i - 1] + 5 * tokens[i - 2] + 1) % vocabulary;
  }
  return from_vector(tokens, {texts, length});
}

struct Mismatch {
  int64_t others = 0;     // logits of batches of 1, 2 and 3 that differ from those of 64
  double divergence = 0;  // KL of training's probabilities and generation's, mean over tokens
};

/// Trains 40 steps under a strategy, and reads texts that were not in the training data.
Mismatch measure(std::string_view strategy, bool portable) {
  const PortableBitsScope scope(portable);
  manual_seed(26);
  nn::models::Gpt model(small);
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  amp::Training training(amp::Policy::named(strategy), model, optimizer);
  for (uint64_t step = 0; step < 40; ++step) {
    const Tensor tokens = texts_of(step);
    training.zero_grad();
    const Tensor logits = training.forward(model, slice(tokens, 1, 0, length - 1));
    training.backward(
        cross_entropy(flatten(logits, 0, 1), flatten(slice(tokens, 1, 1, length), 0, 1)));
    training.step();
  }
  const NoGrad no_grad;
  model.eval();
  const Tensor tokens = texts_of(1000), all = training.forward(model, tokens);
  Mismatch result;
  for (const int64_t batch : {1, 2, 3}) {
    const Tensor few = training.forward(model, slice(tokens, 0, 0, batch));
    result.others += int64_t(sum(cast(few != slice(all, 0, 0, batch), f64)).item());
  }
  nn::models::KeyValueCache cache;
  const auto next = [&](const Tensor& token) { return model(token, cache); };
  for (int64_t place = 0; place < length; ++place) {
    const Tensor p = log_softmax(cast(select(all, 1, place), f64), -1),
                 generated = training.forward(next, slice(tokens, 1, place, place + 1)),
                 q = log_softmax(cast(select(generated, 1, 0), f64), -1);
    result.divergence += (sum(exp(p) * (p - q)) / double(texts * length)).item();
  }
  return result;
}

void run(Findings& found) {
  for (const bool portable : {false, true}) {
    Table table({portable ? "portable bits" : "fastest order, on this CPU",
                 "logits that depend on the batch", "KL of training and generation"});
    for (const char* strategy : {"fp32", "amp-bf16"}) {
      const Mismatch m = measure(strategy, portable);
      table.row({strategy, std::to_string(m.others), number(m.divergence, 3)});
      if (!portable) continue;
      found.exactly(std::string(strategy) + ", logits that depend on the batch", double(m.others),
                    0);
      found.exactly(std::string(strategy) + ", KL of training and generation", m.divergence, 0);
    }
    found.out() << table;
  }
}

}  // namespace e26

const Experiment found::e26{"E26",
                            "A model that generates token by token has the probabilities of its "
                            "training, to the bit, if a row's sums do not depend on the number of "
                            "rows.",
                            e26::run};

// E27. A small decoder with eight experts a layer, of which a token sees two, is trained. Then its
// routers' scores are computed again from the same inputs with rounded numbers. Mixtures of experts
// keep the router in f32 for this reason (Fedus et al. 2021, "Switch Transformers", selective
// precision; Zoph et al. 2022, "ST-MoE").

namespace e27 {

constexpr int64_t chosen = 2, experts = 8;
constexpr nn::models::LlamaOptions small{.vocabulary = e26::vocabulary,
                                         .context = e26::length,
                                         .layers = 2,
                                         .width = 64,
                                         .heads = 4,
                                         .key_heads = 2,
                                         .hidden = 64,
                                         .experts = experts,
                                         .experts_per_token = chosen};

/// Keeps the inputs of the routers, after the casts of another caster.
class RouterInputs final : public InputCaster {
 public:
  struct Call {
    Tensor x, weight;
  };
  explicit RouterInputs(std::shared_ptr<InputCaster> asked) : asked_(std::move(asked)) {}
  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32) override {
    CastPlan plan = asked_ ? asked_->plan(op, inputs, has_f32) : CastPlan{};
    if (op.name == "router_scores") calls.push_back({inputs[0].detach(), inputs[1].detach()});
    return plan;
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    if (asked_) asked_->cast_inputs(op, inputs);
  }
  std::vector<Call> calls{};

 private:
  std::shared_ptr<InputCaster> asked_;
};

std::vector<RouterInputs::Call> inputs_of_routers(amp::Training& training, nn::models::Llama& model,
                                                  const Tensor& tokens) {
  std::shared_ptr<RouterInputs> noted;
  training.forward(
      [&](const Tensor& x) {
        noted = std::make_shared<RouterInputs>(shared_active_caster());
        const CasterScope scope(noted);
        return model(x);
      },
      tokens);
  return noted->calls;
}

/// Returns the experts of each token as a sum of powers of 2, so that their order does not count.
Tensor sets_of(const Tensor& scores) {
  const Tensor places = topk(scores, chosen).indices;
  return sum(pow(full({}, 2, f64), cast(places, f64)), {1});
}

/// Returns the share of tokens, over all layers, that would see other experts than `right` says.
double flipped(const std::vector<RouterInputs::Call>& right,
               const std::vector<RouterInputs::Call>& calls,
               const std::function<Tensor(const RouterInputs::Call&)>& scores) {
  double others = 0, tokens = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Tensor wanted = sets_of(linear(right[i].x, right[i].weight));
    others += sum(cast(sets_of(scores(calls[i])) != wanted, f64)).item();
    tokens += double(wanted.numel());
  }
  return others / tokens;
}

void run(Findings& found) {
  manual_seed(27);
  nn::models::Llama model(small);
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  amp::Training training(amp::Policy::named("fp32"), model, optimizer);
  for (uint64_t step = 0; step < 100; ++step) {
    const Tensor tokens = e26::texts_of(step);
    training.zero_grad();
    const auto [logits, balance] = model.with_balance(slice(tokens, 1, 0, e26::length - 1));
    training.backward(
        cross_entropy(flatten(logits, 0, 1), flatten(slice(tokens, 1, 1, e26::length), 0, 1)) +
        balance * 0.01);
    training.step();
  }
  const NoGrad no_grad;
  model.eval();
  const Tensor tokens = e26::texts_of(1000);
  amp::Training under_bf16(amp::Policy::named("amp-bf16"), model, optimizer);
  const auto right = inputs_of_routers(training, model, tokens),
             of_bf16 = inputs_of_routers(under_bf16, model, tokens);
  const auto in_f32 = [](const RouterInputs::Call& c) {
    return linear(c.x.to(f32), c.weight.to(f32));
  };
  const auto rounded_by = [](std::string_view quantizer) {
    return [quantizer](const RouterInputs::Call& c) {
      return linear(quantize(c.x, quantizer), quantize(c.weight, quantizer));
    };
  };
  const auto rounded_scores = [](const RouterInputs::Call& c) {
    return linear(c.x, c.weight).to(bf16).to(f32);
  };
  struct Row {
    const char* name;
    double share;
  };
  const Row around{"a model under amp-bf16, routers in f32", flipped(right, of_bf16, in_f32)},
      scores{"scores in bf16", flipped(right, right, rounded_scores)},
      operands{"operands in bf16", flipped(right, right, rounded_by("bf16"))},
      e4m3{"operands in e4m3", flipped(right, right, rounded_by("e4m3"))},
      e2m1{"operands in mxfp4", flipped(right, right, rounded_by("mxfp4"))};
  Table table({"what is rounded", "tokens with other experts"});
  for (const Row& row : {around, scores, operands, e4m3, e2m1})
    table.row({row.name, fixed(100 * row.share, 2) + " %"});
  found.out() << table;
  found.exactly("routers in f32 on the same inputs", flipped(right, right, in_f32), 0);
  found.at_least("scores in bf16, share of flips", scores.share, 1e-4);
  found.at_least("e4m3 next to bf16 operands, times as many", e4m3.share / operands.share, 4);
  found.at_least("mxfp4 next to e4m3, times as many", e2m1.share / e4m3.share, 1.5);
}

}  // namespace e27

const Experiment found::e27{"E27",
                            "A router in short numbers sends tokens to other experts: of the "
                            "choices of two experts in eight, rounding changes a share that grows "
                            "with the spacing of the format.",
                            e27::run};

}  // namespace halftone::lab
