// The output of commands: a stream's text for a scope.
#pragma once

#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/lab.h>
#include <halftone/lab/workload.h>

namespace halftone::test {

/// Captures the text that a command writes to a stream of the program, in the format of a new
/// stream. Afterwards the stream has its own buffer and format again.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {
    format_.copyfmt(stream);
    stream.copyfmt(std::ios(nullptr));
  }
  ~Captured() { stream_.copyfmt(format_), stream_.rdbuf(before_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_{};
  std::ios format_{nullptr};
  std::ostream& stream_;
  std::streambuf* before_;
};

// A whole call of halftone-lab within the test's process.

/// The texts that a call printed to standard output and standard error, and its exit code.
struct Said {
  int code = 0;
  std::string output{}, errors{};
};

/// Runs `halftone-lab WORD...` with a workload of the test's own.
inline Said said_by(std::vector<std::string> words, const lab::NamedWorkload& own) {
  words.insert(words.begin(), "halftone-lab");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  const Captured output(std::cout), errors(std::cerr);
  const int code = lab::main(int(pointers.size()), pointers.data(), own);
  return {code, output.text(), errors.text()};
}

// Workloads of linear layers only, whose errors and bits a test can compute.

/// Regression by layers of these widths, without activations, on `rows` normal numbers.
inline lab::Workload linear_workload(const std::vector<int64_t>& widths, int64_t rows = 32,
                                     int64_t batch = 8) {
  manual_seed(6);
  auto model = std::make_unique<nn::Sequential>();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i)
    model->add(nn::Linear(widths[i], widths[i + 1]));
  const Tensor x = randn({rows, widths.front()}), y = randn({rows, widths.back()});
  return {.task = train::regression(static_cast<nn::Layer&>(*model)),
          .model = std::move(model),
          .train = [x, y, batch] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = batch});
          }};
}

/// A list with the workload "small": one linear layer, and batches in an order that depends on the
/// seed.
inline std::vector<lab::NamedWorkload> small() {
  return {{"small", "", [](uint64_t seed) {
             auto model = std::make_unique<nn::Linear>(4, 3);
             const data::TensorDataset data(randn({24, 4}), randn({24, 3}));
             return lab::Workload{
                 .task = train::regression(*model), .model = std::move(model), .train = [=] {
                   return data::DataLoader(data, {.batch_size = 8, .shuffle = true, .seed = seed});
                 }};
           }}};
}

/// The rules of {"rules": [...]}, over fp32.
inline std::vector<policy::Rule> rules_of(const std::string& list) {
  const std::string text =
      R"({"halftone_policy": 1, "name": "s", "extends": "fp32", "rules": [)" + list + "]}";
  return policy::read_text(text, "rules").rules.rules;
}

/// A rule that puts the weight of the layer `path` on a grid.
inline std::string weight_rule(const std::string& name, const std::string& path,
                               const std::string& quantizer) {
  return R"({"name": ")" + name + R"(", "match": {"op": "linear", "path": ")" + path +
         R"("}, "weight": ")" + quantizer + "\"}";
}

// The content of a complete summary.json, for tests that write run folders.

/// Returns a summary.json with `entries` added, or in place of its own.
inline nlohmann::json summary_with(const nlohmann::json& entries = nlohmann::json::object()) {
  nlohmann::json summary{{"format", 1},
                         {"policy", "p"},
                         {"policy_hash", "0123456789abcdef"},
                         {"workload", "w"},
                         {"seed", 0},
                         {"steps", 20},
                         {"lr", 0.1},
                         {"loss", 1},
                         {"late_loss", 1},
                         {"milliseconds_per_step", 1},
                         {"skipped_steps", 0},
                         {"weights_hash", "fedcba9876543210"}};
  summary.update(entries);
  return summary;
}

}  // namespace halftone::test
