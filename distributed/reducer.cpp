// Messages are slices of the gradients themselves, or of their rounded copies: nothing is packed.
#include <halftone/distributed/reducer.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/collectives.h>

namespace halftone::distributed {

namespace {
DType sum_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }

/// Returns the device of all parameters; the host if they have several, or if there are none.
Device device_of(const std::vector<Tensor>& parameters) {
  const auto elsewhere = [&](const Tensor& x) { return x.device() != parameters[0].device(); };
  return parameters.empty() || std::ranges::any_of(parameters, elsewhere) ? Device::cpu()
                                                                          : parameters[0].device();
}
}  // namespace

Reducer::Reducer(Communicator& group, std::vector<Tensor> parameters, const Options& options)
    : group_(group),
      parameters_(std::move(parameters)),
      wire_(options.wire.value_or(WireFormat{})),
      carrier_(communicator_for(group, device_of(parameters_))),
      wire_carrier_(stays_on_device(wire_) ? carrier_ : group),
      on_wire_(wire_carrier_.carries(device_of(parameters_)) ? device_of(parameters_)
                                                             : Device::cpu()),
      shards_(parameters_, group.size()) {
  check_wire(wire_);
  if (options.bucket_bytes < 1)
    fail<UsageError>("distributed", "bucket_bytes is ", options.bucket_bytes, ". Use 1 or more.");
  sums_.resize(parameters_.size()), reached_.resize(parameters_.size());
  complete_.resize(parameters_.size());
  uint64_t counter = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    index_of_[parameters_[i].meta().get()] = i;
    first_counter_.push_back(counter);
    counter += uint64_t(parameters_[i].numel() + 3) / 4;
  }
  int64_t bytes = 0;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (buckets_.empty() || bytes + parameters_[i].bytes() > options.bucket_bytes)
      buckets_.emplace_back(), bytes = 0;
    buckets_.back().push_back(i);
    bytes += parameters_[i].bytes();
  }
  if (options.shard_optimizer && group.size() > 1) make_parts();
}

void Reducer::make_parts() {
  for (const Tensor& x : parameters_)
    if (!x.is_contiguous())
      fail<UsageError>("distributed", "a parameter is ", described(x),
                       ", and not row-major. Make it contiguous, or turn shard_optimizer off.");
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parts_.push_back(part_of(parameters_[i], shards_.range(i, group_.rank()))
                         .set_requires_grad(parameters_[i].requires_grad()));
}

/// Returns -0.0 for all of a parameter.
Payload Reducer::neutral(const Tensor& parameter) const {
  const MemoryScope scope(MemoryUse::workspace);
  const Payload payload = Payload::empty(wire_, parameter.dtype(), 0, parameter.numel(), on_wire_);
  fill_with(payload.values, -0.0);
  if (payload.scales.defined()) fill_with(payload.scales, 1);
  return payload;
}

/// Returns the error feedback of this batch from the last step; nothing if the wire loses nothing.
Feedback Reducer::feedback_for(std::size_t index) {
  const Tensor& parameter = parameters_[index];
  if (!wire_.error_feedback || is_lossless(wire_, parameter.dtype())) return {};
  while (rests_.size() <= in_step_) rests_.emplace_back(parameters_.size(), Rest{});
  Rest& kept = rests_[in_step_][index];
  const MemoryScope scope(MemoryUse::compensation);
  if (!kept.rest.defined()) kept.rest = zeros({parameter.numel()});
  const double before = std::exchange(kept.loss_scale, loss_scale_);
  return {kept.rest, before == 0 ? 1 : loss_scale_ / before};
}

/// Returns a parameter's gradient in its wire format, on the device from which it is sent. Takes
/// the gradient out of the parameter.
Payload Reducer::own_contribution(std::size_t index, bool took_part) {
  Tensor& parameter = parameters_[index];
  const Tensor gradient = parameter.grad();
  parameter.set_grad({});
  if (!took_part || !gradient.defined()) return neutral(parameter);
  reached_[index] = 1;
  if (gradient.dtype() != parameter.dtype())
    fail<UsageError>("distributed", "a gradient is ", described(gradient), ", its parameter ",
                     described(parameter), ". Call zero_grad() before the first backward().");
  const RandomKey key{key_.seed, key_.offset + first_counter_[index]};
  Payload payload = to_wire(gradient, wire_, key, feedback_for(index));
  if (group_.size() > 1) payload.values = payload.values.to(on_wire_);
  return payload;
}

