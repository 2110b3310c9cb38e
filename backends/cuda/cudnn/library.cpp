// Opening cuDNN, once per device.
#include <halftone/backends/cuda/cudnn/library.h>

#include <map>

#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/libraries.h>

namespace halftone::cuda::cudnn {

namespace {
/// The number of cached plans; an engine compiled for a plan has code on the device.
constexpr std::size_t most_plans = 512;
}  // namespace

bool usable() { return libraries_wanted() && functions(); }

std::string description() {
  if (!functions()) return refusal();
  const std::size_t version = cudnn().version();
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

std::string text_of(std::initializer_list<const Tensor*> tensors) {
  PlainText text;
  for (const Tensor* x : tensors)
    if (x->defined()) text << (text.str().empty() ? "" : ", ") << described(*x);
  return text.str();
}

Library::Library(const Context& context)
    : graphs_(most_plans, [&context] {
        check(cudaStreamSynchronize(context.stream()), "waiting for plans that are given up");
      }) {
  context.activate();
  check_status(cudnn().create(&handle_), "opening it");
}

Outcome Library::make_graph(const Make& make, std::unique_ptr<ReadyGraph>& graph) const {
  try {
    std::optional<ReadyGraph> made = make(Target(handle_));
    if (!made) return {Answer::unsupported, "it has no engine that gives the same bits each time"};
    graph = std::make_unique<ReadyGraph>(std::move(*made));
    return {};
  } catch (const RefusedForNow& refused) {
    return {Answer::not_now, refused.what()};
  } catch (const DeviceError& refused) {  // while describing: nothing has run
    return {Answer::unsupported, refused.what()};
  }
}

bool Library::run(Context& context, Family family, const std::string& call, const Key& key,
                  const Make& make, const std::vector<const void*>& addresses) {
  context.activate();
  const auto run_graph = [&](ReadyGraph& graph) {
    std::vector<std::pair<int64_t, const void*>> pairs;
    for (std::size_t i = 0; i < addresses.size(); ++i)
      pairs.emplace_back(graph.tensors[i], addresses[i]);
    return graph.plan.run(handle_, context, pairs);
  };
  const Outcome outcome =
      graphs_.run(key, {.make = [&](auto& graph) { return make_graph(make, graph); },
                        .run = run_graph,
                        .trim = [&] { context.memory().trim(); },
                        .recorded = context.capturing()});
  if (outcome.answer == Answer::done) return true;
  if (log_wanted()) say_declined(By::cudnn, family, call, outcome.why);
  return false;
}

}  // namespace halftone::cuda::cudnn
