// Exchanges between all ranks, or between rank 0 and the others.
#include <halftone/distributed/collectives.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <numeric>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::distributed {

namespace {
Tensor bytes_of(std::string_view text) {
  Tensor bytes = empty({int64_t(text.size())}, u8);
  if (!text.empty()) std::memcpy(bytes.raw_data(), text.data(), text.size());
  return bytes;
}
std::string text_of(const Tensor& bytes) {
  return {reinterpret_cast<const char*>(bytes.raw_data()), std::size_t(bytes.numel())};
}
Tensor number(int64_t value) { return from_vector(std::vector<int64_t>{value}, {1}, i64); }

/// Sends the own tensor to all and receives those of the others; each may have another size.
void exchange_all(Communicator& group, std::string_view what, TrafficUse use, const Tensor& own,
                  std::vector<Tensor>& all) {
  std::vector<Message> out, in;
  for (int step = 1; step < group.size(); ++step) {  // each starts with its neighbor
    const int to = (group.rank() + step) % group.size(),
              from = (group.rank() + group.size() - step) % group.size();
    if (own.numel() > 0) out.push_back({to, own});
    if (all[std::size_t(from)].numel() > 0) in.push_back({from, all[std::size_t(from)]});
  }
  group.exchange(what, use, out, in)->wait();
  all[std::size_t(group.rank())] = own;
}

/// Sends rank 0's tensor into the tensors that the other ranks have for it.
void broadcast_into(Communicator& group, std::string_view what, TrafficUse use, const Tensor& x) {
  if (x.numel() == 0) return;
  std::vector<Message> out, in;
  if (group.rank() != 0) in.push_back({0, x});
  for (int peer = 1; group.rank() == 0 && peer < group.size(); ++peer) out.push_back({peer, x});
  group.exchange(what, use, out, in)->wait();
}

/// Returns the first lines in which two texts differ: "batch_size 64" and "batch_size 32".
std::pair<std::string_view, std::string_view> first_difference(std::string_view a,
                                                               std::string_view b) {
  const auto take_line = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  while (true) {
    const std::string_view line_a = take_line(a), line_b = take_line(b);
    if (line_a != line_b || (a.empty() && b.empty())) return {line_a, line_b};
  }
}
}  // namespace

std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               const Tensor& own) {
  std::vector<Tensor> all(std::size_t(group.size()));
  for (Tensor& x : all) x = empty(own.shape(), own.dtype());
  exchange_all(group, what, use, own, all);
  return all;
}

std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               std::vector<Tensor> all) {
  const Tensor own = all.at(std::size_t(group.rank()));
  exchange_all(group, what, use, own, all);
  return all;
}

std::vector<std::string> all_gather_texts(Communicator& group, std::string_view what,
                                          std::string_view own) {
  const auto sizes = all_gather(group, what, TrafficUse::control, number(int64_t(own.size())));
  std::vector<Tensor> all;
  for (const Tensor& size : sizes) all.push_back(empty({*size.data<int64_t>()}, u8));
  exchange_all(group, what, TrafficUse::control, bytes_of(own), all);
  std::vector<std::string> texts;
  for (const Tensor& bytes : all) texts.push_back(text_of(bytes));
  return texts;
}

int64_t largest(Communicator& group, std::string_view what, int64_t own) {
  if (group.size() == 1) return own;
  int64_t most = own;
  for (const Tensor& x : all_gather(group, what, TrafficUse::control, number(own)))
    most = std::max(most, *x.data<int64_t>());
  return most;
}

std::string broadcast_text(Communicator& group, std::string_view what, std::string_view text) {
  const Tensor size = number(int64_t(text.size()));
  broadcast_into(group, what, TrafficUse::control, size);
  const Tensor bytes = group.rank() == 0 ? bytes_of(text) : empty({*size.data<int64_t>()}, u8);
  broadcast_into(group, what, TrafficUse::control, bytes);
  return text_of(bytes);
}

int64_t broadcast_number(Communicator& group, std::string_view what, int64_t own) {
  const Tensor x = number(own);
  broadcast_into(group, what, TrafficUse::control, x);
  return *x.data<int64_t>();
}

