#include <halftone/train/model_summary.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <typeinfo>

#include <cxxabi.h>

#include <halftone/amp/strategy_bytes.h>

namespace halftone::train {

namespace {

template <class... Values> void print(std::string& to, const char* format, Values... values) {
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  to += line;
}

/// The name of a module's class, without namespaces.
std::string class_of(const nn::Module& module) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(module).name(), nullptr, nullptr, &status), std::free);
  if (status != 0) return "module";
  const std::string whole = name.get();
  const auto colon = whole.rfind(':', whole.find('<'));
  return colon == std::string::npos ? whole : whole.substr(colon + 1);
}

double mebibytes(int64_t bytes) { return double(bytes) / 1048576; }

}  // namespace

std::string model_summary(nn::Module& model, optim::Optimizer& optimizer,
                          const amp::Strategy& in_use) {
  std::string text;
  int64_t frozen = 0;
  for (const Tensor& x : model.parameters()) frozen += x.requires_grad() ? 0 : x.numel();
  for (const auto& [name, module] : model.named_modules())
    if (!name.empty() && name.find('.') == std::string::npos)
      print(text, "  %-16.40s %-20.40s %12lld\n", name.c_str(), class_of(*module).c_str(),
            static_cast<long long>(module->parameter_count()));
  print(text, "%-39.60s %12lld parameters, %lld of them frozen\n\n", class_of(model).c_str(),
        static_cast<long long>(model.parameter_count()), static_cast<long long>(frozen));
  print(text, "%-18s%10s%10s%10s%10s%10s\n", "MiB", "weights", "beside", "gradients", "optimizer",
        "sum");
  const auto row = [&](const char* mark, const amp::Strategy& strategy) {
    const amp::StrategyBytes bytes = amp::predicted_bytes(strategy, model, optimizer);
    print(text, "%s %-16.40s%10.2f%10.2f%10.2f%10.2f%10.2f\n", mark, strategy.name.c_str(),
          mebibytes(bytes.parameter), mebibytes(bytes.beside), mebibytes(bytes.gradient),
          mebibytes(bytes.optimizer_state), mebibytes(bytes.total()));
  };
  row(">", in_use);
  for (const std::string_view name : amp::Strategy::names())
    if (name != in_use.name) row(" ", amp::Strategy::named(name));
  return text;
}

}  // namespace halftone::train
