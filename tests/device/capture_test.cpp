// A captured step gives the bits of the step itself, with random numbers, schedules and skips.
#include <algorithm>
#include <exception>
#include <thread>

#include <halftone/halftone.h>
#include <halftone/amp/policy_reader.h>

#include "device_cases.h"
#include "support.h"

namespace halftone::test::capture_test {
namespace {

constexpr int steps = 7;

/// Losses and final state of a run; each step has other inputs and another rate. evaluates: an
/// evaluation follows each step, and its results are among the losses.
struct Trace {
  std::vector<Tensor> losses;
  optim::NamedTensors state;
};

Trace run(const std::string& kind, const std::string& strategy, Device device, bool captured,
          bool evaluates = false) {
  DeviceCase c(kind, strategy, device);
  c.training->optimizer().publish_rates();
  CapturedStep step([&](const std::vector<Tensor>& batch) {
    c.inputs = batch[0], c.targets = batch[1];
    return c.step(true);
  });
  const Tensor inputs = c.inputs, targets = c.targets;
  Trace trace;
  for (int i = 0; i < steps; ++i) {
    c.training->optimizer().set_lr(1e-3 * double(i + 1));
    const Tensor batch =
        is_floating(inputs.dtype()) ? inputs * (1 + 0.25 * double(i)) : inputs.clone();
    if (captured) trace.losses.push_back(step({batch, targets}).clone());
    else {
      c.training->optimizer().publish_rates();
      c.inputs = batch, c.targets = targets;
      trace.losses.push_back(c.step(true).detach().clone());
    }
    const NoGrad no_grad;
    if (evaluates) trace.losses.push_back(c.training->forward(*c.model, inputs));
  }
  CHECK(step.captured() == captured);
  for (const auto& [name, x] : c.training->state_dict()) trace.state[name] = x.clone();
  return trace;
}

void check_captured(const char* kind, const char* strategy, Device gpu, bool evaluates = false) {
  INFO(std::string(kind), ", ", std::string(strategy));
  const Trace plain = run(kind, strategy, gpu, false, evaluates),
              replayed = run(kind, strategy, gpu, true, evaluates);
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    INFO("step ", i);
    CHECK(equal_bits(plain.losses[i], replayed.losses[i]));
  }
  for (const auto& [name, x] : plain.state) {
    INFO(name);
    CHECK(equal_bits(x, replayed.state.at(name)));
  }
}

TEST_CASE("a captured step gives the bits of the step itself") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const char* strategy : {"fp32", "amp-bf16", "amp-fp16", "o2-bf16", "full-bf16-sr"})
    for (const char* kind : {"mlp", "gpt"}) check_captured(kind, strategy, *gpu);
  check_captured("lenet", "amp-fp16", *gpu);
  check_captured("resnet", "amp-bf16", *gpu);  // running statistics
}

TEST_CASE("a captured step under a policy gives the bits of the step itself") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const char* file : {"te_delayed_hybrid.json", "mxfp8.json"})
    for (const char* kind : {"mlp", "gpt"})
      check_captured(kind, (policies_directory() / file).c_str(), *gpu);
  for (const char* file : {"nvfp4.json", "tetrajet.json"})
    check_captured("gpt", (policies_directory() / file).c_str(), *gpu);
  CHECK_THROWS_WITH_AS(
      run("mlp", (policies_directory() / "bf16_sr_everywhere.json").string(), *gpu, true),
      doctest::Contains("which a captured step cannot do"), UsageError);
}

/// Writes a policy with these entries in addition to its name and version.
std::string policy_of(const TemporaryDirectory& directory, const std::string& entries) {
  const std::filesystem::path file = directory / "rounded.json";
  write_file(file, R"({"halftone_policy": 1, "name": "rounded", )" + entries + "}");
  return file.string();
}
/// The same for one that rounds the input of linear layers.
std::string inputs_in(const TemporaryDirectory& directory, const std::string& quantizer) {
  return policy_of(directory, R"("extends": "amp-bf16", "rules": [{"match": {"op": "linear"},
      "compute": "f32", "input": )" +
                                  quantizer + "}]");
}

