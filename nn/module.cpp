// Walks over modules, and copies.
#include <halftone/nn/module.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>

namespace halftone::nn {

// Extends and shortens the dotted path here, so that walks need not do it.

namespace {
/// Runs an action when the scope ends, also by an exception: a describe() may throw.
template <class F> struct AtEnd {
  F action;
  explicit AtEnd(F at_end) : action(std::move(at_end)) {}
  ~AtEnd() { action(); }
};
}  // namespace

void Fields::walk(Module& root) {
  if (open_.empty()) met_.clear();
  enter(root);
}

void Fields::enter(Module& entered) {
  for (const auto& [known, path] : open_)
    if (known == &entered)
      fail<UsageError>("Module.describe", "the field \"", prefix_, "\" is ",
                       path.empty() ? "the module that is described" : '"' + path + '"',
                       ", which contains it. Leave it out of describe().");
  if (!module(prefix_, entered)) return;
  open_.emplace_back(&entered, prefix_);
  const AtEnd closes([this] { open_.pop_back(); });
  entered.describe(*this);
}

void Fields::operator()(std::string_view name, Parameter& field) {
  if (!field.defined()) return;
  if (field.meta()) field.meta()->unclaimed = false;
  parameter(new_path(name), field);
}

void Fields::operator()(std::string_view name, Buffer& field) {
  if (field.defined()) buffer(new_path(name), field);
}

void Fields::operator()(std::string_view name, Module& child) {
  std::string outside = std::exchange(prefix_, new_path(name));
  const AtEnd returns([&] { prefix_ = std::move(outside); });
  enter(child);
}

void Fields::parameter(const std::string&, Parameter&) {}
void Fields::buffer(const std::string&, Buffer&) {}
bool Fields::module(const std::string&, Module&) { return true; }

std::string Fields::new_path(std::string_view name) {
  std::string path = path_of(name);
  if (!met_.insert(path).second)
    fail<UsageError>("Module.describe", "two fields are called \"", path,
                     "\", and a saved state would keep one of them. Give each a name of its own.");
  return path;
}

std::string Fields::path_of(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

// The walks that every module inherits: each is a small Fields, or a loop over collected fields.

namespace {

struct Collect final : Fields {
  std::vector<std::pair<std::string, Parameter*>> parameters;
  std::vector<std::pair<std::string, Buffer*>> buffers;
  std::vector<std::pair<std::string, Module*>> modules;

  // describe() is not const, since some walks write. This walk only reads, so it may enter a const
  // module.
  explicit Collect(const Module& root, std::function<bool(const Module&)> passed_over = {})
      : passes_over(std::move(passed_over)) {
    walk(const_cast<Module&>(root));
  }

  void parameter(const std::string& path, Parameter& x) override { add(parameters, path, x); }
  void buffer(const std::string& path, Buffer& x) override { add(buffers, path, x); }
  bool module(const std::string& path, Module& x) override {
    modules.emplace_back(path, &x);
    return !passes_over || !passes_over(x);
  }

 private:
  std::function<bool(const Module&)> passes_over;

  /// Adds each shared tensor once. The search is linear, but over hundreds of tensors at most.
  template <class T> static void add(Named<T*>& list, const std::string& path, T& x) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const auto& entry) {
      return entry.second->body() == x.body();
    });
    if (!known) list.emplace_back(path, &x);
  }
};

template <class T> Named<Tensor> handles(const Named<T*>& list) {
  Named<Tensor> result;
  result.reserve(list.size());
  for (const auto& [path, x] : list) result.emplace_back(path, *x);
  return result;
}

/// Replaces the data in the body that all handles of x share. A gradient of the former dtype or
/// device would not fit, so it is dropped.
void replace(Tensor& x, const Tensor& data) {
  if (x.grad().defined()) x.set_grad(Tensor{});
  *x.body() = *data.body();
}

void convert(Tensor& x, DType dtype) {
  if (!is_floating(x.dtype()) || x.dtype() == dtype) return;
  const MemoryScope scope(x.storage()->use());
  Tensor converted = empty_like(x, dtype);
  backend_for(x).copy(x, converted);
  replace(x, converted);
}

void move(Tensor& x, Device device) {
  if (x.device() == device) return;
  const MemoryScope scope(x.storage()->use());
  replace(x, x.to(device));
}

}  // namespace

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (const auto& [path, x] : Collect(*this).parameters) result.push_back(*x);
  return result;
}