Tensor broadcast_tensor(Communicator& group, std::string_view what, const Tensor& own,
                        const TensorInfo& info) {
  const bool here = group.rank() == 0;
  const Tensor x = here ? views::contiguous(own).to(Device::cpu()) : empty(info.shape, info.dtype);
  broadcast_into(group, what, TrafficUse::state, x);
  return here ? own : x;
}

/// Names as lines of text, dtypes and shapes as numbers.
std::vector<TensorInfo> broadcast_infos(Communicator& group, std::string_view what,
                                        const NamedTensors& tensors) {
  std::string names;
  std::vector<int64_t> numbers;
  if (group.rank() == 0)
    for (const auto& [name, x] : tensors) {
      names += name + '\n';
      numbers.push_back(int64_t(x.dtype())), numbers.push_back(x.rank());
      for (const int64_t size : x.shape()) numbers.push_back(size);
    }
  names = broadcast_text(group, what, names);
  numbers.resize(std::size_t(broadcast_number(group, what, int64_t(numbers.size()))));
  const Tensor all_numbers = from_vector(numbers, {int64_t(numbers.size())}, i64);
  broadcast_into(group, what, TrafficUse::control, all_numbers);

  std::vector<TensorInfo> infos;
  const int64_t* next = all_numbers.data<int64_t>();
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = names.find('\n', at);
    TensorInfo& info = infos.emplace_back(TensorInfo{.name = names.substr(at, end - at)});
    at = end + 1;
    info.dtype = DType(*next++);
    for (int64_t rank = *next++; rank > 0; --rank) info.shape.push_back(*next++);
  }
  return infos;
}

NamedTensors broadcast(Communicator& group, std::string_view what, const NamedTensors& tensors) {
  if (group.size() == 1) return tensors;
  NamedTensors result;
  for (const TensorInfo& info : broadcast_infos(group, what, tensors))
    result[info.name] =
        broadcast_tensor(group, what, group.rank() == 0 ? tensors.at(info.name) : Tensor{}, info);
  return result;
}

namespace {
/// The kinds of errors that are thrown again on other ranks; unknown kinds become the last one.
template <class... Kind> struct ErrorKinds {
  static char letter_of(const std::exception& error) {
    char letter = 'a';
    const bool known = ((dynamic_cast<const Kind*>(&error) || (++letter, false)) || ...);
    return known ? letter : char(letter - 1);
  }
  [[noreturn]] static void throw_again(char letter, const std::string& message) {
    char own = 'a';
    ((own++ == letter ? throw Kind(message) : void()), ...);
    throw Error(message);
  }
};
using Kinds = ErrorKinds<ShapeError, DTypeError, DeviceError, UsageError, UnsupportedError,
                         FormatError, Error>;
}  // namespace

void on_rank_0(Communicator& group, std::string_view what, const std::function<void()>& body) {
  std::exception_ptr failure;
  std::string told;
  if (group.rank() == 0) try {
      body();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      told = Kinds::letter_of(error) + std::string(error.what());
    }
  if (group.size() > 1) told = broadcast_text(group, what, told);
  if (failure) std::rethrow_exception(failure);
  if (!told.empty()) Kinds::throw_again(told[0], told.substr(1));
}

void require_agreement(Communicator& group, std::string_view what, std::string_view text) {
  if (group.size() == 1) return;
  const std::vector<std::string> all = all_gather_texts(group, what, text);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [there, here] = first_difference(all[rank], all[0]);
    fail<UsageError>("distributed", "rank ", rank, " has ", there.empty() ? "nothing" : there,
                     ", rank 0 has ", here.empty() ? "nothing" : here, ". Start all ranks alike.");
  }
}

// The table of owners, and exchanges of ranges.

namespace {
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::vector<int64_t> sizes_of(std::span<const Tensor> parameters) {
  std::vector<int64_t> sizes;
  for (const Tensor& x : parameters) sizes.push_back(x.numel());
  return sizes;
}
}  // namespace

int64_t Shards::cut_length(int64_t size) {
  constexpr int64_t least = 1024, most = 16384;
  return std::clamp(divided_up(divided_up(size, 16), least) * least, least, most);
}

