// Messages are slices of the gradients themselves, or of their rounded copies: nothing is packed.
#include <halftone/distributed/reducer.h>

#include <algorithm>
#include <string>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>
#include <halftone/distributed/collectives.h>

namespace halftone::distributed {

namespace {
DType sum_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }

Tensor converted_to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}

Tensor flat(const Tensor& x) { return *views::reshape(views::contiguous(x), {x.numel()}); }
}  // namespace

Reducer::Reducer(Communicator& group, std::vector<Tensor> parameters, const Options& options)
    : group_(group), parameters_(std::move(parameters)), options_(options) {
  if (options.wire && *options.wire != f32 && *options.wire != bf16 && *options.wire != f16)
    fail<UsageError>("distributed", "the wire is ", *options.wire,
                     ". Use f32, bf16, f16, or nothing for the gradients' own dtype.");
  if (options.bucket_bytes < 1)
    fail<UsageError>("distributed", "bucket_bytes is ", options.bucket_bytes, ". Use 1 or more.");
  sums_.resize(parameters_.size()), reached_.resize(parameters_.size());
  complete_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_of_[parameters_[i].meta().get()] = i;
  int64_t bytes = 0;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (buckets_.empty() || bytes + parameters_[i].bytes() > options.bucket_bytes)
      buckets_.emplace_back(), bytes = 0;
    buckets_.back().push_back(i);
    bytes += parameters_[i].bytes();
  }
}

/// What a rank owns of a parameter: every rank computes the same table. Multiples of 64 elements.
Reducer::Range Reducer::range_of(const Tensor& parameter, int rank) const {
  constexpr int64_t grain = 64;
  const int64_t count = parameter.numel(), pieces = (count + grain - 1) / grain;
  const auto cut = [&](int64_t r) { return std::min(count, pieces * r / group_.size() * grain); };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

/// So many times -0.0.
Tensor Reducer::neutral(int64_t count, DType dtype) {
  const auto same =
      std::ranges::find_if(neutral_, [&](const Tensor& x) { return x.dtype() == dtype; });
  if (same != neutral_.end() && same->numel() >= count) return views::slice(*same, 0, 0, count);
  if (same != neutral_.end()) neutral_.erase(same);
  const MemoryScope scope(MemoryUse::workspace);
  neutral_.push_back(full({count}, -0.0, dtype));
  return neutral_.back();
}

/// A parameter's gradient as it goes on the wire: 1-D, and on the host if it is to be sent. It is
/// gone from the parameter.
Tensor Reducer::own_contribution(std::size_t index, bool took_part) {
  Tensor& parameter = parameters_[index];
  Tensor gradient = parameter.grad();
  parameter.set_grad({});
  if (!took_part || !gradient.defined())
    return neutral(parameter.numel(),
                   options_.wire && parameter.dtype() != f64 ? *options_.wire : parameter.dtype());
  reached_[index] = 1;
  if (gradient.dtype() != parameter.dtype())
    fail<UsageError>("distributed", "a gradient is ", described(gradient), ", its parameter ",
                     described(parameter), ". Call zero_grad() before the first backward().");
  if (options_.wire && gradient.dtype() != f64) gradient = converted_to(gradient, *options_.wire);
  return flat(group_.size() > 1 ? gradient.to(Device::cpu()) : gradient);
}

/// sum += contribution, in the sum's dtype; the first is the sum.
void Reducer::add(const Tensor& contribution, Tensor& sum) const {
  const DType wide = sum_dtype(contribution.dtype());
  if (sum.defined()) {
    backend_for(sum).accumulate(converted_to(contribution, wide), sum);
    return;
  }
  const MemoryScope scope(MemoryUse::gradient);
  sum = empty(contribution.shape(), wide, contribution.device());
  backend_for(sum).copy(contribution, sum);
}

void Reducer::add_batches(bool took_part) {
  if (recording_step())
    fail<UnsupportedError>("distributed",
                           "steps of several batches are not captured. Run this one as it is.");
  pending_ = true;
  if (group_.size() == 1) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].grad().defined()) add(own_contribution(i, took_part), sums_[i]);
    return;
  }
  while (sent_buckets_ < buckets_.size()) send_next_bucket(took_part);
  for (UnderWay& sent : under_way_) fold(sent);
  under_way_.clear(), complete_.assign(complete_.size(), false);
  sent_buckets_ = 0;
  ++reductions_;
}

