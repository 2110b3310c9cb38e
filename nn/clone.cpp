// Walks over both modules in parallel; their members are collected by path.
#include <halftone/nn/clone.h>

#include <map>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/memory.h>

namespace halftone::nn::detail {

namespace {
/// Everything that a module describes, under every path, without any exception.
struct Contents final : Fields {
  Named<Parameter*> parameters;
  Named<Buffer*> buffers;
  Named<Module*> modules;

  explicit Contents(Module& root) { walk(root); }
  void parameter(const std::string& path, Parameter& x) override {
    parameters.emplace_back(path, &x);
  }
  void buffer(const std::string& path, Buffer& x) override { buffers.emplace_back(path, &x); }
  bool module(const std::string& path, Module& x) override {
    modules.emplace_back(path, &x);
    return true;
  }
};

template <class T> void require_same(const Named<T*>& source, const Named<T*>& copy) {
  const auto shape = [](const T& x) {
    if constexpr (std::derived_from<T, Tensor>) return x.shape();
    else return Shape{};
  };
  for (std::size_t i = 0; i < std::max(source.size(), copy.size()); ++i) {
    if (i >= source.size() || i >= copy.size() || source[i].first != copy[i].first)
      fail<UsageError>("clone", "the original has ", source.size(), " fields, the new module ",
                       copy.size(), "; they part at \"",
                       (i < source.size() ? source[i] : copy[i]).first,
                       "\". Pass the arguments that made the original.");
    if (shape(*source[i].second) != shape(*copy[i].second))
      fail<UsageError>("clone", "\"", source[i].first, "\" is ", shape(*source[i].second),
                       " in the original and ", shape(*copy[i].second),
                       " in the new module. Pass the arguments that made the original.");
  }
}
}  // namespace

void copy_module(Module& source, Module& copy) {
  const Contents from(source), to(copy);
  require_same(from.modules, to.modules);
  require_same(from.parameters, to.parameters);
  require_same(from.buffers, to.buffers);
  std::map<const AutogradMeta*, Parameter> parameters;
  for (std::size_t i = 0; i < from.parameters.size(); ++i) {
    const Parameter& x = *from.parameters[i].second;
    auto known = parameters.find(x.meta().get());
    if (known == parameters.end()) {
      const MemoryScope scope(MemoryUse::parameter);
      Parameter made(x.detach().clone());
      made.set_requires_grad(x.requires_grad());
      known = parameters.emplace(x.meta().get(), std::move(made)).first;
    }
    *to.parameters[i].second = known->second;
    known->second.meta()->unclaimed = false;
  }
  std::map<const TensorBody*, Buffer> buffers;
  for (std::size_t i = 0; i < from.buffers.size(); ++i) {
    const Buffer& x = *from.buffers[i].second;
    auto known = buffers.find(x.body().get());
    if (known == buffers.end()) {
      const MemoryScope scope(MemoryUse::parameter);
      Buffer made(x.detach().clone());
      made.stays_on_host = x.stays_on_host, made.stays_wide = x.stays_wide;
      known = buffers.emplace(x.body().get(), std::move(made)).first;
    }
    *to.buffers[i].second = known->second;
  }
  for (std::size_t i = 0; i < from.modules.size(); ++i)
    to.modules[i].second->training = from.modules[i].second->training;
}

}  // namespace halftone::nn::detail