/// Cuts are dealt out evenly; leftover cuts go to the ranks that have the fewest elements.
Shards::Shards(std::vector<int64_t> sizes, int ranks)
    : ranks_(ranks), sizes_(std::move(sizes)), elements_(std::size_t(ranks), 0) {
  std::vector<int> by_elements(elements_.size());
  for (const int64_t size : sizes_) {
    const int64_t cut = cut_length(size), cuts = divided_up(size, cut);
    std::vector<int64_t> own(elements_.size(), cuts / ranks);
    std::iota(by_elements.begin(), by_elements.end(), 0);
    std::ranges::stable_sort(by_elements, {},
                             [&](int rank) { return elements_[std::size_t(rank)]; });
    for (int64_t i = 0; i < cuts % ranks; ++i) ++own[std::size_t(by_elements[std::size_t(i)])];
    int64_t begin = 0;
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      const int64_t end = std::min(size, begin + own[rank] * cut);
      ranges_.push_back({begin, end - begin});
      elements_[rank] += end - begin;
      begin = end;
    }
  }
}

Shards::Shards(std::span<const Tensor> parameters, int ranks)
    : Shards(sizes_of(parameters), ranks) {}

int64_t Shards::cuts(std::size_t parameter, int rank) const {
  return divided_up(range(parameter, rank).count, cut_length(size(parameter)));
}

Tensor part_of(const Tensor& x, Shards::Range range) {
  return x.detach().view_as({range.count}, {1}, x.offset() + range.begin);
}

void exchange_ranges(Communicator& group, const Shards& shards, std::string_view what,
                     TrafficUse use, std::span<const std::size_t> which,
                     std::span<const Tensor> whole) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  std::vector<std::pair<Tensor, Tensor>> arriving;  // not carried; its destination
  for (std::size_t k = 0; k < which.size(); ++k)
    for (int step = 0; step < group.size(); ++step) {
      const int peer = (group.rank() + step) % group.size();
      const Tensor part = part_of(whole[k], shards.range(which[k], peer));
      if (part.numel() == 0) continue;
      Tensor here = part;
      const bool carried = group.carries(part.device());
      if (!carried) here = step == 0 ? part.to(Device::cpu()) : empty(part.shape(), part.dtype());
      if (step > 0) {
        in.push_back({peer, here});
        if (!carried) arriving.emplace_back(part, here);
      } else {
        for (int other = 1; other < group.size(); ++other)
          out.push_back({(group.rank() + other) % group.size(), here});
      }
    }
  group.exchange(what, use, out, in)->wait();
  for (const auto& [part, here] : arriving) copy_into(part, here);
  for (const Tensor& x : whole) mark_written(x);
}

Shards::Range PerBlock::operator()(Shards::Range range) const {
  return {range.begin / elements * numbers, divided_up(range.count, elements) * numbers};
}

Tensor gather_on_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                        std::size_t parameter, const Tensor& own, const Shape& shape,
                        PerBlock per) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  Tensor whole;
  if (group.rank() != 0) {
    if (own.numel() > 0) out.push_back({0, own.to(Device::cpu())});
  } else {
    whole = empty(shape, own.dtype());
    for (int peer = 0; peer < group.size(); ++peer) {
      const Tensor part = part_of(whole, per(shards.range(parameter, peer)));
      if (peer == 0) copy_into(part, part_of(own, {0, own.numel()}));
      else if (part.numel() > 0) in.push_back({peer, part});
    }
  }
  group.exchange(what, TrafficUse::state, out, in)->wait();
  return whole;
}

Tensor scatter_from_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                           std::size_t parameter, const Tensor& whole, DType dtype, PerBlock per) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  Tensor own;
  if (group.rank() == 0) {
    const Tensor here = views::contiguous(whole.detach()).to(Device::cpu());
    own = part_of(here, per(shards.range(parameter, 0))).clone();  // a copy: the whole can be freed
    for (int peer = 1; peer < group.size(); ++peer)
      if (const Tensor part = part_of(here, per(shards.range(parameter, peer))); part.numel() > 0)
        out.push_back({peer, part});
  } else {
    own = empty({per(shards.range(parameter, group.rank())).count}, dtype);
    if (own.numel() > 0) in.push_back({0, own});
  }
  group.exchange(what, TrafficUse::state, out, in)->wait();
  return own;
}

