// Lesson 25: your own data and model. You will see a table of comma-separated values become a
// dataset, a model with two inputs, your own metric and callback, and a saved model that predicts,
// also in another process (--predict). --table reads your own file with these columns; without it
// the lesson writes one, with prices of flats that follow a rule.
#include <cmath>
#include <cstdio>
#include <sstream>
#include <random>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {

/// The price, in thousands, is 2.1 per square meter, less with age, times a factor of the district;
/// 5 % is random.
void write_flats(const fs::path& path) {
  const char* const districts[] = {"harbour", "hill", "old town", "park"};
  const double factors[] = {0.9, 1.3, 1.6, 1.1};
  std::mt19937 random(7);
  std::string text = "size,rooms,age,district,price\n";
  for (int i = 0; i < 2000; ++i) {
    const auto draw = [&](int from, int to) {
      return from + int(random() % uint32_t(to - from + 1));
    };
    const int size = draw(25, 160), age = draw(0, 90), district = draw(0, 3);
    const double chance = 1 + 0.05 * (double(draw(0, 2000)) / 1000 - 1);
    const double price = (2.1 * size - 0.5 * age + 60) * factors[district] * chance;
    char line[96];
    std::snprintf(line, sizeof line, "%d,%d,%d,%s,%.1f\n", size, 1 + size / 30, age,
                  districts[district], price);
    text += line;
  }
  ht::files::replace("--directory", path, text);
}

/// Your own module: its members, functions of them, and their names. Numbers are standardized, and
/// the district selects a vector from a learned table. A call returns the standardized price, which
/// training compares; `price` returns thousands.
struct PriceModel final : ht::nn::Module {
  ht::nn::Standardizer of_numbers{3}, of_prices{1};
  ht::nn::Embedding district;
  ht::nn::Linear first{3 + 4, 64}, second{64, 64}, last{64, 1};

  explicit PriceModel(int64_t districts) : district(districts, 4) {}
  ht::Tensor operator()(const ht::Tensor& numbers, const ht::Tensor& districts) const {
    const ht::Tensor x = ht::cat({of_numbers(numbers), district(districts)}, 1);
    return last(ht::relu(second(ht::relu(first(x)))));
  }
  ht::Tensor price(const ht::Tensor& numbers, const ht::Tensor& districts) const {
    return of_prices.undo((*this)(numbers, districts));
  }
  void describe(ht::nn::Fields& field) override {
    field("of_numbers", of_numbers), field("of_prices", of_prices), field("district", district);
    field("first", first), field("second", second), field("last", last);
  }
};

/// Your own metric: the share of predictions whose absolute error is less than `limit`. It is a
/// mean of ones and zeros.
struct Within {
  double limit;
  ht::train::RunningMean share{};
  void update(const ht::train::Outcome& batch) {
    const ht::Tensor off = ht::abs(batch.outputs - batch.targets);
    share.update(ht::mean(ht::cast(off < limit, ht::f32)), double(off.numel()));
  }
  double value() const { return share.value(); }
  void reset() { share.reset(); }
  ht::train::MetricSums sums() const { return share.sums(); }
  void restore(const ht::train::MetricSums& sums) { share.restore(sums); }
};

/// Your own callback: saves the weights of the best validation in a file.
struct SaveBest final : ht::train::Callback {
  fs::path path;
  double best = INFINITY;
  explicit SaveBest(fs::path to) : path(std::move(to)) {}
  void on_validation_end(ht::train::Trainer& trainer) override {
    if (trainer.metric("val/loss") >= best) return;
    best = trainer.metric("val/loss");
    ht::nn::save(trainer.model(), path);
  }
};