void Reducer::on_gradient(AutogradMeta& leaf) {
  const auto known = index_of_.find(&leaf);
  if (known == index_of_.end() || !leaf.grad.defined() || recording_step()) return;
  pending_ = true;
  if (group_.size() == 1) return add(own_contribution(known->second, true), sums_[known->second]);
  complete_[known->second] = true;
  const auto complete = [&](std::size_t index) { return bool(complete_[index]); };
  while (sent_buckets_ < buckets_.size() && std::ranges::all_of(buckets_[sent_buckets_], complete))
    send_next_bucket(true);
}

void Reducer::send_next_bucket(bool took_part) {
  constexpr std::size_t most_under_way = 3;  // what arrives takes memory
  if (under_way_.size() == most_under_way) {
    fold(under_way_.front());
    under_way_.pop_front();
  }
  under_way_.push_back(send_bucket(buckets_[sent_buckets_++], took_part));
}

Reducer::UnderWay Reducer::send_bucket(const std::vector<std::size_t>& bucket, bool took_part) {
  UnderWay sent{.bucket = bucket};
  std::vector<Message> out, in;
  const int size = group_.size(), rank = group_.rank();
  const MemoryScope scope(MemoryUse::workspace);
  for (const std::size_t index : bucket) {
    const Tensor& parameter = parameters_[index];
    const Tensor own = own_contribution(index, took_part);
    const auto part_for = [&](int peer) {
      const Range range = range_of(parameter, peer);
      return views::slice(own, 0, range.begin, range.count);
    };
    std::vector<Tensor>& parts = sent.parts.emplace_back(std::size_t(size));
    parts[std::size_t(rank)] = part_for(rank);
    for (int step = 1; step < size; ++step) {
      const int to = (rank + step) % size, from = (rank + size - step) % size;
      if (const Tensor part = part_for(to); part.numel() > 0) out.push_back({to, part});
      Tensor& arriving = parts[std::size_t(from)];
      arriving = empty({parts[std::size_t(rank)].numel()}, own.dtype());
      if (arriving.numel() > 0) in.push_back({from, arriving});
    }
  }
  sent.exchange = group_.exchange("gradients, reduction " + std::to_string(reductions_),
                                  TrafficUse::gradient, out, in);
  return sent;
}

/// Adds what has come, in the order of the ranks, which is that of the batches.
void Reducer::fold(UnderWay& sent) {
  sent.exchange->wait();
  for (std::size_t k = 0; k < sent.bucket.size(); ++k)
    for (const Tensor& part : sent.parts[k])
      if (part.numel() > 0) add(part, sums_[sent.bucket[k]]);
}

void Reducer::finish() {
  if (!pending_) return;
  if (group_.size() > 1) {
    const Tensor own =
        from_span(std::span<const uint8_t>(reached_), {int64_t(reached_.size())}, u8);
    for (const Tensor& theirs :
         all_gather(group_, "which parameters have gradients", TrafficUse::control, own))
      for (std::size_t i = 0; i < reached_.size(); ++i)
        reached_[i] = std::max(reached_[i], theirs.data<uint8_t>()[i]);
  }
  std::vector<Message> out, in;
  std::vector<Tensor> whole(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!reached_[i]) continue;
    const Tensor& parameter = parameters_[i];
    if (group_.size() == 1) {
      whole[i] = sums_[i];
      continue;
    }
    const MemoryScope scope(MemoryUse::gradient);
    whole[i] = empty({parameter.numel()}, sum_dtype(parameter.dtype()));
    for (int peer = 0; peer < group_.size(); ++peer) {
      const Range range = range_of(parameter, peer);
      if (range.count == 0) continue;
      Tensor part = views::slice(whole[i], 0, range.begin, range.count);
      if (peer != group_.rank()) {
        in.push_back({peer, part});
        continue;
      }
      backend_for(part).copy(sums_[i], part);
      for (int other = 0; other < group_.size(); ++other)
        if (other != peer) out.push_back({other, part});
    }
  }
  if (group_.size() > 1)
    group_.exchange("sums of gradients", TrafficUse::gradient, out, in)->wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (whole[i].defined()) {
      const Tensor gradient = *views::reshape(whole[i], parameters_[i].shape());
      parameters_[i].set_grad(gradient.to(parameters_[i].device()));
    }
  drop();
}

void Reducer::drop() {
  std::ranges::fill(sums_, Tensor{});
  std::ranges::fill(reached_, uint8_t(0));
  under_way_.clear(), complete_.assign(complete_.size(), false);
  sent_buckets_ = 0, pending_ = false;
}

}  // namespace halftone::distributed
