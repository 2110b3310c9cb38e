// The tables of a model: its parts, and the bytes that each strategy would need.
#include <halftone/train/logging/model_summary.h>

#include <cstdio>

#include <halftone/amp/strategy.h>
#include <halftone/core/error.h>
#include <halftone/train/class_name.h>

namespace halftone::train {

namespace {

template <class... Values> void print(std::string& to, const char* format, Values... values) {
  const PlainPrintf scope;
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  to += line;
}

double mebibytes(int64_t bytes) { return double(bytes) / 1048576; }

}  // namespace

std::string model_summary(nn::Module& model, optim::Optimizer& optimizer,
                          const amp::Strategy& in_use, int ranks) {
  std::string text;
  int64_t frozen = 0;
  for (const Tensor& x : model.parameters()) frozen += x.requires_grad() ? 0 : x.numel();
  for (const auto& [name, module] : model.named_modules())
    if (!name.empty() && name.find('.') == std::string::npos)
      print(text, "  %-16.40s %-20.40s %12lld\n", name.c_str(), class_name(typeid(*module)).c_str(),
            static_cast<long long>(module->parameter_count()));
  print(text, "%-39.60s %12lld parameters, %lld of them frozen\n\n",
        class_name(typeid(model)).c_str(), static_cast<long long>(model.parameter_count()),
        static_cast<long long>(frozen));
  print(text, "%-18s%10s%10s%10s%10s%10s\n", ranks > 1 ? "MiB, of a rank" : "MiB", "weights",
        "companion", "gradients", "optimizer", "sum");
  const auto row = [&](const char* mark, const amp::Strategy& strategy) {
    const amp::StrategyBytes bytes = amp::predicted_bytes(strategy, model, optimizer, ranks);
    print(text, "%s %-16.40s%10.2f%10.2f%10.2f%10.2f%10.2f\n", mark, strategy.name.c_str(),
          mebibytes(bytes.parameter), mebibytes(bytes.companion), mebibytes(bytes.gradient),
          mebibytes(bytes.optimizer_state), mebibytes(bytes.total()));
  };
  row(">", in_use);
  for (const std::string_view name : amp::Strategy::names())
    if (name != in_use.name) row(" ", amp::Strategy::named(name));
  return text;
}

}  // namespace halftone::train
