#include "block.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace halftone::ptx {

namespace {

constexpr int warp_size = 32;

}  // namespace

Block::Block(Machine& machine, Kernel& kernel, Order order, uint64_t seed, uint64_t most_steps)
    : machine_(machine),
      kernel_(kernel),
      order_(order),
      random_state_(seed * 0x9e3779b97f4a7c15 | 1),
      most_steps_(most_steps) {}

uint64_t Block::random() {
  random_state_ ^= random_state_ << 13, random_state_ ^= random_state_ >> 7;
  return random_state_ ^= random_state_ << 17;
}

void Block::put(std::vector<Group>& groups, Group group) {
  for (Group& other : groups) {
    if (other.at != group.at || other.warp != group.warp) continue;
    Threads both(other.threads.size() + group.threads.size());
    std::merge(other.threads.begin(), other.threads.end(), group.threads.begin(),
               group.threads.end(), both.begin());
    other.threads = std::move(both);
    return;
  }
  groups.push_back(std::move(group));
}

void Block::start() {
  ready_.clear(), at_barrier_.clear(), in_exchange_.clear();
  left_ = machine_.threads, steps_ = 0;
  gone_.assign(std::size_t(left_), false);
  const int size = order_ == Order::in_step ? left_ : warp_size;
  for (int first = 0; first < left_; first += size) {
    Threads threads(std::size_t(std::min(size, left_ - first)));
    std::iota(threads.begin(), threads.end(), uint16_t(first));
    ready_.push_back({0, order_ == Order::in_step ? -1 : first / warp_size, std::move(threads)});
  }
}

Block::Group Block::take_next() {
  int warp = ready_.front().warp;
  if (order_ == Order::shuffled) warp = ready_[random() % ready_.size()].warp;
  for (const Group& group : ready_) {
    if (order_ == Order::ascending) warp = std::min(warp, group.warp);
    if (order_ == Order::descending) warp = std::max(warp, group.warp);
  }
  std::size_t best = ready_.size();
  for (std::size_t n = 0; n < ready_.size(); ++n)
    if (ready_[n].warp == warp && (best == ready_.size() || ready_[n].at < ready_[best].at))
      best = n;
  Group group = std::move(ready_[best]);
  ready_.erase(ready_.begin() + std::ptrdiff_t(best));
  return group;
}

int Block::next_of_others(int warp) const {
  int next = std::numeric_limits<int>::max();
  for (const Group& group : ready_)
    if (group.warp == warp) next = std::min(next, group.at);
  return next;
}

void Block::release() {
  if (!in_exchange_.empty()) {
    machine_.current = &kernel_.code[std::size_t(in_exchange_.front().at)];
    machine_.fail("threads wait for others of their mask that never come");
  }
  machine_.current = &kernel_.code[std::size_t(at_barrier_.front().at - 1)];
  if (left_ < machine_.threads) machine_.fail("a barrier that some threads have left out");
  std::swap(ready_, at_barrier_);
}

void Block::run() {
  start();
  while (left_ > 0) {
    if (ready_.empty()) release();
    go(take_next());
  }
}

void Block::go(Group group) {
  const int meeting = next_of_others(group.warp);
  uint64_t turns =
      order_ == Order::shuffled ? 1 + random() % 40 : std::numeric_limits<uint64_t>::max();
  do {
    if (group.at >= meeting || turns-- == 0) return put(ready_, std::move(group));
    if (++steps_ > most_steps_) machine_.fail("it does not end");
    ++kernel_.executed[std::size_t(group.at)];
  } while (step(group, kernel_.code[std::size_t(group.at)]));
}

/// Returns the threads for which the guard holds; the others are in others_.
Block::Guarded Block::guarded(const Group& group, const Instruction& i) {
  const Threads& threads = group.threads;
  const int count = int(threads.size());
  others_.clear();
  if (!i.guarded) return {threads.data(), count};
  const uint8_t* const guard =
      reinterpret_cast<const uint8_t*>(machine_.registers + i.guard * machine_.padded);
  const uint8_t inverted = i.guard_inverted;
  int holding = 0;
  Lanes(threads.data(), count).each([&](int l) { holding += guard[l] ^ inverted; });
  if (holding == count) return {threads.data(), count};
  if (holding == 0) return others_ = threads, Guarded{nullptr, 0};
  taken_.clear();
  for (const uint16_t l : threads) (guard[l] ^ inverted ? taken_ : others_).push_back(l);
  return {taken_.data(), holding};
}

