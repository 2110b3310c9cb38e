// A rank sends its statistics as one block of bytes: for each batch norm the positions of its
// buffers, its momentum, and both vectors in the buffers' dtypes.
#include <halftone/distributed/statistics.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/collectives.h>

namespace halftone::distributed {

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