TEST_CASE("evaluations after captured steps round the weights of the last one") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const TemporaryDirectory directory;
  // Masters that are copied into weights give these no new version in a replay.
  for (const char* strategy : {R"("o2-bf16", "weights": {"fused": false})", R"("amp-bf16")"}) {
    const std::string file =
        policy_of(directory, R"("extends": )" + std::string(strategy) +
                                 R"(, "rules": [{"match": {"op": "linear"}, "weight": "mxfp8"}])");
    check_captured("gpt", file.c_str(), *gpu, true);
  }
}

TEST_CASE("a captured step clips: the bits of the step itself") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const TemporaryDirectory directory;
  for (const char* parts : {R"("clip": {"rms": 1.5})", R"("clip": {"quantile": 0.9})",
                            R"("clip": {"rms": 2}, "rounding": "stochastic",
                               "hadamard": {"size": 16, "signs": "step"})"})
    check_captured("mlp",
                   inputs_in(directory, R"({"like": "mxfp8", )" + std::string(parts) + "}").c_str(),
                   *gpu);
}

TEST_CASE("a captured step puts parameters on grids: new random numbers each step, and skips") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const TemporaryDirectory directory;
  for (const char* more : {"", R"(, "hadamard": 16, "clip": {"rms": 4})"}) {
    const std::string file =
        policy_of(directory, R"("extends": "amp-fp16", "loss_scale": {"init": 4294967296,
            "backoff": 0.001}, "optimizer": {"parameters": {"format": "e8m11",
            "rounding": "stochastic")" +
                                 std::string(more) + "}}");
    check_captured("mlp", file.c_str(), *gpu);
  }
}

TEST_CASE("a captured step refuses a quantizer that the host computes") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  policy::add_quantizer({.name = "unchanged", .hash = "1", .round = [](auto in, auto, auto out) {
                           std::ranges::copy(in, out.begin());
                         }});
  const TemporaryDirectory directory;
  for (const char* quantizer : {R"("unchanged")", R"({"table": [-1, 0, 1]})"}) {
    const std::string file = inputs_in(directory, quantizer);
    CHECK_NOTHROW(run("mlp", file, *gpu, false));
    CHECK_THROWS_WITH_AS(run("mlp", file, *gpu, true),
                         doctest::Contains("the host computes this quantizer ("), UsageError);
  }
}

TEST_CASE("a probe does not change captured steps") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  DeviceCase c("mlp", "amp-bf16", *gpu);
  policy::Probe probe(*c.training, {.every = 1});
  c.training->optimizer().publish_rates();
  CapturedStep step([&](const std::vector<Tensor>& batch) {
    c.inputs = batch[0];
    return c.step(true);
  });
  const Tensor inputs = c.inputs;
  for (int i = 0; i < steps; ++i) step({inputs});
  CHECK(step.captured());
  std::map<std::string, double> counts;
  for (const policy::ProbeRow& row : probe.rows())
    counts[row.site + std::string(policy::name(row.role))] += row.survey.sums.count;
  const double weights = counts["0/linear.0weight"];
  const auto size = double(c.model->parameters()[0].numel());
  CHECK(weights / size < steps);  // those before the capture, not its replays
}

TEST_CASE("the next step uses a loss scale that changed on the device, recorded or not") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  amp::DeviceLossScale scale({.init_scale = 8, .growth_interval = 1});
  scale.move_to(*gpu);
  const Tensor found = zeros({}, f32, *gpu);
  CapturedStep step([&](const std::vector<Tensor>& in) {
    const Tensor now = scale.present();
    scale.next(in[0]);
    return now;
  });
  double expected = 8;
  for (int i = 0; i < 6; ++i, expected *= 2) {
    CHECK(scale.present().item() == expected);
    CHECK(step({found}).item() == expected);
  }
  CHECK(step.captured());
}