Named<Tensor> Module::named_parameters() const { return handles(Collect(*this).parameters); }
Named<Tensor> Module::named_buffers() const { return handles(Collect(*this).buffers); }
Named<Module*> Module::named_modules() { return Collect(*this).modules; }

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const auto& [path, x] : Collect(*this).parameters) count += x->numel();
  return count;
}

void Module::train(bool on) {
  for (const auto& [path, module] : named_modules()) module->training = on;
}

void Module::zero_grad() {
  for (const auto& [path, x] : Collect(*this).parameters) x->set_grad(Tensor{});
}

void Module::set_requires_grad(bool value) {
  for (const auto& [path, x] : Collect(*this).parameters) x->set_requires_grad(value);
}

void Module::to(DType dtype, const std::function<bool(const Module&)>& except) {
  if (!is_floating(dtype))
    fail<DTypeError>("Module.to", "parameters must be floating, got ", dtype,
                     ". Use f64, f32, f16 or bf16.");
  Collect fields(*this, except);
  for (auto& [path, x] : fields.parameters) convert(*x, dtype);
  const DType wide = size_of(dtype) < size_of(f32) ? f32 : dtype;
  for (auto& [path, x] : fields.buffers) convert(*x, x->stays_wide ? wide : dtype);
}

void Module::to(Device device) {
  backend_for(device);  // throws before anything is moved
  Collect fields(*this);
  for (auto& [path, x] : fields.parameters) move(*x, device);
  for (auto& [path, x] : fields.buffers) {
    if (!x->stays_on_host) move(*x, device);
  }
}

ForwardHandle Module::on_forward(ForwardObserver observer) {
  if (!observer) fail<UsageError>("Module.on_forward", "the observer is empty. Pass a function.");
  if (!observers_) observers_ = std::make_shared<ForwardObservers>();
  observers_->push_back(std::make_shared<const ForwardObserver>(std::move(observer)));
  ForwardHandle handle;
  handle.all_ = observers_, handle.observer_ = observers_->back();
  return handle;
}

void ForwardHandle::remove() {
  const auto all = all_.lock();
  if (const auto observer = observer_.lock(); all && observer) std::erase(*all, observer);
}

void Module::observe(std::span<const Tensor> inputs, std::span<const Tensor> outputs) const {
  const ForwardObservers observers = *observers_;  // one may remove itself
  for (const auto& observer : observers) (*observer)(*this, inputs, outputs);
}

}  // namespace halftone::nn

// Walks over both modules in parallel; their members are collected by path.

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
      made.persistent = x.persistent;
      known = buffers.emplace(x.body().get(), std::move(made)).first;
    }
    *to.buffers[i].second = known->second;
  }
  for (std::size_t i = 0; i < from.modules.size(); ++i)
    to.modules[i].second->training = from.modules[i].second->training;
}

}  // namespace halftone::nn::detail

// Copies made by clone(), restored by the kernels that write in place.