// The norm of gradients; each rank may have only a part of them.

namespace {
/// The arithmetic of a p-norm.
struct Norm {
  double p;

  bool largest() const { return std::isinf(p); }
  Reduction reduction() const {
    return largest() ? Reduction::max : p == 2 ? Reduction::sum_of_squares : Reduction::sum;
  }
  /// Returns the values of a gradient that the reduction reads.
  Tensor terms(const Tensor& gradient) const {
    if (p == 2) return gradient;
    const NoGrad no_grad;
    const CasterScope no_cast(nullptr);
    const Tensor sizes = abs(cast(gradient, f64));
    return largest() || p == 1 ? sizes : pow(sizes, p);
  }
  /// Returns the sum or maximum of both; a maximum keeps NaN.
  double joined(double a, double b) const {
    if (!largest()) return a + b;
    return a != a || a > b ? a : b;
  }
  double root(double total) const {
    if (largest() || p == 1) return total;
    return p == 2 ? std::sqrt(total) : elementary::pow(total, 1 / p);
  }
};

/// Reduces each cut of a range to its own f64 number: `values`, 1-D.
void reduce_cuts(const Norm& norm, const Tensor& gradient, int64_t cut, const Tensor& values) {
  if (gradient.numel() == 0) return;
  const MemoryScope scope(MemoryUse::workspace);
  const Tensor terms = norm.terms(gradient);
  const int64_t rows = terms.numel() / cut, rest = terms.numel() % cut;
  const auto reduce = [&](int64_t count, int64_t length, int64_t first) {
    Tensor y = values.view_as({count, 1}, {1, 1}, values.offset() + first);
    backend_for(y).reduce(norm.reduction(),
                          terms.view_as({count, length}, {length, 1}, terms.offset() + first * cut),
                          y);
  };
  if (rows > 0) reduce(rows, cut, 0);
  if (rest > 0) reduce(1, rest, rows);
}
}  // namespace

Tensor norm_of(Communicator& group, const Shards& shards, std::span<const Tensor> gradients,
               bool parts, double p) {
  if (!(p > 0))
    fail<UsageError>("clip_grad_norm", "norm_type is ", p, ". Use a positive number, or infinity.");
  const Norm norm{p};
  // By rank, the values of its cuts, parameter after parameter; with whole gradients all are ours.
  std::vector<int64_t> counts(std::size_t(shards.ranks()), 0);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (int rank = 0; gradients[i].defined() && rank < shards.ranks(); ++rank)
      counts[std::size_t(rank)] += shards.cuts(i, rank);
  std::vector<Tensor> values;
  for (const int64_t count : counts) values.push_back(zeros({count}, f64));
  std::vector<int64_t> next(counts.size(), 0);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor here = gradients[i].to(Device::cpu());
    for (int rank = 0; rank < shards.ranks(); ++rank) {
      if (parts && rank != group.rank()) continue;
      const Shards::Range range = parts ? Shards::Range{0, here.numel()} : shards.range(i, rank);
      const int64_t cuts = shards.cuts(i, rank);
      int64_t& at = next[std::size_t(rank)];
      reduce_cuts(norm, part_of(here, range), Shards::cut_length(shards.size(i)),
                  values[std::size_t(rank)].view_as({cuts}, {1}, at));
      at += cuts;
    }
  }
  if (parts) values = all_gather(group, "norms of gradients", TrafficUse::control, values);
  double total = 0;
  std::ranges::fill(next, 0);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (int rank = 0; gradients[i].defined() && rank < shards.ranks(); ++rank)
      for (int64_t cut = 0; cut < shards.cuts(i, rank); ++cut)
        total =
            norm.joined(total, values[std::size_t(rank)].data<double>()[next[std::size_t(rank)]++]);
  return scalar(norm.root(total), f64);
}

}  // namespace halftone::distributed
