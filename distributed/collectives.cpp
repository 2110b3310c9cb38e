// Exchanges between all ranks, or between rank 0 and the others.
#include <halftone/distributed/collectives.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
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

}  // namespace halftone::distributed
