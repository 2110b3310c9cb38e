// Opening cuDNN, once per device.
#include <halftone/backends/cuda/cudnn/library.h>

#include <halftone/backends/cuda/cudnn/cudnn.h>

namespace halftone::cuda::cudnn {

std::string description() {
  const std::size_t version = cudnnGetVersion();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.raw_data());
  return address == 0 ? 16 : std::min<int64_t>(16, int64_t(address & (~address + 1)));
}

void append(Key& key, const Tensor& x) {
  key.push_back(x.defined() ? int64_t(x.dtype()) : -1);
  if (!x.defined()) return;
  key.push_back(alignment_of(x));
  for (const Dims& dims : {x.shape(), x.strides()}) key.insert(key.end(), dims.begin(), dims.end());
}

Library& Library::of(const Context& context) {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = (*libraries)[context.device().index];
  if (!library) library.reset(new Library(context));
  return *library;
}

Library::Library(const Context& context) {
  context.activate();
  check_status(cudnnCreate(&handle_), "opening it");
}

void Library::run(const ReadyGraph& graph, const Context& context,
                  const std::vector<const void*>& addresses) const {
  std::vector<std::pair<int64_t, const void*>> pairs;
  for (std::size_t i = 0; i < addresses.size(); ++i)
    pairs.emplace_back(graph.tensors[i], addresses[i]);
  context.activate();
  graph.plan.run(handle_, context, pairs);
}

}  // namespace halftone::cuda::cudnn