TEST_CASE("nll_loss and its gradient can be recorded") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor targets = from_vector<int64_t>({2, 0}, {2}, i64, *gpu);
  CapturedStep step([&](const std::vector<Tensor>& in) {
    Tensor logs = in[0].detach().set_requires_grad();
    nll_loss(logs, targets).backward();
    return logs.grad();
  });
  const Tensor logs = from({{-1, -2, -3}, {-4, -5, -6}}, f32, *gpu);
  for (int i = 0; i < 5; ++i)
    CHECK(step({logs}).to_vector<float>() == std::vector<float>{0, 0, -0.5f, -0.5f, 0, 0});
  CHECK(step.captured());
}

TEST_CASE("if work cannot be recorded every call runs the step") {
  int calls = 0;
  CapturedStep step([&](const std::vector<Tensor>& in) {
    ++calls;
    return in[0] + 1.0;
  });
  for (int i = 0; i < 5; ++i) CHECK(step({zeros({2})}).to_vector<float>()[0] == 1);
  CHECK(calls == 5);
  CHECK_FALSE(step.captured());
  Backend& backend = backend_for(Device::cpu());
  CHECK_THROWS_WITH_AS(backend.begin_capture(), doctest::Contains("cannot record work"),
                       UnsupportedError);
  CHECK_THROWS_WITH_AS(backend.end_capture(),
                       "[captured_step] nothing is being recorded. Call begin_capture() first.",
                       UnsupportedError);
}

TEST_CASE("the end of a recording that was never begun is refused on the GPU as well") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  CHECK_THROWS_WITH_AS(backend_for(*gpu).end_capture(),
                       "[captured_step] nothing is being recorded. Call begin_capture() first.",
                       UsageError);
  CHECK((zeros({2}, f32, *gpu) + 1.0).to_vector<float>()[1] == 1);
}

TEST_CASE("a captured step needs an input that gives its device") {
  int calls = 0;
  CapturedStep step([&](const std::vector<Tensor>&) { return ++calls, zeros({}); });
  for (const std::vector<Tensor>& inputs : {std::vector<Tensor>{}, {Tensor{}, zeros({2})}})
    CHECK_THROWS_WITH_AS(step(inputs),
                         "[captured_step] got no input, which would set the device. Pass one.",
                         UsageError);
  CHECK(calls == 0);
}

TEST_CASE("a captured step refuses other shapes, and steps that read back") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  CapturedStep step([](const std::vector<Tensor>& in) { return in[0] * 2.0; });
  const Tensor x = ones({4}, f32, *gpu);
  for (int i = 0; i < 4; ++i) CHECK(step({x}).to_vector<float>() == std::vector<float>(4, 2));
  CHECK(step.captured());
  CHECK_THROWS_WITH_AS(step({ones({5}, f32, *gpu)}), doctest::Contains("captured with [4] f32"),
                       ShapeError);
  CHECK_THROWS_AS(step({x, x}), UsageError);
  CHECK(step({x + 1.0}).to_vector<float>() == std::vector<float>(4, 4));  // from the CPU as well:
  CHECK(step({ones({4})}).to_vector<float>() == std::vector<float>(4, 2));

  CapturedStep reading([](const std::vector<Tensor>& in) {
    if (in[0].to_vector<float>()[0] > 0) return in[0];
    return in[0] * 2.0;
  });
  reading({x}), reading({x});
  CHECK_THROWS_WITH_AS(reading({x}), doctest::Contains("read back to the host while"), UsageError);
  CHECK(ones({2}, f32, *gpu).to_vector<float>()[0] == 1);  // the device continues
  CHECK_THROWS_AS(CapturedStep([](const std::vector<Tensor>& in) { return in[0]; }, {.warm_up = 0}),
                  UsageError);
}

/// The error of the call that records, after two calls that only ran; then the device continues.
void check_refused(const CapturedStep::Step& work, const Tensor& x, const char* message) {
  CapturedStep step(work);
  step({x}), step({x});
  CHECK_THROWS_WITH_AS(step({x}), message, UsageError);
  CHECK_FALSE(step.captured());
  CHECK_FALSE(recording_step());
  CHECK_FALSE(backend_for(x).capturing());
  CHECK((x + 1.0).to_vector<float>() == (x.to(Device::cpu()) + 1.0).to_vector<float>());
}