namespace halftone::nn {

BufferCopies::BufferCopies(const Module& model) {
  const MemoryScope scope(MemoryUse::workspace);
  for (const auto& [name, buffer] : model.named_buffers())
    held_.push_back({name, buffer, buffer.clone(), buffer.storage()->version()});
}

/// A write through a pointer is found by its bytes, without waiting for a GPU.
bool BufferCopies::Held::changed() const {
  if (buffer.storage()->version() != version) return true;
  if (buffer.device().kind != DeviceKind::cpu || !buffer.is_contiguous()) return false;
  return std::memcmp(buffer.raw_data(), copy.raw_data(), std::size_t(copy.bytes())) != 0;
}

void BufferCopies::restore() const {
  for (const Held& held : held_) copy_into(held.buffer, held.copy);
}

bool BufferCopies::keep_changed() {
  std::erase_if(held_, [](const Held& held) { return !held.changed(); });
  return !held_.empty();
}

std::string BufferCopies::first_changed() const {
  const auto found = std::ranges::find_if(held_, &Held::changed);
  return found == held_.end() ? "" : found->name;
}

std::shared_ptr<HeldBuffers> BufferCopies::now() const {
  const MemoryScope scope(MemoryUse::workspace);
  auto result = std::make_shared<BufferCopies>();
  for (const Held& held : held_)
    result->held_.push_back(
        {held.name, held.buffer, held.buffer.clone(), held.buffer.storage()->version()});
  return result;
}

std::shared_ptr<HeldBuffers> Module::held_buffers(const void* module) {
  return std::make_shared<BufferCopies>(*static_cast<const Module*>(module));
}

void BufferCopies::restore_where(const Tensor& flag) const {
  for (const Held& held : held_) {
    const Tensor here = flag.to(held.buffer.device());
    const Tensor back = not_equal(here, zeros({}, f32, held.buffer.device()));
    write_in_place(held.buffer, [&](Backend& backend, Tensor& x) {
      backend.select(views::expand(back, x.shape()), held.copy, x, x);
    });
  }
}

// Loading compares first and copies afterwards, so that a state that does not fit leaves the module
// unchanged.

namespace {

struct CollectState final : Fields {
  NamedTensors state;
  explicit CollectState(const Module& root) { walk(const_cast<Module&>(root)); }
  void parameter(const std::string& path, Parameter& x) override { state[path] = x.detach(); }
  void buffer(const std::string& path, Buffer& x) override {
    if (x.persistent) state[path] = x.detach();
  }
};

struct Difference {
  LoadReport names;
  std::vector<std::string> misshapen, contradictory, lost, overlapping;
};

std::string name_and(const std::string& name, const auto&... more) {
  PlainText text;
  text << shortened(name, 80) << " (";
  (text << ... << more) << ')';
  return text.str();
}

bool same_elements(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

/// Compares what is given for the names of one tensor: the last would win without a word.
void compare_tied(const NamedTensors& own, const NamedTensors& given, Difference& result) {
  std::map<const Storage*, std::vector<NamedTensors::const_iterator>> seen;
  for (auto at = own.begin(); at != own.end(); ++at) {
    const auto found = given.find(at->first);
    if (found == given.end() || !found->second.defined()) continue;
    auto& others = seen[at->second.storage().get()];
    const auto tied = std::ranges::find_if(
        others, [&](const auto& other) { return same_elements(other->second, at->second); });
    if (tied == others.end()) others.push_back(at);
    else if (!same_values(given.at((*tied)->first), found->second))
      result.contradictory.push_back(name_and((*tied)->first, shortened(at->first, 80)));
  }
}

/// Returns the prefix with which most missing names are among the unexpected ones; empty if there
/// is none.
std::string prefix_of(const LoadReport& names) {
  const auto& [missing, unexpected] = names;
  if (missing.empty()) return {};
  const std::set<std::string> given(unexpected.begin(), unexpected.end());
  constexpr std::size_t most_tried = 8;
  std::set<std::string> prefixes;
  for (const std::string& own : {missing.front(), missing.back()})
    for (const std::string& name : unexpected)
      if (name.ends_with('.' + own) && prefixes.size() < most_tried)
        prefixes.insert(name.substr(0, name.size() - own.size()));
  for (const std::string& prefix : prefixes) {
    const auto found = std::ranges::count_if(
        missing, [&](const std::string& name) { return given.contains(prefix + name); });
    if (2 * std::size_t(found) > missing.size()) return prefix;
  }
  return {};
}

Difference compare(const NamedTensors& own, const NamedTensors& given) {
  Difference result;
  for (const auto& [name, x] : own) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      result.names.missing.push_back(name);
    } else if (found->second.shape() != x.shape()) {
      result.misshapen.push_back(
          name_and(name, x.shape(), " here, ", found->second.shape(), " given"));
    } else if (has_overlap(x)) {
      result.overlapping.push_back(shortened(name, 80));
    } else if (const std::optional<double> lost = lost_value(found->second, x.dtype())) {
      result.lost.push_back(name_and(name, *lost, " given, ", x.dtype(), " here"));
    }
  }
  for (const auto& [name, x] : given) {
    if (!own.contains(name)) result.names.unexpected.push_back(name);
  }
  compare_tied(own, given, result);
  return result;
}

std::string line_of(std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string line(1, ' ');
  return line.append(title).append(": ").append(listed(names)).append(".");
}

/// `strict`: names that do not agree are errors as well. `prefix`: of the given names.
void refuse(const Difference& difference, std::string_view source, bool strict,
            const std::string& prefix) {
  const auto& [names, misshapen, contradictory, lost, overlapping] = difference;
  const bool names_agree = names.missing.empty() && names.unexpected.empty();
  const std::string lists = line_of("Missing", names.missing) +
                            line_of("Unexpected", names.unexpected) +
                            line_of("Misshapen", misshapen) +
                            line_of("Different under two names of one tensor", contradictory) +
                            line_of("Out of range", lost) + line_of("Expanded", overlapping);
  const auto refuse_as = [&]<class Kind>(const std::string& remedy) {
    fail<Kind>("load_state_dict", source, " does not fit the module:", lists, remedy);
  };
  if (!misshapen.empty())
    refuse_as.operator()<ShapeError>(" Build the module with the sizes that were saved.");
  if (!overlapping.empty())
    refuse_as.operator()<UsageError>(
        " Elements of an expanded tensor share their memory. Make the parameter from a clone().");
  if (!contradictory.empty())
    refuse_as.operator()<UsageError>(
        " Build a module that does not tie them, or give each tensor one value.");
  if (!lost.empty()) refuse_as.operator()<DTypeError>(" Load into a module of a wider dtype.");
  if (strict && !prefix.empty()) {
    const std::string quoted = in_quotes(prefix);
    refuse_as.operator()<UsageError>(" The names given begin with " + quoted +
                                     ": pass .strip_prefix = " + quoted + ".");
  }
  if (strict && !names_agree)
    refuse_as.operator()<UsageError>(" Rename them, or pass .strict = false to load what agrees.");
}

LoadReport load_from(Module& module, const NamedTensors& given, bool strict,
                     std::string_view source, std::string_view hidden = {}) {
  NamedTensors own = state_dict(module);
  Difference difference = compare(own, given);
  for (auto* names :
       {&difference.names.missing, &difference.names.unexpected, &difference.misshapen,
        &difference.contradictory, &difference.lost, &difference.overlapping})
    for (std::string& name : *names)
      if (!hidden.empty() && name.starts_with(hidden)) name.erase(0, hidden.size());
  refuse(difference, source, strict, prefix_of(difference.names));
  for (auto& [name, x] : own) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) continue;
    copy_into(x, found->second);
  }
  return difference.names;
}

}  // namespace