/// sum += contribution, in the sum's dtype; the first contribution becomes the sum.
void Reducer::add(const Payload& contribution, Tensor& sum) const {
  const Tensor wide = from_wire(contribution);
  if (sum.defined()) {
    backend_for(sum).accumulate(wide, sum);
    return;
  }
  const MemoryScope scope(MemoryUse::gradient);
  sum = empty(wide.shape(), wide.dtype(), wide.device());
  backend_for(sum).copy(wide, sum);
}

void Reducer::add_batches(bool took_part) {
  if (recording_step())
    fail<UnsupportedError>("distributed",
                           "steps of several batches are not captured. Run this one as it is.");
  pending_ = true;
  if (group_.size() == 1) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].grad().defined()) add(own_contribution(i, took_part), sums_[i]);
    ++in_step_;
    return;
  }
  while (sent_buckets_ < buckets_.size()) send_next_bucket(took_part);
  for (UnderWay& sent : under_way_) fold(sent);
  under_way_.clear(), complete_.assign(complete_.size(), false);
  sent_buckets_ = 0;
  ++reductions_, ++in_step_;
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
  constexpr std::size_t most_under_way = 3;  // received payloads take memory
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
  const MemoryScope scope(MemoryUse::communication);
  for (const std::size_t index : bucket) {
    const Payload whole = own_contribution(index, took_part);
    for (const Tensor& x : whole.tensors()) x.storage()->recharge(MemoryUse::communication);
    const Shards::Range own = shards_.range(index, rank);
    std::vector<Payload>& parts = sent.parts.emplace_back(std::size_t(size));
    parts[std::size_t(rank)] = whole.part(own.begin, own.count);
    for (int step = 1; step < size; ++step) {
      const int to = (rank + step) % size, from = (rank + size - step) % size;
      const Shards::Range theirs = shards_.range(index, to);
      for (const Tensor& x : whole.part(theirs.begin, theirs.count).tensors())
        out.push_back({to, x});
      Payload& arriving = parts[std::size_t(from)];
      arriving = Payload::empty(wire_, parameters_[index].dtype(), own.begin, own.count, on_wire_);
      for (const Tensor& x : arriving.tensors()) in.push_back({from, x});
    }
  }
  sent.exchange = wire_carrier_.exchange("gradients, reduction " + std::to_string(reductions_),
                                         TrafficUse::gradient, out, in);
  return sent;
}

/// Adds received payloads in the order of the ranks, which is that of the batches.
void Reducer::fold(UnderWay& sent) {
  sent.exchange->wait();
  for (std::size_t k = 0; k < sent.bucket.size(); ++k)
    for (const Payload& part : sent.parts[k])
      if (part.values.numel() > 0) add(part, sums_[sent.bucket[k]]);
}

void Reducer::agree_on_reached() {
  const Tensor own = from_span(std::span<const uint8_t>(reached_), {int64_t(reached_.size())}, u8);
  for (const Tensor& theirs :
       all_gather(group_, "which parameters have gradients", TrafficUse::control, own))
    for (std::size_t i = 0; i < reached_.size(); ++i)
      reached_[i] = std::max(reached_[i], theirs.data<uint8_t>()[i]);
}

void Reducer::finish() {
  if (!pending_) return;
  if (group_.size() > 1) agree_on_reached();
  updated_.clear();
  for (std::size_t i = 0; i < reached_.size(); ++i)
    if (reached_[i]) updated_.push_back(i);
  if (parts_.empty()) give_whole();
  else give_parts();
  drop();
}

/// If a rank owns no element of a parameter, its part still gets an (empty) gradient: states and
/// steps are counted equally on all ranks.
void Reducer::give_parts() {
  const MemoryScope scope(MemoryUse::gradient);
  for (const std::size_t i : updated_) {
    Tensor& part = parts_[i];
    if (!sums_[i].defined()) sums_[i] = empty(part.shape(), sum_dtype(part.dtype()));
    part.set_grad(sums_[i].to(part.device()));
  }
}