/// Trains, and writes the model's weights to prices.safetensors and the names of its districts to
/// districts.txt.
void learn(const fs::path& table_path, const fs::path& directory, int64_t epochs) {
  // Converts columns to tensors.
  const ht::data::CsvTable table = ht::data::read_csv(table_path);
  const ht::Tensor numbers = table.numbers({"size", "rooms", "age"});  // f32 [rows, 3]
  const ht::Tensor prices = table.numbers({"price"});                  // f32 [rows, 1]
  const ht::data::Classes districts = table.classes("district");       // i64 [rows], names

  // Means and deviations come only from the training rows: the model must not see its test rows.
  const auto [train_rows, test_rows] = ht::data::random_split(table.rows(), 0.8);
  ht::manual_seed(0);
  PriceModel model(int64_t(districts.names.size()));
  model.of_numbers = ht::nn::Standardizer::of(ht::data::take_rows(numbers, train_rows));
  model.of_prices = ht::nn::Standardizer::of(ht::data::take_rows(prices, train_rows));

  const ht::data::TensorDataset samples({numbers, districts.numbers, model.of_prices(prices)});
  const ht::data::DataLoader train(ht::data::Subset(samples, train_rows),
                                   {.batch_size = 64, .shuffle = true, .seed = 0});
  const ht::data::DataLoader test(ht::data::Subset(samples, test_rows), {.batch_size = 100});

  ht::train::Task task = ht::train::regression(model, {.mae = true, .r2 = true});
  task.forward_batch = [&](const ht::data::Batch& batch) {
    return model(batch.inputs, batch.more[0]);
  };
  task.metrics.emplace_back(
      "within", Within{.limit = 0.1},
      [](Within& metric, const ht::train::Outcome& batch) { metric.update(batch); });

  ht::optim::AdamW adamw(model.parameters(), {.lr = 3e-3});
  const auto saves = std::make_shared<SaveBest>(directory / "prices.safetensors");
  ht::train::Trainer trainer(
      task, adamw, {.precision = "bf16-mixed", .max_epochs = epochs, .callbacks = {saves}});
  const ht::train::FitResult result = trainer.fit(train, test);
  std::printf("%s; R2 %.3f\n\n", result.reason.c_str(), result.metrics.at("val/r2"));

  std::string names;
  for (const std::string& name : districts.names) names += name + '\n';
  ht::files::replace("--directory", directory / "districts.txt", names);
}

/// Needs only the two files.
void predict(const fs::path& directory) {
  std::vector<std::string> names;
  std::istringstream lines(ht::data::read_text(directory / "districts.txt"));
  for (std::string name; std::getline(lines, name);) names.push_back(name);

  PriceModel model(int64_t(names.size()));
  ht::nn::load(model, directory / "prices.safetensors");
  const ht::train::Evaluation evaluation(model);
  const ht::Tensor flats = ht::from({{60.0, 3, 10}, {60, 3, 80}, {120, 5, 10}});
  for (std::size_t i = 0; i < names.size(); ++i) {
    const ht::Tensor y = model.price(flats, ht::full({3}, double(i), ht::i64));
    const auto price = y.to_vector<float>();
    std::printf("%-10s 60 m2, new: %4.0f   60 m2, old: %4.0f   120 m2, new: %4.0f\n",
                names[i].c_str(), price[0], price[1], price[2]);
  }
}

void run(const fs::path& table, const fs::path& directory, int64_t epochs, bool predict_only) {
  if (predict_only) return predict(directory);
  ht::files::make_directories("--directory", directory);
  if (table.empty()) write_flats(directory / "flats.csv");
  learn(table.empty() ? directory / "flats.csv" : table, directory, epochs);
  predict(directory);
}

}  // namespace

int main(int argc, char** argv) {
  std::string table, directory = "runs/flats";
  int64_t epochs = 20;
  bool predict_only = false;
  Program program("Learns prices from a table.");
  program.flag("--table", table, "with the columns size, rooms, age, district and price");
  program.flag("--directory", directory, "for the model");
  program.flag("--epochs", epochs).within(1, 1000);
  program.flag("--predict", predict_only, "only predicts, with the model in --directory");
  return program.run(argc, argv, [&] { run(table, directory, epochs, predict_only); });
}

// Conclusion. A table becomes tensors by column; a model standardizes its own inputs, so that a
// saved file predicts from raw numbers. Metrics and callbacks are small structs.
//
// Exercises
// 1 (predict). Compute the mean and deviation from all rows instead of the training rows. What
//   changes in the result, and why is it wrong anyway?
// 2 (implement). Add a column "floor" to the table and to the model.
// 3 (design). 2 % of the ages are missing. Where do you fill them in, and what must be saved with
//   the model?
