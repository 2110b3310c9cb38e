// Workloads: each depends on its seed, also those that bench/train_step measures.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/workload.h>
#include <halftone/lab/workload_data.h>
#include <halftone/nn/state_dict.h>

#include "fixtures_directory.h"
#include "support.h"

namespace halftone::test::workload_test {
namespace {

std::string weights_of(const std::string& workload, uint64_t seed) {
  return lab::hash_of(nn::state_dict(*lab::make_workload(workload, seed).model));
}
std::string data_of(const std::string& workload, uint64_t seed) {
  const data::Batch batch = lab::example_of(lab::make_workload(workload, seed));
  return lab::hash_of(optim::NamedTensors{{"inputs", batch.inputs}, {"targets", batch.targets}});
}

TEST_CASE("workloads: another seed is another model on other data, the same seed the same") {
  for (const char* name : {"student_teacher", "residual_mlp", "mlp_tiny", "resnet18_cifar",
                           "gpt_char", "gpt_tiny", "resnet8", "lstm_text", "diffusion"}) {
    CAPTURE(name);
    CHECK(weights_of(name, 1) == weights_of(name, 1));
    CHECK(weights_of(name, 1) != weights_of(name, 2));
    CHECK(data_of(name, 1) == data_of(name, 1));
    CHECK(data_of(name, 1) != data_of(name, 2));
  }
}

TEST_CASE("workloads: docs/cli.md names each") {
  const std::filesystem::path root = std::filesystem::path(fixtures_directory()).parent_path();
  const std::string page = read_file(root.parent_path() / "docs/cli.md");
  REQUIRE_FALSE(page.empty());
  for (const lab::NamedWorkload& workload : lab::built_in_workloads()) {
    CAPTURE(workload.name);
    CHECK(contains(page, "`" + workload.name + "`"));
  }
}

TEST_CASE("workloads: seeds order the data of workloads on real data, and leave validation alone") {
  const auto first = [](data::DataLoader loader) {
    return lab::hash_of(optim::NamedTensors{{"x", (*loader.begin()).inputs}});
  };
  for (const char* name : {"gpt_tiny", "resnet8", "lstm_text", "diffusion"}) {
    CAPTURE(name);
    const lab::Workload one = lab::make_workload(name, 1), other = lab::make_workload(name, 2);
    CHECK(first(one.train()) != first(other.train()));
    CHECK(first(one.validation()) == first(other.validation()));
    CHECK_FALSE(lab::trains_on_noise(name));
  }
  CHECK(lab::trains_on_noise("mlp_tiny"));
  CHECK_FALSE(lab::trains_on_noise("no such workload"));
}

TEST_CASE("workloads: what is measured has seed 0 where none is given") {
  const auto hash = [](const lab::SyntheticWorkload& w) {
    return lab::hash_of(nn::state_dict(*w.model));
  };
  CHECK(hash(lab::make_synthetic("mlp_tiny")) == hash(lab::make_synthetic("mlp_tiny", {}, 0)));
  for (const char* name : {"mlp_tiny", "mlp_100", "lstm_100"})
    CHECK(hash(lab::make_synthetic(name)) != hash(lab::make_synthetic(name, {}, 3)));
}

TEST_CASE("workloads: first losses of two seeds differ") {
  std::vector<double> losses;
  for (const uint64_t seed : {1, 2}) {
    const lab::Workload work = lab::make_workload("mlp_tiny", seed);
    const auto optimizer = lab::optimizer_of(work);
    amp::Training training = lab::training_of(amp::Strategy::named("fp32"), work, *optimizer);
    lab::train_steps(work, training, 1,
                     [&](int64_t, const Tensor& loss) { losses.push_back(loss.item()); });
  }
  CHECK(losses.at(0) != losses.at(1));
}

}  // namespace
}  // namespace halftone::test::workload_test