void Reducer::give_whole() {
  std::vector<Tensor> whole;
  for (const std::size_t i : updated_) {
    if (group_.size() == 1) {
      whole.push_back(sums_[i]);
      continue;
    }
    const MemoryScope scope(MemoryUse::gradient);
    whole.push_back(empty({parameters_[i].numel()}, sum_dtype(parameters_[i].dtype()), on_wire_));
    Tensor own = part_of(whole.back(), shards_.range(i, group_.rank()));
    if (own.numel() > 0) backend_for(own).copy(sums_[i], own);
  }
  if (group_.size() > 1)
    exchange_ranges(wire_carrier_, shards_, "sums of gradients", TrafficUse::gradient, updated_,
                    whole);
  for (std::size_t k = 0; k < whole.size(); ++k) {
    Tensor& parameter = parameters_[updated_[k]];
    const Tensor gradient = *views::reshape(whole[k], parameter.shape());
    parameter.set_grad(gradient.to(parameter.device()));
  }
}

void Reducer::gather_parameters() {
  const std::vector<std::size_t> updated = std::exchange(updated_, {});
  if (parts_.empty() || updated.empty()) return;
  std::vector<Tensor> whole;
  for (const std::size_t i : updated) whole.push_back(parameters_[i]);
  exchange_ranges(carrier_, shards_, "updated parameters", TrafficUse::parameter, updated, whole);
}

void Reducer::drop() {
  if (!parts_.empty())
    for (Tensor& x : parameters_) x.set_grad({});
  std::ranges::fill(sums_, Tensor{});
  std::ranges::fill(reached_, uint8_t(0));
  under_way_.clear(), complete_.assign(complete_.size(), false);
  sent_buckets_ = in_step_ = 0, pending_ = false;
}

// A rank sends its statistics as one block of bytes: for each batch norm the positions of its
// buffers, its momentum, and both vectors in the buffers' dtypes.

namespace {
template <class T> void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& bytes, const Tensor& x) {
  const Tensor here = views::contiguous(x).to(Device::cpu());
  bytes.append(reinterpret_cast<const char*>(here.raw_data()), std::size_t(here.bytes()));
}
template <class T> T taken_from(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}
Tensor statistics_from(std::string_view& bytes, const Tensor& like) {
  Tensor x = empty(like.shape(), statistics_dtype(like));
  std::memcpy(x.raw_data(), bytes.data(), std::size_t(x.bytes()));
  bytes.remove_prefix(std::size_t(x.bytes()));
  return x.to(like.device());
}
}  // namespace

OrderedStatistics::OrderedStatistics(Communicator& group, std::vector<Tensor> buffers)
    : group_(group), buffers_(std::move(buffers)) {}

std::size_t OrderedStatistics::position_of(const Tensor& buffer) const {
  const auto found =
      std::ranges::find_if(buffers_, [&](const Tensor& x) { return x.body() == buffer.body(); });
  if (found == buffers_.end())
    fail<UsageError>("distributed", "a batch norm has running statistics, ", described(buffer),
                     ", which are not a buffer of the model. Name its layer in describe().");
  return std::size_t(found - buffers_.begin());
}

std::string OrderedStatistics::packed() const {
  std::string bytes;
  put(bytes, uint64_t(counted_.size()));
  for (const Tensor& batches : counted_) put(bytes, uint64_t(position_of(batches)));
  for (const BatchStatistics& batch : measured_) {
    put(bytes, uint64_t(position_of(batch.running_mean)));
    put(bytes, uint64_t(position_of(batch.running_var)));
    put(bytes, batch.momentum);
    put(bytes, batch.mean), put(bytes, batch.variance);
  }
  return bytes;
}

void OrderedStatistics::apply_packed(std::string_view bytes) const {
  for (auto count = taken_from<uint64_t>(bytes); count > 0; --count) {
    const Tensor& batches = buffers_.at(taken_from<uint64_t>(bytes));
    ++*batches.data<int64_t>();
    mark_written(batches);
  }
  while (!bytes.empty()) {
    BatchStatistics batch;
    batch.running_mean = buffers_.at(taken_from<uint64_t>(bytes));
    batch.running_var = buffers_.at(taken_from<uint64_t>(bytes));
    batch.momentum = taken_from<double>(bytes);
    batch.mean = statistics_from(bytes, batch.running_mean);
    batch.variance = statistics_from(bytes, batch.running_var);
    move_running_statistics(batch);
  }
}

void OrderedStatistics::apply() {
  if (buffers_.empty()) return;
  if (group_.size() > 1) {
    for (const std::string& bytes : all_gather_texts(group_, "running statistics", packed()))
      apply_packed(bytes);
  } else {
    for (const Tensor& batches : counted_) ++*batches.data<int64_t>(), mark_written(batches);
    for (const BatchStatistics& batch : measured_) move_running_statistics(batch);
  }
  drop();
}

}  // namespace halftone::distributed
