// Ranks that are threads of this process, for tests of distributed/ without a launcher.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <halftone/core/communicator.h>

namespace halftone::test {

class ThreadRank final : public Communicator {
 public:
  /// Messages that are sent and not yet received, by sender and receiver.
  struct Post {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<std::pair<int, int>, std::deque<std::string>> letters;
  };
  ThreadRank(Post& post, int rank, int size) : post_(post), rank_(rank), size_(size) {}
  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int machines() const override { return 1; }
  std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                     std::span<const Message> out,
                                     std::span<const Message> in) override {
    const std::lock_guard lock(post_.mutex);
    for (const Message& message : out)
      post_.letters[{rank_, message.peer}].emplace_back(
          reinterpret_cast<const char*>(message.tensor.raw_data()),
          std::size_t(message.tensor.bytes()));
    count(use, out);
    post_.arrived.notify_all();
    return std::make_shared<Arrival>(*this, std::string(what),
                                     std::vector<Message>(in.begin(), in.end()));
  }
  [[noreturn]] void abort(std::string_view) noexcept override { std::terminate(); }
  /// A lock for data that the ranks of a test write together.
  std::mutex& mutex() { return together_; }

 private:
  struct Arrival final : Exchange {
    ThreadRank& self;
    std::string what;
    std::vector<Message> in;
    Arrival(ThreadRank& s, std::string w, std::vector<Message> i)
        : self(s), what(std::move(w)), in(std::move(i)) {}
    void wait() override {
      for (const Message& message : in) {
        std::unique_lock lock(self.post_.mutex);
        auto& letters = self.post_.letters[{message.peer, self.rank_}];
        if (!self.post_.arrived.wait_for(lock, std::chrono::seconds(20),
                                         [&] { return !letters.empty(); }))
          throw std::runtime_error("no rank sent what \"" + what + "\" waits for");
        const std::string letter = std::move(letters.front());
        letters.pop_front();
        if (int64_t(letter.size()) != message.tensor.bytes())
          throw std::runtime_error("another size arrived in \"" + what + '"');
        std::memcpy(message.tensor.raw_data(), letter.data(), letter.size());
      }
    }
  };
  Post& post_;
  int rank_, size_;
  static inline std::mutex together_;
};

/// Calls body(rank) on all ranks at once; throws the exception of the lowest rank that failed.
inline void on_ranks(int size, const std::function<void(ThreadRank&)>& body) {
  ThreadRank::Post post;
  std::vector<std::exception_ptr> errors(std::size_t(size), nullptr);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        try {
          ThreadRank self(post, rank, size);
          body(self);
        } catch (...) { errors[std::size_t(rank)] = std::current_exception(); }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace halftone::test