NamedTensors state_dict(const Module& module) { return CollectState(module).state; }

LoadReport load_state_dict(Module& module, const NamedTensors& state, LoadOptions options) {
  if (options.strip_prefix.empty()) return load_from(module, state, options.strict, "the state");
  SafetensorsFile file{.tensors = state};
  detail::strip_prefix(file, options.strip_prefix);
  return load_from(module, file.tensors, options.strict, "the state");
}

void save(const Module& module, const std::filesystem::path& path) {
  save_safetensors(path, state_dict(module), {{"format", "pt"}});  // "pt": PyTorch's layouts
}

LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options) {
  const MemoryScope scope(MemoryUse::workspace);  // the file's tensors live until copied
  return detail::load_file(module, load_safetensors(path), options, path);
}

namespace detail {

void strip_prefix(SafetensorsFile& file, const std::string& prefix) {
  if (prefix.empty()) return;
  std::set<std::string> names;
  const auto strip = [&](auto& named) {
    std::remove_cvref_t<decltype(named)> stripped;
    for (auto& [name, value] : named) {
      const std::string rest = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
      if (!names.insert(rest).second)
        fail<UsageError>("load_state_dict", in_quotes(rest), " is given with the prefix ",
                         in_quotes(prefix), " and without. Remove one of the two.");
      stripped.emplace(rest, std::move(value));
    }
    named = std::move(stripped);
  };
  strip(file.tensors), strip(file.unsupported);
}

LoadReport load_file(Module& module, SafetensorsFile file, const LoadOptions& options,
                     const std::filesystem::path& path, std::string_view hidden) {
  strip_prefix(file, options.strip_prefix);
  const NamedTensors own = state_dict(module);
  for (const auto& [name, what] : file.unsupported) {
    if (own.contains(name)) {
      const std::size_t begin = name.starts_with(hidden) ? hidden.size() : 0;
      fail<UnsupportedError>("load_state_dict", path.string(), ": tensor ",
                             in_quotes(name.substr(begin)), " is ", what,
                             ", which no tensor can be here. Convert it before saving.");
    }
    file.tensors.emplace(name, Tensor());
  }
  return load_from(module, file.tensors, options.strict, path.string(), hidden);
}

}  // namespace detail

}  // namespace halftone::nn