bool Block::step(Group& group, const Instruction& i) {
  machine_.current = &i;
  const Guarded taken = guarded(group, i);
  switch (i.flow) {
    case Flow::next:
      if (taken.count > 0) i.run(machine_, i, Lanes(taken.list, taken.count));
      return ++group.at, true;
    case Flow::branch: return branch(group, i, taken);
    case Flow::leave: return leave(group, taken);
    case Flow::barrier: return arrive(group, taken);
    case Flow::exchange: return exchange(group, i, taken);
  }
  return false;
}

bool Block::branch(Group& group, const Instruction& i, const Guarded& taken) {
  if (others_.empty()) return group.at = i.target, true;
  if (taken.count == 0) return ++group.at, true;
  ready(i.target, group.warp, taken_), ready(group.at + 1, group.warp, others_);
  return false;
}

bool Block::leave(Group& group, const Guarded& taken) {
  for (int n = 0; n < taken.count; ++n) gone_[taken.list[n]] = true;
  left_ -= taken.count;
  if (others_.empty()) return false;
  group.threads = others_, ++group.at;
  return true;
}

bool Block::arrive(Group& group, const Guarded& taken) {
  ++group.at;
  if (taken.count == machine_.threads) return true;
  if (taken.count > 0)
    put(at_barrier_, {group.at, group.warp, Threads(taken.list, taken.list + taken.count)});
  if (!others_.empty()) ready(group.at, group.warp, others_);
  return false;
}

/// Returns whether the threads are whole warps and their masks name all lanes: the usual case.
bool Block::all_present(const Instruction& i, const Threads& threads) const {
  const int count = int(threads.size());
  if (threads[0] % warp_size != 0 || count % warp_size != 0 ||
      threads.back() - threads[0] + 1 != count)
    return false;
  if (i.whole_warp) return true;
  const uint32_t* const mask = machine_.row<uint32_t>(i.operands[i.operand_count - 1]);
  uint32_t all = ~uint32_t(0);
  for (int l = threads[0]; l < threads[0] + count; ++l) all &= mask[l];
  return all == ~uint32_t(0);
}

Block::Threads Block::complete(const Instruction& i, Threads& threads) const {
  Threads here, missing;
  for (std::size_t first = 0; first < threads.size();) {
    const int warp = threads[first] / warp_size;
    std::size_t last = first;
    uint32_t present = 0, exist = 0;
    for (; last < threads.size() && threads[last] / warp_size == warp; ++last)
      present |= 1u << threads[last] % warp_size;
    for (int lane = 0; lane < warp_size; ++lane) {
      const int thread = warp * warp_size + lane;
      if (thread < machine_.threads && !gone_[std::size_t(thread)]) exist |= 1u << lane;
    }
    const uint32_t mask =
        i.whole_warp ? ~0u
                     : machine_.row<uint32_t>(i.operands[i.operand_count - 1])[threads[first]];
    if (present & ~mask) machine_.fail("a lane in an exchange whose mask leaves it out");
    if (i.whole_warp && exist != ~0u)
      machine_.fail("an instruction of a whole warp, of which lanes have left");
    Threads& to = present == (mask & exist) ? here : missing;
    to.insert(to.end(), threads.begin() + std::ptrdiff_t(first),
              threads.begin() + std::ptrdiff_t(last));
    first = last;
  }
  threads = std::move(missing);
  return here;
}

bool Block::exchange(Group& group, const Instruction& i, const Guarded& taken) {
  if (others_.empty() && all_present(i, group.threads)) {
    i.run(machine_, i, Lanes(taken.list, taken.count));
    return ++group.at, true;
  }
  if (!others_.empty()) ready(group.at + 1, group.warp, others_);
  if (taken.count == 0) return false;
  Threads waiting(taken.list, taken.list + taken.count);
  put(in_exchange_, {group.at, group.warp, std::move(waiting)});
  const auto met = std::find_if(in_exchange_.begin(), in_exchange_.end(), [&](const Group& g) {
    return g.at == group.at && g.warp == group.warp;
  });
  const Threads here = complete(i, met->threads);
  if (met->threads.empty()) in_exchange_.erase(met);
  if (here.empty()) return false;
  i.run(machine_, i, Lanes(here.data(), int(here.size())));
  ready(group.at + 1, group.warp, here);
  return false;
}

}  // namespace halftone::ptx