TEST_CASE("a step that copies from the host, or nests, is refused when it is captured") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor x = ones({4, 2}, f32, *gpu);
  check_refused([&](const std::vector<Tensor>& in) { return in[0] + ones({2}).to(*gpu); }, x,
                "[cuda] host memory is copied to the device while a step is captured. Make tensors "
                "of constants before the step, and pass what changes as its inputs.");
  CapturedStep inner([](const std::vector<Tensor>& in) { return in[0] * 2.0; });
  check_refused([&](const std::vector<Tensor>& in) { return inner(in); }, x,
                "[captured_step] a step is being recorded already. Captures do not nest.");
  CHECK(inner({x}).to_vector<float>() == std::vector<float>(8, 2));
  CHECK(inner.captured());  // alone it may
}

TEST_CASE("work of other threads while a step is captured does not belong to it") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  Tensor count = zeros({}, f32, *gpu);
  const Tensor one = ones({}, f32, *gpu);
  std::vector<float> seen;
  CapturedStep step([&](const std::vector<Tensor>& in) {
    const Tensor y = in[0] * 2.0;
    std::exception_ptr error;
    std::thread([&] {  // allocates, computes, copies both ways and waits
      try {
        const NoGrad scope;
        backend_for(*gpu).accumulate(one, count);
        const Tensor z = full({700}, 3).to(*gpu) + 1.0;
        seen.push_back(z.to_vector<float>()[699]);
        backend_for(*gpu).synchronize();
      } catch (...) { error = std::current_exception(); }
    })
        .join();
    if (error) std::rethrow_exception(error);
    return y + 1.0;
  });
  const Tensor x = ones({700}, f32, *gpu);
  for (int i = 0; i < 6; ++i) CHECK(step({x}).to_vector<float>() == std::vector<float>(700, 3));
  CHECK(step.captured());
  CHECK(seen == std::vector<float>{4, 4, 4});  // twice before, and when it was captured
  CHECK(count.item() == 3);
}

TEST_CASE("two threads cannot record steps of one device at a time") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor x = ones({4}, f32, *gpu);
  std::string refused;
  CapturedStep step([&](const std::vector<Tensor>& in) {
    if (recording_step())
      std::thread([&] {
        try {
          backend_for(*gpu).begin_capture();
        } catch (const UsageError& error) { refused = error.what(); }
      }).join();
    return in[0] * 2.0;
  });
  for (int i = 0; i < 4; ++i) CHECK(step({x}).to_vector<float>() == std::vector<float>(4, 2));
  CHECK(refused ==
        "[captured_step] another thread is recording a step on cuda:0. Record steps of one device "
        "one after the other.");
}

TEST_CASE("batch norm without momentum is refused when it is captured") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  nn::BatchNorm1d layer(2, {.momentum = std::nullopt});
  layer.to(*gpu);
  const Tensor x = ones({4, 2}, f32, *gpu);
  check_refused([&](const std::vector<Tensor>& in) { return layer(in[0]).detach(); }, x,
                "[batch_norm] without momentum each batch has another weight in the running "
                "statistics, which a captured step cannot follow. Give it a momentum.");
}

TEST_CASE("memory that a captured step allocates is its own, and is given back with it") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const int64_t before = memory_report(*gpu).total_now;
  {
    CapturedStep step([](const std::vector<Tensor>& in) { return relu(in[0] - 1.0) * 3.0; });
    const Tensor x = full({1000}, 2, f32, *gpu);
    for (int i = 0; i < 3; ++i) step({x});
    std::vector<Tensor> others;  // would overwrite the step's memory if they got it
    for (int i = 0; i < 20; ++i) others.push_back(full({1000}, -1, f32, *gpu));
    CHECK(step({x}).to_vector<float>() == std::vector<float>(1000, 3));
    for (const Tensor& other : others)
      CHECK(other.to_vector<float>() == std::vector<float>(1000, -1));
  }
  CHECK(memory_report(*gpu).total_now == before);
}

}  // namespace
}  // namespace halftone::test::capture_test
